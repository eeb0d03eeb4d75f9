"""The sink of format("klamm"): tasks stage, the driver publishes (publisher.py). At a server each task writes in a
transaction of its own, and the driver decides for all (server/decision.py).

    key        string or binary                 null, or no such column: no key
    value      string or binary                 needed; null is a tombstone
    topic      string                           needed, unless the option topic names one for all rows
    partition  whole numbers                    null, or no such column: by key as every Kafka client does, else sticky
    headers    array<struct<key: string, value: binary>>
    timestamp  timestamp                        with keepTimestamps only

`offset` and `timestampType`, which a source has as well, mean nothing here, nor does `timestamp` without that option;
any other column is an error, for it may be one of the above with a slip in its name.

Spark makes a writer on the driver before each job (each micro-batch), and hands a copy to every task. For a stream it
makes another one to commit with. The writer checks options, schema and topics when it is made, so that such errors are
raised before a job starts. A task needs nothing of the store but the directory for staged files.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from klamm.arrow.encoding import Encoder, Rows, Shape
from klamm.arrow.schema import no_column, pyarrow
from klamm.batch import crc32c, digest_rows
from klamm.disk import files
from klamm.errors import InvalidRecord, InvalidSetting, KlammError, UnknownTopic
from klamm.spark import checkpoint, staged_files
from klamm.spark.batches import BatchId, target_of
from klamm.spark.internals import micro_batch
from klamm.spark.publisher import core_of, publish
from klamm.spark.server import decision
from klamm.spark.server.attempt import Attempt
from klamm.spark.server.client import client_of
from klamm.spark.server.decision import Scope
from klamm.spark.server.shapes import read_shapes
from klamm.spark.sink_options import WriteOptions
from klamm.spark.source import plain_errors
from klamm.spark.staged_batches import StagedTopic, StagingFile, TaskCommit
from klamm.spark.staged_files import StagedName
from klamm.store import scratch
from klamm.store.names import nearest
from klamm.types import TopicId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage

__all__ = ["BatchWriter", "StreamWriter", "WritePlan", "check_columns"]

_KNOWN = ("value", "key", "topic", "partition", "headers", "timestamp")
_IGNORED = frozenset({"offset", "timestamptype"})
_HEADERS = "array<struct<key:string,value:binary>>"
_NUMBERS = ("tinyint", "smallint", "int", "bigint")
_OPEN_BYTES = 64 << 20  # in batches of a task that are not full yet
_DIGEST_MASK = (1 << 64) - 1


# ---- what can be known before there is a job


def check_columns(schema: StructType, options: WriteOptions) -> dict[str, str]:
    """Return what is written, and the DataFrame's name for it. Raise InvalidSetting for what does not fit."""
    found: dict[str, str] = {}
    names = [field.name.lower() for field in schema.fields]
    for name in options.columns or ():
        if name not in names:
            raise InvalidSetting(f"columns: the DataFrame has no column {name!r}", hint=nearest(name, names))
    for field, name in zip(schema.fields, names, strict=True):
        if options.columns is not None and name not in options.columns:
            continue
        if name in found:
            raise InvalidSetting(f"there are two columns {name!r}", hint="drop one")
        if name in _IGNORED or (name == "timestamp" and not options.keep_timestamps):
            continue
        if name == "headers" and not options.headers:
            continue
        if name not in _KNOWN:
            wrong = no_column(field.name, _KNOWN)
            raise InvalidSetting(wrong.message, hint=f"{wrong.hint}; or say with the option columns which to write")
        _check_type(name, field.dataType.simpleString())
        found[name] = field.name
    if "value" not in found:
        raise InvalidSetting(
            "the DataFrame has no column 'value'", hint="""df.selectExpr("to_json(struct(*)) AS value") makes one"""
        )
    if options.topic is not None:
        found.pop("topic", None)
    elif "topic" not in found:
        raise InvalidSetting(
            "nothing says which topic to write to", hint='.option("topic", "orders"), or a column named topic'
        )
    if options.keep_timestamps and "timestamp" not in found:
        raise InvalidSetting("keepTimestamps: there is no column 'timestamp'")
    return found


