"""An archive -> a topic, as it was: the same records at the same offsets, with the same timestamps.

Each partition is filled by one task, in the order of its offsets, and offsets that the archive has no record of are
left out (arrow/restore_writer.py): what compaction, retention or transactions had taken, and what did not fit the
archive's schema. A partition's next offset says how far it has come, and a batch goes to its own offset or nowhere. So
restore can be killed, and run again: no record is there twice, or in another's place.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.arrow.restore_writer import RestoreWriter
from klamm.batch import decode
from klamm.errors import InvalidSetting, NotAStore, StoreBusy, UnknownTopic, Unsupported
from klamm.spark.functions import F
from klamm.spark.pipelines.archive_rows import rows_of
from klamm.spark.pipelines.folder_files import OURS, files_of
from klamm.spark.pipelines.journal import Journal, State
from klamm.spark.pipelines.pipeline_directory import PipelineDirectory, local
from klamm.spark.pipelines.query_runner import plain_errors
from klamm.spark.pipelines.report import Report
from klamm.spark.pipelines.store_location import is_address
from klamm.store.directory import opened
from klamm.types import TopicId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from klamm.log.partition import Partition
    from klamm.spark.pipelines.report import Progress
    from klamm.store.directory import Core, OpenTopic

__all__ = ["restore"]

_POLL_S = 0.2
_COLUMNS = ("partition", "offset", "key", "value", "headers", "timestamp")
# Records of an archive may be older than the retention they had; and their times stay what they were.
_LEFT_OUT = frozenset({"retention.ms", "retention.bytes", "message.timestamp.type", "message.timestamp.before.max.ms"})
_ANY_TIME = {"message.timestamp.after.max.ms": (1 << 63) - 1}  # they were accepted once


class _Archived(NamedTuple):
    """The description of a topic in its archive."""

    path: str
    partitions: int
    settings: dict[str, str]
    starts: list[int]
    ends: list[int]


def restore(
    spark: SparkSession,
    source: str | os.PathLike[str],
    store: str | os.PathLike[str],
    topic: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Bring the records of an archive, the folder `source`, back into `topic`.

    `source` may be an address such as s3://bucket/lake/orders; `storage_options` as `archive` has them.

    Partition, offset, key, value, headers and timestamp of each are what they were; so are gaps between offsets, where
    the log starts and where it goes on. Times count as CreateTime, and batches are not compressed.

    The store is made if there is none, and the topic if it is not there: with the archived topic's partitions and
    settings, but records are kept forever (retention.ms and retention.bytes are -1) and may have any timestamp
    (message.timestamp.after.max.ms): set what you want when it is done. A topic that is there has to have as many
    partitions, and no other records than the archive's.

    It is all on disk when it returns. The next run continues one that was killed.
    """
    begin = time.monotonic()
    if is_address(os.fspath(store)):
        raise Unsupported(
            "restore: the offsets of records can only be chosen in a directory, not through a server",
            hint="run it where the store is, and name its directory",
        )
    folder = _archive_of(source, storage_options)
    with folder.alone(recorded=False):
        journal = Journal(folder)
        journal.recover()
        paths = journal.paths()
        if State.read(folder.files) != journal.state:  # in an object store no lock keeps other runs out
            raise StoreBusy(
                f"{folder.directory}: a run of archive is at work", hint="run restore again when it has ended"
            )
        known = _archived(folder, journal.state)
        with opened(local(store), create=True) as core:
            target = _topic_for(core, topic, known)
            rows = rows_of(spark, folder.files, paths).select(*_COLUMNS) if paths else None
            _check_earlier_run(target, known, rows)
            seen, written = _fill(spark, core, target, known, rows, progress)
            for log in target.partitions():
                _finish(log, known)
    return Report("restore", folder.directory, topic, seen, written, time.monotonic() - begin)


