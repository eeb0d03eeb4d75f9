"""What klamm.aio has beside producers and consumers: tables, scans, dead letters, pipes, workers."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm import aio
from klamm.aio.pieces import Pieces
from klamm.aio.threads import Threads
from tests.aio.rig import WAIT, in_loop, values


def test_a_table_is_read_and_followed(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        users = await store.topics.create("users", 2, cleanup_policy="compact")
        await users.append_many([(f"u{n:04}", {"n": n}) for n in range(2500)], serde="json")
        async with users.table(serde="json") as table:
            assert table.topic == "users" and table.maintains
            assert await table.get("u0007") == {"n": 7} and await table.get("nobody", 1, wait=0) == 1
            assert [key async for key in table] == [f"u{n:04}" for n in range(2500)]
            assert [key async for key in table] == [key for key, _ in [item async for item in table.items()]]
            assert [value["n"] async for value in table.values()] == list(range(2500))
            assert [item async for item in table.items()][1234] == ("u1234", {"n": 1234})
            assert len([item async for item in table.prefix("u00")]) == 100
            assert [key async for key, _ in table.range("u0010", "u0012")] == ["u0010", "u0011"]
            offsets = await table.offsets()
            await users.append({"n": -1}, key="u0007", serde="json")
            await users.append(None, key="u0008", serde="json")
            await table.refresh()
            assert await table.get("u0007") == {"n": -1} and await table.get("u0008") is None
            changed = [(record.key, record.value) async for record in table.changes(offsets)]
            assert sorted(changed, key=str) == [("u0007", {"n": -1}), ("u0008", None)]

            async def first() -> Any:
                return (await anext(aiter(table.changes("latest", wait=None)))).value

            waiting = asyncio.create_task(first())
            await asyncio.sleep(0.01)
            while not waiting.done():
                await users.append({"n": 5}, key="u0009", serde="json")
                await asyncio.sleep(0.01)
            assert await waiting == {"n": 5}
        with pytest.raises(klamm.Closed):
            await table.get("u0007")

    in_loop(path, test)


def test_a_scan_comes_in_pieces(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        orders = store["orders"]
        await orders.append_many([b"%d" % n for n in range(1000)])
        scan = store.scan("orders", columns=iter(("value", "offset")), batch_rows=64)
        sizes = [batch.num_rows async for batch in scan]
        assert sum(sizes) == 1000 and max(sizes) == 64
        assert (await scan.schema()).names == ["value", "offset"]
        assert (await scan.to_table()).num_rows == 1000
        assert list((await orders.scan(start=990).to_pandas())["offset"]) == list(range(990, 1000))
        assert (await orders.scan(start=999).to_polars())["value"].to_list() == [b"999"]
        async with scan.batches() as batches:
            assert (await anext(batches)).num_rows == 64
        with pytest.raises(StopAsyncIteration):
            await anext(batches)
        with pytest.raises(klamm.UnknownTopic):
            await store.scan("nothing").to_table()
        assert list(await store.sql("select count(*) as n from orders")) == [{"n": 1000}]

    in_loop(path, test)


def test_dead_letters_are_read_redriven_and_purged(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        await store.append_many("orders", [b"%d" % n for n in range(20)])

        async def handle(record: klamm.Record) -> None:
            if int(record.value) % 2:
                raise ValueError("odd")

        async with store.consumer("orders", group="g", wait=0) as consumer:
            report = await consumer.run(handle, on_error="dead-letter", retries=0)
        assert report == klamm.RunReport(10, 10, 10)
        letters = [letter async for letter in store.dead_letters("orders.dlq")]
        assert sorted(int(letter.record.value) for letter in letters) == list(range(1, 20, 2))
        assert len([letter async for letter in store.dead_letters("orders.dlq", limit=3)]) == 3
        progress: list[tuple[int, int]] = []
        assert await store.redrive("orders.dlq", limit=4, progress=lambda *done: progress.append(done)) == 4
        assert progress[-1] == (4, 4)
        assert await store.redrive("orders.dlq", where=lambda letter: True) == 6
        assert [letter async for letter in store.dead_letters("orders.dlq")] == []
        assert await store.purge_dead_letters("orders.dlq") == 10
        assert len(await values(store)) == 30
        with pytest.raises(klamm.InvalidSetting, match="not a dead-letter topic"):
            [letter async for letter in store.dead_letters("orders")]

    in_loop(path, test)


def test_a_pipe_runs_beside_the_loop(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        await store.topics.create("invoices")
        await store.append_many("orders", [b"%d" % n for n in range(10)])
        loop_thread = threading.get_ident()
        seen: set[int] = set()

        def double(record: klamm.Record) -> bytes:
            seen.add(threading.get_ident())
            return b"%d" % (2 * int(record.value))

        async with store.pipe("orders", double, to="invoices") as pipe:
            assert (pipe.topic, pipe.group) == ("orders", "pipe.orders.invoices")
            assert (await pipe.run(wait=0)).outputs == 10
            running = asyncio.create_task(pipe.run())
            await store.append("orders", b"10")
            while len(await values(store, "invoices")) < 11:
                await asyncio.sleep(0.01)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert [int(value) for value in await values(store, "invoices")] == list(range(0, 22, 2))
        assert loop_thread not in seen and len(seen) == 1
        assert (await store.groups.describe(pipe.group)).lag == 0

        async def no(record: klamm.Record) -> bytes:
            return b""

        with pytest.raises(TypeError, match="not an async def"):
            await store.pipe("orders", no, to="invoices")

    in_loop(path, test)


def test_the_rest_is_there(path: Path, tmp_path: Path) -> None:
    async def test(store: aio.Store) -> None:
        assert (store.path, store.read_only, store.closed) == (str(path), False, False)
        assert store.store_id == store.sync.store_id
        assert [name async for name in store] == ["orders"]
        orders = store["orders"]
        assert orders == store["orders"] and orders.store is store and len({orders, store["orders"]}) == 1
        assert [info.lock for info in await store.who()] == [info.lock for info in store.sync.who()]
        assert await store.lineage(klamm.Record("orders", 0, 0, 0, None, b"")) is None
        steps: list[tuple[int, int]] = []
        await orders.append_many([b"x"] * 100)
        await store.backup(tmp_path / "copy", progress=lambda *done: steps.append(done))
        assert (await store.check(progress=lambda *done: steps.append(done))).ok and steps
        assert (await aio.check(tmp_path / "copy")).ok
        await orders.alter(cleanup_policy="compact")
        await orders.append_many([(b"k", b"%d" % n) for n in range(100)])
        assert (await orders.compact(force=True)).records_removed >= 98
        assert (await store.compact(force=True, memory_bytes=1 << 20)).records_removed >= 0
        async with store.transaction("named", batch_bytes=1) as tx:
            assert tx.name == "named" and tx.state == "open"
            delivery = await tx.send("orders", b"v", key=b"k", headers={"a": "b"}, timestamp=5, partition=0)
            (info,) = [info async for info in store.transactions]
            assert info.name == "named"
        assert tx.state == "committed" and delivery.offset is not None
        for thing in (store, orders, store.topics, store.groups, store.transactions, tx):
            assert repr(thing).startswith("<aio <")

    in_loop(path, test)


# Pieces of an iterator


def test_pieces_give_what_came_before_an_error_and_then_the_error() -> None:
    def numbers() -> Any:
        yield from range(5)
        raise ValueError("five")

    async def test() -> None:
        pieces = Pieces(Threads(1, "klamm-aio"), numbers, 100)
        assert [await anext(pieces) for _ in range(5)] == list(range(5))
        with pytest.raises(ValueError, match="five"):
            await anext(pieces)
        assert [number async for number in pieces] == []

    asyncio.run(test())


def test_pieces_lose_nothing_when_a_task_is_cancelled_and_close_what_they_read() -> None:
    go, closed = threading.Semaphore(0), threading.Event()

    def numbers() -> Any:
        try:
            for number in range(6):
                assert go.acquire(timeout=WAIT)
                yield number
        finally:
            closed.set()

    async def test() -> None:
        pieces = Pieces(Threads(1, "klamm-aio"), numbers, 2)
        waiting = asyncio.create_task(anext(pieces))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go.release(3)
        assert await anext(pieces) == 0 and await anext(pieces) == 1
        waiting = asyncio.create_task(anext(pieces))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go.release(1)
        assert await anext(pieces) == 2
        closing = asyncio.create_task(pieces.aclose())
        await closing
        assert closed.is_set()
        with pytest.raises(StopAsyncIteration):
            await anext(pieces)

    asyncio.run(asyncio.wait_for(test(), WAIT))
