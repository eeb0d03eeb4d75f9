"""A producer: records in, batches out.

`send` puts a record into the open batch of its partition and returns at once. A batch is closed when it reaches
`batch_bytes` or when its first record has waited for `linger_ms`; what happens then is told in sender.py.

    send → RecordAccumulator (partition, open batch) → full → appended by the sender itself, if the append lock is free
                                    older than linger_ms → appended by the producer's thread

The fast path through `send` is native (batch/_accumulator.pxi): a look into `_accumulators`, and the record is in its
batch. A full buffer leads to the slow path; anything else that stands against the fast one (an error to be raised, a
thread that sleeps, a changed topic, a fork, a close) empties `_accumulators`, and the next `send` takes the slow path,
which sees to it.

An accumulator takes records only while the producer's thread is awake: before the thread sleeps, and before the
producer is closed, its accumulators are closed. A `send` in another thread that has its accumulator already looks again
after the serializers ran; so it never adds a record that the thread does not know of.

    awake    the thread refers to its producer: open accumulators, batches on their way
    asleep   it refers to nothing but the monitor; once the producer is dropped, it ends

Promises
  SND4  Records of one partition keep the order in which they were sent.
  SND5  A batch that failed is told at the next send, flush or close, and by the Delivery of each of its records.
  SND6  What is sent and not yet delivered takes at most `buffer_memory` and one record of each thread; beyond it,
        `send` waits, and after `max_block_ms` raises BufferFull without having taken its record. The `send` that
        exceeds it sends off all open batches.
  SND7  A `send` that returned is delivered or failed, also if another thread closes the producer or its store
        meanwhile, if the process ends, or if the producer is dropped. A `send` that comes too late raises.
"""

from __future__ import annotations

import logging
import time
import weakref
from typing import TYPE_CHECKING, Any, Self

from klamm.batch import BufferMemory, RecordAccumulator
from klamm.choices import Acks, Compression
from klamm.client.options import acks_of
from klamm.client.produce.record_sender import RecordSender
from klamm.client.produce.sender import Outcome, PartitionQueue, Sender
from klamm.client.produce.target import codec_of, limit_of
from klamm.client.serde import Serde, key_pair, value_pair
from klamm.disk import _os, fork
from klamm.disk.threads import DaemonThread
from klamm.errors import BufferFull, Closed, Forked, InvalidSetting, ReadOnly, StoreError, UnknownTopic
from klamm.store.directory import Core
from klamm.store.handle import StoreHandle
from klamm.times import Duration, to_timeout
from klamm.typevars import K, V

if TYPE_CHECKING:
    from types import TracebackType

    from klamm.batch import BatchDelivery, Partitioner
    from klamm.store.directory import OpenTopic

__all__ = ["Producer"]

_log = logging.getLogger("klamm")

_IDLE_S = 0.5  # how often a thread that sleeps looks whether its producer was dropped
_SENDING_S = 0.001  # how often to look for the record of a `send` that serializes, at the most
_RETRY_S = 0.0002
_TIMEOUT_S = 0.005  # how long a partition may refuse before it gets a thread that waits


class _ProducerTopic:
    """A topic of the producer: its accumulator, and a queue for each partition that had a batch."""

    __slots__ = ("_queues", "accumulator", "opened", "topic", "version")

    def __init__(self, opened: OpenTopic, accumulator: RecordAccumulator, version: int) -> None:
        self.opened = opened
        self.topic = opened.topic
        self.accumulator = accumulator
        self.version = version
        """Of the catalog, when the topic was last compared with it."""
        self._queues: dict[int, PartitionQueue] = {}

    def queue(self, number: int) -> PartitionQueue:
        found = self._queues.get(number)
        if found is None:
            found = self._queues[number] = PartitionQueue(self.opened.partition(number))
        return found

    def adopt(self, older: _ProducerTopic) -> None:
        """Take over the queues of the same topic, which had fewer partitions."""
        self._queues = older._queues


