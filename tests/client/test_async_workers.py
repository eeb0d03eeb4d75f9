"""`async def` handlers: as many at a time as there are workers, in order within a key, in a loop of their own."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import defaultdict
from typing import Any

import pytest

import klamm
from klamm.types import RunReport
from tests.client.conftest import fill
from tests.client.test_workers import committed, running
from tests.procs import until


def test_as_many_coroutines_run_at_a_time_as_there_are_workers(orders: klamm.Store) -> None:
    fill(orders, 200)
    active, most, loops = 0, 0, set()

    async def handle(record: klamm.Record) -> None:
        nonlocal active, most
        loops.add(asyncio.get_running_loop())
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.002)
        active -= 1

    with orders.consumer("orders", group="g", wait=0) as consumer:
        assert consumer.run(handle, 20) == RunReport(200, 0, 0)
    assert most == 20 and len(loops) == 1
    assert committed(orders, "g") == 200
    assert loops.pop().is_closed()
    assert not [thread for thread in threading.enumerate() if thread.name == "klamm-loop"]


def test_coroutines_keep_the_order_of_a_key(store: klamm.Store) -> None:
    store.topics.create("orders", partitions=3)
    store.append_many("orders", [(b"k%d" % (n % 7), b"%d" % n) for n in range(350)], acks=1)
    seen: dict[bytes, list[int]] = defaultdict(list)
    active: set[bytes] = set()

    async def handle(record: klamm.Record) -> None:
        assert record.key not in active
        active.add(record.key)
        await asyncio.sleep(0.0005 * (int(record.value) % 3))
        seen[record.key].append(int(record.value))
        active.discard(record.key)

    with store.consumer("orders", wait=0) as consumer:
        assert consumer.run(handle, 16).done == 350
    assert seen == {b"k%d" % n: list(range(n, 350, 7)) for n in range(7)}


class Handler:
    """A callable whose call is a coroutine."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def __call__(self, record: klamm.Record) -> None:
        self.seen.append(record.offset)


def test_whatever_is_async_is_awaited(orders: klamm.Store) -> None:
    fill(orders, 5)
    handler = Handler()

    async def note(into: list[int], record: klamm.Record) -> None:
        into.append(record.offset)

    partial: list[int] = []
    handlers: list[tuple[Any, list[int]]] = [(handler, handler.seen), (functools.partial(note, partial), partial)]
    for each, seen in handlers:
        with orders.consumer("orders", wait=0) as consumer:
            assert consumer.run(each).done == 5
        assert sorted(seen) == list(range(5))


def test_a_coroutine_that_nothing_would_await_is_an_error(orders: klamm.Store) -> None:
    fill(orders, 1)
    with orders.consumer("orders", wait=0) as consumer, pytest.raises(TypeError, match="make the handler an async"):
        consumer.run(lambda record: asyncio.sleep(0))


def test_failures_of_coroutines_are_tried_again_and_become_dead_letters(orders: klamm.Store) -> None:
    orders.append_many("orders", [(b"a", b"%d" % n) for n in range(6)], acks=1)
    seen: list[bytes] = []

    async def handle(record: klamm.Record) -> None:
        await asyncio.sleep(0)
        if record.value == b"2":
            raise ValueError("no")
        seen.append(record.value)

    with orders.consumer("orders", group="g", wait=0) as consumer:
        report = consumer.run(handle, 4, on_error="dead-letter", retries=2, backoff=0.001)
    assert report == RunReport(5, 3, 1)
    assert seen == [b"0", b"1", b"3", b"4", b"5"] and committed(orders, "g") == 6
    [letter] = orders.dead_letters("orders.dlq")
    assert (letter.error, letter.attempts) == ("ValueError", 3)


