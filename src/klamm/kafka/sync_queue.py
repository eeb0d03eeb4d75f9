"""Syncs of logs, for producers that wait until their records are on disk.

A partition has at most one sync under way here; whoever comes meanwhile waits for the next one, which covers all that
have come until it starts. So a disk that takes a millisecond for a sync still takes thousands of requests a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from klamm.errors import KlammError

if TYPE_CHECKING:
    from klamm.kafka.pools import Pools
    from klamm.log.partition import Partition

__all__ = ["SyncQueue"]

Done = Callable[[BaseException | None], None]


class SyncQueue:
    """Of one server, on its loop."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._waiting: dict[Partition, list[tuple[int, Done]]] = {}
        self._running: set[Partition] = set()

    def __len__(self) -> int:
        """How many partitions are being synced."""
        return len(self._running)

    def wait(self, partition: Partition, upto: int, done: Done) -> None:
        """Call `done` when everything below `upto` is on disk, or with the error that says it is not."""
        self._waiting.setdefault(partition, []).append((upto, done))
        if partition not in self._running:
            self._start(partition)

    def _start(self, partition: Partition) -> None:
        waiting = self._waiting.pop(partition)
        self._running.add(partition)
        running = self._pools.sync(partition.sync, max(upto for upto, _ in waiting))
        running.add_done_callback(lambda over: self._over(partition, waiting, over))

    def _over(self, partition: Partition, waiting: list[tuple[int, Done]], over: asyncio.Future[None]) -> None:
        self._running.discard(partition)
        if partition in self._waiting:
            self._start(partition)
        error = over.exception() if not over.cancelled() else KlammError("the server stops")
        for _, done in waiting:
            done(error)
