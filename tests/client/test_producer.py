"""Producers: order, batches, back-pressure, errors, acks. Callbacks, and the end: test_producer_end.py."""

from __future__ import annotations

import errno
import threading
import time
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

import klamm
from klamm.batch import partition_for, walk
from klamm.disk import _os
from tests.client.conftest import held, partition_of, values_in
from tests.procs import children, until

WAIT = 30  # seconds that nothing here takes


def headers_in(store: klamm.Store) -> list[Any]:
    with partition_of(store).reader(0) as reader:
        return [header for data in iter(reader.read, b"") for header in walk(data)]


# Sending


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_everything_sent_is_there_in_order_when_the_block_ends(orders: klamm.Store, acks: Any) -> None:
    with orders.producer(acks=acks) as producer:
        for n in range(5000):
            producer.send("orders", b"%d" % n)
    assert values_in(orders) == [b"%d" % n for n in range(5000)]


def test_a_delivery_tells_offset_partition_and_time(orders: klamm.Store) -> None:
    with orders.producer(acks=1, linger_ms=60_000) as producer:
        deliveries = [producer.send("orders", b"%d" % n, timestamp=1000 + n) for n in range(10)]
        assert not deliveries[0].done and deliveries[0].offset is None
        producer.flush()
        assert [delivery.result(0) for delivery in deliveries] == list(range(10))
        assert (deliveries[3].topic, deliveries[3].partition, deliveries[3].timestamp) == ("orders", 0, 1003)
        stamped = producer.send("orders", b"x", timestamp=datetime(2024, 1, 1, tzinfo=UTC))
        assert stamped.timestamp == 1704067200000


def test_a_delivery_of_acks_0_has_no_offset(orders: klamm.Store) -> None:
    with orders.producer(acks=0) as producer:
        delivery = producer.send("orders", b"x")
        producer.flush()
        assert delivery.done and delivery.result(0) is None


def test_acks_all_is_delivered_when_it_is_on_disk(orders: klamm.Store) -> None:
    partition = partition_of(orders)
    with orders.producer(linger_ms=1) as producer:
        for n in range(20):
            offset = producer.send("orders", b"%d" % n).result(WAIT)
            assert offset == n and partition.ends().flushed > offset


def test_a_delivery_of_a_stamping_topic_tells_the_time_of_the_append(store: klamm.Store) -> None:
    store.topics.create("stamped", settings={"message.timestamp.type": "LogAppendTime"})
    with store.producer(acks=1) as producer:
        delivery = producer.send("stamped", b"x", timestamp=5)
        delivery.result(WAIT)
        assert abs(delivery.timestamp - time.time() * 1000) < 60_000
    with store.consumer("stamped", wait=0) as consumer:
        assert [record.timestamp for record in consumer] == [delivery.timestamp]


def test_a_lone_record_is_delivered_after_linger_ms(orders: klamm.Store) -> None:
    with orders.producer(acks=1, linger_ms=20) as producer:
        for _ in range(3):
            began = time.monotonic()
            producer.send("orders", b"x").result(WAIT)
            assert time.monotonic() - began >= 0.02
            until(lambda: not producer._accumulators, "the producer's thread finds nothing to do")


def test_linger_0_appends_each_record_at_once(orders: klamm.Store) -> None:
    with orders.producer(acks=1, linger_ms=0) as producer:
        for n in range(10):
            assert producer.send("orders", b"x").result(0) == n
    assert len(headers_in(orders)) == 10


def test_batches_are_closed_at_batch_bytes(orders: klamm.Store) -> None:
    with orders.producer(acks=1, batch_bytes=1000, linger_ms=60_000) as producer:
        for _ in range(100):
            producer.send("orders", b"x" * 90)
    found = headers_in(orders)
    assert len(found) > 8 and all(header.size <= 1000 + 110 for header in found)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_producer_writes_fewer_bytes_when_it_compresses(orders: klamm.Store, codec: klamm.Compression) -> None:
    with orders.producer(compression=codec) as producer:
        for _ in range(500):
            producer.send("orders", b"the same again")
    assert values_in(orders) == [b"the same again"] * 500
    assert orders.topics.describe("orders").size < 8000


