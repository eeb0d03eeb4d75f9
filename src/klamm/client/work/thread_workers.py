"""Workers that are threads, each with a process beside it if handlers are to run in processes.

A handler that takes longer than `timeout` fails with TimeoutError. A worker process is killed for it, and made again.
A thread cannot be stopped: another one takes its place and its record, and whatever the first still does counts for
nothing. At most as many threads as there are workers are left behind like that; one more ends the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from klamm.client.work.worker_process import CannotStart, HandlerTimeout, WorkerProcess, pickled
from klamm.disk.threads import DaemonThread

if TYPE_CHECKING:
    from klamm.client.work.tasks import Task
    from klamm.client.work.worker_context import WorkerContext

__all__ = ["ThreadWorkers"]

_KILLED_S = 5.0  # for a thread whose process was killed to notice


class ThreadWorkers:
    """The worker threads of one run."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._tasks = context.tasks
        self._outcomes = context.outcomes
        self._timeout_s = context.timeout_s
        self._count = count = context.settings.workers
        self._is_killed = False
        payload = pickled(context.handler, context.read_format) if context.settings.processes else None
        self._children = {n: WorkerProcess(payload) for n in range(count)} if payload is not None else {}
        self._threads = {number: self._thread(number, self.work, number) for number in range(count)}
        self._next_number = count
        self._left_behind: dict[int, threading.Thread] = {}

    def _thread(self, number: int, target: Callable[..., None], *arguments: object) -> threading.Thread:
        return threading.Thread(target=target, args=arguments, name=f"klamm-worker-{number}", daemon=True)

    def start(self) -> None:
        self._start(list(self._threads.values()))

    def _start(self, threads: list[threading.Thread]) -> None:
        """Start them in a thread: Thread.start waits in Python code, and Ctrl-C interrupts the main thread."""

        def start() -> None:
            try:
                for thread in threads:
                    thread.start()
            except RuntimeError as error:  # the system has no more threads
                self._tasks.fail(None, error)

        DaemonThread(start, "klamm-workers").join()

    # ---- in a worker

    def work(self, number: int) -> None:
        """Handle records until the run ends."""
        try:
            self._handle_tasks(number)
        except BaseException as error:  # noqa: BLE001  # SystemExit, or an exception from outside: `run` raises it
            self._tasks.fail(number, error)
        if self._tasks.error is not None:
            self._context.wake()

    def _handle_tasks(self, number: int) -> None:
        tasks = self._tasks
        while (task := tasks.take(number)) is not None:
            begun = task.begun
            try:
                self._handle(number, task)
            except HandlerTimeout:
                error = self._context.timeout_error(task)
                self._outcomes.failed(number, task, begun, error, is_timeout=True)
            except Exception as error:  # the policy decides
                if self._is_killed and isinstance(error, CannotStart | ChildProcessError):
                    return
                if isinstance(error, CannotStart):
                    raise
                if not self._outcomes.failed(number, task, begun, error):
                    return
            else:
                if not self._outcomes.done(number, task, begun):
                    return

    def _handle(self, number: int, task: Task) -> None:
        if self._children:
            self._children[number].handle(task.record, self._timeout_s)
            return
        result = self._context.call_handler(task)
        if result is not None and hasattr(result, "__await__"):
            if hasattr(result, "close"):
                result.close()
            raise TypeError("the handler returned an awaitable, which nothing awaits (make the handler an async def)")

    def _replace(self, number: int, task: Task, begun: float) -> None:
        """Replace a worker whose handler hangs."""
        error = self._context.timeout_error(task)
        try:
            self._outcomes.failed(number, task, begun, error, is_timeout=True)
        except BaseException as raised:  # noqa: BLE001  # as in `work`
            self._tasks.fail(number, raised)
        self.work(number)

    # ---- for the reader

    def next_deadline(self) -> float | None:
        """Return when `look_after` has something to do, by time.monotonic(); None: it never has."""
        if self._timeout_s is None or self._children:
            return None
        begun = self._tasks.running_since()
        return time.monotonic() + self._timeout_s if begun is None else begun + self._timeout_s

    def look_after(self) -> None:
        """Replace workers whose handlers have taken too long."""
        if self._timeout_s is None or self._children:
            return
        for number, task in self._tasks.taken_before(time.monotonic() - self._timeout_s):
            begun, new = task.begun, self._next_number
            if not self._tasks.pass_on(number, new):
                continue  # it has ended just now
            self._next_number += 1
            self._left_behind = {n: thread for n, thread in self._left_behind.items() if thread.is_alive()}
            self._left_behind[number] = self._threads.pop(number)
            if len(self._left_behind) > self._count:
                error = self._context.timeout_error(task)
                error.add_note(f"{len(self._left_behind)} handlers hang in threads, which cannot be stopped")
                self._tasks.fail(new, error)
                return
            self._threads[new] = self._thread(new, self._replace, new, task, begun)
            self._start([self._threads[new]])

    def is_worker(self) -> bool:
        """Return whether this is the thread of a worker."""
        return threading.current_thread() in self._threads.values()

    def end(self) -> None:
        """End workers; those whose handlers still run are left behind, and their processes killed."""
        busy = self._tasks.busy()
        self._is_killed = bool(busy)
        for number in busy & self._children.keys():
            self._children[number].kill()
        for number, thread in self._threads.items():
            if thread.ident is not None:  # else it could not be started
                thread.join(None if number not in busy else _KILLED_S if self._children else 0)
            if self._children and not thread.is_alive():
                self._children[number].end()

    def kill(self) -> None:
        """End processes now."""
        self._is_killed = True
        for child in self._children.values():
            child.kill()
