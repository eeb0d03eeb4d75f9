"""Which record a worker takes next, so that order is kept where it is wanted.

A chain is what has an order: a key in a partition, or a partition. At most one task of a chain is with a worker, or
waits to be tried again; those behind it wait. Tasks without a chain wait for nobody.

    put       the reader: tasks, in the order of the log
    take      a worker: the next task whose chain is free
    done      a worker: it is handled, the chain moves on
    again     a worker: try it once more after a while; its chain waits, the worker does not
    fail      a worker: nobody takes anything any more, and the reader is told

Only this module's mutex is held in here, and no code of users runs under it.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from klamm.types import TopicPartition

if TYPE_CHECKING:
    from klamm.batch import Record

__all__ = ["Task", "Tasks"]


class Task:
    """A record to be handled."""

    __slots__ = ("attempts", "chain", "done", "next_offset", "place", "record")

    def __init__(self, record: Record, place: TopicPartition, chain: Any, next_offset: int) -> None:
        self.record = record
        self.place = place
        self.chain = chain
        """None: no order."""
        self.next_offset = next_offset
        self.attempts = 0
        self.done = False


class Tasks:
    """For one reader and many workers."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._for_workers = threading.Condition(self._mutex)
        self._for_reader = threading.Condition(self._mutex)
        self._ready: deque[Task] = deque()
        self._later: list[tuple[float, int, Task]] = []  # a heap
        self._behind: dict[Any, deque[Task]] = {}  # by chain; an entry, if empty, says that the chain is taken
        self._running: Counter[TopicPartition] = Counter()
        self._turn = itertools.count()
        self._ended = False
        self.count = 0
        """Tasks that were put and are not done."""
        self.error: BaseException | None = None
        """Why nobody goes on."""

    def put(self, tasks: Iterable[Task]) -> None:
        with self._mutex:
            behind, ready = self._behind, 0
            for task in tasks:
                self.count += 1
                if task.chain is not None:
                    waiting = behind.get(task.chain)
                    if waiting is not None:
                        waiting.append(task)
                        continue
                    behind[task.chain] = deque()
                self._ready.append(task)
                ready += 1
            self._for_workers.notify(ready)

    # ---- for workers

    def take(self) -> Task | None:
        """The next task; None at the end."""
        with self._mutex:
            while not self._ended:
                now = time.monotonic() if self._later else 0.0
                while self._later and self._later[0][0] <= now:
                    self._ready.append(heapq.heappop(self._later)[2])
                if self._ready:
                    task = self._ready.popleft()
                    self._running[task.place] += 1
                    return task
                self._for_workers.wait(self._later[0][0] - now if self._later else None)
            return None

    def done(self, task: Task) -> None:
        with self._mutex:
            task.done = True
            self._running[task.place] -= 1
            self.count -= 1
            self._move_on(task.chain)
            self._for_reader.notify()

    def again(self, task: Task, delay_s: float) -> None:
        with self._mutex:
            self._running[task.place] -= 1
            heapq.heappush(self._later, (time.monotonic() + delay_s, next(self._turn), task))
            self._for_workers.notify()  # whoever waits for a later one waits too long
            self._for_reader.notify()

    def fail(self, task: Task | None, error: BaseException) -> None:
        with self._mutex:
            if task is not None:
                self._running[task.place] -= 1
            if self.error is None:
                self.error = error
            self._end()

    def _move_on(self, chain: Any) -> None:
        if chain is None:
            return
        waiting = self._behind[chain]
        if waiting:
            self._ready.append(waiting.popleft())
            self._for_workers.notify()
        else:
            del self._behind[chain]

    # ---- for the reader

    def wait(self, over: Callable[[], bool], seconds: float) -> bool:
        """Until something is over, looked at whenever a task has ended; False if it is not in time."""
        with self._mutex:
            return self._for_reader.wait_for(over, seconds)

    def running(self, places: Iterable[TopicPartition] | None = None) -> int:
        """Tasks that workers have at hand. To be asked inside of `wait`."""
        counts = self._running
        return sum(counts.values()) if places is None else sum(counts[place] for place in places)

    def drop(self, places: Iterable[TopicPartition]) -> None:
        """Forget what waits of those partitions. What runs, runs on."""
        gone = set(places)
        with self._mutex:
            kept = [task for task in self._ready if task.place not in gone]
            later = [each for each in self._later if each[2].place not in gone]
            dropped = [task for task in self._ready if task.place in gone]
            dropped += [each[2] for each in self._later if each[2].place in gone]
            self.count -= len(dropped)
            self._ready = deque(kept)
            self._later = later
            heapq.heapify(self._later)
            for waiting in self._behind.values():
                if waiting and waiting[0].place in gone:  # a chain is of one partition
                    self.count -= len(waiting)
                    waiting.clear()
            for task in dropped:
                if task.chain is not None:
                    del self._behind[task.chain]

    def end(self) -> None:
        """Nobody takes anything any more."""
        with self._mutex:
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._for_workers.notify_all()
        self._for_reader.notify()
