"""The one registry of asyncio tasks of a server, and coroutines that begin before they are tasks.

The loop itself refers to its tasks weakly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

__all__ = ["Begun", "Tasks"]

Value = TypeVar("Value")


class Begun(Generic[Value]):
    """A coroutine that has run until it first had to wait, for a task to go on with it."""

    def __init__(self, work: Coroutine[Any, Any, Value], waits_for: Any) -> None:
        """Prepare. `waits_for`: what its first `send` returned."""
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Value]:
        work, waits_for = self._work, self._waits_for
        try:
            while True:
                try:
                    yield waits_for
                except BaseException as error:  # noqa: BLE001  # the coroutine handles it, or raises it again
                    waits_for = work.throw(error)
                else:
                    waits_for = work.send(None)
        except StopIteration as end:
            value: Value = end.value
            return value


class Tasks:
    """The tasks that are running. Used on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task; hold a reference to it until it ends."""
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def cancel_all(self) -> None:
        for task in list(self._running):
            task.cancel()
