"""A small topic -> Parquet files without Spark, in this process: the same folder, and the same journal, as archive.

A micro-batch goes the way that Spark takes: its plan is in the checkpoint before it is read, the journal decides
(journal.py), and the checkpoint says then that it is done. Spark finds in the checkpoint what it would have written
itself, so either continues what the other has begun, at any micro-batch, whichever process was killed.

  ARH1  A plan is on disk before the first file of its micro-batch is decided. A plan that is there already, Spark's or
        ours, is read again and done as it is.
  ARH2  Memory is bounded: of each day one file is open, and batches are written as they are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

from klamm.arrow.schema import pyarrow
from klamm.disk import files
from klamm.errors import InvalidSetting, NotAStore
from klamm.spark import checkpoint
from klamm.spark.offsets import StreamOffsets
from klamm.spark.options import ReadOptions
from klamm.spark.pipelines.journal import Journal, days_of, files_in
from klamm.spark.planner import Planner
from klamm.spark.range_reader import Task, forget_store, read

if TYPE_CHECKING:
    import pyarrow as pa

    from klamm.spark.pipelines.pipeline_directory import PipelineDirectory
    from klamm.spark.pipelines.report import Progress

__all__ = ["ArchiveHere"]

_DAY_US = 86_400_000_000
_COLUMNS = ("key", "value", "headers", "partition", "offset", "timestamp", "timestampType")
_EPOCH = date(1970, 1, 1).toordinal()


def _schema() -> Any:
    """Return the schema that Spark writes."""
    pa = pyarrow()
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    kinds = (
        pa.binary(),
        pa.binary(),
        pa.list_(header),
        pa.int32(),
        pa.int64(),
        pa.timestamp("us", tz="UTC"),
        pa.int32(),
    )
    return pa.schema(list(zip(_COLUMNS, kinds, strict=True)))


def _date(day: int) -> str:
    try:
        return date.fromordinal(_EPOCH + day).isoformat()
    except (ValueError, OverflowError):
        raise InvalidSetting(
            "a record has a timestamp outside of the years 1 to 9999", hint="archive this topic with Spark"
        ) from None


class ArchiveHere:
    """One run."""

    def __init__(self, claim: PipelineDirectory, journal: Journal, store: str, topic: str, *, max_offsets: int) -> None:
        self._claim = claim
        self._journal = journal
        self._max_offsets = max_offsets
        given = {"path": store, "subscribe": topic, "startingOffsets": "earliest", "columns": ",".join(_COLUMNS)}
        self._options = ReadOptions.parse(given, streaming=True)
        self._schema = _schema()
        self.rows = self.letters = self.files = self.merged = self.batches = 0

    def run(self, progress: Progress | None, total: int) -> None:
        """Archive all that is there when it begins."""
        try:
            self._run(progress, total)
        finally:
            forget_store()

    def _run(self, progress: Progress | None, total: int) -> None:
        done = 0
        with closing(Planner(self._options)) as planner:
            target = planner.newest()
            self._finish_last()
            while True:
                number = self._journal.state.batch + 1
                begin = planner.initial() if number == 0 else self._planned(number - 1)
                assert begin is not None
                end = self._planned(number)
                if end is None:
                    end = planner.latest(begin, self._max_offsets, target)
                    if end.is_at(begin):
                        return
                    if number == 0:
                        end = replace(end, origin=begin.offsets)
                    checkpoint.write_plan(self._claim.checkpoint, number, end)
                self._batch(planner, number, begin, end)
                done += sum(upto - (begin.get(tp) or 0) for tp, upto in end)
                if progress is not None:
                    progress(min(done, total), total)

    def _finish_last(self) -> None:
        """Say of the last micro-batch that it is done, if a run was killed before it could."""
        last = self._journal.state.batch
        if last >= 0 and checkpoint.committed(self._claim.checkpoint) != last:
            checkpoint.write_commit(self._claim.checkpoint, last)

    def _planned(self, number: int) -> StreamOffsets | None:
        path = f"{self._claim.checkpoint}/offsets/{number}"
        try:
            lines = files.read(path).decode().splitlines()
        except FileNotFoundError:
            return None
        try:
            return StreamOffsets.from_json(json.loads(lines[checkpoint.PREAMBLE]))
        except (ValueError, IndexError):
            raise NotAStore(f"{path}: damaged: it names no source", hint="put _klamm/ back as it was") from None

    def _batch(self, planner: Planner, number: int, begin: StreamOffsets, end: StreamOffsets) -> None:
        """Write a micro-batch aside, let the journal decide, and say in the checkpoint that it is done."""
        staging = self._journal.stage(f"batch-{number}")
        writers = _Writers(staging, self._schema)
        try:
            for each in planner.between(begin, end):
                task = Task(self._options.path, planner.store_id, each, self._options.isolation, True)
                for batch in read(task, self._schema):
                    writers.write(batch)
        finally:
            writers.close()
        checkpoint.sync_plan(self._claim.checkpoint, number)
        staged = {day: files_in(f"{staging}/{day}") for day in days_of(staging)}
        ends = {tp.partition: upto for tp, upto in end}
        self.files += len(self._journal.commit(staged, batch=number, ends=ends))
        self.rows += writers.rows
        self.batches += 1
        checkpoint.write_commit(self._claim.checkpoint, number)

    def tidy(self, many: int, file_bytes: int) -> None:
        """Merge small files of days that have many, about `file_bytes` at a time."""
        for day, small in self._journal.small_files(many, file_bytes):
            for group in _groups(small, file_bytes):
                self._journal.merge(day, group, partial(_merge, group))
                self.merged += len(group)


def _merge(paths: Iterable[str], directory: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    os.makedirs(directory)
    rows = pa.concat_tables([pq.ParquetFile(path).read() for path in paths], promote_options="default")
    pq.write_table(rows.sort_by([("partition", "ascending"), ("offset", "ascending")]), f"{directory}/part-0.parquet")


def _groups(sizes: Mapping[str, int], most: int) -> Iterable[list[str]]:
    """Files in order, in groups of at least two that are about `most` bytes together."""
    group: list[str] = []
    total = 0
    for path, size in sizes.items():
        if len(group) > 1 and total + size > most:
            yield group
            group, total = [], 0
        group.append(path)
        total += size
    if len(group) > 1:
        yield group


class _Writers:
    """A Parquet file for each day."""

    def __init__(self, directory: str, schema: pa.Schema) -> None:
        self._directory = directory
        self._schema = schema
        self._open: dict[str, Any] = {}
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        times: Any = batch.column("timestamp").cast(pa.int64())
        days = np.floor_divide(times.to_numpy(zero_copy_only=False), _DAY_US)
        for day in np.unique(days):
            name = f"date={_date(int(day))}"
            writer = self._open.get(name)
            if writer is None:
                os.makedirs(f"{self._directory}/{name}", exist_ok=True)
                writer = pq.ParquetWriter(f"{self._directory}/{name}/part-0.parquet", self._schema)
                self._open[name] = writer
            writer.write_batch(batch.filter(pa.array(days == day)))
        self.rows += batch.num_rows

    def close(self) -> None:
        for writer in self._open.values():
            writer.close()