def test_keys_choose_partitions_as_in_kafka_and_keyless_records_stick_to_a_batch(store: klamm.Store) -> None:
    store.topics.create("users", partitions=4)
    with store.producer(acks=1, batch_bytes=2000, linger_ms=60_000) as producer:
        for n in range(1000):
            key = b"user-%d" % (n % 30)
            assert producer.send("users", b"%d" % n, key=key).partition == partition_for(key, 4)
        keyless = [producer.send("users", b"x" * 100).partition for _ in range(200)]
        assert set(keyless) == {0, 1, 2, 3}
        assert sum(one != following for one, following in pairwise(keyless)) < 20
        assert producer.send("users", b"x", partition=3).partition == 3
    with store.consumer("users", wait=0) as consumer:
        keyed = [record for record in consumer if record.key is not None]
    for key in {record.key for record in keyed}:
        numbers = [int(record.value) for record in keyed if record.key == key]
        assert numbers == sorted(numbers)


def test_a_partitioner_of_ones_own_decides(store: klamm.Store) -> None:
    store.topics.create("users", partitions=4)
    with store.producer(acks=1, partitioner=lambda key, count: len(key or b"") % count) as producer:
        assert [producer.send("users", b"x", key=b"a" * n).partition for n in range(8)] == [0, 1, 2, 3] * 2
    with (
        store.producer(acks=1, partitioner=lambda key, count: 9) as producer,
        pytest.raises((ValueError, klamm.UnknownTopic)),
    ):
        producer.send("users", b"x")
    with pytest.raises(TypeError, match="partitioner"):
        store.producer(partitioner="random")  # type: ignore[call-overload]


def test_several_topics_go_through_one_producer(store: klamm.Store) -> None:
    for n in range(5):
        store.topics.create(f"t{n}")
    with store.producer(acks=1) as producer:
        for n in range(1000):
            producer.send(f"t{n % 5}", b"%d" % n)
    for n in range(5):
        assert values_in(store, f"t{n}") == [b"%d" % each for each in range(n, 1000, 5)]


