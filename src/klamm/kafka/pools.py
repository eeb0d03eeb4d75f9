"""Threads for what the loop may not wait for: SQLite, locks, disks, decompression.

Each kind of work has threads of its own, so that none can starve another: clients that send batches that take long to
decompress delay each other, but not the reading of the catalog, which requests of all clients wait for.

catalog       reads of SQLite: topics, groups, offsets           2, in any order
disk          segment files: cold reads, seeks, look-ups         4, in any order
codec         decompression, checks of large batches             2, in any order
decode        requests of many elements: all of it is Python,    1, in the order of the calls
              which one such thread at a time takes from the loop
write         short writes of SQLite                             1, in the order of the calls
transact      transactions: their rows, syncs and markers        16, of a transactional id one (transaction_queue.py)
administer    what takes long: create, alter, compact            4, in any order
authenticate  look-ups of users, hashes of passwords             2, in any order
sync          what native threads leave of syncs (sync_queue.py)   16, in any order

What is queued is bounded by the number of connections: each has one request at a time.

A partition executor is a queue and a thread for one partition, as long as there is something to do that may block: its
appends, in order, when another process holds the append lock; to open it; to delete from it. So a stopped process
delays requests for its partition, and no others.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from klamm.errors import StoreBusy

__all__ = ["PartitionExecutors", "Pools"]

Result = TypeVar("Result")

MAX_PARTITION_EXECUTORS = 256


class Pools:
    """The threads of one server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._catalog = ThreadPoolExecutor(2, "klamm-catalog")
        self._disk = ThreadPoolExecutor(4, "klamm-disk")
        self._codec = ThreadPoolExecutor(2, "klamm-codec")
        self._decode = ThreadPoolExecutor(1, "klamm-decode")
        self._write = ThreadPoolExecutor(1, "klamm-write")
        self._transact = ThreadPoolExecutor(16, "klamm-transact")
        self._administer = ThreadPoolExecutor(4, "klamm-admin")
        self._authenticate = ThreadPoolExecutor(2, "klamm-login")
        self._sync = ThreadPoolExecutor(16, "klamm-sync")

    def catalog(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        return self._loop.run_in_executor(self._catalog, function, *args)

    def disk(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        return self._loop.run_in_executor(self._disk, function, *args)

    def codec(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        return self._loop.run_in_executor(self._codec, function, *args)

    def decode(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        return self._loop.run_in_executor(self._decode, function, *args)

    def write(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        return self._loop.run_in_executor(self._write, function, *args)

    def transact(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        return self._loop.run_in_executor(self._transact, function, *args)

    def administer(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        return self._loop.run_in_executor(self._administer, function, *args)

    def authenticate(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        return self._loop.run_in_executor(self._authenticate, function, *args)

    def sync(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        """Run a sync that waits for another process, or writes again what a failed one may have dropped."""
        return self._loop.run_in_executor(self._sync, function, *args)

    def close(self) -> None:
        """Close the pools: what is queued is done; threads that hang are left behind."""
        first = self._catalog, self._disk, self._codec, self._decode, self._write
        for pool in (*first, self._transact, self._administer, self._authenticate, self._sync):
            pool.shutdown(wait=False)


class _PartitionExecutor:
    __slots__ = ("jobs",)

    def __init__(self) -> None:
        self.jobs: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()


class PartitionExecutors:
    """Executors by key: the jobs of a key may block, and run one after the other. Used from the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._by_key: dict[object, _PartitionExecutor] = {}
        self._mutex = threading.Lock()

    def is_busy(self, key: object) -> bool:
        """Return whether something is queued: then what comes must queue behind it, or overtake it."""
        return key in self._by_key

    def __len__(self) -> int:
        return len(self._by_key)

    def run(self, key: object, job: Callable[[], Result]) -> asyncio.Future[Result]:
        done: asyncio.Future[Result] = self._loop.create_future()
        with self._mutex:
            executor = self._by_key.get(key)
            if executor is not None:
                executor.jobs.append((job, done))
                return done
            if len(self._by_key) >= MAX_PARTITION_EXECUTORS:
                done.set_exception(
                    StoreBusy(
                        "too many partitions are held by other processes",
                        hint="try again; klamm who names the processes",
                    )
                )
                return done
            executor = self._by_key[key] = _PartitionExecutor()
            executor.jobs.append((job, done))
        threading.Thread(target=self._work, args=(key, executor), name="klamm-partition", daemon=True).start()
        return done

    def _work(self, key: object, executor: _PartitionExecutor) -> None:
        while True:
            with self._mutex:
                if not executor.jobs:
                    del self._by_key[key]
                    return
                job, done = executor.jobs[0]
            try:
                result, error = job(), None
            except BaseException as raised:  # noqa: BLE001  # it is raised in the caller
                result, error = None, raised
            with self._mutex:
                executor.jobs.popleft()
                last = not executor.jobs
                if last:
                    del self._by_key[key]
            try:
                self._loop.call_soon_threadsafe(_complete, done, result, error)
            except RuntimeError:
                return  # the loop is closed: no caller waits
            if last:
                return


def _complete(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.cancelled():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)
