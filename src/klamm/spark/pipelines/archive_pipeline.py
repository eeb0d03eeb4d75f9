"""A topic -> Parquet files in a folder, by date: each record once, whichever process is killed.

    date=2025-01-31/<sequence>-<k>.parquet      rows of that day, by the record's timestamp, UTC
    _klamm/pipeline.json, _klamm/checkpoint/    whose it is, and how far the query is (claim.py)
    _klamm/journal.json, _klamm/staging/        files that come or go together (journal.py)
    _klamm/topic.json                           of the topic: what restore has to know
    _klamm/schema.json                          the schema, where it was inferred

    key, value, headers, partition, offset, timestamp, timestampType     as the source has them
    data                                                                 with a schema: the value's fields
    date                                                                 from the folder's name

A micro-batch is written into staging, its dead letters are sent, and then the journal takes all of its files in at
once and says that it is done. Killed before that, it is written again: Spark reads the same offsets again, and the dead
letters bear a mark that lets them be sent once (txnAppId, txnVersion). Killed after that, the next run does the rest.
Files that are too small are merged in the same way: one comes, and those that it is made of go.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import klamm.spark
from klamm.client.work.dead_letters import box
from klamm.disk import files
from klamm.errors import InvalidSetting, NotAStore
from klamm.spark.checkpoint import check_id, ends_of, sync_plan
from klamm.spark.pipelines.journal import Journal, days_of, files_in, rows_in
from klamm.spark.pipelines.json_schema import JsonSchema, infer, parse_schema
from klamm.spark.pipelines.local_archive import ArchiveHere
from klamm.spark.pipelines.pipeline_directory import PipelineDirectory, local
from klamm.spark.pipelines.query_runner import Source, behind, check_number, drain, duration, refuse_connect, source
from klamm.spark.pipelines.report import Report
from klamm.store import names
from klamm.store.directory import opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from klamm.spark.pipelines.report import Progress

__all__ = ["COLUMNS", "archive"]

COLUMNS = ("key", "value", "headers", "partition", "offset", "timestamp", "timestampType")
_DATE = "date_from_unix_date(CAST(floor(unix_millis(timestamp) / 86400000) AS INT))"
_TASK_OFFSETS = 100_000  # fewer are not worth a task, and a file, of their own
_MANY = 8  # small files of a day that are worth a merge when a run ends
_TOO_MANY = 64  # while it goes on
_OTHER_CHECKPOINT = "put _klamm/ back as it was, checkpoint and journal together, or archive to a new folder"
_SETTINGS = {
    "spark.sql.maxConcurrentOutputFileWriters": "64",  # days of a task that are written without sorting it first
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


_log = logging.getLogger("klamm.spark")


def archive(
    spark: SparkSession | None,
    store: str | os.PathLike[str],
    topic: str,
    to: str | os.PathLike[str],
    *,
    schema: str | StructType | None = None,
    dead_letters: str | None = None,
    max_offsets: int = 5_000_000,
    file_bytes: int = 128 << 20,
    every: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write what is new in `topic` to Parquet files in the folder `to`, partitioned by date.

    Each committed record is there once, by (partition, offset), whatever happens to the runs: run it again. What
    spark.read.parquet(to), or any other reader of Parquet, sees between two runs is exactly what was archived. Files
    come by renames, a micro-batch in a moment: who lists the folder in that moment may see some of its files and not
    others, and while small files are merged, for milliseconds, rows twice, or miss a file that it has listed.

    `spark` None: without Spark, in this process, which suits a small topic (`small`) and values without a schema. Runs
    with and without Spark may follow each other.

    `schema`, DDL or a StructType, is what values are as JSON; the column `data` has their fields. "infer": it is
    inferred from the records that are there at the first run, in one more pass, and then fixed. Records that do not fit
    (json_schema.py) are not archived but sent to the topic `dead_letters`, by default `<topic>.dlq`, made if it is not
    there; store.dead_letters() shows and redrives them. Neither can change between two runs; leave them out, and they
    are what they were.

    `max_offsets`: of a micro-batch, at most. `file_bytes`: about how large files are made that are merged when a run
    ends. `every`, such as "10 seconds": do not end, but look for new records so often, until Ctrl-C.
    """
    _check(spark, topic, schema, dead_letters, max_offsets, file_bytes)
    every = None if every is None else duration(every, "every")
    if spark is None:
        _refuse_without_spark(to, schema, every)
    read = source(store, topic)
    claim = _claimed(read, topic, to, schema, dead_letters)
    with claim.alone():
        journal = Journal(claim)
        _refuse_other_checkpoint(claim, journal)
        journal.recover()
        identity = _note_topic(claim, read, topic)
        total = behind(claim.checkpoint, read)
        if spark is None:
            begin = time.monotonic()
            here = ArchiveHere(claim, journal, read.path, topic, max_offsets=max_offsets)
            here.run(progress, total)
            here.tidy(_MANY, file_bytes)
            seconds = time.monotonic() - begin
            return _report(topic, claim, here, read=here.rows, batches=here.batches, seconds=seconds, engine="local")
        fitting = _fitting(spark, claim, read, topic)
        work = _Work(claim, journal, read.path, topic, fitting, identity, file_bytes)
        if claim.options["schema"] is not None and fitting is None:
            if every is not None:
                raise InvalidSetting(f"schema: {topic} has no records yet to infer it from", hint="give a schema")
            return Report("archive", topic, claim.directory, 0, 0, 0.0)
        rows = klamm.spark.read_stream(
            spark,
            read.path,
            subscribe=topic,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=max_offsets,
            minPartitions=max(1, min(spark.sparkContext.defaultParallelism, total // _TASK_OFFSETS)),
            columns=",".join(COLUMNS),
        )
        writer = rows.writeStream.option("checkpointLocation", claim.checkpoint).foreachBatch(work.batch)
        done = drain(writer, every=every, progress=progress, total=total)
        work.tidy(_MANY)
    return _report(topic, claim, work, read=done.rows, batches=done.batches, seconds=done.seconds, engine="spark")


def _report(
    topic: str,
    claim: PipelineDirectory,
    work: _Work | ArchiveHere,
    *,
    read: int,
    batches: int,
    seconds: float,
    engine: str,
) -> Report:
    return Report(
        "archive",
        topic,
        claim.directory,
        rows_read=read,
        rows_written=work.rows,
        seconds=seconds,
        batches=batches,
        dead_letters=work.letters,
        details={"files": work.files, "files_merged": work.merged, "engine": engine},
    )


def _refuse_without_spark(to: str | os.PathLike[str], schema: Any, every: str | None) -> None:
    known = PipelineDirectory.read(local(to))
    if schema is not None or (known is not None and known["options"].get("schema") is not None):
        raise InvalidSetting(f"{local(to)}: an archive with a schema needs Spark", hint="give a session")
    if every is not None:
        raise InvalidSetting("every: needs Spark", hint="give a session, or run archive without Spark now and then")


def _check(
    spark: SparkSession | None, topic: str, schema: Any, dead_letters: str | None, max_offsets: int, file_bytes: int
) -> None:
    if spark is not None:
        refuse_connect(spark, "archive")
    check_number("max_offsets", max_offsets)
    check_number("file_bytes", file_bytes)
    if dead_letters is not None:
        names.validate(dead_letters)
        if dead_letters == topic:
            raise InvalidSetting(f"dead_letters: {topic} is the topic itself", hint="name another")


def _claimed(
    read: Source, topic: str, to: str | os.PathLike[str], schema: Any, dead_letters: str | None
) -> PipelineDirectory:
    known = PipelineDirectory.read(local(to))
    text = schema if schema is None or schema == "infer" else parse_schema(schema).toDDL()
    has_schema = text is not None or (known is not None and known["options"].get("schema") is not None)
    if dead_letters is not None and not has_schema:
        raise InvalidSetting(
            "dead_letters: without a schema every record fits", hint="give a schema, or leave dead_letters out"
        )
    if known is None and has_schema:
        dead_letters = dead_letters or f"{topic}.dlq"
    return read.claim("archive", to, {"schema": text, "dead_letters": dead_letters})


def _refuse_other_checkpoint(claim: PipelineDirectory, journal: Journal) -> None:
    """Refuse a checkpoint that was removed, or is older or newer than the journal: records would be lost or doubled."""
    check_id(claim.checkpoint)
    done = journal.state.batch
    path = f"{claim.checkpoint}/offsets/{done}"
    if done < 0:
        return
    try:
        ends = {tp.partition: end for tp, end in ends_of(claim.checkpoint, done)}
    except FileNotFoundError:
        raise NotAStore(f"{path}: missing: micro-batch {done} is archived", hint=_OTHER_CHECKPOINT) from None
    except ValueError:
        raise NotAStore(f"{path}: damaged: micro-batch {done} is archived", hint=_OTHER_CHECKPOINT) from None
    archived = {number: end for number, end in journal.state.ends.items() if number in ends}
    if ends != archived or not ends:
        raise NotAStore(
            f"{path}: micro-batch {done} ends at {ends}, but the one that is archived at {archived}",
            hint=_OTHER_CHECKPOINT,
        )


def _note_topic(claim: PipelineDirectory, read: Source, topic: str) -> str:
    """Keep what restore has to know; the archive's own id."""
    path = claim.inside("topic.json")
    try:
        known: Mapping[str, Any] = json.loads(files.read(path))
    except FileNotFoundError:
        known = {"id": uuid.uuid4().hex, "starts": []}
    with opened(read.path) as core:
        found = core.topic(topic)
        starts = list(known["starts"])
        starts += [each.ends().start for each in found.partitions()[len(starts) :]]
        told = {
            "id": known["id"],
            "name": topic,
            "partitions": found.count,
            "settings": found.topic.settings.to_dict(),
            "starts": starts,
        }
    files.replace(path, json.dumps(told, indent=2).encode() + b"\n")
    return str(known["id"])


def _fitting(spark: SparkSession, claim: PipelineDirectory, read: Source, topic: str) -> JsonSchema | None:
    """None: there is no schema, or nothing yet to infer it from."""
    from pyspark.sql.types import StructType

    wanted = claim.options["schema"]
    if wanted is None:
        return None
    if wanted != "infer":
        return JsonSchema(topic, parse_schema(wanted))
    path = claim.inside("schema.json")
    try:
        return JsonSchema(topic, StructType.fromJson(json.loads(files.read(path))))
    except FileNotFoundError:
        pass
    rows = klamm.spark.read(spark, read.path, subscribe=topic, columns="value")
    values = rows.where("value IS NOT NULL").selectExpr("CAST(value AS STRING) AS value")
    found = infer(spark, values)
    if found is None:
        if values.isEmpty():
            return None
        raise InvalidSetting(
            f"schema: nothing can be inferred: no value of {topic} is a JSON object with fields",
            hint="give a schema, or none, and a new folder",
        )
    found = parse_schema(found)
    files.replace(path, found.json().encode())
    return JsonSchema(topic, found)


class _Work:
    """What a run does, micro-batch after micro-batch, on the driver."""

    def __init__(
        self,
        claim: PipelineDirectory,
        journal: Journal,
        store: str,
        topic: str,
        fitting: JsonSchema | None,
        identity: str,
        file_bytes: int,
    ) -> None:
        self._claim = claim
        self._journal = journal
        self._store = store
        self._topic = topic
        self._fitting = fitting
        self._identity = identity
        self._file_bytes = file_bytes
        self._session: SparkSession | None = None
        self.rows = self.letters = self.files = self.merged = 0

    def batch(self, rows: DataFrame, number: int) -> None:
        """Archive a micro-batch."""
        done = self._journal.state.batch
        if number == done:
            _log.warning("Skipping micro-batch %d: it is archived already (%s)", number, self._claim.directory)
            return
        if number != done + 1:
            raise NotAStore(
                f"{self._claim.checkpoint}: is at micro-batch {number}, but {done} is the last that is archived",
                hint=_OTHER_CHECKPOINT,
            )
        if self._session is None:
            self._session = rows.sparkSession  # the query's own: others do not see what is set there
            for name, value in _SETTINGS.items():
                self._session.conf.set(name, value)
        sync_plan(self._claim.checkpoint, number)  # before the dead letters and the journal are committed
        path = self._journal.stage(f"batch-{number}")
        dated = rows.selectExpr(*COLUMNS, f"{_DATE} AS date")
        if self._fitting is None:
            dated.write.partitionBy("date").parquet(path)
            fitting = path
        else:
            columns = (*COLUMNS, "data", "date", "fits")
            self._fitting.parsed(dated).select(*columns).write.partitionBy("fits", "date").parquet(path)
            fitting = f"{path}/fits=true"
            self._bury(f"{path}/fits=false", number)
        staged = {day: files_in(f"{fitting}/{day}") for day in days_of(fitting)}
        count = sum(map(rows_in, (each for day in staged.values() for each in day)))
        ends = {tp.partition: end for tp, end in ends_of(self._claim.checkpoint, number)}
        self.files += len(self._journal.commit(staged, batch=number, ends=ends))
        self.rows += count
        self.tidy(_TOO_MANY, staged)

    def _bury(self, path: str, number: int) -> None:
        """Send what does not fit to the dead letters."""
        found = [each for day in days_of(path) for each in files_in(f"{path}/{day}")]
        if not found:
            return
        assert self._fitting is not None
        assert self._session is not None
        with opened(self._store) as core:
            name = box(core, self._topic, self._claim.options["dead_letters"]).name
        rows = self._session.read.parquet(*found).sortWithinPartitions("partition", "offset")
        klamm.spark.write(
            self._fitting.letters(rows),
            self._store,
            topic=name,
            txnAppId=f"klamm.archive.{self._identity}",
            txnVersion=number,
            checkpointLocation=self._claim.checkpoint,
        )
        self.letters += sum(map(rows_in, found))

    def tidy(self, many: int, days: Mapping[str, object] | None = None) -> None:
        """Merge small files of days that have many."""
        if self._session is None:
            return
        for day, small in self._journal.small_files(many, self._file_bytes, days):
            self._merge(self._session, day, list(small), math.ceil(sum(small.values()) / self._file_bytes))

    def _merge(self, session: SparkSession, day: str, small: list[str], count: int) -> None:
        rows = session.read.parquet(*small)
        rows = rows.coalesce(1) if count == 1 else rows.repartitionByRange(count, "partition", "offset")
        self._journal.merge(day, small, rows.sortWithinPartitions("partition", "offset").write.parquet)
        self.merged += len(small)