def _check_type(name: str, kind: str) -> None:
    wanted, fits, cast = {
        "partition": ("a whole number", kind in _NUMBERS, "CAST(partition AS INT)"),
        "timestamp": ("a timestamp", kind == "timestamp", "CAST(timestamp AS TIMESTAMP)"),
        "headers": (_HEADERS, kind == _HEADERS, f"CAST(headers AS {_HEADERS.upper()})"),
        "topic": ("a string", _is_text(kind), "CAST(topic AS STRING)"),
    }.get(name, ("string or binary", _is_text(kind) or kind in ("binary", "void"), f"CAST({name} AS STRING)"))
    if not fits:
        structured = kind.startswith(("struct", "array", "map", "variant"))
        hint = f"to_json({name}) AS {name}" if structured and name in ("key", "value") else f"{cast} AS {name}"
        raise InvalidSetting(f"column {name!r} is {kind}, expected {wanted}", hint=f"df.selectExpr(…, {hint!r})")


def _is_text(kind: str) -> bool:
    return kind.startswith(("string", "char(", "varchar("))


class _Topic(NamedTuple):
    id: TopicId
    shape: Shape


class WritePlan:
    """The plan that a task is given."""

    def __init__(self, schema: StructType, options: WriteOptions, *, has_digest: bool = False) -> None:
        """Prepare. `has_digest`: tasks add up their records, for a batch that is known by them (batches.py)."""
        self.options = options
        self.has_digest = has_digest
        self.columns = check_columns(schema, options)
        if options.is_insert and "offset" not in schema.fieldNames():
            raise InvalidSetting("a table with the option columns is for reading only", hint="make another without it")
        self.directory = ""
        """For staged files; empty if a server is written to."""
        if options.server is not None:
            client = client_of(options.server)
            decision.check_server(client)
            found = read_shapes(client, options.topic)
            self.topics = {name: _Topic(topic_id, shape) for name, (topic_id, shape) in found.items()}
        else:
            self._use_directory(options)
        if options.topic is not None and self.topics[options.topic].shape.keyed and "key" not in self.columns:
            raise InvalidSetting(
                f"{options.topic}: the topic is compacted, and the DataFrame has no column 'key'",
                hint="compaction keeps the latest record of each key: give it one",
            )

    def _use_directory(self, options: WriteOptions) -> None:
        core = core_of(options.path)
        self.directory = staged_files.prepare(options.path, core.catalog.store_id)
        topics = core.catalog.topics() if options.topic is None else [core.catalog.topic(options.topic)]
        self.topics = {
            topic.name: _Topic(
                topic.id,
                Shape(
                    topic.name,
                    len(topic.partitions),
                    topic.settings.max_message_bytes,
                    "compact" in topic.settings.cleanup_policy,
                ),
            )
            for topic in topics
        }

    def scope(self, writer: str, *, is_last: bool = False) -> Scope:
        return Scope(writer, target_of(self.options.topic), is_last)

    def topic(self, name: str) -> _Topic:
        found = self.topics.get(name)
        if found is None:
            raise UnknownTopic(f"Topic {name!r} does not exist", hint=nearest(name, self.topics))
        return found


# ---- in tasks


