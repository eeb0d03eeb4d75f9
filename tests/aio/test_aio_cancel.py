"""Tasks that are cancelled at any await: nothing is lost, nothing is committed that was not handed out, nothing stays
open.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm import aio
from tests.aio.rig import WAIT, in_loop, until, values
from tests.crash.cases import seed_of

N = 400


async def cancelled_after(work: Callable[[], Awaitable[Any]], seconds: float) -> bool:
    """Let a task work, cancel it after so long, and return whether that came before its end."""
    task = asyncio.ensure_future(work())
    await asyncio.sleep(seconds)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


@pytest.mark.parametrize("automatic", [False, True], ids=["commit", "auto"])
def test_a_reader_cancelled_at_any_moment_gets_each_record_once_and_commits_nothing_it_was_not_given(
    path: Path, automatic: bool
) -> None:
    chance = random.Random(seed_of())

    async def test(store: aio.Store) -> None:
        given: list[int] = []
        options: dict[str, Any] = {"enable_auto_commit": True, "auto_commit_interval_ms": 0} if automatic else {}

        async def read() -> None:
            while True:
                if chance.random() < 0.5:
                    given.extend(record.offset for record in await consumer.poll(chance.randint(1, 20)))
                else:
                    async for record in consumer:
                        given.append(record.offset)
                        if chance.random() < 0.2:
                            break
                if not automatic:
                    await consumer.commit()

        async with store.consumer("orders", group="g", max_poll_interval_ms=600_000, **options) as consumer:
            appended = 0
            while len(given) < N:
                if appended < N:
                    count = chance.randint(0, 30)
                    appended += count
                    await store.append_many("orders", [b"x"] * count, acks=1)
                await cancelled_after(read, chance.choice([0, 0, 0.0005, 0.002, 0.005]))
                committed = await consumer.committed("orders", 0)
                assert committed is None or committed.offset <= len(given)
            assert given == list(range(len(given)))

    in_loop(path, test)


def test_a_commit_that_was_given_up_ends_before_the_next_record_is_read(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        await store.append_many("orders", [b"x"] * 20)
        async with store.consumer("orders", group="g") as consumer:
            assert len(await consumer.poll(5)) == 5
            begun, go, commit = threading.Event(), threading.Event(), consumer._sync.commit

            def late(*arguments: Any, **options: Any) -> None:
                begun.set()
                assert go.wait(WAIT)
                commit(*arguments, **options)

            consumer._sync.commit = late  # type: ignore[method-assign]
            committing = asyncio.create_task(consumer.commit())
            await until(begun.is_set, "it has begun")
            committing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await committing
            polling = asyncio.create_task(consumer.poll(5))
            await asyncio.sleep(0.05)
            assert not polling.done(), "it would be committed, though nobody has handled it"
            go.set()
            assert [record.offset for record in await polling] == [5, 6, 7, 8, 9]
            assert await consumer.committed("orders", 0) == klamm.Committed(5, 0, "")

    in_loop(path, test)


def test_a_read_that_was_given_up_and_then_fails_is_no_complaint_of_the_loop(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        consumer = await store.consumer("orders")
        begun, go = threading.Event(), threading.Event()

        def fail(*_: object) -> None:
            begun.set()
            assert go.wait(WAIT)
            raise klamm.Closed("meanwhile")

        consumer._session.next_records = fail  # type: ignore[assignment]
        polling = asyncio.create_task(consumer.poll())
        await until(begun.is_set, "it reads")
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        next_one = asyncio.create_task(consumer.poll())
        await asyncio.sleep(0.01)
        go.set()
        with pytest.raises(klamm.Closed):
            await next_one
        await consumer.close()

    in_loop(path, test)


def test_a_send_that_was_given_up_has_sent_nothing(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        log = store.sync._acquired().topic("orders").partition(0).log
        async with store.producer(acks=1, batch_bytes=1000, buffer_memory=2000) as producer:
            log.lock()
            try:
                sent = 0
                while not producer._sync._is_full:
                    await producer.send("orders", b"%03d" % sent + bytes(300))
                    sent += 1
                waiting = [asyncio.create_task(producer.send("orders", b"given up")) for _ in range(5)]
                await asyncio.sleep(0.01)
                for task in waiting:
                    task.cancel()
                done = await asyncio.gather(*waiting, return_exceptions=True)
                assert [type(each) for each in done] == [asyncio.CancelledError] * 5
            finally:
                log.unlock()
            await producer.send("orders", b"%03d" % sent)
        assert [int(value[:3]) for value in await values(store)] == list(range(sent + 1))

    in_loop(path, test)


def test_a_transaction_cancelled_at_any_moment_is_committed_whole_or_not_at_all(path: Path) -> None:
    chance = random.Random(seed_of())

    tries = 60

    async def test(store: aio.Store) -> None:
        await store.append_many("orders", [b"x"] * tries)  # one for each, should none be cancelled in time
        await store.topics.create("invoices")
        committed: list[str] = []
        async with store.consumer("orders", group="g", wait=0) as consumer:

            async def transact(number: int) -> None:
                async with consumer.transaction(batch_bytes=100) as tx:
                    transactions.append(tx)
                    batch = await consumer.poll(1)
                    for part in range(3):
                        await tx.send("invoices", f"{number}.{part}".encode() + bytes(60))
                    tx.commit_offsets(batch)
                    if chance.random() < 0.5:
                        await tx.commit()

            for number in range(tries):
                transactions: list[aio.Transaction] = []
                await cancelled_after(lambda: transact(number), chance.choice([0, 0.001, 0.003, 0.01]))  # noqa: B023
                assert all(tx.state != "open" for tx in transactions)
                committed += [str(number) for tx in transactions if tx.state == "committed"]
            assert not [info async for info in store.transactions if info.state == "ongoing"]
            progress = await consumer.committed("orders", 0)
        seen = [value.rstrip(b"\0").decode() for value in await values(store, "invoices")]
        assert seen == [f"{number}.{part}" for number in committed for part in range(3)]
        assert (0 if progress is None else progress.offset) == len(committed)

    in_loop(path, test)


def test_a_transaction_ends_though_its_task_is_cancelled_while_all_threads_are_taken(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        go = threading.Event()
        async with store.transaction(batch_bytes=1) as first:
            await first.send("orders", b"first")
        blocking = asyncio.create_task(store._writes.run(go.wait, WAIT))
        open_tx = store.sync.transaction(batch_bytes=1)
        open_tx.send("orders", b"second")
        entered = asyncio.Event()

        async def work() -> None:
            from klamm.aio.transaction import Transaction

            async with Transaction(open_tx, store._writes):
                entered.set()
                await asyncio.sleep(WAIT)

        task = asyncio.create_task(work())
        await entered.wait()
        for _ in range(3):  # in the block, and while it is left
            task.cancel()
            await asyncio.sleep(0.005)
        assert open_tx.state == "open" and not task.done(), "no thread was free"
        go.set()
        await blocking
        with pytest.raises(asyncio.CancelledError):
            await task
        assert open_tx.state == "aborted"
        assert await values(store) == [b"first"]

    in_loop(path, test, threads=1)


@pytest.mark.parametrize("kind", ["consumer", "producer", "transaction", "table", "pipe"])
def test_what_a_cancelled_task_was_opening_is_closed(path: Path, kind: str) -> None:
    async def test(store: aio.Store) -> None:
        await store.topics.create("invoices")
        begun, go, made = threading.Event(), threading.Event(), list[Any]()
        real = getattr(store.sync, kind)

        def slow(*arguments: Any, **options: Any) -> Any:
            begun.set()
            assert go.wait(WAIT)
            made.append(real(*arguments, **options))
            return made[0]

        setattr(store.sync, kind, slow)
        arguments: dict[str, tuple[Any, ...]] = {
            "consumer": ("orders",),
            "table": ("orders",),
            "pipe": ("orders", print),
        }
        options: dict[str, dict[str, Any]] = {
            "consumer": {"group": "g"},
            "pipe": {"to": "invoices"},
            "transaction": {"name": "n"},
        }

        async def opening() -> None:
            async with getattr(store, kind)(*arguments.get(kind, ()), **options.get(kind, {})):
                pytest.fail("it was cancelled before")

        task = asyncio.create_task(opening())
        await until(begun.is_set, "it has begun")
        task.cancel()
        await asyncio.sleep(0.01)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: made and is_closed(made[0]), "it is closed")

    in_loop(path, test)


def is_closed(made: Any) -> bool:
    if isinstance(made, klamm.Transaction):
        return made.state == "aborted"
    if isinstance(made, klamm.Pipe):
        return made._is_closing and made._consumer._session.is_closed
    return "closed" in repr(made)


def test_a_store_that_a_cancelled_task_was_opening_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, made = threading.Event(), threading.Event(), list[klamm.Store]()

    def slow(*arguments: Any, **options: Any) -> klamm.Store:
        begun.set()
        assert go.wait(WAIT)
        made.append(klamm.open(*arguments, **options))
        return made[0]

    async def main() -> None:
        monkeypatch.setattr("klamm.api.open", slow)
        opening = asyncio.ensure_future(_opened(path))
        await until(begun.is_set, "it has begun")
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        go.set()
        await until(lambda: made and made[0].closed, "it is closed")

    asyncio.run(main())


async def _opened(path: Path) -> aio.Store:
    return await aio.open(path)


def test_closing_goes_on_though_its_task_is_cancelled(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        consumer = await store.consumer("orders", group="g")
        await consumer.poll(timeout=0)
        for close in (consumer.close, store.close):
            task = asyncio.ensure_future(close())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: store.closed, "the store is closed")
        assert os.path.exists(path)

    in_loop(path, test)
