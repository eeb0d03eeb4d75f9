"""Read chunks in a thread of their own: the next ones while the last ones are written."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator

from klamm.transfer.chunk import Chunk

__all__ = ["read_ahead"]

_DEPTH = 4  # chunks that wait
_POLL_S = 0.05  # how soon a thread that waits for space sees that the iterator was closed


class _End:
    """The last element: all was read, or an error."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def read_ahead(chunks: Generator[Chunk | None]) -> Iterator[Chunk | None]:
    """Yield what `chunks` yields, and raise what it raises. When this iterator is closed, so is `chunks`."""
    ready: queue.Queue[Chunk | _End | None] = queue.Queue(_DEPTH)
    is_over = threading.Event()

    def put(element: Chunk | _End | None) -> bool:
        while not is_over.is_set():
            try:
                ready.put(element, timeout=_POLL_S)
            except queue.Full:
                continue
            return True
        return False

    def run() -> None:
        end = _End()
        try:
            for chunk in chunks:
                if not put(chunk):
                    break
        except BaseException as error:  # noqa: BLE001  # raised by the thread that reads from this iterator
            end.error = error
        finally:
            chunks.close()
            put(end)

    thread = threading.Thread(target=run, name="klamm-copy-reader", daemon=True)
    thread.start()
    try:
        while True:
            element = ready.get()
            if isinstance(element, _End):
                if element.error is not None:
                    raise element.error
                return
            yield element
    finally:
        is_over.set()
        thread.join()
