"""How far a group was, as the commits of its members tell: the part of checker.py that knows their order."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from tests.crash.history import Event, Place


class Progress:
    """What was committed for one group of one partition: how far at least, and at most, at a given time."""

    def __init__(self) -> None:
        self._steps: tuple[list[tuple[int, int]], list[tuple[int, int]]] = [], []  # (time, end): done, begun
        self._highest: list[list[int]] | None = None

    def add(self, begun: int, done: int | None, end: int, least: int | None = None) -> None:
        """`done` is None where the outcome is not known; `least`, if not `end`: see Commit.least."""
        self._steps[1].append((begun, end))
        if done is not None:
            self._steps[0].append((done, end if least is None else least))

    def at_least(self, time: int) -> int:
        return self._upto(0, time)

    def at_most(self, time: int) -> int:
        return self._upto(1, time)

    def _upto(self, which: int, time: int) -> int:
        if self._highest is None:
            for steps in self._steps:
                steps.sort()
            self._highest = [[0, *accumulate((end for _, end in steps), max)] for steps in self._steps]
        return self._highest[which][bisect_left(self._steps[which], (time, 0))]


class Commit(NamedTuple):
    """A commit of offsets without a transaction, by one member for one partition."""

    begun: int
    over: int  # from then on it has no effect any more; NEVER, if the process ended first
    stored: bool
    end: int

    def least(self, others: Iterable[Commit]) -> int:
        """How far the group certainly was when this was stored: a client whose connection breaks sends its commits
        again, in any order, so those that were under way together may have taken effect in any order.
        """
        return min(each.end for each in others if each.begun <= self.over and self.begun <= each.over)


NEVER = 1 << 63


class Calls:
    """Commits of one member, without a transaction, that are under way.

    Two of them may have the same end: a member that has lost a partition and got it back reads the same records again
    while its first commit is under way. Nobody can tell which of the two an outcome is of: it is taken for one of a
    commit that was begun with the first, and the other may have been begun then, too.
    """

    def __init__(self) -> None:
        self._begun: dict[tuple[Place, int], list[Event | None]] = defaultdict(list)  # None: forgotten

    def look(self, event: Event) -> Event | None:
        """Take in any event. Return the beginning of the commit whose outcome it is."""
        if event.kind not in ("storing", "stored", "refused", "unsettled") or event["tx"] is not None:
            return None
        begun = self._begun[event.place, event["end"]]
        if event.kind == "storing":
            begun.append(event)
            return None
        first = begun[0] if begun else None  # none: librdkafka may tell an outcome twice
        del begun[-1:]
        return first

    def forget(self, places: Collection[Place]) -> None:
        """Return nothing of commits that are under way now: the partitions were given to others, or to it anew."""
        for (place, _), begun in self._begun.items():
            if place in places:
                begun[:] = [None] * len(begun)

    def left(self) -> Iterator[Event]:
        """The beginnings of those that have no outcome."""
        for begun in self._begun.values():
            yield from (event for event in begun if event is not None)


def commits_of(events: list[Event]) -> dict[Place, list[Commit]]:
    """Commits of one member, those that were certainly not stored left out."""
    found: dict[Place, list[Commit]] = defaultdict(list)
    calls = Calls()
    for event in events:
        call = calls.look(event)
        if call is not None and event.kind != "refused":
            found[event.place].append(Commit(call.time, event.time, event.kind == "stored", event["end"]))
    for call in calls.left():
        found[call.place].append(Commit(call.time, NEVER, False, call["end"]))
    return found
