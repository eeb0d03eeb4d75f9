"""A producer of librdkafka, and the thread that hears from it what became of each record.

    produce(topic, …) → librdkafka: batches, retries, acks → the thread → Delivery

Partitions are chosen here, so that a record's is known at once: a record with a key goes where it goes in a directory.

The thread holds no reference to its stream: once that is dropped, what was produced is delivered, and the thread ends.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from klamm.batch import BatchDelivery, Delivery, Partitioner, partition_for
from klamm.client.produce.target import keyless
from klamm.cluster.address import import_confluent_kafka, producer_options
from klamm.cluster.kafka_errors import error_of, raised_error, translated
from klamm.errors import BufferFull, KlammError, RecordTooLarge, UnknownTopic
from klamm.times import to_ms

if TYPE_CHECKING:
    from klamm.cluster.cluster_core import ClusterCore

__all__ = ["RecordStream", "known_offset", "plain_headers"]

_POLL_S = 0.1
_AGE_S = 3.0  # after which the partitions of a topic are looked up again
_MESSAGES = 10_000_000  # that librdkafka holds at most: the bytes are the limit
_DELIVERY_MS = 120_000


class _Topic:
    """A topic that is produced to."""

    __slots__ = ("count", "keyed", "known_until", "room", "stamps", "sticky")

    def __init__(self, count: int, keyed: bool, stamps: bool, sticky: int) -> None:
        self.count = count
        self.keyed = keyed
        self.stamps = stamps  # its timestamps are the servers'
        self.sticky = sticky % count  # where records without a key go
        self.room = 0  # bytes that may still go there
        self.known_until = time.monotonic() + _AGE_S


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
        on_error: Callable[[KlammError], object] | None = None,
    ) -> None:
        """Start. `config` is librdkafka's, over that of the address. `sticky_bytes`: of records without a key, before
        they go on to the next partition. `on_error` is called, in a thread, with what failed.
        """
        kafka = import_confluent_kafka()
        self._core = core
        self._acks = acks
        self._block_s = block_s
        self._sticky_bytes = sticky_bytes
        self._partitioner = partitioner
        self._on_error = on_error
        self._topics: dict[str, _Topic] = {}
        self._turn = 0
        self.outstanding: set[BatchDelivery] = set()
        """What was produced, and was not heard of yet."""
        self.is_broken = False
        """Whether librdkafka will never take a record again."""
        self.held: list[tuple[BatchDelivery, int, int]] | None = None
        """In a transaction: what arrived, its offset and the servers' time; it is resolved at the commit."""
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

    # ---- producing

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
        """Take one record: bytes, or None. BufferFull if there is no space for it in time."""
        known = self._topics.get(topic)
        if known is None or known.known_until < time.monotonic():
            known = self._look_up(topic)
        if partition is None:
            partition = self._choose(topic, known, key, value)
        elif not 0 <= partition < known.count:
            raise UnknownTopic(f"topic {topic!r} has no partition {partition}", hint=f"it has {known.count}")
        elif key is None and known.keyed:
            raise keyless(topic)
        time_ms = -1 if timestamp is None else timestamp if type(timestamp) is int else to_ms(timestamp)
        sent_ms = time.time_ns() // 1_000_000 if time_ms < 0 else time_ms
        batch = BatchDelivery(topic, partition)
        delivery = Delivery(batch, 0, sent_ms)
        outstanding, acks, stamps = self.outstanding, self._acks, known.stamps

        def delivered(error: Any, message: Any) -> None:
            outstanding.discard(batch)
            if error is None:
                offset, stamp = known_offset(message) if acks else -1, message.timestamp()[1] if stamps else -1
                if self.held is None:
                    batch.resolve(offset, stamp)
                else:
                    self.held.append((batch, offset, stamp))
            else:
                self._failed(batch, topic, error)

        plain = None if headers is None else plain_headers(headers)
        outstanding.add(batch)
        try:
            self._produce(topic, as_bytes(value, "value"), as_bytes(key, "key"), partition, sent_ms, plain, delivered)
        except BaseException:
            outstanding.discard(batch)
            raise
        return delivery

    def _produce(
        self, topic: str, value: Any, key: Any, partition: int, time_ms: int, headers: Any, delivered: Any
    ) -> None:
        deadline = 0.0
        while True:
            try:
                if headers is None:
                    self.producer.produce(topic, value, key, partition, delivered, timestamp=time_ms)
                else:
                    self.producer.produce(topic, value, key, partition, delivered, timestamp=time_ms, headers=headers)
                return
            except BufferError:
                now = time.monotonic()
                deadline = deadline or now + self._block_s
                if now >= deadline:
                    raise BufferFull(
                        f"{self._core.path}: the buffer of the producer stayed full for {self._block_s:g} s",
                        hint="the record was not taken; send it again, or raise buffer_memory or max_block_ms",
                    ) from None
                time.sleep(0.001)
            except import_confluent_kafka().KafkaException as error:
                about = error.args[0]
                if hasattr(about, "name") and about.name() == "MSG_SIZE_TOO_LARGE":
                    size = len(value or b"") + len(key or b"")
                    raise RecordTooLarge(
                        f"{topic}: a record of {size} bytes is larger than message.max.bytes",
                        hint="send smaller records, or raise message.max.bytes in the address",
                    ) from None
                self.is_broken = self.is_broken or about.fatal()
                with translated(self._core.path):
                    raise

    def _failed(self, batch: BatchDelivery, topic: str, error: Any) -> None:
        self.is_broken = self.is_broken or error.fatal()
        failure = error_of(f"{self._core.path}: {topic}/{batch.partition}", error)
        if self._on_error is not None:
            self._on_error(failure)
        batch.fail(failure)

    def _look_up(self, topic: str) -> _Topic:
        about = self._core.topic(topic).topic
        settings = about.settings
        before = self._topics.get(topic)
        sticky = self._turn if before is None else before.sticky
        self._turn += before is None
        found = self._topics[topic] = _Topic(
            len(about.partitions),
            "compact" in settings.cleanup_policy,
            settings.message_timestamp_type == "LogAppendTime",
            sticky,
        )
        assert self._core.heads.catalog_version  # which lets it look whether topics have changed
        return found

    def _choose(self, topic: str, known: _Topic, key: Any, value: Any) -> int:
        count = known.count
        if self._partitioner is not None:
            chosen = self._partitioner(key, count)
            if type(chosen) is not int or not 0 <= chosen < count:
                raise ValueError(f"the partitioner returned {chosen!r}, and {topic!r} has {count} partitions")
            return chosen
        if key is not None:
            return partition_for(key, count)
        if known.keyed:
            raise keyless(topic)
        if known.room <= 0:
            known.sticky = (known.sticky + 1) % count
            known.room = self._sticky_bytes
        known.room -= 64 + len(value or b"")
        return known.sticky

    # ---- the end

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until what was produced is delivered or has failed; False if it is not in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
            if not self.outstanding:
                return True
            if left <= 0:
                return False
            try:
                self.producer.flush(left)  # what lingers goes now
            except (import_confluent_kafka().KafkaException, SystemError) as error:
                self.is_broken = True
                raise error_of(self._core.path, raised_error(error)) from error
            if self.outstanding and not len(self.producer):
                time.sleep(0.0005)  # the thread is in the last callbacks

    def close(self, timeout_s: float | None = None) -> None:
        """Let the thread end when what was produced is delivered or has failed, and wait for that so long."""
        self._is_over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)


def _listen(producer: Any, is_over: threading.Event) -> None:
    """Let librdkafka call back."""
    while not is_over.is_set() or len(producer):
        try:
            producer.poll(_POLL_S)
        except (import_confluent_kafka().KafkaException, SystemError):  # a fatal error: what was produced fails, too
            is_over.wait(_POLL_S)
        except BaseException:  # noqa: BLE001  # of a callback: without this thread no record would be acknowledged again
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def known_offset(message: Any) -> int:
    """Return the offset of a record that was delivered. -1: it is not known, for the record was sent again after its
    leader had been lost, and the new one knew only that it had it.
    """
    offset = message.offset()
    return -1 if offset is None else int(offset)


def as_bytes(data: Any, what: str) -> Any:
    """Return what librdkafka takes."""
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"{what} is {type(data).__name__}; expected bytes (or give a serde)")


def plain_headers(headers: Any) -> list[tuple[str, bytes | None]]:
    """Return headers, which are a mapping or pairs, as librdkafka takes them."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, value.encode() if isinstance(value, str) else as_bytes(value, "a header")) for name, value in pairs]
