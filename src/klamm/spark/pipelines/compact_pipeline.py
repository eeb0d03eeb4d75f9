"""A compacted topic, compacted on Spark: for more keys than the table of one process holds.

The built-in compaction (log/compaction.py) has the latest offset of each key in one table, and makes a pass for each
time that the table is full. Here Spark finds the latest offsets, with a shuffle that spills to disk, in one pass. Both
use the same record filter with the same rules, so both leave the same records, and the same files.

  1  The driver takes the clean byte of a partition and finds out what there is to compact.
  2  Keys: a task for each closed segment reads its keys; Spark gives, for each segment, the keys that have a later
     record in the dirty part of the log, with its offset. Those are all that a record filter has to know.
  3  A task for each segment puts its keys into a table, and filters the segment into <base>.log.<hex>.cleaned, synced.
     It holds no lock, and writes a file of its own: one that is run twice, or goes on after its driver died, does no
     harm.
  4  The driver replaces the segments in the order of offsets, each durably before the next.

Steps 3 and 4 take some segments at a time, so that not all of the topic is there twice.

A marker stays while a record of its transaction stays. That record may be in an earlier segment, which another task
filters at the same time. So a task assumes that there is none, and reports for which markers it has assumed that. If
the earlier segment has kept a record, the driver has the segment filtered again, with the ids of those transactions.

Promises
  CMP1  No other process cleans the partition until the end: the driver holds its clean byte from 1 on. Appends and
        reads go on.
  CMP2  Whichever process is killed, and whenever: each segment is as it was or as it will be. What is left over is
        removed by the next compaction, whichever it is, and by recovery.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.batch import KeyMap
from klamm.errors import InvalidRecord, StoreBusy, readable
from klamm.log import compaction, segment
from klamm.spark.functions import F
from klamm.spark.offsets import TopicIdPartition
from klamm.spark.pipelines.pipeline_directory import local
from klamm.spark.pipelines.query_runner import collected
from klamm.spark.pipelines.report import Report
from klamm.spark.planner import Range
from klamm.spark.range_reader import Task, read, schema_for
from klamm.store.directory import Core, opened
from klamm.store.maintenance import partitions_of
from klamm.types import TopicId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from klamm.log.partition import Partition
    from klamm.spark.pipelines.report import Progress

__all__ = ["compact"]

_AT_ONCE = 32  # segments of which there are two files at a time
_TIMEOUT_MS = 5000  # for another cleaning process: removing what expired takes a moment, a compaction longer
_ANYTHING = 1 << 62
_COLUMNS = ("key", "offset")


def compact(
    spark: SparkSession,
    store: str | os.PathLike[str],
    topic: str,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Keep the latest record of each key of a compacted topic, with its offset, as `store[topic].compact()` does.

    What is worth it is compacted; with `force`, the segment being written is closed, and everything is. All workers
    have to see the store's files. `progress` is called with bytes done and bytes in all. In the report, `rows_read` are
    the records that were looked at, `rows_written` those that are left of them.

    Raise UnknownTopic, NotAStore; InvalidSetting if the topic is not compacted; InvalidRecord if no record of it has a
    key; StoreBusy if another process is cleaning a partition.
    """
    begin = time.monotonic()
    with opened(local(store)) as core:
        partitions = partitions_of(core, topic)
        topic_id = core.topic(topic).topic.id
        _check_has_keys(core, topic_id, partitions)
        work = [2 * segment.bytes_in(partition.directory) for partition in partitions]
        found = []
        for number, partition in enumerate(partitions):
            done = _compact(spark, core, topic_id, partition, force, _share(progress, work, number))
            if done is not None and done.passes:
                found.append(done)
        if progress is not None:
            progress(sum(work), sum(work))
    return Report(
        pipeline="compact",
        source=topic,
        target=topic,
        rows_read=sum(done.records_left + done.records_removed for done in found),
        rows_written=sum(done.records_left for done in found),
        seconds=time.monotonic() - begin,
        details={
            "partitions": len(found),
            "segments": sum(done.segments for done in found),
            "records_removed": sum(done.records_removed for done in found),
            "bytes_before": sum(done.bytes_before for done in found),
            "bytes_after": sum(done.bytes_after for done in found),
        },
    )


def _share(progress: Progress | None, work: list[int], number: int) -> Progress:
    """Return the progress of one partition's bytes, in those of all."""

    def report(done: int, _: int | None) -> None:
        if progress is not None:
            progress(sum(work[:number]) + min(done, work[number]), sum(work))

    return report


