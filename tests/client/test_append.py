"""Appending without a producer: one record, and many."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

import klamm
from klamm.batch import partition_for, walk


def everything(store: klamm.Store, topic: str = "orders") -> list[klamm.Record]:
    with store.consumer(topic, wait=0) as consumer:
        return list(consumer)


def values(store: klamm.Store, topic: str = "orders") -> list[bytes]:
    return [record.value for record in everything(store, topic)]


# Appending


def test_append_gives_consecutive_offsets_and_keeps_everything_about_a_record(orders: klamm.Store) -> None:
    when = datetime(2024, 6, 3, 12, tzinfo=UTC)
    assert orders.append("orders", b"v", key=b"k", headers=[("h", b"1"), ("n", None)], timestamp=when) == 0
    assert orders.append("orders", None, key=b"gone", timestamp=1234, acks=1) == 1
    assert orders.append("orders", memoryview(b"view"), key=bytearray(b"array"), acks=1) == 2
    assert orders.append("orders", b"no answer", acks=0) is None
    first, second, third, last = everything(orders)
    assert (first.key, first.value, tuple(first.headers)) == (b"k", b"v", (("h", b"1"), ("n", None)))
    assert first.timestamp == int(when.timestamp() * 1000) and second.timestamp == 1234
    assert (second.key, second.value) == (b"gone", None)
    assert (third.key, third.value) == (b"array", b"view")
    assert last.value == b"no answer" and last.offset == 3


def test_acks_all_is_on_disk_and_acks_1_is_not_yet(orders: klamm.Store) -> None:
    partition = orders._acquired().topic("orders").partition(0)
    orders.append("orders", b"x", acks=1)
    assert partition.ends().flushed == 0
    orders.append("orders", b"x", acks="all")
    assert partition.ends().flushed == 2
    orders.append_many("orders", [b"x"] * 10, acks=1)
    assert partition.ends().flushed == 2
    orders.append_many("orders", [b"x"] * 10)
    assert partition.ends().flushed == 22


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize(
    "wrong", [{"value": "text"}, {"value": 5}, {"value": b"", "key": "text"}, {"value": b"", "key": 1.5}]
)
def test_a_wrong_type_is_a_type_error_and_appends_nothing(
    orders: klamm.Store, wrong: dict[str, Any], acks: Any, count: int
) -> None:
    orders.topics.create("users", partitions=count)
    with pytest.raises(TypeError):
        orders.append("users", wrong["value"], key=wrong.get("key"), acks=acks)
    assert orders.topics.describe("users").count == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"headers": [("h", 7)]}, TypeError),
        ({"headers": [(1, b"x")]}, TypeError),
        ({"timestamp": "now"}, TypeError),
        ({"timestamp": datetime(2024, 1, 1)}, ValueError),  # noqa: DTZ001
        ({"timestamp": -5}, ValueError),
        ({"acks": 2}, klamm.InvalidSetting),
        ({"acks": "some"}, klamm.InvalidSetting),
        ({"acks": None}, klamm.InvalidSetting),
        ({"partition": "0"}, klamm.UnknownTopic),
    ],
)
def test_a_wrong_option_is_an_error_and_appends_nothing(
    orders: klamm.Store, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        orders.append("orders", b"x", **options)
    assert orders.topics.describe("orders").count == 0


def test_a_topic_that_is_no_str_is_a_type_error(orders: klamm.Store) -> None:
    for topic in (None, b"orders", ["orders"]):
        for acks in (1, "all"):
            with pytest.raises(TypeError):
                orders.append(topic, b"x", acks=acks)  # type: ignore[call-overload]


def test_a_record_too_large_is_refused_and_the_next_one_is_not(orders: klamm.Store) -> None:
    orders.topics.create("small", settings={"max.message.bytes": 500})
    for acks in (1, "all"):
        with pytest.raises(
            klamm.RecordTooLarge, match=r"small-0 .* value of 500.*raise the topic's max\.message\.bytes"
        ):
            orders.append("small", b"x" * 500, acks=acks)
        orders.append("small", b"fits", acks=acks)
    with pytest.raises(klamm.RecordTooLarge):
        orders.append("orders", bytes(1 << 21), acks=1)
    assert values(orders, "small") == [b"fits", b"fits"] and values(orders) == []


def test_keys_choose_partitions_as_in_kafka_and_keyless_records_take_turns(orders: klamm.Store) -> None:
    orders.topics.create("users", partitions=3)
    keys = [b"user-%d" % n for n in range(20)]
    for key in keys:
        orders.append("users", b"x", key=key, acks=1)
    assert all(record.partition == partition_for(record.key, 3) for record in everything(orders, "users"))
    before = [partition.end for partition in orders.topics.describe("users").partitions]
    for _ in range(6):
        orders.append("users", b"x", acks=1)
    after = [partition.end for partition in orders.topics.describe("users").partitions]
    assert [now - then for now, then in zip(after, before, strict=True)] == [2, 2, 2]


def test_the_quick_way_for_one_record_notices_that_the_topic_changed(orders: klamm.Store) -> None:
    orders.append("orders", b"x", acks=1)
    orders.append("orders", b"x", acks=1)
    orders.topics.alter("orders", {"message.timestamp.type": "LogAppendTime"})
    for _ in range(2):
        orders.append("orders", b"stamped", acks=1)
    raw = orders._acquired().topic("orders").partition(0).reader(0).read()
    assert [header.log_append_time for header in walk(raw)] == [False, False, True, True]
    orders.topics.alter("orders", reset=["message.timestamp.type"])
    orders.topics.add_partitions("orders", 3)
    for n in range(30):
        orders.append("orders", b"keyed", key=b"user-%d" % n, acks=1)
    keyed = [record for record in everything(orders) if record.key is not None]
    assert len(keyed) == 30 and all(record.partition == partition_for(record.key, 3) for record in keyed)


def test_log_append_time_is_stamped_on_single_appends_too(orders: klamm.Store) -> None:
    orders.topics.create("stamped", settings={"message.timestamp.type": "LogAppendTime"})
    orders.append("stamped", b"x", timestamp=1, acks=1)
    orders.append_many("stamped", [(None, b"y", None, 2)], acks=1)
    now = datetime.now(UTC).timestamp() * 1000
    assert all(abs(record.timestamp - now) < 60_000 for record in everything(orders, "stamped"))


def test_threads_append_to_one_store_without_losing_a_record(orders: klamm.Store) -> None:
    def append_some(name: int) -> None:
        for n in range(200):
            orders.append("orders", b"%d %d" % (name, n), acks=1)

    threads = [threading.Thread(target=append_some, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    found = values(orders)
    for name in range(4):
        assert [value for value in found if value.startswith(b"%d " % name)] == [
            b"%d %d" % (name, n) for n in range(200)
        ]


# Appending many


def test_append_many_takes_tuples_and_values_and_says_where_they_went(orders: klamm.Store) -> None:
    done = orders.append_many("orders", [(b"a", b"1"), (None, b"2", [("h", b"x")]), (b"c", None, None, 77)])
    assert (done.topic, done.count, done.ranges) == ("orders", 3, {0: (range(3),)})
    assert orders.append_many("orders", (b"4", b"5")).ranges == {0: (range(3, 5),)}
    assert len(orders.append_many("orders", (b"%d" % n for n in range(25_000)))) == 25_000
    assert orders.append_many("orders", []).count == 0
    records = everything(orders)
    assert [record.value for record in records[:5]] == [b"1", b"2", None, b"4", b"5"]
    assert records[1].headers == (("h", b"x"),) and records[2].timestamp == 77
    assert [record.value for record in records[5:]] == [b"%d" % n for n in range(25_000)]


def test_append_many_fills_batches_up_to_max_message_bytes(orders: klamm.Store) -> None:
    orders.topics.create("small", settings={"max.message.bytes": 2000})
    done = orders.append_many("small", [(b"%d" % n, b"x" * 100) for n in range(1000)], acks=1)
    assert done.ranges == {0: (range(1000),)}
    assert [record.key for record in everything(orders, "small")] == [b"%d" % n for n in range(1000)]


def test_append_many_puts_keys_where_append_puts_them(orders: klamm.Store) -> None:
    orders.topics.create("users", partitions=5)
    records = [(b"user-%d" % (n % 50), b"%d" % n) for n in range(5000)]
    done = orders.append_many("users", records, acks=1)
    assert done.count == 5000 and sum(len(part) for ranges in done.ranges.values() for part in ranges) == 5000
    found = everything(orders, "users")
    assert all(record.partition == partition_for(record.key, 5) for record in found)
    for key in {key for key, _ in records}:
        assert [record.value for record in found if record.key == key] == [value for k, value in records if k == key]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_append_many_writes_fewer_bytes_when_it_compresses(orders: klamm.Store, codec: klamm.Compression) -> None:
    orders.append_many("orders", [b"the same again"] * 1000, compression=codec)
    assert values(orders) == [b"the same again"] * 1000
    if codec != "none":
        assert orders.topics.describe("orders").size < 8000


def test_bytes_that_do_not_compress_are_appended_as_they_are(orders: klamm.Store) -> None:
    noise = random.Random(1).randbytes((1 << 20) - 200)
    orders.append_many("orders", [noise], compression="gzip", acks=1)
    assert values(orders) == [noise]


def test_an_unknown_codec_names_those_there_are(orders: klamm.Store) -> None:
    with pytest.raises(klamm.InvalidSetting, match="zstd"):
        orders.append_many("orders", [b"x"], compression="zst")  # type: ignore[call-overload]
    with pytest.raises(klamm.InvalidSetting, match="1 to 9"):
        orders.append_many("orders", [b"x"], compression="gzip", compression_level=42)
    assert orders.topics.describe("orders").count == 0


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ((b"key", "text"), TypeError),
        (b"value among tuples", TypeError),
        ((b"key",), TypeError),
        ((b"key", b"v", None, 1, 5), TypeError),
        ((b"key", bytes(2 << 20)), klamm.RecordTooLarge),
        ((b"key", b"v", None, -7), ValueError),
    ],
)
def test_a_bad_record_among_many_is_named_and_those_before_it_are_appended(
    orders: klamm.Store, bad: Any, error: type[Exception], count: int
) -> None:
    orders.topics.create("users", partitions=count)
    records = [(b"key", b"%d" % n) for n in range(1000)]
    with pytest.raises(error) as caught:
        orders.append_many("users", [*records[:700], bad, *records[700:]])
    assert "record 700 of append_many" in str(caught.value) + "".join(caught.value.__notes__)
    assert values(orders, "users") == [b"%d" % n for n in range(700)]
    assert orders._acquired().topic("users").partition(partition_for(b"key", count)).ends().flushed == 700


@pytest.mark.parametrize("records", [b"bytes", "text", {"a": 1}, 5])
def test_append_many_wants_records(orders: klamm.Store, records: Any) -> None:
    with pytest.raises(TypeError):
        orders.append_many("orders", records)
