"""A handle on one topic, for asyncio: `store["orders"]`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from klamm import api
from klamm.aio.topic_reads import TopicReads
from klamm.other_names import explains_names
from klamm.typevars import K, V

if TYPE_CHECKING:
    from datetime import datetime

    from klamm.aio.store import Store
    from klamm.api.call_options import AppendManyOptions, AppendOptions
    from klamm.choices import Acks, AcksWithOffset, Compression
    from klamm.client.serde import Serde, SerdePair
    from klamm.store.settings import Value
    from klamm.types import Appended, BytesLike, CompactionReport, Cut, GivenHeaders, GivenRecord, TopicInfo
    from klamm.typevars import BytesValue

__all__ = ["Topic"]


@explains_names
class Topic(TopicReads[K, V]):
    """A topic of a store, by its name: `store["orders"]`. Nothing is looked up before its first call."""

    def __init__(self, store: Store[K, V], name: str) -> None:
        self._store = store
        self._name = name
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
    def store(self) -> Store[K, V]:
        """The store that has it."""
        return self._store

    # ---- appending

    @overload
    async def append(
        self,
        value: V | None,
        *,
        key: K | BytesLike | None = None,
        partition: int | None = None,
        headers: GivenHeaders | None = None,
        timestamp: int | datetime | None = None,
        acks: AcksWithOffset = "all",
        serde: None = None,
        key_serde: None = None,
    ) -> int: ...
    @overload
    async def append(
        self: Topic[Any, bytes],
        value: BytesLike,
        *,
        key: K | BytesLike | None = None,
        acks: AcksWithOffset = "all",
        serde: None = None,
        key_serde: None = None,
        **options: Unpack[AppendOptions],
    ) -> int: ...
    @overload
    async def append(
        self,
        value: Any,
        *,
        key: Any = None,
        acks: AcksWithOffset = "all",
        serde: Literal["json"],
        key_serde: Serde | None = None,
        **options: Unpack[AppendOptions],
    ) -> int: ...
    @overload
    async def append(
        self,
        value: str | None,
        *,
        key: Any = None,
        acks: AcksWithOffset = "all",
        serde: Literal["str"],
        key_serde: Serde | None = None,
        **options: Unpack[AppendOptions],
    ) -> int: ...
    @overload
    async def append(
        self,
        value: BytesLike | None,
        *,
        key: Any = None,
        acks: AcksWithOffset = "all",
        serde: Literal["bytes"],
        key_serde: Serde | None = None,
        **options: Unpack[AppendOptions],
    ) -> int: ...
    @overload
    async def append(
        self,
        value: BytesValue | None,
        *,
        key: Any = None,
        acks: AcksWithOffset = "all",
        serde: SerdePair[BytesValue],
        key_serde: Serde | None = None,
        **options: Unpack[AppendOptions],
    ) -> int: ...
    @overload
    async def append(
        self,
        value: V | None,
        *,
        key: Any = None,
        acks: AcksWithOffset = "all",
        serde: None = None,
        key_serde: Serde,
        **options: Unpack[AppendOptions],
    ) -> int: ...
    @overload
    async def append(
        self,
        value: Any,
        *,
        key: Any = None,
        acks: Literal[0],
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        **options: Unpack[AppendOptions],
    ) -> None: ...
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
        append: Callable[..., Awaitable[int | None]] = self._store.append
        return await append(
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

    @overload
    async def append_many(
        self,
        records: Iterable[GivenRecord[K | BytesLike, V]],
        *,
        acks: Acks = "all",
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        compression: Compression | None = None,
        compression_level: int | None = None,
        serde: None = None,
        key_serde: None = None,
    ) -> Appended: ...
    @overload
    async def append_many(
        self: Topic[Any, bytes],
        records: Iterable[GivenRecord[K | BytesLike, BytesLike]],
        *,
        serde: None = None,
        key_serde: None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    async def append_many(
        self,
        records: Iterable[Any],
        *,
        serde: Literal["json"],
        key_serde: Serde | None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    async def append_many(
        self,
        records: Iterable[GivenRecord[Any, str]],
        *,
        serde: Literal["str"],
        key_serde: Serde | None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    async def append_many(
        self,
        records: Iterable[GivenRecord[Any, BytesLike]],
        *,
        serde: Literal["bytes"],
        key_serde: Serde | None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    async def append_many(
        self,
        records: Iterable[GivenRecord[Any, BytesValue]],
        *,
        serde: SerdePair[BytesValue],
        key_serde: Serde | None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    async def append_many(
        self,
        records: Iterable[GivenRecord[Any, V]],
        *,
        serde: None = None,
        key_serde: Serde,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    async def append_many(
        self,
        records: Iterable[Any],
        *,
        acks: Acks = "all",
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        compression: Compression | None = None,
        compression_level: int | None = None,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
    ) -> Appended:
        """Append many records, in few batches, and return their ranges of offsets: like `store.append_many`."""
        append: Callable[..., Awaitable[Appended]] = self._store.append_many
        return await append(
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
        compression: Compression | None = None,
        compression_level: int | None = None,
    ) -> Appended:
        """Append the rows of an Arrow table, and return their ranges of offsets: like `store.append_table`."""
        return await self._store.append_table(
            self.name,
            table,
            acks=acks,
            partition=partition,
            timestamp=timestamp,
            compression=compression,
            compression_level=compression_level,
        )

    # ---- reading; see topic_reads.py, too

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
        """Change some settings, reset those named in `reset` to their defaults: like `store.topics.alter`."""
        return await self._writes.run(self._sync.alter, settings, reset=reset, **named)

    async def add_partitions(self, total: int) -> TopicInfo:
        """Grow the topic to `total` partitions. New records of a key may go to another one than its old records."""
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
        """Return the files of records that recovery or repair cut off its logs: `klamm salvage` prints them."""
        return await self._reads.run(self._sync.cuts)
