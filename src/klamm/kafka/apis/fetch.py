"""Fetch: records as they lie in the files, at once or when there are some.

There are no fetch sessions: who asks for one is answered with session 0, which means that there is none, and goes on to
name its partitions each time (KIP-227).

With read_committed, records end where the oldest open transaction begins, and the answer says which of the transactions
in it were aborted: the client leaves those out. With read_uncommitted there is everything.

The loop responds with what it finds in memory (`attempt`). If records have to be looked for on the disk, a thread makes
the response (`attempt_in_thread`). Records that are not small are sent from their files (response_writer.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from klamm.disk.page_cache import WouldBlock, read_cached
from klamm.errors import KlammError
from klamm.kafka.broker import NotOpened
from klamm.kafka.call import DISK, LARGE, LOOP, Call, SupportedApi
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.error_map import code_of
from klamm.kafka.repeats import merge_partitions
from klamm.kafka.wire.messages import FETCH
from klamm.kafka.wire.structs import Struct
from klamm.log.head import DELETED

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.log._head import Snapshot
    from klamm.log.partition import Partition
    from klamm.log.ranges import Ranges

__all__ = ["HANDLERS"]

_SMALL = 32 * 1024  # read and sent together with the answer, not as a file
_SMALL_TOGETHER = 128 * 1024  # of all partitions: so much an answer holds while a client does not read it

_response = FETCH.response
_Topic = _response.Topic
_Partition = _response.Partition
_Aborted = _response.AbortedTransaction


class _Wanted:
    """One partition of a request: what is wanted, and what became of it."""

    __slots__ = ("error", "index", "last_epoch", "leader_epoch", "max_bytes", "offset", "partition", "ranges")

    def __init__(self, asked: Struct, partition: Partition | None, ranges: Ranges | None, error: int) -> None:
        self.index: int = asked.partition
        self.offset: int = asked.fetch_offset
        self.max_bytes: int = asked.partition_max_bytes
        self.leader_epoch: int = asked.current_leader_epoch
        self.last_epoch: int = asked.last_fetched_epoch
        self.partition = partition
        self.ranges = ranges
        self.error = error


class _Fetching:
    """A request, tried as often as need be, by one thread at a time."""

    __slots__ = (
        "available",
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
        self.max_bytes: int = min(request.max_bytes, broker.settings.fetch_max_bytes)
        self.min_bytes: int = min(request.min_bytes, self.max_bytes)  # else it could never be enough
        self.small_left = self.ranges_left = 0
        self.available = 0  # as in Kafka: bytes that there are, up to what each partition and the request may have
        self.has_more = False  # it ends with a segment, or with the files that it may open: as in Kafka, it is sent

    def partitions(self) -> list[Partition]:
        return [each.partition for _, wanted in self.topics for each in wanted if each.partition is not None]

    def attempt(self, is_due: bool) -> Struct | None:
        """Return the response, if there is enough to send, or an error, or it is due. WouldBlock: only a thread can."""
        if self.broker.settings.fetch_flushed_only:
            self._flush()
        return self._attempt(is_due, may_block=False)

    def attempt_in_thread(self, is_due: bool) -> Struct | None:
        """Like `attempt`, but wait for disks."""
        return self._attempt(is_due, may_block=True)

    def _flush(self) -> None:
        """Have records synced that may not be sent before."""
        for partition in self.partitions():
            try:
                self.broker.flush_soon(partition)
            except KlammError:
                continue  # the response says what is wrong

    def _attempt(self, is_due: bool, *, may_block: bool) -> Struct | None:
        if not is_due and self.min_bytes > 0 and not self._has_something():
            return None
        response, wrong = self._build(may_block)
        if wrong:
            self._count(response)
        return response if is_due or wrong or self.available >= self.min_bytes or self.has_more else None

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

    def _build(self, may_block: bool) -> tuple[Struct, bool]:
        size, wrong = 0, False
        left = self.max_bytes
        self.small_left = _SMALL_TOGETHER
        self.ranges_left = max(1, self.broker.max_open_ranges // 16)
        self.has_more = False
        self.available = 0
        topics = []
        for asked, wanted in self.topics:
            partitions = []
            for each in wanted:
                answered = self._partition(each, left, size == 0, may_block)
                wrong = wrong or answered.error_code != 0 or answered.diverging_epoch is not None
                found = len(answered.records)
                size += found
                left -= found
                partitions.append(answered)
            topics.append(_Topic(topic=asked.topic, topic_id=asked.topic_id, partitions=partitions))
        return _response(responses=topics), wrong

    def _partition(self, wanted: _Wanted, left: int, first: bool, may_block: bool) -> Any:
        partition, ranges = wanted.partition, wanted.ranges
        if partition is None or ranges is None:
            return _refused(wanted.index, wanted.error)
        try:
            ends = partition.ends()
            if (wanted.leader_epoch >= 0) and wanted.leader_epoch != ends.leader_epoch:
                older = wanted.leader_epoch < ends.leader_epoch
                return _refused(
                    wanted.index, ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
                )
            visible = self.broker.visible_ends(partition)
            answered = _Partition(
                partition_index=wanted.index,
                high_watermark=visible.end,
                last_stable_offset=visible.stable,
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
            limit = visible.stable if self.committed else visible.end
            if not self.ranges_left:
                self.has_more = True
            elif wanted.offset < limit and (left > 0 or first):
                now, size = partition.snapshot(), min(left, wanted.max_bytes)
                is_put = self._put_records(answered, wanted, ranges, now, limit, size, first, may_block)
                if first and not is_put and self.broker.visible_ends(partition).end > visible.end:
                    # Compaction took all that was before `limit`: later records have the same keys.
                    return self._partition(wanted, left, first, may_block)
            return answered
        except KlammError as error:
            code = code_of(error)
        except OSError:
            self.broker.log.warning("%r: cannot be read", partition, exc_info=True)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        return _refused(wanted.index, code)

    def _put_records(
        self,
        answered: Any,
        wanted: _Wanted,
        ranges: Ranges,
        now: Snapshot,
        limit: int,
        max_bytes: int,
        first: bool,
        may_block: bool,
    ) -> bool:
        """Put what there is before `limit` into the answer; whether there is anything."""
        find = ranges.find if may_block else ranges.find_now
        found = find(wanted.offset, max_bytes, limit, now, at_least_one=first)
        if found is None:
            self.available += 0 if first else max_bytes  # the next batch does not fit
            return False
        is_cut = 0 <= found.next_offset < limit
        self.available += max(found.size, max_bytes) if is_cut else found.size
        if found.size < self.min_bytes and not self.has_more:
            self.has_more = ranges.is_followed(found, limit, now, may_block=may_block)
        if self.committed:
            aborted = ranges.aborted_in(wanted.offset, found, now, may_block=may_block)
            answered.aborted_transactions = [_Aborted(producer_id=p, first_offset=begin) for p, begin in aborted]
        if found.size <= min(_SMALL, self.small_left):
            answered.records = found.read() if may_block else read_cached(found.file.fd, found.size, found.position)
            self.small_left -= found.size
        else:
            answered.records = found
            self.ranges_left -= 1
        return True


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


async def _fetch(broker: Broker, call: Call) -> Struct:
    request = call.request
    if request.session_id != 0 and request.session_epoch != -1:  # -1 ends it, and that is well: there is none
        return _response(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if request.session_epoch > 0:
        return _response(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    try:
        topics = _resolved(broker, call, broker.partition, with_epochs=True)
    except NotOpened:
        topics = await _opened_first(broker, call)
    fetching = _Fetching(broker, call, topics)
    is_due = request.max_wait_ms <= 0 or not request.topics
    try:
        response = fetching.attempt(is_due)
    except WouldBlock:
        response = await broker.disk(fetching.attempt_in_thread, is_due)
    if response is None:
        broker.metrics.fetch_waits += 1
        response = await broker.purgatory.delay(call, fetching, fetching.partitions(), request.max_wait_ms / 1000)
    return response


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
            wanted.append(_Wanted(each, partition, broker.ranges(partition) if partition else None, error))
        topics.append((asked, wanted))
    return topics


async def _opened_first(broker: Broker, call: Call) -> Any:
    """Like `_resolved`, but open partitions that were never used, and read epochs that are not known."""
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
    return topics


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
