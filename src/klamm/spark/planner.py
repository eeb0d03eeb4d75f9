"""The planner, on the driver: from a store and options to the ranges that tasks read.

Spark keeps offsets forever, those of other formats without a leader epoch. So that none outruns the log after a power
cut, and none points into other records after an older copy of the store was put back:

  PLN1  No offset is handed to Spark, and no range planned, beyond what is stable (unless uncommitted records are
        wanted) and on disk. Where the log is ahead of the disk it is synced first; a store that cannot be written is
        planned up to what is on disk already.
  PLN2  A range names the store and the topic by id, so that a task never reads another log of the same name.
  PLN3  Ranges of a partition follow one upon the other: the end of a micro-batch is the start of the next, whichever
        process dies, and the first micro-batch, done again, begins where it began.
  PLN4  Records that were asked for and are gone (expired, deleted, the topic re-created) are reported: by an error, or
        with failOnDataLoss=false by a warning, and the query goes on with what is there.
  PLN5  An offset whose leader epoch ended before it is data loss, too: the log has other records from there on. With
        failOnDataLoss=false the query goes on where the epoch ended, so that it reads those.

Nothing here knows Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.batch import walk
from klamm.errors import InvalidSetting, KlammError, NotAStore, OffsetOutOfRange, ReadOnly, UnknownTopic
from klamm.log import lookup
from klamm.spark.offsets import EARLIEST, LATEST, Bound, StreamOffsets, TopicIdPartition
from klamm.spark.pushdown import EVERYTHING, PushedFilters
from klamm.spark.server.remote_store import ServerPartition, ServerStore
from klamm.store.directory import Core, acquire, release
from klamm.types import Position
from klamm.where import resume_at

if TYPE_CHECKING:
    from klamm.log.partition import Ends, Partition
    from klamm.spark.options import ReadOptions

__all__ = ["Planner", "Range", "beyond_end_error", "cut", "deleted_error", "shares", "split"]

_log = logging.getLogger("klamm.spark")


class Range(NamedTuple):
    """Offsets [start, end) of a partition."""

    tp: TopicIdPartition
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.tp} [{self.start}, {self.end})"


class Planner:
    """Holds the store open, for writing where it can be, or the connection. Not for several threads at a time."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._logged: set[str] = set()
        self.server = None if options.server is None else ServerStore(options.server)
        core: Any = self.server  # which answers what is asked of a Core here
        self.core: Core = core or _open_store(options.path)

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
        else:
            release(self.core)

    @property
    def store_id(self) -> str:
        return self.core.catalog.store_id

    # ---- what there is

    def tps(self, *, strict: bool) -> dict[TopicIdPartition, Partition]:
        """Return the subscribed partitions. `strict`: those that were named must exist."""
        subscription = self._options.subscription
        if subscription.pattern is not None:
            _, topics = self.core.all_topics()
            opened = [each for each in topics if subscription.wants(each.name)]
        else:
            opened = []
            for name in subscription.names:
                try:
                    opened.append(self.core.topic(name))
                except UnknownTopic:
                    if strict:
                        raise
        found: dict[TopicIdPartition, Partition] = {}
        for each in opened:
            for number in subscription.partitions(each.name, each.count):
                if strict or number < each.count:
                    found[TopicIdPartition(each.name, each.topic.id, number)] = each.partition(number)
        return found

    def _readable(self, ends: Ends) -> int:
        end_offset = ends.stable if self._options.committed else ends.end
        return min(end_offset, ends.flushed) if self.core.read_only else end_offset

    def _secured(self, partition: Partition, end_offset: int) -> int:
        """Return the offset, when everything below it is on disk (PLN1)."""
        if not self.core.read_only and partition.ends().flushed < end_offset:
            partition.sync(end_offset)
        return end_offset

    def _since(self, partition: Partition, timestamp_ms: int) -> int | None:
        """Return the first offset whose record has at least this timestamp."""
        if self._options.committed:
            return partition.offset_at(timestamp_ms)
        remote: Any = partition
        is_remote = isinstance(remote, ServerPartition)
        found = remote.first_since(timestamp_ms) if is_remote else lookup.first_since(partition, timestamp_ms)
        return None if found is None else found.offset

    def _resolve(self, bound: Bound, tp: TopicIdPartition, partition: Partition, ends: Ends) -> int:
        readable = self._readable(ends)
        time_ms = bound.time_at(tp)
        if time_ms is not None:
            found = self._since(partition, time_ms)
            if found is None and bound.needs_record:
                raise OffsetOutOfRange(
                    f"{bound.option}: {tp} has no record at or after {time_ms}",
                    offset=readable,
                    start=ends.start,
                    end=readable,
                    hint="startingOffsetsByTimestampStrategy=latest starts at the end of such a partition",
                )
            return readable if found is None else min(found, readable)
        offset = bound.at(tp)
        return ends.start if offset == EARLIEST else readable if offset == LATEST else offset

    # ---- what is gone

    def lose(self, error: KlammError) -> None:
        """Raise `error`, or with failOnDataLoss=false log it, once."""
        if self._options.fail_on_data_loss:
            raise error
        if error.message not in self._logged:
            self._logged.add(error.message)
            _log.warning("%s; going on, as failOnDataLoss is false", error.message)

    def _first_left(self, tp: TopicIdPartition, start: int, ends: Ends) -> int:
        """Return `start`, or the log start if that is later by now."""
        if start < ends.start:
            self.lose(deleted_error(tp, start, ends))
            return ends.start
        return start

    def _resumed(self, tp: TopicIdPartition, partition: Partition, offsets: StreamOffsets) -> int:
        """Return the offset of `tp`, or where its leader epoch ended before it (PLN5)."""
        offset = offsets.get(tp) or 0
        end = resume_at(partition, Position(offset, offsets.epoch(tp))).offset
        if end < offset:
            self.lose(_diverged(tp, offset, end, partition.ends()))
        return end

    # ---- a batch

    def batch(self, wanted: PushedFilters = EVERYTHING) -> list[Range]:
        """Return what a batch query reads, as of now."""
        options = self._options
        here = self.tps(strict=True)
        for bound in (options.starting, options.ending):
            bound.check((tp.topic, tp.partition) for tp in here)
        ranges = []
        for tp, partition in here.items():
            if wanted.has(tp.topic, tp.partition):
                ends = partition.ends()
                start = self._resolve(options.starting, tp, partition, ends)
                end = self._resolve(options.ending, tp, partition, ends)
                if start > end or end > self._readable(ends):
                    self.lose(self._out_of_range(tp, start, end, ends))
                    end = min(end, self._readable(ends))
                start, end = wanted.within(self._first_left(tp, start, ends), end)
                if start < end and wanted.since_ms is not None:
                    found = self._since(partition, wanted.since_ms)
                    start = end if found is None else max(start, found)
                if start < end:
                    ranges.append(Range(tp, start, self._secured(partition, end)))
        return self._split(ranges, here)

    def _out_of_range(self, tp: TopicIdPartition, start: int, end: int, ends: Ends) -> OffsetOutOfRange:
        readable = self._readable(ends)
        why = f", for a transaction is open from there on to {ends.end}" if readable < min(ends.end, end) else ""
        return OffsetOutOfRange(
            f"{tp}: offsets {start} to {end} are not there; it can be read from {ends.start} to {readable}{why}",
            offset=start if start > readable else end,
            start=ends.start,
            end=readable,
            hint="give offsets of that range, or -2 and -1 for its ends",
        )

    # ---- a stream

    def initial(self) -> StreamOffsets:
        """Return where a new query starts."""
        here = self.tps(strict=True)
        self._options.starting.check((tp.topic, tp.partition) for tp in here)
        offsets = {}
        for tp, partition in here.items():
            ends = partition.ends()
            start = self._resolve(self._options.starting, tp, partition, ends)
            if start > self._readable(ends):
                raise self._out_of_range(tp, start, self._readable(ends), ends)
            offsets[tp] = self._secured(partition, self._first_left(tp, start, ends))
        return self._with_epochs(offsets, here)

    def newest(self) -> dict[TopicIdPartition, int]:
        """Return the offsets up to which records can be read now."""
        found = {}
        for tp, partition in self.tps(strict=False).items():
            try:
                found[tp] = self._readable(partition.ends())
            except UnknownTopic:
                continue  # deleted just now
        return found

    def latest(
        self,
        start: StreamOffsets | None,
        limit: int | None = None,
        target: Mapping[TopicIdPartition, int] | None = None,
    ) -> StreamOffsets:
        """Return where the next micro-batch ends: at most `limit` offsets further, and not beyond `target`.

        `start` None: Spark did not say it, so nothing is checked against it (`check_start` does when it is known).
        """
        here = self.tps(strict=False)
        if start is None:
            start = StreamOffsets(self.store_id, self.newest())
        else:
            self._check_start(start, here)
        begins: dict[TopicIdPartition, int] = {}
        sizes: dict[TopicIdPartition, int] = {}
        for tp, partition in here.items():
            known = start.get(tp)
            if target is not None and tp not in target and known is None:
                continue  # it came after the moment that is to be read up to
            try:
                begin = self._resumed(tp, partition, start)
                ends = partition.ends()
            except UnknownTopic:  # deleted since we looked which there are
                self.lose(_deleted(f"{tp.topic}: the topic was deleted"))
                continue
            readable = self._readable(ends)
            if target is not None:
                readable = min(readable, target.get(tp, readable))
            begin = self._first_left(tp, begin, ends)
            if begin > ends.end:
                self.lose(beyond_end_error(tp, begin, ends))
                begin = readable
            begins[tp] = begin
            sizes[tp] = max(0, readable - begin)
        if limit is not None:
            sizes = shares(sizes, limit)
        offsets = {tp: self._secured(here[tp], begin + sizes[tp]) for tp, begin in begins.items()}
        return self._with_epochs(offsets, here)

    def _with_epochs(
        self, offsets: Mapping[TopicIdPartition, int], here: Mapping[TopicIdPartition, Partition]
    ) -> StreamOffsets:
        epochs = {tp: _epoch_before(here[tp], offset) for tp, offset in offsets.items()}
        return StreamOffsets(self.store_id, offsets, {tp: epoch for tp, epoch in epochs.items() if epoch >= 0})

    def check_start(self, start: StreamOffsets) -> None:
        """Report data loss, or another store, behind the end of the last micro-batch."""
        self._check_start(start, self.tps(strict=False))

    def _check_start(self, start: StreamOffsets, here: Mapping[TopicIdPartition, Partition]) -> None:
        self._check_source(start)
        self._look_for_gone(start, here)

    def between(self, start: StreamOffsets, end: StreamOffsets) -> list[Range]:
        """Return what a micro-batch reads."""
        self._check_source(end)
        here = self.tps(strict=False)
        ranges = []
        # The first micro-batch, maybe once more: `start` is what is initial by now.
        if end.origin is not None and start.origin is None:
            start = StreamOffsets(end.store_id, end.origin)
        for tp, end_offset in end:
            begin = start.get(tp) or 0
            if begin == end_offset and start.epoch(tp) == end.epoch(tp):
                continue
            try:
                partition = here.get(tp) or self._unsubscribed(tp)
                here[tp] = partition
                begin = self._resumed(tp, partition, start)
                end_offset = self._resumed(tp, partition, end)
                ends = partition.ends()
            except UnknownTopic:
                if begin < end_offset:
                    self.lose(_deleted(f"{tp}: offsets {begin} to {end_offset - 1}: the topic was deleted"))
                continue
            if end_offset > ends.end:
                self.lose(beyond_end_error(tp, end_offset, ends))
                end_offset = ends.end
            if begin < end_offset:
                begin = self._first_left(tp, begin, ends)
            if begin < end_offset:
                ranges.append(Range(tp, begin, end_offset))
        return self._split(ranges, here)

    def _unsubscribed(self, tp: TopicIdPartition) -> Partition:
        """Return a partition that a micro-batch was planned with, though the query subscribes to others by now."""
        opened = self.core.topic(tp.topic)
        if opened.topic.id != tp.topic_id:
            raise UnknownTopic(str(tp))
        return opened.partition(tp.partition)

    def _check_source(self, offsets: StreamOffsets) -> None:
        if not self.core.is_in_place():  # what it has open is not written to any more
            raise NotAStore(
                f"{self._options.path}: the store was replaced, or moved away, while the query ran",
                hint="start the query again: its checkpoint says whether the store has other records",
            )
        if offsets.store_id != self.store_id:
            raise NotAStore(
                f"{self._options.path}: is another store than the one that the checkpoint is of",
                hint="give the path of that one, or the query a new checkpointLocation",
            )
        topics = offsets.topics()
        if topics and not any(map(self._options.subscription.wants, topics)):
            raise InvalidSetting(
                f"the checkpoint is of {', '.join(list(topics)[:3])}, which the query does not subscribe to",
                hint="give the query a new checkpointLocation",
            )

    def _look_for_gone(self, start: StreamOffsets, here: Mapping[TopicIdPartition, Partition]) -> None:
        """Report topics that were read and do not exist any more, or were re-created (PLN4)."""
        ids = {tp.topic: tp.topic_id for tp in here}
        for topic, topic_id in start.topics().items():
            if ids.get(topic) == topic_id:
                continue
            if topic in ids:
                what = f"{topic}: the topic was deleted and re-created"
            elif self._options.subscription.wants(topic):
                what = f"{topic}: the topic was deleted"
            else:
                continue  # the query does not subscribe to it any more
            self.lose(_deleted(what))

    # ---- more tasks than partitions

    def _split(self, ranges: list[Range], here: Mapping[TopicIdPartition, Partition]) -> list[Range]:
        options = self._options
        found = split(ranges, options.min_partitions, lambda each, offset: _batch_at(here[each.tp], offset))
        return found if options.max_records is None else cut(found, options.max_records)


