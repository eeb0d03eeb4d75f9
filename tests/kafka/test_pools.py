"""Threads of a server: lanes keep order and keep out of each other's way; syncs of a partition are shared."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from klamm.errors import KlammError, StoreBusy, SyncFailed
from klamm.kafka import pools
from klamm.kafka.pools import PartitionExecutors, Pools
from klamm.kafka.sync_queue import SyncQueue
from tests.procs import PATIENCE
from tests.rig import Rig, batch


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE))


def test_a_lane_does_one_thing_after_the_other() -> None:
    async def main() -> None:
        lanes = PartitionExecutors(asyncio.get_running_loop())
        order: list[int] = []
        running = [0]

        def job(number: int) -> int:
            running[0] += 1
            assert running[0] == 1
            order.append(number)
            running[0] -= 1
            return number

        gate = threading.Event()
        first = lanes.run("a", gate.wait)
        given = [lanes.run("a", lambda n=n: job(n)) for n in range(500)]  # type: ignore[misc]
        assert lanes.is_busy("a")
        gate.set()
        assert await first
        assert await asyncio.gather(*given) == list(range(500))
        assert order == list(range(500))
        assert not lanes.is_busy("a")
        assert len(lanes) == 0

    run(main())


def test_a_lane_that_is_stuck_keeps_no_other_waiting() -> None:
    async def main() -> None:
        lanes = PartitionExecutors(asyncio.get_running_loop())
        gate = threading.Event()
        stuck = [lanes.run("stuck", gate.wait) for _ in range(3)]
        assert await asyncio.gather(*(lanes.run(n, lambda n=n: n) for n in range(100))) == list(range(100))  # type: ignore[misc]
        assert not any(each.done() for each in stuck)
        assert len(lanes) == 1
        gate.set()
        assert await asyncio.gather(*stuck) == [True, True, True]

    run(main())


def test_an_error_is_told_and_the_lane_goes_on() -> None:
    async def main() -> None:
        lanes = PartitionExecutors(asyncio.get_running_loop())

        def fails() -> None:
            raise KlammError("no")

        first, second = lanes.run("a", fails), lanes.run("a", lambda: 2)
        with pytest.raises(KlammError):
            await first
        assert await second == 2

    run(main())


def test_who_does_not_wait_any_more_disturbs_nobody() -> None:
    async def main() -> None:
        lanes = PartitionExecutors(asyncio.get_running_loop())
        gate = threading.Event()
        first, second, third = (lanes.run("a", job) for job in (gate.wait, gate.wait, lambda: 3))
        second.cancel()
        gate.set()
        assert (await first, await third) == (True, 3)

    run(main())


def test_there_are_only_so_many_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MAX_PARTITION_EXECUTORS", 4)

    async def main() -> None:
        lanes = PartitionExecutors(asyncio.get_running_loop())
        gate = threading.Event()
        stuck = [lanes.run(n, gate.wait) for n in range(4)]
        with pytest.raises(StoreBusy):
            await lanes.run(4, gate.wait)
        behind = lanes.run(0, lambda: "behind")
        gate.set()
        await asyncio.gather(*stuck)
        assert await behind == "behind"
        assert await lanes.run(4, lambda: 4) == 4

    run(main())


def test_lanes_from_many_rounds_are_none_when_all_is_done() -> None:
    async def main() -> None:
        lanes = PartitionExecutors(asyncio.get_running_loop())
        for turn in range(200):
            given = [lanes.run(key, lambda k=key: k) for key in (turn % 3, turn % 5, 7)]  # type: ignore[misc]
            assert await asyncio.gather(*given) == [turn % 3, turn % 5, 7]
        assert len(lanes) == 0

    run(main())


# ---- syncs


class Slow:
    """A partition whose disk takes as long as it is told to."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.synced: list[int] = []
        self.error: Exception | None = None

    def sync(self, upto: int) -> None:
        assert self.gate.wait(PATIENCE)
        self.synced.append(upto)
        if self.error is not None:
            raise self.error


def test_those_who_come_while_a_sync_runs_share_the_next() -> None:
    async def main() -> None:
        threads = Pools(asyncio.get_running_loop())
        syncing, disk = SyncQueue(threads), Slow()
        done: list[tuple[int, BaseException | None]] = []
        for upto in (3, 9, 5, 7):
            syncing.wait(disk, upto, lambda error, n=upto: done.append((n, error)))  # type: ignore[arg-type,misc]
        assert len(syncing) == 1
        assert done == []
        disk.gate.set()
        while len(done) < 4:
            await asyncio.sleep(0.001)
        assert disk.synced == [3, 9]
        assert done == [(3, None), (9, None), (5, None), (7, None)]
        assert len(syncing) == 0
        threads.close()

    run(main())


def test_a_failed_sync_is_told_to_all_it_was_for_and_to_nobody_else() -> None:
    async def main() -> None:
        threads = Pools(asyncio.get_running_loop())
        syncing, bad, good = SyncQueue(threads), Slow(), Slow()
        bad.error = SyncFailed("no")
        done: dict[str, BaseException | None] = {}
        syncing.wait(bad, 1, lambda error: done.update(first=error))  # type: ignore[arg-type]
        syncing.wait(bad, 2, lambda error: done.update(second=error))  # type: ignore[arg-type]
        syncing.wait(good, 1, lambda error: done.update(good=error))  # type: ignore[arg-type]
        bad.gate.set()
        while len(done) < 2:
            await asyncio.sleep(0.001)
        assert isinstance(done["first"], SyncFailed)
        assert isinstance(done["second"], SyncFailed)
        good.gate.set()
        while "good" not in done:
            await asyncio.sleep(0.001)
        assert done["good"] is None
        threads.close()

    run(main())


def test_a_sync_of_a_real_log(tmp_path_factory: pytest.TempPathFactory) -> None:
    partition = Rig(tmp_path_factory.mktemp("log"), slots=10).partition(1)
    for number in range(5):
        partition.append(batch(0, number))

    async def main() -> None:
        threads = Pools(asyncio.get_running_loop())
        told = asyncio.get_running_loop().create_future()
        SyncQueue(threads).wait(partition, 5, told.set_result)
        assert await told is None
        assert partition.ends().flushed == 5
        threads.close()

    run(main())
