"""The reading half of a store: consumers, `tail`, tables, scans, SQL. The other half is appends.py.

Overloads give the types of keys and values for the serde of the store, or of a call. A call with its own `serde` uses
the store's `key_serde`, if there is one. Type checkers cannot see that: so keys have the type of the call's serde if
the store's keys are bytes or text, and Any otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, Unpack, overload

from klamm.api.call_options import takes_options_of
from klamm.api.store_state import StoreState
from klamm.client.consume.consumer import Consumer
from klamm.client.groups.group_session import GroupSession
from klamm.client.options import check_options
from klamm.client.serde import Serdes
from klamm.typevars import K, V

if TYPE_CHECKING:
    import re

    from klamm.arrow.scan import Scan
    from klamm.arrow.sql_result import SqlResult
    from klamm.batch import Record
    from klamm.choices import BadRecordPolicy, Column, Form, Isolation, OffsetReset, TypedBadRecordPolicy
    from klamm.client.consume.consumer_options import ConsumerOptions
    from klamm.client.groups.assignment import Assignor
    from klamm.client.groups.group_session import RebalanceCallback
    from klamm.client.groups.offsets import Offsets
    from klamm.client.serde import Serde, SerdePair
    from klamm.client.subscription import TopicSelection
    from klamm.client.table.table import Table
    from klamm.times import Duration
    from klamm.types import Lineage
    from klamm.typevars import BytesKey, BytesValue, NamedKey, TextKey
    from klamm.where import WhereLike

__all__ = ["Reads"]


class Reads(StoreState, Generic[K, V]):
    """The methods of a store that read."""

    @overload
    def consumer(
        self,
        topics: TopicSelection | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        partitions: Iterable[int] | None = None,
        start: WhereLike | None = None,
        wait: Duration | None = None,
        serde: None = None,
        key_serde: None = None,
        form: Literal["records"] = "records",
        auto_offset_reset: OffsetReset | None = None,
        on_bad_record: TypedBadRecordPolicy = "raise",
        max_bytes: int = 1 << 20,
        spin: Duration = 20e-6,
        isolation: Isolation = "read_committed",
        group: str | None = None,
        offsets: Offsets | None = None,
        member: str | None = None,
        rejoin_timeout: Duration = 10,
        assignor: Assignor | None = None,
        max_poll_interval_ms: int = 300_000,
        enable_auto_commit: bool = False,
        auto_commit_interval_ms: int = 5_000,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> Consumer[Record[K, V]]: ...
    @overload
    def consumer(
        self: Reads[NamedKey, Any],
        topics: TopicSelection | None = None,
        *,
        serde: Literal["json"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        form: Literal["records"] = "records",
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[Record[TextKey, Any]]: ...
    @overload
    def consumer(
        self: Reads[NamedKey, Any],
        topics: TopicSelection | None = None,
        *,
        serde: Literal["str"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        form: Literal["records"] = "records",
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[Record[TextKey, str]]: ...
    @overload
    def consumer(
        self: Reads[bytes, Any],
        topics: TopicSelection | None = None,
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
        form: Literal["records"] = "records",
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[Record[BytesKey, BytesValue]]: ...
    @overload
    def consumer(
        self,
        topics: TopicSelection | None = None,
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: Literal["str"],
        form: Literal["records"] = "records",
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[Record[str, BytesValue]]: ...
    @overload
    def consumer(
        self,
        topics: TopicSelection | None = None,
        *,
        serde: None = None,
        key_serde: None = None,
        form: Literal["tuples"],
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[tuple[K | Any, V | Any]]: ...
    @overload
    def consumer(
        self: Reads[NamedKey, Any],
        topics: TopicSelection | None = None,
        *,
        serde: Literal["json"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        form: Literal["tuples"],
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[tuple[TextKey | Any, Any]]: ...
    @overload
    def consumer(
        self: Reads[NamedKey, Any],
        topics: TopicSelection | None = None,
        *,
        serde: Literal["str"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        form: Literal["tuples"],
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[tuple[TextKey | Any, str | Any]]: ...
    @overload
    def consumer(
        self: Reads[bytes, Any],
        topics: TopicSelection | None = None,
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
        form: Literal["tuples"],
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[tuple[BytesKey | Any, BytesValue | Any]]: ...
    @overload
    def consumer(
        self,
        topics: TopicSelection | None = None,
        *,
        serde: None = None,
        key_serde: Serde | None = None,
        form: Literal["values"],
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[V | Any]: ...
    @overload
    def consumer(
        self,
        topics: TopicSelection | None = None,
        *,
        serde: Literal["str"],
        key_serde: Serde | None = None,
        form: Literal["values"],
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[str | Any]: ...
    @overload
    def consumer(
        self,
        topics: TopicSelection | None = None,
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: Serde | None = None,
        form: Literal["values"],
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[BytesValue | Any]: ...
    @overload
    def consumer(
        self,
        topics: TopicSelection | None = None,
        *,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        form: Literal["records"] = "records",
        on_bad_record: BadRecordPolicy = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[Record[Any, Any]]: ...
    @overload
    def consumer(
        self,
        topics: TopicSelection | None = None,
        *,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        form: Form,
        on_bad_record: BadRecordPolicy = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[Any]: ...
    @takes_options_of(Consumer.__init__, GroupSession.__init__)
    def consumer(self, topics: TopicSelection | None = None, **options: Any) -> Consumer[Any]:
        """Return a consumer, which reads topics from a given position, or with `group` shares them, from the group's
        offsets.

        `wait` is how long it waits for more, by default forever; 0 reads the existing records, then ends. `form` is
        "records", "tuples" of (key, value), or "values". `auto_offset_reset` is for a group without a committed offset,
        and for offsets that are deleted: go on at the "earliest" or "latest", or raise an "error". By default a new
        group starts at the earliest, and a deleted offset raises. The other options: docs/reference/api.md.
        """
        checked = self._checked(Reads.consumer, options)
        core = self._acquired()
        consumer: Consumer[Any] = Consumer(core, topics, store=self, **checked)
        core.look_after()
        self._clients.add(consumer)
        return consumer

    @overload
    def tail(
        self,
        topic: str,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: None = None,
        key_serde: None = None,
    ) -> Iterator[Record[K, V]]: ...
    @overload
    def tail(
        self: Reads[NamedKey, Any],
        topic: str,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: Literal["json"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
    ) -> Iterator[Record[TextKey, Any]]: ...
    @overload
    def tail(
        self: Reads[NamedKey, Any],
        topic: str,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: Literal["str"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
    ) -> Iterator[Record[TextKey, str]]: ...
    @overload
    def tail(
        self: Reads[bytes, Any],
        topic: str,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
    ) -> Iterator[Record[BytesKey, BytesValue]]: ...
    @overload
    def tail(
        self,
        topic: str,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: Literal["str"],
    ) -> Iterator[Record[str, BytesValue]]: ...
    @overload
    def tail(
        self,
        topic: str,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
    ) -> Iterator[Record[Any, Any]]: ...
    def tail(
        self,
        topic: str,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        **unknown: Never,
    ) -> Iterator[Record[Any, Any]]:
        """Return the last `n` records of all partitions, by time; with `follow` it then waits for more.

        With `start`, only records from there on; without `n`, all of these, partitions taking turns. Without
        either, the last ten.
        """
        from klamm.client.consume.tail import tail

        check_options("tail()", unknown, Reads.tail.__kwdefaults__ or ())
        serdes = Serdes(serde, key_serde).over(self._serdes)
        return self._held_by(
            tail(self._acquired(), topic, n, start=start, follow=follow, **serdes._asdict()), "Store.tail"
        )

    @overload
    def table(
        self, topic: str, *, serde: None = None, key_serde: None = None, wait: Duration | None = 10
    ) -> Table[K, V]: ...
    @overload
    def table(
        self: Reads[NamedKey, Any],
        topic: str,
        *,
        serde: Literal["json"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        wait: Duration | None = 10,
    ) -> Table[TextKey, Any]: ...
    @overload
    def table(
        self: Reads[NamedKey, Any],
        topic: str,
        *,
        serde: Literal["str"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        wait: Duration | None = 10,
    ) -> Table[TextKey, str]: ...
    @overload
    def table(
        self: Reads[bytes, Any],
        topic: str,
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
        wait: Duration | None = 10,
    ) -> Table[BytesKey, BytesValue]: ...
    @overload
    def table(
        self,
        topic: str,
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: Literal["str"],
        wait: Duration | None = 10,
    ) -> Table[str, BytesValue]: ...
    @overload
    def table(
        self, topic: str, *, serde: Serde | None = None, key_serde: Serde | None = None, wait: Duration | None = 10
    ) -> Table[Any, Any]: ...
    def table(
        self,
        topic: str,
        *,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        wait: Duration | None = 10,
        **unknown: Never,
    ) -> Table[Any, Any]:
        """Return the topic as a mapping: the latest value of each key, kept in RocksDB. To write is to append.

        A read waits until the table has everything that was committed before; the first time that is the whole topic.
        Raise StoreBusy if the table makes no progress for `wait`; None waits forever, 0 does not wait.
        """
        from klamm.client.table.table import open_table

        check_options("table()", unknown, Reads.table.__kwdefaults__ or ())
        serdes = Serdes(serde, key_serde).over(self._serdes)
        table = open_table(self._acquired(), topic, **serdes._asdict(), wait=wait)
        table._store = self
        self._clients.add(table)
        return table

    def lineage(self, record: Record[Any, Any]) -> Lineage | None:
        """Return the committed transaction that wrote a record, with its inputs and outputs.

        None if there was none, if `lineage.retention.ms` was not set then, or if it has passed.
        """
        return self._acquired().transactions.lineage.find(record)

    def scan(
        self,
        topic: str,
        *,
        partitions: int | Iterable[int] | None = None,
        start: WhereLike = "earliest",
        end: WhereLike = "latest",
        columns: Column | Iterable[Column] | None = None,
        isolation: Isolation = "read_committed",
        batch_rows: int | None = None,
        batch_bytes: int = 16 << 20,
        **unknown: Never,
    ) -> Scan:
        """Return the topic, or a part of it, as an Arrow stream for DuckDB, Polars, pandas and pyarrow; it is lazy."""
        from klamm.arrow.scan import Scan

        check_options("scan()", unknown, Scan.__init__.__kwdefaults__ or ())
        return Scan(
            lambda: self._acquired().topic(topic),
            partitions=partitions,
            start=start,
            end=end,
            columns=columns,
            isolation=isolation,
            batch_rows=batch_rows,
            batch_bytes=batch_bytes,
        )

    def sql(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> SqlResult:
        """Run a query of DuckDB, in which topics are tables, and return its rows.

        `parameters` are for its `?`, or for its `$name`. `latest.users` is the latest record of each key of a topic,
        `text(value)` a value as text. Each call has a database of its own, in memory.
        """
        from klamm.arrow.database import Database

        return Database(self._acquired()).query(query, parameters)
