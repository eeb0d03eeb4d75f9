"""Threads for what the loop may not wait for: SQLite, locks, disks.

read          reads of SQLite and of cold files                  a few, in any order
write         short writes of SQLite                             one, in the order they were asked for
administer    what takes long: create, alter, compact            a few

A lane is a thread for one partition, as long as there is something to do that may block: its appends, in order, when
somebody holds the append lock; to open it; to delete from it. So a stopped process makes those wait who want the same
partition, and nobody else.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from klamm.errors import StoreBusy

__all__ = ["Lanes", "Pools"]

Result = TypeVar("Result")

MAX_LANES = 256


class Pools:
    """The threads of one server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._read = ThreadPoolExecutor(4, "klamm-read")
        self._write = ThreadPoolExecutor(1, "klamm-write")
        self._administer = ThreadPoolExecutor(4, "klamm-admin")
        self._sync = ThreadPoolExecutor(16, "klamm-sync")

    def read(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        return self._loop.run_in_executor(self._read, function, *args)

    def write(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        return self._loop.run_in_executor(self._write, function, *args)

    def administer(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        return self._loop.run_in_executor(self._administer, function, *args)

    def sync(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        """For syncs of logs: each waits for the disk, and for nothing else."""
        return self._loop.run_in_executor(self._sync, function, *args)

    def close(self) -> None:
        """What is queued is done; what is stuck is left."""
        for pool in (self._read, self._write, self._administer, self._sync):
            pool.shutdown(wait=False)


class _Lane:
    __slots__ = ("jobs",)

    def __init__(self) -> None:
        self.jobs: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()


class Lanes:
    """By key: jobs that may block, one after the other. Used from the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lanes: dict[object, _Lane] = {}
        self._mutex = threading.Lock()

    def is_busy(self, key: object) -> bool:
        """Whether something is queued: then what comes must queue behind it, or overtake it."""
        return key in self._lanes

    def __len__(self) -> int:
        return len(self._lanes)

    def run(self, key: object, job: Callable[[], Result]) -> asyncio.Future[Result]:
        done: asyncio.Future[Result] = self._loop.create_future()
        with self._mutex:
            lane = self._lanes.get(key)
            if lane is not None:
                lane.jobs.append((job, done))
                return done
            if len(self._lanes) >= MAX_LANES:
                done.set_exception(StoreBusy("too many partitions are held by other processes", hint="try again"))
                return done
            lane = self._lanes[key] = _Lane()
            lane.jobs.append((job, done))
        threading.Thread(target=self._work, args=(key, lane), name="klamm-lane", daemon=True).start()
        return done

    def _work(self, key: object, lane: _Lane) -> None:
        while True:
            with self._mutex:
                if not lane.jobs:
                    del self._lanes[key]
                    return
                job, done = lane.jobs[0]
            try:
                result, error = job(), None
            except BaseException as raised:  # noqa: BLE001  # it is told to whoever waits
                result, error = None, raised
            with self._mutex:
                lane.jobs.popleft()
                last = not lane.jobs
                if last:
                    del self._lanes[key]
            try:
                self._loop.call_soon_threadsafe(_settle, done, result, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits
            if last:
                return


def _settle(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.cancelled():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)
