"""The streaming reader of format("klamm"): where it starts, how far each micro-batch goes, and what it has behind it.

Spark keeps one process for this on the driver, as long as the query runs, and calls in this order:

    initialOffset                once, if the checkpoint is new
    latestOffset(start, limit)   at every trigger; `start` is the end of the last micro-batch, which is done by then
    partitions(start, end)       if the end differs from the start, or a micro-batch is to be done again after a crash
    commit(end)                  when the next micro-batch has been planned

Spark writes the end of a micro-batch into its checkpoint before it runs, so it is on disk here before it is returned
(planner.py, PLN1).

PySpark 4.1 calls latestOffset() without start and limit, and initialOffset whenever a query starts. Within a run, the
start is the end that was returned last. The first end of a run is planned without a start, and says where a new query
begins, which counts if that micro-batch turns out to be the first; what is gone is found then, too. Options that limit
a micro-batch are refused there.

A group named by `groupId` is moved in commit, and at each trigger to `start`: so it stands at the end of the last
micro-batch as soon as there is none to come. It is for others to see; the query itself goes by its checkpoint.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import __version__ as spark_version
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from klamm.client.consume.stalled_transactions import StalledTransactions
from klamm.errors import InvalidSetting, KlammError
from klamm.spark.internals import arrow_schema, exit_after_hang_up
from klamm.spark.offsets import StreamOffsets, TopicIdPartition
from klamm.spark.planner import Planner
from klamm.spark.range_reader import read
from klamm.spark.server.progress import ServerProgress
from klamm.spark.source import RangePartition, check_schema, plain_errors, tasks_for
from klamm.store.groups import OffsetRow, put_offset

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from klamm.log.partition import Partition
    from klamm.spark.options import ReadOptions
    from klamm.store.directory import Core

__all__ = ["HAS_READ_LIMITS", "FailedStreamReader", "StreamReader"]

HAS_READ_LIMITS = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether Spark says where a micro-batch starts, and how many offsets it may have: since PySpark 4.2."""
_log = logging.getLogger("klamm.spark")

if TYPE_CHECKING or HAS_READ_LIMITS:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
else:

    class SupportsTriggerAvailableNow:
        """In the place of the one that PySpark 4.1 does not have; so are the next ones."""

    ReadLimit = ReadAllAvailable = ReadMaxRows = SupportsTriggerAvailableNow


