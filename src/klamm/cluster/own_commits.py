"""Transactions that a store has committed itself, and that readers may not see yet.

A commit is decided when its coordinator has written it down. The markers that show its records to readers follow, a few
milliseconds later, so a store that reads at once would miss what it has just written: it waits for them.

The last stable offset of a partition is the first offset of the earliest transaction in it that has no marker. So it
says whose marker is missing: where it is the first offset of a transaction of this store, that marker is on its way.
Where it is an earlier one, another transaction is open, for as long as its owner likes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from klamm.log.partition import Ends
from klamm.types import TopicPartition

__all__ = ["MARKER_S", "OwnCommits"]

MARKER_S = 10.0
"""How long the marker of a transaction may take."""


class _Commit(NamedTuple):
    """The part of a committed transaction that is in one partition: offsets [start, end)."""

    start: int
    end: int
    at: float

    def is_hidden(self, ends: Ends) -> bool:
        return ends.stable == self.start or ends.end < self.end

    def is_seen(self, ends: Ends) -> bool:
        return ends.stable >= self.end


class OwnCommits:
    """Commits of one store whose markers it has not seen yet, by partition; for any thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._commits: dict[TopicPartition, list[_Commit]] = {}

    def add(self, records: Iterable[tuple[TopicPartition, int]]) -> None:
        """Remember the partitions and offsets of the records of a transaction that was committed just now."""
        ranges: dict[TopicPartition, tuple[int, int]] = {}
        for partition, offset in records:
            start, end = ranges.get(partition, (offset, offset + 1))
            ranges[partition] = min(start, offset), max(end, offset + 1)
        now = time.monotonic()
        with self._mutex:
            for partition, (start, end) in ranges.items():
                commits = [commit for commit in self._commits.get(partition, ()) if now - commit.at < MARKER_S]
                self._commits[partition] = [*commits, _Commit(start, end, now)]

    def is_hidden(self, partition: TopicPartition, ends: Ends) -> bool:
        """Return whether `ends` is from before a marker of this store, or from a leader that does not have all of its
        records yet.
        """
        with self._mutex:
            commits = self._commits.get(partition)
            if commits is None:
                return False
            now = time.monotonic()
            commits = [commit for commit in commits if now - commit.at < MARKER_S and not commit.is_seen(ends)]
            if commits:
                self._commits[partition] = commits
            else:
                del self._commits[partition]
            return any(commit.is_hidden(ends) for commit in commits)
