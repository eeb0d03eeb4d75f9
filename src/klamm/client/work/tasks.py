"""The queue of records between a reader and its workers: keeps the order of each chain.

A chain is what has an order: a key in a partition, or a partition. At most one task of a chain is with a worker, or
waits to be tried again; those behind it wait. Tasks without a chain do not wait.

    put       the reader: tasks, in the order of the log
    take      a worker: the next task whose chain is free; it is the worker's until one of the next three, or pass_on
    done      a worker: it is handled, the chain moves on
    again     a worker: try it again after a delay; its chain waits, the worker does not
    fail      a worker, with or without a task: no worker takes another task, and the reader gets the error
    pass_on   the reader: another worker replaces one whose handler runs too long, and has its task from now on
    drop      the reader: forget the waiting tasks of some partitions
    forget    the reader: like drop, and what comes of the running ones does not count any more

Only this module's mutex is held in here, and no code of users runs under it. Mutex and conditions are native: an
interrupt of the reader (Ctrl-C), or of a worker (a handler's timeout may raise in its thread), leaves no lock held, and
what a worker has taken is known until it says what became of it, so the reader never waits for a worker that is gone.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from klamm.disk import _os
from klamm.types import TopicPartition

if TYPE_CHECKING:
    from klamm.batch import Record

__all__ = ["Task", "Tasks"]

_ALL = 2  # more than one
_NO_HANDLER = math.inf  # a task whose handler has ended


class Task:
    """A record to be handled."""

    __slots__ = ("attempts", "begun", "chain", "done", "is_forgotten", "next_offset", "record", "tp")

    def __init__(self, record: Record, tp: TopicPartition, chain: Any, next_offset: int) -> None:
        self.record = record
        self.tp = tp
        self.chain = chain
        """None: no order."""
        self.next_offset = next_offset
        self.attempts = 0
        self.begun = 0.0
        """When a worker took it last, by time.monotonic(); infinite once its handler has ended."""
        self.done = False
        self.is_forgotten = False
        """Its partition was given up while a worker had it."""

    def __str__(self) -> str:
        return f"{self.record.topic}/{self.record.partition} at offset {self.record.offset}"


class Tasks:
    """The queue of records between one reader and many workers."""

    def __init__(self) -> None:
        self._monitor = _os.Monitor()
        self._for_workers = _os.Condition(self._monitor)
        self._for_reader = _os.Condition(self._monitor)
        self._ready: deque[Task] = deque()
        self._later: list[tuple[float, int, Task]] = []  # a heap
        self._behind: dict[Any, deque[Task]] = {}  # by chain; an entry, if empty, says that the chain is taken
        self._taken: dict[int, Task] = {}  # by worker
        self._replaced: set[int] = set()  # workers whose tasks were passed on
        self._turn = itertools.count()
        self._ended = False
        self.count = 0
        """Tasks that were put and are not done."""
        self.error: BaseException | None = None
        """Why no worker goes on."""

    def put(self, tasks: Iterable[Task]) -> None:
        with self._monitor:
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

    def take(self, worker: int) -> Task | None:
        """Return the next task; None at the end, or if the worker is replaced."""
        with self._monitor:
            while not self._ended and worker not in self._replaced:
                now = time.monotonic()
                while self._later and self._later[0][0] <= now:
                    self._ready.append(heapq.heappop(self._later)[2])
                if self._ready:
                    task = self._taken[worker] = self._ready.popleft()
                    task.begun = now
                    return task
                self._for_workers.wait(self._later[0][0] - now if self._later else None)
            return None

    def end_attempt(self, worker: int) -> bool:
        """End the time of a worker's handler, which has returned or raised. Return False if the worker is replaced."""
        with self._monitor:
            task = self._taken.get(worker)
            if task is not None:
                task.begun = _NO_HANDLER
            return task is not None

    def done(self, worker: int, *, counts: bool = True) -> bool | None:
        """Return whether it counts: not if the task was forgotten. None if the worker is replaced."""
        with self._monitor:
            task = self._taken.pop(worker, None)
            if task is None:
                return None
            task.done = counts and not task.is_forgotten
            self._release(task)
            return task.done

    def _release(self, task: Task) -> None:
        self.count -= 1
        self._move_on(task.chain)
        self._for_reader.notify()

    def again(self, worker: int, delay_s: float) -> None:
        with self._monitor:
            task = self._taken.pop(worker)
            if task.is_forgotten:
                self._release(task)
                return
            heapq.heappush(self._later, (time.monotonic() + delay_s, next(self._turn), task))
            self._for_workers.notify()  # a worker that waits for a later one waits too long
            self._for_reader.notify()

    def fail(self, worker: int | None, error: BaseException) -> None:
        with self._monitor:
            if worker is not None:
                if worker in self._replaced:  # its record has failed already
                    return
                self._taken.pop(worker, None)
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

    def wait(self, is_over: Callable[[], bool], seconds: float) -> bool:
        """Return when `is_over()`, asked whenever a task has ended; False if it is not within `seconds`."""
        deadline = time.monotonic() + seconds
        with self._monitor:
            while not is_over():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._for_reader.wait(left)
            return True

    def running(self, tps: Iterable[TopicPartition] | None = None) -> int:
        """Return how many tasks workers have at hand. To be asked inside of `wait`."""
        taken = self._taken.values()
        return len(taken) if tps is None else sum(task.tp in tps for task in taken)

    def busy(self) -> set[int]:
        """Return the workers that have a task."""
        with self._monitor:
            return set(self._taken)

    def running_since(self) -> float | None:
        """Return since when the handler runs that runs longest; None if none does."""
        with self._monitor:
            begun = min((task.begun for task in self._taken.values()), default=_NO_HANDLER)
        return None if begun == _NO_HANDLER else begun

    def taken_before(self, time_s: float) -> list[tuple[int, Task]]:
        """Return workers whose handlers began before that time and still run, with their tasks."""
        with self._monitor:
            return [(worker, task) for worker, task in self._taken.items() if task.begun < time_s]

    def pass_on(self, worker: int, to: int) -> bool:
        """Replace a worker whose handler runs too long: another one has its task. Return False if it has ended."""
        with self._monitor:
            task = self._taken.get(worker)
            if task is None or task.begun == _NO_HANDLER:
                return False
            task.begun = _NO_HANDLER
            self._taken[to] = self._taken.pop(worker)
            self._replaced.add(worker)
            return True

    def drop(self, tps: Iterable[TopicPartition]) -> None:
        """Forget the waiting tasks of those partitions. Those that run go on."""
        with self._monitor:
            self._drop(set(tps))

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """Forget the tasks of those partitions. The outcome of those that run is ignored."""
        gone = set(tps)
        with self._monitor:
            self._drop(gone)
            for task in self._taken.values():
                if task.tp in gone:
                    task.is_forgotten = True

    def _drop(self, gone: set[TopicPartition]) -> None:
        kept = [task for task in self._ready if task.tp not in gone]
        later = [each for each in self._later if each[2].tp not in gone]
        dropped = [task for task in self._ready if task.tp in gone]
        dropped += [each[2] for each in self._later if each[2].tp in gone]
        self.count -= len(dropped)
        self._ready = deque(kept)
        self._later = later
        heapq.heapify(self._later)
        for waiting in self._behind.values():
            if waiting and waiting[0].tp in gone:  # a chain is of one partition
                self.count -= len(waiting)
                waiting.clear()
        for task in dropped:
            if task.chain is not None:
                del self._behind[task.chain]

    def close(self) -> None:
        """Ignore the outcome of all tasks that still run."""
        with self._monitor:
            for task in self._taken.values():
                task.is_forgotten = True

    def end(self) -> None:
        """End the queue: no worker takes another task."""
        with self._monitor:
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._for_workers.notify(_ALL)
        self._for_reader.notify()
