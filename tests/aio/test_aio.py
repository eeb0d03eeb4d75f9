"""The twins for asyncio: the same answers, and a loop that is never blocked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm import aio

WAIT = 30.0  # seconds that nothing here takes

Test = Callable[[aio.Store], Awaitable[None]]


def run(path: Path, test: Test) -> None:
    """`test` with a store that has a topic `orders`."""

    async def main() -> None:
        async with aio.open(path) as store:
            await store.topics.create("orders")
            await asyncio.wait_for(test(store), WAIT)

    asyncio.run(main())


async def values(store: aio.Store, topic: str = "orders") -> list[bytes]:
    async with store.consumer(topic, wait=0) as consumer:
        return [record.value async for record in consumer]


def test_import_of_klamm_offers_aio_without_importing_it() -> None:
    assert klamm.aio is aio


def test_what_a_coroutine_appends_another_reads(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        assert await store.append("orders", b"0", key=b"k") == 0
        assert (await store.append_many("orders", [b"1", b"2"], acks=1)).count == 2
        assert await values(store) == [b"0", b"1", b"2"]
        async with store.consumer("orders", wait=0) as consumer:
            assert [len(batch) async for batch in consumer.batches(2)] == [2, 1]
            await consumer.seek("orders", 0, 1)
            assert [record.offset for record in await consumer.poll(timeout=0)] == [1, 2]
            assert consumer.position("orders", 0).offset == 3
            await consumer.seek_to("earliest")
            async for record in consumer:
                if record.offset == 1:
                    break
            assert consumer.positions() == {("orders", 0): klamm.Position(2, 0)}
            assert len(await consumer.poll()) == 1

    run(path, test)


def test_coroutines_create_alter_and_maintain_topics(path: Path, tmp_path: Path) -> None:
    async def test(store: aio.Store) -> None:
        await store.topics.create("users", 2, {"retention.ms": 1000})
        assert [each async for each in store.topics] == ["orders", "users"]
        await store.topics.alter("users", {"segment.bytes": 4096}, reset=["retention.ms"])
        await store.topics.add_partitions("users", 3)
        info = await store.topics.describe("users")
        assert len(info.partitions) == 3 and info.settings == {"segment.bytes": "4096"}
        await store.append_many("orders", [(None, b"x", None, 1000 * n) for n in range(10)])
        assert await store["orders"].offset_at(0, 4500) == 5
        assert await store["orders"].delete_records({0: 5}) == {0: 5}
        await store.topics.delete("users")
        await store.maintain()
        await store.backup(tmp_path / "copy")
        assert (await store.check()).ok and [each async for each in store.topics] == ["orders"]
        with pytest.raises(klamm.UnknownTopic):
            await store.append("users", b"x")

    run(path, test)


def test_a_producer_sends_and_tells(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        async with store.producer(acks=1) as producer:
            deliveries = [await producer.send("orders", b"%d" % n) for n in range(1000)]
            await producer.flush()
            assert [await producer.result(delivery) for delivery in deliveries] == list(range(1000))
            late = await producer.send("orders", b"late")
            assert await producer.result(late) == 1000
            with pytest.raises(klamm.UnknownTopic):
                await producer.send("nothing", b"x")
        assert len(await values(store)) == 1001

    run(path, test)


def test_a_result_comes_though_a_callback_of_the_same_batch_raises(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        async with store.producer(linger_ms=20) as producer:
            first, second = [await producer.send("orders", b"x") for _ in range(2)]
            first.add_done_callback(lambda _: 1 / 0)
            assert await producer.result(second) == 1

    run(path, test)


def test_a_full_buffer_does_not_block_the_loop(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        log = store.sync._acquired().topic("orders").partition(0).log
        async with store.producer(acks=1, batch_bytes=1000, buffer_memory=2000) as producer:
            log.lock()
            ticks = 0

            async def send() -> None:
                for n in range(50):
                    await producer.send("orders", b"%d" % n + bytes(200))

            sending = asyncio.create_task(send())
            while ticks < 20:
                await asyncio.sleep(0.001)
                ticks += 1
            assert not sending.done()
            log.unlock()
            await sending
        assert len(await values(store)) == 50

    run(path, test)


def test_a_waiting_consumer_does_not_block_the_loop_and_is_woken(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        async with store.consumer("orders") as consumer:

            async def first() -> Any:
                return (await anext(consumer)).value

            waiting = asyncio.create_task(first())
            await asyncio.sleep(0.01)
            assert not waiting.done()
            await store.append("orders", b"x", acks=1)
            assert await waiting == b"x"

    run(path, test)


def test_many_consumers_wait_at_the_same_time(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        async def first() -> bytes:
            async with store.consumer("orders") as consumer:
                async for record in consumer:
                    return bytes(record.value)
            return b"nothing"

        tasks = [asyncio.create_task(first()) for _ in range(20)]
        await asyncio.sleep(0.02)
        await store.append("orders", b"x", acks=1)
        assert await asyncio.gather(*tasks) == [b"x"] * 20

    run(path, test)


def test_stop_ends_a_loop_quietly(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        async with store.consumer("orders") as consumer:

            async def everything() -> list[Any]:
                return [record async for record in consumer]

            reading = asyncio.create_task(everything())
            await asyncio.sleep(0.01)
            consumer.stop()
            assert await reading == []
            assert [batch async for batch in consumer.batches()] == []

    run(path, test)


def test_a_call_that_opens_a_consumer_can_be_read_as_it_is(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        await store.append_many("orders", [b"%d" % n for n in range(700)])
        assert [int(record.value) async for record in store.consumer("orders", wait=0)] == list(range(700))
        async for record in store.consumer("orders", group="g"):
            assert record.offset == 0
            break
        while (await store.groups.describe("g")).members:  # asyncio closes the iterator, and that the consumer
            await asyncio.sleep(0.001)
        with pytest.raises(AttributeError, match=r"no attribute 'poll' .await the call first, or use async with"):
            store.consumer("orders").poll  # type: ignore[attr-defined]  # noqa: B018

    run(path, test)


def test_what_cannot_be_awaited_is_an_error_and_no_endless_loop(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        for names in (store, store.topics):
            with pytest.raises(TypeError, match="async for gives the names"):
                list(names)  # type: ignore[call-overload]
            with pytest.raises(TypeError, match="async for gives the names"):
                "orders" in names  # type: ignore[operator]  # noqa: B015

    run(path, test)


def test_a_poll_that_is_given_up_loses_nothing(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        async with store.consumer("orders") as consumer:
            found: list[int] = []
            for n in range(50):
                poll = asyncio.create_task(consumer.poll())
                await asyncio.sleep(0.0001 * (n % 10))
                poll.cancel()
                store.sync.append("orders", b"%d" % n, acks=1)
                try:
                    found += [int(record.value) for record in await poll]
                except asyncio.CancelledError:
                    pass
            while len(found) < 50:
                found += [int(record.value) for record in await consumer.poll(7, timeout=WAIT)]
            assert found == list(range(50))

    run(path, test)


def test_a_cancelled_wait_ends_though_nothing_comes(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        async with store.consumer("orders") as consumer:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(consumer.poll(), 0.05)
            assert await consumer.poll(timeout=0.001) == []

    run(path, test)


def test_tail_gives_records_as_they_are_appended(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        await store.append_many("orders", [b"0", b"1", b"2"])
        assert [record.value async for record in store.tail("orders", 2)] == [b"1", b"2"]
        tail = store.tail("orders", 1, follow=True)
        assert (await anext(tail)).value == b"2"
        await store.append("orders", b"3")
        assert (await anext(tail)).value == b"3"
        assert isinstance(tail, AsyncGenerator)
        await tail.aclose()

    run(path, test)


def test_a_store_can_be_awaited_and_closed(path: Path) -> None:
    async def main() -> None:
        store = await aio.open(path)
        await store.topics.create("orders")
        producer = await store.producer()
        await producer.send("orders", b"x")
        await producer.close()
        consumer = await store.consumer("orders", wait=0)
        assert [record.value async for record in consumer] == [b"x"]
        await consumer.close()
        await store.close()
        with pytest.raises(klamm.StoreError):
            [each async for each in store.topics]
        with pytest.raises(klamm.NotAStore):
            await aio.open(path / "nothing", create=False)

    asyncio.run(asyncio.wait_for(main(), WAIT))


def test_a_group_shares_and_commits(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        await store.topics.create("users", 2)
        for number in (0, 1):
            await store.append_many("users", [b"x"] * 10, partition=number, acks=1)
        async with store.consumer("users", group="g") as first, store.consumer("users", group="g") as second:
            batch, other = await first.poll(4), await second.poll(4)
            assert {batch.partition, other.partition} == {0, 1}
            await first.commit(batch, metadata="four")
            assert await second.committed("users", batch.partition) == klamm.Committed(4, 0, "four")
            with pytest.raises(klamm.NotOwner):
                await second.commit(batch)
            await second.commit()
        assert [each async for each in store.groups] == ["g"]
        assert (await store.groups.describe("g")).lag == 12
        assert len(await store.groups.reset("g", to="latest")) == 2
        assert (await store.groups.describe("g")).lag == 0
        data = await store.groups.export("g")
        await store.groups.delete("g")
        await store.groups.import_(data, "h")
        assert [each async for each in store.groups] == ["h"]
        altered = await store.alter({"group.max.size": 3})
        assert altered == await store.settings()
        assert altered["group.max.size"] == "3"

    run(path, test)


def test_a_task_that_is_cancelled_while_it_waits_stays_a_member(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        async with store.consumer("orders", group="g", max_poll_interval_ms=60_000) as consumer:
            poll = asyncio.create_task(consumer.poll())
            while not consumer.assignment():
                await asyncio.sleep(0.001)
            poll.cancel()
            await store.append("orders", b"x", acks=1)
            assert len(await consumer.poll(timeout=WAIT)) == 1
            await consumer.commit()
        assert (await store.groups.describe("g")).lag == 0

    run(path, test)
