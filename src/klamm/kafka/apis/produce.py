"""Produce: batches are checked and appended as they came.

acks means here what it means at every door: 0 no answer, 1 committed, -1 (all) on disk. The loop only tries: a batch
whose append lock is held, or that needs slow work first, goes to that partition's executor.

What is checked, in this order: one batch of magic 2, whole, its base offset, its size, its CRC, its attribute bits, no
control batch, as many records as it says, readable (a compressed one is decompressed for that, in pieces), keys where
the topic is compacted, its timestamps; for a transactional batch, that its transaction has this partition; then
producer and sequence. The header's max_timestamp is not believed: the server computes it from the records, as Kafka
does, for retention and look-ups by time depend on it.

Where `compression.type` of the topic is not `producer`, a batch of another codec is compressed again by the thread that
has checked it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.batch import MAX_DECODED_BYTES, RecordScan, Scan, patch, recompress, scan_records, verify
from klamm.batch.header import (
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    Header,
    parse,
)
from klamm.errors import CorruptBatch, InvalidRecord, InvalidTimestamp, KlammError, RecordTooLarge
from klamm.kafka.api_error import ApiError
from klamm.kafka.apis.ordinary_produce import handle_ordinary
from klamm.kafka.broker import NotOpened
from klamm.kafka.call import CODEC, DISK, LARGE, LOOP, TRANSACT, Call, PausedReply, Reply, SupportedApi
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.error_map import code_of
from klamm.kafka.transaction_coordinator import NEEDS_REGISTRATION
from klamm.kafka.wire.messages import PRODUCE
from klamm.log.batch_rules import codec_of
from klamm.store.acl import Operation, ResourceType

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.kafka.wire.structs import Struct
    from klamm.log.partition import Partition
    from klamm.store.directory import OpenTopic
    from klamm.types import PartitionKey

__all__ = ["HANDLERS"]

_response = PRODUCE.response
_Topic = _response.Topic
_Partition = _response.Partition

_MAGIC_AT = 16
_ATTRIBUTES_AT = 22  # the byte with the bits
_KNOWN_BITS = CODEC_MASK | TRANSACTIONAL | LOG_APPEND_TIME
_MAX_LISTED = 100  # errors of records in a response
_HIGHEST_CODEC = 4
_ZSTD = 4
_ZSTD_SINCE = 7
_ID_SINCE = 13  # a topic is named by its id
_IMPLICIT_SINCE = 12  # KIP-890: a partition is added to its transaction by the first batch
_QUICK_BYTES = 64 * 1024  # a larger batch is checked by a thread
_QUICK_DECODED = 1024 * 1024  # and so is a compressed one that turns out to be longer

_log = logging.getLogger("klamm.kafka")


class Slow(Exception):
    """A batch that takes too long to look into, on the loop."""


class Checked(NamedTuple):
    """A batch that may be appended, as far as it can be told without its partition."""

    header: Header
    scan: Scan
    """What was found in its records: they are read once."""


class Rules(NamedTuple):
    """The rules for batches of a topic, as far as they can be checked without the partition."""

    max_bytes: int = 2**31 - 1
    max_held: int = MAX_DECODED_BYTES
    """How many of its bytes may be in memory, decompressed."""
    stamps: bool = False
    """The server gives records their timestamps (LogAppendTime)."""
    codec: tuple[int, int | None] | None = None
    """How batches of the topic are compressed, and the level; None: as their producers like."""


_NO_RULES = Rules()


class BadRecords(ApiError):
    """A batch is refused because of some of its records."""

    def __init__(self, code: ErrorCode, message: str, indexes: Iterable[int]) -> None:
        super().__init__(code, message)
        self.indexes = tuple(indexes)


def check(records: Any, version: int, rules: Rules = _NO_RULES, *, quick: bool = False) -> Checked:
    """Check a batch, and put its true max_timestamp into `records`. ApiError if it may not be appended.

    Slow: if it is to be `quick`, and cannot.
    """
    # Clients send again what is CORRUPT_MESSAGE: that is for what may have been damaged on its way.
    if records is None or len(records) <= _MAGIC_AT:
        raise ApiError(ErrorCode.INVALID_RECORD, "no whole batch")
    if (magic := records[_MAGIC_AT]) != MAGIC:
        code = ErrorCode.INVALID_RECORD if magic < MAGIC else ErrorCode.CORRUPT_MESSAGE
        raise ApiError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT if version < 3 else code,
            f"magic is {magic}; only batches of magic {MAGIC} are taken",
        )
    if len(records) < HEADER_SIZE:
        raise ApiError(ErrorCode.INVALID_RECORD, "no whole batch")
    try:
        header = parse(records)
        if header.size < len(records):
            raise ApiError(ErrorCode.INVALID_RECORD, "more than one batch for a partition")
        if header.size > len(records):
            raise ApiError(ErrorCode.INVALID_RECORD, f"truncated batch: {len(records)} of {header.size} bytes")
        if header.base_offset != 0:
            raise ApiError(ErrorCode.INVALID_RECORD, f"the base offset is {header.base_offset}; it should be 0")
        if header.size > rules.max_bytes:  # before anything that takes time with the size
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"The record batch size is {header.size} bytes which exceeds the maximum configured value of"
                f" {rules.max_bytes}.",
            )
        if quick and (header.size > _QUICK_BYTES or (rules.codec is not None and rules.codec[0] != header.codec)):
            raise Slow
        done, _ = verify(records, header.base_offset, True)
    except CorruptBatch as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, error.message) from None
    if done != len(records):
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"truncated batch: {len(records)} of {header.size} bytes")
    attributes = header.attributes
    if attributes & CONTROL:
        raise ApiError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if attributes & ~_KNOWN_BITS:
        raise ApiError(ErrorCode.INVALID_RECORD, f"attributes are {attributes:#x}")
    if header.codec > _HIGHEST_CODEC or (header.codec == _ZSTD and version < _ZSTD_SINCE):
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {header.codec} in version {version}")
    if header.record_count != header.last_offset_delta + 1 or header.record_count < 1:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}",
        )
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            raise ApiError(ErrorCode.INVALID_RECORD, "a producer id without an epoch and a sequence")
    elif attributes & TRANSACTIONAL:
        raise ApiError(ErrorCode.INVALID_RECORD, "a transactional batch without a producer id")
    if attributes & LOG_APPEND_TIME:
        if rules.stamps:
            indexes = range(min(header.record_count, _MAX_LISTED))
            raise BadRecords(ErrorCode.INVALID_TIMESTAMP, "the producer set the timestamp type LogAppendTime", indexes)
        patch.clear_log_append_time(records, len(records))
        header = parse(records)
    scan = _scan(records, header, rules.max_held, quick)
    max_timestamp = scan[2]
    if max_timestamp != header.max_timestamp:
        patch.set_max_timestamp(records, len(records), max_timestamp)
        header = header._replace(max_timestamp=max_timestamp)
    return Checked(header, scan)


def check_and_compress(records: memoryview, version: int, rules: Rules) -> tuple[Checked, bytearray | memoryview]:
    """Like `check`; return the batch as it is to be appended, too. In a thread."""
    checked = check(records, version, rules)
    if rules.codec is None:
        return checked, records
    try:
        return checked, recompress(records, *rules.codec, max_decoded=rules.max_held)
    except RecordTooLarge as error:
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, error.message) from None


def _scan(records: Any, header: Header, max_held: int, quick: bool) -> Scan:
    """Read the records of a batch; whether each needs a key, the topic knows."""
    try:
        if not header.codec:
            return scan_records(records)
        return scan_records(records, _QUICK_DECODED) if quick else RecordScan(records, max_held=max_held).result
    except RecordTooLarge as error:
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, error.message) from None
    except CorruptBatch as error:
        if quick and header.codec:
            raise Slow from None
        raise ApiError(ErrorCode.INVALID_RECORD, error.message) from None


def _is_transactional(records: Any) -> bool:
    return (
        records is not None
        and len(records) >= HEADER_SIZE
        and records[_MAGIC_AT] == MAGIC
        and bool(records[_ATTRIBUTES_AT] & TRANSACTIONAL)
    )


class _ProduceRequest:
    """A request on its way: one answer for each partition, then one for all."""

    __slots__ = ("acks", "broker", "call", "done", "is_responded", "left", "registrations", "response", "touched",
                 "unregistered", "wrong")  # fmt: skip

    def __init__(self, broker: Broker, call: Call) -> None:
        self.broker = broker
        self.call = call
        self.acks: int = call.request.acks
        self.left = 1
        self.done: Reply[None] | PausedReply[None] | None = None
        self.is_responded = False
        self.touched: list[Partition] = []
        self.wrong = False
        self.response = _response()
        self.unregistered: dict[tuple[int, int], list[PartitionKey]] = {}
        """Partitions that wait to be added to a transaction, by producer id and epoch."""
        self.registrations: dict[tuple[int, int], asyncio.Future[ErrorCode]] = {}
        """The last write that adds some, or will."""

    def run(self) -> Iterator[None]:
        """Begin with each partition, one when this is advanced."""
        broker, version = self.broker, self.call.version
        by_id = version >= _ID_SINCE
        request = self.call.request
        seen: set[tuple[bytes, str, int]] = set()
        is_transactional = False
        for topic in request.topic_data if self.call.session.is_guarded else ():
            for each in topic.partition_data:
                yield
                is_transactional = is_transactional or _is_transactional(each.records)
        denied_id = self._denied_transaction() if is_transactional else None
        for topic in request.topic_data:
            yield
            opened = broker.topics.by_id(topic.topic_id) if by_id else broker.topics.find(topic.name)
            name = topic.name if opened is None else opened.name
            denied = denied_id or (self.call.denied(Operation.WRITE, ResourceType.TOPIC, name) if name else None)
            is_named = denied is not None and denied is not denied_id
            if by_id and is_named and not self.call.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
                denied = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed to write to this topic")
            partitions: list[Any] = []
            self.response.responses.append(
                _Topic(name=topic.name, topic_id=topic.topic_id, partition_responses=partitions)
            )
            for each in topic.partition_data:
                yield
                partition_response = _Partition(index=each.index, base_offset=-1)
                partitions.append(partition_response)
                key = (topic.topic_id, topic.name, each.index)
                if key in seen:
                    self._refuse(
                        partition_response, ErrorCode.INVALID_REQUEST, "the partition is in the request more than once"
                    )
                    continue
                seen.add(key)
                if denied is not None and len(seen) > len(self.call.done):
                    self._set_error(partition_response, denied)
                elif self.acks not in (-1, 0, 1):
                    self._refuse(partition_response, ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {self.acks}")
                elif opened is None:
                    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    self._refuse(partition_response, unknown, None)
                elif len(seen) <= len(self.call.done):
                    self._take_appended(partition_response, opened, each, self.call.done[len(seen) - 1])
                else:
                    self._take(partition_response, opened, each)
        self._one_less()

    def _denied_transaction(self) -> ApiError | None:
        """Return why the client may write no transactional batch."""
        name = self.call.request.transactional_id
        if name is None:
            return ApiError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch without a transactional id"
            )
        return self.call.denied(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name)

    def _take_appended(self, partition_response: Any, opened: OpenTopic, requested: Any, offset: int) -> None:
        """Record a partition that was appended before another partition of the request turned out to block."""
        partition = opened.opened_one(requested.index)
        assert partition is not None
        self._appended(partition_response, partition, parse(requested.records), offset, requested.records)

    def _take(self, partition_response: Any, opened: OpenTopic, requested: Any) -> None:
        """Append at once if nothing prevents it. Runs on the loop."""
        broker = self.broker
        try:
            checked = check(requested.records, self.call.version, self._rules(opened), quick=True)
            header = checked.header
            partition = broker.partition(opened, requested.index)
            if partition is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
            if header.is_transactional:
                code = broker.transaction_coordinator.check_produce(
                    header.producer_id, header.producer_epoch, (opened.topic.id, requested.index)
                )
                if code is NEEDS_REGISTRATION:
                    work = self._register_first(
                        partition_response, opened, requested.index, checked, self._copy_records(requested)
                    )
                    self._put_off(partition_response, work)
                    return
                if code:
                    raise ApiError(ErrorCode(code), "the partition is in no transaction of this producer")
            offset = partition.append_now(requested.records, checked.scan)
        except Slow:
            self._put_off(
                partition_response,
                self._check_first(partition_response, opened, requested.index, self._copy_records(requested)),
            )
        except NotOpened:
            self._put_off(
                partition_response,
                self._open_first(partition_response, opened, requested.index, checked, self._copy_records(requested)),
            )
        except (ApiError, KlammError) as error:
            self._set_error(partition_response, error)
        else:
            if offset is None:
                self._put_off(
                    partition_response,
                    self._append_in_order(partition_response, partition, checked, self._copy_records(requested)),
                )
            else:
                self._appended(partition_response, partition, header, offset, requested.records)

    def _rules(self, opened: OpenTopic) -> Rules:
        settings = opened.topic.settings
        stamps = settings.message_timestamp_type == "LogAppendTime"
        max_held = self.broker.settings.decompression_max_bytes
        return Rules(settings.max_message_bytes, max_held, stamps, codec_of(settings))

    def _copy_records(self, requested: Any) -> memoryview:
        return self.call.copy(requested.records)

    def _put_off(self, partition_response: Any, work: Any) -> None:
        self.left += 1
        self.broker.tasks.spawn(self._finish(partition_response, work))

    async def _finish(self, partition_response: Any, work: Any) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001  # logged, and told to the client: else it would take it for done
            _log.exception("%r: a batch could not be appended", self.call.session)
            self._refuse(partition_response, ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        finally:
            self._one_less()

    async def _check_first(self, partition_response: Any, opened: OpenTopic, number: int, records: memoryview) -> None:
        """Check a batch that takes a while to read, in a thread."""
        try:
            checked, batch = await self.broker.codec(
                check_and_compress, records, self.call.version, self._rules(opened)
            )
        except ApiError as error:
            self._set_error(partition_response, error)
        else:
            await self._open_first(partition_response, opened, number, checked, batch)

    async def _open_first(
        self, partition_response: Any, opened: OpenTopic, number: int, checked: Checked, records: bytearray | memoryview
    ) -> None:
        try:
            partition = await self.broker.opened(opened, number)
            if checked.header.is_transactional:
                await self._register_first(partition_response, opened, number, checked, records)
            else:
                await self._append_in_order(partition_response, partition, checked, records)
        except KlammError as error:
            self._set_error(partition_response, error)

    async def _register_first(
        self, partition_response: Any, opened: OpenTopic, number: int, checked: Checked, records: bytearray | memoryview
    ) -> None:
        """Register a transactional batch whose partition is not known to be in its transaction."""
        broker, place, header = self.broker, (opened.topic.id, number), checked.header
        try:
            partition = await broker.opened(opened, number)
            code = broker.transaction_coordinator.check_produce(header.producer_id, header.producer_epoch, place)
            if code is NEEDS_REGISTRATION:
                if self.call.version < _IMPLICIT_SINCE:
                    code = ErrorCode.INVALID_TXN_STATE
                else:
                    code = await self._register(header, place)
            if code:
                self._refuse(partition_response, ErrorCode(code), "the partition is in no transaction of this producer")
                return
        except KlammError as error:
            self._set_error(partition_response, error)
            return
        await self._append_in_order(partition_response, partition, checked, records)

    async def _register(self, header: Header, place: PartitionKey) -> ErrorCode:
        """Add the partition to its transaction. A request has one such write at a time: partitions that are open share
        the first, and those that were opened or checked meanwhile the next.
        """
        identity = header.producer_id, header.producer_epoch
        if identity not in self.unregistered:
            self.unregistered[identity] = []
            work = self._register_all(identity, self.registrations.get(identity))
            self.registrations[identity] = asyncio.ensure_future(work)
        self.unregistered[identity].append(place)
        return await asyncio.shield(self.registrations[identity])

    async def _register_all(self, identity: tuple[int, int], before: asyncio.Future[ErrorCode] | None) -> ErrorCode:
        broker, name = self.broker, self.call.request.transactional_id
        if before is not None:
            await asyncio.wait([before])
        keys = self.unregistered.pop(identity)
        return await broker.transaction_coordinator.register_produce(broker, *identity, name, keys)

    async def _append_in_order(
        self, partition_response: Any, partition: Partition, checked: Checked, records: bytearray | memoryview
    ) -> None:
        try:
            # Redundant as long as a connection has one request at a time: then nothing of its own is queued here.
            is_busy = self.broker.partition_executors.is_busy(partition)
            offset = None if is_busy else partition.append_now(records, checked.scan)
            if offset is None:
                offset = await self.broker.partition_executors.run(partition, partial(partition.append, records))
        except KlammError as error:
            self._set_error(partition_response, error)
        else:
            self._appended(partition_response, partition, checked.header, offset, records)

    def _appended(
        self,
        partition_response: Any,
        partition: Partition,
        header: Header,
        offset: int,
        records: bytearray | memoryview,
    ) -> None:
        metrics = self.broker.metrics
        metrics.batches_in += 1
        metrics.records_in += header.record_count
        partition_response.base_offset = offset
        partition_response.log_start_offset = partition.snapshot().log_start
        if partition.stamps:  # the batch has its time: appending has put it there
            partition_response.log_append_time_ms = parse(records).max_timestamp
        self.touched.append(partition)
        if self.is_responded:
            self._wake_soon()
        if self.acks == -1:
            end = offset + header.record_count
            if partition.log.flushed_offset < end:
                self.left += 1
                self.broker.sync_queue.wait(partition, end, partial(self._synced, partition_response))

    def _synced(self, partition_response: Any, error: BaseException | None) -> None:
        if isinstance(error, KlammError):
            partition_response.base_offset = -1
            self._set_error(partition_response, error)
        elif error is not None:
            partition_response.base_offset = -1
            self._refuse(partition_response, ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        self._one_less()

    def _set_error(self, partition_response: Any, error: KlammError | ApiError) -> None:
        code = error.code if isinstance(error, ApiError) else code_of(error)
        self._refuse(partition_response, code, error.message or None)
        if isinstance(error, InvalidRecord | BadRecords):
            what = "timestamp out of range" if isinstance(error, InvalidTimestamp) else error.message
            partition_response.record_errors = [
                _response.RecordError(batch_index=index, batch_index_error_message=what) for index in error.indexes
            ]

    def _refuse(self, partition_response: Any, code: ErrorCode, message: str | None) -> None:
        self.wrong = True
        self.broker.metrics.error(self.call.api.name, code)
        partition_response.error_code = code
        partition_response.error_message = message

    def _one_less(self) -> None:
        self.left -= 1
        if not self.left and self.done is not None:
            self.done(None)

    async def result(self) -> Struct | None:
        """Return the response when all partitions are done; None if the client expects none."""
        if self.left:
            is_task = self.call.is_large
            self.done = Reply(self.broker.loop.create_future()) if is_task else PausedReply()
            await self.done
        self.is_responded = True
        self._wake_soon()
        if self.acks:
            return self.response
        if self.wrong:  # there is no other way to tell
            self.call.session.disconnect("connection closed: a batch sent with acks=0 was rejected")
        return None

    def _wake_soon(self) -> None:
        """Wake the waiting fetches, after the producer has its response."""
        touched, self.touched = self.touched, []
        for partition in touched:
            self.broker.purgatory.wake_soon(partition)


async def _produce(broker: Broker, call: Call) -> Struct | None:
    producing = _ProduceRequest(broker, call)
    if call.is_large:  # what a thread has decoded is a copy, and stays where it is
        turn = broker.large_requests.turn(call, to_the_end=True)
        await turn.run(producing.run())
    else:
        for _ in producing.run():
            pass
    return await producing.result()


def _names_unknown_topic(broker: Broker, version: int, request: Struct) -> bool:
    """Return whether a topic may be unknown here: what a name stands for may change; what an id does, not."""
    return version < _ID_SINCE or any(broker.topics.by_id(topic.topic_id) is None for topic in request.topic_data)


HANDLERS = (
    SupportedApi(
        PRODUCE,
        PRODUCE.min_version,
        PRODUCE.max_version,
        _produce,
        runs=(LOOP, CODEC, DISK, TRANSACT),
        rights=("Write Topic", "Write TransactionalId"),
        max_response_bytes=LARGE,
        needs_catalog=_names_unknown_topic,
        ordinary=handle_ordinary,
        notes="acks=all: on disk. Versions 0 to 2 are offered because old clients compress only then; the formats that"
        " they carry (magic 0 and 1) are refused.",
    ),
)
