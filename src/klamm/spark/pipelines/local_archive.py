"""`archive` without Spark: this process writes the Parquet files of a small topic.

The folder, the journal (journal.py) and the checkpoint are those that Spark's `archive` uses, and the steps of a
micro-batch are Spark's: its plan is written to the checkpoint, its files are written, the journal commits them, and the
checkpoint records that the micro-batch is done. So a run with Spark can continue what a run without has begun, and the
other way round, also in the middle of a micro-batch after a kill.

  ARH1  A plan is on disk before the journal commits the files of its micro-batch. A plan that is in the checkpoint
        already, Spark's or ours, is carried out as it is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from klamm.disk import files
from klamm.errors import NotAStore
from klamm.spark import checkpoint
from klamm.spark.offsets import StreamOffsets
from klamm.spark.options import ReadOptions
from klamm.spark.pipelines.journal import Journal
from klamm.spark.pipelines.parquet_files import COLUMNS, by_day, shared_out, write_days
from klamm.spark.planner import Planner
from klamm.spark.range_reader import Task, forget_store

if TYPE_CHECKING:
    from klamm.spark.pipelines.folder_files import FolderFiles
    from klamm.spark.pipelines.pipeline_directory import PipelineDirectory
    from klamm.spark.pipelines.report import Progress
    from klamm.spark.pipelines.store_location import StoreLocation

__all__ = ["TASK_OFFSETS", "ArchiveHere", "merge_small", "tasks_of"]

TASK_OFFSETS = 100_000
"""The least that a task of Spark's reads, if there is that much: each task writes a file for each day."""


def tasks_of(store: Mapping[str, str], topic: str, location: str, number: int, most: int) -> list[list[Task]]:
    """Return what a planned micro-batch reads, divided among `most` tasks of Spark's or fewer.

    `store`: the options of format("klamm") that name it.
    The checkpoint at `location` has the plan of micro-batch `number`.
    """
    end = _planned(location, number)
    assert end is not None
    before = _planned(location, number - 1) or end
    offsets = sum(end_offset - ((before.origin or before.offsets).get(tp) or 0) for tp, end_offset in end)
    parts = max(1, min(most, offsets // TASK_OFFSETS))
    options = _options(store, topic, parts)
    with closing(Planner(options)) as planner:
        tasks = _tasks(planner, options, _begin(planner, location, number), end)
    return list(shared_out(tasks, parts))


def _options(store: Mapping[str, str], topic: str, min_partitions: int = 1) -> ReadOptions:
    given = {**store, "subscribe": topic, "startingOffsets": "earliest", "minPartitions": str(min_partitions)}
    return ReadOptions.parse({**given, "columns": ",".join(COLUMNS)}, streaming=True)


def _begin(planner: Planner, location: str, number: int) -> StreamOffsets:
    found = planner.initial() if number == 0 else _planned(location, number - 1)
    if found is None:
        raise NotAStore(f"{location}/offsets/{number - 1}: missing", hint="put _klamm/ back as it was")
    return found


def _planned(location: str, number: int) -> StreamOffsets | None:
    """Return where a micro-batch ends; None: it was not planned yet."""
    path = f"{location}/offsets/{number}"
    try:
        lines = files.read(path).decode().splitlines()
    except FileNotFoundError:
        return None
    try:
        return StreamOffsets.from_json(json.loads(lines[checkpoint.PREAMBLE]))
    except (ValueError, IndexError):
        raise NotAStore(f"{path}: damaged: it names no source", hint="put _klamm/ back as it was") from None


def _tasks(planner: Planner, options: ReadOptions, begin: StreamOffsets, end: StreamOffsets) -> list[Task]:
    ranges = planner.between(begin, end)
    return [
        Task(options.path, planner.store_id, each, options.isolation, options.fail_on_data_loss, options.server)
        for each in ranges
    ]


class ArchiveHere:
    """One run of an archive without Spark, with what it has done so far."""

    def __init__(
        self, folder: PipelineDirectory, journal: Journal, store: StoreLocation, topic: str, *, max_offsets: int
    ) -> None:
        self._folder = folder
        self._journal = journal
        self._max_offsets = max_offsets
        self._options = _options(store.options, topic)
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
                begin = _begin(planner, self._folder.checkpoint, number)
                end = _planned(self._folder.checkpoint, number)
                if end is None:
                    end = planner.latest(begin, self._max_offsets, target)
                    if end.is_at(begin):
                        return
                    if number == 0:
                        end = replace(end, origin=begin.offsets)
                    checkpoint.write_plan(self._folder.checkpoint, number, end)
                self._batch(planner, number, begin, end)
                done += sum(end_offset - (begin.get(tp) or 0) for tp, end_offset in end)
                if progress is not None:
                    progress(min(done, total), total)

    def _finish_last(self) -> None:
        """Record that the last micro-batch is done, if a run was killed before it could."""
        last = self._journal.state.batch
        if last >= 0 and checkpoint.committed(self._folder.checkpoint) != last:
            checkpoint.write_commit(self._folder.checkpoint, last)

    def _batch(self, planner: Planner, number: int, begin: StreamOffsets, end: StreamOffsets) -> None:
        """Write the files of a micro-batch to staging, commit them by the journal, and mark the checkpoint as done."""
        output = self._folder.files.output(self._journal.stage(f"batch-{number}"))
        table = self._journal.table
        has_dates = table is not None and table.has_dates
        written = write_days(_tasks(planner, self._options, begin, end), output, has_dates=has_dates)
        self._folder.save_plan(number)
        ends = {tp.partition: end_offset for tp, end_offset in end}
        self.files += len(self._journal.commit(by_day(written), batch=number, ends=ends))
        self.rows += sum(each.rows for each in written)
        self.batches += 1
        checkpoint.write_commit(self._folder.checkpoint, number)

    def tidy(self, many: int, file_bytes: int) -> None:
        """Merge small files of days that have many, about `file_bytes` at a time."""
        table = self._journal.table
        merged = None if table is None else table.optimize(many, file_bytes)
        self.merged += merge_small(self._journal, many, file_bytes) if merged is None else merged


def merge_small(journal: Journal, many: int, file_bytes: int, days: Collection[str] | None = None) -> int:
    """Merge small files of days that have `many`, in this process. Return how many went."""
    merged = 0
    for day, small in journal.small_files(many, file_bytes, days):
        for group in _groups(small, file_bytes):
            journal.merge(day, group, partial(_merge, journal.files, group))
            merged += len(group)
    return merged


def _merge(files: FolderFiles, paths: Sequence[str], staged: str) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    output = files.output(staged)
    rows = pa.concat_tables(
        [pq.ParquetFile(files.content(path)).read() for path in paths], promote_options="permissive"
    )
    with output.folder() as directory:
        path = f"{directory}/part-0.parquet"
        pq.write_table(rows.sort_by([("partition", "ascending"), ("offset", "ascending")]), path)
        return [output.keep(directory, path)]


def _groups(sizes: Mapping[str, int], most: int) -> Iterable[list[str]]:
    """Return files in order, in groups of at least two that are about `most` bytes together."""
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
