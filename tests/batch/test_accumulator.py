from __future__ import annotations

import gc
import threading
import time
import weakref
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import BatchDelivery, BufferMemory, Builder, Delivery, RecordAccumulator, decode, partition_for
from klamm.errors import RecordTooLarge, SyncFailed, UnknownTopic


def commit(accumulator: RecordAccumulator, offsets: dict[int, int], log: dict[int, list[Any]]) -> None:
    """What a producer does with closed batches."""
    for partition, builder, delivery in accumulator.take_full():
        log.setdefault(partition, []).extend(decode(builder.seal()))
        delivery.resolve(offsets.get(partition, 0))
        offsets[partition] = offsets.get(partition, 0) + builder.count
        accumulator.recycle(builder)


keyed = st.tuples(st.none() | st.binary(max_size=6), st.binary(max_size=60))


@given(st.lists(keyed, max_size=60), st.integers(1, 4), st.integers(62, 300))
def test_every_record_is_in_exactly_one_batch_of_its_partition_and_its_delivery_says_where(
    records: list[tuple[bytes | None, bytes]], partitions: int, batch_bytes: int
) -> None:
    accumulator = RecordAccumulator("t", partitions, batch_bytes, 1000)
    offsets: dict[int, int] = {}
    log: dict[int, list[Any]] = {}
    deliveries = []
    for key, value in records:
        deliveries.append(accumulator.add(key, value))
        commit(accumulator, offsets, log)
    accumulator.drain()
    commit(accumulator, offsets, log)

    assert accumulator.bytes == 0 and accumulator.full == []
    assert sum(map(len, log.values())) == len(records)
    for (key, value), delivery in zip(records, deliveries, strict=True):
        assert delivery.done and delivery.offset is not None
        record = log[delivery.partition][delivery.offset]
        assert (record.key, record.value, record.timestamp) == (key, value, delivery.timestamp)
        assert key is None or delivery.partition == partition_for(key, partitions)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=30), st.integers(100, 250))
def test_a_closed_batch_stays_within_batch_bytes_unless_it_holds_one_record(
    values: list[bytes], batch_bytes: int
) -> None:
    accumulator = RecordAccumulator("t", 2, batch_bytes, 1000)
    for value in values:
        accumulator.add(b"k", value)
    accumulator.drain()
    for _, builder, _ in accumulator.full:
        assert builder.size <= batch_bytes or builder.count == 1


def test_without_a_key_records_stick_until_the_batch_is_closed_and_then_move_on() -> None:
    accumulator = RecordAccumulator("t", 3, 200, 1000, first=1)
    partitions = [accumulator.add(None, b"x" * 50).partition for _ in range(10)]
    assert partitions == [1, 1, 2, 2, 0, 0, 1, 1, 2, 2]
    accumulator.drain()
    assert [entry[0] for entry in accumulator.full] == [1, 2, 0, 1, 2]
    assert accumulator.add(None, b"x").partition == 0


def test_keyed_records_do_not_move_with_the_sticky_partition() -> None:
    accumulator = RecordAccumulator("t", 5, 150, 1000)
    assert {accumulator.add(b"user-1", b"x" * 40).partition for _ in range(20)} == {partition_for(b"user-1", 5)}


def test_an_explicit_partition_goes_before_the_key() -> None:
    accumulator = RecordAccumulator("t", 3, 1000, 1000)
    assert [accumulator.add(b"k", b"v", None, None, p).partition for p in (2, 0, 1)] == [2, 0, 1]
    for wrong in (3, -1):
        with pytest.raises(UnknownTopic, match=f"no partition {wrong}"):
            accumulator.add(b"k", b"v", partition=wrong)


def test_a_partitioner_of_ones_own_is_asked_with_the_serialized_key_and_checked() -> None:
    asked: list[Any] = []
    answers: list[Any] = [2, 1, 3, "x"]

    def choose(key: bytes | None, count: int) -> Any:
        asked.append((key, count))
        return answers[len(asked) - 1]

    accumulator = RecordAccumulator("t", 3, 1000, 1000, choose, str.encode, None)
    assert [accumulator.add("k", b"v").partition, accumulator.add(None, b"v").partition] == [2, 1]
    with pytest.raises(ValueError, match="gave 3 of 3"):
        accumulator.add("k", b"v")
    with pytest.raises(TypeError, match="gave str"):
        accumulator.add("k", b"v")
    assert asked == [(b"k", 3), (None, 3), (b"k", 3), (b"k", 3)]


