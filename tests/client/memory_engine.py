"""A second reading engine, without files: what read_engine.py promises, and nothing of how log_engine.py does it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from klamm.batch import BAD_RAISE, BAD_SKIP, Record
from klamm.client.consume.read_engine import TURN_S, ReadFormat, Records, SeenVersions
from klamm.client.consume.record_format import converted
from klamm.errors import StoreBusy, StoreError
from klamm.types import Position, TopicPartition

__all__ = ["MemoryEngine", "MemoryLog"]


class MemoryLog:
    """Topics in memory, for any thread."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._records: dict[TopicPartition, list[Record]] = {}

    def append(self, name: TopicPartition, values: Iterable[bytes]) -> None:
        with self.changed:
            records = self._records.setdefault(name, [])
            for value in values:
                records.append(Record(*name, len(records), 0, None, value, leader_epoch=0))
            self.changed.notify_all()

    def read(self, name: TopicPartition, begin: int, count: int) -> list[Record]:
        return self._records.get(name, [])[begin : begin + count]


class _Cursor:
    def __init__(self, name: TopicPartition, position: Position) -> None:
        self.name = name
        self.handed = Records(name, position, position)
        self.chunk: deque[Record] = deque()  # that was read, and not returned
        self.is_paused = False

    def seek(self, position: Position) -> None:
        self.chunk.clear()
        before, self.handed = self.handed, Records(self.name, position, position)
        before.end_iteration()


class MemoryEngine:
    """See klamm.client.consume.read_engine.ReadEngine."""

    def __init__(self, log: MemoryLog, read_format: ReadFormat, *, chunk: int = 8, turn_s: float = TURN_S) -> None:
        self.seen = SeenVersions()
        self.is_waiting = False
        self._log = log
        self._format = read_format
        self._chunk_records = chunk
        self._turn_s = turn_s
        self._cursors: dict[TopicPartition, _Cursor] = {}
        self._order: deque[TopicPartition] = deque()
        self._returned: _Cursor | None = None
        self._turn = threading.Lock()
        self._owner = 0
        self._asking = 0
        self._interrupts = self._answered = 0
        self.is_closed = False

    # ---- reading

    def next_records(self, max_records: int, timeout_s: float | None) -> Records | None:
        self._check_outside()
        while self._asking:
            time.sleep(0.0001)
        with self._held(self._turn.acquire):
            self._check_open()
            self._put_back()
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            while True:
                name = self._first_with_records()
                if name is not None:
                    records = self._take(name, max_records)
                    if records is not None or self.is_closed:
                        return None if self.is_closed else records
                    self._put_back()
                elif timeout_s == 0 or not self._wait(deadline):
                    return None

    def _first_with_records(self) -> TopicPartition | None:
        """Return the first of the queue that has a chunk, or gets one."""
        for name in self._order:
            cursor = self._cursors[name]
            if not cursor.is_paused:
                if not cursor.chunk:
                    cursor.chunk.extend(self._log.read(name, cursor.handed.offset, self._chunk_records))
                if cursor.chunk:
                    return name
        return None

    def _take(self, name: TopicPartition, most: int) -> Records | None:
        cursor = self._cursors[name]
        position = cursor.handed.position
        found: list[Any] = []
        offsets: list[int] = []
        for record in list(cursor.chunk)[:most]:
            try:
                found.append(converted(record, self._format))
            except Exception:
                if self._format.on_bad == BAD_RAISE:
                    if found:
                        break
                    raise
                if self._format.on_bad == BAD_SKIP:
                    position = Position(record.offset + 1, 0)
                    continue
                found.append(converted(record, self._format._replace(key_of=None, value_of=None)))
            offsets.append(record.offset)
            position = Position(record.offset + 1, 0)
        self._returned = cursor
        records = cursor.handed = Records(name, cursor.handed.position, position, found, offsets)
        return records if found else None

    def _put_back(self) -> None:
        """Drop what was handed out; a partition whose chunk is used up goes to the end of the queue."""
        cursor, self._returned = self._returned, None
        if cursor is not None:
            cursor.handed = cursor.handed.stop()
            while cursor.chunk and cursor.chunk[0].offset < cursor.handed.offset:
                cursor.chunk.popleft()
            if not cursor.chunk:
                name = next((name for name, each in self._cursors.items() if each is cursor), None)
                if name is not None:
                    self._order.remove(name)
                    self._order.append(name)

    def _wait(self, deadline: float | None) -> bool:
        with self._log.changed:
            if self._interrupts == self._answered and not self.is_closed and not self._has_records():
                self.is_waiting = True
                self._log.changed.wait(None if deadline is None else max(0, deadline - time.monotonic()))
                self.is_waiting = False
            if self._interrupts != self._answered:
                self._answered = self._interrupts
                return False
        return not self.is_closed and (deadline is None or time.monotonic() < deadline)

    def _has_records(self) -> bool:
        return any(
            not cursor.is_paused and self._log.read(name, cursor.handed.offset, 1)
            for name, cursor in self._cursors.items()
        )

    # ---- positions

    def handed_out(self, partition: TopicPartition) -> Records | None:
        cursor = self._cursors.get(partition)
        return None if cursor is None else cursor.handed

    def positions(self) -> dict[TopicPartition, Position]:
        return {name: cursor.handed.position for name, cursor in self._cursors.items()}

    def reads(self, name: TopicPartition, partition: object) -> bool:
        return name in self._cursors

    # ---- what is read

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        with self._urgent():
            self._cursors = {**self._cursors, **{name: _Cursor(name, position) for name, position in positions.items()}}
            self._order.extend(name for name in positions if name not in self._order)

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        with self._urgent():
            self._cursors = {name: cursor for name, cursor in self._cursors.items() if name not in gone}
            self._order = deque(name for name in self._order if name not in gone)

    def move(self, positions: Mapping[TopicPartition, Position]) -> None:
        with self._urgent():
            for name, position in positions.items():
                if name in self._cursors:
                    self._cursors[name].seek(position)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Iterable[TopicPartition], is_paused: bool) -> None:
        with self._urgent():
            for name in partitions:
                if name in self._cursors:
                    self._cursors[name].is_paused = is_paused

    def use(self, read_format: ReadFormat) -> ReadFormat:
        with self._urgent():
            before, self._format = self._format, read_format
            for cursor in self._cursors.values():
                cursor.seek(cursor.handed.position)
        return before

    # ---- other threads

    def interrupt(self) -> None:
        with self._log.changed:
            self._interrupts += 1
            self._log.changed.notify_all()

    def close(self) -> None:
        self.is_closed = True
        if self._owner != threading.get_ident():
            with suppress(StoreBusy), self._urgent(is_closing=True):
                pass

    @contextmanager
    def _urgent(self, *, is_closing: bool = False) -> Iterator[None]:
        if not is_closing:
            self._check_open()
            self._check_outside()
        self._asking += 1
        try:
            self.interrupt()
            with self._held(lambda: self._turn.acquire(timeout=self._turn_s)):
                yield
        finally:
            self._asking -= 1

    @contextmanager
    def _held(self, acquire: Any) -> Iterator[None]:
        if not acquire():
            raise StoreBusy("the thread that reads did not give its turn")
        self._owner = threading.get_ident()
        try:
            yield
        finally:
            self._owner = 0
            self._turn.release()

    def _check_outside(self) -> None:
        if self._owner == threading.get_ident():
            raise StoreError("used inside of a serde")

    def _check_open(self) -> None:
        if self.is_closed:
            raise StoreError("closed")
