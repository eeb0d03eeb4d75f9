"""Transactions that a store has committed itself, and that readers may not see yet.

A commit is decided when its coordinator has written it down. The markers that show its records to readers follow, a few
milliseconds later, so a store that reads at once would miss what it has just written: it waits for them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from klamm.log.partition import Ends
from klamm.types import TopicPartition

__all__ = ["MARKER_S", "OwnCommits"]

MARKER_S = 10.0
"""How long the marker of a transaction may take."""
_BEHIND_OTHERS_S = 0.25  # the same where others have written behind its records: a transaction of theirs may be open


class OwnCommits:
    """The ends of what one store has committed, by partition; for any thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._ends: dict[TopicPartition, tuple[int, float]] = {}  # end of the records, and when it was committed

    def add(self, records: Iterable[tuple[TopicPartition, int]]) -> None:
        """Remember the partitions and offsets of records whose transaction was committed just now."""
        now = time.monotonic()
        with self._mutex:
            for partition, offset in records:
                if offset >= self._ends.get(partition, (0, 0.0))[0]:
                    self._ends[partition] = offset + 1, now

    def is_hidden(self, partition: TopicPartition, ends: Ends) -> bool:
        """Return whether `ends` is from before the marker behind this store's last committed record.

        That is certain where the record is the last of the log. Where something is behind it, another transaction may
        hide it for as long as that one is open.
        """
        with self._mutex:
            known = self._ends.get(partition)
            if known is None:
                return False
            end, committed_at = known
            patience_s = MARKER_S if ends.end <= end else _BEHIND_OTHERS_S
            if ends.stable < end and time.monotonic() - committed_at < patience_s:
                return True
            del self._ends[partition]
            return False