class _Stager:
    """One attempt of a task."""

    def __init__(
        self, plan: WritePlan, name: StagedName, scope: Scope | None = None, number: int | None = None
    ) -> None:
        """Prepare. `scope`: of its transaction, at a server. `number`: of the batch, if it has one."""
        self._plan = plan
        self._name = name
        self._scope = scope
        self._number = number
        self._file_name = name.new()
        self._file: StagingFile | Attempt  # a file from the start: while it is open, nothing of its batch is swept
        self._encoders: dict[str, Encoder] = {}
        self._partitions: dict[str, set[int]] = {}
        self._rows = 0
        self._digest = 0

    def run(self, batches: Iterator[pa.RecordBatch]) -> TaskCommit:
        self._file = self._opened()
        try:
            for batch in batches:
                if batch.num_rows:
                    self._take(batch)
            self._give_all()
            if self._rows:
                self._file.finish()
            else:
                self._file.discard()
        except BaseException:
            self._file.discard()
            raise
        return TaskCommit(
            self._name.writer,
            self._name.batch,
            self._name.task,
            self._file_name if self._rows and self._scope is None else None,
            self._file.size,
            self._rows,
            tuple(
                StagedTopic(topic, self._plan.topic(topic).id, tuple(sorted(numbers)))
                for topic, numbers in self._partitions.items()
            ),
            micro_batch(_task()),
            self._file.transaction if isinstance(self._file, Attempt) else None,
            self._digest if self._plan.has_digest else None,
        )

    def _opened(self) -> StagingFile | Attempt:
        options = self._plan.options
        if self._scope is None or options.server is None:
            return StagingFile(f"{self._plan.directory}/{self._file_name}")
        task = _task()
        name = self._scope.transactional_id(self._name.task, 0 if task is None else task.attemptNumber())
        is_decided = None
        if self._number is not None:
            is_decided = partial(decision.is_decided, scope=self._scope, number=self._number)
        return Attempt(options.server, name, options.transaction_timeout_ms, is_decided)

    def _take(self, batch: pa.RecordBatch) -> None:
        pa = pyarrow()
        if self._plan.options.is_insert and batch.column("offset").null_count < batch.num_rows:
            raise InvalidSetting("INSERT names no columns, or offset", hint="as in INSERT INTO orders (key, value) …")
        columns = {ours: batch.column(theirs) for ours, theirs in self._plan.columns.items()}
        topics = columns.pop("topic", None)
        rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        if topics is None:
            assert self._plan.options.topic is not None
            self._encode(self._plan.options.topic, rows)
            return
        if topics.null_count:
            raise InvalidRecord(
                "the column topic is null in a row", hint='filter such rows out, or give .option("topic", …)'
            )
        import pyarrow.compute as pc

        coded = topics.dictionary_encode()
        names = coded.dictionary.to_pylist()
        for number, name in enumerate(names):
            mine = rows if len(names) == 1 else rows.filter(pc.equal(coded.indices, pa.scalar(number, pa.int32())))
            self._encode(str(name), mine)
        if sum(encoder.size for encoder in self._encoders.values()) > _OPEN_BYTES:
            self._give_all()

    def _encode(self, topic: str, rows: pa.RecordBatch) -> None:
        encoder = self._encoders.get(topic)
        if encoder is None:
            encoder = self._encoders[topic] = self._encoder(topic)
        try:  # what a type allows: a partition of -1, a header without a name
            columns = Rows.of(rows)
            encoder.take(columns)
        except (TypeError, ValueError) as error:
            raise InvalidRecord(f"{topic}: {error}") from None
        if self._plan.has_digest:
            seed = crc32c(topic.encode())
            added = digest_rows(columns.value, columns.key, columns.timestamps, columns.headers, seed)
            self._digest = (self._digest + added) & _DIGEST_MASK
        self._rows += rows.num_rows

    def _encoder(self, topic: str) -> Encoder:
        options = self._plan.options
        number = len(self._encoders)
        tps = self._partitions[topic] = set()

        def emit(partition: int, batch: memoryview, count: int) -> None:
            tps.add(partition)
            self._file.add(number, partition, batch)

        topic_id, shape = self._plan.topic(topic)
        if isinstance(self._file, Attempt):
            self._file.name_topic(number, topic, topic_id)
        return Encoder(shape, emit, codec=options.codec, level=options.level, sticky=self._name.task)

    def _give_all(self) -> None:
        for encoder in self._encoders.values():
            encoder.give_all()


def _task() -> Any:
    from pyspark import TaskContext

    return TaskContext.get()


# ---- on the driver


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[TaskCommit]:
    return [each for each in messages if isinstance(each, TaskCommit)]


def _publish(
    plan: WritePlan, messages: Sequence[WriterCommitMessage | None], batch: BatchId | None, scope: Scope
) -> None:
    if plan.options.server is not None:
        commits = [each for each in _staged(messages) if each.rows]
        transactions = [each.transaction for each in commits if each.transaction is not None]
        ids = sorted({topic.id for each in commits for topic in each.topics})
        is_whole = len(transactions) == len(commits)
        decision.commit(client_of(plan.options.server), scope, transactions, ids, batch, is_whole=is_whole)
        return
    staged = [each for each in _staged(messages) if each.file is not None]
    publish(core_of(plan.options.path), staged, plan.directory, batch, durable=plan.options.durable)


