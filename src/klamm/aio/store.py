"""What `klamm.aio.open` gives: a store whose calls are awaited.

Each call runs in one of the store's threads: those of `reads` if it only reads, of `writes` if it may wait for the lock
of a partition or of the store, or for the disk. What it makes has threads of its own: threads.py.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

from klamm.aio.consumer import Consumer
from klamm.aio.groups import Groups
from klamm.aio.opener import Opener
from klamm.aio.pieces import Pieces
from klamm.aio.pipe import Pipe
from klamm.aio.producer import Producer
from klamm.aio.scan import Scan
from klamm.aio.table import Table
from klamm.aio.threads import Threads, run_alone
from klamm.aio.topic import Topic
from klamm.aio.topics import Topics
from klamm.aio.transaction import Transaction, begin
from klamm.aio.transactions import Transactions
from klamm.client.consume.tail import topic_history
from klamm.client.serde import Serdes

if TYPE_CHECKING:
    from datetime import datetime

    from klamm import api
    from klamm.arrow.sql_result import SqlResult
    from klamm.batch import Record
    from klamm.client.consume.consumer_options import ConsumerOptions
    from klamm.client.options import Acks
    from klamm.client.pipe.pipe_options import PipeOptions
    from klamm.client.produce.producer_options import ProducerOptions, TransactionOptions
    from klamm.client.serde import Serde
    from klamm.client.subscription import TopicSelection
    from klamm.client.work.dead_letters import DeadLetter
    from klamm.store.backup import Copied
    from klamm.store.check import Report
    from klamm.store.settings import Value
    from klamm.times import Duration
    from klamm.types import Appended, CompactionReport, GivenHeaders, Lineage, LockInfo
    from klamm.where import WhereLike

__all__ = ["Store"]

_LETTERS = 500  # that a thread reads at a time


class Store:
    """A directory of topics. Made by `klamm.aio.open`. `async for` gives the names of its topics."""

    def __init__(self, store: api.Store, reads: Threads, writes: Threads) -> None:
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
    def sync(self) -> api.Store:
        """The store itself, for what is quick or runs in threads of its own."""
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
        """A name for the store that no other has, except its copies."""
        return self._sync.store_id

    @property
    def closed(self) -> bool:
        return self._sync.closed

    # ---- what is in it

    @property
    def topics(self) -> Topics:
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

    def __getitem__(self, name: str) -> Topic:
        """Return a handle on a topic. Nothing is looked up: its first call raises UnknownTopic if there is none."""
        return Topic(self, name)

    def __aiter__(self) -> AsyncIterator[str]:
        return aiter(self.topics)

    async def settings(self) -> dict[str, str]:
        """Return the settings of the store itself, defaults included."""
        return await self._reads.run(self._sync.settings)

    async def alter(
        self, settings: Mapping[str, Value] | None = None, *, reset: Iterable[str] = (), **named: Value
    ) -> dict[str, str]:
        """Change some of them, put those named in `reset` back to their defaults, leave the rest; return them all."""
        return await self._writes.run(self._sync.alter, settings, reset=reset, **named)

    # ---- appending

    async def append(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        partition: int | None = None,
        headers: GivenHeaders | None = None,
        timestamp: int | datetime | None = None,
        acks: Acks = "all",
        serde: Serde | None = None,
        key_serde: Serde | None = None,
    ) -> int | None:
        """Append one record and return its offset: see `klamm.Store.append`.

        Cancelled, the record is appended or not.
        """
        return await self._writes.run(
            self._sync.append,
            topic,
            value,
            key=key,
            partition=partition,
            headers=headers,
            timestamp=timestamp,
            acks=acks,
            serde=serde,
            key_serde=key_serde,
        )

    async def append_many(
        self,
        topic: str,
        records: Iterable[Any],
        *,
        acks: Acks = "all",
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        compression: str | None = None,
        compression_level: int | None = None,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
    ) -> Appended:
        """Append many records, in few batches, and return where they are. `records` is iterated in a thread."""
        return await self._writes.run(
            self._sync.append_many,
            topic,
            records,
            acks=acks,
            partition=partition,
            timestamp=timestamp,
            compression=compression,
            compression_level=compression_level,
            serde=serde,
            key_serde=key_serde,
        )

    async def append_table(
        self,
        topic: str,
        table: Any,
        *,
        acks: Acks = "all",
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        compression: str | None = None,
        compression_level: int | None = None,
    ) -> Appended:
        """Append the rows of an Arrow table, or of anything that gives Arrow's stream: where they went."""
        return await self._writes.run(
            self._sync.append_table,
            topic,
            table,
            acks=acks,
            partition=partition,
            timestamp=timestamp,
            compression=compression,
            compression_level=compression_level,
        )

    def producer(self, **options: Unpack[ProducerOptions]) -> Opener[Producer]:
        """Sends records in batches, from any task. Leaving its `async with` block flushes."""

        async def start() -> Producer:
            return Producer(await self._writes.make(self._sync.producer, **options))

        return Opener(start)

    # ---- reading

    def consumer(self, topics: TopicSelection | None = None, **options: Unpack[ConsumerOptions]) -> Opener[Consumer]:
        """Reads topics; with `group` shares them. The options are those of `klamm.Store.consumer`.

        Functions among them (`on_assigned`, a serde, …) are called in the consumer's thread.
        """

        async def start() -> Consumer:
            made = await self._reads.make(self._sync.consumer, topics, **options)
            return Consumer(made, self._reads, self._writes)

        return Opener(start)

    async def tail(
        self,
        topic: str,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
    ) -> AsyncIterator[Any]:
        """Iterate over the last `n` records of all partitions, by time; with `follow`, then over those that come."""
        serdes = Serdes(serde, key_serde).over(self._sync._serdes)
        core = self._sync._acquired()
        history = await self._reads.run(topic_history, core, topic, n, start, *serdes)
        async with Pieces(self._reads, lambda: history.batches, 1) as batches:
            async for batch in batches:
                for record in batch:
                    yield record
        if follow:
            async with self.consumer(topic, start=history.ends, serde=serde, key_serde=key_serde) as consumer:
                async for record in consumer:
                    yield record

    def transaction(
        self,
        name: str | None = None,
        *,
        consumers: Consumer | Iterable[Consumer] = (),
        **options: Unpack[TransactionOptions],
    ) -> Opener[Transaction]:
        """Records and progress of groups, all or nothing. Leaving its `async with` block commits, an error aborts."""
        several = (consumers,) if isinstance(consumers, Consumer) else consumers

        async def start() -> Transaction:
            taking_part = [each._sync if isinstance(each, Consumer) else each for each in several]
            return await begin(self._writes, lambda: self._sync.transaction(name, consumers=taking_part, **options))

        return Opener(start)

    async def lineage(self, record: Record) -> Lineage | None:
        """Return the committed transaction that a record came with: see `klamm.Store.lineage`."""
        return await self._reads.run(self._sync.lineage, record)

    def table(
        self,
        topic: str,
        *,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        wait: Duration | None = 10,
    ) -> Opener[Table]:
        """Open the latest value of each key of the topic: see `klamm.Store.table`."""

        async def start() -> Table:
            made = await self._reads.make(self._sync.table, topic, serde=serde, key_serde=key_serde, wait=wait)
            return Table(made, self._reads, self._writes)

        return Opener(start)

    def pipe(self, topic: str, function: Callable[..., Any], **options: Unpack[PipeOptions]) -> Opener[Pipe]:
        """Put a function between topics, exactly once: `run` calls it for each record, in the pipe's thread."""

        async def start() -> Pipe:
            return Pipe(await self._writes.make(self._sync.pipe, topic, function, **options))

        return Opener(start)

    def dead_letters(self, topic: str, *, limit: int | None = None) -> Pieces[DeadLetter]:
        """Iterate over what lies in a dead-letter topic now and was not redriven, with the reasons."""
        return Pieces(self._reads, lambda: self._sync.dead_letters(topic, limit=limit), _LETTERS)

    async def redrive(
        self,
        topic: str,
        to: str | None = None,
        *,
        limit: int | None = None,
        where: Callable[[DeadLetter], bool] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Put dead letters back to where they came from, or to the topic `to`, each once: how many.

        `where` and `progress` are called in a thread. Cancelled, letters go back all the same, each once.
        """
        return await self._writes.run(self._sync.redrive, topic, to, limit=limit, where=where, progress=progress)

    async def purge_dead_letters(self, topic: str) -> int:
        """Remove the redriven letters in front of the first that was not, by partition, and return how many."""
        return await self._writes.run(self._sync.purge_dead_letters, topic)

    def scan(
        self,
        topic: str,
        *,
        partitions: int | Iterable[int] | None = None,
        start: WhereLike = "earliest",
        end: WhereLike = "latest",
        columns: Iterable[str] | None = None,
        **options: Any,
    ) -> Scan:
        """Return the topic, or a part of it, as record batches of Arrow: `async for`, or `await …to_table()`."""
        return Scan(
            self._reads,
            lambda: self._sync.scan(topic, partitions=partitions, start=start, end=end, columns=columns, **options),
        )

    async def sql(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> SqlResult:
        """Run a query of DuckDB, in which topics are tables, and return its rows."""
        return await self._reads.run(self._sync.sql, query, parameters)

    # ---- keeping house; `progress` is called in a thread

    async def maintain(self) -> None:
        """Sync and record how far, remove what retention says, compact what is worth it, sweep."""
        await self._writes.run(self._sync.maintain)

    async def compact(
        self,
        *,
        force: bool = False,
        memory_bytes: int = 128 << 20,
        progress: Callable[[str, int, int, int], object] | None = None,
    ) -> CompactionReport:
        """Compact all topics whose cleanup.policy says so, where `min.cleanable.dirty.ratio` is reached."""
        return await self._writes.run(self._sync.compact, force=force, memory_bytes=memory_bytes, progress=progress)

    async def backup(
        self, destination: str | os.PathLike[str], *, progress: Callable[[int, int], object] | None = None
    ) -> Copied:
        """Copy the store, as it is at one moment, into a new directory. Others may go on using it."""
        return await self._reads.run(self._sync.backup, destination, progress=progress)

    async def check(self, *, repair: bool = False, progress: Callable[[int, int], object] | None = None) -> Report:
        """Verify every promise and report which is broken, and where."""
        return await self._reads.run(self._sync.check, repair=repair, progress=progress)

    async def who(self) -> list[LockInfo]:
        """Return which processes hold or wait for which lock of the store, since when, and whether they are stopped."""
        return await self._reads.run(self._sync.who)

    # ---- the end

    async def close(self) -> None:
        """Close its producers (they flush) and consumers, and let go of the directory. Cancelled, all the same."""
        self._reads.close()
        self._writes.close()
        await run_alone(self._sync.close)
