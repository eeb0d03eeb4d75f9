"""What blocks runs in threads of klamm's own: bounded, and writes hold up no reads."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm import aio
from klamm.aio.threads import Threads, run_alone
from tests.aio.rig import WAIT, in_loop, until
from tests.procs import children, threads_named

# The bound


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_calls_run_at_a_time_than_there_may_be_threads(limit: int) -> None:
    async def test() -> None:
        threads, mutex, go = Threads(limit, "klamm-few"), threading.Lock(), threading.Event()
        active = most = 0

        def call(number: int) -> int:
            nonlocal active, most
            with mutex:
                active += 1
                most = max(most, active)
            assert go.wait(WAIT)
            with mutex:
                active -= 1
            return number

        tasks = [asyncio.create_task(threads.run(call, n)) for n in range(10)]
        await until(lambda: active == limit, "threads are started")
        assert len(threads_named("klamm-few")) == limit
        go.set()
        assert await asyncio.gather(*tasks) == list(range(10))
        assert most == limit
        assert await threads.run(call, 99) == 99
        threads.close()
        await until(lambda: not threads_named("klamm-few"), "idle threads end")
        assert await threads.run(call, 100) == 100, "a call after that is made all the same"

    asyncio.run(test())


def test_a_thread_takes_call_after_call_and_is_started_only_when_none_is_free() -> None:
    async def test() -> None:
        threads = Threads(8, "klamm-one")
        for n in range(50):
            assert await threads.run(lambda: n) == n  # noqa: B023  # it is awaited
            await asyncio.sleep(0.001)
        assert len(threads_named("klamm-one")) < 8
        threads.close()

    asyncio.run(test())


def test_errors_and_context_variables_pass_through() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nothing")

    async def test() -> None:
        threads = Threads(1, "klamm-aio")
        variable.set("mine")
        assert await threads.run(variable.get) == "mine"
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 / 0)
        with pytest.raises(SystemExit):
            await threads.run(exit, 3)
        assert await threads.run(variable.get) == "mine", "the thread goes on after an exit"

    asyncio.run(test())


def test_calls_fail_when_the_system_has_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    async def test() -> None:
        threads = Threads(2, "klamm-aio")
        with monkeypatch.context() as patch:
            patch.setattr("klamm.aio.threads.DaemonThread", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                await threads.run(int)
        assert await threads.run(int) == 0

    asyncio.run(test())


def test_threads_begin_anew_in_a_forked_child() -> None:
    threads = Threads(1, "klamm-aio")
    assert asyncio.run(threads.run(int)) == 0

    def in_child() -> int:
        return asyncio.run(asyncio.wait_for(threads.run(lambda: 7), WAIT))

    with children() as start:
        assert start(in_child).answer() == 7


@pytest.mark.parametrize(("threads", "error"), [(0, klamm.InvalidSetting), (True, TypeError), (1.5, TypeError)])
def test_the_number_of_threads_is_checked(path: Path, threads: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="threads"):
        aio.open(path, threads=threads)
    assert not path.exists()


# Cancelled tasks


def test_a_cancelled_call_does_not_begin_or_comes_to_its_end() -> None:
    async def test() -> None:
        threads, begun, go, calls = Threads(1, "klamm-aio"), threading.Event(), threading.Event(), []

        def call(name: str) -> None:
            begun.set()
            assert go.wait(WAIT)
            calls.append(name)

        running = asyncio.create_task(threads.run(call, "running"))
        await until(begun.is_set, "it runs")
        queued = [asyncio.create_task(threads.run(call, "queued")), asyncio.create_task(threads.finish(call, "must"))]
        await asyncio.sleep(0.01)
        for task in (running, *queued):
            task.cancel()
        done = await asyncio.gather(running, *queued, return_exceptions=True)
        assert [type(each) for each in done] == [asyncio.CancelledError] * 3
        go.set()
        await threads.run(call, "next")
        assert calls == ["running", "must", "next"]

    asyncio.run(test())


def test_what_a_cancelled_task_had_made_is_closed() -> None:
    class Made:
        def __init__(self) -> None:
            self.closed_in: int | None = None
            begun.set()
            assert go.wait(WAIT)
            made.append(self)

        def close(self) -> None:
            self.closed_in = threading.get_ident()

    begun, go, made = threading.Event(), threading.Event(), list[Made]()

    async def test() -> None:
        threads = Threads(1, "klamm-aio")
        task = asyncio.create_task(threads.make(Made))
        await until(begun.is_set, "it has begun")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        await until(lambda: made and made[0].closed_in, "it is closed")
        assert made[0].closed_in != threading.get_ident(), "closing may block"
        kept = await threads.make(Made)
        assert kept.closed_in is None

    asyncio.run(test())


def test_a_call_that_fails_after_its_task_was_cancelled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()

    def fail() -> None:
        assert go.wait(WAIT)
        raise ValueError("nobody hears it")

    async def test() -> None:
        task = asyncio.create_task(run_alone(fail))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        await until(lambda: "nobody hears it" in caplog.text, "it is logged")

    asyncio.run(test())


# A store


def test_full_producers_and_waiting_appends_hold_up_no_read_and_no_close(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        await store.topics.create("users")
        await store.append("users", b"x", key=b"k")
        log = store.sync._acquired().topic("orders").partition(0).log
        log.lock()
        try:
            producers = [await store.producer(acks=1, batch_bytes=1000, buffer_memory=2000) for _ in range(4)]

            async def fill(producer: aio.Producer) -> None:
                for _ in range(20):
                    await producer.send("orders", bytes(300))

            waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(fill(producer)) for producer in producers]
            waiting += [asyncio.ensure_future(store.append("orders", b"y")) for _ in range(4)]
            await until(lambda: all(producer._sync._is_full for producer in producers), "they are full")
            # every way to read, while the only thread for writes is taken
            async with store.consumer("users", wait=0) as consumer:
                assert len([record async for record in consumer]) == 1
            assert [record.value async for record in store.tail("users")] == [b"x"]
            assert (await store["users"].info()).count == 1 and await store["users"].offset_at(0, 0) == 0
            assert [name async for name in store.topics] == ["orders", "users"]
            assert (await store["users"].scan().to_table()).num_rows == 1
            async with store.table("users") as table:
                assert await table.get(b"k") == b"x"
            assert not [task for task in waiting if task.done()]
        finally:
            log.unlock()
        await asyncio.gather(*waiting)
        for producer in producers:
            await producer.close()
        assert (await store["orders"].info()).count == 84

    in_loop(path, test, threads=1)


def test_a_producer_that_is_full_can_be_closed_and_its_send_raises(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        log = store.sync._acquired().topic("orders").partition(0).log
        producer = await store.producer(acks=1, batch_bytes=1000, buffer_memory=2000)
        log.lock()
        try:
            while not producer._sync._is_full:
                await producer.send("orders", bytes(300))
            sending = asyncio.create_task(producer.send("orders", b"one more"))
            await asyncio.sleep(0.01)
            closing = asyncio.create_task(producer.close())
            with pytest.raises(klamm.Closed):
                await sending
        finally:
            log.unlock()
        await closing
        assert b"one more" not in [record.value async for record in store.tail("orders", 100)]

    in_loop(path, test)


def test_threads_end_when_what_they_worked_for_is_closed(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        async with store.producer() as producer, store.consumer("orders") as consumer:
            await producer.send("orders", b"x")
            await producer.flush()
            assert len(await consumer.poll()) == 1
            threads = [producer._threads, consumer._thread, store._reads, store._writes]
            assert all(each._count for each in threads)
        await store.close()
        await until(lambda: not any(each._count for each in threads), "threads end")

    in_loop(path, test)