def _archive_of(source: str | os.PathLike[str], storage_options: Mapping[str, str] | None) -> PipelineDirectory:
    files = files_of(source, storage_options)
    path, known = files.root, PipelineDirectory.read(files)
    if known is None or known["identity"].get("pipeline") != "archive":
        whose = "unclaimed" if known is None else f"of the pipeline {known['identity'].get('pipeline')}"
        raise InvalidSetting(f"{path}: not an archive: it is {whose}", hint="give a folder that archive has written")
    return PipelineDirectory(files, known["options"])


def _archived(folder: PipelineDirectory, state: State) -> _Archived:
    path = folder.inside("topic.json")
    try:
        description = json.loads(folder.files.read(f"{OURS}/topic.json"))
        count, starts = int(description["partitions"]), [int(each) for each in description["starts"]]
        settings = {name: value for name, value in description["settings"].items() if name not in _LEFT_OUT}
    except FileNotFoundError:
        raise InvalidSetting(f"{folder.directory}: nothing was archived there yet", hint="run archive first") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotAStore(f"{path}: cannot be read: {error}", hint="it may have been edited by hand") from None
    ends = [max(state.ends.get(number, 0), start) for number, start in enumerate(starts)]
    return _Archived(folder.directory, count, settings, starts, ends)


def _topic_for(core: Core, topic: str, known: _Archived) -> OpenTopic:
    try:
        opened = core.topic(topic)
    except UnknownTopic:
        unlimited = {"retention.ms": -1, "retention.bytes": -1, **_ANY_TIME}
        core.create_topic(topic, known.partitions, {**known.settings, **unlimited})
        return core.topic(topic)
    if opened.count != known.partitions:
        raise InvalidSetting(
            f"{topic}: has {opened.count} partitions, and the archive is of {known.partitions}",
            hint="restore to a new topic",
        )
    if opened.partition(0).stamps:
        raise InvalidSetting(
            f"{topic}: its message.timestamp.type is LogAppendTime, which would overwrite the records' times",
            hint="set it to CreateTime, or restore to a new topic",
        )
    return opened


