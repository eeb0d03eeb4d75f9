"""Every partition has its turn, a loop that is slow stays a member, and positions never run ahead."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

import klamm
from klamm.client.consume.consumer import session_of
from tests.client.conftest import fill
from tests.procs import PATIENCE, until

# A busy partition keeps no other one waiting


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("how", ["poll", "iterate"])
def test_a_partition_is_read_while_another_one_stays_busy(store: klamm.Store, how: str, group: str | None) -> None:
    for topic in ("bulk", "urgent"):
        store.topics.create(topic)
    options: dict[str, Any] = {"max_bytes": 1 << 14, "wait": 5, "group": group}
    bulk = [b"x" * 100] * 500
    with store.consumer(["bulk", "urgent"], **options) as consumer:
        assert consumer.poll(timeout=0) == []
        store.append_many("bulk", bulk, acks=1)
        source = iter(consumer) if how == "iterate" else None

        def read() -> tuple[str, int]:
            """Return the topic of what is read next, and how many records that is."""
            if source is not None:
                return next(source).topic, 1
            batch = consumer.poll()
            return batch.topic, len(batch)

        assert read()[0] == "bulk"
        store.append("urgent", b"now", acks=1)
        count = 0
        while True:  # there is always more than what is read
            store.append_many("bulk", bulk, acks=1)
            topic, size = read()
            if topic == "urgent":
                break
            count += size
            assert count <= 2000, "it does not come"


def test_a_stalled_transaction_of_a_dead_process_is_resolved_while_another_partition_stays_busy(
    store: klamm.Store,
) -> None:
    for topic in ("bulk", "urgent"):
        store.topics.create(topic)
    bulk = [b"x" * 100] * 500
    store.append_many("bulk", bulk, acks=1)
    with store.consumer(["bulk", "urgent"], max_bytes=1 << 14, wait=5) as consumer:
        transaction = store.transaction(timeout=0.001, batch_bytes=1)
        transaction.send("urgent", b"never")
        store.append("urgent", b"now", acks=1)
        deadline = time.monotonic() + PATIENCE
        while True:
            store.append_many("bulk", bulk, acks=1)
            batch = consumer.poll()
            if batch.topic == "urgent":
                break
            assert time.monotonic() < deadline, "it does not come"
        assert [record.value for record in batch] == [b"now"]
        with pytest.raises(klamm.TransactionError):
            transaction.commit()


# A slow loop


def test_a_slow_loop_stays_a_member(orders: klamm.Store) -> None:
    fill(orders, 60)
    with orders.consumer("orders", group="g", max_poll_interval_ms=1500, wait=0) as consumer:
        member = session_of(consumer).member
        assert member is not None
        seen: list[int] = []
        for record in consumer:
            time.sleep(0.03)
            assert member.owns("orders", 0), f"out of the group after {len(seen)} records"
            seen.append(record.offset)
        assert seen == list(range(60))


def test_a_slow_loop_gives_a_new_member_its_share(store: klamm.Store) -> None:
    store.topics.create("orders", partitions=2)
    for number in (0, 1):
        store.append_many("orders", [b"x"] * 5_000, partition=number, acks=1)
    over = threading.Event()

    def slowly(consumer: klamm.Consumer) -> None:
        for _ in consumer:
            time.sleep(0.005)
            if over.is_set():
                return

    with store.consumer("orders", group="g", wait=5) as first:
        thread = threading.Thread(target=slowly, args=(first,), daemon=True)
        thread.start()
        try:
            until(lambda: len(first.assignment()) == 2, "the first has both")
            with store.consumer("orders", group="g") as second:
                assert second.poll(timeout=30), "it gets nothing while the other one works on its chunk"
        finally:
            over.set()
            thread.join(PATIENCE)


def test_a_loop_that_lost_its_partition_returns_no_more_of_it(orders: klamm.Store) -> None:
    fill(orders, 100)
    lost: list[tuple[str, int]] = []
    with orders.consumer("orders", group="g", max_poll_interval_ms=200, wait=0, on_lost=lost.extend) as first:
        member = session_of(first).member
        assert member is not None
        second = None
        seen = []
        for record in first:
            seen.append(record.offset)
            if record.offset == 5:
                until(lambda: not member.owns("orders", 0), "the watchdog gives it up")
                second = orders.consumer("orders", group="g")
                assert second.poll(3, timeout=PATIENCE).begin == 0
        assert seen == list(range(6)) and lost == [("orders", 0)]
        assert second is not None
        second.close()


# Positions


@contextmanager
def at_every_point(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` before each instruction of Klamm that this thread runs: another thread may look at any of them."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if "klamm" not in frame.f_code.co_filename or "tests" in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        look()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("how", ["iterate", "poll", "batches"])
def test_at_no_point_does_a_position_tell_of_records_that_were_not_handed_out(orders: klamm.Store, how: str) -> None:
    fill(orders, 1500)
    with orders.consumer("orders", wait=0, max_bytes=1 << 12) as consumer:
        handed, looks = [0], [0]
        session = session_of(consumer)

        def look() -> None:
            looks[0] += 1
            position = session.engine.positions().popitem()[1].offset
            # One call hands records out; what follows it, in Klamm, is their way to the caller.
            assert position <= handed[0] + (1 if how == "iterate" else 100), f"{position} after {handed[0]}"

        with at_every_point(look):
            if how == "iterate":
                for record in consumer:
                    assert record.offset == handed[0]
                    handed[0] += 1
            elif how == "batches":
                for batch in consumer.batches(100):
                    handed[0] = batch.end
            else:
                while batch := consumer.poll(100):
                    handed[0] = batch.end
        assert handed[0] == 1500 and looks[0] > 1500


def test_an_interrupted_poll_loses_nothing(orders: klamm.Store) -> None:
    from tests.interrupts import Interrupted, interrupt_at

    fill(orders, 40)
    kept_on = 0
    for point in range(1, 2000):
        with orders.consumer("orders", wait=0) as consumer:  # a new one: each poll has the same points
            try:
                with interrupt_at(point):
                    batch = consumer.poll(10, timeout=0)
            except Interrupted:
                kept_on += 1
            else:
                assert [record.offset for record in batch] == list(range(10))
                break
            position = consumer.position("orders", 0).offset
            after = [record.offset for record in consumer.poll(10, timeout=0)]
            assert after[0] == position and position in (0, 10), f"point {point}"
            if position == 10:  # on the way from the iterator's end to the caller: no code of ours can close that
                kept_on -= 1
    else:
        pytest.fail("it never ends")
    assert point > 50 and kept_on >= point - 6, f"{point - kept_on} of {point} points lose a batch"
