"""Count a topic's records by stretches of time: for the timeline and the heat map.

The stretches are of one length, from the earliest record to the latest. Their edges are looked up in the index of each
partition, as a reader that starts at a time does; no record is counted one by one. A stretch whose edges are at one
offset is empty, and so is all within it: that much is not looked up.

Offsets are counted, so records that compaction has removed, and markers of transactions, count as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from klamm.log.lookup import find_max_timestamp, first_since

if TYPE_CHECKING:
    from klamm.log.partition import Partition
    from klamm.types import TopicPartition

__all__ = ["Volume", "count_volume"]

MOST_PARTITIONS = 64
_MOST_LOOKUPS = 800


@dataclass(frozen=True)
class Volume:
    """Counts by partition and stretch of time."""

    edges_ms: list[int]
    """One more than there are stretches; empty, if there are no records."""
    counts: dict[int, list[int]]
    """By partition."""
    left_out: int = 0
    """Partitions that were not looked at, because there are too many."""

    @property
    def totals(self) -> list[int]:
        return [sum(column) for column in zip(*self.counts.values(), strict=True)]


def count_volume(partitions: Mapping[TopicPartition, Partition], stretches: int) -> Volume:
    """Return the volume over time in at most so many stretches."""
    chosen = dict(list(partitions.items())[:MOST_PARTITIONS])
    left_out = len(partitions) - len(chosen)
    firsts, lasts = [], []
    for log in chosen.values():
        first, last = first_since(log, 0), find_max_timestamp(log)
        if first is not None and last is not None:
            firsts.append(first.timestamp)
            lasts.append(last.timestamp)
    if not firsts:
        return Volume([], {name.partition: [] for name in chosen}, left_out)
    begin, end = min(firsts), max(max(lasts) + 1, min(firsts) + 1)
    count = max(1, min(stretches, _MOST_LOOKUPS // len(chosen), end - begin))
    edges = [begin + (end - begin) * number // count for number in range(count + 1)]
    return Volume(edges, {name.partition: _counts(log, edges) for name, log in chosen.items()}, left_out)


def _counts(log: Partition, edges_ms: list[int]) -> list[int]:
    ends = log.ends()
    offsets = [ends.start, *([-1] * (len(edges_ms) - 2)), ends.end]
    _fill(log, edges_ms, offsets, 0, len(offsets) - 1)
    return [max(0, after - before) for before, after in pairwise(offsets)]


def _fill(log: Partition, edges_ms: list[int], offsets: list[int], low: int, high: int) -> None:
    """Set the offsets between two edges that are known."""
    if high - low < 2:
        return
    if offsets[low] >= offsets[high]:
        offsets[low + 1 : high] = [offsets[low]] * (high - low - 1)
        return
    middle = (low + high) // 2
    offset = log.offset_at(edges_ms[middle])
    offsets[middle] = offsets[high] if offset is None else min(max(offset, offsets[low]), offsets[high])
    _fill(log, edges_ms, offsets, low, middle)
    _fill(log, edges_ms, offsets, middle, high)
