"""Requests for transactions on their way to a thread: of a transactional id one at a time, the others wait here.

A request that waits for another one of its transactional id waits on the loop, without a thread. So a client that sends
many of them, on as many connections, has one thread of the pool, and others have the rest.

Requests that add to a transaction or end it go together: those that have come while others were under way are one call
in one thread, with one write of klamm.db, one wait for the disk and one wake-up of the loop. Those that end wait for
more syncs than those that add, so each kind goes by itself. What of them cannot be done without waiting for more than
that is done alone.

Promises
  TRQ1  Of a transactional id at most one call runs, or waits for a thread. Calls run in the order in which they came.
  TRQ2  A call runs whatever became of those before it. One whose request was cancelled before it began does not run.
  TRQ3  A transactional id with many calls that wait is behind those of others after each of them.
  TRQ4  A request that has to wait for a lock or for another process delays none of another transactional id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from klamm.errors import Closed
from klamm.store.transaction_state import Add, End

if TYPE_CHECKING:
    from klamm.kafka.transaction_coordinator import Identified

__all__ = ["TransactionQueue"]

Result = TypeVar("Result")

_MAX_TOGETHER = 64
_MAX_GROUPS = 2  # of a kind, at once: one is at klamm.db while the other one is at its logs


class Coordinator(Protocol):
    """The coordinator that does the work, in threads."""

    def apply(self, name: str, event: Add | End) -> Identified: ...
    def apply_together(self, requests: Sequence[tuple[str, Add | End]]) -> list[Identified | None]: ...


class _Call(NamedTuple):
    name: str
    function: Callable[[], Any]
    done: asyncio.Future[Any]
    event: Add | End | None = None
    """What it does, if it may go together with others."""


class _Kind:
    """Calls that go together."""

    __slots__ = ("groups", "is_scheduled", "ready")

    def __init__(self) -> None:
        self.ready: deque[_Call] = deque()
        self.groups = 0
        """How many have a thread."""
        self.is_scheduled = False


class TransactionQueue:
    """The queue of one server, on its loop. `submit` has a function called in a thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        submit: Callable[[Callable[[], Any]], asyncio.Future[Any]],
        coordinator: Coordinator,
    ) -> None:
        self._loop = loop
        self._submit = submit
        self._coordinator = coordinator
        self._waiting: dict[str, deque[_Call]] = {}
        self._kinds: dict[type[Add | End], _Kind] = {Add: _Kind(), End: _Kind()}

    def __len__(self) -> int:
        """Return how many transactional ids have a call."""
        return len(self._waiting)

    def run(self, name: str, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Call `function` in a thread, after all that came before it for the same transactional id."""
        return self._add(_Call(name, function, self._loop.create_future()))

    def apply(self, name: str, event: Add | End) -> asyncio.Future[Identified]:
        """Add to a transaction, or end it, after all that came before it for the same transactional id."""
        alone = partial(self._coordinator.apply, name, event)
        return self._add(_Call(name, alone, self._loop.create_future(), event))

    def _add(self, call: _Call) -> asyncio.Future[Any]:
        waiting = self._waiting.get(call.name)
        if waiting is not None:
            waiting.append(call)
        else:
            self._waiting[call.name] = deque()
            self._begin(call)
        return call.done

    def close(self) -> None:
        """Close the queue. Calls that have not begun get Closed."""
        ready = [call for kind in self._kinds.values() for call in kind.ready]
        left = [*ready, *(call for waiting in self._waiting.values() for call in waiting)]
        for call in ready:
            del self._waiting[call.name]
        for kind in self._kinds.values():
            kind.ready.clear()
        for waiting in self._waiting.values():
            waiting.clear()
        for call in left:
            if not call.done.cancelled():
                call.done.set_exception(Closed("the server stops", hint="nothing was done; try again"))

    def _begin(self, call: _Call) -> None:
        if call.event is None:
            self._run_alone(call)
        else:
            kind = self._kinds[type(call.event)]
            kind.ready.append(call)
            self._schedule(kind)

    def _run_alone(self, call: _Call) -> None:
        # Not the future of the caller: that may be cancelled, and the thread goes on all the same.
        self._submit(call.function).add_done_callback(partial(self._end, call))

    def _schedule(self, kind: _Kind) -> None:
        """Begin a group when the loop has read what else has arrived by now."""
        if kind.ready and not kind.is_scheduled and kind.groups < _MAX_GROUPS:
            kind.is_scheduled = True
            self._loop.call_soon(self._run_together, kind)

    def _run_together(self, kind: _Kind) -> None:
        kind.is_scheduled = False
        calls = [kind.ready.popleft() for _ in range(min(len(kind.ready), _MAX_TOGETHER))]
        if calls:
            kind.groups += 1
            requests = [(call.name, call.event) for call in calls if call.event is not None]
            work = self._submit(partial(self._coordinator.apply_together, requests))
            work.add_done_callback(partial(self._end_together, kind, calls))
            self._schedule(kind)

    def _end_together(self, kind: _Kind, calls: list[_Call], ended: asyncio.Future[list[Any]]) -> None:
        kind.groups -= 1
        error = ended.exception()
        for call, result in zip(calls, [None] * len(calls) if error else ended.result(), strict=True):
            if error is None and result is None:
                self._run_alone(call)
            else:
                self._finish(call, result, error)
        self._schedule(kind)

    def _end(self, call: _Call, ended: asyncio.Future[Any]) -> None:
        error = ended.exception()
        self._finish(call, None if error else ended.result(), error)

    def _finish(self, call: _Call, result: Any, error: BaseException | None) -> None:
        waiting = self._waiting[call.name]
        while waiting and waiting[0].done.cancelled():
            waiting.popleft()
        if waiting:
            self._begin(waiting.popleft())
        else:
            del self._waiting[call.name]
        if call.done.cancelled():
            return
        if error is not None:
            call.done.set_exception(error)
        else:
            call.done.set_result(result)
