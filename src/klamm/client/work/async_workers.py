"""Workers of an `async def` handler: at most so many coroutines at a time, in an event loop of their own, or in that of
the task that awaits the run (klamm.aio).

    klamm-loop       runs the loop, and in it the handlers, if it is their own
    klamm-feeder     takes records for coroutines that have none
    klamm-failures   settles attempts that failed: it may write dead letters, which blocks

A handler that takes longer than `timeout` is cancelled, and fails with TimeoutError. One that blocks the loop, or
catches its cancellation and goes on, keeps its record: like any handler that hangs, see workers.py.

In a loop of others, a handler that others cancel ends the run, and its record is not done: the loop may be about to
end, and cancels all its tasks.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from klamm.disk.threads import DaemonThread

if TYPE_CHECKING:
    from klamm.client.work.tasks import Task
    from klamm.client.work.worker_context import WorkerContext

__all__ = ["AsyncWorkers"]

_CANCEL_S = 1.0  # for handlers to take their cancellation, at the end


class _Attempt(NamedTuple):
    worker: int
    task: Task
    begun: float


class _Failure(NamedTuple):
    attempt: _Attempt
    error: Exception
    is_timeout: bool


class AsyncWorkers:
    """The workers of one run whose handler is async: one event loop."""

    def __init__(self, context: WorkerContext, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Start the workers. `loop`: a running one to use; None: one of their own is made."""
        self._context = context
        self._tasks = context.tasks
        self._outcomes = context.outcomes
        self._free: SimpleQueue[int] = SimpleQueue()  # workers without a record
        for number in range(context.settings.workers):
            self._free.put(number)
        self._failures: SimpleQueue[_Failure | None] = SimpleQueue()
        self._is_guest = loop is not None
        self._loop = loop
        self._ending: asyncio.Event | None = None
        self._is_ended = False
        self._handling: set[asyncio.Task[None]] = set()  # the loop itself holds weak references
        self._none_runs = threading.Event()  # after the end, in a loop of others
        self._threads: list[DaemonThread] = []

    def start(self) -> None:
        self._threads = [DaemonThread(self._complete_failures, "klamm-failures")]
        if self._is_guest:
            self._threads.append(DaemonThread(self._feed, "klamm-feeder"))
        else:
            self._threads.append(DaemonThread(self._run_loop, "klamm-loop"))

    # ---- the threads

    def _run_loop(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001  # `run` raises it
            self._context.fail(None, error)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        self._threads.append(DaemonThread(self._feed, "klamm-feeder"))
        if self._is_ended:
            self._ending.set()
        await self._ending.wait()  # asyncio.run then cancels what is left

    def _feed(self) -> None:
        assert self._loop is not None
        while (task := self._tasks.take(number := self._free.get())) is not None:
            try:
                self._loop.call_soon_threadsafe(self._begin, number, task)
            except RuntimeError as error:  # the loop is closed
                if not self._is_ended:
                    self._context.fail(number, error)
                return

    def _begin(self, number: int, task: Task) -> None:
        handling = asyncio.ensure_future(self._handle(_Attempt(number, task, task.begun)))
        self._handling.add(handling)
        handling.add_done_callback(self._handling.discard)

    async def _handle(self, attempt: _Attempt) -> None:
        number, task, _ = attempt
        error: Exception | None = None
        timer = asyncio.timeout(self._context.timeout_s)
        try:
            async with timer:
                await self._context.call_handler(task)
        except asyncio.CancelledError as cancelled:
            if self._is_ended:
                return
            error = RuntimeError(f"{task}: the handler was cancelled")
            error.__cause__ = cancelled
            this = asyncio.current_task()
            if self._is_guest and this is not None and this.cancelling():
                self._context.fail(number, error)
                return
        except Exception as raised:  # noqa: BLE001  # the policy decides
            error = self._context.timeout_error(task) if timer.expired() else raised
        except BaseException as raised:  # noqa: BLE001  # SystemExit would end the loop
            self._context.fail(number, raised)
            return
        if error is None:
            with self._settling(number):
                self._outcomes.done(*attempt)
        else:
            self._tasks.end_attempt(number)  # now: it may wait for others to be settled
            self._failures.put(_Failure(attempt, error, timer.expired()))

    def _complete_failures(self) -> None:
        while (failure := self._failures.get()) is not None:
            with self._settling(failure.attempt.worker):
                self._outcomes.failed(*failure.attempt, failure.error, is_timeout=failure.is_timeout)

    @contextmanager
    def _settling(self, number: int) -> Iterator[None]:
        """Free the worker for another record after the block. If the block raises, end the run."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001  # `run` raises it
            self._context.fail(number, error)
        else:
            self._free.put(number)

    # ---- for the reader

    def next_deadline(self) -> float | None:
        """Return None: the loop knows when handlers take too long."""
        return None

    def look_after(self) -> None:
        """Do nothing: see `next_deadline`."""

    def is_worker(self) -> bool:
        """Return whether this is a thread in which handlers or hooks run."""
        return any(thread.is_current for thread in self._threads)

    def end(self) -> None:
        """Cancel handlers that still run, and end the loop, if it is our own."""
        self._end(_CANCEL_S)

    def kill(self) -> None:
        """Like `end`, without waiting."""
        self._end(0)

    def _end(self, wait_s: float) -> None:
        self._is_ended = True
        self._failures.put(None)
        self._free.put(-1)  # the feeder may wait for a worker that has no record
        deadline = time.monotonic() + wait_s
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed already
                if self._is_guest:
                    self._loop.call_soon_threadsafe(self._cancel_handlers)
                    self._none_runs.wait(wait_s)
                elif self._ending is not None:
                    self._loop.call_soon_threadsafe(self._ending.set)
        if not self.is_worker():
            for thread in list(self._threads):
                thread.join(deadline - time.monotonic())

    def _cancel_handlers(self) -> None:
        """Cancel those that run, in the loop of others, and say when they have ended."""
        for handling in self._handling:
            handling.cancel()
            handling.add_done_callback(self._notify_end)
        self._notify_end()

    def _notify_end(self, _: object = None) -> None:
        if not self._handling:
            self._none_runs.set()
