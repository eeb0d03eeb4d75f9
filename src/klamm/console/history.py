"""The history of groups, in a topic of the store: what `klamm serve` or a console with --record writes, and every
console shows.

    __klamm_history      one partition; retention.ms and retention.bytes bound it
    value                {"every_ms": 10000, "groups": {"billing": [end, lag, lag_ms]}}
                         {"rebalance": "billing", "cause": …, "members": 2, "pause_ms": 4000, "came": 812}
    timestamp            when it was seen

One process records at a time: it holds the byte RECORDER (disk/locks.py). A look is written every EVERY_S, or later in
a store that takes longer to look at: `every_ms` says when the next one was to come. Where it came after more than GAP
times as long, nothing was recorded: that is a gap, and drawn as one. A record that cannot be read is left out.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from klamm.client.consume.range_reader import read_ranges
from klamm.client.subscription import open_partitions
from klamm.console.rebalances import Rebalance
from klamm.console.sampler import GroupPoint
from klamm.disk.locks import RECORDER
from klamm.errors import KlammError, TopicExists, UnknownTopic
from klamm.types import TopicPartition
from klamm.where import Where, range_in

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.console.sampler import Look

__all__ = ["HISTORY_TOPIC", "History", "Recorder", "read_history", "with_gaps"]

HISTORY_TOPIC = "__klamm_history"
SETTINGS = {"retention.ms": 7 * 86_400_000, "retention.bytes": 64 << 20, "segment.bytes": 4 << 20}
EVERY_S = 10.0
GAP = 3
_READ_AGAIN_S = 5.0
_MOST_READ = 20  # histories in memory
_LATEST = Where("latest")

_log = logging.getLogger("klamm.console")


class Recorder:
    """Writes looks into the topic, unless another process does. What goes wrong is logged, and tried again."""

    def __init__(self, store: Store, *, every_s: float = EVERY_S) -> None:
        self._store = store
        self._every_s = every_s
        self._next_s = 0.0
        self._is_made = False
        self._is_recorder = False
        self.problem: str | None = None

    def is_recorder(self) -> bool:
        """Return whether it is this one that records; it becomes so if no process does."""
        if not self._is_recorder:
            members = self._store._acquired().members
            self._is_recorder = members is not None and members.try_hold(RECORDER)  # until the store is closed
        return self._is_recorder

    def record(self, seen: Look, rebalances: dict[str, Rebalance]) -> None:
        """Write a look, if it is time for one, and rebalances that are over."""
        rows = [(seen.time_ms, {"rebalance": group, **rebalance._asdict()}) for group, rebalance in rebalances.items()]
        if seen.groups and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + self._every_s
            groups = {name: [point.end, point.lag, point.lag_ms] for name, point in seen.groups.items()}
            every_ms = max(round(self._every_s * 1000), seen.every_ms)
            rows.append((seen.time_ms, {"every_ms": every_ms, "groups": groups}))
        if not rows:
            return
        try:
            if not self.is_recorder():
                return
            self._make()
            records = [(None, json.dumps(row).encode(), None, time_ms) for time_ms, row in rows]
            self._store.append_many(HISTORY_TOPIC, records, acks=1)
            self.problem = None
        except (KlammError, OSError) as error:
            self._is_made = False
            if self.problem is None:
                _log.warning("the history of groups is not recorded: %s", error)
            self.problem = str(error)

    def _make(self) -> None:
        if not self._is_made:
            core = self._store._acquired()
            with suppress(TopicExists):
                core.catalog.create_topic(HISTORY_TOPIC, 1, SETTINGS, core.lay_out, internal=True)
            self._is_made = True


def read_history(store: Store, group: str, since_ms: int) -> tuple[list[GroupPoint], list[Rebalance]]:
    """Return what was recorded of a group since then, oldest first; nothing, if nothing was."""
    core = store._acquired()
    name = TopicPartition(HISTORY_TOPIC, 0)
    try:
        log = open_partitions(core, [name])[name]
        offsets = range_in(log, Where(("timestamp", since_ms)), _LATEST, clamp=True)
    except UnknownTopic:
        return [], []
    points, rebalances = [], []
    for batch in read_ranges(core, {name: offsets}) if offsets else ():
        for record in batch:
            row = _parse(record.value)
            if (point := _point(record.timestamp, row, group)) is not None:
                points.append(point)
            elif row.get("rebalance") == group and (rebalance := _rebalance(row)) is not None:
                rebalances.append(rebalance)
    return points, rebalances


def _point(time_ms: int, row: dict[str, Any], group: str) -> GroupPoint | None:
    groups = row.get("groups")
    numbers = groups.get(group) if isinstance(groups, dict) else None
    if not isinstance(numbers, list) or len(numbers) != 3:
        return None
    end, lag, lag_ms = numbers
    if not (isinstance(end, int) and isinstance(lag, int) and isinstance(lag_ms, int | None)):
        return None
    every_ms = row.get("every_ms")
    if not isinstance(every_ms, int) or every_ms < 1:
        every_ms = round(EVERY_S * 1000)
    return GroupPoint(time_ms, end, lag, lag_ms, every_ms=every_ms)


def _rebalance(row: dict[str, Any]) -> Rebalance | None:
    fields = {name: row.get(name) for name in Rebalance._fields}
    cause = fields.pop("cause")
    if not isinstance(cause, str) or not all(isinstance(number, int) for number in fields.values()):
        return None
    return Rebalance(**{**fields, "cause": cause})  # type: ignore[arg-type]


class History:
    """The recorded history, read again after a hundredth of its span: a live page asks every other second."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mutex = threading.Lock()
        self._read: OrderedDict[tuple[str, int], tuple[float, tuple[list[GroupPoint], list[Rebalance]]]] = OrderedDict()

    def read(self, group: str, span_ms: int) -> tuple[list[GroupPoint], list[Rebalance]]:
        """Like `read_history`, of the last `span_ms`."""
        now_s = time.monotonic()
        with self._mutex:
            cached = self._read.get((group, span_ms))
        if cached is None or now_s - cached[0] > max(_READ_AGAIN_S, span_ms / 100_000):
            cached = (now_s, read_history(self._store, group, time.time_ns() // 1_000_000 - span_ms))
            with self._mutex:
                self._read[group, span_ms] = cached
                while len(self._read) > _MOST_READ:
                    self._read.popitem(last=False)
        return cached[1]


def _parse(data: bytes | None) -> dict[str, Any]:
    try:
        row = json.loads(data or b"null")
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def with_gaps(points: list[GroupPoint]) -> list[tuple[int, int | None, float | None]]:
    """Return (time, lag in records, lag in seconds) of each point, and (time, None, None) where none was recorded."""
    shown: list[tuple[int, int | None, float | None]] = []
    for before, point in zip([None, *points], points, strict=False):
        if before is not None and point.time_ms - before.time_ms > GAP * max(before.every_ms, point.every_ms):
            shown.append((before.time_ms + before.every_ms, None, None))
        shown.append((point.time_ms, point.lag, None if point.lag_ms is None else point.lag_ms / 1000))
    return shown