def test_threads_share_a_producer_and_each_keeps_its_order(orders: klamm.Store) -> None:
    def send_some(name: int) -> None:
        for n in range(3000):
            producer.send("orders", b"%d %d" % (name, n))

    with orders.producer(acks=1, batch_bytes=500, linger_ms=1) as producer:
        threads = [threading.Thread(target=send_some, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
    found = values_in(orders)
    for name in range(4):
        mine = [value for value in found if value.startswith(b"%d " % name)]
        assert mine == [b"%d %d" % (name, n) for n in range(3000)]


def test_processes_with_producers_share_a_topic(store: klamm.Store) -> None:
    store.topics.create("users", partitions=2)

    def send_some(name: int) -> None:
        with store.producer(acks=1, batch_bytes=300) as producer:
            for n in range(1000):
                producer.send("users", b"%d %d" % (name, n), key=b"%d" % name)
        store.close()

    with children() as start:
        running = [start(lambda name=name: send_some(name)) for name in range(3)]  # type: ignore[misc]
        for child in running:
            child.answer()
    found = values_in(store, "users")
    for name in range(3):
        assert [each for each in found if each.startswith(b"%d " % name)] == [b"%d %d" % (name, n) for n in range(1000)]


# When somebody is in the way


def test_a_partition_that_is_busy_keeps_its_order_and_holds_up_no_other(store: klamm.Store) -> None:
    store.topics.create("users", partitions=2)
    with store.producer(acks=1, batch_bytes=200, linger_ms=60_000) as producer:
        with held(partition_of(store, "users", 0)):
            for n in range(100):
                producer.send("users", b"%d" % n, partition=0)
                producer.send("users", b"%d" % n, partition=1)
            assert store.topics.describe("users").partitions[1].end > 90
            assert store.topics.describe("users").partitions[0].end == 0
        producer.flush()
    numbers = [b"%d" % n for n in range(100)]
    assert values_in(store, "users", partitions=[0]) == values_in(store, "users", partitions=[1]) == numbers


def test_two_busy_partitions_go_on_one_by_one(store: klamm.Store) -> None:
    store.topics.create("users", partitions=2)
    first, second = partition_of(store, "users", 0), partition_of(store, "users", 1)
    with store.producer(acks="all", batch_bytes=200, linger_ms=60_000) as producer:
        with held(first):
            with held(second):
                for n in range(100):
                    producer.send("users", b"%d" % n, partition=n % 2)
            until(lambda: second.ends().end > 40, "the second goes on")
            assert first.ends().end == 0
        producer.flush()
    assert store.topics.describe("users").count == 100


def test_a_full_buffer_blocks_and_then_raises_without_taking_the_record(orders: klamm.Store) -> None:
    with orders.producer(acks=1, batch_bytes=1000, buffer_memory=5000, max_block_ms=50, linger_ms=60_000) as producer:
        sent = 0
        with held(partition_of(orders)):
            try:
                for sent in range(1000):
                    producer.send("orders", b"%03d" % sent + b"x" * 200)
            except klamm.BufferFull:
                pass
            assert 20 < sent < 40
            with pytest.raises(klamm.BufferFull, match="buffer_memory is 5000"):
                producer.send("orders", b"not taken")
        producer.flush()
        producer.send("orders", b"%03d" % sent)
    assert [int(value[:3]) for value in values_in(orders)] == list(range(sent + 1))


def test_a_blocked_send_goes_on_when_there_is_room(orders: klamm.Store) -> None:
    partition = partition_of(orders)
    with orders.producer(acks=1, batch_bytes=1000, buffer_memory=3000) as producer:
        partition.log.lock()
        timer = threading.Timer(0.05, partition.log.unlock)
        timer.start()
        for n in range(100):
            producer.send("orders", b"%03d" % n + b"x" * 200)
        timer.join(WAIT)
    assert [int(value[:3]) for value in values_in(orders)] == list(range(100))


def test_open_batches_of_many_partitions_stay_within_the_buffer(store: klamm.Store) -> None:
    store.topics.create("wide", partitions=200)
    with store.producer(acks=1, linger_ms=600_000, batch_bytes=100_000, buffer_memory=200_000) as producer:
        for n in range(2000):
            producer.send("wide", bytes(1000), partition=n % 200)
            assert producer._memory.used <= 200_000
        producer.flush()
        assert producer._memory.used == 0
    assert store.topics.describe("wide").count == 2000


def test_flush_gives_up_after_its_timeout_and_loses_nothing(orders: klamm.Store) -> None:
    with orders.producer(acks=1) as producer:
        with held(partition_of(orders)):
            producer.send("orders", b"x")
            with pytest.raises(TimeoutError):
                producer.flush(0.05)
        producer.flush()
    assert values_in(orders) == [b"x"]


# Errors


def test_a_record_too_large_is_refused_by_its_send_and_loses_no_other(orders: klamm.Store) -> None:
    with orders.producer(acks=1, linger_ms=60_000) as producer:
        producer.send("orders", b"before")
        with pytest.raises(klamm.RecordTooLarge, match=r"orders: .*raise the topic's max\.message\.bytes"):
            producer.send("orders", bytes(2 << 20))
        producer.send("orders", b"after")
    assert values_in(orders) == [b"before", b"after"]


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("orders", "text"), {}, TypeError),
        (("orders", b"x"), {"key": 5}, TypeError),
        (("orders", b"x"), {"headers": [("h", 1)]}, TypeError),
        (("orders", b"x"), {"timestamp": "now"}, TypeError),
        (("orders", b"x"), {"timestamp": -3}, ValueError),
        (("orders", b"x"), {"partition": 1}, klamm.UnknownTopic),
        (("orders", b"x"), {"partition": "0"}, TypeError),
        (("order", b"x"), {}, klamm.UnknownTopic),
        ((5, b"x"), {}, TypeError),
        (([], b"x"), {}, TypeError),
    ],
)
def test_a_wrong_send_raises_and_loses_no_other(
    orders: klamm.Store, arguments: tuple[Any, Any], options: dict[str, Any], error: type[Exception]
) -> None:
    with orders.producer(acks=1, linger_ms=60_000) as producer:
        producer.send("orders", b"before")
        with pytest.raises(error):
            producer.send(*arguments, **options)
        producer.send("orders", b"after")
    assert values_in(orders) == [b"before", b"after"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"acks": 2}, klamm.InvalidSetting),
        ({"compression": "brotli"}, klamm.InvalidSetting),
        ({"compression": "gzip", "compression_level": 77}, klamm.InvalidSetting),
        ({"serde": "xml"}, klamm.InvalidSetting),
        ({"serde": 5}, TypeError),
        ({"linger_ms": -1}, klamm.InvalidSetting),
        ({"linger_ms": "5"}, TypeError),
        ({"batch_bytes": 0}, klamm.InvalidSetting),
        ({"buffer_memory": 0}, klamm.InvalidSetting),
    ],
)
def test_a_wrong_option_is_told_at_once(orders: klamm.Store, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        orders.producer(**options)


def full_disk() -> Any:
    return _os.trap(1, kinds=_os.WRITE, error=errno.ENOSPC, repeat=True)


def test_a_batch_that_fails_is_told_by_its_deliveries_and_by_the_next_send(orders: klamm.Store) -> None:
    orders.append("orders", b"0")
    with orders.producer(acks=1, batch_bytes=1000, linger_ms=60_000) as producer:
        full_disk()
        try:
            *lost, kept = [producer.send("orders", b"x" * 100) for _ in range(9)]  # the last is in the next batch
            assert all(isinstance(delivery.error, klamm.DiskFull) for delivery in lost)
            with pytest.raises(klamm.DiskFull):
                lost[1].result(WAIT)
        finally:
            _os.trap(0)
        with pytest.raises(klamm.DiskFull):
            producer.send("orders", b"not taken")
        producer.send("orders", b"1")
    assert kept.result(0) == 1 and values_in(orders) == [b"0", b"x" * 100, b"1"]


@pytest.mark.parametrize("way", ["flush", "close", "exit"])
def test_a_batch_that_fails_is_told_by_flush_close_and_exit(orders: klamm.Store, way: str) -> None:
    orders.append("orders", b"0")
    producer = orders.producer(acks=1, linger_ms=60_000)
    producer.send("orders", b"x")
    full_disk()
    try:
        ways = {"flush": producer.flush, "close": producer.close, "exit": lambda: producer.__exit__(None, None, None)}
        with pytest.raises(klamm.DiskFull):
            ways[way]()
    finally:
        _os.trap(0)
    producer.close()
    assert values_in(orders) == [b"0"]


def test_an_error_in_the_block_is_not_hidden_by_the_producers_own(orders: klamm.Store) -> None:
    orders.append("orders", b"0")

    def work() -> None:
        with orders.producer(acks=1, linger_ms=60_000) as producer:
            producer.send("orders", b"x")
            full_disk()
            raise ValueError("mine")

    try:
        with pytest.raises(ValueError, match="mine") as caught:
            work()
    finally:
        _os.trap(0)
    assert "could not deliver" in caught.value.__notes__[0]


def test_records_sent_before_an_error_in_the_block_are_delivered(orders: klamm.Store) -> None:
    def work() -> None:
        with orders.producer(linger_ms=60_000) as producer:
            producer.send("orders", b"x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert values_in(orders) == [b"x"]


def test_a_sync_that_fails_fails_the_delivery_and_later_ones_go_on(orders: klamm.Store) -> None:
    orders.append("orders", b"0")
    with orders.producer(acks="all", linger_ms=0) as producer:
        _os.trap(1, kinds=_os.SYNC, error=errno.EIO, repeat=True)
        try:
            delivery = producer.send("orders", b"1")
            with pytest.raises(klamm.SyncFailed):
                delivery.result(WAIT)
        finally:
            _os.trap(0)
        with pytest.raises(klamm.SyncFailed):
            until(producer.flush, "the failure is told")
        assert producer.send("orders", b"2").result(WAIT) == 2
    assert partition_of(orders).ends().flushed == 3


def test_a_topic_deleted_meanwhile_fails_its_batches_and_no_other(store: klamm.Store) -> None:
    store.topics.create("orders")
    store.topics.create("users")
    with store.producer(acks=1, linger_ms=60_000) as producer:
        lost = producer.send("orders", b"x")
        kept = producer.send("users", b"x")
        store.topics.delete("orders")
        with pytest.raises(klamm.UnknownTopic):
            producer.flush()
        assert isinstance(lost.error, klamm.UnknownTopic) and kept.result(WAIT) == 0
        with pytest.raises(klamm.UnknownTopic):
            producer.send("orders", b"x")
        store.topics.create("orders")
        assert producer.send("users", b"y").topic == "users"
        again = producer.send("orders", b"new")
        producer.flush()
        assert again.result(0) == 0


def test_partitions_added_meanwhile_are_used(store: klamm.Store) -> None:
    store.topics.create("users")
    with store.producer(acks=1, linger_ms=0) as producer:
        producer.send("users", b"0")
        store.topics.add_partitions("users", 3)
        producer.send("users", b"1")
        assert {producer.send("users", b"x").partition for _ in range(10)} == {0, 1, 2}
        assert producer.send("users", b"x", partition=2).result(0) is not None


def test_a_smaller_max_message_bytes_is_noticed(orders: klamm.Store) -> None:
    with orders.producer(acks=1, linger_ms=0) as producer:
        producer.send("orders", b"x" * 5000)
        orders.topics.alter("orders", {"max.message.bytes": 1000})
        producer.send("orders", b"small")
        with pytest.raises(klamm.RecordTooLarge):
            producer.send("orders", b"x" * 5000)


# Idempotence


def test_an_idempotent_producer_numbers_its_batches(store: klamm.Store) -> None:
    store.topics.create("orders")
    store.topics.create("users", partitions=2)
    with store.producer(acks=1, idempotent=True, batch_bytes=300) as one, store.producer(idempotent=True) as two:
        for n in range(100):
            one.send("orders", b"%d" % n)
            one.send("users", b"%d" % n, partition=n % 2)
        two.send("orders", b"x")
    found = headers_in(store)
    ids = {header.producer_id for header in found}
    assert len(ids) == 2 and -1 not in ids and {header.producer_epoch for header in found} == {0}
    for identity in ids:
        expected = 0
        for header in found:
            if header.producer_id == identity:
                assert header.base_sequence == expected
                expected += header.record_count
    assert len(values_in(store)) == 101


def test_a_batch_that_failed_leaves_no_gap_in_the_sequence(orders: klamm.Store) -> None:
    with orders.producer(acks=1, idempotent=True, linger_ms=0) as producer:
        producer.send("orders", b"0")
        full_disk()
        try:
            assert isinstance(producer.send("orders", b"lost").error, klamm.DiskFull)
        finally:
            _os.trap(0)
        with pytest.raises(klamm.DiskFull):
            producer.flush()
        producer.send("orders", b"1").result(0)
    assert values_in(orders) == [b"0", b"1"]
