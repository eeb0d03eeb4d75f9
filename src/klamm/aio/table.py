"""A table for asyncio: the latest value of each key of a topic. It has a thread of its own, because a read may wait for
the process that updates the table.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from klamm.aio.consumer import Consumer
from klamm.aio.pieces import Pieces
from klamm.aio.threads import Threads, run_alone
from klamm.other_names import explains_names
from klamm.times import Duration
from klamm.typevars import K, V

if TYPE_CHECKING:
    from klamm.batch import Record
    from klamm.choices import AcksWithOffset
    from klamm.client.table.table import Table as SyncTable
    from klamm.types import BytesLike, Position
    from klamm.where import WhereLike

__all__ = ["Table"]

_AT_ONCE = 1000  # keys that the thread takes at a time
T = TypeVar("T")


@explains_names
class Table(Generic[K, V]):
    """Made by `store.table()` of klamm.aio. `async for` gives its keys. Tasks may share it."""

    def __init__(self, table: SyncTable[K, V], reads: Threads, writes: Threads) -> None:
        self._sync = table
        self._reads = reads
        self._writes = writes
        self._threads = Threads(1, "klamm-aio-table")

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    @property
    def topic(self) -> str:
        return self._sync.topic

    @property
    def maintains(self) -> bool:
        """Whether this process is the maintainer: it applies new records to the table, for all processes."""
        return self._sync.maintains

    # ---- one key

    @overload
    async def get(self, key: K | BytesLike, default: None = None, *, wait: Duration | None = None) -> V | None: ...
    @overload
    async def get(self, key: K | BytesLike, default: V | T, *, wait: Duration | None = None) -> V | T: ...
    async def get(self, key: Any, default: Any = None, *, wait: Duration | None = None) -> Any:
        """Return the value of `key`. `wait` overrides that of the table; 0: the value as of now, without a wait."""
        get: Callable[..., Any] = self._sync.get
        return await self._threads.run(get, key, default, wait=wait)

    # ---- writing

    async def put(self, key: K | BytesLike, value: V, *, acks: AcksWithOffset = "all") -> int:
        """Append a record to the topic: the key has this value for every read that begins later. Return its offset."""
        return await self._writes.run(self._sync.put, key, value, acks=acks)

    async def delete(self, key: K | BytesLike, *, acks: AcksWithOffset = "all") -> int:
        """Append a tombstone of the key to the topic, whether or not the table has it, and return its offset."""
        return await self._writes.run(self._sync.delete, key, acks=acks)

    # ---- many, each iteration as the table was when it began

    def __aiter__(self) -> AsyncIterator[K]:
        return self.keys()

    def keys(self) -> Pieces[K]:
        """Return all keys, in the order of their bytes."""
        return self._pieces(lambda: iter(self._sync))

    def items(self) -> Pieces[tuple[K, V]]:
        """Return all (key, value) pairs, in the order of the keys' bytes."""
        return self._pieces(self._sync.range)

    def values(self) -> Pieces[V]:
        """Return all values, in the order of the keys' bytes."""
        return self._pieces(lambda: iter(self._sync.values()))

    def prefix(self, prefix: K | BytesLike) -> Pieces[tuple[K, V]]:
        """Return (key, value) of the keys with this prefix, in the order of their bytes."""
        return self._pieces(lambda: self._sync.prefix(prefix))

    def range(self, start: K | BytesLike | None = None, stop: K | BytesLike | None = None) -> Pieces[tuple[K, V]]:
        """Return (key, value) of the keys from `start` up to, not including, `stop`, in the order of their bytes."""
        return self._pieces(lambda: self._sync.range(start, stop))

    def _pieces(self, begin: Callable[[], Iterator[T]]) -> Pieces[T]:
        return Pieces(self._threads, begin, _AT_ONCE)

    # ---- how far it goes, and what comes

    async def refresh(self) -> None:
        """Return when the table has everything that was committed before the call. Every read does this by itself."""
        await self._threads.run(self._sync.refresh)

    async def offsets(self) -> dict[int, Position]:
        """Return the offsets up to which the table is built, by partition, for `changes`. Later reads see at least
        these.
        """
        return await self._threads.run(self._sync.offsets)

    async def changes(self, start: WhereLike = "earliest", *, wait: Duration | None = 0) -> AsyncIterator[Record[K, V]]:
        """Iterate over the records with a key from `start` on, such as `offsets()`; a value of None deletes its key.

        It ends when no record comes for `wait`; None: never.
        """
        made = await self._reads.make(self._sync._changes, start, wait)
        async with Consumer(made, self._reads, self._writes) as consumer:
            async for record in consumer:
                if record.key is not None:
                    yield record

    async def close(self) -> None:
        """Release the table; the last user in a process closes it. Cancelling does not stop that."""
        self._threads.close()
        await run_alone(self._sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
