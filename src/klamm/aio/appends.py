"""The writing half of a Store of klamm.aio. The other half is reads.py.

Overloads give the types of keys and values for the serde of the store, or of a call: as in klamm/api/appends.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, Unpack, overload

from klamm.aio.consumer import Consumer
from klamm.aio.opener import Opener
from klamm.aio.producer import Producer
from klamm.aio.transaction import Transaction, begin
from klamm.api.call_options import takes_options_of
from klamm.client.produce import producer as sync
from klamm.typevars import K, V

if TYPE_CHECKING:
    from datetime import datetime

    from klamm import api
    from klamm.aio.threads import Threads
    from klamm.api.call_options import AppendManyOptions, AppendOptions
    from klamm.batch import Partitioner
    from klamm.choices import Acks, AcksWithOffset, Compression
    from klamm.client.produce.producer_options import ProducerOptions, TransactionOptions
    from klamm.client.serde import Serde, SerdePair
    from klamm.times import Duration
    from klamm.types import Appended, BytesLike, GivenHeaders, GivenRecord
    from klamm.typevars import BytesKey, BytesValue, NamedKey, TextKey

__all__ = ["Appends"]


class Appends(Generic[K, V]):
    """The methods of a store that write."""

    _sync: api.Store[K, V]
    _writes: Threads

    @overload
    async def append(
        self,
        topic: str,
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
        self: Appends[Any, bytes],
        topic: str,
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
        topic: str,
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
        topic: str,
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
        topic: str,
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
        topic: str,
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
        topic: str,
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
        topic: str,
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
        append: Callable[..., int | None] = self._sync.append
        return await self._writes.run(
            append,
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

    @overload
    async def append_many(
        self,
        topic: str,
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
        self: Appends[Any, bytes],
        topic: str,
        records: Iterable[GivenRecord[K | BytesLike, BytesLike]],
        *,
        serde: None = None,
        key_serde: None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    async def append_many(
        self,
        topic: str,
        records: Iterable[Any],
        *,
        serde: Literal["json"],
        key_serde: Serde | None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    async def append_many(
        self,
        topic: str,
        records: Iterable[GivenRecord[Any, str]],
        *,
        serde: Literal["str"],
        key_serde: Serde | None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    async def append_many(
        self,
        topic: str,
        records: Iterable[GivenRecord[Any, BytesLike]],
        *,
        serde: Literal["bytes"],
        key_serde: Serde | None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    async def append_many(
        self,
        topic: str,
        records: Iterable[GivenRecord[Any, BytesValue]],
        *,
        serde: SerdePair[BytesValue],
        key_serde: Serde | None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    async def append_many(
        self,
        topic: str,
        records: Iterable[GivenRecord[Any, V]],
        *,
        serde: None = None,
        key_serde: Serde,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    async def append_many(
        self,
        topic: str,
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
        """Append many records, in few batches, and return their ranges of offsets. A thread iterates over `records`."""
        append: Callable[..., Appended] = self._sync.append_many
        return await self._writes.run(
            append,
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
        compression: Compression | None = None,
        compression_level: int | None = None,
    ) -> Appended:
        """Append the rows of an Arrow table, or of any Arrow stream, and return their ranges of offsets."""
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

    @overload
    def producer(
        self,
        *,
        serde: None = None,
        key_serde: None = None,
        acks: Acks = "all",
        compression: Compression | None = None,
        compression_level: int | None = None,
        linger_ms: float = 5,
        batch_bytes: int = 64 << 10,
        buffer_memory: int = 32 << 20,
        max_block_ms: float = 60_000,
        partitioner: Partitioner | None = None,
        idempotent: bool = False,
    ) -> Opener[Producer[K, V]]: ...
    @overload
    def producer(
        self: Appends[NamedKey, Any],
        *,
        serde: Literal["json"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> Opener[Producer[TextKey, Any]]: ...
    @overload
    def producer(
        self: Appends[NamedKey, Any],
        *,
        serde: Literal["str"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> Opener[Producer[TextKey, str]]: ...
    @overload
    def producer(
        self: Appends[bytes, Any],
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> Opener[Producer[BytesKey, BytesValue]]: ...
    @overload
    def producer(
        self,
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: Literal["str"],
        **options: Unpack[ProducerOptions],
    ) -> Opener[Producer[str, BytesValue]]: ...
    @overload
    def producer(
        self, *, serde: Serde | None = None, key_serde: Serde | None = None, **options: Unpack[ProducerOptions]
    ) -> Opener[Producer[Any, Any]]: ...
    @takes_options_of(sync.Producer.__init__)
    def producer(self, **options: Any) -> Opener[Producer[Any, Any]]:
        """Return a producer, which sends records in batches, from any task. Leaving its `async with` block flushes."""

        async def start() -> Producer[Any, Any]:
            make: Callable[..., sync.Producer[Any, Any]] = self._sync.producer
            return Producer(await self._writes.make(make, **options))

        return Opener(start)

    @overload
    def transaction(
        self,
        name: str | None = None,
        *,
        consumers: Consumer[Any] | Iterable[Consumer[Any]] = (),
        timeout: Duration = 60,
        serde: None = None,
        key_serde: None = None,
        compression: Compression | None = None,
        compression_level: int | None = None,
        batch_bytes: int = 64 << 10,
        partitioner: Partitioner | None = None,
    ) -> Opener[Transaction[K, V]]: ...
    @overload
    def transaction(
        self: Appends[NamedKey, Any],
        name: str | None = None,
        *,
        consumers: Consumer[Any] | Iterable[Consumer[Any]] = (),
        serde: Literal["json"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        **options: Unpack[TransactionOptions],
    ) -> Opener[Transaction[TextKey, Any]]: ...
    @overload
    def transaction(
        self: Appends[NamedKey, Any],
        name: str | None = None,
        *,
        consumers: Consumer[Any] | Iterable[Consumer[Any]] = (),
        serde: Literal["str"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        **options: Unpack[TransactionOptions],
    ) -> Opener[Transaction[TextKey, str]]: ...
    @overload
    def transaction(
        self: Appends[bytes, Any],
        name: str | None = None,
        *,
        consumers: Consumer[Any] | Iterable[Consumer[Any]] = (),
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
        **options: Unpack[TransactionOptions],
    ) -> Opener[Transaction[BytesKey, BytesValue]]: ...
    @overload
    def transaction(
        self,
        name: str | None = None,
        *,
        consumers: Consumer[Any] | Iterable[Consumer[Any]] = (),
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: Literal["str"],
        **options: Unpack[TransactionOptions],
    ) -> Opener[Transaction[str, BytesValue]]: ...
    @overload
    def transaction(
        self,
        name: str | None = None,
        *,
        consumers: Consumer[Any] | Iterable[Consumer[Any]] = (),
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        **options: Unpack[TransactionOptions],
    ) -> Opener[Transaction[Any, Any]]: ...
    def transaction(
        self,
        name: str | None = None,
        *,
        consumers: Consumer[Any] | Iterable[Consumer[Any]] = (),
        timeout: Duration = 60,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        compression: Compression | None = None,
        compression_level: int | None = None,
        batch_bytes: int = 64 << 10,
        partitioner: Partitioner | None = None,
        **unknown: Never,
    ) -> Opener[Transaction[Any, Any]]:
        """Return a transaction: records and offsets of groups, all or nothing. Its `async with` block commits, an error
        aborts.
        """
        several = (consumers,) if isinstance(consumers, Consumer) else consumers

        async def start() -> Transaction[Any, Any]:
            taking_part = [each._sync if isinstance(each, Consumer) else each for each in several]
            return await begin(
                self._writes,
                lambda: self._sync.transaction(
                    name,
                    consumers=taking_part,
                    timeout=timeout,
                    serde=serde,
                    key_serde=key_serde,
                    compression=compression,
                    compression_level=compression_level,
                    batch_bytes=batch_bytes,
                    partitioner=partitioner,
                    **unknown,
                ),
            )

        return Opener(start)
