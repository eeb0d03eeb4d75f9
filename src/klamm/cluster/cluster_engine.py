"""The engine that reads a cluster. What it promises: client/consume/read_engine.py.

    librdkafka → messages → chunks, one for each partition → records that are returned

A consumer of librdkafka is assigned its partitions by hand, so it belongs to no group. Only the reading thread calls
it: what other threads change is written down (`_Cursor.is_stale`, `_gone`) and done when it reads next.

Partitions that have a chunk take turns; one gives its turn up after CHUNK_RECORDS. Which partitions have a chunk is
decided by what the servers send, and librdkafka asks all of them at the same time.

With a timeout of 0 what is there is returned: where partitions end is asked for, and records are waited for until each
is read up to there. While one is not read up to what was said in an earlier call, it is not asked again.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from klamm.batch import BAD_RAISE, BAD_SKIP, RECORDS, Record, records_of
from klamm.client.consume.read_engine import TURN_S, ReadFormat, Records, SeenVersions, position_is_gone
from klamm.client.consume.record_format import converted
from klamm.client.subscription import open_partitions
from klamm.cluster.address import import_confluent_kafka
from klamm.cluster.cluster_partition import not_before, reading_config, receive
from klamm.cluster.kafka_errors import ELECTING, OUT_OF_RANGE, error_of, translated
from klamm.disk._os import PriorityMutex
from klamm.errors import Closed, StoreBusy, StoreError, Unreachable
from klamm.types import Position, TopicPartition

if TYPE_CHECKING:
    from klamm.cluster.cluster_core import ClusterCore
    from klamm.log.partition import Ends, Partition

__all__ = ["ClusterEngine"]

CHUNK_RECORDS = 1_000
_AT_ONCE = 1_000  # messages
_MAX_HELD = 2_000  # records that were received and not returned; then librdkafka holds the others
_SLICE_S = 0.02  # of a wait: how soon an interrupt is seen
_SILENCE_S = 30.0  # a cluster that has records and sends none for so long does not answer
_offset_of = attrgetter("offset")
_log = logging.getLogger("klamm")


class _Cursor:
    """One partition: what was received of it, and how far that was handed out."""

    def __init__(self, name: TopicPartition, partition: Any, position: Position) -> None:
        self.name = name
        self.partition = partition
        self.handed = Records(name, position, position)
        self.chunk: list[Record] = []
        self.received = position.offset  # everything before is in the chunk, or was handed out
        self.is_paused = False
        self.is_stale = True  # librdkafka is to be told where to read
        self.has_turn = False  # it is in the engine's queue
        self.taken = 0  # records of this turn

    def seek(self, position: Position) -> None:
        self.chunk.clear()
        before, self.handed = self.handed, Records(self.name, position, position)
        before.end_iteration()
        self.received = position.offset
        self.is_stale = True
        self.taken = 0


class ClusterEngine:
    """A read engine on a cluster, for one reading thread; see read_engine.ReadEngine."""

    def __init__(
        self,
        core: ClusterCore,
        read_format: ReadFormat,
        *,
        max_bytes: int = 1 << 20,
        auto_offset_reset: str | None = None,
        committed: bool = True,
        spin_us: int = 0,
        turn_s: float = TURN_S,
    ) -> None:
        self.seen = SeenVersions()
        self.is_waiting = False
        self._kafka = import_confluent_kafka()
        self._core = core
        self._format = read_format
        self._reset = auto_offset_reset
        self._committed = committed
        self._turn_s = turn_s
        self._mutex = PriorityMutex()
        self._cursors: dict[TopicPartition, _Cursor] = {}  # replaced, never changed: any thread may look
        self._turns: deque[_Cursor] = deque()
        self._gone: list[TopicPartition] = []  # that librdkafka is to forget
        self._told: set[TopicPartition] = set()  # what it reads
        self._seen_ends: dict[TopicPartition, int] = {}  # where partitions ended when that was asked for last
        self._returned: _Cursor | None = None
        self._consumer: Any = None
        self._interrupted = threading.Event()
        self._is_closed = False

    # ---- reading

    def next_records(self, max_records: int, timeout_s: float | None) -> Records | None:
        if self._mutex.is_mine:
            self._check_outside()
        with self._mutex:
            try:
                self._check_open()
                self._put_back()
                deadline = None if timeout_s is None else time.monotonic() + timeout_s
                ends, is_asked = self._seen_ends, False
                silent_at = time.monotonic() + _SILENCE_S
                while True:
                    self._tell()
                    self._receive(0)
                    records = self._take(max_records)
                    if records is not None or self._is_closed:
                        return None if self._is_closed else records
                    if timeout_s == 0:
                        if any(cursor.received < ends.get(name, 0) for name, cursor in self._awake()):
                            if time.monotonic() > silent_at:
                                raise Unreachable(f"{self._core.path}: sent no records for {_SILENCE_S:g} s")
                            self._receive(_SLICE_S)
                            ends = ends if is_asked else {}  # of an earlier call, and there may be others by now
                        elif is_asked:
                            return None
                        else:
                            ends, is_asked = self._ends(), True
                            self._seen_ends = ends
                    elif not self._wait(deadline):
                        return None
            finally:
                if self._is_closed:
                    self._drop_consumer()

    def _awake(self) -> list[tuple[TopicPartition, _Cursor]]:
        return [(name, cursor) for name, cursor in self._cursors.items() if not cursor.is_paused]

    def _ends(self) -> dict[TopicPartition, int]:
        """Return where the partitions that are not paused end now."""
        names = [name for name, _ in self._awake()]
        ends = self._core.admin.ends(names)
        for name, each in ends.items():
            cursor = self._cursors[name]
            if not cursor.chunk:
                self._check_range(cursor, each)
        return {name: each.stable if self._committed else each.end for name, each in ends.items()}

    def _wait(self, deadline: float | None) -> bool:
        """Wait a little for messages; False if the caller is to look at what else has changed, or time is up."""
        left = _SLICE_S if deadline is None else deadline - time.monotonic()
        if self._interrupted.is_set():
            self._interrupted.clear()
            return False
        if left <= 0:
            return False
        self.is_waiting = True
        try:
            if not self._cursors:
                self._interrupted.wait(min(_SLICE_S, left))
                return False  # a member that is joining looks again soon
            self._receive(min(_SLICE_S, left))
        finally:
            self.is_waiting = False
        if self.seen.catalog not in (-1, self._core.heads.catalog_version):
            return False
        return not self._is_closed

    # ---- librdkafka

    def _tell(self) -> None:
        """Let librdkafka read what is to be read."""
        stale = [cursor for cursor in self._cursors.values() if cursor.is_stale]
        if not stale and not self._gone:
            return
        make = self._kafka.TopicPartition
        with translated(self._core.path):
            if self._consumer is None:
                config = reading_config(self._core, committed=self._committed)
                self._consumer = self._kafka.Consumer(config, logger=self._core.admin.logger)
            forget = self._told & {*self._gone, *(cursor.name for cursor in stale)}
            if forget:
                self._consumer.incremental_unassign([make(*name) for name in forget])
                self._told -= forget
            self._gone = []
            if stale:
                self._consumer.incremental_assign([make(*each.name, each.received) for each in stale])
                self._told |= {each.name for each in stale}
                self._set_reading([each for each in stale if each.is_paused], is_paused=True)
        for cursor in stale:
            cursor.is_stale = False

    def _set_reading(self, cursors: list[_Cursor], *, is_paused: bool) -> None:
        if cursors and self._consumer is not None:
            partitions = [self._kafka.TopicPartition(*cursor.name) for cursor in cursors]
            (self._consumer.pause if is_paused else self._consumer.resume)(partitions)

    def _receive(self, wait_s: float) -> None:
        """Take in messages, if there is space."""
        held = sum(len(cursor.chunk) for cursor in self._turns if not cursor.is_paused)
        if self._consumer is None or held >= _MAX_HELD:
            return
        try:
            with translated(self._core.path):
                messages = receive(self._consumer, _AT_ONCE, wait_s)
            for topic, number, received in records_of(messages):
                self._take_in(topic, number, received)
        except BaseException:  # librdkafka does not send again what was not taken in: it is told where to read
            for cursor in self._cursors.values():
                if cursor.chunk:
                    cursor.received = max(cursor.received, cursor.chunk[-1].offset + 1)
                cursor.is_stale = True
            raise

    def _take_in(self, topic: str | None, number: int, received: Any) -> None:
        """Add records of a partition to its chunk; or see to a message that tells of an error."""
        if topic is None:
            _log.debug("%s: %s", self._core.path, received.error())
            return
        cursor = self._cursors.get(TopicPartition(topic, number))
        if cursor is None or cursor.is_stale:
            return
        if not isinstance(received, list):
            self._take_error(cursor, received.error(), received.offset())
            return
        received = not_before(received, cursor.received)
        if not received:
            return
        if not cursor.has_turn:
            self._turns.append(cursor)
            cursor.has_turn = True
        cursor.chunk += received
        cursor.received = received[-1].offset + 1

    def _take_error(self, cursor: _Cursor, error: Any, offset: int) -> None:
        code = error.name()
        if code == "_PARTITION_EOF":
            cursor.received = max(cursor.received, offset)
            if not cursor.chunk and cursor is not self._returned:
                self._skip_to(cursor)
            return
        if code in OUT_OF_RANGE:
            cursor.is_stale = True  # asked again, by the next call
            if not cursor.chunk:  # what is before it comes first
                self._check_range(cursor, self._core.admin.ends([cursor.name])[cursor.name])
            return
        if code in ELECTING:
            _log.debug("%s: %s/%d: %s", self._core.path, *cursor.name, error)
            return
        cursor.is_stale = True
        raise error_of(f"{self._core.path}: {cursor.name.topic}/{cursor.name.partition}", error)

    def _check_range(self, cursor: _Cursor, ends: Ends) -> None:
        """Go on at the start or the end of a partition that does not have the position, any more or yet; or raise."""
        if ends.start <= cursor.received <= ends.end:
            return
        if self._reset in ("earliest", "latest"):
            cursor.seek(Position(ends.start if self._reset == "earliest" else ends.end))
            return
        cursor.is_stale = True
        raise position_is_gone(cursor.name, cursor.received, ends.start, ends.end)

    def _skip_to(self, cursor: _Cursor) -> None:
        """Move the position over what has no records: markers, and what was aborted."""
        position = cursor.handed.position
        if not cursor.handed.has_more and cursor.received > position.offset:
            skipped = Position(cursor.received, position.leader_epoch)
            cursor.handed = Records(cursor.name, skipped, skipped)

    # ---- returning records

    def _take(self, most: int) -> Records | None:
        """Return records of the partition whose turn it is."""
        while (cursor := self._first()) is not None:
            self._returned = cursor
            records = self._make(cursor, min(most, max(1, CHUNK_RECORDS - cursor.taken)))
            if records.has_more:
                return records
            self._put_back()  # nothing but records that were skipped
            if self._is_closed:
                break
        return None

    def _first(self) -> _Cursor | None:
        """Return the partition whose turn it is; None if none that is not paused has records."""
        for _ in range(len(self._turns)):
            cursor = self._turns[0]
            if not cursor.chunk or self._cursors.get(cursor.name) is not cursor:
                self._end_turn()
            elif cursor.is_paused:
                self._turns.rotate(-1)
            else:
                return cursor
        return None

    def _end_turn(self) -> None:
        cursor = self._turns.popleft()
        cursor.has_turn = False
        cursor.taken = 0

    def _make(self, cursor: _Cursor, most: int) -> Records:
        read_format, chunk = self._format, cursor.chunk
        begin = cursor.handed.position
        position = begin
        found: list[Any] = []
        offsets: list[int] = []
        count = min(most, len(chunk))
        if read_format.form == RECORDS and read_format.key_of is None is read_format.value_of:
            found = chunk[:count]
            last = found[-1]
            position = Position(last.offset + 1, last.leader_epoch)
            if position.offset - begin.offset != count:
                offsets = [record.offset for record in found]
        else:
            for record in chunk[:count]:
                after = Position(record.offset + 1, record.leader_epoch)
                try:
                    found.append(converted(record, read_format))
                except Exception:
                    if read_format.on_bad == BAD_RAISE:
                        if found:
                            break
                        raise
                    if read_format.on_bad == BAD_SKIP:
                        position = after
                        continue
                    found.append(converted(record, read_format._replace(key_of=None, value_of=None)))
                offsets.append(record.offset)
                position = after
        in_a_row = position.offset - begin.offset == len(found)
        if count == len(chunk) and position.offset == chunk[-1].offset + 1 and cursor.received > position.offset:
            position = Position(cursor.received, position.leader_epoch)  # markers, and what was aborted
        cursor.handed = Records(cursor.name, begin, position, found, None if in_a_row else offsets)
        return cursor.handed

    def _put_back(self) -> None:
        """Drop what was handed out; a partition that had its turn goes to the end of the queue."""
        cursor, self._returned = self._returned, None
        if cursor is None:
            return
        cursor.handed = cursor.handed.stop()
        chunk, offset = cursor.chunk, cursor.handed.offset
        count = bisect_left(chunk, offset, key=_offset_of)
        del chunk[:count]
        cursor.taken += count
        if self._turns and self._turns[0] is cursor and (not chunk or cursor.taken >= CHUNK_RECORDS):
            self._end_turn()
            if chunk:
                self._turns.append(cursor)
                cursor.has_turn = True
        if not chunk:
            self._skip_to(cursor)

    # ---- positions

    def handed_out(self, partition: TopicPartition) -> Records | None:
        cursor = self._cursors.get(partition)
        return None if cursor is None else cursor.handed

    def positions(self) -> dict[TopicPartition, Position]:
        return {name: cursor.handed.position for name, cursor in self._cursors.items()}

    def reads(self, name: TopicPartition, partition: Partition) -> bool:
        """Return whether it reads this very partition: the topic may have been deleted and re-created."""
        cursor = self._cursors.get(name)
        return cursor is not None and cursor.partition is partition

    # ---- what is read

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        found = open_partitions(self._core, positions)
        with self._turn():
            made = {name: _Cursor(name, partition, positions[name]) for name, partition in found.items()}
            self._cursors = {**self._cursors, **made}

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        with self._turn():
            self._gone += [name for name in self._cursors if name in gone]
            self._cursors = {name: cursor for name, cursor in self._cursors.items() if name not in gone}

    def move(self, positions: Mapping[TopicPartition, Position]) -> None:
        with self._turn():
            for name, position in positions.items():
                if name in self._cursors:
                    self._cursors[name].seek(position)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Iterable[TopicPartition], is_paused: bool) -> None:
        with self._turn():
            chosen = [self._cursors[name] for name in partitions if name in self._cursors]
            for cursor in chosen:
                cursor.is_paused = is_paused
            with translated(self._core.path):
                told = [cursor for cursor in chosen if not cursor.is_stale and cursor.name in self._told]
                self._set_reading(told, is_paused=is_paused)

    def use(self, read_format: ReadFormat) -> ReadFormat:
        with self._turn():
            before, self._format = self._format, read_format
            for cursor in self._cursors.values():
                cursor.handed = cursor.handed.stop()
            if self._returned is not None:
                self._put_back()
        return before

    # ---- other threads

    def _turn(self) -> AbstractContextManager[None]:
        """Hold the engine, from any thread."""
        self._check_open()
        self._check_outside()
        return self._urgent()

    def _urgent(self) -> AbstractContextManager[None]:
        return self._mutex.urgent(self._turn_s, self._interrupted.set, self._busy)

    def _check_outside(self) -> None:
        if self._mutex.is_mine:
            raise StoreError(
                "a consumer was used while it decodes a record", hint="do that outside of the serde's functions"
            )

    def interrupt(self) -> None:
        self._interrupted.set()

    def close(self) -> None:
        self._is_closed = True
        if self._mutex.is_mine:  # in a serde: the call that it is in closes the consumer
            return
        with suppress(StoreBusy), self._urgent():
            self._drop_consumer()

    def _drop_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the consumer is closed", hint="make another with store.consumer()")

    def _busy(self) -> StoreBusy:
        return StoreBusy(
            f"the thread that reads did not give its turn within {self._turn_s:g} s",
            hint="it hangs in a read, or in a function of its serde",
        )
