"""A producer of librdkafka, and the thread that hears from it what became of each record.

    RecordForwarder.add(…) → librdkafka: batches, retries, acks → the thread → Delivery

Partitions are chosen here, so that a record's is known at once: a record with a key goes where it goes in a directory.

A report needs the GIL, and costs more while two threads compete for that. So the thread alone polls while many records
are outstanding, and `wait` flushes only for the last few.

The thread holds no reference to its stream: once that is dropped, what was produced is delivered, and the thread ends.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from klamm.batch import BatchDelivery, Delivery, DeliveryReports, Partitioner, RecordForwarder
from klamm.cluster.address import import_confluent_kafka, producer_options
from klamm.cluster.kafka_errors import error_of, fatal_error, translated
from klamm.errors import BufferFull, Closed, KlammError, RecordTooLarge
from klamm.times import to_ms

if TYPE_CHECKING:
    from klamm.client.serde import Serializer
    from klamm.cluster.cluster_core import ClusterCore

__all__ = ["RecordStream"]

_POLL_S = 0.1
_SLICE_S = 0.005  # how long `wait` leaves polling to the thread, before it looks whether that gets on
_FEW = 1_000  # records
_AGE_S = 3.0  # after which the partitions of a topic are looked up again
_MESSAGES = 10_000_000  # that librdkafka holds at most: the bytes are the limit
_DELIVERY_MS = 120_000


class _Failures:
    """Handlers of records that librdkafka does not take, or does not deliver. For any thread."""

    def __init__(self, path: str, block_s: float, on_error: Callable[[KlammError], object] | None) -> None:
        self._path = path
        self._block_s = block_s
        self._on_error = on_error
        self.is_broken = False
        """Whether librdkafka will never take a record again."""

    def wait(self, topic: str, error: Exception, size: int, since: float) -> None:
        """Wait until a record that was not taken is worth another try, or raise why it is not."""
        if isinstance(error, BufferError):
            if time.monotonic() - since >= self._block_s:
                raise BufferFull(
                    f"{self._path}: the buffer of the producer stayed full for {self._block_s:g} s",
                    hint="the record was not taken; send it again, or raise buffer_memory or max_block_ms",
                ) from None
            time.sleep(0.001)
            return
        if isinstance(error, import_confluent_kafka().KafkaException):
            about = error.args[0]
            if hasattr(about, "name") and about.name() == "MSG_SIZE_TOO_LARGE":
                raise RecordTooLarge(
                    f"{topic}: a record of {size} bytes is larger than message.max.bytes",
                    hint="send smaller records, or raise message.max.bytes in the address",
                ) from None
            self.is_broken = self.is_broken or about.fatal()
        with translated(self._path):
            raise error

    def fail(self, delivery: BatchDelivery, error: Any) -> None:
        """Report that a record was not delivered."""
        self.is_broken = self.is_broken or error.fatal()
        failure = error_of(f"{self._path}: {delivery.topic}/{delivery.partition}", error)
        if self._on_error is not None:
            self._on_error(failure)
        delivery.fail(failure)


class RecordStream:
    """A stream of records, for any thread."""

    def __init__(
        self,
        core: ClusterCore,
        config: Mapping[str, Any],
        *,
        acks: int,
        buffer_memory: int = 32 << 20,
        block_s: float = 60.0,
        sticky_bytes: int = 1,
        partitioner: Partitioner | None = None,
        serializer: Serializer | None = None,
        on_error: Callable[[KlammError], object] | None = None,
        in_transactions: bool = False,
    ) -> None:
        """Start. `config` is librdkafka's, over that of the address. `sticky_bytes`: of records without a key, before
        they go on to the next partition. `on_error` is called, in a thread, with what failed.
        """
        kafka = import_confluent_kafka()
        self._core = core
        self._sticky_bytes = sticky_bytes
        self._users = (partitioner, *(serializer or (None, None)))
        self._failures = _Failures(core.path, block_s, on_error)
        self._forwarders: dict[str, RecordForwarder] = {}
        self.reports = DeliveryReports(self._failures.fail, knows_offsets=acks != 0)
        if in_transactions:
            self.reports.held = []
        full = {
            "linger.ms": 5,
            "message.timeout.ms": _DELIVERY_MS,
            "queue.buffering.max.messages": _MESSAGES,
            "queue.buffering.max.kbytes": max(1, buffer_memory >> 10),
            **producer_options(core.config),
            "acks": acks,
            "enable.idempotence": acks == -1,
            **({} if acks == -1 else {"max.in.flight.requests.per.connection": 1}),  # retries keep the order
            **config,
        }
        with translated(core.path):
            self.producer = kafka.Producer(full, logger=core.admin.logger)
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=_listen, args=(self.producer, self._is_over), name="klamm-cluster-producer", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._is_over.set)

    @property
    def is_broken(self) -> bool:
        """Whether librdkafka will never take a record again."""
        return self._failures.is_broken

    @property
    def is_in_callback(self) -> bool:
        """Whether the caller is a callback of a delivery."""
        return self.reports.is_calling

    # ---- producing

    def forwarder(self, topic: str) -> RecordForwarder:
        """Return what takes the records of a topic: bytes, or what the serializers take. BufferFull if there is no
        space for one in time. UnknownTopic if there is no such topic.
        """
        found = self._forwarders.get(topic)
        if found is None:
            core = self._core

            def look_up(forwarder: RecordForwarder) -> None:
                about = core.topic(forwarder.topic).topic
                forwarder.describe(
                    len(about.partitions),
                    keyed="compact" in about.settings.cleanup_policy,
                    is_stamped=about.settings.message_timestamp_type == "LogAppendTime",
                    valid_s=_AGE_S,
                )
                _ = core.heads.catalog_version  # which lets it look whether topics have changed

            found = self._forwarders[topic] = RecordForwarder(
                topic,
                self.reports,
                self.producer.produce,
                look_up,
                self._failures.wait,
                *self._users,
                first=len(self._forwarders),
                sticky_bytes=self._sticky_bytes,
            )
        return found

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
        """Take one record."""
        time_ms = timestamp if timestamp is None or type(timestamp) is int else to_ms(timestamp)
        delivery: Delivery | None = self.forwarder(topic).add(key, value, headers, time_ms, partition)
        if delivery is None:
            raise self.closed()
        return delivery

    def closed(self) -> Closed:
        """Return the error for a record that was not taken because the stream is closed."""
        return Closed(f"{self._core.path}: closed by another thread", hint="the record was not taken")

    # ---- the end

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until what was produced is delivered or has failed; False if it is not in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        reports = self.reports
        while outstanding := reports.outstanding:
            left = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
            if left <= 0:
                return False
            if outstanding > _FEW:
                time.sleep(min(left, _SLICE_S))
                if reports.outstanding < outstanding:
                    continue
                left = min(left, _SLICE_S)
            try:
                self.producer.flush(left)  # what lingers goes now
            except (import_confluent_kafka().KafkaException, SystemError) as error:
                fatal = fatal_error(error)
                if fatal is None:
                    raise
                self._failures.is_broken = True
                raise error_of(self._core.path, fatal) from error
            if reports.outstanding and not len(self.producer):
                time.sleep(0.0005)  # the thread is in the last callbacks
        return True

    def close(self, timeout_s: float | None = None) -> None:
        """Wait so long until what was produced is delivered or has failed; the thread ends soon after that."""
        for forwarder in list(self._forwarders.values()):
            forwarder.close()
        self._is_over.set()
        if self.reports.outstanding and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def give_up(self) -> None:
        """Close: what was not sent yet fails."""
        self.producer.purge(in_queue=True, in_flight=True, blocking=False)
        self.close(0)


def _listen(producer: Any, is_over: threading.Event) -> None:
    """Let librdkafka call back."""
    while not is_over.is_set() or len(producer):
        try:
            producer.poll(_POLL_S)
        except BaseException as error:  # noqa: BLE001  # without this thread no record would be acknowledged again
            if fatal_error(error) is not None:  # what was produced fails, too
                is_over.wait(_POLL_S)
            else:  # of a callback
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
