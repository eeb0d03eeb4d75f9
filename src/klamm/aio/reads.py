"""The reading half of a Store of klamm.aio. The other half is appends.py.

Overloads give the types of keys and values for the serde of the store, or of a call: as in klamm/api/reads.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, Unpack, overload

from klamm.aio.consumer import Consumer
from klamm.aio.opener import Opener
from klamm.aio.pieces import Pieces
from klamm.aio.scan import Scan
from klamm.aio.table import Table
from klamm.api.call_options import takes_options_of
from klamm.client.consume import consumer as sync
from klamm.client.consume.tail import topic_history
from klamm.client.groups.group_session import GroupSession
from klamm.client.options import check_options
from klamm.client.serde import Serdes
from klamm.typevars import K, V

if TYPE_CHECKING:
    import re

    from klamm import api
    from klamm.aio.threads import Threads
    from klamm.batch import Record
    from klamm.choices import BadRecordPolicy, Column, Form, Isolation, OffsetReset, TypedBadRecordPolicy
    from klamm.client.consume.consumer_options import ConsumerOptions
    from klamm.client.groups.assignment import Assignor
    from klamm.client.groups.group_session import RebalanceCallback
    from klamm.client.groups.offsets import Offsets
    from klamm.client.serde import Serde, SerdePair
    from klamm.client.subscription import TopicSelection
    from klamm.times import Duration
    from klamm.typevars import BytesKey, BytesValue, NamedKey, TextKey
    from klamm.where import WhereLike

__all__ = ["Reads"]


class Reads(Generic[K, V]):
    """The methods of a store that read."""

    _sync: api.Store[K, V]
    _reads: Threads
    _writes: Threads

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
    ) -> Opener[Consumer[Record[K, V]]]: ...
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
    ) -> Opener[Consumer[Record[TextKey, Any]]]: ...
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
    ) -> Opener[Consumer[Record[TextKey, str]]]: ...
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
    ) -> Opener[Consumer[Record[BytesKey, BytesValue]]]: ...
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
    ) -> Opener[Consumer[Record[str, BytesValue]]]: ...
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
    ) -> Opener[Consumer[tuple[K | Any, V | Any]]]: ...
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
    ) -> Opener[Consumer[tuple[TextKey | Any, Any]]]: ...
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
    ) -> Opener[Consumer[tuple[TextKey | Any, str | Any]]]: ...
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
    ) -> Opener[Consumer[tuple[BytesKey | Any, BytesValue | Any]]]: ...
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
    ) -> Opener[Consumer[V | Any]]: ...
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
    ) -> Opener[Consumer[str | Any]]: ...
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
    ) -> Opener[Consumer[BytesValue | Any]]: ...
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
    ) -> Opener[Consumer[Record[Any, Any]]]: ...
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
    ) -> Opener[Consumer[Any]]: ...
    @takes_options_of(sync.Consumer.__init__, GroupSession.__init__)
    def consumer(self, topics: TopicSelection | None = None, **options: Any) -> Opener[Consumer[Any]]:
        """Return a consumer, which reads topics; with `group` shares them. The options are those of
        `klamm.Store.consumer`.

        Functions among them (`on_assigned`, a serde, …) are called in the consumer's thread.
        """

        async def start() -> Consumer[Any]:
            make: Callable[..., sync.Consumer[Any]] = self._sync.consumer
            made = await self._reads.make(make, topics, **options)
            return Consumer(made, self._reads, self._writes)

        return Opener(start)

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
    ) -> AsyncIterator[Record[K, V]]: ...
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
    ) -> AsyncIterator[Record[TextKey, Any]]: ...
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
    ) -> AsyncIterator[Record[TextKey, str]]: ...
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
    ) -> AsyncIterator[Record[BytesKey, BytesValue]]: ...
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
    ) -> AsyncIterator[Record[str, BytesValue]]: ...
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
    ) -> AsyncIterator[Record[Any, Any]]: ...
    async def tail(
        self,
        topic: str,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        **unknown: Never,
    ) -> AsyncIterator[Record[Any, Any]]:
        """Iterate over the last `n` records of all partitions, by time; with `follow`, then over new ones."""
        check_options("tail()", unknown, Reads.tail.__kwdefaults__ or ())
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

    @overload
    def table(
        self, topic: str, *, serde: None = None, key_serde: None = None, wait: Duration | None = 10
    ) -> Opener[Table[K, V]]: ...
    @overload
    def table(
        self: Reads[NamedKey, Any],
        topic: str,
        *,
        serde: Literal["json"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        wait: Duration | None = 10,
    ) -> Opener[Table[TextKey, Any]]: ...
    @overload
    def table(
        self: Reads[NamedKey, Any],
        topic: str,
        *,
        serde: Literal["str"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        wait: Duration | None = 10,
    ) -> Opener[Table[TextKey, str]]: ...
    @overload
    def table(
        self: Reads[bytes, Any],
        topic: str,
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
        wait: Duration | None = 10,
    ) -> Opener[Table[BytesKey, BytesValue]]: ...
    @overload
    def table(
        self,
        topic: str,
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: Literal["str"],
        wait: Duration | None = 10,
    ) -> Opener[Table[str, BytesValue]]: ...
    @overload
    def table(
        self, topic: str, *, serde: Serde | None = None, key_serde: Serde | None = None, wait: Duration | None = 10
    ) -> Opener[Table[Any, Any]]: ...
    def table(
        self,
        topic: str,
        *,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        wait: Duration | None = 10,
        **unknown: Never,
    ) -> Opener[Table[Any, Any]]:
        """Open the latest value of each key of the topic: see `klamm.Store.table`."""
        check_options("table()", unknown, Reads.table.__kwdefaults__ or ())

        async def start() -> Table[Any, Any]:
            made = await self._reads.make(self._sync.table, topic, serde=serde, key_serde=key_serde, wait=wait)
            return Table(made, self._reads, self._writes)

        return Opener(start)

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
        """Return the topic, or a part of it, as record batches of Arrow: `async for`, or `await …to_table()`."""
        check_options("scan()", unknown, Reads.scan.__kwdefaults__ or ())
        return Scan(
            self._reads,
            lambda: self._sync.scan(
                topic,
                partitions=partitions,
                start=start,
                end=end,
                columns=columns,
                isolation=isolation,
                batch_rows=batch_rows,
                batch_bytes=batch_bytes,
            ),
        )
