"""Fetch: records as they lie in the files, at once or when there are some.

There are no fetch sessions: who asks for one is answered with session 0, which means that there is none, and goes on to
name its partitions each time (KIP-227).

With read_committed, records end where the oldest open transaction begins, and the answer says which of the transactions
in it were aborted: the client leaves those out. With read_uncommitted there is everything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from klamm.disk import _os
from klamm.errors import KlammError
from klamm.kafka.broker import NotOpened
from klamm.kafka.call import DISK, LARGE, LOOP, Call, Result, SupportedApi
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.error_map import code_of
from klamm.kafka.repeats import merge_partitions
from klamm.kafka.wire.messages import FETCH
from klamm.kafka.wire.structs import Struct
from klamm.log.head import DELETED
from klamm.log.ranges import Range

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.log.partition import Partition

__all__ = ["HANDLERS"]

_SMALL = 32 * 1024  # read and sent together with the answer, not as a file
_SMALL_TOGETHER = 128 * 1024  # of all partitions: so much an answer holds while a client does not read it
_PAGE = 4096
_CHUNK = 256 * 1024  # read at a time by the thread that reads what is not in memory
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
"""The flag of a read that fails rather than waits for the disk. Only Linux with a C library that has preadv2 knows it;
elsewhere nobody can tell whether a file is in memory, and a thread reads all of a range before the loop sends it."""

_response = FETCH.response
_Topic = _response.Topic
_Partition = _response.Partition
_Aborted = _response.AbortedTransaction


class _Wanted:
    """One partition of a request: what is wanted, and what became of it."""

    __slots__ = ("error", "index", "last_epoch", "leader_epoch", "max_bytes", "offset", "partition")

    def __init__(self, asked: Struct, partition: Partition | None, error: int) -> None:
        self.index: int = asked.partition
        self.offset: int = asked.fetch_offset
        self.max_bytes: int = asked.partition_max_bytes
        self.leader_epoch: int = asked.current_leader_epoch
        self.last_epoch: int = asked.last_fetched_epoch
        self.partition = partition
        self.error = error


class _Fetching:
    """A request, tried as often as need be."""

    __slots__ = (
        "broker",
        "call",
        "committed",
        "has_more",
        "max_bytes",
        "min_bytes",
        "ranges_left",
        "small_left",
        "topics",
    )

    def __init__(self, broker: Broker, call: Call, topics: list[tuple[Struct, list[_Wanted]]]) -> None:
        request = call.request
        self.broker = broker
        self.call = call
        self.topics = topics
        self.committed = request.isolation_level == 1
        self.max_bytes: int = request.max_bytes
        self.min_bytes: int = min(request.min_bytes, request.max_bytes)  # else it could never be enough
        self.small_left = self.ranges_left = 0
        self.has_more = False  # it ends with a segment, or with the files that it may open: as in Kafka, it is sent

    def partitions(self) -> list[Partition]:
        return [each.partition for _, wanted in self.topics for each in wanted if each.partition is not None]

    def attempt(self, now_or_never: bool) -> Struct | None:
        """The answer, if there is enough to send, or something is wrong, or it is time."""
        if not now_or_never and self.min_bytes > 0 and not self._has_something():
            return None
        response, size, wrong = self._build()
        if wrong:
            self._count(response)
        return response if now_or_never or wrong or size >= self.min_bytes or self.has_more else None

    def _count(self, response: Struct) -> None:
        for topic in response.responses:
            for each in topic.partitions:
                if each.error_code:
                    self.broker.metrics.error(self.call.api.name, each.error_code)

    def _has_something(self) -> bool:
        """Quickly: whether it is worth to look for bytes, or something is wrong."""
        for _, wanted in self.topics:
            for each in wanted:
                partition = each.partition
                if partition is None or each.leader_epoch >= 0 or each.last_epoch >= 0:
                    return True  # epochs are looked at below
                try:
                    now = partition.snapshot()
                except KlammError:
                    return True
                offset = each.offset
                if offset < (now.stable_offset if self.committed else now.next_offset):
                    return True
                if not now.log_start <= offset <= now.next_offset or partition.log.flags & DELETED:
                    return True
        return False

    def _build(self) -> tuple[Struct, int, bool]:
        size, wrong = 0, False
        left = self.max_bytes
        self.small_left = _SMALL_TOGETHER
        self.ranges_left = max(1, self.broker.max_open_ranges // 16)
        self.has_more = False
        topics = []
        for asked, wanted in self.topics:
            partitions = []
            for each in wanted:
                answered = self._partition(each, left, size == 0)
                wrong = wrong or answered.error_code != 0 or answered.diverging_epoch is not None
                found = len(answered.records)
                size += found
                left -= found
                partitions.append(answered)
            topics.append(_Topic(topic=asked.topic, topic_id=asked.topic_id, partitions=partitions))
        return _response(responses=topics), size, wrong

    def _partition(self, wanted: _Wanted, left: int, first: bool) -> Any:
        partition = wanted.partition
        if partition is None:
            return _refused(wanted.index, wanted.error)
        try:
            ends = partition.ends()
            if (wanted.leader_epoch >= 0) and wanted.leader_epoch != ends.leader_epoch:
                older = wanted.leader_epoch < ends.leader_epoch
                return _refused(
                    wanted.index, ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
                )
            answered = _Partition(
                partition_index=wanted.index,
                high_watermark=ends.end,
                last_stable_offset=ends.stable,
                log_start_offset=ends.start,
                aborted_transactions=[] if self.committed else None,
                records=b"",
            )
            if wanted.last_epoch >= 0 and not partition.knows_epochs:  # the leader has changed since they were read
                return _refused(wanted.index, ErrorCode.FENCED_LEADER_EPOCH)
            if wanted.last_epoch >= 0 and partition.end_of_epoch(wanted.last_epoch) < wanted.offset:
                known = max((each for each, _ in partition.epochs() if each <= wanted.last_epoch), default=-1)
                end = partition.end_of_epoch(wanted.last_epoch)
                answered.diverging_epoch = _response.EpochEnd(epoch=known, end_offset=end)
                return answered
            if not ends.start <= wanted.offset <= ends.end:
                answered.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                return answered
            limit = ends.stable if self.committed else ends.end
            if not self.ranges_left:
                self.has_more = True
            elif wanted.offset < limit and (left > 0 or first):
                self._put_records(answered, wanted, partition, limit, min(left, wanted.max_bytes), first)
            return answered
        except KlammError as error:
            code = code_of(error)
        except OSError:
            self.broker.log.warning("%r: cannot be read", partition, exc_info=True)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        return _refused(wanted.index, code)

    def _put_records(
        self, answered: Any, wanted: _Wanted, partition: Partition, limit: int, max_bytes: int, first: bool
    ) -> None:
        ranges = self.broker.ranges(partition)
        now = partition.snapshot()
        found = ranges.find(wanted.offset, max_bytes, limit, now, at_least_one=first)
        if found is None:
            return
        if found.size < self.min_bytes and not self.has_more:
            self.has_more = ranges.is_followed(found, limit, now)
        if self.committed:
            aborted = ranges.aborted_in(wanted.offset, found, now)
            answered.aborted_transactions = [_Aborted(producer_id=p, first_offset=begin) for p, begin in aborted]
        answered.records = found
        if found.size <= min(_SMALL, self.small_left):
            data = _read_warm(found)
            if data is not None:
                answered.records = data
                self.small_left -= len(data)
                return
        self.ranges_left -= 1


def _refused(index: int, error: int) -> Any:
    return _Partition(
        partition_index=index,
        error_code=error,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        aborted_transactions=None,
        records=b"",
    )


def _fetch(broker: Broker, call: Call) -> Result:
    request = call.request
    if request.session_id != 0 and request.session_epoch != -1:  # -1 ends it, and that is well: there is none
        return _response(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if request.session_epoch > 0:
        return _response(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    try:
        topics = _resolved(broker, call, broker.partition, with_epochs=True)
    except NotOpened:
        return _opened_first(broker, call)
    return _answer(broker, call, topics)


def _resolved(
    broker: Broker, call: Call, partition_of: Callable[..., Partition | None], *, with_epochs: bool = False
) -> Any:
    """Return the topics of a request with their partitions. NotOpened: a file has to be read first."""
    by_id = call.version >= 13
    topics = []
    for asked in call.request.topics:
        opened = broker.topics.by_id(asked.topic_id) if by_id else broker.topics.find(asked.topic)
        error = ErrorCode.UNKNOWN_TOPIC_ID if by_id and opened is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        wanted = []
        for each in asked.partitions:
            partition = partition_of(opened, each.partition) if opened is not None else None
            if with_epochs and partition is not None and each.last_fetched_epoch >= 0 and not partition.knows_epochs:
                raise NotOpened(f"{partition!r}: epochs")
            wanted.append(_Wanted(each, partition, error))
        topics.append((asked, wanted))
    return topics


async def _opened_first(broker: Broker, call: Call) -> Struct | None:
    """Open partitions that were never used, and read epochs that are not known; then go on as usual."""
    failed: dict[tuple[str, int], ErrorCode] = {}
    by_id = call.version >= 13
    for asked in call.request.topics:
        opened = broker.topics.by_id(asked.topic_id) if by_id else broker.topics.find(asked.topic)
        for each in asked.partitions if opened is not None else ():
            assert opened is not None
            if 0 <= each.partition < opened.count:
                try:
                    partition = await broker.opened(opened, each.partition)
                    if each.last_fetched_epoch >= 0:
                        await broker.disk(partition.epochs)
                except KlammError as error:
                    failed[opened.name, each.partition] = code_of(error)

    def partition_of(opened: Any, number: int) -> Partition | None:
        return None if (opened.name, number) in failed else broker.partition(opened, number)

    topics = _resolved(broker, call, partition_of)
    for asked, wanted in topics:
        opened = broker.topics.by_id(asked.topic_id) if by_id else broker.topics.find(asked.topic)
        for each in wanted if opened is not None else ():
            assert opened is not None
            each.error = failed.get((opened.name, each.index), each.error)
    answer = _answer(broker, call, topics)
    if answer is None or isinstance(answer, Struct):
        return answer
    return await cast("Coroutine[Any, Any, Struct | None]", answer)


def _answer(broker: Broker, call: Call, topics: Any) -> Result:
    fetching = _Fetching(broker, call, topics)
    request = call.request
    waits = request.max_wait_ms > 0 and bool(request.topics)
    response = fetching.attempt(not waits)
    if response is None:
        broker.metrics.fetch_waits += 1
        broker.purgatory.delay(call, fetching.attempt, fetching.partitions(), request.max_wait_ms / 1000)
        return None
    cold = _cold(response)
    return _warmed(broker, response, cold) if cold else response


def _cold(response: Struct) -> list[Range]:
    """Those of its files that are not in memory: to send them would make the loop wait for the disk."""
    return [
        each.records
        for topic in response.responses
        for each in topic.partitions
        if type(each.records) is Range and not _is_warm(each.records)
    ]


def _is_warm(found: Range) -> bool:
    """By a look at its first and last page and some between, which reads nothing from disk."""
    if _NOWAIT is None:
        return False
    last = found.position + found.size - 1
    step = max(_PAGE, found.size // 8)
    try:
        for position in (*range(found.position, last, step), last):
            if not os.preadv(found.file.fd, [bytearray(1)], position, _NOWAIT):
                return True  # the end of the file: sending it will say so
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system that cannot tell
    return True


def _read_warm(found: Range) -> bytes | None:
    """Its bytes, if they are all in memory."""
    if _NOWAIT is None:
        return None
    data = bytearray(found.size)
    try:
        if os.preadv(found.file.fd, [data], found.position, _NOWAIT) == found.size:
            return bytes(data)
    except BlockingIOError:
        return None
    except OSError:
        return found.read()  # a file system that cannot tell
    return None


async def _warmed(broker: Broker, response: Struct, cold: list[Range]) -> Struct | None:
    await broker.disk(_warm, cold)
    return response


def _warm(cold: list[Range]) -> None:
    """Read the ranges, in a thread, so that the loop finds them in memory."""
    for found in cold:
        position, end = found.position, found.position + found.size
        while position < end and (data := _os.pread(found.file.fd, min(_CHUNK, end - position), position)):
            position += len(data)


def _merge(request: Struct) -> None:
    request.topics = merge_partitions(request.topics, "partitions", "partition")


HANDLERS = (
    SupportedApi(
        FETCH,
        FETCH.min_version,
        FETCH.max_version,
        _fetch,
        merge=_merge,
        runs=(LOOP, DISK),
        rights=("Read Topic",),
        max_response_bytes=LARGE,
        notes="No fetch sessions: session 0 is given.",
    ),
)
