"""The store that `klamm.aio.open` returns: its calls are awaited.

Each call runs in one of the store's threads: of `reads` if it only reads, of `writes` if it may wait for the lock of a
partition or of the store, or for the disk. Consumers, producers, tables and pipes have their own threads: threads.py.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never, Self

from klamm.aio.appends import Appends
from klamm.aio.groups import Groups
from klamm.aio.opener import Opener
from klamm.aio.pieces import Pieces
from klamm.aio.pipe import Pipe
from klamm.aio.reads import Reads
from klamm.aio.threads import Threads, run_alone
from klamm.aio.topic import Topic
from klamm.aio.topics import Topics
from klamm.aio.transactions import Transactions
from klamm.other_names import explains_names
from klamm.typevars import K, V

if TYPE_CHECKING:
    from klamm import api
    from klamm.arrow.sql_result import SqlResult
    from klamm.batch import Record
    from klamm.choices import OffsetReset, PipeErrorPolicy
    from klamm.client.serde import Serde
    from klamm.client.work.dead_letters import DeadLetter
    from klamm.store.backup import Copied
    from klamm.store.check import Report
    from klamm.store.settings import Value
    from klamm.types import CompactionReport, Lineage, LockInfo

__all__ = ["Store"]

_LETTERS = 500  # that a thread reads at a time


@explains_names
class Store(Appends[K, V], Reads[K, V]):
    """A directory of topics. Made by `klamm.aio.open`. `async for` gives the names of its topics."""

    def __init__(self, store: api.Store[K, V], reads: Threads, writes: Threads) -> None:
        self._sync = store
        self._reads = reads
        self._writes = writes

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def sync(self) -> api.Store[K, V]:
        """The underlying klamm.Store."""
        return self._sync

    @property
    def path(self) -> str:
        """The directory."""
        return self._sync.path

    @property
    def read_only(self) -> bool:
        return self._sync.read_only

    @property
    def store_id(self) -> str:
        """A unique id of the store; copies have the same."""
        return self._sync.store_id

    @property
    def closed(self) -> bool:
        return self._sync.closed

    # ---- what is in it

    @property
    def topics(self) -> Topics[K, V]:
        """Its topics: create, describe, alter, delete; `async for` gives their names."""
        return Topics(self)

    @property
    def groups(self) -> Groups:
        """Its consumer groups: describe, reset, delete, export; `async for` gives their names."""
        return Groups(self)

    @property
    def transactions(self) -> Transactions:
        """The transactions that are not over: abort; `async for` gives TransactionInfos."""
        return Transactions(self)

    def __getitem__(self, name: str) -> Topic[K, V]:
        """Return a handle on a topic. Nothing is looked up: its first call raises UnknownTopic if there is none."""
        if not isinstance(name, str):  # `for` and `in` would ask for 0, 1, 2, … without end
            raise TypeError(f"a topic's name is a str, not {type(name).__name__} (async for gives the names)")
        return Topic(self, name)

    def __aiter__(self) -> AsyncIterator[str]:
        return aiter(self.topics)

    async def settings(self) -> dict[str, str]:
        """Return the settings of the store itself, defaults included."""
        return await self._reads.run(self._sync.settings)

    async def alter(
        self, settings: Mapping[str, Value] | None = None, *, reset: Iterable[str] = (), **named: Value
    ) -> dict[str, str]:
        """Change some of the store's settings, reset those named in `reset`, and return all."""
        return await self._writes.run(self._sync.alter, settings, reset=reset, **named)

    # ---- appending: appends.py, reading: reads.py

    async def lineage(self, record: Record[Any, Any]) -> Lineage | None:
        """Return the committed transaction that a record came with: see `klamm.Store.lineage`."""
        return await self._reads.run(self._sync.lineage, record)

    def pipe(
        self,
        topic: str,
        function: Callable[..., Any],
        *,
        to: str | Iterable[str] = (),
        state: str | None = None,
        group: str | None = None,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        auto_offset_reset: OffsetReset | None = None,
        on_error: PipeErrorPolicy = "stop",
        max_records: int = 1000,
        max_poll_interval_ms: int = 300_000,
        **unknown: Never,
    ) -> Opener[Pipe]:
        """Put a function between topics, exactly once: `run` calls it for each record, in the pipe's thread."""

        async def start() -> Pipe:
            made = await self._writes.make(
                self._sync.pipe,
                topic,
                function,
                to=to,
                state=state,
                group=group,
                serde=serde,
                key_serde=key_serde,
                auto_offset_reset=auto_offset_reset,
                on_error=on_error,
                max_records=max_records,
                max_poll_interval_ms=max_poll_interval_ms,
                **unknown,
            )
            return Pipe(made)

        return Opener(start)

    def dead_letters(self, topic: str, *, limit: int | None = None) -> Pieces[DeadLetter]:
        """Iterate over the letters in a dead-letter topic now that were not redriven, with their errors."""
        return Pieces(self._reads, lambda: self._sync.dead_letters(topic, limit=limit), _LETTERS)

    async def redrive(
        self,
        topic: str,
        to: str | None = None,
        *,
        limit: int | None = None,
        where: Callable[[DeadLetter], bool] | None = None,
        edit: Callable[[DeadLetter], bytes | None] | None = None,
        per_second: float | None = None,
        dry_run: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Send dead letters back to their topics, or to the topic `to`, each once. Return how many.

        `where`, `edit` and `progress` are called in a thread. Cancelling the call does not stop the redrive.
        """
        return await self._writes.run(
            self._sync.redrive,
            topic,
            to,
            limit=limit,
            where=where,
            edit=edit,
            per_second=per_second,
            dry_run=dry_run,
            progress=progress,
        )

    async def purge_dead_letters(self, topic: str) -> int:
        """Delete the redriven letters before the first one that is not, in each partition. Return how many."""
        return await self._writes.run(self._sync.purge_dead_letters, topic)

    async def sql(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> SqlResult:
        """Run a query of DuckDB, in which topics are tables, and return its rows."""
        return await self._reads.run(self._sync.sql, query, parameters)

    # ---- maintenance; `progress` is called in a thread

    async def maintain(self) -> None:
        """Write recovery points, resolve abandoned transactions, apply retention, compact where it is worth it, sweep
        leftovers.
        """
        await self._writes.run(self._sync.maintain)

    async def compact(
        self,
        *,
        force: bool = False,
        memory_bytes: int = 128 << 20,
        progress: Callable[[str, int, int, int], object] | None = None,
    ) -> CompactionReport:
        """Compact all topics with cleanup.policy=compact that have reached `min.cleanable.dirty.ratio`."""
        return await self._writes.run(self._sync.compact, force=force, memory_bytes=memory_bytes, progress=progress)

    async def backup(
        self, destination: str | os.PathLike[str], *, progress: Callable[[int, int], object] | None = None
    ) -> Copied:
        """Copy the store, as of one moment, into a new directory, while other processes use it."""
        return await self._reads.run(self._sync.backup, destination, progress=progress)

    async def check(self, *, repair: bool = False, progress: Callable[[int, int], object] | None = None) -> Report:
        """Verify every promise and report which is broken, and where."""
        return await self._reads.run(self._sync.check, repair=repair, progress=progress)

    async def who(self) -> list[LockInfo]:
        """Return which processes hold or wait for which lock of the store, since when, and whether they are stopped."""
        return await self._reads.run(self._sync.who)

    # ---- the end

    async def close(self) -> None:
        """Close the store, its producers (they flush) and its consumers. Cancelling the call does not stop that."""
        self._reads.close()
        self._writes.close()
        await run_alone(self._sync.close)
