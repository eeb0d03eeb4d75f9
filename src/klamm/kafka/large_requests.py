"""Requests that take the loop for long go one after the other: one in each of the loop's rounds.

Between two of them the loop reads and answers whatever else has arrived. So a request that takes microseconds waits for
one of those that take milliseconds, however many clients send such at the same time.

Promises
  LRQ1  In a round of the loop at most one of them is handled, in the order in which they came.
  LRQ2  Each is handled, whatever became of those before it.
  LRQ3  What one of them has threads of the groups read or write is done in `pieces`: what other clients want of such a
        thread comes in between, and the write lock of klamm.db is free.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

__all__ = ["LARGE_FRAME", "LARGE_RESPONSE", "PIECE", "LargeRequests", "pieces"]

Item = TypeVar("Item")

LARGE_FRAME = 4096
"""Bytes from which on a request counts as one, Produce aside: it may name some hundred things."""
LARGE_RESPONSE = 256
"""Things from which on a response does, where the request does not name them (`cost` in the dispatch table)."""
PIECE = 500
"""Groups that a thread reads or writes at a time."""


def pieces(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Yield the items, PIECE of them at a time."""
    for start in range(0, len(items), PIECE):
        yield items[start : start + PIECE]


class LargeRequests:
    """The queue of one server's large requests, on its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def run(self, handle: Callable[[], None]) -> None:
        """Call `handle` in its turn."""
        self._waiting.append(handle)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._run_next)

    def _run_next(self) -> None:
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                self._loop.call_soon(self._run_next)