class _Watched(NamedTuple):
    partition: Partition


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One in the driver's process, which plans; a copy in each task, which reads."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(schema, options)
        if not HAS_READ_LIMITS and (options.max_offsets or options.min_offsets):
            raise InvalidSetting(
                f"maxOffsetsPerTrigger and minOffsetsPerTrigger need PySpark 4.2, and this is {spark_version}",
                hint="leave them out, or upgrade PySpark",
            )
        self._options = options
        self._schema = schema
        self._planner: Planner | None = None
        self._stalled: StalledTransactions | None = None
        self._progress: _Progress | ServerProgress | None = None
        self._target: dict[TopicIdPartition, int] | None = None
        self._planned: StreamOffsets | None = None
        self._initial: StreamOffsets | None = None
        self._triggered_s: float | None = None  # when a micro-batch was last planned; of a clock that only grows

    def _opened(self) -> Planner:
        if self._planner is None:
            planner = Planner(self._options)
            if self._options.group is not None:
                if planner.server is not None:
                    self._progress = ServerProgress(planner.server.client, self._options.group)
                else:
                    self._progress = _Progress(planner.core, self._options.group)
            if planner.server is None:  # a server sees to its own
                self._stalled = StalledTransactions(planner.core)
            self._planner = planner
        return self._planner

    # ---- on the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's names, here and below
        with plain_errors():
            self._initial = self._opened().initial()
            return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with plain_errors():
            self._target = self._opened().newest()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        with plain_errors():
            planner = self._opened()
            begin = self._planned if start is None else StreamOffsets.from_json(start)
            if begin is None:
                origin = None if self._initial is None else self._initial.offsets
                self._planned = replace(planner.latest(None), origin=origin)
                return self._planned.to_json()
            end = planner.latest(begin, limit.max_rows if isinstance(limit, ReadMaxRows) else None, self._target)
            self._record(begin)
            if self._waits_for_more(begin, end):
                end = begin
            elif begin == self._initial:
                end = replace(end, origin=begin.offsets)
            elif end.is_at(begin):
                end = begin  # to the letter: Spark takes other text for new records
            if end.offsets == begin.offsets and self._stalled is not None:
                self._stalled.look(
                    _Watched(each)  # type: ignore[misc]  # it looks at nothing else of a cursor
                    for each in planner.tps(strict=False).values()
                )
            if end != begin:
                self._triggered_s = time.monotonic()
            self._planned = end
            return end.to_json()

    def _waits_for_more(self, begin: StreamOffsets, end: StreamOffsets) -> bool:
        """Return whether a micro-batch has too few offsets yet (minOffsetsPerTrigger). The first of a run never has."""
        least, last_s = self._options.min_offsets, self._triggered_s
        if least is None or last_s is None or self._target is not None:
            return False
        count = sum(end_offset - (begin.get(tp) or 0) for tp, end_offset in end)
        return count < least and time.monotonic() - last_s < self._options.trigger_delay_s

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return, for the query's progress, how far the log goes and how many offsets the query is behind that.

        Spark lets a source in Python fill in nothing else of its progress: `metrics` of the source stays empty.
        """
        with plain_errors():
            planner = self._opened()
            newest = planner.newest()
            planned = self._planned
            behind = [max(0, end - ((planned and planned.get(tp)) or 0)) for tp, end in newest.items()]
            return StreamOffsets(planner.store_id, newest).to_json(**_lag(behind))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with plain_errors():
            planner = self._opened()
            begin, end_offset = StreamOffsets.from_json(start), StreamOffsets.from_json(end)
            if not HAS_READ_LIMITS:
                planner.check_start(begin)
                if begin != self._initial:
                    end_offset = replace(end_offset, origin=None)
            ranges = planner.between(begin, end_offset)
            return tasks_for(self._options, planner.store_id, ranges)

    def commit(self, end: dict[str, Any]) -> None:
        with plain_errors():
            self._opened()
            self._record(StreamOffsets.from_json(end))

    def _record(self, offsets: StreamOffsets) -> None:
        if self._progress is not None:
            self._progress.note(offsets)

    def stop(self) -> None:
        if self._planner is not None:
            planner, self._planner = self._planner, None
            planner.close()
        exit_after_hang_up()

    # ---- in tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            if isinstance(partition, RangePartition):
                yield from read(partition.task, arrow_schema(self._schema))


class FailedStreamReader(DataSourceStreamReader):
    """Stands in for a reader that cannot be made. It raises the reason when it is asked for an offset.

    An error that is raised when the reader is made would be lost: Spark's process then tries to stop a reader that it
    does not have, and reports that error instead.
    """

    def __init__(self, error: KlammError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with plain_errors():
            raise self._error

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        with plain_errors():
            raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with plain_errors():
            raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error  # no task is ever planned


def _lag(behind: list[int]) -> dict[str, float]:
    """Return how many offsets a query is behind: in all, and by partition as Spark's Kafka source names it."""
    return {
        "behind": sum(behind),
        "minOffsetsBehindLatest": min(behind, default=0),
        "maxOffsetsBehindLatest": max(behind, default=0),
        "avgOffsetsBehindLatest": sum(behind) / max(1, len(behind)),
    }


class _Progress:
    """The group that stands where a query does."""

    def __init__(self, core: Core, group: str) -> None:
        """Prepare. Raise GroupBusy if the group has members: two would move it, each to its own position."""
        self._core = core
        self._group = group
        self._recorded: StreamOffsets | None = None
        core.catalog.database.check_writable()
        self._put([])

    def note(self, offsets: StreamOffsets) -> None:
        """Move the group there. What cannot be stored now is stored with the next micro-batch; the query goes on."""
        if offsets == self._recorded:
            return
        try:
            self._put([OffsetRow(tp.topic_id, tp.partition, offset, offsets.epoch(tp)) for tp, offset in offsets])
        except KlammError as error:
            _log.warning("groupId: group %r does not follow the query: %s", self._group, error)
        else:
            self._recorded = offsets

    def _put(self, rows: list[OffsetRow]) -> None:
        database = self._core.catalog.database
        now_ms = time.time_ns() // 1_000_000
        with database.db_lock(), database.transaction(durable=False) as execute:
            group = self._core.groups.claim(execute, self._group)
            self._core.groups.check_not_embedded(group)
            for row in rows:
                put_offset(execute, group.number, row, now_ms)
