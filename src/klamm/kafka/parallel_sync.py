"""Syncs of several logs at once, for threads: the disk does them side by side, and the thread waits once for all.

Native threads sync, without the GIL (log/_sync_thread.pxi). What they cannot do in one try, because another process
syncs just now or the disk reports an error, is left to the caller.

Promises
  PSY1  A log that is returned as synced is on disk up to its offset.
  PSY2  `close` leaves no thread and no descriptor, unless a disk does not answer.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Sequence
from typing import TYPE_CHECKING

from klamm.disk.threads import DaemonThread
from klamm.log.head import Syncer

if TYPE_CHECKING:
    from klamm.log.partition import Partition

__all__ = ["ParallelSync"]

_MAX_CALLS = 4  # at once; others wait
_MAX_THREADS = 8  # for each of them
_STOP_S = 5.0


class ParallelSync:
    """The parallel syncs of one server. Thread-safe."""

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[_Threads | None] = queue.SimpleQueue()
        self._is_closed = False
        for _ in range(_MAX_CALLS):
            self._free.put(None)  # made when it is needed

    def sync(self, ends: Sequence[tuple[Partition, int]]) -> list[bool]:
        """Sync logs up to these offsets. Return of each whether it is; if not, it is left to the caller."""
        threads = self._free.get()
        try:
            if threads is None and not self._is_closed:
                threads = _Threads()
            return [False] * len(ends) if threads is None else threads.sync(ends)
        finally:
            self._free.put(threads)

    def close(self) -> None:
        """End the threads, but for those of a disk that takes too long. What comes later is left to its caller."""
        self._is_closed = True
        for _ in range(_MAX_CALLS):
            try:
                threads = self._free.get(timeout=_STOP_S)
            except queue.Empty:
                continue
            if threads is not None:
                threads.close()
            self._free.put(None)


class _Threads:
    """The threads of one call at a time."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        self._syncer: Syncer[int] = Syncer(self._write_fd)
        self._running: list[DaemonThread] = []

    def sync(self, ends: Sequence[tuple[Partition, int]]) -> list[bool]:
        done = [False] * len(ends)
        for index, (partition, end_offset) in enumerate(ends):
            wants_thread = self._syncer.submit(partition.log, end_offset, index)
            if wants_thread and len(self._running) < _MAX_THREADS:
                self._running.append(DaemonThread(self._syncer.run, "klamm-marker"))
        while len(self._syncer):
            os.read(self._read_fd, 4096)
            for index, result in self._syncer.take():
                done[index] = result == 0
        return done

    def close(self) -> None:
        self._syncer.stop()
        ended = [thread.join(_STOP_S) for thread in self._running]
        if all(ended):
            os.close(self._read_fd)
            os.close(self._write_fd)
