"""A Kafka server or cluster, as a target: records go there in transactions, with where they went (copied_offsets.py).

A transaction has records and the offsets of both sides, or neither is there. So a copy that was killed goes on where
its last transaction ended. Two copies from one source have one transactional id: the older one is fenced.

A transaction that the cluster has given up is begun again, behind the last commit, by a new producer: librdkafka may
give sequence numbers of an aborted one to others, which the cluster then takes for duplicates.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from klamm.batch import Record
from klamm.cluster.address import client_config, import_confluent_kafka, public_name
from klamm.cluster.kafka_admin import KafkaAdmin
from klamm.cluster.kafka_errors import ELECTING, error_of, fatal_error, name_of, translated
from klamm.errors import Aborted, Fenced, InvalidSetting, LogError, Unreachable
from klamm.transfer.chunk import Chunk, GroupOffsets, Source, SourceTopic, records_of
from klamm.transfer.copied_offsets import COPIES, CopiedOffsets, Run, runs_of
from klamm.transfer.rewind import RewindNeeded
from klamm.types import TopicPartition

__all__ = ["KafkaTarget"]

_TIMEOUT_S = 60.0
_CLOSING_S = 10.0
_FETCH_WAIT_MS = 20  # so long a server has nothing to send before it says where a partition ends
_TRANSACTION_MS = 60_000  # librdkafka's default
_COMMIT_RECORDS = 50_000
_COMMIT_S = 1.0
_MESSAGE_BYTES = 100 << 20  # librdkafka's own limit; the target has its own, too
_LAST = 10  # records that are compared with the source before a copy goes on
# Records keep their times, so that the target must not stamp them; the rest are Klamm's own.
_NOT_COPIED = ("message.timestamp.type", "segment.records", "tombstone.retention.ms")

_log = logging.getLogger("klamm")


class _Partition:
    """The part of one transaction that is in one partition. Deliveries come in the order of what was sent."""

    def __init__(self, start: int, on_error: Callable[[Any], object]) -> None:
        self.start = self.end = start
        self.sent: list[int] = []  # offsets of the source
        self._delivered: list[int] = []  # offsets of the target
        self._on_error = on_error

    def delivered(self, error: Any, message: Any) -> None:
        """Take in what became of a record."""
        if error is None:
            offset = message.offset()
            self._delivered.append(-1 if offset is None else offset)
        else:
            self._on_error(error)

    @property
    def is_known(self) -> bool:
        """Whether the servers have said where each record is."""
        return -1 not in self._delivered

    def runs(self) -> list[Run]:
        """Return where records went, once all were delivered."""
        return runs_of(zip(self.sent, self._delivered, strict=True))


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """Like `translated`, but say what fences a copy."""
    try:
        with translated(name):
            yield
    except Fenced as error:
        raise Fenced(f"{name}: another copy from the same source has begun", hint="let one run at a time") from error


class KafkaTarget:
    """See chunk.Target."""

    def __init__(self, address: str, source: Source) -> None:
        self._kafka = import_confluent_kafka()
        self.name = public_name(address)
        self._config = client_config(address)
        self._admin = KafkaAdmin(self._config, self.name)
        if self._admin.cluster_id == source.source_id:
            raise InvalidSetting(f"{self.name}: is the source, too", hint="copy into another one")
        self._copied = CopiedOffsets(source.source_id)
        self._source_id = source.source_id
        self._open: dict[TopicPartition, _Partition] = {}  # of the transaction
        self._count = 0
        self._began = 0.0
        self._transaction_s = int(self._config.get("transaction.timeout.ms", _TRANSACTION_MS)) / 1000
        self._failing_until: float | None = None  # since transactions have been given up: when it is an error
        self._error: Any = None
        self._groups: dict[str, dict[TopicPartition, int]] = {}  # where each is, or was found farther on
        self._producer: Any = None

    def prepare(self, topics: Sequence[SourceTopic]) -> None:
        counts = self._admin.partition_counts()
        for topic in topics:
            count = counts.get(topic.name, 0)
            if not count:
                settings = {name: value for name, value in topic.settings.items() if name not in _NOT_COPIED}
                self._admin.create(topic.name, topic.partitions, settings)
            elif count > topic.partitions:
                raise InvalidSetting(
                    f"{self.name}: topic {topic.name!r} has {count} partitions, and {topic.partitions} in the source",
                    hint="copy into another cluster",
                )
            elif count < topic.partitions:
                self._admin.add_partitions(topic.name, topic.partitions)
        if COPIES not in counts:
            self._admin.create(COPIES, 1, {"cleanup.policy": "compact"})
        self._start_producer()
        self._load()

    def _start_producer(self) -> None:
        """Fence copies from the same source; what they have not committed is aborted."""
        config = {
            **self._config,
            "transactional.id": f"klamm-copy-{self._source_id}",
            "message.max.bytes": _MESSAGE_BYTES,
            "linger.ms": 5,
            "compression.type": "lz4",
        }
        with _translated(self.name):
            self._producer = self._kafka.Producer(config, logger=self._admin.logger)
            self._producer.init_transactions(_TIMEOUT_S)

    def _load(self) -> None:
        """Read what was copied so far."""
        self._copied = CopiedOffsets(self._source_id)
        for message in self._read(TopicPartition(COPIES, 0), 0, None):
            self._copied.take(message.key(), message.value())

    def _read(self, partition: TopicPartition, start: int, count: int | None) -> list[Any]:
        """Return committed messages from an offset on: so many, or all."""
        config = {
            **self._config,
            "group.id": "klamm-copy",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
        }
        messages: list[Any] = []
        deadline = time.monotonic() + _TIMEOUT_S
        with _translated(self.name):
            consumer = self._kafka.Consumer(config, logger=self._admin.logger)
            try:
                consumer.assign([self._kafka.TopicPartition(*partition, start)])
                while count is None or len(messages) < count:
                    message = consumer.poll(1.0)
                    error = None if message is None else message.error()
                    if message is not None and error is None:
                        messages.append(message)
                        deadline = time.monotonic() + _TIMEOUT_S
                    elif error is not None and error.name() == "_PARTITION_EOF":
                        break
                    elif error is not None and message.topic() is not None and error.name() not in ELECTING:
                        raise self._kafka.KafkaException(error)
                    elif time.monotonic() > deadline:
                        raise Unreachable(
                            f"{self.name}: {partition.topic} was not sent for {_TIMEOUT_S:g} s",
                            hint="check that enough servers run, and run it again: it goes on where it was",
                        )
            finally:
                consumer.close()
        return messages

    # ---- where it is

    def positions(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        reached = self._copied.positions
        return {partition: reached[partition] for partition in partitions if partition in reached}

    def last_records(self, partition: TopicPartition, position: int) -> list[Record]:
        run = self._copied.last_run(partition)
        if run is None:
            return []
        if self._admin.end(partition) < run.target + run.length:
            raise LogError(
                f"{self.name}: {partition.topic}/{partition.partition} was deleted or cut since it was copied",
                hint=f"copy into another cluster, or delete the topic and the topic {COPIES} there, and begin again",
            )
        first = max(0, run.length - _LAST)
        messages = self._read(partition, run.target + first, run.length - first)
        return [
            Record(
                partition.topic,
                partition.partition,
                run.source + message.offset() - run.target,
                message.timestamp()[1],
                message.key(),
                message.value(),
                message.headers() or (),
            )
            for message in messages
            if message.offset() < run.target + run.length
        ]

    def is_empty(self, partition: TopicPartition) -> bool:
        return self._admin.end(partition) == 0 or not self._read(partition, 0, 1)  # of a killed copy: aborted ones

    def begin(self, partition: TopicPartition, offset: int) -> None:
        """Do nothing: offsets of the source are not stored."""

    # ---- writing

    def write(self, chunk: Chunk) -> None:
        if not self._open:
            self._call(self._producer.begin_transaction)
            self._began = time.monotonic()
        state = self._open.get(chunk.partition)
        if state is None:
            state = self._open[chunk.partition] = _Partition(chunk.start, self._note)
        records = records_of(chunk, chunk.start)
        sent, produce, delivered = state.sent, self._producer.produce, state.delivered
        for record in records:
            sent.append(record.offset)
            if record.timestamp == 0 or record.headers:
                self._produce(state, record)
                continue
            try:  # in the order of its parameters: this is the loop that a copy spends its time in
                produce(record.topic, record.value, record.key, record.partition, delivered, None, record.timestamp)
            except (BufferError, self._kafka.KafkaException):
                self._produce(state, record)
        state.end = chunk.end
        self._count += len(records)
        if self._count >= _COMMIT_RECORDS or time.monotonic() - self._began >= _COMMIT_S:
            self.commit()

    def _produce(self, state: _Partition, record: Record) -> None:
        time_ms, headers = record.timestamp, record.headers
        if time_ms == 0:
            raise LogError(
                f"{record.topic}/{record.partition}/{record.offset}: a timestamp of 0 cannot be sent: librdkafka would "
                "put the present time there",
                hint="copy into a directory, or begin behind that record (--since)",
            )
        arguments: tuple[Any, ...] = (record.topic, record.value, record.key, record.partition, state.delivered)
        options = {"timestamp": time_ms, "headers": list(headers)} if headers else {"timestamp": time_ms}
        while True:
            try:
                return self._producer.produce(*arguments, **options)  # type: ignore[no-any-return]
            except BufferError:
                self._serve(self._producer.poll, 0.1)
            except self._kafka.KafkaException as error:
                if name_of(error) not in ("_STATE", "_FATAL"):
                    self._fail(error.args[0])
                self._give_up_lost()  # the transaction takes nothing more

    def _note(self, error: Any) -> None:
        self._error = self._error or error

    def commit(self) -> None:
        if not self._open:
            return
        self._flush()
        if not all(state.is_known for state in self._open.values()):
            if self._fails_for_long():
                raise Unreachable(
                    f"{self.name}: did not say for {_TIMEOUT_S:g} s where records are",
                    hint="check that enough servers run, and run it again: it goes on behind its last transaction",
                )
            self._rewind()
        runs = {partition: state.runs() for partition, state in self._open.items()}
        for partition, state in self._open.items():
            for key, value in self._copied.pack(partition, state.start, state.end, runs[partition]):
                self._call(
                    self._producer.produce, COPIES, value=value, key=key, partition=0, on_delivery=self._on_delivery
                )
        self._flush()
        self._call(self._producer.commit_transaction, _TIMEOUT_S)
        for partition, state in self._open.items():
            self._copied.add(partition, state.end, runs[partition])
        self._failing_until = None
        self._forget()

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self._note(error)

    def _flush(self) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while self._serve(self._producer.flush, 1.0):
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"{self.name}: records were not acknowledged within {_TIMEOUT_S:g} s",
                    hint="check that enough servers run, and run it again: it goes on behind its last transaction",
                )
        if self._error is not None:
            if isinstance(error_of(self.name, self._error), Aborted):
                self._give_up_lost()
            self._fail(self._error)

    def _forget(self) -> None:
        self._open = {}
        self._count = 0
        self._error = None

    def _call(self, function: Any, *arguments: Any, **options: Any) -> None:
        """Call librdkafka, again if it says so. RewindNeeded if the transaction was aborted."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                function(*arguments, **options)
            except self._kafka.KafkaException as error:
                about = error.args[0]
                if about.retriable() and not about.fatal() and time.monotonic() < deadline:
                    continue
                self._fail(about)
            else:
                return

    def _serve(self, function: Callable[[float], int], wait_s: float) -> int:
        """Let librdkafka call back, for at most so long."""
        try:
            return function(wait_s)
        except (self._kafka.KafkaException, SystemError) as error:
            self._give_up_lost()
            fatal = fatal_error(error)
            if fatal is None:
                raise
            self._fail(fatal)

    def _give_up_lost(self) -> None:
        """Raise why the transaction takes no more records: librdkafka says it to one that begins another."""
        self._call(self._producer.begin_transaction)

    def _fail(self, error: Any) -> NoReturn:
        """Begin again behind the last commit, if the cluster has given the transaction up; else raise."""
        is_late = isinstance(error_of(self.name, error), Fenced) and self._is_overdue()
        if not (is_late or error.txn_requires_abort()) or self._fails_for_long():
            with _translated(self.name):
                raise self._kafka.KafkaException(error)
        self._rewind()

    def _fails_for_long(self) -> bool:
        """Return whether no transaction was committed for _TIMEOUT_S, since the first that was given up."""
        now = time.monotonic()
        if self._failing_until is None:
            self._failing_until = now + _TIMEOUT_S
        return now > self._failing_until

    def _rewind(self) -> NoReturn:
        self._forget()
        self._start_producer()  # which aborts what the last one has left
        self._load()
        raise RewindNeeded

    def _is_overdue(self) -> bool:
        """Return whether the transaction was open for so long that the cluster itself has fenced it."""
        return bool(self._open) and time.monotonic() - self._began >= self._transaction_s

    # ---- groups

    def move_group(self, group: str, offsets: GroupOffsets) -> int:
        translated_offsets = {partition: self._copied.translate(partition, at) for partition, at in offsets.items()}
        here = {partition: offset for partition, offset in translated_offsets.items() if offset is not None}
        if self._groups.get(group, {}) == here:  # nothing to ask the cluster for
            return 0
        stored = self._admin.offsets(group, here)
        moved = {partition: offset for partition, offset in here.items() if offset > stored.get(partition, -1)}
        if moved:
            self._admin.move_group(group, moved)
        self._groups[group] = here
        return len(moved)

    def close(self) -> None:
        """Abort what is not committed."""
        producer, self._producer = self._producer, None
        if producer is not None and self._open:
            try:
                producer.abort_transaction(_CLOSING_S)
            except (self._kafka.KafkaException, SystemError) as error:  # what has ended the copy is raised
                _log.debug("%s: the transaction was left to its timeout: %s", self.name, error)
        self._admin.close()
