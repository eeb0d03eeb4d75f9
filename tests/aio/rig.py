"""An event loop with a store in it, whose default executor refuses work."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from klamm import aio

__all__ = ["WAIT", "in_loop", "until", "values"]

WAIT = 60.0  # seconds that nothing here takes


class Refusing(ThreadPoolExecutor):
    def submit(self, call: Any, /, *_: Any, **__: Any) -> Any:
        raise AssertionError(f"{call} was given to asyncio's default executor")


def in_loop(path: Path, test: Callable[[aio.Store], Awaitable[None]], **options: Any) -> None:
    """Await `test` with a store that has a topic `orders`; the loop must have nothing to complain of."""
    complaints: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(Refusing())
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with aio.open(path, **options) as store:
            await store.topics.create("orders", exist_ok=True)
            await asyncio.wait_for(test(store), WAIT)

    asyncio.run(main())
    gc.collect()  # futures complain when they are dropped
    assert complaints == []


async def until(holds: Callable[[], object], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, what
        await asyncio.sleep(0.002)


async def values(store: aio.Store, topic: str = "orders") -> list[bytes]:
    async with store.consumer(topic, wait=0) as consumer:
        return [record.value async for record in consumer]
