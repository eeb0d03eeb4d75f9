"""A transaction of a cluster: records and offsets of groups, by librdkafka's transactional producer.

    begin → send → … → flushed → offsets of the groups, by their members' generations → committed

What Transaction promises (CTX1, CTX3) holds here, too. Where a commit gets no response in time its outcome is unknown:
its consumers go on where their groups are by then, which is behind its records if it was committed.

A producer that has aborted is not used again: librdkafka may give sequence numbers of purged records to others without
a new epoch, which the cluster then takes for duplicates.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Never

from klamm.client.consume.consumer import Consumer
from klamm.client.participants import pending_commits_of
from klamm.client.serde import Serde, Serializer, key_pair, value_pair
from klamm.client.transaction import Pool, Transaction
from klamm.cluster.address import import_confluent_kafka
from klamm.cluster.cluster_producer import STICKY_BYTES, batch_config, compression_config
from klamm.cluster.kafka_errors import error_of
from klamm.cluster.record_stream import RecordStream
from klamm.disk import fork
from klamm.errors import Aborted, Fenced, InvalidSetting, KlammError, ReadOnly, Unreachable, Unsupported
from klamm.times import Duration, to_seconds
from klamm.types import TopicPartition
from klamm.typevars import K, V

if TYPE_CHECKING:
    from klamm.batch import BatchDelivery, Delivery, Partitioner
    from klamm.choices import Compression
    from klamm.cluster.cluster_core import ClusterCore

__all__ = ["ClusterPool", "ClusterTransaction"]

_MAX_IDLE = 16
_CALL_S = 10.0  # of one call; then it is called again
_DEADLINE_S = 60.0
_LOOK_S = 0.5  # how long records are waited for, until the producer is asked whether they can still come
_log = logging.getLogger("klamm")


class _Writer:
    """A transactional producer, between transactions or in one."""

    def __init__(self, core: ClusterCore, name: str, options: tuple[tuple[str, Any], ...]) -> None:
        self.name = name
        self.options = options
        self.stream = RecordStream(
            core,
            {"transactional.id": name, **dict(options)},
            acks=-1,
            sticky_bytes=STICKY_BYTES,
            on_error=self._note,
            in_transactions=True,
        )
        self.errors: list[KlammError] = []

    def _note(self, error: KlammError) -> None:
        self.errors.append(error)


class ClusterPool(Pool):
    """The transactional producers of one Store object."""

    def __init__(self, core: ClusterCore) -> None:
        self.core = core
        self.own_commits = core.admin.own_commits
        self._cluster = core
        self._mutex = threading.Lock()
        self._idle_writers: list[_Writer] = []
        self._named_writers: dict[str, _Writer] = {}
        self._fenced: set[str] = set()
        self._open_ones: set[ClusterTransaction[Any, Any]] = set()
        self._closed = self._forked = False
        fork.register(self, ClusterPool._in_child)

    def begin(
        self, name: str | None, consumers: Consumer[Any] | Iterable[Consumer[Any]] = (), **options: Any
    ) -> Transaction[Any, Any]:
        core = self._cluster
        if core.read_only:
            raise ReadOnly(f"{core.path}: opened for reading only")
        if name is not None and (not isinstance(name, str) or not name):
            raise TypeError(f"the name of a transaction is a str, and not empty: {name!r}")
        transaction: ClusterTransaction[Any, Any] = ClusterTransaction(self, name, consumers, **options)
        transaction._writer = self._take(name, transaction._options)
        try:
            call(core.path, transaction._writer.stream.producer.begin_transaction)
        except BaseException as error:
            self.discard(transaction, error)
            raise
        with self._mutex:
            self._open_ones.add(transaction)
        transaction._hold_consumers()
        return transaction

    def _take(self, name: str | None, options: tuple[tuple[str, Any], ...]) -> _Writer:
        stale: _Writer | None = None
        with self._mutex:
            if name in self._fenced:
                raise Fenced(
                    f"transaction {name!r}: another process has begun one of this name", hint="open the store again"
                )
            if name is not None:
                stale = self._named_writers.pop(name, None)
                if stale is not None and stale.options == options:
                    return stale
            else:
                for writer in self._idle_writers:
                    if writer.options == options:
                        self._idle_writers.remove(writer)
                        return writer
        if stale is not None:
            stale.stream.close(0)
        writer = _Writer(self._cluster, name or f"klamm-{uuid.uuid4().hex}", options)
        call(self._cluster.path, writer.stream.producer.init_transactions, timed=True)
        return writer

    def keep(self, transaction: ClusterTransaction[Any, Any]) -> None:
        """Take back the producer of a transaction that was committed."""
        writer = transaction._writer
        with self._mutex:
            self._open_ones.discard(transaction)
            if writer is not None and not self._closed:
                if transaction.name is not None:
                    self._named_writers[transaction.name] = writer
                    return
                if len(self._idle_writers) < _MAX_IDLE:
                    self._idle_writers.append(writer)
                    return
        if writer is not None:
            writer.stream.close(0)

    def discard(self, transaction: ClusterTransaction[Any, Any], error: BaseException | None) -> None:
        """Forget the producer of a transaction that was not committed."""
        writer = transaction._writer
        with self._mutex:
            self._open_ones.discard(transaction)
            if isinstance(error, Fenced) and transaction.name is not None:
                self._fenced.add(transaction.name)
        if writer is not None:
            writer.stream.give_up()

    def close(self) -> None:
        if self._closed or self._forked:
            return
        failed: Exception | None = None
        for transaction in list(self._open_ones):
            try:
                transaction._close()
            except Exception as error:  # noqa: BLE001  # the others are ended, too; then it is raised
                failed = failed or error
        with self._mutex:
            self._closed = True
            writers = [*self._idle_writers, *self._named_writers.values()]
        for writer in writers:
            writer.stream.close(_CALL_S)
        if failed is not None:
            raise failed


class ClusterTransaction(Transaction[K, V], by="store.transaction(…)", of=ClusterPool):
    """Made by `store.transaction()` of a cluster."""

    def __init__(
        self,
        pool: ClusterPool,
        name: str | None,
        consumers: Consumer[Any] | Iterable[Consumer[Any]],
        *,
        timeout: Duration = 60,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        compression: Compression | None = None,
        compression_level: int | None = None,
        batch_bytes: int | None = None,
        partitioner: Partitioner | None = None,
    ) -> None:
        if batch_bytes is not None and type(batch_bytes) is not int:
            raise TypeError(f"batch_bytes is a whole number, not {type(batch_bytes).__name__}")
        if batch_bytes is not None and batch_bytes < 1:
            raise InvalidSetting(f"batch_bytes: {batch_bytes} is invalid", hint="expected at least 1")
        if partitioner is not None and not callable(partitioner):
            raise TypeError(f"partitioner is {type(partitioner).__name__}; expected a callable (key, count)")
        self.name = name
        self._pool = pool
        self._cluster_pool = pool
        self._core = pool.core
        self._identity = None
        self._accumulators = {}
        timeout_ms = max(1000, round(to_seconds("timeout", timeout, at_least=0.001) * 1000))
        config = {"transaction.timeout.ms": timeout_ms, "message.timeout.ms": timeout_ms, **batch_config(batch_bytes)}
        self._options = tuple({**config, **compression_config(compression, compression_level)}.items())
        self._partitioner = partitioner
        self._serializer = Serializer(key_pair(key_serde, serde).to_bytes, value_pair(serde).to_bytes)
        self._pending_commits = pending_commits_of(consumers, pool.core)
        self._writer: _Writer | None = None
        self._mutex = threading.RLock()
        self._is_skipped = False
        self._state = "open"
        self._failed = None
        self._forked = False
        fork.register(self, ClusterTransaction._in_child)

    def __del__(self) -> None:
        """Do nothing: a transaction that was dropped is aborted by the cluster when it times out."""

    # ---- records

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Any = None,
        timestamp: Any = None,
        partition: int | None = None,
    ) -> Delivery:
        """Take one record; it can be read once the transaction is committed."""
        self._check_open()
        if self._failed is not None:
            raise self._refused()
        writer = self._writer
        assert writer is not None
        if writer.errors:
            error = self._first_error(writer)
            self._fail(error)
            raise error
        key, value = self._serializer.pair(key, value)
        if partition is None and self._partitioner is not None:
            partition = self._partitioner(key, self._core.topic(topic).count)
        return writer.stream.send(topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition)

    def _find_accumulator(self, topic: str) -> Any:
        """Look a topic up, which may take a while: for klamm.aio."""
        self._check_open()
        self._core.topic(topic)
        self._accumulators[topic] = None  # type: ignore[assignment]  # librdkafka has the batches

    @property
    def _is_full(self) -> bool:
        return False

    def once(self, writer: str, number: int, *, fingerprint: str = "", target: str = "") -> Never:
        raise Unsupported(
            f"{self._core.path}: tx.once needs numbers that commit with the records; a cluster has no place for them",
            hint="commit the offsets of a group in the transaction (tx.commit_offsets): that is exactly once, too",
        )

    # ---- the end

    def _commit(self) -> None:
        writer = self._writer
        assert writer is not None
        is_begun = False
        try:
            if self._failed is not None:
                raise self._refused()
            self._await_reports(writer)
            if writer.errors:
                raise self._first_error(writer)
            producer = writer.stream.producer
            with self._members_held():
                for move in self._moves():
                    move.check_ownership()
                    member: Any = move.member
                    rows = self._core.groups.by_name(move.rows())  # type: ignore[attr-defined]  # those of a cluster
                    offsets = [member.as_offset(tp, row) for tp, row in rows.items()]
                    metadata = member.group_metadata()
                    call(
                        self._core.path,
                        lambda seconds, offsets=offsets, metadata=metadata: producer.send_offsets_to_transaction(
                            offsets, metadata, seconds
                        ),
                        timed=True,
                    )
                is_begun = True
                call(self._core.path, producer.commit_transaction, timed=True)
                self._complete_commits()
        except BaseException as error:
            self._fail(error)
            try:
                self._abort(error, is_unknown=is_begun and isinstance(error, Unreachable))
            except Exception as failure:  # noqa: BLE001  # the first error is the one to be seen
                error.add_note(f"and the transaction could not be aborted, which the cluster will see to: {failure}")
            raise
        self._end(True, None)

    def _await_reports(self, writer: _Writer) -> None:
        """Wait until each record is acknowledged or has failed. Raise what has ended the transaction as soon as that is
        known: librdkafka may keep records of a partition that was not added until they time out.
        """
        deadline = time.monotonic() + _DEADLINE_S
        while not writer.stream.wait(_LOOK_S):
            if (reason := self._why_ended(writer)) is not None:
                raise reason
            if time.monotonic() >= deadline:
                raise Unreachable(f"{self._core.path}: records were not acknowledged within {_DEADLINE_S:g} s")

    def _why_ended(self, writer: _Writer) -> KlammError | None:
        """Return why librdkafka takes no more of this transaction; None if it does."""
        try:
            writer.stream.producer.begin_transaction()  # within one it is refused: as such, or with that reason
        except import_confluent_kafka().KafkaException as error:
            about = error.args[0]
            return None if about.name() == "_STATE" else error_of(self._core.path, about)
        return None

    def _first_error(self, writer: _Writer) -> KlammError:
        """Return why a record was not taken. Of one that librdkafka has purged, the producer knows the reason."""
        error = writer.errors[0]
        if isinstance(error, Aborted) and (reason := self._why_ended(writer)) is not None:
            if isinstance(reason, Fenced):
                return reason
            error.add_note(str(reason))
        return error

    def _abort(self, error: BaseException | None, *, rewind: bool = True, is_unknown: bool = False) -> None:
        writer = self._writer
        try:
            if writer is not None and not is_unknown and not isinstance(error, Fenced) and not writer.stream.is_broken:
                call(self._core.path, writer.stream.producer.abort_transaction, timed=True)
        finally:
            self._end(False, error)
            if rewind:
                self._rewind(moved=True)

    def _end(self, committed: bool, error: BaseException | None) -> None:
        self._state = "committed" if committed else "aborted"
        for session in self._pending_commits:
            session.transaction = None
        writer = self._writer
        held: list[tuple[BatchDelivery, int, int]] = []
        if writer is not None:
            held, writer.stream.reports.held = writer.stream.reports.held or [], []
            if committed:
                self._cluster_pool.own_commits.add(
                    (TopicPartition(batch.topic, batch.partition), offset) for batch, offset, _ in held if offset >= 0
                )
                self._cluster_pool.keep(self)
            else:
                self._cluster_pool.discard(self, error)
        for batch, offset, stamp in held:
            if committed:
                batch.resolve(offset, stamp)
            else:
                batch.fail(Aborted("the transaction that the record was sent in was aborted"))

    def _in_child(self) -> None:
        self._forked = True
        self._mutex = threading.RLock()


def call(name: str, function: Callable[..., Any], *, timed: bool = False) -> None:
    """Call librdkafka, again if it says so, for at most _DEADLINE_S."""
    kafka = import_confluent_kafka()
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            function(*((_CALL_S,) if timed else ()))
        except kafka.KafkaException as error:
            about = error.args[0]
            if about.retriable() and not about.fatal() and time.monotonic() < deadline:
                continue
            if about.fatal() and about.name() == "_FATAL":
                _log.debug("%s: %s", name, about)
            raise error_of(name, about) from error
        else:
            return
