"""`await consumer.run(handler)`: coroutines in the loop of the caller, functions in threads; cancelled anywhere."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import pytest

import klamm
from klamm import aio
from tests.aio.rig import WAIT, in_loop, until
from tests.crash.cases import seed_of


async def committed(store: aio.Store, group: str = "g") -> int:
    info = await store.groups.describe(group)
    return sum(0 if each.committed is None else each.committed.offset for each in info.offsets)


def test_coroutines_run_in_the_loop_of_the_caller_and_functions_in_threads(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        await store.append_many("orders", [b"%d" % n for n in range(200)])
        here, loop, active, most, seen = threading.get_ident(), asyncio.get_running_loop(), 0, 0, set[int]()

        async def handle(record: klamm.Record) -> None:
            nonlocal active, most
            assert asyncio.get_running_loop() is loop and threading.get_ident() == here
            active += 1
            most = max(most, active)
            await asyncio.sleep(0.001)
            active -= 1
            seen.add(record.offset)

        async with store.consumer("orders", group="g", wait=0) as consumer:
            assert await consumer.run(handle, 20) == klamm.RunReport(200, 0, 0)
        assert most == 20 and len(seen) == 200 and await committed(store) == 200
        threads: set[int] = set()
        async with store.consumer("orders", group="h", wait=0) as consumer:
            report = await consumer.run(lambda record: threads.add(threading.get_ident()), 4, on_error="retry")
        assert report.done == 200 and here not in threads and threads

    in_loop(path, test)


def test_failures_timeouts_and_hooks_of_coroutines_are_as_in_klamm(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        await store.append_many("orders", [(b"k%d" % (n % 3), b"%d" % n) for n in range(12)])
        hooks: list[str] = []

        async def handle(record: klamm.Record) -> None:
            if record.offset == 3:
                raise ValueError("no")
            if record.offset == 4:
                await asyncio.sleep(WAIT)

        async with store.consumer("orders", group="g", wait=0) as consumer:
            report = await consumer.run(
                handle,
                timeout=2,
                on_error="dead-letter",
                retries=1,
                backoff=0.001,
                on_done=lambda attempt: hooks.append("done"),
                on_failed=lambda attempt: hooks.append("failed"),
                on_dead_letter=lambda attempt: hooks.append("dead"),
            )
        assert report == klamm.RunReport(10, 4, 2, 2) and await committed(store) == 12
        assert sorted(hooks) == ["dead"] * 2 + ["done"] * 10 + ["failed"] * 4
        async with store.consumer("orders", group="h", wait=0) as consumer:
            with pytest.raises(ValueError, match="no"):
                await consumer.run(handle, 1, timeout=60)
            assert consumer.position("orders", 0).offset == await committed(store, "h") == 3

    in_loop(path, test)


def test_a_cancelled_run_lets_handlers_end_and_commits_what_is_done(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        await store.append_many("orders", [b"x"] * 50)
        go, started, ended = asyncio.Event(), set[int](), set[int]()

        async def handle(record: klamm.Record) -> None:
            started.add(record.offset)
            await go.wait()
            ended.add(record.offset)

        async with store.consumer("orders", group="g") as consumer:
            running = asyncio.create_task(consumer.run(handle, 4))
            await until(lambda: len(started) == 4, "four handlers run")
            running.cancel()
            await asyncio.sleep(0.05)
            assert not running.done() and not ended
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert started == ended == {0, 1, 2, 3} and await committed(store) == 4
            assert consumer.position("orders", 0).offset == 4
            assert [record.offset for record in await consumer.poll(2)] == [4, 5], "it reads on after that"

    in_loop(path, test)


def test_a_run_that_is_cancelled_twice_cancels_its_handlers(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        await store.append_many("orders", [b"x"] * 50)
        started, cancelled = set[int](), set[int]()

        async def handle(record: klamm.Record) -> None:
            if record.offset == 0:
                return
            started.add(record.offset)
            try:
                await asyncio.sleep(WAIT)
            except asyncio.CancelledError:
                cancelled.add(record.offset)
                raise

        async with store.consumer("orders", group="g") as consumer:
            running = asyncio.create_task(consumer.run(handle, 3, on_error="dead-letter", grace=WAIT))
            await until(lambda: len(started) == 3, "three handlers run")
            running.cancel()
            await asyncio.sleep(0.02)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert cancelled == started and await committed(store) == 1
            assert "orders.dlq" not in store.sync

    in_loop(path, test)


def test_a_loop_that_ends_makes_no_dead_letter_of_what_was_being_handled(path: Path) -> None:
    started = threading.Event()

    async def handle(record: klamm.Record) -> None:
        started.set()
        await asyncio.sleep(WAIT)

    async def main() -> None:
        store = await aio.open(path)
        await store.topics.create("orders")
        await store.append_many("orders", [b"x"] * 5)
        consumer = await store.consumer("orders", group="g")
        tasks.append(asyncio.create_task(consumer.run(handle, 3, on_error="dead-letter", retries=0, grace=0)))
        await until(started.is_set, "a handler runs")

    tasks: list[asyncio.Task[klamm.RunReport]] = []
    asyncio.run(main())  # cancels the run, and its handlers, in any order
    assert tasks[0].cancelled()
    with klamm.open(path) as store:
        assert "orders.dlq" not in store
        assert all(offset.committed is None for offset in store.groups.describe("g").offsets)


def test_a_handler_that_others_cancel_ends_the_run_and_is_not_done(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        await store.append_many("orders", [b"x"] * 5)

        async def handle(record: klamm.Record) -> None:
            if record.offset == 2:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(WAIT)

        async with store.consumer("orders", group="g", wait=0) as consumer:
            with pytest.raises(RuntimeError, match="orders/0 at offset 2: the handler was cancelled"):
                await consumer.run(handle, 1, on_error="dead-letter")
        assert await committed(store) == 2 and "orders.dlq" not in store.sync

    in_loop(path, test)


def test_a_run_cancelled_at_any_moment_handles_each_record_and_commits_only_what_is_done(path: Path) -> None:
    chance = random.Random(seed_of())

    async def test(store: aio.Store) -> None:
        await store.append_many("orders", [(b"k%d" % (n % 5), b"%d" % n) for n in range(300)])
        done: set[int] = set()

        async def handle(record: klamm.Record) -> None:
            await asyncio.sleep(chance.choice([0, 0.001]))
            done.add(record.offset)

        async with store.consumer("orders", group="g", wait=0) as consumer:
            while len(done) < 300:
                running = asyncio.create_task(consumer.run(handle, chance.randint(1, 8), grace=chance.choice([0, 5])))
                await asyncio.sleep(chance.random() * 0.03)
                for _ in range(chance.choice([0, 1, 2])):
                    running.cancel()
                    await asyncio.sleep(0)
                try:
                    await running
                except asyncio.CancelledError:
                    pass
                now = await committed(store)
                assert set(range(now)) <= done
        assert await committed(store) == 300

    in_loop(path, test)


def test_stop_ends_a_run_and_a_run_after_a_cancelled_poll_loses_nothing(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        seen: list[int] = []

        async def handle(record: klamm.Record) -> None:
            seen.append(record.offset)
            if record.offset == 9:
                consumer.stop()

        async with store.consumer("orders", group="g") as consumer:
            polling = asyncio.create_task(consumer.poll())
            await asyncio.sleep(0.01)
            polling.cancel()
            await store.append_many("orders", [b"x"] * 10)
            report = await consumer.run(handle, 1)
            assert report.done == 10 and seen == list(range(10))

    in_loop(path, test)
