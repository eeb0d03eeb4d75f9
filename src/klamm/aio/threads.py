"""Threads for blocking calls, beside an event loop.

    Threads      a bounded number, started when needed; a thread that is idle for 5 s ends
    Calls        the calls of one object, such as a consumer, in order, even if tasks are cancelled
    run_alone    a thread for one call: closing an object waits for no other call

A store has `threads` of them for calls that write, and as many for calls that only read, so that appends that wait for
a partition or for the disk delay no read. Objects that may wait for long have a thread of their own: producers,
consumers, tables, pipes. asyncio's default executor is not used.

  THR1  Cancelling a task never interrupts its call: `run` drops a call that has not begun, and lets a running one
        finish; `finish` does the call in either case. An object that a cancelled call has opened is closed (`make`).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from klamm.disk import _os, fork
from klamm.disk.threads import DaemonThread
from klamm.errors import Closed, InvalidSetting

__all__ = ["Calls", "Threads", "await_end", "check_limit", "run_alone"]

_IDLE_S = 5.0
_log = logging.getLogger("klamm")

P = ParamSpec("P")
T = TypeVar("T")


class Closable(Protocol):
    def close(self) -> object: ...


C = TypeVar("C", bound=Closable)


class Threads:
    """Pools of threads for blocking calls. Thread-safe, for any event loop. A forked child starts with none."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._lingers = True
        self._reset()
        fork.register(self, Threads._reset)

    def _reset(self) -> None:
        self._monitor = _os.Monitor()
        self._changed = _os.Condition(self._monitor)
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._count = self._idle = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Call it in a thread, as soon as one is free."""
        future: Future[T] = Future()
        with self._monitor:
            self._calls.append((future, call))
            if len(self._calls) <= self._idle or self._count == self._limit:
                self._changed.notify()
                return future
            self._count += 1
        try:
            DaemonThread(self._work, self._name)
        except RuntimeError as error:  # the system has no more threads
            self._not_started(error)
        return future

    def _not_started(self, error: RuntimeError) -> None:
        with self._monitor:
            self._count -= 1
            calls = [] if self._count else list(self._calls)
            if calls:
                self._calls.clear()
        for future, _ in calls:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def _work(self) -> None:
        while (given := self._take()) is not None:
            future, call = given
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001  # the future passes it to the caller
                    future.set_exception(error)
            del given, future, call  # and with them objects that the caller may want to drop

    def _take(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._monitor:
            if not self._calls and self._lingers:
                self._idle += 1
                self._changed.wait(_IDLE_S)
                self._idle -= 1
            if self._calls:
                return self._calls.popleft()
            self._count -= 1
            return None

    async def run(self, call: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> T:
        """Make the call and return its result. If cancelled, the call does not begin, or its result is dropped."""
        return await asyncio.wrap_future(self.submit(_bound(call, *arguments, **named)))

    async def finish(self, call: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> T:
        """Like `run`, but make the call even if cancelled. If it then fails, the error is logged."""
        future = asyncio.wrap_future(self.submit(_bound(call, *arguments, **named)))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(_log_error)
            raise

    async def make(self, call: Callable[P, C], /, *arguments: P.args, **named: P.kwargs) -> C:
        """Like `run`, for calls that open an object: if cancelled, the object is closed."""
        made = self.submit(_bound(call, *arguments, **named))
        try:
            return await asyncio.shield(_watched(made))
        except asyncio.CancelledError:
            if not made.cancel():
                made.add_done_callback(_close_made)
            raise

    def close(self) -> None:
        """End the threads when they are idle."""
        with self._monitor:
            self._lingers = False
            self._changed.notify(self._limit)


class Calls:
    """The calls of one object, one at a time: a call that follows a cancelled one waits until that has ended."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._left: set[Future[Any]] = set()

    async def run(self, call: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> T:
        """Like `Threads.run`."""
        await self.ended()
        future = self._threads.submit(_bound(call, *arguments, **named))
        try:
            return await asyncio.shield(_watched(future))
        except asyncio.CancelledError:
            if not future.cancel():
                self.leave(future)
            raise

    async def end(self, call: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> T:
        """Make the call even if cancelled, and return when it has ended; if cancelled, raise CancelledError then."""
        bound = _bound(call, *arguments, **named)

        def after_left() -> T:
            wait(self._left.copy())
            return bound()

        return await await_end(self._threads.submit(after_left))

    def leave(self, future: Future[Any]) -> None:
        """Wait for the call that runs, before the next one."""
        self._left.add(future)
        future.add_done_callback(self._left.discard)
        future.add_done_callback(_log_error)

    async def ended(self) -> None:
        """Return when no call of a cancelled task runs any more."""
        while left := self._left.copy():
            await asyncio.wait([_watched(future) for future in left])


async def run_alone(call: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> T:
    """Make the call in a thread of its own, even if cancelled: see `Threads.finish`."""
    threads = Threads(1, "klamm-aio")
    try:
        return await threads.finish(call, *arguments, **named)
    finally:
        threads.close()


def _do_nothing() -> None: ...


async def await_end(running: Future[T], ask_to_end: Callable[[], object] = _do_nothing) -> T:
    """Return the result of a long call. Each cancellation of its task requests it to end; then CancelledError is
    raised.
    """
    future = asyncio.wrap_future(running)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
            ask_to_end()
    if cancelled is None:
        return future.result()
    if (failed := future.exception()) is not None:
        cancelled.add_note(f"and what was to end has failed: {failed!r}")
    raise cancelled


def check_limit(threads: Any) -> int:
    """Return the number of threads that a store may have."""
    if not isinstance(threads, int) or isinstance(threads, bool):
        raise TypeError(f"threads is a whole number, not {type(threads).__name__}")
    if threads < 1:
        raise InvalidSetting(f"threads: {threads} is invalid", hint="expected at least 1")
    return threads


def _bound(call: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> Callable[[], T]:
    """Return the call with its arguments, and with the variables of its task's context."""
    return partial(contextvars.copy_context().run, call, *arguments, **named)


def _close_made(made: Future[Any]) -> None:
    """Close what a cancelled call has opened, in another thread: this one may run the event loop."""
    if made.exception() is None:
        DaemonThread(_close, "klamm-aio", made.result())


def _close(made: Closable) -> None:
    try:
        made.close()
    except Exception:  # noqa: BLE001  # no caller is left
        _log.exception("%r: its task was cancelled, and it could not be closed", made)


def _log_error(future: Future[Any] | asyncio.Future[Any]) -> None:
    """Log the error of a call whose task was cancelled. Closed is not logged: the next call raises it."""
    error = None if future.cancelled() else future.exception()
    if error is not None and not isinstance(error, Closed):
        _log.warning("a call whose task was cancelled has failed: %s", error, exc_info=error)


def _watched(future: Future[T]) -> asyncio.Future[T]:
    """Return an asyncio future whose error counts as retrieved, so that asyncio does not warn about it."""
    watched = asyncio.wrap_future(future)
    watched.add_done_callback(_see_error)
    return watched


def _see_error(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
