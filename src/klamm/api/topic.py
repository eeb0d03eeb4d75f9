"""A handle on one topic: `store["orders"]`.

A handle is a name and its store. It keeps nothing open, is cheap to create, and stays valid: every call looks up the
topic of that name, and raises UnknownTopic if there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from klamm.api.topic_reads import TopicReads
from klamm.log.head import topic_goes_shortest_way
from klamm.other_names import explains_names
from klamm.store.settings import SETTINGS
from klamm.times import to_ms
from klamm.typevars import K, V

if TYPE_CHECKING:
    from datetime import datetime

    from klamm.api.call_options import AppendManyOptions, AppendOptions
    from klamm.api.store import Store
    from klamm.choices import Acks, AcksWithOffset, Compression
    from klamm.client.serde import Serde, SerdePair
    from klamm.store.settings import Value
    from klamm.types import Appended, BytesLike, CompactionReport, Cut, GivenHeaders, GivenRecord, TopicInfo
    from klamm.typevars import BytesValue

__all__ = ["Topic"]


@explains_names
class Topic(TopicReads[K, V]):
    """A topic of a store, by its name. Made by `store["orders"]` and `store.topics.create("orders")`."""

    __slots__ = ("_name", "_store")

    def __init__(self, store: Store[K, V], name: str) -> None:
        self._store = store
        self._name = name

    def __repr__(self) -> str:
        return f"<Topic {self._name} of {self._store.path}>"

    def _repr_html_(self) -> str:
        return self.info()._repr_html_()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topic):
            return NotImplemented
        return self._name == other._name and self._store.path == other._store.path

    def __hash__(self) -> int:
        return hash((self._store.path, self._name))

    @property
    def name(self) -> str:
        return self._name

    @property
    def store(self) -> Store[K, V]:
        """The store that has it."""
        return self._store

    # ---- appending

    @overload
    def append(
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
    def append(
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
    def append(
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
    def append(
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
    def append(
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
    def append(
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
    def append(
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
    def append(
        self,
        value: Any,
        *,
        key: Any = None,
        acks: Literal[0],
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        **options: Unpack[AppendOptions],
    ) -> None: ...
    @topic_goes_shortest_way
    def append(
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
        append: Callable[..., int | None] = self._store.append
        return append(
            self._name,
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
    def append_many(
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
    def append_many(
        self: Topic[Any, bytes],
        records: Iterable[GivenRecord[K | BytesLike, BytesLike]],
        *,
        serde: None = None,
        key_serde: None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    def append_many(
        self,
        records: Iterable[Any],
        *,
        serde: Literal["json"],
        key_serde: Serde | None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    def append_many(
        self,
        records: Iterable[GivenRecord[Any, str]],
        *,
        serde: Literal["str"],
        key_serde: Serde | None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    def append_many(
        self,
        records: Iterable[GivenRecord[Any, BytesLike]],
        *,
        serde: Literal["bytes"],
        key_serde: Serde | None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    def append_many(
        self,
        records: Iterable[GivenRecord[Any, BytesValue]],
        *,
        serde: SerdePair[BytesValue],
        key_serde: Serde | None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    def append_many(
        self,
        records: Iterable[GivenRecord[Any, V]],
        *,
        serde: None = None,
        key_serde: Serde,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    def append_many(
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
        append: Callable[..., Appended] = self._store.append_many
        return append(
            self._name,
            records,
            acks=acks,
            partition=partition,
            timestamp=timestamp,
            compression=compression,
            compression_level=compression_level,
            serde=serde,
            key_serde=key_serde,
        )

    def append_table(
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
        return self._store.append_table(
            self._name,
            table,
            acks=acks,
            partition=partition,
            timestamp=timestamp,
            compression=compression,
            compression_level=compression_level,
        )

    # ---- reading; see topic_reads.py, too

    def offset_at(self, partition: int, when: int | datetime) -> int | None:
        """Return the first offset whose record has a timestamp at or after `when`; None if there is none."""
        return self._store._acquired().topic(self._name).partition(partition).offset_at(to_ms(when))

    # ---- the topic itself

    def info(self) -> TopicInfo:
        """Return the topic as it is now: its partitions and their ends, its settings."""
        return self._store.topics.describe(self._name)

    def settings(self) -> dict[str, str]:
        """Return all of its settings by Kafka's names, defaults included."""
        settings = self._store._acquired().catalog.topic(self._name).settings
        return {name: settings[name] for name in SETTINGS}

    def alter(
        self, settings: Mapping[str, Value] | None = None, *, reset: Iterable[str] = (), **named: Value
    ) -> TopicInfo:
        """Change some settings, reset those named in `reset` to their defaults: like `store.topics.alter`."""
        return self._store.topics.alter(self._name, settings, reset=reset, **named)

    def add_partitions(self, total: int) -> TopicInfo:
        """Grow the topic to `total` partitions. New records of a key may go to another one than its old records."""
        return self._store.topics.add_partitions(self._name, total)

    def delete(self) -> None:
        """Delete the topic and its records. Later appends to it, in any process, raise UnknownTopic."""
        self._store.topics.delete(self._name)

    def delete_records(self, before: Mapping[int, int]) -> dict[int, int]:
        """Delete the records before an offset, by partition, and return where each partition starts now."""
        opened = self._store._acquired().topic(self._name)
        partitions = {number: opened.partition(number).cleanup for number in before}
        return {number: partition.delete_before(before[number]) for number, partition in partitions.items()}

    def compact(
        self,
        *,
        force: bool = False,
        memory_bytes: int = 128 << 20,
        progress: Callable[[str, int, int, int], object] | None = None,
    ) -> CompactionReport:
        """Compact the topic where `min.cleanable.dirty.ratio` is reached; the options are those of `store.compact`."""
        return self._store._compact(self._name, force=force, memory_bytes=memory_bytes, progress=progress)

    def cuts(self) -> list[Cut]:
        """Return the files of records that recovery or repair cut off its logs: `klamm salvage` prints them."""
        from klamm.store import salvage

        core = self._store._acquired()
        if core.elsewhere is not None:
            return []
        return salvage.cuts_of(core.files, core.catalog.topic(self._name))
