"""Requests out of the bytes of one connection. No socket: the channel says what was received.

All connections share one receive buffer, so an idle one costs no memory. Requests that are there whole are decoded
where they lie. A request that arrived in part gets a buffer of its own, which grows as its bytes arrive (never by what
its size field says), from a budget that all connections share; the bytes of a large one are not copied when it grows.
What was received behind a request that is still being handled is copied and counts in the budget; when the budget is
used up, little is received at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from mmap import mmap
from typing import TYPE_CHECKING

from klamm.kafka.wire.frames import API_KEY_BYTES, SIZE_BYTES, check_control_request, frame_size, size_field

if TYPE_CHECKING:
    from klamm.kafka.listener import Listener

__all__ = ["FrameReader"]

_FIRST_BYTES = 16 * 1024  # first buffer of a partial request: small, because the size field is untrusted
_GROWTH = 4  # then this many times what has arrived
_MAPPED_BYTES = 4 * 1024 * 1024  # from here on pages of the whole request, which take memory as its bytes arrive
_AHEAD = 16 * 1024  # received behind a request that is being handled
_LITTLE = 1024  # received at a time while the budget is used up


class FrameReader:
    """The reader of one channel's requests."""

    __slots__ = ("_behind", "_data", "_filled", "_held", "_listener", "_on_room", "_partial", "_position", "_size",
                 "max_request", "partial_since")  # fmt: skip

    def __init__(self, listener: Listener, on_room: Callable[[], None]) -> None:
        self._listener = listener
        self._on_room = on_room
        self._data: memoryview | None = None  # being parsed now: in the shared buffer, or what was `_behind`
        self._position = 0
        self._behind: bytearray | None = None  # received, and not parsed yet
        self._partial: memoryview | None = None  # the buffer of a request that arrived in part
        self._filled = 0
        self._size = 0  # of the whole request
        self._held = 0  # bytes of the budget for it
        self.partial_since = 0.0
        self.max_request = listener.max_request

    @property
    def has_partial(self) -> bool:
        """Whether a request has arrived in part."""
        return self._partial is not None

    @property
    def behind_bytes(self) -> int:
        """How many bytes were received and not parsed yet."""
        return 0 if self._behind is None else len(self._behind)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of what was received."""
        data = self._data
        return self._behind is None and self._partial is None and (data is None or self._position == len(data))

    @property
    def has_more(self) -> bool:
        """Whether something was received behind the request that is being handled. Nothing is behind one that arrived
        in part, unless it was put back: its buffer ends with it.
        """
        data = self._data
        return self._behind is not None or (data is not None and self._position < len(data))

    @property
    def is_blocked(self) -> bool:
        """Whether a partial request waits for the budget: receive nothing."""
        return self._partial is not None and self._filled == len(self._partial) < self._size

    # ---- receiving

    def buffer(self, is_busy: bool) -> memoryview:
        """Return where to receive next."""
        if self._partial is not None and self._filled < self._size:
            return self._partial[self._filled :]
        listener = self._listener
        if listener.budget.is_full:
            return listener.buffer[:_LITTLE]
        return listener.buffer[:_AHEAD] if is_busy else listener.buffer

    def received(self, count: int, is_busy: bool) -> None:
        """Process `count` bytes that were received into the buffer."""
        if self._partial is not None and self._filled < self._size:
            self._filled += count
            if self._filled == len(self._partial) < self._size:
                self._grow(self._partial)
            return
        data = self._listener.buffer[:count]
        if self._behind is None and not is_busy:
            self._data, self._position = data, 0
        else:
            self._put_behind(self._take_behind() + data)

    # ---- requests

    def only_frame(self, count: int) -> memoryview | None:
        """Return the request in the `count` bytes that were received into the shared buffer, if it is whole and nothing
        is before or behind it. Then `received` is not called, and nothing is left to be released.
        """
        size = count - SIZE_BYTES
        if self._partial is not None or self._behind is not None or not 0 < size <= self.max_request:
            return None
        listener = self._listener
        if size > listener.max_control_request or size_field(listener.buffer) != size:
            return None
        return listener.buffer[SIZE_BYTES:count]

    def next_frame(self) -> memoryview | None:
        """Return the next whole request, or None. `release` it before the next call."""
        if self._partial is not None:
            return self._partial[: self._size] if self._filled == self._size else None
        data = self._data
        if data is None:
            if self._behind is None:
                return None
            data = self._data = memoryview(self._take_behind())
            self._position = 0
        end, start = len(data), self._position + SIZE_BYTES
        if end < start:
            return None
        listener = self._listener
        size = frame_size(data, self._position, limit=self.max_request)
        if size > listener.max_control_request:
            if end < start + API_KEY_BYTES:
                return None
            check_control_request(data, start, size, limit=listener.max_control_request)
        if end - start >= size:
            self._position = start + size
            return data[start : self._position]
        self._data = None
        self._begin_partial(size, data[start:])
        return None

    def put_back(self, frame: memoryview) -> None:
        """Put back the frame that `next_frame` has returned last: it returns the frame again."""
        if self._partial is None:
            self._position -= SIZE_BYTES + len(frame)

    def release(self) -> None:
        """Release the buffer of a frame that was handled."""
        if self._partial is not None and self._filled == self._size:
            self._drop_partial()

    def stash(self) -> None:
        """Copy what is left in the shared buffer, which the next connection will overwrite."""
        data, self._data = self._data, None
        if data is not None and self._position < len(data):
            self._put_behind(bytearray(data[self._position :]))

    def hand_over(self, size: int) -> int:
        """Hand up to `size` bytes that are held for the partial request over to a copy of it. Return how many."""
        moved = min(size, self._held)
        self._held -= moved
        return moved

    def close(self) -> None:
        self._drop_partial()
        self._take_behind()
        self._data = None

    # ---- memory

    def _put_behind(self, rest: bytearray) -> None:
        self._behind = rest
        self._listener.budget.read_ahead(len(rest))

    def _take_behind(self) -> bytearray:
        rest, self._behind = self._behind, None
        if rest is None:
            return bytearray()
        self._listener.budget.read_ahead(-len(rest))
        return rest

    def _begin_partial(self, size: int, data: memoryview) -> None:
        self._size = size
        self._filled = len(data)
        self.partial_since = self._listener.now()
        self._grow(data)

    def _grow(self, data: memoryview) -> None:
        """Get a larger buffer for the partial request, of which `data` has arrived; or be blocked."""
        listener = self._listener
        room = min(self._size, max(_FIRST_BYTES, _GROWTH * self._filled))
        if listener.budget.take(self, room - self._held, self._try_again):
            self._held = room
            before = self._partial
            if before is not None and isinstance(before.obj, mmap):
                self._partial = memoryview(before.obj)[:room]
                return
            self._partial = (
                listener.receive_buffer(room) if room < _MAPPED_BYTES else memoryview(mmap(-1, self._size))[:room]
            )
            self._partial[: self._filled] = data[: self._filled]
            if before is not None:
                listener.reuse(before)
        elif self._partial is None:
            self._partial = memoryview(bytearray(data))

    def _try_again(self) -> None:
        if self._partial is not None:
            self._grow(self._partial)
            if not self.is_blocked:
                self._on_room()

    def _drop_partial(self) -> None:
        partial, self._partial = self._partial, None
        if partial is not None:
            listener = self._listener
            listener.reuse(partial)
            listener.budget.forget(self)
            held, self._held = self._held, 0
            listener.budget.give_back(self, held)
