"""Consumers without a group: where they start, what they hand out, where they stand."""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import klamm
from klamm.batch import crc32c
from tests.client.conftest import fill
from tests.descriptors import descriptors, opened_since
from tests.procs import children


def log_of(path: Path, partition: int = 0) -> Path:
    return next(path.glob(f"topics/*/{partition}/*.log"))


# Starting


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        ("latest", 100),
        (0, 0),
        (42, 42),
        (100, 100),
        ({0: 17}, 17),
        ({("orders", 0): 17}, 17),
        ({0: klamm.Position(18, 0)}, 18),
        ({}, 0),
        (("last", 10), 90),
        (("last", 1000), 0),
        (("last", 0), 100),
        (("timestamp", 50_500), 51),
        (("timestamp", 0), 0),
        (("timestamp", 10**14), 100),
        (datetime.fromtimestamp(70, UTC), 70),
        (timedelta(days=1), 100),
        (timedelta(days=40_000), 0),
    ],
)
def test_a_consumer_starts_where_it_is_told(orders: klamm.Store, start: Any, first: int) -> None:
    orders.append_many("orders", [(None, b"%d" % n, None, 1000 * n) for n in range(100)], acks=1)
    with orders.consumer("orders", start=start, wait=0) as consumer:
        assert consumer.position("orders", 0).offset == first
        assert [record.offset for record in consumer] == list(range(first, 100))
        orders.append("orders", b"more", acks=1)
        assert [record.offset for record in consumer] == [100]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"start": "newest"}, klamm.InvalidSetting),
        ({"start": -5}, klamm.InvalidSetting),
        ({"start": 1.5}, TypeError),
        ({"start": True}, TypeError),
        ({"start": ("first", 5)}, klamm.InvalidSetting),
        ({"start": {"orders": 5}}, TypeError),
        ({"start": {0: "5"}}, TypeError),
        ({"start": datetime(2024, 1, 1)}, ValueError),  # noqa: DTZ001
        ({"wait": -1}, klamm.InvalidSetting),
        ({"wait": "5"}, TypeError),
        ({"form": "rows"}, klamm.InvalidSetting),
        ({"serde": "yaml"}, klamm.InvalidSetting),
        ({"auto_offset_reset": "skip"}, klamm.InvalidSetting),
        ({"partitions": ["0"]}, TypeError),
        ({"partitions": [1]}, klamm.UnknownTopic),
        ({"groop": "billing"}, TypeError),
        ({"group": 5}, TypeError),
        ({"group": ""}, klamm.InvalidSetting),
        ({"group": "billing", "start": "latest"}, klamm.InvalidSetting),
        ({"group": "billing", "auto_offset_reset": "newest"}, klamm.InvalidSetting),
        ({"group": "billing", "max_poll_interval_ms": 0}, klamm.InvalidSetting),
        ({"member": "m1"}, klamm.InvalidSetting),
        ({"enable_auto_commit": True}, klamm.InvalidSetting),
        ({"offsets": {}}, TypeError),
    ],
)
def test_a_wrong_option_is_told_at_once(orders: klamm.Store, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        orders.consumer("orders", **options)


@pytest.mark.parametrize(
    ("topics", "options", "error"),
    [
        ("nothing", {}, klamm.UnknownTopic),
        (["orders", "nothing"], {}, klamm.UnknownTopic),
        ({"orders": [3]}, {}, klamm.UnknownTopic),
        (None, {}, klamm.InvalidSetting),
        ([], {}, klamm.InvalidSetting),
        ("orders", {"pattern": "o.*"}, klamm.InvalidSetting),
        (["orders", "users"], {"partitions": [0]}, klamm.InvalidSetting),
        ([1, 2], {}, TypeError),
        (5, {}, TypeError),
        (None, {"pattern": "("}, re.error),
    ],
)
def test_wrong_topics_are_told_at_once(
    orders: klamm.Store, topics: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    orders.topics.create("users")
    with pytest.raises(error):
        orders.consumer(topics, **options)


# Which partitions


def test_topics_are_named_or_matched_and_partitions_chosen(store: klamm.Store) -> None:
    for name in ("orders-de", "orders-fr", "users"):
        store.topics.create(name, partitions=2)
        for number in (0, 1):
            store.append(name, f"{name}/{number}".encode(), partition=number, acks=1)

    def found(topics: Any = None, **options: Any) -> set[str]:
        with store.consumer(topics, wait=0, serde="str", **options) as consumer:
            places = {f"{name}/{number}" for name, number in consumer.assignment()}
            assert places == {record.value for record in consumer}
        return places

    de, fr, users = ({f"{name}/0", f"{name}/1"} for name in ("orders-de", "orders-fr", "users"))
    assert found("users") == users
    assert found(["users", "orders-fr"]) == users | fr
    assert found(re.compile("orders-.*")) == found(pattern="orders-.*") == de | fr
    assert found(pattern="orders") == set()
    assert found("users", partitions=[1]) == {"users/1"}
    assert found({"users": [0], "orders-de": [0, 1]}) == de | {"users/0"}


def test_every_partition_gets_its_turn(store: klamm.Store) -> None:
    store.topics.create("users", partitions=3)
    for number in range(3):
        store.append_many("users", [bytes(1000)] * 3000, partition=number, acks=1)
    with store.consumer("users", wait=0, max_bytes=1 << 16) as consumer:
        early = [batch.partition for batch in islice(consumer.batches(), 30)]
    assert set(early) == {0, 1, 2}


def test_many_partitions_are_read_with_few_descriptors(store: klamm.Store) -> None:
    store.topics.create("wide", partitions=300)
    for number in range(300):
        store.append("wide", b"%d" % number, partition=number, acks=1)
    for partition in store._acquired().topic("wide").partitions():
        partition.log.close_idle()
    before = descriptors()
    with store.consumer("wide", wait=0) as consumer:
        assert sorted(int(record.value) for record in consumer) == list(range(300))
        assert len(opened_since(before)) <= 64
        store.append("wide", b"again", partition=7, acks=1)
        assert [record.value for record in consumer] == [b"again"]


# Handing out


def test_a_batch_is_a_list_of_one_partition_that_knows_its_range(store: klamm.Store) -> None:
    store.topics.create("users", partitions=2)
    for number in (0, 1):
        store.append_many("users", [b"%d" % n for n in range(1200)], partition=number, acks=1)
    ends = {0: 0, 1: 0}
    with store.consumer("users", wait=0) as consumer:
        for batch in consumer.batches(max_records=500):
            assert 0 < len(batch) <= 500 and batch.topic == "users"
            assert {record.partition for record in batch} == {batch.partition}
            assert batch.begin == ends[batch.partition] == batch[0].offset
            assert batch.end == batch[-1].offset + 1 == consumer.position("users", batch.partition).offset
            assert batch.leader_epoch == batch[0].leader_epoch >= 0
            ends[batch.partition] = batch.end
    assert ends == {0: 1200, 1: 1200}


def test_poll_gives_what_is_there_and_nothing_after_its_timeout(orders: klamm.Store) -> None:
    fill(orders, 10)
    with orders.consumer("orders") as consumer:
        assert [len(consumer.poll(max_records=4, timeout=0)) for _ in range(4)] == [4, 4, 2, 0]
        empty = consumer.poll(timeout=0.001)
        assert empty == [] and isinstance(empty, klamm.Batch)
        orders.append("orders", b"more", acks=1)
        assert [record.value for record in consumer.poll(timeout=10)] == [b"more"]
        for wrong in (0, -1):
            with pytest.raises(klamm.InvalidSetting):
                consumer.poll(wrong)
            with pytest.raises(klamm.InvalidSetting):
                consumer.batches(wrong)
        with pytest.raises(TypeError):
            consumer.poll(timeout="5")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"say timeout=1\.0"):
            consumer.poll(1.0)  # type: ignore[arg-type]
        assert consumer.poll(timeout=timedelta(milliseconds=1)) == []


def test_records_come_as_records_tuples_or_values(orders: klamm.Store) -> None:
    orders.append("orders", b"v", key=b"k", headers=[("h", b"x")], timestamp=5)
    found = {}
    for form in ("records", "tuples", "values"):
        with orders.consumer("orders", wait=0, form=form) as consumer:
            found[form] = next(iter(consumer))
    record = found["records"]
    assert (record.topic, record.partition, record.offset, record.timestamp) == ("orders", 0, 0, 5)
    assert (record.key, record.value, record.headers) == (b"k", b"v", (("h", b"x"),))
    assert found["tuples"] == (b"k", b"v") and found["values"] == b"v"


@pytest.mark.parametrize("form", ["records", "tuples", "values"])
def test_positions_are_exact_in_the_middle_of_a_chunk(orders: klamm.Store, form: klamm.Form) -> None:
    fill(orders, 1000)
    with orders.consumer("orders", wait=0, form=form) as consumer:
        for count, _ in enumerate(consumer, 1):
            if count in (1, 7, 999, 1000):
                assert consumer.position("orders", 0).offset == count
            if count == 300:
                break
        assert consumer.positions() == {("orders", 0): klamm.Position(300, 0)}
        assert len(consumer.poll(50)) == 50
        assert consumer.position("orders", 0).offset == 350
        assert sum(1 for _ in consumer) == 650


def test_positions_are_where_another_consumer_goes_on(store: klamm.Store) -> None:
    store.topics.create("users", partitions=3)
    store.append_many("users", [(b"%d" % n, b"%d" % n) for n in range(2000)], acks=1)
    with store.consumer("users", wait=0) as consumer:
        first = [record.value for record in islice(consumer, 777)]
        positions = consumer.positions()
    with store.consumer("users", wait=0, start=positions) as consumer:
        second = [record.value for record in consumer]
    assert sorted(map(int, first + second)) == list(range(2000))


@given(st.lists(st.tuples(st.sampled_from(["poll", "iterate", "batches", "seek"]), st.integers(1, 400)), max_size=12))
def test_however_it_is_read_no_record_is_skipped_or_given_twice(tmp_path_factory: Any, steps: list[Any]) -> None:
    store = _shared_store(tmp_path_factory)
    with store.consumer("orders", wait=0, max_bytes=1 << 12) as consumer:
        expected = 0
        for how, count in steps:
            if how == "seek":
                expected = count % 1000
                consumer.seek("orders", 0, expected)
                continue
            if how == "poll":
                got = [record.offset for record in consumer.poll(count, timeout=0)]
            elif how == "iterate":
                got = [record.offset for record in islice(consumer, count)]
            else:
                got = [record.offset for record in next(consumer.batches(count), [])]
            assert got == list(range(expected, expected + len(got)))
            assert got or expected == 1000
            expected += len(got)
            assert consumer.position("orders", 0).offset == expected


_shared: list[klamm.Store] = []


def _shared_store(factory: Any) -> klamm.Store:
    if not _shared:
        store = klamm.open(factory.mktemp("shared") / "events")
        store.topics.create("orders")
        for n in range(0, 1000, 50):
            store.append_many("orders", [b"%d" % each for each in range(n, n + 50)], acks=1)
        _shared.append(store)
    return _shared[0]


# Moving


def test_seek_moves_also_in_the_middle_of_a_loop(orders: klamm.Store) -> None:
    fill(orders, 100)
    seen = []
    with orders.consumer("orders", wait=0) as consumer:
        for record in consumer:
            seen.append(record.offset)
            if record.offset == 10 and len(seen) == 11:
                consumer.seek("orders", 0, 90)
    assert seen == [*range(11), *range(90, 100)]


def test_seek_to_moves_every_partition(store: klamm.Store) -> None:
    store.topics.create("users", partitions=2)
    for number in (0, 1):
        fill(store, 50, "users", partition=number)
    with store.consumer("users", wait=0) as consumer:
        assert len(list(consumer)) == 100
        consumer.seek_to(("last", 5))
        assert len(list(consumer)) == 10
        consumer.seek_to("earliest")
        assert len(list(consumer)) == 100
        consumer.seek_to({1: 48})
        assert [(record.partition, record.offset) for record in consumer] == [(1, 48), (1, 49)]
        consumer.seek_to("latest")
        assert list(consumer) == []


def test_a_paused_partition_waits_and_then_goes_on_where_it_was(store: klamm.Store) -> None:
    store.topics.create("users", partitions=2)
    for number in (0, 1):
        fill(store, 50, "users", partition=number)
    with store.consumer("users", wait=0) as consumer:
        first = consumer.poll(10)
        consumer.pause("users", first.partition)
        assert {record.partition for record in consumer} == {1 - first.partition}
        assert sorted(consumer.assignment()) == [("users", 0), ("users", 1)]
        consumer.resume()
        assert [(record.partition, record.offset) for record in consumer] == [
            (first.partition, offset) for offset in range(10, 50)
        ]
        consumer.seek_to("earliest")
        consumer.pause()
        assert list(consumer) == []
        for call in (consumer.pause, consumer.resume):
            with pytest.raises(klamm.UnknownTopic):
                call("users", 7)


def test_moving_what_is_not_assigned_is_an_error(orders: klamm.Store) -> None:
    orders.topics.create("users")
    with orders.consumer("orders", wait=0) as consumer:
        for topic, number in (("users", 0), ("orders", 1), ("nothing", 0)):
            with pytest.raises(klamm.UnknownTopic, match="not assigned"):
                consumer.seek(topic, number, 0)
            with pytest.raises(klamm.UnknownTopic, match="not assigned"):
                consumer.position(topic, number)
        for wrong in (-1, "5", 1.5, None):
            with pytest.raises((TypeError, klamm.InvalidSetting)):
                consumer.seek("orders", 0, wrong)  # type: ignore[arg-type]


def test_a_position_from_an_epoch_that_ended_earlier_resumes_at_its_end(
    orders: klamm.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(orders, 20)
    partition = orders._acquired().topic("orders").partition(0)
    monkeypatch.setattr(partition, "epochs", lambda: ((0, 0), (1, 12)))  # a power cut: epoch 0 ended at 12
    with orders.consumer("orders", wait=0) as consumer:
        consumer.seek("orders", 0, 15, leader_epoch=0)
        assert consumer.position("orders", 0).offset == 12
        consumer.seek("orders", 0, klamm.Position(9, 0))
        assert consumer.position("orders", 0).offset == 9
        consumer.seek("orders", 0, 15, leader_epoch=1)
        assert consumer.position("orders", 0).offset == 15
    with orders.consumer("orders", wait=0, start={0: (17, 0)}) as consumer:
        assert [record.offset for record in consumer] == list(range(12, 20))


# Out of range


@pytest.mark.parametrize(("policy", "first"), [("earliest", 10), ("latest", 50)])
@pytest.mark.parametrize("offset", [3, 51, 1000])
def test_an_offset_out_of_range_is_told_with_the_range_or_follows_the_policy(
    orders: klamm.Store, policy: klamm.OffsetReset, first: int, offset: int
) -> None:
    fill(orders, 50)
    orders["orders"].delete_records({0: 10})
    with orders.consumer("orders", start=offset, wait=0) as consumer:
        for _ in range(2):
            with pytest.raises(klamm.OffsetOutOfRange) as caught:
                consumer.poll()
        assert (caught.value.offset, caught.value.start, caught.value.end) == (offset, 10, 50)
        assert "auto_offset_reset='earliest'" in str(caught.value.hint)
    with orders.consumer("orders", start=offset, wait=0, auto_offset_reset=policy) as consumer:
        assert [record.offset for record in consumer] == list(range(first, 50))
        assert consumer.position("orders", 0).offset == 50


def test_records_deleted_under_a_reader_are_out_of_range(orders: klamm.Store) -> None:
    fill(orders, 50)
    with orders.consumer("orders", wait=0) as consumer:
        assert len(consumer.poll(50)) == 50
        fill(orders, 50)
        orders["orders"].delete_records({0: 70})
        with pytest.raises(klamm.OffsetOutOfRange, match=r"\[70, 100\)"):
            consumer.poll()


# Damage


def test_a_damaged_batch_is_told_after_what_is_before_it_and_can_be_skipped(orders: klamm.Store, path: Path) -> None:
    for n in range(10):
        orders.append("orders", b"record %d" % n, acks=1)
    log = log_of(path)
    data = log.read_bytes()
    at = data.index(b"record 4")
    with log.open("r+b") as file:
        file.seek(at)
        file.write(b"RECORD 4")
    with orders.consumer("orders", wait=0) as consumer:
        seen: list[int] = []
        with pytest.raises(klamm.CorruptBatch) as caught:
            seen += [record.offset for record in _each(consumer, seen)]
        assert seen == [0, 1, 2, 3] and caught.value.path == str(log) and caught.value.next_offset == 5
        assert caught.value.position is not None and caught.value.position < at
        with pytest.raises(klamm.CorruptBatch):
            consumer.poll()
        consumer.seek("orders", 0, caught.value.next_offset)
        assert [record.offset for record in consumer] == [5, 6, 7, 8, 9]


def _each(consumer: klamm.Consumer, seen: list[int]) -> list[klamm.Record]:
    for record in consumer:
        seen.append(record.offset)
    return []


def test_a_batch_with_a_right_crc_and_wrong_contents_can_be_skipped(orders: klamm.Store, path: Path) -> None:
    sizes = []
    for n in range(10):
        orders.append("orders", b"record %d" % n, acks=1)
        sizes.append(orders.topics.describe("orders").size)
    log = log_of(path)
    data = bytearray(log.read_bytes())
    begin, end = sizes[3], sizes[4]
    data[begin + 61] = 0x7F  # the record's length
    struct.pack_into(">I", data, begin + 17, crc32c(data[begin + 21 : end]))
    log.write_bytes(data)
    for form in ("records", "values"):
        with orders.consumer("orders", wait=0, form=form) as consumer:
            assert len(consumer.poll()) == 4
            with pytest.raises(klamm.CorruptBatch, match="orders/0: the batch at offset 4") as caught:
                consumer.poll()
            assert caught.value.next_offset == 5
            consumer.seek("orders", 0, 5)
            assert len(consumer.poll()) == 5


# What cannot be done


def test_a_consumer_does_not_pickle(orders: klamm.Store) -> None:
    with orders.consumer("orders") as consumer, pytest.raises(TypeError, match="pickle the store"):
        pickle.dumps(consumer)


def test_a_closed_consumer_says_so(orders: klamm.Store) -> None:
    consumer = orders.consumer("orders")
    consumer.close()
    consumer.close()
    uses: list[Callable[[], object]] = [consumer.poll, lambda: list(consumer), lambda: list(consumer.batches())]
    uses += [lambda: consumer.seek("orders", 0, 0), lambda: consumer.position("orders", 0)]
    for use in uses:
        with pytest.raises(klamm.Closed, match="consumer is closed"):
            use()


def test_a_consumer_from_before_a_fork_raises_in_the_child_and_goes_on_in_the_parent(orders: klamm.Store) -> None:
    fill(orders, 10)
    with orders.consumer("orders", wait=0) as consumer, children() as start:
        assert len(consumer.poll(4)) == 4

        def in_child() -> int:
            with pytest.raises(klamm.Forked):
                consumer.poll()
            consumer.close()
            with orders.consumer("orders", wait=0) as mine:
                return len(list(mine))

        assert start(in_child).answer() == 10
        assert len(list(consumer)) == 6
