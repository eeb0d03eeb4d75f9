"""Rebalances of groups, as they are seen from outside: who came or went, and what the pause cost.

A group has been rebalanced when the partitions of its members differ between two looks. Its pause began when it was
last seen to read, and ends when it reads again or has nothing left to read; what came in between is its cost. All of
this is as exact as looks are frequent: a pause that is shorter than the time between two looks is not seen as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from klamm.console.sampler import GroupPoint

__all__ = ["Assignment", "Rebalance", "RebalanceWatch", "cause_of"]

Assignment: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""By member: the partitions it reads."""
_NAMED = 3  # members that are named as a cause


class Rebalance(NamedTuple):
    """One rebalance."""

    time_ms: int
    """When it was seen."""
    cause: str
    members: int
    pause_ms: int
    """How long the group read nothing; 0 if it read on, or had nothing to read."""
    came: int
    """Records that came during the pause."""


class _Pause(NamedTuple):
    time_ms: int
    cause: str
    members: int
    began_ms: int
    end_at_begin: int


class RebalanceWatch:
    """Watches one group, look by look."""

    def __init__(self) -> None:
        self._last: GroupPoint | None = None
        self._read_ms = 0
        self._end_then = 0
        self._pause: _Pause | None = None

    def see(self, point: GroupPoint) -> Rebalance | None:
        """Take in a look; return a rebalance whose pause is over now."""
        last, self._last = self._last, point
        if last is None:
            self._read_ms, self._end_then = point.time_ms, point.end
            return None
        has_read = point.end - point.lag > last.end - last.lag
        if dict(last.assignment) != dict(point.assignment) and self._pause is None:
            cause = cause_of(last.assignment, point.assignment)
            self._pause = _Pause(point.time_ms, cause, len(point.assignment), self._read_ms, self._end_then)
        if has_read or not point.lag:
            self._read_ms, self._end_then = point.time_ms, point.end
            return self._finish(point, was_read=has_read and last.lag > 0)
        return None

    def _finish(self, point: GroupPoint, *, was_read: bool) -> Rebalance | None:
        pause, self._pause = self._pause, None
        if pause is None:
            return None
        came = max(0, point.end - pause.end_at_begin)
        lasted = point.time_ms - pause.began_ms if was_read and came else 0
        return Rebalance(pause.time_ms, pause.cause, pause.members, lasted, came if lasted else 0)


def cause_of(before: Assignment, after: Assignment) -> str:
    """Say what changed between two assignments."""
    old, new = dict(before), dict(after)
    parts = [f"{_names(sorted(new.keys() - old.keys()))} joined"] if new.keys() - old.keys() else []
    if gone := sorted(old.keys() - new.keys()):
        parts.append(f"{_names(gone)} left")
    if parts:
        return ", ".join(parts)
    count = {place for places in new.values() for place in places}
    was = {place for places in old.values() for place in places}
    if count - was:
        return f"{_partitions(len(count - was))} assigned"
    return f"{_partitions(len(was - count))} given up" if was - count else "partitions changed hands"


def _partitions(count: int) -> str:
    return "1 partition was" if count == 1 else f"{count} partitions were"


def _names(members: list[str]) -> str:
    shown = ", ".join(members[:_NAMED])
    return shown if len(members) <= _NAMED else f"{shown} and {len(members) - _NAMED} more"
