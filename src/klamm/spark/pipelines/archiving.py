"""A topic -> Parquet files in a folder, by date: each record once, whoever is killed.

    date=2025-01-31/<sequence>-<k>.parquet      rows of that day, by the record's timestamp, UTC
    _klamm/pipeline.json, _klamm/checkpoint/    whose it is, and how far the query is (claim.py)
    _klamm/journal.json, _klamm/staging/        files that come or go together (journal.py)
    _klamm/topic.json                           of the topic: what restore has to know
    _klamm/schema.json                          the schema, where it was inferred

    key, value, headers, partition, offset, timestamp, timestampType     as the source has them
    data                                                                 with a schema: the value's fields
    date                                                                 from the folder's name

A micro-batch is written into staging, its dead letters are sent, and then the journal takes all of its files in at
once and says that it is done. Killed before that, it is written anew: Spark reads the same offsets again, and the dead
letters bear a mark that lets them be sent once (txnAppId, txnVersion). Killed after that, the next run does the rest.
Files that are too small are merged in the same way: one comes, and those that it is made of go.
"""

from __future__ import annotations

import json
import logging
import math
import os
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import klamm.spark
from klamm.client.work.dead_letters import box
from klamm.disk import files
from klamm.errors import InvalidSetting, KlammError, NotAStore
from klamm.spark.checkpoint import check_id, sync_plan
from klamm.spark.pipelines.claim import Claim, local
from klamm.spark.pipelines.fitting import Fitting, infer, parse_schema
from klamm.spark.pipelines.journal import Journal, files_in
from klamm.spark.pipelines.report import Report
from klamm.spark.pipelines.running import Source, behind, drain, duration, ends_of, source
from klamm.store import names
from klamm.store.directory import acquire, release

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
    spark: SparkSession,
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

    `schema`, DDL or a StructType, is what values are as JSON; the column `data` has their fields. "infer": it is
    inferred from the records that are there at the first run, in one more pass, and then fixed. Records that do not fit
    (fitting.py) are not archived but sent to the topic `dead_letters`, by default `<topic>.dlq`, made if it is not
    there; store.dead_letters() shows and redrives them. Neither can change between two runs; leave them out, and they
    are what they were.

    `max_offsets`: of a micro-batch, at most. `file_bytes`: about how large files are made that are merged when a run
    ends. `every`, such as "10 seconds": do not end, but look for new records so often, until Ctrl-C.
    """
    _check(spark, topic, schema, dead_letters, max_offsets, file_bytes)
    every = None if every is None else duration(every, "every")
    read = source(store, topic)
    claim = _claimed(read, topic, to, schema, dead_letters)
    with claim.alone():
        journal = Journal(claim)
        _refuse_other_checkpoint(claim, journal)
        journal.recover()
        identity = _note_topic(claim, read, topic)
        fitting = _fitting(spark, claim, read, topic)
        total = behind(claim.checkpoint, read)
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
    return Report(
        "archive",
        topic,
        claim.directory,
        rows_read=done.rows,
        rows_written=work.rows,
        seconds=done.seconds,
        batches=done.batches,
        dead_letters=work.letters,
        details={"files": work.files, "files_merged": work.merged},
    )


def _check(
    spark: SparkSession, topic: str, schema: Any, dead_letters: str | None, max_offsets: int, file_bytes: int
) -> None:
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise InvalidSetting("archive: this session is a client of Spark Connect", hint="run it where the driver is")
    for name, value in (("max_offsets", max_offsets), ("file_bytes", file_bytes)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidSetting(f"{name}: {value!r} does not fit", hint="want a whole number above 0")
    if dead_letters is not None:
        names.validate(dead_letters)
        if dead_letters == topic:
            raise InvalidSetting(f"dead_letters: {topic} is the topic itself", hint="name another")


def _claimed(read: Source, topic: str, to: str | os.PathLike[str], schema: Any, dead_letters: str | None) -> Claim:
    known = Claim.read(local(to))
    text = schema if schema is None or schema == "infer" else parse_schema(schema).toDDL()
    has_schema = text is not None or (known is not None and known["options"].get("schema") is not None)
    if dead_letters is not None and not has_schema:
        raise InvalidSetting(
            "dead_letters: without a schema every record fits", hint="give a schema, or leave dead_letters out"
        )
    if known is None and has_schema:
        dead_letters = dead_letters or f"{topic}.dlq"
    return Claim.take(to, read.identity("archive"), {"schema": text, "dead_letters": dead_letters})


def _refuse_other_checkpoint(claim: Claim, journal: Journal) -> None:
    """Refuse a checkpoint that was removed, or is older or newer than the journal: records would be lost or doubled."""
    check_id(claim.checkpoint)
    done = journal.state.batch
    path = f"{claim.checkpoint}/offsets/{done}"
    if done < 0:
        return
    try:
        ends = {place.partition: end for place, end in ends_of(claim.checkpoint, done)}
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


def _note_topic(claim: Claim, read: Source, topic: str) -> str:
    """Keep what restore has to know; the archive's own id."""
    path = claim.inside("topic.json")
    try:
        known: Mapping[str, Any] = json.loads(files.read(path))
    except FileNotFoundError:
        known = {"id": uuid.uuid4().hex, "starts": []}
    core = acquire(read.path, read_only=False, create=False, force_filesystem=False)
    try:
        opened = core.topic(topic)
        starts = list(known["starts"])
        starts += [each.ends().start for each in opened.partitions()[len(starts) :]]
        told = {
            "id": known["id"],
            "name": topic,
            "partitions": opened.count,
            "settings": opened.topic.settings.to_dict(),
            "starts": starts,
        }
    finally:
        release(core)
    files.replace(path, json.dumps(told, indent=2).encode() + b"\n")
    return str(known["id"])


