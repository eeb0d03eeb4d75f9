"""Requests that take the loop for long go one after the other: one in each of the loop's rounds.

Between two of them the loop reads and answers whatever else has arrived. So a request that takes microseconds waits for
one of those that take milliseconds, however many clients send such at the same time. One that tells of things without
number (settings of topics, offsets of groups), or that may name tens of thousands of them, has the loop for TURN_S at
a time: its handler looks at its `Turn` for each thing, and the session while it encodes the response.

Promises
  LRQ1  In a round of the loop at most one of them is handled, or goes on, in the order in which they came.
  LRQ2  Each is handled, whatever became of those before it.
  LRQ3  What one of them has threads of the groups read or write is done in `pieces`: what other clients want of such a
        thread comes in between, and the write lock of klamm.db is free.
  LRQ4  What is done for each of the things that a request names is done in turns: it has the loop for TURN_S at a time,
        and for one more thing. One that changes something goes on when its client is gone. (Protocols of a
        JoinGroup are handled at once.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from klamm.kafka.call import Call

__all__ = ["LARGE_FRAME", "LARGE_RESPONSE", "PIECE", "TURN_S", "LargeRequests", "Turn", "pieces"]

Item = TypeVar("Item")

LARGE_FRAME = 4096
"""Bytes from which on a request counts as one, Produce aside: it may name some hundred things."""
LARGE_RESPONSE = 256
"""Things from which on a response does, where the request does not name them (`cost` in the dispatch table)."""
TURN_S = 0.001
"""How long one that is made in turns has the loop at a time."""
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
        self._waiting: deque[Callable[[], bool | None]] = deque()
        self.now = loop.time

    def __len__(self) -> int:
        return len(self._waiting)

    def run(self, handle: Callable[[], bool | None]) -> None:
        """Call `handle` in its turn. If it returns True, it has woken a task, which has the loop's next round."""
        self._waiting.append(handle)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._run_next)

    def turn(self, call: Call, *, to_the_end: bool = False) -> Turn:
        """Begin the turn of a request's handler. `to_the_end`: it goes on when the client is gone, for it changes
        something.
        """
        return Turn(self, call, to_the_end)

    async def wait(self) -> None:
        """Wait for the next turn."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self.run(partial(_wake, turn))
        await turn

    def _run_next(self) -> None:
        has_woken = None
        try:
            has_woken = self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting and has_woken:
                self._loop.call_soon(self._loop.call_soon, self._run_next)
            elif self._waiting:
                self._loop.call_soon(self._run_next)


def _wake(turn: asyncio.Future[None]) -> bool:
    if turn.done():  # its client is gone
        return False
    turn.set_result(None)
    return True


class Turn:
    """The turn of one request, which has the loop for TURN_S and then waits for the next."""

    __slots__ = ("_call", "_ends", "_requests", "_to_the_end", "has_waited")

    def __init__(self, requests: LargeRequests, call: Call, to_the_end: bool) -> None:
        self._requests = requests
        self._call = call
        self._to_the_end = to_the_end
        self._ends = requests.now() + TURN_S
        self.has_waited = False

    async def run(self, steps: Iterable[object]) -> None:
        """Take the steps; like `next` after one with which the turn is over."""
        for _ in steps:
            if self.is_over:
                await self.next()

    @property
    def is_over(self) -> bool:
        return self._requests.now() >= self._ends

    async def next(self) -> None:
        """Let others have the loop, until it is this request's turn again. Its response is encoded in turns, too.

        Raise CancelledError if its client is gone, unless it goes on to the end.
        """
        self._call.is_large = self.has_waited = True
        await self._requests.wait()
        if self._call.is_gone and not self._to_the_end:
            raise asyncio.CancelledError
        self._ends = self._requests.now() + TURN_S
