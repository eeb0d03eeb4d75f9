"""Coroutines that begin before they are tasks: they go on as if they had been one from the beginning."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from klamm.kafka.tasks import Begun, Tasks


async def begin(work: Coroutine[Any, Any, str]) -> str:
    """Its first step here, the rest in a task."""
    waits_for = work.send(None)

    async def go_on() -> str:
        return await Begun(work, waits_for)

    return await asyncio.get_running_loop().create_task(go_on())


def test_what_has_begun_is_gone_on_with() -> None:
    async def work() -> str:
        steps = [await asyncio.sleep(0, "passed on"), await asyncio.sleep(0.001, "waited")]
        steps.append(await asyncio.to_thread(str, "a thread"))
        return ", ".join(steps)

    assert asyncio.run(begin(work())) == "passed on, waited, a thread"


def test_errors_of_what_it_waits_for_are_raised_in_it() -> None:
    async def fails() -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        future.get_loop().call_soon(future.set_exception, ZeroDivisionError())
        try:
            return await future
        except ZeroDivisionError:
            return await asyncio.sleep(0, "handled")

    assert asyncio.run(begin(fails())) == "handled"

    async def raises() -> str:
        await asyncio.sleep(0)
        raise KeyError("not handled")

    with pytest.raises(KeyError, match="not handled"):
        asyncio.run(begin(raises()))


def test_a_task_that_is_cancelled_cancels_what_has_begun() -> None:
    ended: list[str] = []

    async def work() -> str:
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.append("yes")

    async def main() -> int:
        tasks = Tasks(asyncio.get_running_loop())
        waiting = work()
        begun = Begun(waiting, waiting.send(None))

        async def go_on() -> None:
            await begun

        tasks.spawn(go_on())
        await asyncio.sleep(0)
        tasks.cancel_all()
        await asyncio.sleep(0.001)
        return len(tasks)

    assert asyncio.run(main()) == 0
    assert ended == ["yes"]
