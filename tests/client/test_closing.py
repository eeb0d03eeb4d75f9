"""A consumer, or its store, is closed by another thread: nothing of others is read, and nothing of others is closed."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import klamm
import klamm.aio
from klamm.client.consume.consumer import session_of
from klamm.client.consume.log_engine import LogEngine
from tests.crash.cases import seed_of
from tests.procs import PATIENCE, until

CLOSES = 60


def has_open_files(consumer: klamm.Consumer) -> bool:
    engine = session_of(consumer).engine
    assert isinstance(engine, LogEngine)
    return any(cursor.reader.is_open for cursor in engine._cursors.values())


@pytest.fixture
def two_topics(path: Path) -> Iterator[klamm.Store]:
    """A store with as many records of the same size in `t` as in `u`: a reader of one could take those of the other."""
    with klamm.open(path) as store:
        for topic in ("t", "u"):
            store.topics.create(topic, settings={"segment.bytes": 1 << 14})
            store.append_many(topic, [topic.encode() * 100] * 60_000, acks=1)
        yield store


@contextmanager
def read_by_a_thread(consumer: klamm.Consumer, strange: list[object]) -> Iterator[threading.Thread]:
    """Let a thread read topic `t` until it is closed; what is not of that topic, or is an error, is `strange`."""

    def read() -> None:
        try:
            for batch in consumer.batches(5000):
                foreign = {record.value[:1] for record in batch} - {b"t"}
                if foreign or batch.topic != "t":
                    strange.append((batch, foreign))
        except BaseException as error:
            strange.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield thread
    thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.mark.parametrize("closes", ["consumer", "store"])
def test_a_loop_that_is_closed_by_another_thread_returns_nothing_of_another_topic(
    two_topics: klamm.Store, path: Path, closes: str
) -> None:
    dice = random.Random(seed_of())
    strange: list[object] = []
    for _ in range(CLOSES):
        store = klamm.open(path)
        consumer = store.consumer("t", wait=0, max_bytes=1 << 16)
        with read_by_a_thread(consumer, strange):
            time.sleep(dice.random() * 0.02)
            (consumer if closes == "consumer" else store).close()
            with two_topics.consumer("u", wait=0, max_bytes=1 << 16) as other:
                other.poll(10)
        store.close()
    assert strange == []


@contextmanager
def quick_switches() -> Iterator[None]:
    """Let threads take turns often, so that one is interrupted between any two of its steps."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def canaries(file: Path) -> Iterator[None]:
    """Open a file a few times, as a program may do while others close theirs: it has to stay open."""
    inode = file.stat().st_ino
    numbers = [os.open(file, os.O_RDONLY) for _ in range(4)]
    yield
    try:
        assert [os.fstat(number).st_ino for number in numbers] == [inode] * 4, "closed by somebody else"
    finally:
        for number in numbers:
            with suppress(OSError):
                os.close(number)


@pytest.mark.parametrize("closes", ["consumer", "store"])
def test_descriptors_of_the_program_stay_open_when_another_thread_closes_a_consumer(
    two_topics: klamm.Store, path: Path, tmp_path: Path, closes: str
) -> None:
    dice = random.Random(seed_of())
    canary = tmp_path / "canary"
    canary.write_bytes(b"alive")
    strange: list[object] = []
    for _ in range(3 * CLOSES):
        store = klamm.open(path)
        consumer = store.consumer("t", wait=0, max_bytes=1 << 14)
        with read_by_a_thread(consumer, strange) as thread, quick_switches():
            time.sleep(dice.random() * 0.005)
            (consumer if closes == "consumer" else store).close()
            with canaries(canary):
                thread.join(PATIENCE)
        store.close()
    assert strange == []


def test_an_aio_consumer_that_is_closed_after_a_cancelled_wait_leaves_other_descriptors_open(
    two_topics: klamm.Store, path: Path, tmp_path: Path
) -> None:
    dice = random.Random(seed_of())
    canary = tmp_path / "canary"
    canary.write_bytes(b"alive")

    async def run() -> None:
        async with klamm.aio.open(path) as store:
            for _ in range(CLOSES):
                consumer = await store.consumer("t", max_bytes=1 << 14)
                task = asyncio.create_task(drain(consumer))
                await asyncio.sleep(dice.random() * 0.01)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                await consumer.close()
                with canaries(canary):
                    await asyncio.sleep(0.001)

    async def drain(consumer: klamm.aio.Consumer) -> None:
        async for record in consumer:
            assert record.topic == "t"

    asyncio.run(run())


def test_closing_returns_when_no_file_of_the_consumer_is_open(two_topics: klamm.Store) -> None:
    dice = random.Random(seed_of())
    for _ in range(CLOSES):
        consumer = two_topics.consumer("t", wait=0)
        with read_by_a_thread(consumer, []):
            time.sleep(dice.random() * 0.005)
            consumer.close()
            assert not has_open_files(consumer)


def test_a_second_thread_that_closes_a_consumer_returns_when_it_is_closed(store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append("orders", b"x", acks=1)
    entered, go = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        entered.set()
        assert go.wait(PATIENCE)

    consumer = store.consumer("orders", group="g", on_revoked=hold)
    assert consumer.poll(timeout=PATIENCE)
    states: list[tuple[bool, bool]] = []

    def close() -> None:
        consumer.close()
        states.append((session_of(consumer).is_closed, has_open_files(consumer)))

    closers = [threading.Thread(target=close, daemon=True) for _ in range(2)]
    try:
        for closer in closers:
            closer.start()
            assert entered.wait(PATIENCE)
        closers[1].join(0.05)
        assert states == []
    finally:
        go.set()
    for closer in closers:
        closer.join(PATIENCE)
    assert states == [(True, False)] * 2


def test_a_poll_in_progress_ends_with_nothing_and_the_next_one_raises(store: klamm.Store) -> None:
    store.topics.create("orders")
    for group in (None, "g"):
        consumer = store.consumer("orders", group=group)
        outcome: list[object] = []

        def poll(consumer: klamm.Consumer = consumer, outcome: list[object] = outcome) -> None:
            outcome.append(consumer.poll())
            try:
                consumer.poll()
            except klamm.StoreError as error:
                outcome.append(error)

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        until(lambda consumer=consumer: session_of(consumer).engine.is_waiting, "it waits")  # type: ignore[misc]
        consumer.close()
        thread.join(PATIENCE)
        assert outcome[0] == [] and "closed" in str(outcome[1])


@pytest.mark.parametrize("how", ["close", "stop"])
def test_a_handler_of_a_rebalance_may_end_its_consumer(store: klamm.Store, how: str) -> None:
    store.topics.create("orders")
    store.append_many("orders", [b"x"] * 10, acks=1)

    def end(_: object) -> None:
        getattr(consumer, how)()

    consumer = store.consumer("orders", group="g", on_assigned=end)
    assert list(consumer) == []
    consumer.close()


def test_a_serde_that_closes_its_consumer_ends_the_loop(store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append_many("orders", [b"x"] * 10, acks=1)

    def end(value: bytes) -> bytes:
        consumer.close()
        return value

    consumer = store.consumer("orders", serde=(None, end))
    assert list(consumer) == []
