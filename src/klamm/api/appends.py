"""The writing half of a Store: appends, producers, transactions. The other half is reads.py.

Overloads give the types of keys and values for the serde of the store, or of a call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, Unpack, overload

from klamm.api.call_options import takes_options_of
from klamm.api.store_state import StoreState
from klamm.batch import encode_one
from klamm.client.options import ALL, acks_of, check_options
from klamm.client.produce.producer import Producer
from klamm.client.produce.target import Target, codec_of
from klamm.client.serde import Serdes
from klamm.errors import ReadOnly
from klamm.log.head import EVENTFUL, store_goes_shortest_way
from klamm.times import to_ms
from klamm.types import Appended
from klamm.typevars import K, V

if TYPE_CHECKING:
    from datetime import datetime

    from klamm.api.call_options import AppendManyOptions, AppendOptions
    from klamm.batch import Partitioner
    from klamm.choices import Acks, AcksWithOffset, Compression
    from klamm.client.consume.consumer import Consumer
    from klamm.client.produce.producer_options import ProducerOptions, TransactionOptions
    from klamm.client.serde import Serde, SerdePair
    from klamm.client.transaction import Transaction
    from klamm.times import Duration
    from klamm.types import BytesLike, GivenHeaders, GivenRecord
    from klamm.typevars import BytesKey, BytesValue, NamedKey, TextKey

__all__ = ["Appends"]


class Appends(StoreState, Generic[K, V]):
    """The methods of a store that write."""

    @overload
    def append(
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
    def append(
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
    def append(
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
    def append(
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
    def append(
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
    def append(
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
    def append(
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
    def append(
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
    @store_goes_shortest_way
    def append(
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
        """Append one record and return its offset.

        `acks` says when it returns: 1, when the record is committed and every reader sees it; "all", when it is on disk
        as well; 0 is as 1, and returns None. Without `partition` the key decides; without a key, partitions take turns.
        `headers` is a mapping or (name, value) pairs, values are bytes or text.
        """
        if serde is not None or key_serde is not None or self._has_serdes:
            key, value = Serdes(serde, key_serde).over(self._serdes).serializer().pair(key, value)
        durable = acks_of(acks) == ALL
        log = self._target(topic).choose(key, partition)
        time_ms = -1 if timestamp is None else to_ms(timestamp)
        if headers is None:
            offset = log.append_one(key, value, time_ms)
        else:
            batch = bytearray(256)
            stamp = log.now_ms() if time_ms == -1 else time_ms
            offset = log.append(batch, encode_one(batch, key, value, headers, stamp))
        if durable:
            log.sync(offset + 1)
        return offset if acks else None

    def _after_quick(self, target: Target, result: int, topic: str, key: Any, value: Any) -> int:
        """Finish an append that the shortest way could not do, or has left unfinished."""
        if result > EVENTFUL:
            return self._target(topic).choose(key, None).append_one(key, value)
        assert target.single is not None
        return target.single.retry_one(result, key, value, -1)

    @overload
    def append_many(
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
    def append_many(
        self: Appends[Any, bytes],
        topic: str,
        records: Iterable[GivenRecord[K | BytesLike, BytesLike]],
        *,
        serde: None = None,
        key_serde: None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    def append_many(
        self,
        topic: str,
        records: Iterable[Any],
        *,
        serde: Literal["json"],
        key_serde: Serde | None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    def append_many(
        self,
        topic: str,
        records: Iterable[GivenRecord[Any, str]],
        *,
        serde: Literal["str"],
        key_serde: Serde | None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    def append_many(
        self,
        topic: str,
        records: Iterable[GivenRecord[Any, BytesLike]],
        *,
        serde: Literal["bytes"],
        key_serde: Serde | None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    def append_many(
        self,
        topic: str,
        records: Iterable[GivenRecord[Any, BytesValue]],
        *,
        serde: SerdePair[BytesValue],
        key_serde: Serde | None = None,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    @overload
    def append_many(
        self,
        topic: str,
        records: Iterable[GivenRecord[Any, V]],
        *,
        serde: None = None,
        key_serde: Serde,
        **options: Unpack[AppendManyOptions],
    ) -> Appended: ...
    def append_many(
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
        """Append many records, in few batches, and return their ranges of offsets.

        `records` are tuples of (key, value), (key, value, headers) or (key, value, headers, timestamp), or values. If a
        record is invalid, the records before it in its partition are appended, and the error names it.
        """
        durable = acks_of(acks) == ALL
        serdes = Serdes(serde, key_serde).over(self._serdes)
        codec = codec_of(compression, compression_level)
        return self._target(topic).append_many(
            records,
            durable=durable,
            partition=partition,
            timestamp=-1 if timestamp is None else to_ms(timestamp),
            codec=codec,
            level=compression_level,
            serializer=None if serdes == Serdes() else serdes.serializer(),
        )

    def append_table(
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
        """Append the rows of an Arrow table, or of any Arrow stream, and return their ranges of offsets.

        Columns: value, and if it has them key, timestamp, headers, partition. `partition` and `timestamp` are for rows
        without their own.
        """
        from klamm.arrow.append_table import append_table

        durable = acks_of(acks) == ALL
        codec = codec_of(compression, compression_level)
        return append_table(
            self._target(topic).opened,
            table,
            durable=durable,
            partition=partition,
            timestamp=self._acquired().heads.wall_ms() if timestamp is None else to_ms(timestamp),
            codec=codec,
            level=compression_level,
        )

    def _target(self, topic: str) -> Target:
        """Return the topic, as it is in the catalog now."""
        if not isinstance(topic, str):
            raise TypeError(f"a topic's name is a str, not {type(topic).__name__}")
        core = self._acquired()
        version = core.heads.catalog_version
        target = self._targets.get(topic)
        if target is None or target.version != version:
            if self._read_only:
                raise ReadOnly(f"{self._path}: opened for reading only")
            self._targets.pop(topic, None)
            target = Target(core.topic(topic), version, takes_bytes=not self._has_serdes)
            with self._mutex:
                if self._core is core:
                    self._targets[topic] = target
        return target

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
    ) -> Producer[K, V]: ...
    @overload
    def producer(
        self: Appends[NamedKey, Any],
        *,
        serde: Literal["json"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[TextKey, Any]: ...
    @overload
    def producer(
        self: Appends[NamedKey, Any],
        *,
        serde: Literal["str"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[TextKey, str]: ...
    @overload
    def producer(
        self: Appends[bytes, Any],
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[BytesKey, BytesValue]: ...
    @overload
    def producer(
        self,
        *,
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: Literal["str"],
        **options: Unpack[ProducerOptions],
    ) -> Producer[str, BytesValue]: ...
    @overload
    def producer(
        self, *, serde: Serde | None = None, key_serde: Serde | None = None, **options: Unpack[ProducerOptions]
    ) -> Producer[Any, Any]: ...
    @takes_options_of(Producer.__init__)
    def producer(self, **options: Any) -> Producer[Any, Any]:
        """Return a producer, which sends records in batches, from any thread. Leaving its `with` block flushes."""
        producer: Producer[Any, Any] = Producer(self._acquired(), **self._checked(Appends.producer, options))
        producer._store = self
        self._clients.add(producer)
        return producer

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
    ) -> Transaction[K, V]: ...
    @overload
    def transaction(
        self: Appends[NamedKey, Any],
        name: str | None = None,
        *,
        consumers: Consumer[Any] | Iterable[Consumer[Any]] = (),
        serde: Literal["json"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        **options: Unpack[TransactionOptions],
    ) -> Transaction[TextKey, Any]: ...
    @overload
    def transaction(
        self: Appends[NamedKey, Any],
        name: str | None = None,
        *,
        consumers: Consumer[Any] | Iterable[Consumer[Any]] = (),
        serde: Literal["str"],
        key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
        **options: Unpack[TransactionOptions],
    ) -> Transaction[TextKey, str]: ...
    @overload
    def transaction(
        self: Appends[bytes, Any],
        name: str | None = None,
        *,
        consumers: Consumer[Any] | Iterable[Consumer[Any]] = (),
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
        **options: Unpack[TransactionOptions],
    ) -> Transaction[BytesKey, BytesValue]: ...
    @overload
    def transaction(
        self,
        name: str | None = None,
        *,
        consumers: Consumer[Any] | Iterable[Consumer[Any]] = (),
        serde: SerdePair[BytesValue] | Literal["bytes"],
        key_serde: Literal["str"],
        **options: Unpack[TransactionOptions],
    ) -> Transaction[str, BytesValue]: ...
    @overload
    def transaction(
        self,
        name: str | None = None,
        *,
        consumers: Consumer[Any] | Iterable[Consumer[Any]] = (),
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        **options: Unpack[TransactionOptions],
    ) -> Transaction[Any, Any]: ...
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
    ) -> Transaction[Any, Any]:
        """Return a transaction: records and offsets of groups, all or none. Leaving its `with` block commits, an
        exception aborts.

        `name` is a transactional id: a newer transaction of that name, in any process, aborts this one. It may commit
        offsets of `consumers`, which go back to their committed offsets if it is aborted. Options: timeout, and those
        of batches.
        """
        from klamm.client.transaction import Pool

        check_options("transaction()", unknown, Appends.transaction.__kwdefaults__ or ())
        core = self._acquired()
        with self._mutex:
            if self._pool is None or self._pool.core is not core:
                self._pool = Pool(core) if core.elsewhere is None else core.elsewhere.pool()
                self._clients.add(self._pool)
        transaction = self._pool.begin(
            name,
            consumers,
            timeout=timeout,
            compression=compression,
            compression_level=compression_level,
            batch_bytes=batch_bytes,
            partitioner=partitioner,
            **Serdes(serde, key_serde).over(self._serdes)._asdict(),
        )
        transaction._store = self
        return transaction