def _batch_id(plan: WritePlan, writer: str, number: int, staged: Sequence[TaskCommit]) -> BatchId:
    """Identify a batch by Spark's plan, which is on disk then, or by its records where the plan is not visible."""
    options = plan.options
    target = target_of(options.topic)
    digests = [each.digest for each in staged]
    total = sum(each for each in digests if each is not None) & _DIGEST_MASK
    records = "" if None in digests else f"records {total:016x}/{sum(each.rows for each in staged)}"
    (batch,) = {each.micro_batch for each in staged}
    if batch is not None:
        found = checkpoint.read_plan(options.checkpoint, batch.query, batch.number)
        if found is not None:
            run = f"run {batch.run}" if batch.run and records else ""
            plan_text = " ".join(filter(None, (found.fingerprint, records, run)))
            return BatchId(writer, target, number, plan_text, found.ends, found.path)
    if not records:
        raise KlammError(
            f"{options.checkpoint}: the checkpoint is gone, so whether this batch is in the log is unknown",
            hint="nothing was written; put it back, or give the query a new checkpointLocation",
        )
    return BatchId(writer, target, number, records, may_differ=options.may_differ)


class BatchWriter(DataSourceArrowWriter):
    """df.write: one transaction, all rows or none."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        if overwrite:
            raise InvalidSetting(
                "a log cannot be overwritten", hint='.mode("append"); a topic is emptied by deleting and re-creating it'
            )
        parsed = WriteOptions.parse(options, streaming=False)
        self._plan = WritePlan(schema, parsed, has_digest=parsed.app is not None)
        self._job = uuid.uuid4().hex
        writer = f"job {self._job}" if parsed.app is None else f"app {parsed.app[0]}"
        self._scope = self._plan.scope(writer, is_last=parsed.app is None)
        if parsed.server is None:
            self._plan.directory += f"/{self._job}"
            files.make_directory(self._plan.directory)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:  # type: ignore[override]  # Spark's own, too
        with plain_errors():
            task = _task()
            name = StagedName(self._job, 0, task.partitionId(), task.taskAttemptId())
            app, scope = self._plan.options.app, self._scope if self._plan.options.server else None
            return _Stager(self._plan, name, scope, None if app is None else app[1]).run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with plain_errors():
            app, staged = self._plan.options.app, _staged(messages)
            batch = None
            if app is not None and staged:
                batch = _batch_id(self._plan, f"app {app[0]}", app[1], staged)
            _publish(self._plan, messages, batch, self._scope)
            if self._plan.options.server is None:
                staged_files.remove_job(self._plan.directory)
                scratch.sweep(core_of(self._plan.options.path))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove nothing but what is not committed: the batch may have been committed all the same."""
        if self._plan.options.server is not None:
            decision.discard(client_of(self._plan.options.server), self._scope)
        else:
            staged_files.remove_job(self._plan.directory)


class StreamWriter(DataSourceStreamArrowWriter):
    """df.writeStream: each micro-batch is one transaction, once.

    Whatever the output mode, what Spark hands over is appended, as Spark's Kafka sink does it.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        parsed = WriteOptions.parse(options, streaming=True)
        self._plan = WritePlan(schema, parsed, has_digest=not checkpoint.is_here(parsed.checkpoint))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:  # type: ignore[override]  # Spark's own, too
        with plain_errors():
            task = _task()
            batch = micro_batch(task)
            if batch is None:
                raise KlammError(
                    "this task does not know which query it is of, so a batch could not be written once",
                    hint="write with foreachBatch, and the options txnAppId and txnVersion",
                )
            name = StagedName(batch.query, batch.number, task.partitionId(), task.taskAttemptId())
            scope = self._plan.scope(f"query {batch.query}") if self._plan.options.server else None
            return _Stager(self._plan, name, scope, batch.number).run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        with plain_errors():
            staged = _staged(messages)
            for query in {each.writer for each in staged}:
                batch = _batch_id(self._plan, f"query {query}", batchId, staged)
                _publish(self._plan, messages, batch, self._plan.scope(batch.writer))
                if self._plan.options.server is None:
                    staged_files.remove_of(self._plan.directory, query, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove nothing but what is not committed: the batch may have been committed all the same."""
        options = self._plan.options
        if options.server is not None:
            queries = {each.writer for each in _staged(messages)}
            here = checkpoint.find_query(options.checkpoint)  # no task may have finished, and some were killed
            for query in queries if here is None else {*queries, here}:
                decision.discard(client_of(options.server), self._plan.scope(f"query {query}"))
            return
        for each in messages:
            if isinstance(each, TaskCommit) and each.file is not None:
                staged_files.remove_file(f"{self._plan.directory}/{each.file}")
