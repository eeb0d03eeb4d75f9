"""Look at the store every few seconds, so that the console can say how things change: rates, trends, forecasts.

A thread reads the ends of all partitions and describes every group. That reads the mapped file `heads`, `klamm.db`, and
for each partition that a group has not read to its end the first record it has not read. A sample that takes long
delays the next one: the thread works a tenth of the time at most.

    rate       offsets per second, over the last RATE_S
    catch_up   when a group will have caught up at the rate at which its lag fell over the last TREND_S, by the line
               that fits its lag best: commits come in batches; now, if what it has not read is newer than
               KEEPS_UP_MS; never, if its lag grows or stays
    history    of the last HISTORY samples, while this console runs; a sample that failed is a gap. A recorder keeps it
    rebalances of groups, see rebalances.py
    stalls     partitions where a group has a member and records to read, and stays at one offset
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.console.rebalances import Rebalance, RebalanceWatch
from klamm.errors import KlammError

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.types import GroupInfo

__all__ = [
    "NEVER",
    "GroupPoint",
    "Look",
    "Sampler",
    "Stall",
    "catch_up_ms",
    "group_point",
    "keeps_up",
    "per_second",
    "stalls_of",
    "standing",
]

INTERVAL_S = 2.0
SHARE = 0.1  # of the time, at most, that the thread works
_EVERY_MS = round(INTERVAL_S * 1000)
RATE_S = 10.0
TREND_S = 60.0
HISTORY = 900
REBALANCES = 100
KEEPS_UP_MS = 5_000
NEVER = "never"


class GroupPoint(NamedTuple):
    """A group at one moment."""

    time_ms: int
    end: int
    """The sum of the ends of its partitions."""
    lag: int
    lag_ms: int | None
    """How old the oldest record is that it has not read; None if that cannot be read."""
    assignment: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """By member: the partitions it reads. Not in the history."""
    unread: tuple[tuple[str, int], ...] = ()
    """Partitions that a member reads and does not keep up with, as topic/partition, and its offset there. Not in the
    history."""
    every_ms: int = _EVERY_MS
    """After how long the next one was to come."""


class Stall(NamedTuple):
    """A partition where a group has records to read and a member, and does not move."""

    partition: str
    """topic/partition"""
    offset: int
    """The first that is not committed."""
    since_ms: int
    member: str


class Look(NamedTuple):
    """The state of the store at one moment."""

    time_ms: int
    ends: Mapping[str, int]
    """By topic: offsets that were ever given out."""
    groups: Mapping[str, GroupPoint]
    every_ms: int = _EVERY_MS
    """After how long the next one is to come."""


def group_point(group: GroupInfo, time_ms: int) -> GroupPoint:
    """Return where a group is, over all of its partitions."""
    lags_ms = [offset.lag_ms for offset in group.offsets]
    lag_ms = None if None in lags_ms else max((lag for lag in lags_ms if lag is not None), default=0)
    assignment = tuple(
        (member.name or member.id, tuple(f"{topic}/{number}" for topic, number in member.assignment))
        for member in group.members
    )
    owned = {partition for _, partitions in assignment for partition in partitions}
    unread = tuple(
        (name, offset.committed.offset if offset.committed is not None else offset.end - offset.lag)
        for offset in group.offsets
        if offset.lag
        and (offset.lag_ms is None or offset.lag_ms >= KEEPS_UP_MS)
        and (name := f"{offset.topic}/{offset.partition}") in owned
    )
    return GroupPoint(time_ms, sum(offset.end for offset in group.offsets), group.lag, lag_ms, assignment, unread)


def per_second(points: Iterable[tuple[int, int]], now_ms: int, window_s: float = RATE_S) -> float | None:
    """Return how fast a count grows: the points are (time_ms, count), oldest first. None: one point is too few.

    A count that falls (a group that was reset, a topic that was made again) starts over.
    """
    recent: list[tuple[int, int]] = []
    for time_ms, count in points:
        if time_ms < now_ms - window_s * 1000:
            continue
        if recent and count < recent[-1][1]:
            recent = []
        recent.append((time_ms, count))
    if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
        return None
    return (recent[-1][1] - recent[0][1]) * 1000 / (recent[-1][0] - recent[0][0])


def catch_up_ms(points: Iterable[GroupPoint], now_ms: int, window_s: float = TREND_S) -> float | str | None:
    """Return in how many milliseconds the group will have caught up; NEVER if its lag does not fall.

    0 if it keeps up; None if that is not known yet.
    """
    recent = [point for point in points if point.time_ms >= now_ms - window_s * 1000]
    if recent and keeps_up(recent[-1]):
        return 0
    if len(recent) < 2 or recent[-1].time_ms <= recent[0].time_ms:
        return None
    slope = _slope([(point.time_ms, point.lag) for point in recent])
    is_falling = slope < 0 and recent[-1].lag < recent[0].lag
    return recent[-1].lag / -slope if is_falling else NEVER


def _slope(points: list[tuple[int, int]]) -> float:
    """Return the slope of the line through the points with the least squares."""
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    below = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / below


def keeps_up(point: GroupPoint) -> bool:
    """Return whether a group has read everything but what came just now."""
    return not point.lag or (point.lag_ms is not None and point.lag_ms < KEEPS_UP_MS)


class Sampler:
    """The thread, and what it has seen. Any thread may ask."""

    def __init__(
        self,
        store: Store,
        *,
        interval_s: float = INTERVAL_S,
        share: float = SHARE,
        history: int = HISTORY,
        is_wanted: Callable[[], bool] = lambda: True,
        on_look: Callable[[Look, dict[str, Rebalance]], None] | None = None,
    ) -> None:
        """Call `on_look` with each look, and the rebalances that are over since the one before. There is none while
        `is_wanted` returns False.
        """
        self._store = store
        self._share = share
        self._history = history
        self._is_wanted = is_wanted
        self._on_look = on_look
        self._watches: dict[str, RebalanceWatch] = {}
        self._rebalances: dict[str, deque[Rebalance]] = {}
        self._interval_s = interval_s
        self._mutex = threading.Lock()
        self._looks: deque[Look] = deque(maxlen=max(2, int(TREND_S / INTERVAL_S)) + 1)
        self._groups: dict[str, deque[GroupPoint]] = {}
        self._stalls: dict[str, dict[str, Stall]] = {}
        self._totals: deque[dict[str, Any]] = deque(maxlen=history)
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, name="klamm-console-sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(5)

    def run(self) -> None:
        """Look again and again, until `stop`."""
        while not self._is_over.is_set():
            began, wait_s = time.monotonic(), self._interval_s
            try:
                if self._is_wanted():
                    seen = look(self._store)
                    spent_s = time.monotonic() - began
                    wait_s = max(wait_s, spent_s / self._share)
                    self.add(seen._replace(every_ms=round((spent_s + wait_s) * 1000)))
            except (KlammError, OSError):
                self.add(None)  # the pages that read the same say why
            self._is_over.wait(wait_s)

    def add(self, seen: Look | None) -> None:
        """Add a sample; None: it failed, which leaves a gap."""
        with self._mutex:
            if seen is None:
                self._totals.append({"time_ms": time.time_ns() // 1_000_000, "in_per_s": None, "out_per_s": None})
                return
            self._looks.append(seen)
            for name in self._groups.keys() - seen.groups.keys():
                del self._groups[name], self._watches[name], self._stalls[name]
                self._rebalances.pop(name, None)
            over: dict[str, Rebalance] = {}
            for name, point in seen.groups.items():
                self._groups.setdefault(name, deque(maxlen=self._history)).append(
                    point._replace(assignment=(), unread=(), every_ms=seen.every_ms)
                )
                self._stalls[name] = stalls_of(point, self._stalls.get(name, {}))
                rebalance = self._watches.setdefault(name, RebalanceWatch()).see(point)
                if rebalance is not None:
                    over[name] = rebalance
                    self._rebalances.setdefault(name, deque(maxlen=REBALANCES)).append(rebalance)
        totals = {"time_ms": seen.time_ms, "in_per_s": self.in_per_s(), "out_per_s": self.out_per_s()}
        with self._mutex:
            self._totals.append(totals)
        if self._on_look is not None:
            self._on_look(seen, over)

    def in_per_s(self, topic: str | None = None) -> float | None:
        """Return how many records per second are appended, to one topic or all."""
        if topic is None:
            return self._rate(lambda seen: sum(seen.ends.values()))
        return self._rate(lambda seen: seen.ends.get(topic))

    def out_per_s(self, group: str | None = None) -> float | None:
        """Return how many records per second a group commits, or all together."""

        def passed(name: str, seen: Look) -> int | None:
            point = seen.groups.get(name)
            return None if point is None else point.end - point.lag

        if group is not None:
            return self._rate(lambda seen: passed(group, seen))
        with self._mutex:
            names = list(self._groups)
        rates = [self.out_per_s(name) for name in names]
        return sum(rate for rate in rates if rate is not None) if any(rate is not None for rate in rates) else None

    def _rate(self, count: Callable[[Look], int | None]) -> float | None:
        with self._mutex:
            looks = list(self._looks)
        points = [(seen.time_ms, value) for seen in looks if (value := count(seen)) is not None]
        return per_second(points, looks[-1].time_ms) if looks else None

    def catch_up_ms(self, group: str) -> float | str | None:
        """Return when a group will have caught up; see `catch_up_ms`."""
        points = self.group_history(group)
        return catch_up_ms(points, points[-1].time_ms) if points else None

    def group_history(self, group: str) -> list[GroupPoint]:
        with self._mutex:
            return list(self._groups.get(group, ()))

    def stalls(self, group: str, now_ms: int, least_ms: int) -> list[Stall]:
        """Return where members of the group stand still, for at least so long. See `standing`."""
        with self._mutex:
            stalls = list(self._stalls.get(group, {}).values())
        return standing(stalls, now_ms - least_ms)

    def rebalances(self, group: str) -> list[Rebalance]:
        """Return those that were seen, oldest first."""
        with self._mutex:
            return list(self._rebalances.get(group, ()))

    def totals(self) -> list[dict[str, Any]]:
        """Return the rates in and out of the store over time."""
        with self._mutex:
            return list(self._totals)


def stalls_of(point: GroupPoint, before: Mapping[str, Stall]) -> dict[str, Stall]:
    """Return where a group stands, by partition: since it was first seen at that offset, with that member."""
    owners = {partition: member for member, partitions in point.assignment for partition in partitions}
    stalls = {}
    for partition, offset in point.unread:
        stall = Stall(partition, offset, point.time_ms, owners.get(partition, ""))
        known = before.get(partition)
        is_same = known is not None and (known.offset, known.member) == (offset, stall.member)
        stalls[partition] = known if known is not None and is_same else stall
    return stalls


def standing(stalls: Iterable[Stall], before_ms: int) -> list[Stall]:
    """Return the stalls since before then, of members that moved in no other partition either.

    A member that is behind in several partitions may read one after the other.
    """
    stalls = list(stalls)
    moving = {stall.member for stall in stalls if stall.since_ms > before_ms}
    return [stall for stall in stalls if stall.member not in moving]


def look(store: Store) -> Look:
    """Look at the store now."""
    core = store._acquired()
    ends, groups = {}, {}
    for topic in core.catalog.topics():
        try:
            opened = core.topic(topic.name)
            ends[topic.name] = sum(opened.partition(number).ends().end for number in range(len(topic.partitions)))
        except KlammError:  # deleted by now, or damaged: the overview says which
            continue
    time_ms = time.time_ns() // 1_000_000
    for name in store.groups:
        try:
            groups[name] = group_point(store.groups.describe(name), time_ms)
        except KlammError:
            continue
    return Look(time_ms, ends, groups)
