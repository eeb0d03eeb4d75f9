"""Threads of a server: executors keep order and keep out of each other's way; syncs of a partition are shared."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from klamm.errors import KlammError, StoreBusy
from klamm.kafka import pools
from klamm.kafka.pools import PartitionExecutors
from tests.procs import PATIENCE


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE))


def test_a_executor_does_one_thing_after_the_other() -> None:
    async def main() -> None:
        executors = PartitionExecutors(asyncio.get_running_loop())
        order: list[int] = []
        running = [0]

        def job(number: int) -> int:
            running[0] += 1
            assert running[0] == 1
            order.append(number)
            running[0] -= 1
            return number

        gate = threading.Event()
        first = executors.run("a", gate.wait)
        given = [executors.run("a", lambda n=n: job(n)) for n in range(500)]  # type: ignore[misc]
        assert executors.is_busy("a")
        gate.set()
        assert await first
        assert await asyncio.gather(*given) == list(range(500))
        assert order == list(range(500))
        assert not executors.is_busy("a")
        assert len(executors) == 0

    run(main())


def test_a_executor_that_is_stuck_keeps_no_other_waiting() -> None:
    async def main() -> None:
        executors = PartitionExecutors(asyncio.get_running_loop())
        gate = threading.Event()
        stuck = [executors.run("stuck", gate.wait) for _ in range(3)]
        assert await asyncio.gather(*(executors.run(n, lambda n=n: n) for n in range(100))) == list(range(100))  # type: ignore[misc]
        assert not any(each.done() for each in stuck)
        assert len(executors) == 1
        gate.set()
        assert await asyncio.gather(*stuck) == [True, True, True]

    run(main())


def test_an_error_is_told_and_the_executor_goes_on() -> None:
    async def main() -> None:
        executors = PartitionExecutors(asyncio.get_running_loop())

        def fails() -> None:
            raise KlammError("no")

        first, second = executors.run("a", fails), executors.run("a", lambda: 2)
        with pytest.raises(KlammError):
            await first
        assert await second == 2

    run(main())


def test_who_does_not_wait_any_more_disturbs_nobody() -> None:
    async def main() -> None:
        executors = PartitionExecutors(asyncio.get_running_loop())
        gate = threading.Event()
        first, second, third = (executors.run("a", job) for job in (gate.wait, gate.wait, lambda: 3))
        second.cancel()
        gate.set()
        assert (await first, await third) == (True, 3)

    run(main())


def test_the_number_of_executors_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MAX_PARTITION_EXECUTORS", 4)

    async def main() -> None:
        executors = PartitionExecutors(asyncio.get_running_loop())
        gate = threading.Event()
        stuck = [executors.run(n, gate.wait) for n in range(4)]
        with pytest.raises(StoreBusy):
            await executors.run(4, gate.wait)
        behind = executors.run(0, lambda: "behind")
        gate.set()
        await asyncio.gather(*stuck)
        assert await behind == "behind"
        assert await executors.run(4, lambda: 4) == 4

    run(main())


def test_executor_from_many_rounds_are_none_when_all_is_done() -> None:
    async def main() -> None:
        executors = PartitionExecutors(asyncio.get_running_loop())
        for turn in range(200):
            given = [executors.run(key, lambda k=key: k) for key in (turn % 3, turn % 5, 7)]  # type: ignore[misc]
            assert await asyncio.gather(*given) == [turn % 3, turn % 5, 7]
        assert len(executors) == 0

    run(main())