def _open_store(path: str) -> Core:
    try:
        core = acquire(path, read_only=False, create=False, force_filesystem=False)
    except ReadOnly:
        return acquire(path, read_only=True, create=False, force_filesystem=False)
    except NotAStore as error:
        raise NotAStore(error.message, hint="path is the directory of a store, made by klamm.open") from None
    if core.users == 1:
        core.transactions.resolve(only_abandoned=True)
    return core


def _lost(message: str, offset: int, ends: Ends, hint: str) -> OffsetOutOfRange:
    return OffsetOutOfRange(f"data loss: {message}", offset=offset, start=ends.start, end=ends.end, hint=hint)


def deleted_error(tp: TopicIdPartition, offset: int, ends: Ends) -> OffsetOutOfRange:
    """Return the error for records that are not in the log any more."""
    return _lost(
        f"{tp}: offsets {offset} to {ends.start - 1} are gone; the log starts at {ends.start}",
        offset,
        ends,
        "retention was faster than the query; failOnDataLoss=false goes on at the earliest",
    )


def beyond_end_error(tp: TopicIdPartition, offset: int, ends: Ends) -> OffsetOutOfRange:
    """Return the error for an offset that the log has not reached, though it once had."""
    return _lost(
        f"{tp}: the query has come to offset {offset}, but the log ends at {ends.end}",
        offset,
        ends,
        "an older copy of the store may have been put back; failOnDataLoss=false goes on at its end",
    )