def _check_earlier_run(opened: OpenTopic, known: _Archived, rows: DataFrame | None) -> None:
    """Raise unless what the topic has came from an earlier run: its last record is the archive's at that offset."""
    begun = {log.number: end for log in opened.partitions() if (end := log.ends().end)}
    if not begun:
        return
    last: dict[int, Any] = {}
    if rows is not None:
        before = " OR ".join(f"(partition = {number} AND offset < {end})" for number, end in begun.items())
        whole = F.struct("offset", "key", "value", F.unix_millis("timestamp").alias("timestamp"))
        found = rows.where(before).groupBy("partition").agg(F.max_by(whole, "offset").alias("last"))
        last = {each["partition"]: each["last"] for each in found.collect()}
    for number, end in begun.items():
        log = opened.partition(number)
        want = last.get(number)
        mine = [] if want is None else [(want["offset"], want["timestamp"], *map(_bytes, (want["key"], want["value"])))]
        if end > known.ends[number] or _records_from(log, mine[0][0] if mine else 0) != mine:
            raise InvalidSetting(
                f"{opened.name}/{number}: has other records than the archive {known.path}",
                hint="restore to a new topic, or one that is empty",
            )


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _records_from(log: Partition, offset: int) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Return the first two at most."""
    found: list[tuple[int, int, bytes | None, bytes | None]] = []
    with log.reader(max(offset, log.ends().start), committed=False) as reader:
        while len(found) < 2 and (data := reader.read()):
            found += [(each.offset, each.timestamp, each.key, each.value) for each in decode(data, from_offset=offset)]
    return found[:2]


# ---- the job


def _fill(
    spark: SparkSession,
    core: Core,
    opened: OpenTopic,
    known: _Archived,
    rows: DataFrame | None,
    progress: Progress | None,
) -> tuple[int, int]:
    """Return how many rows tasks have seen, and appended."""
    if rows is None:
        return 0, 0
    nexts = [log.ends().end for log in opened.partitions()]
    if any(nexts):
        rows = rows.where(f"offset >= element_at(array({', '.join(f'{each}L' for each in nexts)}), partition + 1)")
    sorted_rows = rows.repartitionById(known.partitions, "partition").sortWithinPartitions("partition", "offset")
    task = partial(
        _restore_partition, core.path, core.catalog.store_id, opened.name, opened.topic.id, tuple(known.starts)
    )
    job = sorted_rows.mapInArrow(task, "partition INT, seen BIGINT, appended BIGINT")

    def offsets() -> int:
        return sum(max(0, log.ends().end - start) for log, start in zip(opened.partitions(), known.starts, strict=True))

    total = sum(known.ends) - sum(known.starts)
    found = _watched(spark, job.collect, lambda: progress(min(offsets(), total), total) if progress else None)
    if progress is not None:
        progress(total, total)
    return sum(each["seen"] for each in found), sum(each["appended"] for each in found)


def _watched(spark: SparkSession, job: Callable[[], list[Any]], look: Callable[[], object]) -> list[Any]:
    """Run a job in another thread, and look now and then."""
    from pyspark import inheritable_thread_target

    tag = f"klamm-{uuid.uuid4().hex}"
    spark.addTag(tag)
    with plain_errors(), ThreadPoolExecutor(1) as pool:
        try:
            running = pool.submit(inheritable_thread_target(spark)(job))
            while True:
                try:
                    found: list[Any] = running.result(_POLL_S)
                    return found
                except NotYet:
                    look()
        except BaseException:
            spark.interruptTag(tag)
            raise
        finally:
            spark.removeTag(tag)


def _restore_partition(
    path: str, store_id: str, topic: str, topic_id: TopicId, starts: tuple[int, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Append rows, which are sorted by partition and offset, in a task."""
    import pyarrow as pa

    from klamm.spark.source import plain_errors

    with plain_errors(), opened(path) as core:
        target = core.topic(topic)
        if core.catalog.store_id != store_id or target.topic.id != topic_id:
            raise NotAStore(
                f"{path}: is another store, or {topic} another topic, than the one that was planned for",
                hint="every worker has to see the same files at that path",
            )
        done: list[tuple[int, int, int]] = []
        restore_writer: RestoreWriter | None = None
        for batch in batches:
            for number, rows in _by_partition(batch):
                if restore_writer is None or done[-1][0] != number:
                    _end(restore_writer, target, done)
                    done.append((number, 0, 0))
                    restore_writer = RestoreWriter(target.partition(number))
                    restore_writer.skip_to(starts[number])
                done[-1] = (number, done[-1][1] + rows.num_rows, 0)
                restore_writer.take(rows)
        _end(restore_writer, target, done)
    if done:
        numbers, seen, appended = zip(*done, strict=True)
        yield pa.record_batch(
            [pa.array(numbers, pa.int32()), pa.array(seen, pa.int64()), pa.array(appended, pa.int64())],
            names=["partition", "seen", "appended"],
        )


def _end(restore_writer: RestoreWriter | None, opened: OpenTopic, done: list[tuple[int, int, int]]) -> None:
    if restore_writer is not None:
        restore_writer.give()
        number, seen, _ = done[-1]
        opened.partition(number).sync(restore_writer.next_offset)
        done[-1] = (number, seen, restore_writer.rows)


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield runs of rows of one partition."""
    import pyarrow.compute as pc

    start = 0
    runs: Any = pc.value_counts(batch.column("partition"))
    for run in runs.to_pylist():
        yield run["values"], batch.slice(start, run["counts"])
        start += run["counts"]


def _finish(log: Partition, known: _Archived) -> None:
    """Append offsets without records at the end, and set the log start."""
    restore_writer = RestoreWriter(log)
    restore_writer.skip_to(known.ends[log.number])
    log.sync(restore_writer.next_offset)
    if known.starts[log.number]:
        log.cleanup.delete_before(known.starts[log.number])
