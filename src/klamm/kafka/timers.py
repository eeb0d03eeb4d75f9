"""Deadlines without a clock: the caller asks when the next one is due, and passes the time.

Most deadlines are moved further away before they come: each heartbeat moves one. So a timer that moves later keeps its
place in the heap, and is put where it belongs when that place comes up; only one that moves earlier is put in again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["Timer", "Timers"]

_SLACK = 64  # so many left-over entries are never worth tidying up


class Timer:
    """Something to be done at a time, once."""

    __slots__ = ("deadline_ms", "fire", "queued_ms")

    def __init__(self, fire: Callable[[int], None]) -> None:
        self.fire = fire
        """Called with the time."""
        self.deadline_ms: int | None = None
        """None: not armed."""
        self.queued_ms: int | None = None
        """Where its valid entry in the heap is: at the deadline or before it."""


class Timers:
    """The timers of one state machine."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._entries = 0  # so far: entries of the same time are in the order they came
        self._armed = 0

    def __len__(self) -> int:
        """Return how many are armed."""
        return self._armed

    def arm(self, timer: Timer, deadline_ms: int) -> None:
        """Set the timer to fire at `deadline_ms`, in place of an earlier setting."""
        if timer.deadline_ms is None:
            self._armed += 1
        timer.deadline_ms = deadline_ms
        if timer.queued_ms is None or deadline_ms < timer.queued_ms:
            self._put(timer, deadline_ms)
            if len(self._heap) > 2 * self._armed + _SLACK:
                self._tidy()

    def cancel(self, timer: Timer) -> None:
        if timer.deadline_ms is not None:
            self._armed -= 1
            timer.deadline_ms = None

    def next_deadline(self) -> int | None:
        """Return when the next one fires; None: there is none."""
        while self._heap:
            queued_ms, _, timer = self._heap[0]
            if timer.queued_ms == queued_ms == timer.deadline_ms:
                return queued_ms
            heapq.heappop(self._heap)
            if timer.queued_ms == queued_ms:
                timer.queued_ms = None
                if timer.deadline_ms is not None:
                    self._put(timer, timer.deadline_ms)
        return None

    def run(self, now_ms: int) -> None:
        """Fire every timer whose time has come, the earliest first, those included that are armed during the call."""
        while (deadline_ms := self.next_deadline()) is not None and deadline_ms <= now_ms:
            timer = heapq.heappop(self._heap)[2]
            timer.queued_ms = None
            self.cancel(timer)
            timer.fire(now_ms)

    def _put(self, timer: Timer, deadline_ms: int) -> None:
        timer.queued_ms = deadline_ms
        self._entries += 1
        heapq.heappush(self._heap, (deadline_ms, self._entries, timer))

    def _tidy(self) -> None:
        """Drop what was left by timers that were cancelled, or armed for an earlier time."""
        kept = {}
        for queued_ms, _, timer in self._heap:
            if timer.queued_ms == queued_ms:
                timer.queued_ms = None
                if timer.deadline_ms is not None:
                    kept[timer] = timer.deadline_ms
        self._heap = []
        for timer, deadline_ms in kept.items():
            self._put(timer, deadline_ms)
