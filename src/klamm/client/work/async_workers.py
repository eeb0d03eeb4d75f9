"""Workers of an `async def` handler: at most so many coroutines at a time, in an event loop of their own.

    klamm-loop       runs the loop, and in it the handlers
    klamm-feeder     takes records for coroutines that have none
    klamm-failures   settles attempts that failed: it may write dead letters, which blocks

A handler that takes longer than `timeout` is cancelled, and fails with TimeoutError. One that blocks the loop, or
catches its cancellation and goes on, keeps its record: like any handler that hangs, see workers.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.client.consume.record_format import converted
from klamm.client.work.thread_workers import timeout_error
from klamm.disk.threads import DaemonThread

if TYPE_CHECKING:
    from klamm.client.consume.read_engine import ReadFormat
    from klamm.client.work.outcomes import Outcomes
    from klamm.client.work.run_options import RunSettings
    from klamm.client.work.tasks import Task, Tasks

__all__ = ["AsyncWorkers"]

_CANCEL_S = 1.0  # for handlers to take their cancellation, at the end


class _Failure(NamedTuple):
    worker: int
    task: Task
    begun: float
    error: Exception
    is_timeout: bool


class AsyncWorkers:
    """Of one run."""

    def __init__(
        self,
        handler: Callable[[Any], Awaitable[object]],
        read_format: ReadFormat,
        settings: RunSettings,
        tasks: Tasks,
        outcomes: Outcomes,
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called when a worker has ended the run."""
        self._handler = handler
        self._format = read_format
        self._timeout_s: float | None = settings.timeout
        self._tasks = tasks
        self._outcomes = outcomes
        self._wake = wake
        self._free: SimpleQueue[int] = SimpleQueue()  # workers without a record
        for number in range(settings.workers):
            self._free.put(number)
        self._failures: SimpleQueue[_Failure | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._is_ended = False
        self._handling: set[asyncio.Task[None]] = set()  # the loop itself holds weak references
        self._threads: list[DaemonThread] = []

    def start(self) -> None:
        self._threads = [
            DaemonThread(self._run_loop, "klamm-loop"),
            DaemonThread(self._settle_failures, "klamm-failures"),
        ]

    # ---- the threads

    def _run_loop(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001  # `run` raises it
            self._fail(None, error)

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
            except RuntimeError:  # the loop is closed: the run has ended
                return

    def _begin(self, number: int, task: Task) -> None:
        handling = asyncio.ensure_future(self._handle(number, task, task.begun))
        self._handling.add(handling)
        handling.add_done_callback(self._handling.discard)

    async def _handle(self, number: int, task: Task, begun: float) -> None:
        error: Exception | None = None
        timer = asyncio.timeout(self._timeout_s)
        try:
            async with timer:
                await self._handler(converted(task.record, self._format))
        except asyncio.CancelledError as cancelled:
            if self._is_ended:
                return
            error = RuntimeError(f"{task}: the handler was cancelled")
            error.__cause__ = cancelled
        except Exception as raised:  # noqa: BLE001  # the policy decides
            error = timeout_error(task, self._timeout_s) if timer.expired() else raised
        except BaseException as raised:  # noqa: BLE001  # SystemExit would end the loop
            self._fail(number, raised)
            return
        if error is None:
            with self._settling(number):
                self._outcomes.done(number, task, begun)
        else:
            self._tasks.end_attempt(number)  # now: it may wait for others to be settled
            self._failures.put(_Failure(number, task, begun, error, timer.expired()))

    def _settle_failures(self) -> None:
        while (failure := self._failures.get()) is not None:
            with self._settling(failure.worker):
                self._outcomes.failed(*failure[:4], is_timeout=failure.is_timeout)

    @contextmanager
    def _settling(self, number: int) -> Iterator[None]:
        """Let the worker have another record, unless the run ends."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001  # `run` raises it
            self._fail(number, error)
        else:
            self._free.put(number)

    def _fail(self, number: int | None, error: BaseException) -> None:
        self._tasks.fail(number, error)
        self._wake()

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
        """Cancel handlers that still run, and end the loop."""
        self._end(_CANCEL_S)

    def kill(self) -> None:
        """Like `end`, without waiting."""
        self._end(0)

    def _end(self, wait_s: float) -> None:
        self._is_ended = True
        self._failures.put(None)
        self._free.put(-1)  # the feeder may wait for a worker that has no record
        if self._loop is not None and self._ending is not None:
            with suppress(RuntimeError):  # it is closed already
                self._loop.call_soon_threadsafe(self._ending.set)
        deadline = time.monotonic() + wait_s
        if not self.is_worker():
            for thread in list(self._threads):
                thread.join(deadline - time.monotonic())
