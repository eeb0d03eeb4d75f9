"""Syncs of logs, for producers that wait until their records are on disk.

A partition has at most one sync under way here; requests that come meanwhile wait for the next one, which covers all
that have come until it starts. So a disk that takes a millisecond for a sync takes thousands of requests a second.
Where several wait for one, the first of the next begins when the loop has appended what else has arrived by then.

Native threads sync, without the GIL, and signal the loop once for all that is done (log/_sync_thread.pxi). There are
as many as partitions were ever to be synced at once, up to 16. What they cannot do in one try goes to a thread of the
pool, which may wait for another process that syncs, or write again what a failed sync may have dropped
(Partition.sync).

Where one waits alone, its response can be sent by the thread that syncs (`reply`). Then the loop is not woken: it finds
out when the client's next request arrives, when another waits for the partition, or with the server's next beat
(`look`). So a client whose next request is here already, or would not be received, gets its response from the loop
(channel.py).

Promises
  SYQ1  `done` is called once for each `wait`: without an error only when everything below its offset is on disk.
  SYQ2  An error is told to all that waited for that sync, and to no others.
  SYQ3  After `close` every one that still waited has been told so, and no thread of it writes to the loop.
  SYQ4  A reply that was sent, in part or whole, says so when `done` is called; none is sent after `withdraw`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from klamm.disk.threads import DaemonThread
from klamm.errors import Closed
from klamm.kafka.loop_signal import signal_to
from klamm.log.head import Reply, Syncer

if TYPE_CHECKING:
    from klamm.kafka.pools import Pools
    from klamm.log.partition import Partition

__all__ = ["SyncQueue"]

Done = Callable[[BaseException | None], None]

_MAX_THREADS = 16
_STOP_S = 5.0  # a disk that takes longer for a sync is not waited for


class _Sync:
    """One sync of a partition, and who waits for it."""

    __slots__ = ("end_offset", "is_started", "partition", "reply", "waiting")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.end_offset = 0
        self.is_started = False
        self.reply: Reply | None = None  # of the one that waits, if it is alone
        self.waiting: list[Done] = []


class SyncQueue:
    """The queue of one server's syncs, on its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pools: Pools) -> None:
        self._loop = loop
        self._pools = pools
        self._running: dict[Partition, _Sync] = {}
        self._next: dict[Partition, _Sync] = {}
        self._is_shared = False  # whether several waited for the last sync that ended
        self._signal = signal_to(loop, self._take)
        self._syncer: Syncer[_Sync] = Syncer(self._signal.fd)
        self._threads: list[DaemonThread] = []
        self._is_closed = False

    def __len__(self) -> int:
        """Return how many partitions are being synced."""
        return len(self._running)

    def wait(self, partition: Partition, end_offset: int, done: Done, reply: Reply | None = None) -> None:
        """Call `done` when everything below `end_offset` is on disk, or with the error that says it is not.

        The reply may be sent before that: see its `sent`.
        """
        if self._is_closed:
            done(_closed())
            return
        sync = self._running.get(partition)
        if sync is not None and sync.reply is not None:
            self.want(sync.reply)  # it may have ended long ago
            sync = self._running.get(partition)
        if sync is not None and sync.is_started:
            sync = self._next.get(partition)
            if sync is None:
                sync = self._next[partition] = _Sync(partition)
        elif sync is None:
            sync = self._running[partition] = _Sync(partition)
            if self._is_shared:  # what other clients have sent by now is appended first
                self._loop.call_soon(self._start, sync)
        sync.end_offset = max(sync.end_offset, end_offset)
        sync.reply = None if sync.waiting else reply
        sync.waiting.append(done)
        if not self._is_shared and sync is self._running[partition]:
            self._start(sync)

    def _start(self, sync: _Sync) -> None:
        if sync.is_started or self._is_closed:
            return
        sync.is_started = True
        wants_thread = self._syncer.submit(sync.partition.log, sync.end_offset, sync, sync.reply)
        if wants_thread and len(self._threads) < _MAX_THREADS:
            self._threads.append(DaemonThread(self._syncer.run, "klamm-sync"))

    def want(self, reply: Reply) -> None:
        """Call `done` for the job with this reply as soon as its sync has ended: now, if it has."""
        if self._syncer.want(reply):
            self._take()

    def look(self) -> None:
        """Call `done` for all whose syncs have ended, also those whose replies were sent."""
        if self._running:
            self._take()

    def withdraw(self, reply: Reply) -> None:
        """Withdraw a reply: its socket is about to be closed."""
        self._syncer.withdraw(reply)

    def _take(self) -> None:
        """Take the jobs that are done."""
        for sync, result in self._syncer.take():
            if result == 0:
                self._end(sync, None)
            else:
                rest = self._pools.sync(sync.partition.sync, sync.end_offset)
                rest.add_done_callback(partial(self._end_rest, sync))

    def _end_rest(self, sync: _Sync, rest: asyncio.Future[None]) -> None:
        if not self._is_closed:
            self._end(sync, _closed() if rest.cancelled() else rest.exception())

    def _end(self, sync: _Sync, error: BaseException | None) -> None:
        self._is_shared = len(sync.waiting) > 1
        following = self._next.pop(sync.partition, None)
        if following is None:
            del self._running[sync.partition]
        else:
            self._running[sync.partition] = following
            self._start(following)
        for done in sync.waiting:
            done(error)

    def close(self) -> None:
        """End the threads, each after the sync that it is at; who still waits gets Closed."""
        if self._is_closed:
            return
        self._is_closed = True
        self._syncer.stop()
        ended = [thread.join(_STOP_S) for thread in self._threads]
        if all(ended):
            self._signal.close()  # else a thread may still write to it, when its disk goes on
        left = [*self._running.values(), *self._next.values()]
        self._running.clear()
        self._next.clear()
        for sync in left:
            for done in sync.waiting:
                done(_closed())


def _closed() -> Closed:
    return Closed("the server stops", hint="whether the records are on disk is not known: send them again")