def test_serializers_make_bytes_and_are_not_asked_about_none() -> None:
    accumulator = RecordAccumulator("t", 1, 1000, 1000, None, str.encode, lambda value: repr(value).encode())
    accumulator.add("k", {"a": 1}, [("h", b"1")], 5)
    accumulator.add(None, None, None, 6)
    accumulator.drain()
    got = decode(accumulator.full[0][1].seal())
    assert [(r.key, r.value, tuple(r.headers), r.timestamp) for r in got] == [
        (b"k", b"{'a': 1}", (("h", b"1"),), 5),
        (None, None, (), 6),
    ]


def test_what_cannot_be_taken_changes_nothing() -> None:
    accumulator = RecordAccumulator("t", 2, 500, 500)
    accumulator.add(b"k", b"before", None, 1)
    before = accumulator.bytes
    refused: list[tuple[type[Exception], tuple[Any, ...]]] = [
        (RecordTooLarge, (b"k", b"x" * 500)),
        (TypeError, ("text", b"v")),
        (TypeError, (b"k", 7)),
        (TypeError, (b"k", b"v", [("h", 7)])),
        (ValueError, (b"k", b"v", None, -5)),
    ]
    for error, record in refused:
        with pytest.raises(error):
            accumulator.add(*record)
    assert accumulator.bytes == before
    accumulator.drain()
    assert [r.value for _, b, _ in accumulator.full for r in decode(b.seal())] == [b"before"]


def test_bytes_and_oldest_follow_the_open_batches() -> None:
    accumulator = RecordAccumulator("t", 4, 10_000, 10_000)
    assert (accumulator.bytes, accumulator.oldest) == (0, float("inf"))
    start = time.monotonic()
    accumulator.add(None, b"a", partition=0)
    between = time.monotonic()
    accumulator.add(None, b"b", partition=1)
    assert start <= accumulator.oldest <= between
    accumulator.drain(between)
    assert [entry[0] for entry in accumulator.full] == [0]
    assert accumulator.oldest >= between
    assert accumulator.bytes > 0
    accumulator.drain()
    assert (accumulator.bytes, accumulator.oldest) == (0, float("inf"))
    accumulator.drain()
    assert len(accumulator.take_full()) == 2 and accumulator.full == []


def test_a_recycled_builder_starts_empty_and_one_of_another_limit_is_not_taken() -> None:
    accumulator = RecordAccumulator("t", 1, 1000, 1000)
    accumulator.add(None, b"old")
    accumulator.drain()
    [(_, builder, _)] = accumulator.take_full()
    accumulator.recycle(builder)
    accumulator.recycle(Builder(99))
    accumulator.add(None, b"new")
    accumulator.drain()
    assert accumulator.full[0][1] is builder
    assert [r.value for r in decode(builder.seal())] == [b"new"]


@pytest.mark.parametrize("given", [(0, 100, 100), (1, 0, 100), (1, 100, 0)])
def test_an_accumulator_that_cannot_be_is_refused(given: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"partitions|bytes"):
        RecordAccumulator("t", *given)


def test_a_delivery_is_pending_until_its_batch_is_committed() -> None:
    batch = BatchDelivery("t", 2)
    delivery = Delivery(batch, 3, 77)
    assert (delivery.topic, delivery.partition, delivery.timestamp) == ("t", 2, 77)
    assert (delivery.done, delivery.offset, delivery.error) == (False, None, None)
    assert "pending" in repr(delivery)
    with pytest.raises(TimeoutError):
        delivery.result(0.01)
    batch.resolve(40)
    assert (delivery.done, delivery.offset, delivery.result()) == (True, 43, 43)
    assert "offset 43" in repr(delivery)


def test_log_append_time_is_the_timestamp_of_every_delivery() -> None:
    batch = BatchDelivery("t", 0)
    batch.resolve(0, 555)
    assert Delivery(batch, 1, 77).timestamp == 555


def test_without_acks_there_is_no_offset() -> None:
    batch = BatchDelivery("t", 0)
    batch.resolve(-1)
    assert Delivery(batch, 1, 77).result() is None


def test_a_failed_batch_raises_its_error_from_every_delivery() -> None:
    batch = BatchDelivery("t", 0)
    error = SyncFailed("the disk said no")
    batch.fail(error)
    for index in range(2):
        delivery = Delivery(batch, index)
        assert delivery.done and isinstance(delivery.error, SyncFailed) and delivery.offset is None
        with pytest.raises(SyncFailed, match="the disk said no"):
            delivery.result()
    with pytest.raises(TypeError):
        batch.fail("text")  # type: ignore[arg-type]


def test_the_first_outcome_stays() -> None:
    batch = BatchDelivery("t", 0)
    batch.resolve(5)
    batch.fail(ValueError("late"))
    batch.resolve(9)
    assert (batch.base_offset, batch.error) == (5, None)


