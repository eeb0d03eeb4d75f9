"""Reads that end by themselves: Ctrl-C interrupts them, and memory bounds them."""

from __future__ import annotations

import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import klamm
from klamm.client.work import dead_letters
from tests.client.conftest import fill

# Ctrl-C


def press_at(records: Iterable[Any], offset: int) -> list[int]:
    """Return the offsets of records, as a program would read them; Ctrl-C is pressed at one of them."""
    found = []
    for record in records:
        found.append(record.offset)
        if record.offset == offset:
            signal.raise_signal(signal.SIGINT)
    return found


READS: dict[str, Callable[[klamm.Store], Iterable[Any]]] = {
    "wait=0": lambda store: store.consumer("orders", wait=0),
    "wait=0.01": lambda store: store.consumer("orders", wait=0.01),
    "batches": lambda store: (record for batch in store.consumer("orders", wait=0).batches(10) for record in batch),
    "group": lambda store: store.consumer("orders", group="g", wait=0),
    "tail": lambda store: store.tail("orders", 50),
    "changes": lambda store: store.table("orders").changes(),
}


@pytest.mark.parametrize("read", READS)
def test_ctrl_c_never_makes_a_bounded_read_a_short_one(orders: klamm.Store, read: str) -> None:
    orders.append_many("orders", [(b"key", b"%d" % n) for n in range(50)], acks=1)
    with pytest.raises(KeyboardInterrupt):
        press_at(READS[read](orders), 20)


def test_ctrl_c_between_two_records_of_an_iterator_is_not_swallowed(orders: klamm.Store) -> None:
    fill(orders, 10)
    with orders.consumer("orders") as consumer:
        iterator = iter(consumer)
        assert next(iterator).offset == 0
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert next(iterator).offset == 1


@contextmanager
def pressed_in(function: str, calls: set[int]) -> Iterator[None]:
    """Press Ctrl-C in a function of dead_letters.py, in the calls with those numbers."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        if frame.f_code is code:
            count += 1
            if count in calls:
                signal.raise_signal(signal.SIGINT)

    code = getattr(dead_letters, function).__code__
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def test_ctrl_c_in_a_redrive_puts_no_letter_back_twice(orders: klamm.Store) -> None:
    fill(orders, 60)

    def fail(record: Any) -> None:
        raise ValueError(record.offset)

    with orders.consumer("orders", group="g", wait=0) as consumer:
        consumer.run(fail, 1, on_error="dead-letter", retries=0)
    assert orders.redrive("orders.dlq", limit=20) == 20
    # 80 records are there: letters, and then the notes of those that went back. Press among the letters; and again in
    # the first look at the notes.
    with pressed_in("_noted", {62, 64}), pytest.raises(KeyboardInterrupt):
        orders.redrive("orders.dlq")
    assert orders.redrive("orders.dlq") == 40
    with orders.consumer("orders", start={0: 60}, wait=0) as consumer:
        assert sorted(int(record.value) for record in consumer) == list(range(60))


def test_ctrl_c_in_dead_letters_is_not_a_short_list(orders: klamm.Store) -> None:
    fill(orders, 30)

    def fail(record: Any) -> None:
        raise ValueError(record.offset)

    with orders.consumer("orders", group="g", wait=0) as consumer:
        consumer.run(fail, 1, on_error="dead-letter", retries=0)
    with pressed_in("_noted", {10}), pytest.raises(KeyboardInterrupt):
        list(orders.dead_letters("orders.dlq"))
    assert len(list(orders.dead_letters("orders.dlq"))) == 30


# Memory


@pytest.mark.parametrize("how", ["poll", "iterate", "batches"])
@pytest.mark.parametrize(("batch_bytes", "max_bytes"), [(1 << 20, 1 << 18), (1 << 20, 1 << 20), (1 << 16, 1 << 20)])
def test_memory_of_a_consumer_is_bounded_by_max_bytes_and_the_largest_batch(
    store: klamm.Store, how: str, batch_bytes: int, max_bytes: int
) -> None:
    store.topics.create("small")
    with store.producer(compression="zstd", batch_bytes=batch_bytes, acks=1, linger_ms=1000) as producer:
        for n in range(30_000):  # 30 MB; less than one, compressed
            producer.send("small", b"%06d" % n + b"x" * 1000)
    size = store.topics.describe("small").size
    assert size < 4 << 20
    with store.consumer("small", wait=0, max_bytes=max_bytes) as consumer:
        consumer.poll(1)  # modules, and a first batch
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            count = 1
            if how == "iterate":
                for _ in consumer:
                    count += 1
            else:
                for batch in consumer.batches(5000) if how == "batches" else iter(lambda: consumer.poll(5000), []):
                    count += len(batch)
            growth = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
    assert count == 30_000
    assert growth <= 2 * max(max_bytes, batch_bytes), f"{growth >> 10} KiB"


READ_ALL = """
import re, sys
from pathlib import Path
import klamm

