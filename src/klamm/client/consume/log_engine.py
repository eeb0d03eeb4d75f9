"""The engine that reads the logs of a store in this process. What it promises: read_engine.py.

    turns      cursors that may have something to read; the first one is being read
    poller     all heads that are not paused: which of them have moved, and waiting for one

A cursor keeps its turn until what was read of it at once (a chunk) is used up. Then it goes to the end of the queue,
and heads that have moved since join before it; of many heads, 512 are looked at each time. A cursor at the end of its
log leaves the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from klamm.client.consume.cursor import Cursor
from klamm.client.consume.read_engine import TURN_S, ReadFormat, Records, SeenVersions
from klamm.client.consume.stalled_transactions import StalledTransactions
from klamm.client.subscription import open_partitions
from klamm.disk._os import PriorityMutex
from klamm.errors import Closed, StoreBusy, StoreError
from klamm.log.head import Poller
from klamm.types import Position, TopicPartition

if TYPE_CHECKING:
    from klamm.log.partition import Partition
    from klamm.store.directory import Core

__all__ = ["LogEngine"]

_MAX_OPEN = 64  # files
_LOOKS = 512  # heads that are looked at between two reads
_WAIT_S = 0.5  # the longest wait of one call; transactions that stall are looked at in between


class LogEngine:
    """A ReadEngine (read_engine.py) over the logs of a store. For one reading thread."""

    def __init__(
        self,
        core: Core,
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
        self._core = core
        self._format = read_format
        self._max_bytes = max_bytes
        self._reset = auto_offset_reset
        self._committed = committed
        self._spin_us = spin_us
        self._turn_s = turn_s
        self._mutex = PriorityMutex()
        self._cursors: dict[TopicPartition, Cursor] = {}  # replaced, never changed: any thread may look
        self._awake: list[Cursor] = []  # those that are not paused, in the order of the poller
        self._turns: deque[Cursor] = deque()
        self._is_arranged = True  # else an exception came while turns were given, or something was changed
        self._reads = 0  # chunks
        self._poller = Poller(core.heads)
        self._with_files: dict[Cursor, None] = {}  # the least recently opened first
        self._returned: Cursor | None = None  # whose records were returned last
        self._stalled = StalledTransactions(core)
        self._is_closed = False

    # ---- reading

    def next_records(self, max_records: int, timeout_s: float | None) -> Records | None:
        if self._mutex.is_mine:
            self._check_outside()
        with self._mutex:
            try:
                if self._is_closed:
                    self._check_open()
                if self._returned is not None:
                    self._put_back()
                if not self._is_arranged:
                    self._arrange(gives_all_a_turn=True)
                while (cursor := self._ready(timeout_s)) is not None:
                    self._returned = cursor
                    records = cursor.take(max_records)
                    if records is not None:
                        return None if self._is_closed else records
                    cursor.put_back()
                return None
            except BaseException:
                self._is_arranged = False  # a turn may not have been given
                raise
            finally:
                if self._is_closed:
                    self._close_files()

    def _put_back(self) -> None:
        cursor, self._returned = self._returned, None
        if cursor is not None:
            cursor.put_back()

    def _ready(self, timeout_s: float | None) -> Cursor | None:
        """Return a cursor that has records to hand out; None if there is none in time."""
        turns = self._turns
        while True:
            while turns:
                cursor = turns[0]
                if cursor.has_more:
                    return cursor
                if cursor.is_used_up:  # others first
                    self._end_turn(cursor)
                    cursor.is_used_up = False
                    self._add_moved(_LOOKS)
                    self._give_turn(cursor)
                    if turns[0] is not cursor:
                        cursor.decoder.release()
                elif cursor.fill(self._reset):
                    self._reads += 1
                    cursor.last_read = self._reads
                    self._bound_files(cursor)
                    return cursor
                else:
                    self._end_turn(cursor)
                    self._bound_files(cursor)
                    self._poller.seen(cursor.index, cursor.seq, cursor.end)
            if not self._add_moved(-1) and not self._wait(timeout_s):
                return None

    def _add_moved(self, most: int) -> bool:
        """Give a turn to cursors whose heads have moved on. Return whether any has one."""
        self._core.heads.check_place()
        self._stalled.look(self._awake)
        for index in self._poller.moved(most):
            self._give_turn(self._awake[index])
        return bool(self._turns)

    # An exception may come between any two lines: then a cursor has two turns, which is better than none forever.

    def _give_turn(self, cursor: Cursor) -> None:
        if not cursor.has_turn:
            self._turns.append(cursor)
            cursor.has_turn = True

    def _end_turn(self, cursor: Cursor) -> None:
        cursor.has_turn = False
        self._turns.popleft()

    def _wait(self, timeout_s: float | None) -> bool:
        """Wait for a head to move; False if the caller is to look at what else has changed, or time is up."""
        if timeout_s == 0:
            return False
        wait_s = _WAIT_S if timeout_s is None else min(_WAIT_S, timeout_s)
        self.is_waiting = True
        try:
            found = self._poller.wait(int(wait_s * 1e6), self._spin_us, self.seen.catalog, self.seen.groups)
        finally:
            self.is_waiting = False
        if found is None or self._is_closed:
            return False
        index, data, next_offset = found
        cursor = self._awake[index]
        if data is not None:
            self._reads += 1
            cursor.last_read = self._reads
            cursor.reader.advance(len(data), next_offset)
            cursor.take_over(data)
        self._give_turn(cursor)
        return True

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
            self._is_arranged = False
            cursors = dict(self._cursors)
            for name, partition in found.items():
                if name in cursors:
                    self._forget(cursors[name])
                cursors[name] = Cursor(
                    partition, positions[name], self._format, committed=self._committed, max_bytes=self._max_bytes
                )
            self._cursors = cursors
            self._arrange()

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        with self._turn():
            self._is_arranged = False
            for name in gone & self._cursors.keys():
                self._forget(self._cursors[name])
            self._cursors = {name: cursor for name, cursor in self._cursors.items() if name not in gone}
            self._arrange()

    def move(self, positions: Mapping[TopicPartition, Position]) -> None:
        with self._turn():
            self._is_arranged = False
            for name, position in positions.items():
                if name in self._cursors:
                    self._cursors[name].seek(position)
            self._arrange()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Iterable[TopicPartition], is_paused: bool) -> None:
        with self._turn():
            self._is_arranged = False
            for name in partitions:
                if name in self._cursors:
                    self._cursors[name].is_paused = is_paused
            self._arrange()

    def use(self, read_format: ReadFormat) -> ReadFormat:
        with self._turn():
            self._is_arranged = False
            before, self._format = self._format, read_format
            for cursor in self._cursors.values():
                cursor.use(read_format)
            self._arrange()
        return before

    def _arrange(self, *, gives_all_a_turn: bool = False) -> None:
        """Queue the cursors that have a turn, after some came, went, moved or were paused.

        The least recently read is the first; but one whose chunk is not used up goes on with it: it takes memory.
        """
        self._awake = [cursor for cursor in self._cursors.values() if not cursor.is_paused]
        self._poller.watch([cursor.log for cursor in self._awake])
        for index, cursor in enumerate(self._awake):
            cursor.index = index
            cursor.has_turn = cursor.has_turn or gives_all_a_turn
            if not cursor.has_turn:
                self._poller.seen(index, cursor.seq, cursor.end)
        ready = [cursor for cursor in self._awake if cursor.has_turn]
        self._turns = deque(sorted(ready, key=lambda cursor: (not cursor.has_more, cursor.last_read)))
        self._is_arranged = True

    def _forget(self, cursor: Cursor) -> None:
        self._with_files.pop(cursor, None)
        cursor.reader.close()

    def _bound_files(self, cursor: Cursor) -> None:
        if cursor.reader.is_open and cursor not in self._with_files:
            self._with_files[cursor] = None
            if len(self._with_files) > _MAX_OPEN:
                oldest = next(iter(self._with_files))
                del self._with_files[oldest]
                oldest.reader.close()  # it keeps its position
                self._poller.forget_file(oldest.index)

    # ---- other threads

    def _turn(self) -> AbstractContextManager[None]:
        """Hold the engine, from any thread."""
        self._check_open()
        self._check_outside()
        return self._urgent()

    def _urgent(self) -> AbstractContextManager[None]:
        return self._mutex.urgent(self._turn_s, self._poller.interrupt, self._busy)

    def _check_outside(self) -> None:
        if self._mutex.is_mine:
            raise StoreError(
                "a consumer was used while it decodes a record", hint="do that outside of the serde's functions"
            )

    def interrupt(self) -> None:
        self._poller.interrupt()

    def close(self) -> None:
        self._is_closed = True
        if self._mutex.is_mine:  # in a serde: the call that it is in closes the files
            return
        with suppress(StoreBusy), self._urgent():
            self._close_files()

    def _close_files(self) -> None:
        for cursor in self._cursors.values():
            cursor.reader.close()
        self._with_files.clear()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the consumer is closed", hint="make another with store.consumer()")

    def _busy(self) -> StoreBusy:
        return StoreBusy(
            f"the thread that reads did not give its turn within {self._turn_s:g} s",
            hint="it hangs in a read, or in a function of its serde",
        )
