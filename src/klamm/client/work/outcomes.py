"""The outcome of a record after its handler has returned or raised: progress, retries, dead letters, hooks, counters.

    it returned                     done; on_done
    it raised, or took too long     on_failed; then by the policy (run_options.py) it is tried again after a delay,
                                    becomes a dead letter (on_dead_letter), or ends the run
    its partition was given up      nothing: its new owner handles it

Hooks get an Attempt and run in the thread that handled the record; for worker processes and async handlers, in a
thread of the reading process. A hook that raises ends the run with its error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.client.work.dead_letters import DeadLetterBox, attempts_before
from klamm.types import RunReport

if TYPE_CHECKING:
    from klamm.batch import Record
    from klamm.client.work.run_options import RunSettings
    from klamm.client.work.tasks import Task, Tasks
    from klamm.types import TopicPartition

__all__ = ["Attempt", "Outcomes"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to handle a record, as hooks of `consumer.run` get it."""

    record: Record
    """As it is in the log, before any serde."""
    number: int
    """1 for the first attempt of this run."""
    seconds: float
    """How long the handler took."""
    error: Exception | None = None
    """What it raised; None if it returned."""
    retry_in: float | None = None
    """Seconds until the next attempt; None if there is none."""


class Outcomes:
    """The outcomes of one run. Thread-safe, for any of its workers."""

    def __init__(
        self, settings: RunSettings, tasks: Tasks, box: DeadLetterBox, owns: Callable[[TopicPartition], bool]
    ) -> None:
        """Prepare. `owns`: whether the reader still has a partition, in its group."""
        self._settings = settings
        self._tasks = tasks
        self._box = box
        self._owns = owns
        self._mutex = threading.Lock()
        self._done = self._failed = self._dead_lettered = self._timed_out = self._lost = 0

    def report(self) -> RunReport:
        with self._mutex:
            return RunReport(self._done, self._failed, self._dead_lettered, self._timed_out, self._lost)

    def done(self, worker: int, task: Task, begun: float) -> bool:
        """Take in that a worker's handler, which began then, has returned. Return False if the worker is replaced."""
        counts = self._tasks.done(worker, counts=self._owns(task.tp))
        if counts is None:
            return False
        with self._mutex:
            self._done += counts
            self._lost += not counts
        if counts and self._settings.on_done is not None:
            self._settings.on_done(Attempt(task.record, task.attempts + 1, time.monotonic() - begun))
        return True

    def failed(self, worker: int, task: Task, begun: float, error: Exception, *, is_timeout: bool = False) -> bool:
        """Take in that it has raised. Return False if the worker is replaced.

        Raise what ends the run: the task is still the worker's then.
        """
        if not self._tasks.end_attempt(worker):
            return False
        if task.is_forgotten or not self._owns(task.tp):
            self._tasks.done(worker, counts=False)
            with self._mutex:
                self._lost += 1
            return True
        task.attempts += 1
        with self._mutex:
            self._failed += 1
            self._timed_out += is_timeout
        self._fail(worker, task, error, time.monotonic() - begun)
        return True

    def _fail(self, worker: int, task: Task, error: Exception, seconds: float) -> None:
        settings, record = self._settings, task.record
        delay_s = settings.delay_s(error, task.attempts)
        attempt = Attempt(record, task.attempts, seconds, error, delay_s)
        if settings.on_failed is not None:
            settings.on_failed(attempt)
        if delay_s is not None:
            self._tasks.again(worker, delay_s)
            return
        error.add_note(f"while handling {task}")
        if settings.on_error != "dead-letter":
            raise error
        self._box.put(record, task.attempts + attempts_before(record), error)  # raises if it cannot be written
        with self._mutex:
            self._dead_lettered += 1
        self._tasks.done(worker)
        if settings.on_dead_letter is not None:
            settings.on_dead_letter(attempt)