def resident(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

with klamm.open(sys.argv[1]) as store:
    with store.consumer("warm", wait=0) as consumer:
        assert sum(1 for _ in consumer) == 50
    with store.consumer("large", wait=0) as consumer:
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        count = sum(1 for _ in consumer)
        print(count, resident("VmHWM") - before, resident("VmRSS") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="counts memory in /proc")
def test_the_process_has_memory_for_one_large_batch_whatever_their_sizes(store: klamm.Store) -> None:
    store.topics.create("warm")
    store.append_many("warm", [b"x" * 1000] * 50, compression="zstd")
    store.topics.create("large", 2, max_message_bytes=16 << 20)
    counts = [8000, 7900, 8100, 7950, 8150, 8000, 8050]  # an allocator that keeps one has no room for the next in it
    with store.producer(compression="zstd", batch_bytes=9 << 20, acks=1, linger_ms=60_000) as producer:
        for number, count in enumerate(counts):
            for n in range(count):
                producer.send("large", b"%06d" % n + b"x" * 1000, partition=number // 6)
            producer.flush()
    done = subprocess.run([sys.executable, "-c", READ_ALL, store.path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    count, growth, left = map(int, done.stdout.split())
    assert count == sum(counts)
    assert 8000 * 1000 < growth < 1.5 * 8150 * 1010
    assert left < 1 << 20  # nothing is held when all was read


# Records that do not suit the serde


@pytest.mark.parametrize("how", ["poll", "iterate"])
def test_on_bad_record_says_what_becomes_of_a_value_that_does_not_suit_the_serde(orders: klamm.Store, how: str) -> None:
    orders.append_many("orders", [b"1", b"{", b"3", b"nothing", b"5"], acks=1)

    def read(consumer: klamm.Consumer[klamm.Record[Any, Any]]) -> list[Any]:
        records = consumer if how == "iterate" else (each for batch in consumer.batches(2) for each in batch)
        return [record.value for record in records]

    with orders.consumer("orders", serde="json", wait=0, on_bad_record="skip") as consumer:
        assert read(consumer) == [1, 3, 5] and consumer.position("orders", 0).offset == 5
    with orders.consumer("orders", serde="json", wait=0, on_bad_record="raw") as consumer:
        assert read(consumer) == [1, b"{", 3, b"nothing", 5]
    with orders.consumer("orders", serde="json", wait=0) as consumer:
        for _ in range(2):
            with pytest.raises(ValueError) as caught:
                read(consumer)
            assert "on_bad_record" in caught.value.__notes__[0] and "seek to 2" in caught.value.__notes__[0]
            assert consumer.position("orders", 0).offset == 1
        consumer.seek("orders", 0, 2)
        assert consumer.poll()[0].value == 3
    with pytest.raises(klamm.InvalidSetting, match="on_bad_record: 'ignore'"):
        orders.consumer("orders", on_bad_record="ignore")  # type: ignore[call-overload]


def test_a_group_moves_past_records_that_are_skipped(orders: klamm.Store) -> None:
    orders.append_many("orders", [b"1", b"{", b"nothing"], acks=1)
    with orders.consumer("orders", group="g", serde="json", wait=0, on_bad_record="skip") as consumer:
        assert [record.value for record in consumer] == [1]
        consumer.commit()
        committed = consumer.committed("orders", 0)
        assert committed is not None and committed.offset == 3
    with orders.consumer("orders", group="g", wait=0) as consumer:
        assert list(consumer) == []


# Where to


def test_a_plan_refuses_what_is_not_a_position_even_if_the_group_has_no_offsets(orders: klamm.Store) -> None:
    with orders.consumer("orders", group="g", wait=0) as consumer:
        consumer.poll(timeout=0)
    wrong: list[dict[str, Any]] = [{"to": "begin"}, {"to": ("last", -1)}, {"by": "x"}, {}, {"to": 1, "by": 1}]
    for target in wrong:
        with pytest.raises((klamm.InvalidSetting, TypeError)):
            orders.groups.plan_reset("g", **target)
    with pytest.raises(klamm.GroupError, match="has no committed offsets"):
        orders.groups.plan_reset("g", to="earliest")