def test_a_coroutine_that_takes_too_long_is_cancelled(orders: klamm.Store) -> None:
    fill(orders, 3)
    cancelled: list[int] = []

    async def handle(record: klamm.Record) -> None:
        if record.offset == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(record.offset)
                raise

    with orders.consumer("orders", wait=0) as consumer:
        report = consumer.run(handle, timeout=2, on_error="dead-letter", retries=1, backoff=0.001)
    assert report == RunReport(2, 2, 1, 2)
    assert cancelled == [1, 1]
    [letter] = orders.dead_letters("orders.dlq")
    assert letter.error == "TimeoutError" and "took longer than 2 s" in letter.reason


def test_a_timeout_of_the_handlers_own_is_an_error_like_others(orders: klamm.Store) -> None:
    fill(orders, 1)

    async def handle(record: klamm.Record) -> None:
        async with asyncio.timeout(0.001):
            await asyncio.sleep(60)

    with orders.consumer("orders", wait=0) as consumer:
        assert consumer.run(handle, timeout=60, on_error="dead-letter", retries=0) == RunReport(0, 1, 1)


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_error_of_a_coroutine_ends_the_run(orders: klamm.Store, error: type[BaseException]) -> None:
    fill(orders, 20)

    async def handle(record: klamm.Record) -> None:
        if record.offset == 7:
            raise error("no")

    with orders.consumer("orders", group="g", wait=0) as consumer:
        with pytest.raises(error, match="no"):
            consumer.run(handle, 3)
        assert consumer.position("orders", 0).offset == committed(orders, "g") == 7


def test_a_coroutine_that_is_cancelled_by_itself_has_failed(orders: klamm.Store) -> None:
    fill(orders, 1)

    async def handle(record: klamm.Record) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with orders.consumer("orders", wait=0) as consumer, pytest.raises(RuntimeError, match="was cancelled"):
        consumer.run(handle)


def test_coroutines_that_run_at_the_end_are_finished_or_cancelled_after_grace(orders: klamm.Store) -> None:
    fill(orders, 2)
    begun: list[int] = []
    ended: list[str] = []
    go = threading.Event()

    async def handle(record: klamm.Record) -> None:
        begun.append(record.offset)
        try:
            while not (record.offset == 0 and go.is_set()):
                await asyncio.sleep(0.001)
            ended.append("finished")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    consumer = orders.consumer("orders", group="g")
    with running(consumer, handle, 2, grace=0.5) as outcome:
        until(lambda: len(begun) == 2, "both run")
        consumer.stop()
        go.set()
    assert ended == ["finished", "cancelled"]
    assert outcome["report"] == RunReport(1, 0, 0)
    assert consumer.position("orders", 0).offset == committed(orders, "g") == 1
    consumer.close()


def test_a_coroutine_that_blocks_its_loop_gives_its_partitions_up(orders: klamm.Store) -> None:
    fill(orders, 2)
    go = threading.Event()
    begun: list[int] = []

    async def block(record: klamm.Record) -> None:
        begun.append(record.offset)
        assert go.wait(60)

    first = orders.consumer("orders", group="g", max_poll_interval_ms=300)
    try:
        with running(first, block, 4, timeout=0.05):
            until(lambda: begun, "it blocks")
            second = orders.consumer("orders", group="g")
            seen: list[int] = []
            with running(second, lambda record: seen.append(record.offset)):
                until(lambda: len(seen) == 2, "the second handles both")
                second.stop()
            first.stop()
            go.set()
    finally:
        go.set()


def test_an_async_handler_may_close_the_consumer(orders: klamm.Store) -> None:
    fill(orders, 10)
    consumer = orders.consumer("orders", group="g")

    async def handle(record: klamm.Record) -> None:
        if record.offset == 5:
            consumer.close()

    with running(consumer, handle, 1) as outcome:
        pass
    assert "error" not in outcome
    assert committed(orders, "g") <= 6


def test_async_handlers_and_processes_exclude_each_other(orders: klamm.Store) -> None:
    async def handle(record: Any) -> None: ...

    with orders.consumer("orders") as consumer, pytest.raises(klamm.InvalidSetting, match="one event loop"):
        consumer.run(handle, processes=True)