def test_waiting_threads_are_woken() -> None:
    batch = BatchDelivery("t", 0)
    results: list[int | None] = []
    threads = [threading.Thread(target=lambda i=i: results.append(Delivery(batch, i).result(10))) for i in range(8)]
    for thread in threads:
        thread.start()
    batch.resolve(100)
    for thread in threads:
        thread.join(10)
    assert sorted(r for r in results if r is not None) == list(range(100, 108))


def test_callbacks_are_called_once_before_or_after() -> None:
    batch = BatchDelivery("t", 0)
    delivery = Delivery(batch, 1)
    seen: list[int | None] = []
    delivery.add_done_callback(lambda d: seen.append(d.offset))
    assert seen == []
    batch.resolve(1)
    delivery.add_done_callback(lambda d: seen.append(d.offset))
    assert seen == [2, 2]


def test_a_thread_can_wait_until_the_callbacks_of_a_batch_were_called() -> None:
    batch = BatchDelivery("t", 0)
    assert batch.wait_for_callbacks() and not batch.is_calling  # there is none
    seen: list[tuple[bool, bool]] = []
    for index in range(2):
        Delivery(batch, index).add_done_callback(
            lambda _: seen.append((batch.is_calling, batch.wait_for_callbacks(0.001)))
        )
    assert not batch.is_calling and not batch.wait_for_callbacks(0)
    waiting = threading.Thread(target=lambda: seen.append((batch.is_calling, batch.wait_for_callbacks())))
    waiting.start()
    batch.resolve(0)
    waiting.join(10)
    assert seen[:2] == [(True, False)] * 2 and seen[2][1]
    assert not batch.is_calling and batch.wait_for_callbacks(0)


def test_every_callback_is_called_whatever_another_raises(caplog: pytest.LogCaptureFixture) -> None:
    batch = BatchDelivery("t", 0)
    seen: list[int] = []

    def raises(error: BaseException) -> Any:
        def call(_: Delivery) -> None:
            raise error

        return call

    for index, call in enumerate([raises(ValueError("first")), raises(KeyboardInterrupt()), raises(KeyError("third"))]):
        Delivery(batch, index).add_done_callback(call)
    Delivery(batch, 3).add_done_callback(lambda delivery: seen.append(delivery.offset or 0))
    with pytest.raises(KeyboardInterrupt):
        batch.resolve(10)
    assert seen == [13]
    Delivery(batch, 4).add_done_callback(raises(ValueError("afterwards")))
    assert [record.message for record in caplog.records] == ["a callback of a delivery to t raised"] * 3


def test_a_closed_accumulator_takes_nothing_until_it_is_opened() -> None:
    memory = BufferMemory(1000)

    def close(value: bytes) -> bytes:
        accumulator.close()
        return value

    accumulator = RecordAccumulator("t", 1, 500, 500, None, None, close, memory=memory)
    assert accumulator.add(b"k", b"v") is None and accumulator.closed
    assert (accumulator.bytes, memory.used, accumulator.oldest) == (0, 0, float("inf"))
    accumulator = RecordAccumulator("t", 1, 500, 500, memory=memory)
    accumulator.close()
    assert accumulator.add(b"k", b"v") is None
    accumulator.open()
    assert accumulator.add(b"k", b"v") is not None
    accumulator.close()
    accumulator.drain()
    assert [r.value for _, b, _ in accumulator.full for r in decode(b.seal())] == [b"v"]


def test_memory_is_used_until_it_is_released() -> None:
    memory = BufferMemory(300)
    accumulators = [RecordAccumulator(name, 2, 200, 1000, memory=memory) for name in ("t", "u")]
    for accumulator in accumulators:
        for n in range(6):
            accumulator.add(None, b"x" * 50, partition=n % 2)
        accumulator.drain()
    full = [
        (builder.size, delivery) for accumulator in accumulators for _, builder, delivery in accumulator.take_full()
    ]
    assert memory.used == sum(size for size, _ in full) > memory.limit and memory.is_full
    for size, delivery in full * 2:  # the second time changes nothing
        delivery.release(memory, size)
    assert memory.used == 0 and not memory.is_full


def test_a_failure_that_is_raised_leaves_nothing_that_cannot_be_collected() -> None:
    class Kept:
        """Something that a frame refers to."""

    def fail() -> weakref.ref[Kept]:
        kept = Kept()
        batch = BatchDelivery("t", 0)
        failure = SyncFailed("no space")
        failure.__cause__ = OSError(28, "No space left on device")
        batch.fail(failure)
        delivery = Delivery(batch, 0)
        for _ in range(2):
            with pytest.raises(SyncFailed, match="no space") as raised:
                delivery.result()
            assert isinstance(raised.value.__cause__, OSError)
        with suppress(SyncFailed):
            raise failure
        return weakref.ref(kept)

    kept = fail()
    gc.collect()
    assert kept() is None