def _compact(
    spark: SparkSession, core: Core, topic_id: TopicId, partition: Partition, force: bool, on_progress: Progress
) -> compaction.Compacted | None:
    tp = TopicIdPartition(partition.topic, topic_id, partition.number)
    try:
        return partition.cleanup.compact(
            force=force,
            timeout_ms=_TIMEOUT_MS,
            on_progress=on_progress,
            run=lambda each, done: _Job(spark, core, tp, each).run(done),
        )
    except StoreBusy as error:
        raise StoreBusy(
            f"{partition.topic}/{partition.number}: is being cleaned by another process; it was not compacted",
            hint="try again when they are done",
        ) from error


def _check_has_keys(core: Core, topic_id: TopicId, partitions: list[Partition]) -> None:
    """Raise if all records are without a key. Some may be, of a topic that was compacted later; they stay."""
    count = 0
    where: list[str] = []
    for partition in partitions:
        ends = partition.ends()
        tp = TopicIdPartition(partition.topic, topic_id, partition.number)
        task = Task(core.path, core.catalog.store_id, Range(tp, ends.start, ends.stable), "read_committed", False)
        rows = 0
        for batch in read(task, schema_for(_COLUMNS)):
            if batch.column("key").null_count < batch.num_rows:
                return
            rows += batch.num_rows
        if rows:
            count, where = count + rows, [*where, str(partition.number)]
    if count:
        raise InvalidRecord(
            f"{partitions[0].topic}: none of its {count} records (partitions {', '.join(where)}) has a key, "
            "and compaction keeps the latest record of each key",
            hint="send records with keys, or set cleanup.policy to delete",
        )


# ---- in tasks


class _Plan(NamedTuple):
    """The plan that tasks are given."""

    path: str
    store_id: str
    tp: TopicIdPartition
    directory: str
    log_start: int
    rules: compaction.Rules
    segments: list[tuple[int, int]]


class _FilteredSegment(NamedTuple):
    """A segment that a task has filtered. `size` is None if there is no file, for nothing goes."""

    at: int
    temp_path: str
    size: int | None
    records: int
    kept: int
    last_horizon: int
    open_ids: list[int]
    seen_ids: list[int]
    asked_ids: list[int]


