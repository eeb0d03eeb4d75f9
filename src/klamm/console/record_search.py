"""Records of a topic, page by page: from a position on, or the last ones, all or those that a filter takes.

A search looks at a window of offsets at a time, and stops when it has enough, has seen everything, or has spent its
budget of time, offsets or bytes of records. It returns where it stopped, as positions that continue it. How
much it has seen follows from them, so "scanned n of m" needs no state. Records are in the order of their
timestamps, and of their offsets within a partition.

    forward    from a start on: positions are the next offsets to look at
    backward   from the end: positions are exclusive ends: all offsets before them are left
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import merge
from typing import TYPE_CHECKING

from klamm.client.consume.range_reader import read_ranges
from klamm.types import TopicPartition
from klamm.where import Where, range_in

if TYPE_CHECKING:
    from klamm.batch import Record
    from klamm.log.partition import Partition
    from klamm.store.directory import Core

__all__ = ["SearchResult", "search"]

FIRST_WINDOW = 1_000  # offsets of a partition, when a filter may leave few of them
MAX_WINDOW = 50_000
WIDER = 4
BUDGET_S = 1.0
BUDGET_OFFSETS = 100_000
BUDGET_BYTES = 64 << 20
NARROWER = 8
_LATEST = Where("latest")
_EARLIEST = Where("earliest")


@dataclass(frozen=True)
class SearchResult:
    """The result of a search, and how to continue it."""

    records: list[Record]
    """Oldest first."""
    scanned: int
    """Offsets that were looked at, by this search and those it continues."""
    total: int
    """Offsets that there are to look at."""
    rest: Where | None
    """Where to go on; None: everything was looked at."""


def search(
    core: Core,
    partitions: Mapping[TopicPartition, Partition],
    count: int,
    *,
    start: Where | None = None,
    resume: Where | None = None,
    keep: Callable[[Record], bool] | None = None,
    show: Callable[[Record], Record] | None = None,
    budget_s: float = BUDGET_S,
) -> SearchResult:
    """Return the first `count` records from `start` on; without it, the last `count`.

    `resume` continues a search: it is what the one before has returned as `rest`. At least one window is looked at,
    whatever the budget; it is made narrow enough for the budget of bytes, down to one offset of each partition.
    `show` makes of each record the one that `keep` sees and that is returned.
    """
    is_forward = start is not None
    first = start or _EARLIEST
    whole = {name: range_in(log, first, _LATEST, clamp=True) for name, log in partitions.items()}
    left = dict(whole)
    if resume is not None:
        ends = (resume, _LATEST) if is_forward else (_EARLIEST, resume)
        left = {name: range_in(log, *ends, clamp=True) for name, log in partitions.items()}
    taken: dict[TopicPartition, list[Record]] = {name: [] for name in left}
    reach = count if keep is None else max(count, FIRST_WINDOW)
    deadline, spent, held = time.monotonic() + budget_s, 0, 0
    while True:
        open_ranges = {name: offsets for name, offsets in left.items() if offsets and len(taken[name]) < count}
        if not open_ranges:
            break
        reach = max(1, min(reach, BUDGET_OFFSETS // len(open_ranges)))
        windows = {
            name: offsets[:reach] if is_forward else offsets[max(0, len(offsets) - reach) :]
            for name, offsets in open_ranges.items()
        }
        fresh: dict[TopicPartition, list[Record]] = {name: [] for name in windows}
        size = 0
        for batch in read_ranges(core, windows):
            records = batch if show is None else map(show, batch)
            kept = list(records if keep is None else filter(keep, records))
            fresh[TopicPartition(batch.topic, batch.partition)] += kept
            size += sum(map(_size, kept))
            if held + size > BUDGET_BYTES and reach > 1:
                break
        if held + size > BUDGET_BYTES and reach > 1:  # the windows were read in part only: discard it
            if spent:
                break
            reach = max(1, reach // NARROWER)
            continue
        held += size
        for name, window in windows.items():
            taken[name] = [*taken[name], *fresh[name]] if is_forward else [*fresh[name], *taken[name]]
            offsets = left[name]
            left[name] = range(window.stop, offsets.stop) if is_forward else range(offsets.start, window.start)
        spent += sum(map(len, windows.values()))
        if spent >= BUDGET_OFFSETS or held > BUDGET_BYTES or time.monotonic() >= deadline:
            break
        reach = min(reach * WIDER, max(count, MAX_WINDOW))
    return _cut(taken, left, whole, count, is_forward)


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _cut(
    taken: dict[TopicPartition, list[Record]],
    left: dict[TopicPartition, range],
    whole: Mapping[TopicPartition, range],
    count: int,
    is_forward: bool,
) -> SearchResult:
    """Keep `count` records. The search that continues this one looks at the other ones again."""
    merged = list(merge(*taken.values(), key=lambda record: record.timestamp))
    chosen = merged[:count] if is_forward else merged[max(0, len(merged) - count) :]
    names: dict[TopicPartition, set[int]] = {}
    for record in chosen:
        names.setdefault(TopicPartition(record.topic, record.partition), set()).add(record.offset)
    for name, records in taken.items():
        dropped = [record.offset for record in records if record.offset not in names.get(name, ())]
        if dropped and is_forward:
            left[name] = range(min(dropped), left[name].stop)
        elif dropped:
            left[name] = range(left[name].start, max(dropped) + 1)
    total = sum(map(len, whole.values()))
    unseen = sum(map(len, left.values()))
    rest = None
    if unseen:
        at = {name: offsets.start if is_forward else offsets.stop for name, offsets in left.items()}
        rest = Where({name.partition: offset for name, offset in at.items()})
    return SearchResult(chosen, max(0, total - unseen), total, rest)