def _diverged(tp: TopicIdPartition, offset: int, end: int, ends: Ends) -> OffsetOutOfRange:
    """Return the error for an offset that the log has, though not of the records that the query has read."""
    return _lost(
        f"{tp}: the query has come to offset {offset}, but the log has other records from {end} on:"
        " an older copy of the store was put back, or records were lost in a power cut",
        offset,
        ends,
        f"failOnDataLoss=false goes on at {end}; what the query has made of the records it read is yours to undo",
    )


def _deleted(what: str) -> UnknownTopic:
    return UnknownTopic(
        f"data loss: {what}; what the query had not read of it is gone",
        hint="failOnDataLoss=false goes on with what is there",
    )


def _epoch_before(partition: Partition, offset: int) -> int:
    """Return the leader epoch of the record before `offset`; -1 if there is none, or the topic was just deleted."""
    try:
        return partition.epoch_at(offset - 1) if offset else -1
    except (KlammError, FileNotFoundError):
        return -1


def _batch_at(partition: Partition, offset: int) -> int:
    """Return the first offset of the batch that holds `offset`."""
    try:
        with partition.reader(offset, committed=False) as reader:
            data = reader.read(1)
        return next(iter(walk(data))).base_offset if data else offset
    except OffsetOutOfRange:
        return offset  # expired just now; reading it raises


