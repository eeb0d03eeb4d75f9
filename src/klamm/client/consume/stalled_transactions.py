"""Detect stalled transactions: ask for open ones to be resolved if the last stable offset has not moved for a second.

A consumer that finds a log where it was a second ago, with a transaction open in front of it, has it resolved: that
ends what belongs to processes that are gone, and leaves the rest alone (store/transactions.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from klamm.errors import KlammError

if TYPE_CHECKING:
    from klamm.client.consume.cursor import Cursor
    from klamm.log.partition import Partition
    from klamm.store.directory import Core

__all__ = ["StalledTransactions"]

_AFTER_S = 1.0


class StalledTransactions:
    """One consumer's watch over its logs."""

    __slots__ = ("_core", "_looked", "_seen")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._looked = time.monotonic()
        self._seen: dict[Partition, int] = {}

    def look(self, cursors: Iterable[Cursor]) -> None:
        """Find, once a second, logs that have not moved since the last time. For a consumer with nothing to read."""
        now = time.monotonic()
        if now - self._looked < _AFTER_S or self._core.read_only:
            return
        self._looked = now
        seen: dict[Partition, int] = {}
        for cursor in cursors:
            with suppress(KlammError):  # deleted, or damaged: reading it says so
                head = cursor.partition.snapshot()
                if head.stable_offset < head.next_offset:
                    seen[cursor.partition] = head.stable_offset
        before, self._seen = self._seen, seen
        stalled = [partition for partition, offset in seen.items() if before.get(partition) == offset]
        if stalled:
            self._core.transactions.resolve(stalled)
