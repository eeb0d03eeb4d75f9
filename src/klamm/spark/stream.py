"""How a streaming query reads: where it starts, how far each micro-batch goes, and what it has behind it.

Spark keeps one process for this on the driver, as long as the query runs, and calls in this order:

    initialOffset                once, if the checkpoint is new
    latestOffset(start, limit)   at every trigger; `start` is the end of the last micro-batch, which is done by then
    partitions(start, end)       if the end differs from the start, or a micro-batch is to be done again after a crash
    commit(end)                  when the next micro-batch has been planned

Spark writes the end of a micro-batch into its checkpoint before it runs, so it is on disk here before it is told
(planning.py, P1).

A group named by `groupId` is moved in commit, and at each trigger to `start`: so it stands at the end of the last
micro-batch as soon as there is none to come. It is for others to see; the query itself goes by its checkpoint.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from klamm.client.consume.stuck import Stuck
from klamm.errors import KlammError
from klamm.spark.offsets import StreamOffsets, TopicIdPartition
from klamm.spark.planning import Planner
from klamm.spark.reading import read
from klamm.spark.source import RangePartition, arrow_schema, check_schema, clearly, is_sparks, tasks_for
from klamm.store.groups import OffsetRow, put_offset

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from klamm.log.partition import Partition
    from klamm.spark.options import ReadOptions
    from klamm.store.directory import Core

__all__ = ["Refused", "StreamReader"]

_log = logging.getLogger("klamm.spark")


class _Watched(NamedTuple):
    partition: Partition


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One in the driver's process, which plans; a copy in each task, which reads."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(schema, options)
        self._options = options
        self._schema = schema
        self._planner: Planner | None = None
        self._stuck: Stuck | None = None
        self._progress: _Progress | None = None
        self._target: dict[TopicIdPartition, int] | None = None
        self._planned: StreamOffsets | None = None
        self._initial: StreamOffsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None, "_stuck": None, "_progress": None}

    def _opened(self) -> Planner:
        if self._planner is None:
            planner = Planner(self._options)
            if self._options.group is not None:
                self._progress = _Progress(planner.core, self._options.group)
            self._stuck = Stuck(planner.core)
            self._planner = planner
        return self._planner

    # ---- on the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's names, here and below
        with clearly():
            self._initial = self._opened().initial()
            return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with clearly():
            self._target = self._opened().newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with clearly():
            planner = self._opened()
            begin = StreamOffsets.from_json(start)
            end = planner.latest(begin, limit.max_rows if isinstance(limit, ReadMaxRows) else None, self._target)
            self._note(begin)
            if begin == self._initial:
                end = replace(end, origin=begin.offsets)
            elif end.is_at(begin):
                end = begin  # to the letter: Spark takes other text for new records
            if end.offsets == begin.offsets and self._stuck is not None:
                self._stuck.look(
                    _Watched(each)  # type: ignore[misc]  # it looks at nothing else of a cursor
                    for each in planner.places(strict=False).values()
                )
            self._planned = end
            return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For the query's progress: how far the log goes, and how many offsets the query is behind that."""
        with clearly():
            planner = self._opened()
            newest = planner.newest()
            planned = self._planned
            behind = sum(max(0, end - ((planned and planned.get(place)) or 0)) for place, end in newest.items())
            return StreamOffsets(planner.store_id, newest).to_json(behind=behind)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with clearly():
            planner = self._opened()
            ranges = planner.between(StreamOffsets.from_json(start), StreamOffsets.from_json(end))
            return tasks_for(self._options, planner.store_id, ranges)

    def commit(self, end: dict[str, Any]) -> None:
        with clearly():
            self._opened()
            self._note(StreamOffsets.from_json(end))

    def _note(self, offsets: StreamOffsets) -> None:
        if self._progress is not None:
            self._progress.note(offsets)

    def stop(self) -> None:
        if self._planner is not None:
            planner, self._planner = self._planner, None
            planner.close()
        if is_sparks() and isinstance(sys.exc_info()[1], EOFError):
            os._exit(0)  # Spark ends a query by hanging up; a report of that would find nobody, and be told on stderr

    # ---- in tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with clearly():
            if isinstance(partition, RangePartition):
                yield from read(partition.task, arrow_schema(self._schema))


class Refused(DataSourceStreamReader):
    """In the place of a reader that cannot be made. It says why when it is asked where to start, or to end.

    Said when it is made, it would be lost: Spark's process then wants to stop a reader that it has not got, and tells
    of that.
    """

    def __init__(self, error: KlammError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with clearly():
            raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with clearly():
            raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with clearly():
            raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error  # no task is ever planned


class _Progress:
    """The group that stands where a query does."""

    def __init__(self, core: Core, group: str) -> None:
        """GroupBusy if the group has members: two would move it, each to where it is itself."""
        self._core = core
        self._group = group
        self._noted: StreamOffsets | None = None
        core.catalog.database.refuse_read_only()
        self._put([])

    def note(self, offsets: StreamOffsets) -> None:
        """Let the group stand there. What cannot be noted now is with the next micro-batch; the query goes on."""
        if offsets == self._noted:
            return
        try:
            self._put([self._row(place, offset) for place, offset in offsets])
        except KlammError as error:
            _log.warning("groupId: group %r does not follow the query: %s", self._group, error)
        else:
            self._noted = offsets

    def _row(self, place: TopicIdPartition, offset: int) -> OffsetRow:
        epoch = -1
        try:
            opened = self._core.topic(place.topic)
            if offset and opened.topic.id == place.topic_id:
                epoch = opened.partition(place.partition).epoch_at(offset - 1)
        except KlammError:
            pass  # deleted just now: the row is not stored either
        return OffsetRow(place.topic_id, place.partition, offset, epoch)

    def _put(self, rows: list[OffsetRow]) -> None:
        database = self._core.catalog.database
        now_ms = time.time_ns() // 1_000_000
        with database.gate(), database.transaction(durable=False) as execute:
            group = self._core.groups.claim(execute, self._group)
            self._core.groups.refuse_embedded(group)
            for row in rows:
                put_offset(execute, group.number, row, now_ms)
