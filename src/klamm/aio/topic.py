"""A handle on one topic, for asyncio: `store["orders"]`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from klamm import api

if TYPE_CHECKING:
    from datetime import datetime

    from klamm.aio.consumer import Consumer
    from klamm.aio.opener import Opener
    from klamm.aio.scan import Scan
    from klamm.aio.store import Store
    from klamm.aio.table import Table
    from klamm.client.consume.consumer_options import ConsumerOptions
    from klamm.client.options import Acks
    from klamm.client.serde import Serde
    from klamm.store.settings import Value
    from klamm.times import Duration
    from klamm.types import Appended, CompactionReport, Cut, GivenHeaders, TopicInfo
    from klamm.where import WhereLike

__all__ = ["Topic"]


class Topic:
    """A topic of a store, by its name: `store["orders"]`. Nothing is looked up before its first call."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._sync = api.Topic(store.sync, name)
        self._reads, self._writes = store._reads, store._writes

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    def __eq__(self, other: object) -> bool:
        return self._sync == other._sync if isinstance(other, Topic) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._sync)

    @property
    def name(self) -> str:
        return self._sync.name

    @property
    def store(self) -> Store:
        """The store that has it."""
        return self._store

    # ---- appending

    async def append(
        self,
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
        """Append one record and return its offset: like `store.append`."""
        return await self._store.append(
            self.name,
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
        """Append many records, in few batches, and return where they went: like `store.append_many`."""
        return await self._store.append_many(
            self.name,
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
        table: Any,
        *,
        acks: Acks = "all",
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        compression: str | None = None,
        compression_level: int | None = None,
    ) -> Appended:
        """Append the rows of an Arrow table, and return where they went: like `store.append_table`."""
        return await self._store.append_table(
            self.name,
            table,
            acks=acks,
            partition=partition,
            timestamp=timestamp,
            compression=compression,
            compression_level=compression_level,
        )

    # ---- reading

    def consumer(self, **options: Unpack[ConsumerOptions]) -> Opener[Consumer]:
        """Return a consumer of this topic; the options are those of `store.consumer`."""
        return self._store.consumer(self.name, **options)

    def tail(
        self,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
    ) -> AsyncIterator[Any]:
        """Iterate over the last `n` records from `start` on; with `follow`, then over those that come."""
        return self._store.tail(self.name, n, start=start, follow=follow, serde=serde, key_serde=key_serde)

    def scan(
        self,
        *,
        partitions: int | Iterable[int] | None = None,
        start: WhereLike = "earliest",
        end: WhereLike = "latest",
        columns: Iterable[str] | None = None,
        **options: Any,
    ) -> Scan:
        """Return the topic as record batches of Arrow: like `store.scan`."""
        return self._store.scan(self.name, partitions=partitions, start=start, end=end, columns=columns, **options)

    def table(
        self, *, serde: Serde | None = None, key_serde: Serde | None = None, wait: Duration | None = 10
    ) -> Opener[Table]:
        """Return the latest value of each key: like `store.table`."""
        return self._store.table(self.name, serde=serde, key_serde=key_serde, wait=wait)

    async def offset_at(self, partition: int, when: int | datetime) -> int | None:
        """Return the first offset whose record has a timestamp at or after `when`; None if there is none."""
        return await self._reads.run(self._sync.offset_at, partition, when)

    # ---- the topic itself

    async def info(self) -> TopicInfo:
        """Return the topic as it is now: its partitions and their ends, its settings."""
        return await self._reads.run(self._sync.info)

    async def settings(self) -> dict[str, str]:
        """Return all of its settings by Kafka's names, defaults included."""
        return await self._reads.run(self._sync.settings)

    async def alter(
        self, settings: Mapping[str, Value] | None = None, *, reset: Iterable[str] = (), **named: Value
    ) -> TopicInfo:
        """Change some settings, put those named in `reset` back to their defaults: like `store.topics.alter`."""
        return await self._writes.run(self._sync.alter, settings, reset=reset, **named)

    async def add_partitions(self, total: int) -> TopicInfo:
        """Let it have `total` partitions. New records of a key may go to another one than its old records."""
        return await self._writes.run(self._sync.add_partitions, total)

    async def delete(self) -> None:
        """Delete the topic and its records. Later appends to it, in any process, raise UnknownTopic."""
        await self._writes.run(self._sync.delete)

    async def delete_records(self, before: Mapping[int, int]) -> dict[int, int]:
        """Delete the records before an offset, by partition, and return where each partition starts now."""
        return await self._writes.run(self._sync.delete_records, before)

    async def compact(
        self,
        *,
        force: bool = False,
        memory_bytes: int = 128 << 20,
        progress: Callable[[str, int, int, int], object] | None = None,
    ) -> CompactionReport:
        """Compact the topic where `min.cleanable.dirty.ratio` is reached: like `store.compact`."""
        return await self._writes.run(self._sync.compact, force=force, memory_bytes=memory_bytes, progress=progress)

    async def cuts(self) -> list[Cut]:
        """Return the files with what recovery or repair cut off its logs: `klamm salvage` prints them."""
        return await self._reads.run(self._sync.cuts)
