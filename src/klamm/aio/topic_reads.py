"""The reading half of a topic's handle, for asyncio: like reads.py, with the topic given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, Unpack, overload

from klamm.api.call_options import takes_options_of
from klamm.client.consume import consumer as sync
from klamm.client.groups.group_session import GroupSession
from klamm.typevars import K, V

if TYPE_CHECKING:
    from klamm.aio.consumer import Consumer
    from klamm.aio.opener import Opener
    from klamm.aio.scan import Scan
    from klamm.aio.store import Store
    from klamm.aio.table import Table
    from klamm.batch import Record
    from klamm.choices import BadRecordPolicy, Column, Form, Isolation, OffsetReset, TypedBadRecordPolicy
    from klamm.client.consume.consumer_options import TopicConsumerOptions
    from klamm.client.groups.assignment import Assignor
    from klamm.client.groups.group_session import RebalanceCallback
    from klamm.client.groups.offsets import Offsets
    from klamm.client.serde import Serde, SerdePair
    from klamm.times import Duration
    from klamm.typevars import BytesKey, BytesValue, NamedKey, TextKey
    from klamm.where import WhereLike

__all__ = ["TopicReads"]


class TopicReads(Generic[K, V]):
    """The methods of a handle that read."""

    _store: Store[K, V]
    _name: str

    @overload
    def consumer(
        self,
        *,
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
    ) -> Opener[Consumer[Record[K, V]]]: ...
    @overload
    def consumer(
        self: TopicReads[NamedKey, Any],
        *,
        serde: Literal["json"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        form: Literal["records"] = "records",
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[TopicConsumerOptions],
    ) -> Opener[Consumer[Record[TextKey, Any]]]: ...
    @overload
    def consumer(
        self: TopicReads[NamedKey, Any],
        *,
        serde: Literal["str"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        form: Literal["records"] = "records",
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[TopicConsumerOptions],
    ) -> Opener[Consumer[Record[TextKey, str]]]: ...
    @overload
    def consumer(
        self: TopicReads[bytes, Any],
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
        form: Literal["records"] = "records",
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[TopicConsumerOptions],
    ) -> Opener[Consumer[Record[BytesKey, BytesValue]]]: ...
    @overload
    def consumer(
        self,
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: Literal["str"],
        form: Literal["records"] = "records",
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[TopicConsumerOptions],
    ) -> Opener[Consumer[Record[str, BytesValue]]]: ...
    @overload
    def consumer(
        self,
        *,
        serde: None = None,
        key_serde: None = None,
        form: Literal["tuples"],
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[TopicConsumerOptions],
    ) -> Opener[Consumer[tuple[K | Any, V | Any]]]: ...
    @overload
    def consumer(
        self: TopicReads[NamedKey, Any],
        *,
        serde: Literal["json"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        form: Literal["tuples"],
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[TopicConsumerOptions],
    ) -> Opener[Consumer[tuple[TextKey | Any, Any]]]: ...
    @overload
    def consumer(
        self: TopicReads[NamedKey, Any],
        *,
        serde: Literal["str"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        form: Literal["tuples"],
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[TopicConsumerOptions],
    ) -> Opener[Consumer[tuple[TextKey | Any, str | Any]]]: ...
    @overload
    def consumer(
        self: TopicReads[bytes, Any],
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
        form: Literal["tuples"],
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[TopicConsumerOptions],
    ) -> Opener[Consumer[tuple[BytesKey | Any, BytesValue | Any]]]: ...
    @overload
    def consumer(
        self,
        *,
        serde: None = None,
        key_serde: Serde | None = None,
        form: Literal["values"],
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[TopicConsumerOptions],
    ) -> Opener[Consumer[V | Any]]: ...
    @overload
    def consumer(
        self,
        *,
        serde: Literal["str"],
        key_serde: Serde | None = None,
        form: Literal["values"],
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[TopicConsumerOptions],
    ) -> Opener[Consumer[str | Any]]: ...
    @overload
    def consumer(
        self,
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: Serde | None = None,
        form: Literal["values"],
        on_bad_record: TypedBadRecordPolicy = "raise",
        **options: Unpack[TopicConsumerOptions],
    ) -> Opener[Consumer[BytesValue | Any]]: ...
    @overload
    def consumer(
        self,
        *,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        form: Literal["records"] = "records",
        on_bad_record: BadRecordPolicy = "raise",
        **options: Unpack[TopicConsumerOptions],
    ) -> Opener[Consumer[Record[Any, Any]]]: ...
    @overload
    def consumer(
        self,
        *,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        form: Form,
        on_bad_record: BadRecordPolicy = "raise",
        **options: Unpack[TopicConsumerOptions],
    ) -> Opener[Consumer[Any]]: ...
    @takes_options_of(sync.Consumer.__init__, GroupSession.__init__, without="pattern")
    def consumer(self, **options: Any) -> Opener[Consumer[Any]]:
        """Return a consumer of this topic; the options are those of `store.consumer`."""
        return self._store.consumer(self._name, **options)

    @overload
    def tail(
        self,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: None = None,
        key_serde: None = None,
    ) -> AsyncIterator[Record[K, V]]: ...
    @overload
    def tail(
        self: TopicReads[NamedKey, Any],
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: Literal["json"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
    ) -> AsyncIterator[Record[TextKey, Any]]: ...
    @overload
    def tail(
        self: TopicReads[NamedKey, Any],
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: Literal["str"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
    ) -> AsyncIterator[Record[TextKey, str]]: ...
    @overload
    def tail(
        self: TopicReads[bytes, Any],
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
    ) -> AsyncIterator[Record[BytesKey, BytesValue]]: ...
    @overload
    def tail(
        self,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: Literal["str"],
    ) -> AsyncIterator[Record[str, BytesValue]]: ...
    @overload
    def tail(
        self,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
    ) -> AsyncIterator[Record[Any, Any]]: ...
    def tail(
        self,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        **unknown: Never,
    ) -> AsyncIterator[Record[Any, Any]]:
        """Iterate over the last `n` records from `start` on; with `follow`, then over new ones."""
        tail: Callable[..., AsyncIterator[Record[Any, Any]]] = self._store.tail
        return tail(self._name, n, start=start, follow=follow, serde=serde, key_serde=key_serde, **unknown)

    def scan(
        self,
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
        """Return the topic as record batches of Arrow: like `store.scan`."""
        return self._store.scan(
            self._name,
            partitions=partitions,
            start=start,
            end=end,
            columns=columns,
            isolation=isolation,
            batch_rows=batch_rows,
            batch_bytes=batch_bytes,
            **unknown,
        )

    @overload
    def table(
        self, *, serde: None = None, key_serde: None = None, wait: Duration | None = 10
    ) -> Opener[Table[K, V]]: ...
    @overload
    def table(
        self: TopicReads[NamedKey, Any],
        *,
        serde: Literal["json"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        wait: Duration | None = 10,
    ) -> Opener[Table[TextKey, Any]]: ...
    @overload
    def table(
        self: TopicReads[NamedKey, Any],
        *,
        serde: Literal["str"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        wait: Duration | None = 10,
    ) -> Opener[Table[TextKey, str]]: ...
    @overload
    def table(
        self: TopicReads[bytes, Any],
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
        wait: Duration | None = 10,
    ) -> Opener[Table[BytesKey, BytesValue]]: ...
    @overload
    def table(
        self, *, serde: SerdePair[BytesValue] | Literal["bytes"], key_serde: Literal["str"], wait: Duration | None = 10
    ) -> Opener[Table[str, BytesValue]]: ...
    @overload
    def table(
        self, *, serde: Serde | None = None, key_serde: Serde | None = None, wait: Duration | None = 10
    ) -> Opener[Table[Any, Any]]: ...
    def table(
        self,
        *,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        wait: Duration | None = 10,
        **unknown: Never,
    ) -> Opener[Table[Any, Any]]:
        """Return the latest value of each key: like `store.table`."""
        table: Callable[..., Opener[Table[Any, Any]]] = self._store.table
        return table(self._name, serde=serde, key_serde=key_serde, wait=wait, **unknown)