class _Anchor:
    """The reference that a producer's thread holds: strong while there is work, else weak."""

    __slots__ = ("has_thread", "is_closed", "producer", "reference")

    def __init__(self, producer: Producer[Any, Any]) -> None:
        self.producer: Producer[Any, Any] | None = None
        self.reference = weakref.ref(producer)
        self.has_thread = False
        self.is_closed = False

    def wait(self, monitor: _os.Monitor) -> Producer[Any, Any] | None:
        """Return the producer once it has work; None if it is closed, or was dropped."""
        with monitor:
            while self.producer is None and not self.is_closed and self.reference() is not None:
                monitor.wait(_IDLE_S)
            return self.producer


def _work(anchor: _Anchor, monitor: _os.Monitor) -> None:
    """Run the thread of a producer."""
    with monitor:
        if anchor.has_thread:  # Ctrl-C came when that had been started, and it is not known as the producer's thread
            return
        anchor.has_thread = True
    while (producer := anchor.wait(monitor)) is not None:
        try:
            producer._round()
        except BaseException:  # noqa: BLE001  # a callback may exit; but if the thread ended, flush would wait forever
            _log.exception("the thread of %r goes on after an error", producer)
            time.sleep(0.01)
        del producer


class Producer(StoreHandle, RecordSender[K, V], by="store.producer(…)", of=Core):
    """Sends records in batches; made by `store.producer()`. Threads may share it; forked children may not."""

    def __init__(
        self,
        core: Core,
        *,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        acks: Acks = "all",
        compression: Compression | None = None,
        compression_level: int | None = None,
        linger_ms: float = 5,
        batch_bytes: int = 64 << 10,
        buffer_memory: int = 32 << 20,
        max_block_ms: float = 60_000,
        partitioner: Partitioner | None = None,
        idempotent: bool = False,
    ) -> None:
        if core.read_only:
            raise ReadOnly(f"{core.path}: opened for reading only")
        if partitioner is not None and not callable(partitioner):
            raise TypeError(f"partitioner is {type(partitioner).__name__}; expected a callable (key, count)")
        self._core = core
        self._store: object = None  # whose producer it is, kept from being dropped
        self._values = value_pair(serde)
        self._keys = key_pair(key_serde, serde)
        self._partitioner = partitioner
        self._linger_s = _at_least(0, "linger_ms", linger_ms) / 1000
        full_bytes = int(_at_least(1, "batch_bytes", batch_bytes))
        self._batch_bytes = full_bytes if linger_ms else 1  # a batch of its own for each record: nothing waits
        self._memory = memory = BufferMemory(int(_at_least(1, "buffer_memory", buffer_memory)))
        self._block_s = _at_least(0, "max_block_ms", max_block_ms) / 1000
        producer_id = core.catalog.allocate_producer_id() if idempotent else -1
        codec = codec_of(compression, compression_level)
        self._sender = Sender(acks_of(acks), codec, compression_level, producer_id, memory)
        self._accumulators: dict[str, RecordAccumulator] = {}
        self._topics: dict[str, _ProducerTopic] = {}
        self._mutex = _os.Monitor()  # notified when there is work for the thread, or buffer space for a `send`
        self._thread: DaemonThread | None = None
        self._anchor = _Anchor(self)
        self._closed = False
        self._forked = False
        fork.register(self, Producer._in_child)

    def __repr__(self) -> str:
        return f"<Producer of {self._core.path}{', closed' if self._closed else ''}>"

    def __reduce__(self) -> str:
        raise TypeError("a producer cannot be pickled; pickle the store, and make a producer from it there")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception as failure:  # noqa: BLE001  # the error of the block is the one to be seen
            error.add_note(f"and the producer could not deliver everything: {failure}")

    # ---- sending

    @property
    def _is_full(self) -> bool:
        """Whether the next `send` may have to wait."""
        return self._memory.is_full

    def _find_accumulator(self, topic: str) -> RecordAccumulator:
        """Return the accumulator of `topic`, open. Raise pending errors, wait for buffer space, and wake the thread
        first.
        """
        if not isinstance(topic, str):
            raise TypeError(f"a topic's name is a str, not {type(topic).__name__}")
        self._check_usable()
        with self._mutex:
            self._raise_failed()
            if self._memory.is_full:
                self._wait_for_room()
                self._raise_failed()
            self._check_usable()
            accumulator = self._find_topic(topic).accumulator
            self._wake()
            accumulator.open()
            self._accumulators[topic] = accumulator
            return accumulator

    def _await_space(self) -> bool:
        """Wait for buffer space. Return False if the next `send` raises, for which there is a reason. For klamm.aio."""
        with self._mutex:
            if self._sender.errors or self._forked:
                return False
            self._wait_for_room()
            return not self._closed

    def _wait_for_room(self) -> None:
        memory = self._memory
        until = time.monotonic() + self._block_s
        while memory.is_full and not self._closed:
            self._wake()  # it sends off open batches
            left = until - time.monotonic()
            if left <= 0:
                raise BufferFull(
                    f"{memory.used} bytes wait to be appended or synced; buffer_memory is {memory.limit}",
                    hint="the record was not taken; send it again, or raise buffer_memory or max_block_ms",
                )
            self._mutex.wait(left)

    def _find_topic(self, topic: str) -> _ProducerTopic:
        """Return the producer's topic, built again if the topic has changed."""
        version = self._core.heads.catalog_version
        producer_topic = self._topics.get(topic)
        if producer_topic is not None and producer_topic.version == version:
            return producer_topic
        try:
            opened = self._core.topic(topic)
        except UnknownTopic:
            if producer_topic is not None:
                self._retire(producer_topic)
            raise
        same = producer_topic is not None and producer_topic.opened is opened
        if producer_topic is not None:
            if same and producer_topic.topic == opened.topic:
                producer_topic.version = version
                return producer_topic
            self._retire(producer_topic)
        before_ms, after_ms = opened.topic.settings.timestamp_limits_ms
        accumulator = RecordAccumulator(
            topic,
            opened.count,
            self._batch_bytes,
            limit_of(opened.topic.settings.max_message_bytes),
            self._partitioner,
            self._keys.to_bytes,
            self._values.to_bytes,
            keyed="compact" in opened.topic.settings.cleanup_policy,
            clock=self._core.heads,
            before_ms=before_ms,
            after_ms=after_ms,
            memory=self._memory,
        )
        made = _ProducerTopic(opened, accumulator, version)
        if producer_topic is not None and same:
            made.adopt(producer_topic)
        self._topics[topic] = made
        return made

    def _retire(self, producer_topic: _ProducerTopic) -> None:
        """Send off what it has, and forget it."""
        self._accumulators.pop(producer_topic.topic.name, None)
        producer_topic.accumulator.close()
        producer_topic.accumulator.drain()
        self._take_full(producer_topic)
        del self._topics[producer_topic.topic.name]

    def _ship(self, accumulator: RecordAccumulator) -> None:
        """Append the batches that are full; all, if the buffer is."""
        with self._mutex:
            if self._forked:
                raise _forked()
            if self._memory.is_full:
                self._take_all()
            else:
                producer_topic = self._topics.get(accumulator.topic)
                if producer_topic is not None:  # else it was retired, with all its batches
                    self._take_full(producer_topic)
        self._sender.run_callbacks()

    def _take_all(self) -> None:
        for producer_topic in list(self._topics.values()):
            producer_topic.accumulator.drain()
            self._take_full(producer_topic)

    def _take_full(self, producer_topic: _ProducerTopic) -> None:
        """Append its full batches, or queue them. One by one: what an interrupt leaves there, the thread takes."""
        sender, accumulator = self._sender, producer_topic.accumulator
        full = accumulator.full
        try:
            while full:
                number, builder, delivery = full[0]
                try:
                    queue = producer_topic.queue(number)
                except Exception as error:  # noqa: BLE001  # told by the delivery and the next send
                    sender.fail(delivery, error, builder.size)
                else:
                    sender.take(queue, accumulator, builder, delivery)
                del full[0]
        except BaseException:
            self._wake()
            raise
        if sender.errors or producer_topic.version != self._core.heads.catalog_version:
            self._accumulators.clear()
        if sender.has_work:
            self._wake()

    # ---- the thread

    def _wake_for_work(self) -> None:
        """Wake the thread after another one has appended: it syncs, and completes deliveries."""
        if self._sender.has_work or self._sender.has_completed:
            self._wake()
        self._mutex.notify_all()

    def _wake(self) -> None:
        """Wake the thread for the work there is; start it if there is none yet."""
        if self._thread is None:
            self._thread = DaemonThread(_work, "klamm-producer", self._anchor, self._mutex)
        self._anchor.producer = self
        self._mutex.notify_all()

    def _round(self) -> None:
        """Do what there is to do, or wait for it, or fall asleep."""
        sender = self._sender
        sender.run_callbacks()
        with self._mutex:
            self._drain_due()
            if not (sender.has_work or sender.has_completed):
                is_idle = self._close_idle_accumulators()
                if is_idle and not sender.is_busy:
                    self._anchor.producer = None
                    return
                self._mutex.wait(_IDLE_S if is_idle else self._poll_interval())
            queues = sender.busy_queues()
            batches = sender.begin_sync()
        if batches:
            failed = sender.sync(batches)
            with self._mutex:
                sender.end_sync(failed)
                self._after_work()
        if queues:
            self._append_waiting(queues)

    def _drain_due(self) -> None:
        """Close batches that have waited long enough; all of them if they take too much memory, or at the end."""
        everything = self._closed or self._memory.is_full
        before = float("inf") if everything else time.monotonic() - self._linger_s + 1e-9
        for producer_topic in list(self._topics.values()):
            if producer_topic.accumulator.oldest < before:
                producer_topic.accumulator.drain(before)
            if producer_topic.accumulator.full:
                self._take_full(producer_topic)

    def _close_idle_accumulators(self) -> bool:
        """Close the accumulators if they are empty, and return whether they are. Then the next `send` wakes the
        thread.
        """
        if self._is_filling(sending=not self._closed):  # once it is closed, a send takes no record
            return False
        self._accumulators.clear()
        for producer_topic in self._topics.values():
            producer_topic.accumulator.close()
        return not self._is_filling(sending=False)  # a send may have come in between

    def _is_filling(self, *, sending: bool) -> bool:
        """Return whether an accumulator has records; or, if asked for, a `send` is about to give it one."""
        accumulators = [producer_topic.accumulator for producer_topic in self._topics.values()]
        return any([each.bytes or each.full or (sending and each.sending) for each in accumulators])  # noqa: C419  # no generator: one that is dropped swallows an interrupt

    def _poll_interval(self) -> float:
        """Return how long no batch is due. What a `send` is about to add waits for `linger_ms`, too."""
        accumulators = [producer_topic.accumulator for producer_topic in self._topics.values()]
        soonest = (
            min((accumulator.oldest for accumulator in accumulators), default=float("inf"))
            + self._linger_s
            - time.monotonic()
        )
        if any(accumulator.sending for accumulator in accumulators):
            soonest = min(soonest, max(self._linger_s, _SENDING_S))
        return max(0.0, min(soonest, _IDLE_S))

    def _append_waiting(self, queues: list[PartitionQueue]) -> None:
        """Try to append what waits."""
        now = time.monotonic()
        refused = 0
        for queue in queues:
            outcome = self._sender.append_first(queue, wait=False)
            if outcome is not None:
                self._first_is_done(queue, outcome)
            elif not queue.refused_since:
                queue.refused_since = now
                refused += 1
            elif now - queue.refused_since < _TIMEOUT_S:
                refused += 1
            else:
                queue.has_thread = True
                DaemonThread(self._wait_for, "klamm-producer-partition", queue)
        if refused == len(queues):
            time.sleep(_RETRY_S)

    def _wait_for(self, queue: PartitionQueue) -> None:
        """Append what waits in a queue whose appends were rejected for long. Runs in a thread of its own."""
        while queue.waiting:
            outcome = self._sender.append_first(queue, wait=True)
            assert outcome is not None
            self._first_is_done(queue, outcome)
        with self._mutex:
            queue.has_thread = False  # more may have come since
            self._wake_for_work()

    def _first_is_done(self, queue: PartitionQueue, outcome: Outcome) -> None:
        queue.refused_since = 0.0
        with self._mutex:
            self._sender.first_is_done(queue, outcome)
            self._after_work()
            self._wake_for_work()

    def _after_work(self) -> None:
        if self._sender.errors:
            self._accumulators.clear()
        if not self._memory.is_full:
            self._mutex.notify_all()

    # ---- the end

    def flush(self, timeout: Duration | None = None) -> None:
        """Return when everything that was sent is delivered, and the callbacks of that were called.

        TimeoutError after `timeout` (seconds, or a timedelta). Raises what went wrong with a batch, if that was not
        told yet. Not for callbacks of deliveries.
        """
        self._check_usable()
        self._check_not_in_callback("flush()")
        timeout_s = to_timeout("timeout", timeout)
        with self._mutex:
            self._take_all()
        self._wait_for_deliveries(timeout_s)

    def _wait_for_deliveries(self, timeout_s: float | None) -> None:
        self._sender.run_callbacks()
        with self._mutex:
            outstanding: list[BatchDelivery] = self._sender.outstanding()
        until = None if timeout_s is None else time.monotonic() + timeout_s

        def left() -> float | None:
            return None if until is None else max(0.0, until - time.monotonic())

        for delivery in outstanding:
            if not (delivery.wait(left()) and delivery.wait_for_callbacks(left())):
                raise TimeoutError(f"not everything was delivered within {timeout_s:g} s")
        with self._mutex:
            self._raise_failed()

    def close(self, timeout: Duration | None = None) -> None:
        """Flush, and end. What went wrong and was not told yet is raised here. Not for callbacks of deliveries.

        A `send` of another thread is delivered, or raises. After TimeoutError the thread goes on with what is left.
        """
        if self._forked:
            return  # in a forked child, what was sent is the parent's to deliver
        self._check_not_in_callback("close()")
        timeout_s = to_timeout("timeout", timeout)
        try:
            with self._mutex:
                self._closed = self._anchor.is_closed = True
                self._accumulators.clear()
                for producer_topic in self._topics.values():
                    producer_topic.accumulator.close()
                self._mutex.notify_all()
                self._take_all()  # Ctrl-C here: the thread does it
            self._wait_for_deliveries(timeout_s)
        finally:
            if self._thread is not None:
                self._thread.join(timeout_s)

    def _check_not_in_callback(self, call: str) -> None:
        """Refuse to wait for deliveries in a thread that delivers."""
        if self._sender.is_in_callback():
            raise StoreError(
                f"{call} in a callback of a delivery would wait for itself",
                hint="call it in another thread, or when the callback has returned",
            )

    def _check_usable(self) -> None:
        if self._forked:
            raise _forked()
        if self._closed:
            raise Closed("the producer is closed", hint="make another with store.producer()")

    def _raise_failed(self) -> None:
        errors = self._sender.errors
        if errors:
            self._sender.errors = []
            error = errors[0].with_traceback(None)
            if len(errors) > 1:
                error.add_note(f"{len(errors)} batches failed since this was last told")
            raise error

    def _in_child(self) -> None:
        self._forked = True
        self._accumulators = {}
        self._mutex = _os.Monitor()
        self._thread = None
        self._anchor.producer = None


def _forked() -> Forked:
    return Forked("this producer was made before the fork", hint="make another with store.producer() in the child")


def _at_least(least: float, name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} is a number, not {type(value).__name__}")
    if not value >= least:
        raise InvalidSetting(f"{name}: {value} is invalid", hint=f"expected at least {least}")
    return float(value)
