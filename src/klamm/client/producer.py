"""A producer: records in, batches out.

`send` puts a record into the open batch of its partition and returns at once. A batch is closed when it reaches
`batch_bytes` or when its first record has waited for `linger_ms`; what happens then is told in sender.py.

    send → Lane (partition, open batch) → full → appended by the sender itself, if nobody is in the way
                                    older than linger_ms → appended by the producer's thread

The quick way through `send` is native (batch/_lane.pxi): a look into `_lanes`, and the record is in its batch. Whatever
stands against that (an error to be raised, a buffer that is full, a thread that sleeps, a fork, a close) empties
`_lanes`, and the next `send` takes the slow way, which sees to it.

Promises
  P4  Records of one partition keep the order in which they were sent.
  P5  A batch that failed is told at the next send, flush or close, and by the Delivery of each of its records.
  P6  What is sent and not yet delivered takes at most about `buffer_memory`; beyond it, `send` waits, and after
      `max_block_ms` raises BufferFull without having taken its record.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Self

from klamm.batch import Lane
from klamm.client.options import Acks, acks_of
from klamm.client.sender import Line, Outcome, Sender
from klamm.client.sending import RecordSending
from klamm.client.serde import Serde, key_pair, value_pair
from klamm.client.target import codec_of, limit_of
from klamm.disk import _os, fork
from klamm.disk.threads import DaemonThread
from klamm.errors import BufferFull, Forked, InvalidSetting, ReadOnly, StoreError, UnknownTopic

if TYPE_CHECKING:
    from types import TracebackType

    from klamm.batch import BatchDelivery, Partitioner
    from klamm.store.directory import Core, OpenTopic

__all__ = ["Producer"]

_log = logging.getLogger("klamm")

_IDLE_S = 0.5  # how often an idle producer's thread looks again: a send may have passed by while it fell asleep
_MEMORY_TICK_S = 0.02  # how often open batches are weighed
_RETIRED_S = 60.0  # how long a lane is watched that was replaced: a thread may be about to add to it
_RETRY_S = 0.0002
_PATIENCE_S = 0.005  # how long a partition may refuse before it gets a thread that waits


class _Road:
    """A topic of the producer: its lane, and a line for each partition that had a batch."""

    __slots__ = ("_lines", "lane", "opened", "retired", "topic")

    def __init__(self, opened: OpenTopic, lane: Lane) -> None:
        self.opened = opened
        self.topic = opened.topic
        self.lane = lane
        self.retired = 0.0
        self._lines: dict[int, Line] = {}

    def line(self, number: int) -> Line:
        found = self._lines.get(number)
        if found is None:
            found = self._lines[number] = Line(self.opened.partition(number))
        return found

    def adopt(self, older: _Road) -> None:
        """Go on with the lines of the same topic, which had fewer partitions."""
        self._lines = older._lines


class Producer(RecordSending):
    """Sends records in batches; made by `store.producer()`. Threads may share it; forked children may not."""

    def __init__(
        self,
        core: Core,
        *,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        acks: Acks = "all",
        compression: str | None = None,
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
            raise TypeError(f"partitioner is {type(partitioner).__name__}; want a callable (key, count) -> partition")
        self._core = core
        self._store: object = None  # whose producer it is, kept from being dropped
        self._values = value_pair(serde)
        self._keys = key_pair(key_serde, serde)
        self._partitioner = partitioner
        self._linger_s = _at_least(0, "linger_ms", linger_ms) / 1000
        self._batch_bytes = int(_at_least(1, "batch_bytes", batch_bytes)) if linger_ms else 1
        self._memory = int(_at_least(1, "buffer_memory", buffer_memory))
        self._block_s = _at_least(0, "max_block_ms", max_block_ms) / 1000
        producer_id = core.catalog.allocate_producer_id() if idempotent else -1
        self._sender = Sender(acks_of(acks), codec_of(compression, compression_level), compression_level, producer_id)
        self._lanes: dict[str, Lane] = {}
        self._roads: dict[Lane, _Road] = {}
        self._current: dict[str, _Road] = {}
        self._versions: dict[str, int] = {}
        self._mutex = _os.Monitor()  # notified when there is work for the thread, or buffer space for a `send`
        self._thread: DaemonThread | None = None
        self._closed = False
        self._forked = False
        fork.register(self)

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
        return self._sender.bytes > self._memory

    def _slow_lane(self, topic: str) -> Lane:
        """The lane of `topic`, after everything that is in the way was seen to."""
        if not isinstance(topic, str):
            raise TypeError(f"a topic's name is a str, not {type(topic).__name__}")
        self._check_usable()
        with self._mutex:
            self._raise_failed()
            if self._sender.bytes > self._memory:
                self._wait_for_room()
                self._raise_failed()
            self._check_usable()
            road = self._road(topic)
            if self._sender.bytes <= self._memory:
                self._lanes[topic] = road.lane
            self._start_thread()
            self._mutex.notify_all()
            return road.lane

    def _wait_for_room(self) -> None:
        self._start_thread()
        until = time.monotonic() + self._block_s
        while self._sender.bytes > self._memory and not self._closed:
            left = until - time.monotonic()
            if left <= 0:
                raise BufferFull(
                    f"{self._sender.bytes} bytes wait to be appended or synced; buffer_memory is {self._memory}",
                    hint="the record was not taken; send it again, or raise buffer_memory or max_block_ms",
                )
            self._mutex.wait(left)

    def _road(self, topic: str) -> _Road:
        """The topic's road, built anew if the topic has changed."""
        version = self._core.heads.catalog_version
        road = self._current.get(topic)
        if road is not None and self._versions[topic] == version:
            return road
        try:
            opened = self._core.topic(topic)
        except UnknownTopic:
            if road is not None:
                self._retire(road)
            raise
        self._versions[topic] = version
        if road is not None:
            same = road.opened is opened
            if same and road.topic == opened.topic:
                return road
            self._retire(road)
        before_ms, after_ms = opened.topic.settings.timestamp_limits_ms
        lane = Lane(
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
        )
        made = _Road(opened, lane)
        if road is not None and same:
            made.adopt(road)
        self._current[topic] = self._roads[lane] = made
        return made

    def _retire(self, road: _Road) -> None:
        """Send off what it has. It is watched for a while: a thread may be about to add to its lane."""
        road.retired = time.monotonic()
        self._current.pop(road.topic.name, None)
        self._lanes.pop(road.topic.name, None)
        road.lane.drain()
        self._take_full(road)

    def _ship(self, lane: Lane) -> None:
        """Append the batches that are full."""
        with self._mutex:
            if self._forked:
                raise _forked()
            self._take_full(self._roads[lane])
            settled = self._sender.take_settled()
        self._sender.answer(settled)

    def _take_full(self, road: _Road) -> None:
        sender, lane = self._sender, road.lane
        full = lane.take_full()
        try:
            while full:
                number, builder, delivery = full.pop(0)
                try:
                    line = road.line(number)
                except Exception as error:  # noqa: BLE001  # told by the delivery and the next send
                    sender.fail(delivery, error)
                else:
                    sender.take(line, lane, builder, delivery)
        finally:
            for number, builder, delivery in full:  # Ctrl-C: the thread goes on with the rest
                sender.hold(road.line(number), lane, builder, delivery)
        if (
            sender.errors
            or sender.bytes > self._memory
            or self._versions.get(road.topic.name) != self._core.heads.catalog_version
        ):
            self._lanes.clear()
        if sender.has_work:
            self._start_thread()
            self._mutex.notify_all()

    # ---- the thread

    def _start_thread(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = DaemonThread(self._run, "klamm-producer")

    def _run(self) -> None:
        while not self._closed or self._sender.has_work or self._sender.has_settled:
            try:
                self._round()
            except Exception:  # noqa: BLE001  # none is known; but if the thread ended, flush would wait for ever
                _log.exception("the thread of %r goes on after an error", self)
                time.sleep(0.01)

    def _round(self) -> None:
        sender = self._sender
        with self._mutex:
            self._drain_due()
            if not (sender.has_work or sender.has_settled or self._closed):
                self._mutex.wait(self._nap())
            settled = sender.take_settled()
            lines = sender.busy_lines()
            batches = sender.begin_sync()
        sender.answer(settled)
        if batches:
            failed = sender.sync(batches)
            with self._mutex:
                sender.end_sync(failed)
                self._after_work()
        if lines:
            self._append_waiting(lines)

    def _drain_due(self) -> None:
        """Close batches that have waited long enough; all of them if they take too much memory."""
        now = time.monotonic()
        weight = self._sender.bytes + sum(lane.bytes for lane in self._roads)
        before = now - self._linger_s if weight <= self._memory else float("inf")
        for lane, road in list(self._roads.items()):
            if lane.oldest <= before:
                lane.drain(before + 1e-9)
            if lane.full:
                self._take_full(road)
            elif road.retired and now - road.retired > _RETIRED_S:
                del self._roads[lane]

    def _nap(self) -> float:
        """How long there is nothing to do."""
        oldest = min((lane.oldest for lane in self._roads), default=float("inf"))
        if oldest == float("inf"):
            self._lanes.clear()  # the next send wakes us
            return _IDLE_S
        return max(0.0, min(oldest + self._linger_s - time.monotonic(), _MEMORY_TICK_S))

    def _append_waiting(self, lines: list[Line]) -> None:
        """Try to append what waits."""
        now = time.monotonic()
        refused = 0
        for line in lines:
            outcome = self._sender.append_first(line, wait=False)
            if outcome is not None:
                self._first_is_done(line, outcome)
            elif not line.refused_since:
                line.refused_since = now
                refused += 1
            elif now - line.refused_since < _PATIENCE_S:
                refused += 1
            else:
                line.has_thread = True
                DaemonThread(self._wait_for, "klamm-producer-partition", line)
        if refused == len(lines):
            time.sleep(_RETRY_S)

    def _wait_for(self, line: Line) -> None:
        """In a thread of its own: append what waits in a line that was refused for long."""
        while line.waiting:
            outcome = self._sender.append_first(line, wait=True)
            assert outcome is not None
            self._first_is_done(line, outcome)
        with self._mutex:
            line.has_thread = False  # somebody may have come since
            self._mutex.notify_all()

    def _first_is_done(self, line: Line, outcome: Outcome) -> None:
        line.refused_since = 0.0
        with self._mutex:
            self._sender.first_is_done(line, outcome)
            settled = self._sender.take_settled()
            self._after_work()
            self._mutex.notify_all()
        self._sender.answer(settled)

    def _after_work(self) -> None:
        if self._sender.errors:
            self._lanes.clear()
        if self._sender.bytes <= self._memory:
            self._mutex.notify_all()

    # ---- the end

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything that was sent is delivered; TimeoutError after `timeout` seconds.

        Raises what went wrong with a batch, if that was not told yet.
        """
        self._check_usable()
        self._flush(timeout)

    def _flush(self, timeout: float | None) -> None:
        with self._mutex:
            for road in list(self._roads.values()):
                road.lane.drain()
                self._take_full(road)
            settled = self._sender.take_settled()
        self._sender.answer(settled)
        with self._mutex:
            outstanding: list[BatchDelivery] = self._sender.outstanding()
        until = None if timeout is None else time.monotonic() + timeout
        for delivery in outstanding:
            if not delivery.wait(None if until is None else max(0.0, until - time.monotonic())):
                raise TimeoutError(f"not everything was delivered within {timeout} s")
        with self._mutex:
            self._raise_failed()

    def close(self, timeout: float | None = None) -> None:
        """Flush, and end. What went wrong and was not told yet is raised here."""
        if self._closed or self._forked:
            return  # in a forked child, what was sent is the parent's to deliver
        try:
            self._flush(timeout)
        finally:
            with self._mutex:
                self._closed = True
                self._lanes.clear()
                self._mutex.notify_all()
                thread = self._thread
            if thread is not None and not thread.is_current:
                thread.join(timeout)

    def _check_usable(self) -> None:
        if self._forked:
            raise _forked()
        if self._closed:
            raise StoreError("the producer is closed", hint="make another with store.producer()")

    def _raise_failed(self) -> None:
        errors = self._sender.errors
        if errors:
            self._sender.errors = []
            error = errors[0].with_traceback(None)
            if len(errors) > 1:
                error.add_note(f"{len(errors)} batches failed since this was last told")
            raise error

    def before_fork(self) -> None:
        """Nothing: the child does not use it."""

    def after_fork(self) -> None:
        """Nothing: the parent goes on."""

    def in_child(self) -> None:
        self._forked = True
        self._lanes = {}
        self._mutex = _os.Monitor()
        self._thread = None


def _forked() -> Forked:
    return Forked("this producer was made before the fork", hint="make another with store.producer() in the child")


def _at_least(least: float, name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} is a number, not {type(value).__name__}")
    if not value >= least:
        raise InvalidSetting(f"{name}: {value} does not fit", hint=f"want at least {least}")
    return float(value)