def _keys(plan: _Plan, given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the keys of segments, and the offsets of their records: committed ones, as a reader sees them."""
    import pyarrow as pa

    for batch in given:
        numbers: list[Any] = batch.column("id").to_pylist()
        for at in numbers:
            base, following = plan.segments[at]
            wanted = Range(plan.tp, max(base, plan.log_start), following)
            task = Task(plan.path, plan.store_id, wanted, "read_committed", True)
            for rows in read(task, schema_for(_COLUMNS)):
                number = pa.repeat(pa.scalar(at, pa.int32()), rows.num_rows)
                yield pa.RecordBatch.from_arrays([number, *rows.columns], names=["at", *_COLUMNS])


def _filter_segment(
    plan: _Plan, counts: dict[int, int], open_ids: dict[int, list[int]], given: Iterable[pa.RecordBatch]
) -> _FilteredSegment | None:
    """Filter one segment, whose keys and later offsets are given; one row of it is without a key, and always there."""
    import pyarrow as pa
    from pyarrow import compute

    functions: Any = compute
    keys, at = None, -1
    for batch in given:
        if not batch.num_rows:
            continue
        if keys is None:
            at = batch.column("at")[0].as_py()
            keys = KeyMap(_ANYTHING, os.urandom(16), most=counts.get(at, 0), aborted=plan.rules.aborted)
        rows = batch.filter(functions.is_valid(batch.column("key")))
        column: Any = pa.concat_arrays([rows.column("key").cast(pa.binary())])
        latest: Any = rows.column("latest")
        if rows.num_rows:
            bounds, data = column.buffers()[1:]
            bounds = memoryview(bounds)[4 * column.offset :][: 4 * (len(column) + 1)]
            offsets = memoryview(latest.buffers()[1])[8 * latest.offset :][: 8 * len(latest)]
            assert keys.put(bounds, data or b"", offsets), "the table is as large as it has to be"
    if keys is None:
        return None
    base, _ = plan.segments[at]
    record_filter = plan.rules.record_filter(keys, open_ids.get(at, ()))
    temp_path = segment.path_of(plan.directory, base, f"{segment.LOG}.{os.urandom(8).hex()}{segment.CLEANED}")
    size = compaction.filter_segment(plan.directory, base, record_filter, temp_path)
    ids = [sorted(each) for each in (record_filter.open_ids, record_filter.seen_ids, record_filter.asked_ids)]
    return _FilteredSegment(
        at, temp_path, size, record_filter.records, record_filter.kept, record_filter.last_horizon, *ids
    )


# ---- on the driver


class _Job:
    """One pass over one partition."""

    def __init__(self, spark: SparkSession, core: Core, tp: TopicIdPartition, each: compaction.Pass) -> None:
        self._spark = spark
        self._pass = each
        self._segments = each.found.segments
        self._end = max(each.start, each.found.end)
        self._plan = _Plan(
            core.path,
            core.catalog.store_id,
            tp,
            readable(each.directory),
            each.log.snapshot().log_start,
            each.rules(self._end),
            self._segments,
        )

    def run(self, done: compaction.Compacted) -> bool:
        """Run like Pass.run. There always is space for all keys, so all is compacted then."""
        each, sizes = self._pass, [self._size(base) for base, _ in self._segments]
        records = kept = 0
        last_horizon = -1
        open_ids: set[int] = set()
        stale = self._stale()
        try:
            counts = self._counts(stale)
            each.on_progress(sum(sizes))
            each.begin(self._end)
            for first in range(0, len(self._segments), _AT_ONCE):
                segment_group = range(first, min(first + _AT_ONCE, len(self._segments)))
                for found in self._filter_segments(stale, counts, segment_group, open_ids):
                    base, following = self._segments[found.at]
                    if found.size is not None:
                        each.replace(
                            base, following, f"{each.directory}/{os.path.basename(found.temp_path)}", found.size
                        )
                    records, kept = records + found.records, kept + found.kept
                    last_horizon = max(last_horizon, found.last_horizon)
                    each.on_progress(sizes[found.at])
        finally:
            if stale is not None:
                stale.unpersist()
            compaction.remove_leftovers(each.directory)
        each.finish(done, self._end, records=records, kept=kept, last_horizon=last_horizon)
        return True

    def _size(self, base: int) -> int:
        return os.stat(segment.path_of(self._pass.directory, base)).st_size

    def _stale(self) -> DataFrame | None:
        """Return at, key, latest: keys of the segment at that index that have a later record, and its offset."""
        from pyspark import StorageLevel
        from pyspark.sql import Window

        plan, start = self._plan, self._pass.start
        if start >= self._end:
            return None  # nothing is dirty; tombstones may go nevertheless

        def keys(given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from _keys(plan, given)

        count = len(self._segments)
        rows = self._spark.range(0, count, 1, count).mapInArrow(keys, "at INT, key BINARY, offset LONG")
        dirty = F.when(F.col("offset") >= start, F.col("offset"))
        each = (
            rows.where("key IS NOT NULL")
            .groupBy("at", "key")
            .agg(F.min("offset").alias("least"), F.max(dirty).alias("latest"))
        )
        latest = each.withColumn("latest", F.max("latest").over(Window.partitionBy("key")))
        stale = latest.where("least < latest").select("at", "key", "latest")
        return stale.sortWithinPartitions("at").persist(StorageLevel.DISK_ONLY)  # a group skips what is of others

    def _counts(self, stale: DataFrame | None) -> dict[int, int]:
        if stale is None:
            return {}
        return {row["at"]: row["count"] for row in collected(stale.groupBy("at").count())}

    def _filter_segments(
        self, stale: DataFrame | None, counts: dict[int, int], segment_group: range, open_ids: set[int]
    ) -> list[_FilteredSegment]:
        """Filter the segments of a group, in order. `open_ids` are those before it, and after it when it is done."""
        known_ids = {segment_group[0]: sorted(open_ids)}
        found = self._run(stale, counts, segment_group, known_ids)
        again: dict[int, list[int]] = {}
        for at in segment_group:
            if at not in known_ids and not open_ids.isdisjoint(found[at].asked_ids):
                again[at] = sorted(open_ids)
            left = open_ids.difference(found[at].seen_ids).union(found[at].open_ids)
            open_ids.clear()
            open_ids.update(left)
        if again:
            found |= self._run(stale, counts, again, again)
        return [found[at] for at in segment_group]

    def _run(
        self, stale: DataFrame | None, counts: dict[int, int], wanted: Iterable[int], open_ids: dict[int, list[int]]
    ) -> dict[int, _FilteredSegment]:
        plan, numbers = self._plan, list(wanted)

        def filter_segment(given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            made = _filter_segment(plan, counts, open_ids, given)
            if made is not None:
                yield pa.RecordBatch.from_pydict({"made": [json.dumps(made)]})

        number = F.array_position(F.lit(numbers), F.col("at")).cast("int") - 1
        rows = self._spark.range(len(numbers)).select(
            F.element_at(F.lit(numbers), (F.col("id") + 1).cast("int")).cast("int").alias("at"),
            F.lit(None).cast("binary").alias("key"),
            F.lit(-1).cast("long").alias("latest"),
        )
        if stale is not None:
            rows = rows.union(stale.where(F.col("at").isin(numbers)))
        made = rows.repartitionById(len(numbers), number).mapInArrow(filter_segment, "made STRING")
        found = [_FilteredSegment(*json.loads(row["made"])) for row in collected(made)]
        assert sorted(each.at for each in found) == sorted(numbers), "one task for each segment"
        return {each.at: each for each in found}