def _fitting(spark: SparkSession, claim: Claim, read: Source, topic: str) -> Fitting | None:
    """None: there is no schema, or nothing yet to infer it from."""
    from pyspark.sql.types import StructType

    wanted = claim.options["schema"]
    if wanted is None:
        return None
    if wanted != "infer":
        return Fitting(topic, parse_schema(wanted))
    path = claim.inside("schema.json")
    try:
        return Fitting(topic, StructType.fromJson(json.loads(files.read(path))))
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
    return Fitting(topic, found)


class _Work:
    """What a run does, micro-batch after micro-batch, on the driver."""

    def __init__(
        self,
        claim: Claim,
        journal: Journal,
        store: str,
        topic: str,
        fitting: Fitting | None,
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
        staged = {day: files_in(f"{fitting}/{day}") for day in _days(fitting)}
        count = sum(map(_count, (each for day in staged.values() for each in day)))
        ends = {place.partition: end for place, end in ends_of(self._claim.checkpoint, number)}
        self.files += len(self._journal.commit(staged, batch=number, ends=ends))
        self.rows += count
        self.tidy(_TOO_MANY, staged)

    def _bury(self, path: str, number: int) -> None:
        """Send what does not fit to the dead letters."""
        found = [each for day in _days(path) for each in files_in(f"{path}/{day}")]
        if not found:
            return
        assert self._fitting is not None
        assert self._session is not None
        core = acquire(self._store, read_only=False, create=False, force_filesystem=False)
        try:
            name = box(core, self._topic, self._claim.options["dead_letters"]).name
        finally:
            release(core)
        rows = self._session.read.parquet(*found).sortWithinPartitions("partition", "offset")
        klamm.spark.write(
            self._fitting.letters(rows),
            self._store,
            topic=name,
            txnAppId=f"klamm.archive.{self._identity}",
            txnVersion=number,
            checkpointLocation=self._claim.checkpoint,
        )
        self.letters += sum(map(_count, found))

    def tidy(self, many: int, days: Mapping[str, object] | None = None) -> None:
        """Merge small files of days that have many."""
        if self._session is None:
            return
        for day in _days(self._claim.directory) if days is None else days:
            sizes = {each: os.path.getsize(each) for each in files_in(f"{self._claim.directory}/{day}")}
            small = [each for each, size in sizes.items() if size < self._file_bytes // 2]
            count = math.ceil(sum(sizes[each] for each in small) / self._file_bytes)
            if len(small) >= many and count < len(small):
                self._merge(self._session, day, small, count)

    def _merge(self, session: SparkSession, day: str, small: list[str], count: int) -> None:
        path = self._journal.stage("merged")
        rows = session.read.parquet(*small)
        rows = rows.coalesce(1) if count == 1 else rows.repartitionByRange(count, "partition", "offset")
        rows.sortWithinPartitions("partition", "offset").write.parquet(path)
        merged = files_in(path)
        if sum(map(_count, merged)) != sum(map(_count, small)):
            raise KlammError(f"{self._claim.directory}/{day}: merged files have other rows than those they are made of")
        self._journal.commit({day: merged}, [os.path.relpath(each, self._claim.directory) for each in small])
        self.merged += len(small)


def _days(path: str) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.startswith("date=")) if os.path.isdir(path) else []


def _count(path: str) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)