def split(ranges: list[Range], at_least: int, boundary: Callable[[Range, int], int]) -> list[Range]:
    """Split into so many ranges, if there are enough batches: each is cut in parts of about the same number of offsets.

    `boundary` gives the start of the batch that an offset is in, so that no batch is decoded twice.
    """
    total = sum(each.end - each.start for each in ranges)
    if len(ranges) >= at_least or not total:
        return ranges
    found = []
    for each in ranges:
        size = each.end - each.start
        parts = -(-size * at_least // total)
        cuts = sorted({boundary(each, each.start + size * n // parts) for n in range(1, parts)})
        cuts = [each.start, *(cut for cut in cuts if each.start < cut < each.end), each.end]
        found += [Range(each.tp, *pair) for pair in pairwise(cuts)]
    return found


def cut(ranges: list[Range], at_most: int) -> list[Range]:
    """Cut each range into as few parts of at most so many offsets as will do, all about the same size."""
    found = []
    for each in ranges:
        size = each.end - each.start
        parts = -(-size // at_most)
        edges = [each.start + size * n // parts for n in range(parts + 1)]
        found += [Range(each.tp, *pair) for pair in pairwise(edges)]
    return found


def shares(sizes: Mapping[TopicIdPartition, int], limit: int) -> dict[TopicIdPartition, int]:
    """Return how many offsets of each partition go to a micro-batch of at most `limit`: in proportion; none starves."""
    total = sum(sizes.values())
    if total <= limit:
        return dict(sizes)
    found = dict.fromkeys(sizes, 0)
    waiting = sorted((tp for tp, size in sizes.items() if size), key=lambda tp: (-sizes[tp], tp))
    for tp in waiting[:limit]:
        found[tp] = 1
    rest = max(0, limit - len(waiting))
    for tp in waiting if rest else ():
        found[tp] += rest * (sizes[tp] - 1) // (total - len(waiting))
    left = limit - sum(found.values())  # by rounding, less than there are partitions
    for tp in [tp for tp in waiting if found[tp] < sizes[tp]][:left]:
        found[tp] += 1
    return found
