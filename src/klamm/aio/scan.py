"""A scan for asyncio: a topic, or a part of it, as Arrow record batches, one at a time."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from klamm.aio.pieces import Pieces
from klamm.aio.threads import Threads
from klamm.other_names import explains_names

if TYPE_CHECKING:
    import pyarrow as pa

    from klamm.arrow.scan import Scan as SyncScan

__all__ = ["Scan"]


@explains_names
class Scan:
    """A topic, or a part of it, to be read; made by `store.scan` of klamm.aio. Nothing is looked up before it is read.

    `async for` gives record batches; a thread reads one at a time.
    """

    def __init__(self, threads: Threads, make: Callable[[], SyncScan]) -> None:
        self._threads = threads
        self._make = make
        self._made: SyncScan | None = None
        self._mutex = threading.Lock()

    def _scan(self) -> SyncScan:
        """Return the underlying scan, in a thread. It is created once, because its options may be iterators."""
        with self._mutex:
            if self._made is None:
                self._made = self._make()
            return self._made

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self.batches()

    def batches(self) -> Pieces[pa.RecordBatch]:
        """Return a new stream of record batches; none is empty. `async with` closes one that is not read to its end."""

        def begin() -> Iterator[pa.RecordBatch]:
            return self._scan().batches()

        return Pieces(self._threads, begin, 1)

    async def schema(self) -> pa.Schema:
        """Return Arrow's schema of the stream."""
        return await self._threads.run(lambda: self._scan().schema)

    async def to_table(self) -> pa.Table:
        """Return everything, in memory."""
        return await self._threads.run(lambda: self._scan().to_table())

    async def to_pandas(self) -> Any:
        """Return everything as a pandas.DataFrame."""
        return await self._threads.run(lambda: self._scan().to_pandas())

    async def to_polars(self) -> Any:
        """Return everything as a polars.DataFrame."""
        return await self._threads.run(lambda: self._scan().to_polars())
