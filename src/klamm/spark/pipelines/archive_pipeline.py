"""A topic -> Parquet files in a folder, by date: each record once, whichever process is killed.

    date=2025-01-31/<sequence>-<k>.parquet      rows of that day, by the record's timestamp, UTC
    _klamm/pipeline.json, _klamm/checkpoint/    whose it is, and how far the query is (pipeline_directory.py)
    _klamm/journal.json, _klamm/staging/        files that come or go together (journal.py)
    _klamm/topic.json                           of the topic: what restore has to know
    _klamm/schema.json                          the schema, where it was inferred, or has grown (schema_history.py)

    key, value, headers, partition, offset, timestamp, timestampType     as the source has them
    data                                                                 with a schema: the value's fields
    date                                                                 from the folder's name

The files may make a table, in Delta's format or in Iceberg's (archive_table.py).

A micro-batch is written into staging, its dead letters are sent, and then the journal takes all of its files in at
once and says that it is done. Killed before that, it is written again: Spark reads the same offsets again, and the dead
letters carry an id, by which they are sent once (txnAppId, txnVersion). Killed after that, the next run does the rest.
Files that are too small are merged in the same way: one comes, and those that it is made of go. Delta does it itself.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import klamm.spark
from klamm.client.work.dead_letters import dead_letter_topic
from klamm.errors import InvalidSetting, NotAStore
from klamm.spark.checkpoint import check_id, ends_of
from klamm.spark.pipelines.archive_rows import rows_of, write_values
from klamm.spark.pipelines.archive_table import FORMATS
from klamm.spark.pipelines.folder_files import OURS, FolderFiles, days_of, files_in, files_of
from klamm.spark.pipelines.journal import Journal, rows_in
from klamm.spark.pipelines.json_schema import JsonSchema, parse_schema
from klamm.spark.pipelines.local_archive import TASK_OFFSETS, ArchiveHere, merge_small, tasks_of
from klamm.spark.pipelines.parquet_files import COLUMNS, DayFile, by_day, write_days
from klamm.spark.pipelines.pipeline_directory import PipelineDirectory
from klamm.spark.pipelines.query_runner import (
    Outcome,
    Source,
    behind,
    check_not_connect,
    check_number,
    collected,
    drain,
    duration,
    source,
)
from klamm.spark.pipelines.report import Report
from klamm.spark.pipelines.schema_history import SchemaHistory
from klamm.spark.range_reader import Task
from klamm.store import names

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from klamm.spark.pipelines.folder_files import Output
    from klamm.spark.pipelines.report import Progress
    from klamm.spark.pipelines.store_location import StoreLocation

__all__ = ["COLUMNS", "archive"]

_DATE = "date_from_unix_date(CAST(floor(unix_millis(timestamp) / 86400000) AS INT))"
_MANY = 8  # small files of a day that are worth a merge when a run ends
_TOO_MANY = 64  # while it goes on
_MAX_OBJECT_BYTES = 1 << 30  # S3 copies 5 GiB at most, and a merge may exceed `file_bytes`
_OTHER_CHECKPOINT = "put _klamm/ back as it was, checkpoint and journal together, or archive to a new folder"
_LAST_DATE = "DATE'9999-12-31'"
_WRITTEN = "day STRING, path STRING, rows BIGINT"
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
    format: str | None = None,  # noqa: A002  # the word that Spark has for it
    catalog: str | None = None,
    table_name: str | None = None,
    storage_options: Mapping[str, str] | None = None,
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
    are what they were. But the schema of a table grows: fields can be added to `schema`, and with "infer" they are
    added when records have them (schema_history.py).

    `format`, "parquet", "delta" or "iceberg": plain files, or a table (delta_table.py, iceberg_table.py). An Iceberg
    table is in a catalog of its own, in the folder, or in the one that pyiceberg's settings have as `catalog`, with the
    name `table_name`: "lake.orders". None of this can change between two runs.

    `to` may be the address of a folder in S3, or in a store with its protocol: s3://bucket/lake/orders
    (object_files.py). Of two runs at the same time one is first, and the other one raises StoreBusy. Credentials and
    endpoint come from variables such as AWS_ACCESS_KEY_ID, or as `storage_options`, which are stored nowhere.

    `max_offsets`: of a micro-batch, at most. `file_bytes`: about how large files are made that are merged when a run
    ends. `every`, such as "10 seconds": do not end, but look for new records so often, until Ctrl-C.
    """
    _check(spark, topic, dead_letters, max_offsets, file_bytes)
    every = None if every is None else duration(every, "every")
    files = files_of(to, storage_options)
    if not files.is_local and file_bytes > _MAX_OBJECT_BYTES:
        raise InvalidSetting(
            f"file_bytes: {file_bytes} is too large for an object store", hint=f"expected {_MAX_OBJECT_BYTES} at most"
        )
    if spark is None:
        _check_options_without_spark(files, schema, every)
    read = source(store, topic)
    if _has_schema(files, schema):
        read.store.check_writes_once("dead letters", "leave the schema out, or copy the topic into a store first")
    folder = _take_folder(
        read, topic, files, schema, dead_letters, {"format": format, "catalog": catalog, "table_name": table_name}
    )
    with folder.alone():
        journal = Journal(folder)
        identity = _note_topic(folder, read, topic)
        folder.restore_checkpoint(str(uuid.UUID(identity)), journal.state.batch)
        _check_checkpoint(folder, journal)
        journal.recover()
        total = behind(folder.checkpoint, read)
        if spark is None:
            begin = time.monotonic()
            here = ArchiveHere(folder, journal, read.store, topic, max_offsets=max_offsets)
            here.run(progress, total)
            here.tidy(_MANY, file_bytes)
            return _report(topic, here, Outcome(here.rows, here.batches, time.monotonic() - begin), folder, "local")
        schemas = _schemas(spark, folder, read, topic, schema, journal.state.batch)
        work = _Work(folder, journal, read.store, topic, schemas, identity, file_bytes)
        if schemas is not None and not schemas.is_known:
            if every is not None:
                raise InvalidSetting(f"schema: {topic} has no records yet to infer it from", hint="give a schema")
            return Report("archive", topic, folder.directory, 0, 0, 0.0)
        rows = read.rows(
            spark,
            topic,
            maxOffsetsPerTrigger=max_offsets,
            minPartitions=max(1, min(spark.sparkContext.defaultParallelism, total // TASK_OFFSETS)),
            columns=",".join(COLUMNS),
        )
        writer = rows.writeStream.option("checkpointLocation", folder.checkpoint).foreachBatch(work.batch)
        done = drain(writer, every=every, progress=progress, total=total)
        work.tidy(_MANY)
    return _report(topic, work, done, folder, "spark")


def _report(topic: str, work: _Work | ArchiveHere, done: Outcome, folder: PipelineDirectory, engine: str) -> Report:
    details = {"files": work.files, "files_merged": work.merged, "engine": engine}
    counts = (work.rows + work.letters, work.rows, done.seconds, done.batches, work.letters)
    return Report("archive", topic, folder.directory, *counts, details=details)


def _has_schema(files: FolderFiles, schema: Any) -> bool:
    known = PipelineDirectory.read(files)
    return schema is not None or (known is not None and known["options"].get("schema") is not None)


def _check_options_without_spark(files: FolderFiles, schema: Any, every: str | None) -> None:
    if _has_schema(files, schema):
        raise InvalidSetting(f"{files.root}: an archive with a schema needs Spark", hint="give a session")
    if every is not None:
        raise InvalidSetting("every: needs Spark", hint="give a session, or run archive without Spark now and then")


def _check(
    spark: SparkSession | None,
    topic: str,
    dead_letters: str | None,
    max_offsets: int,
    file_bytes: int,
) -> None:
    if spark is not None:
        check_not_connect(spark, "archive")
    check_number("max_offsets", max_offsets)
    check_number("file_bytes", file_bytes)
    if dead_letters is not None:
        names.validate(dead_letters)
        if dead_letters == topic:
            raise InvalidSetting(f"dead_letters: {topic} is the topic itself", hint="name another")


def _take_folder(
    read: Source,
    topic: str,
    files: FolderFiles,
    schema: Any,
    dead_letters: str | None,
    table_options: Mapping[str, str | None],
) -> PipelineDirectory:
    known = PipelineDirectory.read(files)
    chosen = _format_options(files, None if known is None else known["options"], table_options)
    text = _ddl(schema)
    has_schema = _has_schema(files, text)
    if dead_letters is not None and not has_schema:
        raise InvalidSetting(
            "dead_letters: without a schema every record fits", hint="give a schema, or leave dead_letters out"
        )
    if known is None and has_schema:
        dead_letters = dead_letters or f"{topic}.dlq"
    before = None if known is None else known["options"].get("schema")
    if chosen and None not in (text, before) and "infer" not in (text, before):
        text = before  # what it was begun with; it may have grown (_schemas)
    return read.take("archive", files, {"schema": text, "dead_letters": dead_letters, **chosen})


def _ddl(schema: Any) -> str | None:
    return schema if schema is None or schema == "infer" else parse_schema(schema).toDDL()


def _format_options(
    files: FolderFiles, known: Mapping[str, Any] | None, given: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Return the options that a table has, checked; none if it is a folder of Parquet files."""
    kind = given["format"]
    if kind is not None and kind not in FORMATS:
        raise InvalidSetting(f"format: {kind!r} is invalid", hint=f"expected {', '.join(FORMATS)}")
    was = None if known is None else known.get("format", "parquet")
    if kind is not None and was is not None and kind != was:
        raise InvalidSetting(
            f"{files.root}: was begun with format = {was}, not {kind}",
            hint="that cannot change between two runs; use a new folder",
        )
    kind = kind or was
    names = {name: value for name, value in given.items() if name != "format" and value is not None}
    if names and kind != "iceberg":
        raise InvalidSetting(
            f"{', '.join(names)}: only an Iceberg table has it", hint="give format iceberg, or neither"
        )
    name = given["table_name"]
    if name is not None and ("." not in name or not all(name.split("."))):
        raise InvalidSetting(f"table_name: {name!r} is invalid", hint="expected a namespace and a name: lake.orders")
    if kind in (None, "parquet"):
        return {}
    if kind == "iceberg" and not files.is_local and known is None and given["catalog"] is None:
        raise InvalidSetting(
            "catalog: an Iceberg table in an object store needs one that is not in its folder",
            hint="name a catalog of pyiceberg's settings, or give format delta",
        )
    return {"format": kind} if kind == "delta" else {"format": kind, "catalog": given["catalog"], "table_name": name}


def _check_checkpoint(folder: PipelineDirectory, journal: Journal) -> None:
    """Refuse a checkpoint that was removed, or is older or newer than the journal: records would be lost or doubled."""
    check_id(folder.checkpoint)
    done = journal.state.batch
    path = f"{folder.checkpoint}/offsets/{done}"
    if done < 0:
        return
    try:
        ends = {tp.partition: end for tp, end in ends_of(folder.checkpoint, done)}
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


def _note_topic(folder: PipelineDirectory, read: Source, topic: str) -> str:
    """Keep what restore has to know; the archive's own id."""
    name = f"{OURS}/topic.json"
    try:
        known: Mapping[str, Any] = json.loads(folder.files.read(name))
    except FileNotFoundError:
        known = {"id": uuid.uuid4().hex, "starts": []}
    with read.store.opened() as core:
        found = core.topic(topic)
        starts = list(known["starts"])
        starts += [each.ends().start for each in found.partitions()[len(starts) :]]
        description = {
            "id": known["id"],
            "name": topic,
            "partitions": found.count,
            "settings": found.topic.settings.to_dict(),
            "starts": starts,
        }
    if description != known:
        folder.files.replace(name, json.dumps(description, indent=2).encode() + b"\n")
    return str(known["id"])


def _schemas(
    spark: SparkSession, folder: PipelineDirectory, read: Source, topic: str, schema: Any, done: int
) -> SchemaHistory | None:
    """Return the schemas of values; None: they have none. It may have nothing yet to infer the first one from."""
    if folder.options["schema"] is None:
        return None
    schemas = SchemaHistory(folder, topic, grows=folder.options.get("format") is not None)
    if not schemas.is_known:
        rows = klamm.spark.read(spark, read.store.path, **read.store.login, subscribe=topic, columns="value")
        schemas.begin(spark, _texts(rows))
    elif schema is not None and schema != "infer":
        schemas.extend(parse_schema(schema), done)
    return schemas


def _texts(rows: DataFrame) -> DataFrame:
    return rows.where("value IS NOT NULL").selectExpr("CAST(value AS STRING) AS value")


@dataclass
class _Work:
    """The work of a run, micro-batch after micro-batch, on the driver."""

    folder: PipelineDirectory
    journal: Journal
    store: StoreLocation
    topic: str
    schemas: SchemaHistory | None
    identity: str
    file_bytes: int
    session: SparkSession | None = None
    rows: int = 0
    letters: int = 0
    files: int = 0
    merged: int = 0

    def batch(self, rows: DataFrame, number: int) -> None:
        """Archive a micro-batch."""
        done = self.journal.state.batch
        if number == done:
            _log.warning("Skipping micro-batch %d: it is archived already (%s)", number, self.folder.directory)
            return
        if number != done + 1:
            raise NotAStore(
                f"{self.folder.checkpoint}: is at micro-batch {number}, but {done} is the last that is archived",
                hint=_OTHER_CHECKPOINT,
            )
        if self.session is None:
            self.session = rows.sparkSession  # the query's own: others do not see what is set there
            for name, value in _SETTINGS.items():
                self.session.conf.set(name, value)
        self.folder.save_plan(number)  # before the dead letters and the journal are committed
        path = self.journal.stage(f"batch-{number}")
        written = self._records(path, number) if self.schemas is None else self._typed(path, rows, number)
        staged = by_day(written)
        ends = {tp.partition: end for tp, end in ends_of(self.folder.checkpoint, number)}
        self.files += len(self.journal.commit(staged, batch=number, ends=ends))
        self.rows += sum(each.rows for each in written)
        self.tidy(_TOO_MANY, staged)

    def _records(self, path: str, number: int) -> list[DayFile]:
        """Let tasks write the records as they are, from the segments to Parquet: Spark has no part in it."""
        assert self.session is not None
        most = self.session.sparkContext.defaultParallelism
        parts = tasks_of(self.store.options, self.topic, self.folder.checkpoint, number, most)
        if not parts:
            return []
        write = partial(_write, parts, self.folder.files.output(path), has_dates=self._has_dates)
        job = self.session.range(0, len(parts), 1, len(parts)).mapInArrow(write, _WRITTEN)
        return [DayFile(*row) for row in collected(job)]

    @property
    def _has_dates(self) -> bool:
        return self.journal.table is not None and self.journal.table.has_dates

    def _typed(self, path: str, rows: DataFrame, number: int) -> list[DayFile]:
        """Let Spark parse and write the records that fit the schema; the others go to the dead letters."""
        assert self.schemas is not None
        assert self.session is not None
        self.schemas.infer_more(self.session, _texts(rows), number)
        schema = JsonSchema(self.topic, self.schemas.at(number))
        if not self.folder.files.is_local:
            parsed = schema.parsed(rows.selectExpr(*COLUMNS)).select(*COLUMNS, "data", "fits")
            written, unfit = write_values(parsed, self.folder.files.output(path), has_dates=self._has_dates)
            self._send_dead_letters(schema, unfit, number)
            return written
        dated = schema.parsed(rows.selectExpr(*COLUMNS, f"{_DATE} AS day"))
        dates = [f"CASE WHEN day <= {_LAST_DATE} THEN day END AS date"] if self._has_dates else []
        columns = (*COLUMNS, "data", *dates, "day", "fits")
        dated.selectExpr(*columns).write.partitionBy("fits", "day").parquet(path)
        self._send_dead_letters(schema, _written_by_spark(f"{path}/fits=false"), number)
        return _written_by_spark(f"{path}/fits=true")

    def _send_dead_letters(self, schema: JsonSchema, unfit: Sequence[DayFile], number: int) -> None:
        """Send what does not fit to the dead letters."""
        if not unfit:
            return
        assert self.session is not None
        with self.store.opened() as core:
            name = dead_letter_topic(core, self.topic, self.folder.options["dead_letters"]).name
        rows = rows_of(self.session, self.folder.files, [each.path for each in unfit])
        rows = rows.sortWithinPartitions("partition", "offset")
        klamm.spark.write(
            schema.letters(rows),
            self.store.path,
            **self.store.login,
            topic=name,
            txnAppId=f"klamm.archive.{self.identity}",
            txnVersion=number,
            checkpointLocation=self.folder.checkpoint,
        )
        self.letters += sum(each.rows for each in unfit)

    def tidy(self, many: int, days: Mapping[str, object] | None = None) -> None:
        """Merge small files of days that have many."""
        if self.session is None:
            return
        table = self.journal.table
        merged = None if table is None else table.optimize(many, self.file_bytes)
        if merged is not None:
            self.merged += merged
            return
        if not self.folder.files.is_local:
            self.merged += merge_small(self.journal, many, self.file_bytes, None if days is None else list(days))
            return
        for day, small in self.journal.small_files(many, self.file_bytes, days):
            self._merge(self.session, day, list(small), math.ceil(sum(small.values()) / self.file_bytes))

    def _merge(self, session: SparkSession, day: str, small: list[str], count: int) -> None:
        rows = session.read.option("mergeSchema", self.schemas is not None).parquet(*small)
        rows = rows.coalesce(1) if count == 1 else rows.repartitionByRange(count, "partition", "offset")
        sorted_rows = rows.sortWithinPartitions("partition", "offset")

        def write(path: str) -> list[str]:
            sorted_rows.write.parquet(path)
            return files_in(path)

        self.journal.merge(day, small, write)
        self.merged += len(small)


def _written_by_spark(path: str) -> list[DayFile]:
    return [
        DayFile(f"date={day.removeprefix('day=')}", each, rows_in(each))
        for day in days_of(path, "day=")
        for each in files_in(f"{path}/{day}")
    ]


def _write(
    parts: Sequence[list[Task]], output: Output, batches: Iterator[pa.RecordBatch], *, has_dates: bool
) -> Iterator[pa.RecordBatch]:
    """Write the parts whose numbers come, in a task."""
    import pyarrow as pa

    from klamm.spark.source import plain_errors

    with plain_errors():
        for batch in batches:
            numbers: Any = batch.column("id").to_pylist()
            for number in numbers:
                if written := write_days(parts[number], output, has_dates=has_dates):
                    columns: list[Any] = [list(each) for each in zip(*written, strict=True)]
                    yield pa.RecordBatch.from_arrays([pa.array(each) for each in columns], list(DayFile._fields))
