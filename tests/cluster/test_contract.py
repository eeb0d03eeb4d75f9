"""What a store does, whether it is a directory, a server or a Kafka cluster."""

from __future__ import annotations

import pickle
import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest

import klamm
from klamm.batch import partition_for
from klamm.errors import (
    Aborted,
    Closed,
    InvalidRecord,
    InvalidSetting,
    OffsetOutOfRange,
    RecordTooLarge,
    TopicExists,
    UnknownTopic,
)
from tests.interop.brokers import fresh
from tests.procs import PATIENCE, until

JUNE_MS = 1_780_000_000_000


def read(store: klamm.Store, topic: str, **options: Any) -> list[Any]:
    with store.consumer(topic, wait=0, **options) as consumer:
        return list(consumer)


def values(records: list[Any]) -> list[Any]:
    return [record.value for record in records]


# ---- topics


def test_topics_are_created_described_changed_and_deleted(store: klamm.Store) -> None:
    name = fresh("users")
    made = store.topics.create(name, 2, {"cleanup.policy": "compact"}, retention_ms=60_000)
    info = made.info()
    assert [part.number for part in info.partitions] == [0, 1] and info.count == 0
    assert dict(info.settings) == {"cleanup.policy": "compact", "retention.ms": "60000"}
    assert name in store.topics and name in list(store.topics) and name in store
    assert len(store.topics) >= 1
    with pytest.raises(TopicExists):
        store.topics.create(name)
    assert store.topics.create(name, exist_ok=True).name == name
    changed = store.topics.alter(name, {"retention.ms": "90s"}, reset="cleanup.policy")
    assert dict(changed.settings) == {"retention.ms": "90000"}
    assert len(made.add_partitions(3).partitions) == 3
    with pytest.raises(InvalidSetting):
        made.add_partitions(2)
    made.delete()
    assert name not in store.topics
    with pytest.raises(UnknownTopic):
        made.info()
    with pytest.raises(UnknownTopic):
        store.append(name, b"x")
    again = store.topics.create(name)
    assert again.info().id != info.id and again.append(b"x") == 0


@pytest.mark.parametrize(
    ("name", "options"), [("a", {"retention_ms": "soon"}), ("a", {"partitions": 0}), ("a", {"cleanup_policy": "keep"})]
)
def test_a_topic_that_cannot_be_is_refused(store: klamm.Store, name: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        store.topics.create(fresh(name), **options)


def test_an_unknown_topic_is_unknown(store: klamm.Store) -> None:
    for call in (
        lambda: store["nothing"],
        lambda: store.append("nothing", b"x"),
        lambda: store.topics.describe("nothing"),
        lambda: store.topics.delete("nothing"),
        lambda: store.consumer("nothing"),
        lambda: list(store.tail("nothing")),
    ):
        with pytest.raises(UnknownTopic):
            call()
    assert "nothing" not in store.topics


# ---- appending


def test_an_append_returns_its_offset_and_the_record_is_what_was_given(store: klamm.Store) -> None:
    topic = store.topics.create(fresh("orders"), retention_ms=-1)
    assert topic.append(b"a", key=b"k", headers={"n": b"1", "none": None}, timestamp=JUNE_MS) == 0
    assert topic.append(None, key=b"k", acks=1) == 1
    assert topic.append(b"", key=b"") == 2
    when = datetime(2026, 6, 1, tzinfo=UTC)
    assert topic.append(b"d", timestamp=when, headers=[("a", b"1"), ("a", "2")]) == 3
    assert topic.append(b"e", acks=0) is None
    until(lambda: topic.info().count == 5, "what nobody waits for arrives")
    found = read(store, topic.name)
    assert [(r.offset, r.key, r.value, list(r.headers)) for r in found] == [
        (0, b"k", b"a", [("n", b"1"), ("none", None)]),
        (1, b"k", None, []),
        (2, b"", b"", []),
        (3, None, b"d", [("a", b"1"), ("a", b"2")]),
        (4, None, b"e", []),
    ]
    assert [r.timestamp for r in found[::3]] == [JUNE_MS, int(when.timestamp() * 1000)]
    assert abs(found[1].timestamp - time.time() * 1000) < 600_000


def test_a_key_goes_to_the_same_partition_in_every_store(store: klamm.Store, topic: klamm.Topic) -> None:
    keys = [b"user-%d" % n for n in range(40)]
    for key in keys[:4]:
        topic.append(b"x", key=key)
    topic.append_many([(key, b"y") for key in keys])
    with store.producer() as producer:
        sent = [producer.send(topic.name, b"z", key=key) for key in keys]
    assert [delivery.partition for delivery in sent] == [partition_for(key, 4) for key in keys]
    with store.transaction() as tx:
        for key in keys:
            tx.send(topic.name, b"t", key=key)
    found = read(store, topic.name)
    assert len(found) == 124
    assert {record.partition == partition_for(record.key, 4) for record in found} == {True}


def test_append_many_says_where_records_are(store: klamm.Store, topic: klamm.Topic) -> None:
    appended = topic.append_many([(b"%d" % n, b"v%d" % n, {"h": b"1"}, JUNE_MS + n) for n in range(1000)])
    assert appended.count == len(appended) == 1000
    assert sum(len(part) for ranges in appended.ranges.values() for part in ranges) == 1000
    found = read(store, topic.name)
    assert sorted((r.partition, r.offset) for r in found) == sorted(
        (number, offset) for number, ranges in appended.ranges.items() for part in ranges for offset in part
    )
    assert {(r.key, r.value, r.timestamp) for r in found} == {(b"%d" % n, b"v%d" % n, JUNE_MS + n) for n in range(1000)}
    only = topic.append_many([b"a", b"b"], partition=2, compression="gzip")
    assert list(only.ranges) == [2]
    assert topic.append_many([]).count == 0


def test_what_cannot_be_appended_is_refused(store: klamm.Store, topic: klamm.Topic) -> None:
    compacted = store.topics.create(fresh("users"), settings={"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecord):
        compacted.append(b"x")
    with pytest.raises(UnknownTopic):
        topic.append(b"x", partition=4)
    with pytest.raises(TypeError):
        topic.append("text")  # type: ignore[call-overload]
    with pytest.raises(InvalidSetting):
        topic.append(b"x", acks=2)  # type: ignore[call-overload]
    small = store.topics.create(fresh("small"), settings={"max.message.bytes": 1000})
    with pytest.raises(RecordTooLarge):
        small.append(b"x" * 5000)
    assert small.info().count == compacted.info().count == topic.info().count == 0


def test_serdes_are_those_of_the_store_or_of_the_call(address: str) -> None:
    with klamm.open(address, serde="json") as store:
        topic = store.topics.create(fresh("orders"))
        topic.append({"id": 1}, key="a")
        topic.append_many([("b", {"id": 2})])
        topic.append("text", serde="str")
        with store.producer() as producer:
            producer.send(topic.name, [3], key="c")
        with store.consumer(topic.name, wait=0, on_bad_record="skip") as consumer:
            assert [(record.key, record.value) for record in consumer] == [
                ("a", {"id": 1}),
                ("b", {"id": 2}),
                ("c", [3]),
            ]
        assert [record.value for record in topic.tail(1)] == [[3]]


# ---- producers


def test_a_producer_keeps_the_order_of_a_partition_and_tells_what_became_of_each(
    store: klamm.Store, topic: klamm.Topic
) -> None:
    told: list[int | None] = []
    with store.producer(linger_ms=1, compression="zstd") as producer:
        sent = [producer.send(topic.name, b"%d" % n, key=b"%d" % (n % 7), headers={"n": b"x"}) for n in range(2000)]
        sent[0].add_done_callback(lambda delivery: told.append(delivery.offset))
        producer.flush()
        assert all(delivery.done and delivery.error is None for delivery in sent)
        offsets = [(delivery.partition, delivery.offset) for delivery in sent]
        assert sent[-1].result() == sent[-1].offset
    until(lambda: told, "the callback is called")
    assert told == [sent[0].offset] and len(set(offsets)) == 2000
    by_key: dict[bytes, list[int]] = {}
    for record in read(store, topic.name):
        by_key.setdefault(record.key, []).append(int(record.value))
    assert all(found == sorted(found) for found in by_key.values())
    with pytest.raises(Closed):
        producer.send(topic.name, b"late")


def test_a_producer_refuses_what_it_cannot_send_and_goes_on(store: klamm.Store, topic: klamm.Topic) -> None:
    with store.producer(serde="json", partitioner=lambda key, count: 3) as producer:
        with pytest.raises(UnknownTopic):
            producer.send("nothing", 1)
        with pytest.raises(UnknownTopic):
            producer.send(topic.name, 1, partition=4)
        with pytest.raises(TypeError):
            producer.send(topic.name, object())
        assert producer.send(topic.name, {"ok": 1}).partition == 3
    assert topic.info().partitions[3].end == 1
    with pytest.raises(TypeError):
        pickle.dumps(producer)


# ---- reading


@pytest.fixture
def ten(store: klamm.Store) -> klamm.Topic:
    """A topic of ten records, a second apart."""
    topic = store.topics.create(fresh("ten"), settings={"retention.ms": -1})
    topic.append_many([(b"k%d" % n, b"%d" % n, None, JUNE_MS + 1000 * n) for n in range(10)])
    return topic


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        ("latest", 10),
        (4, 4),
        (("last", 3), 7),
        (("timestamp", JUNE_MS + 4500), 5),
        (("timestamp", JUNE_MS + 99_000), 10),
        ({0: 6}, 6),
        (10, 10),
    ],
)
def test_a_consumer_starts_where_it_is_told(store: klamm.Store, ten: klamm.Topic, start: Any, first: int) -> None:
    assert values(read(store, ten.name, start=start)) == [b"%d" % n for n in range(first, 10)]


def test_an_offset_that_is_not_there_is_an_error(store: klamm.Store, ten: klamm.Topic) -> None:
    with store.consumer(ten.name, start=99, wait=0) as consumer:
        for _ in range(2):
            with pytest.raises(OffsetOutOfRange) as raised:
                consumer.poll()
        assert (raised.value.offset, raised.value.start, raised.value.end) == (99, 0, 10)
    assert read(store, ten.name, start=99, auto_offset_reset="latest") == []
    assert len(read(store, ten.name, start=99, auto_offset_reset="earliest")) == 10


def test_forms_serdes_and_bad_records(store: klamm.Store, ten: klamm.Topic) -> None:
    number = (None, lambda data: 10 // int(data))
    assert read(store, ten.name, form="values")[:2] == [b"0", b"1"]
    assert read(store, ten.name, form="tuples", key_serde="str")[0] == ("k0", b"0")
    assert read(store, ten.name, form="values", serde=number, on_bad_record="skip") == [10 // n for n in range(1, 10)]
    assert read(store, ten.name, form="values", serde=number, on_bad_record="raw")[:2] == [b"0", 10]
    with store.consumer(ten.name, serde=number, wait=0) as consumer:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                consumer.poll()
        consumer.seek(ten.name, 0, 8)
        assert values(list(consumer)) == [1, 1]


def test_batches_positions_seek_and_pause(store: klamm.Store, ten: klamm.Topic) -> None:
    with store.consumer(ten.name, wait=0) as consumer:
        batch = consumer.poll(3)
        assert (batch.topic, batch.partition, batch.begin, batch.end, len(batch)) == (ten.name, 0, 0, 3, 3)
        assert consumer.position(ten.name, 0).offset == 3 and consumer.assignment() == [(ten.name, 0)]
        assert values(consumer.poll(2)) == [b"3", b"4"]
        consumer.pause(ten.name)
        assert consumer.poll() == [] and consumer.position(ten.name, 0).offset == 5
        consumer.resume()
        for record in consumer:
            if record.offset == 6:
                break
        assert consumer.position(ten.name, 0).offset == 7
        assert values(consumer.poll()) == [b"7", b"8", b"9"]
        consumer.seek(ten.name, 0, 2)
        assert values(consumer.poll(1)) == [b"2"]
        consumer.seek_to("last 1")
        assert [len(batch) for batch in consumer.batches()] == [1]
        assert consumer.poll() == []
        with pytest.raises(UnknownTopic):
            consumer.seek("nothing", 0, 1)


def test_partitions_take_turns_and_nothing_is_left_out(store: klamm.Store, topic: klamm.Topic) -> None:
    for number in range(4):
        topic.append_many([b"%d" % n for n in range(3000)], partition=number)
    seen: dict[int, list[int]] = {number: [] for number in range(4)}
    with store.consumer(topic.name, wait=0) as consumer:
        for batch in consumer.batches(100):
            seen[batch.partition] += [int(record.value) for record in batch]
    assert all(found == list(range(3000)) for found in seen.values())
    assert values(read(store, topic.name, partitions=[2]))[:2] == [b"0", b"1"]


def test_a_consumer_waits_for_records_and_for_its_end(store: klamm.Store, topic: klamm.Topic) -> None:
    found: list[bytes] = []

    def run() -> None:
        for record in consumer:
            found.append(record.value)

    with store.consumer(topic.name, start="latest") as consumer:
        began = time.monotonic()
        assert consumer.poll(timeout=0.2) == []
        assert time.monotonic() - began > 0.15
        thread = threading.Thread(target=run)
        thread.start()
        topic.append(b"a")
        until(lambda: found == [b"a"], "the append is seen")
        topic.append_many([b"b"] * 3)
        until(lambda: len(found) == 4, "they are seen")
        consumer.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_topics_that_match_are_read_when_they_come(store: klamm.Store) -> None:
    word = fresh("match")
    store.topics.create(f"{word}-a").append(b"1")
    with store.consumer(pattern=f"{word}-.*", wait=PATIENCE) as consumer:
        records = iter(consumer)
        assert next(records).value == b"1"
        store.topics.create(f"{word}-b").append(b"2")
        assert next(records).value == b"2"


def test_a_partition_that_is_added_is_read_from_its_beginning(store: klamm.Store) -> None:
    topic = store.topics.create(fresh("grows"))
    with store.consumer(topic.name, start="latest", wait=PATIENCE) as consumer:
        assert consumer.poll(timeout=0) == []
        topic.add_partitions(2)
        topic.append(b"new", partition=1)
        assert next(iter(consumer)).value == b"new"


def test_tail(store: klamm.Store, ten: klamm.Topic) -> None:
    assert [record.value for record in ten.tail(3)] == [b"7", b"8", b"9"]
    assert len(list(ten.tail())) == 10
    assert [record.offset for record in ten.tail(start=8)] == [8, 9]
    following = ten.tail(1, follow=True)
    assert next(following).value == b"9"
    ten.append(b"more")
    assert next(following).value == b"more"


def test_offset_at_and_deleted_records(store: klamm.Store, ten: klamm.Topic) -> None:
    assert ten.offset_at(0, JUNE_MS + 2500) == 3
    assert ten.offset_at(0, JUNE_MS + 99_000) is None
    assert ten.delete_records({0: 4}) == {0: 4}
    assert ten.info().partitions[0].start == 4
    assert values(read(store, ten.name))[0] == b"4"
    with store.consumer(ten.name, start=1, wait=0) as consumer, pytest.raises(OffsetOutOfRange):
        consumer.poll()


def test_a_scan_is_the_records_as_arrow(store: klamm.Store, topic: klamm.Topic) -> None:
    pa = pytest.importorskip("pyarrow")
    topic.append_many([(b"k%d" % n, b"v%d" % n, {"h": b"x"}, JUNE_MS + n) for n in range(500)])
    with store.transaction() as tx:
        tx.send(topic.name, b"committed", partition=1)
    table = topic.scan().to_table()
    found = {(row["partition"], row["offset"]): row for row in table.to_pylist()}
    records = read(store, topic.name)
    assert len(found) == len(records) == 501
    for record in records:
        row = found[record.partition, record.offset]
        assert (row["key"], row["value"]) == (record.key, record.value)
        assert row["timestamp"].timestamp() * 1000 == pytest.approx(record.timestamp)
    some = topic.scan(partitions=1, start=2, columns=["offset", "value"]).to_table()
    assert some.schema.names == ["offset", "value"] and some["offset"][0].as_py() == 2
    back = topic.append_table(pa.table({"key": [b"a", None], "value": [b"1", b"2"], "partition": [0, 3]}))
    assert back.count == 2 and sorted(back.ranges) == [0, 3]


def test_sql(store: klamm.Store) -> None:
    pytest.importorskip("duckdb")
    topic = store.topics.create(fresh("orders").replace("-", "_"), 2)
    topic.append_many([(b"%d" % (n % 3), b'{"n": %d}' % n) for n in range(90)])
    (row,) = store.sql(f"select count(*) as n, count(distinct key) as keys from {topic.name}")
    assert row == {"n": 90, "keys": 3}


# ---- the store itself


def test_a_store_is_a_context_and_pickles(store: klamm.Store, address: str, topic: klamm.Topic) -> None:
    with pickle.loads(pickle.dumps(store)) as again:
        assert again.store_id == store.store_id and topic.name in again
        again.append(topic.name, b"x", partition=0)
    assert again.closed and address.partition("?")[0] in (again.path, store.path)
    with pytest.raises(Closed):
        again.append(topic.name, b"x")
    assert topic.info().count == 1


def test_a_read_only_store_takes_nothing(store: klamm.Store, address: str, topic: klamm.Topic) -> None:
    topic.append(b"x")
    with klamm.open(address, read_only=True) as looking:
        assert len(read(looking, topic.name)) == 1
        for call in (
            lambda: looking.append(topic.name, b"y"),
            looking.producer,
            looking.transaction,
            lambda: looking.topics.delete(topic.name),
        ):
            with pytest.raises(klamm.ReadOnly):
                call()


def test_an_aborted_transaction_is_not_read(store: klamm.Store, topic: klamm.Topic) -> None:
    with store.transaction() as tx:
        kept = tx.send(topic.name, b"kept", partition=0)
    assert tx.state == "committed" and kept.result() == 0
    tx = store.transaction()
    dropped = tx.send(topic.name, b"dropped", partition=0)
    tx.abort()
    assert tx.state == "aborted" and isinstance(dropped.error, Aborted)
    with store.transaction() as tx:
        tx.send(topic.name, b"again", partition=0)
    assert values(read(store, topic.name)) == [b"kept", b"again"]
    assert store.topics.describe(topic.name).partitions[0].end >= 4


def test_a_store_reads_what_it_has_just_committed(store: klamm.Store, topic: klamm.Topic, address: str) -> None:
    """Its own commits are there at once, whatever others write between and behind its records."""
    pytest.importorskip("pyarrow")
    with klamm.open(address) as other, store.consumer(topic.name, wait=0) as consumer:
        for number in range(1, 4):
            with store.transaction() as tx:
                for partition in range(4):
                    tx.send(topic.name, b"own", partition=partition)
                other.append(topic.name, b"behind", partition=0)
            assert len(read(store, topic.name)) == 5 * number
            with store.transaction() as tx:
                tx.send(topic.name, b"own", partition=3)
                tx.abort()
            assert topic.scan().to_table().num_rows == 5 * number
            assert len(list(consumer)) == 5


def test_a_transaction_of_others_hides_what_is_behind_it_and_no_longer(
    store: klamm.Store, topic: klamm.Topic, address: str
) -> None:
    with klamm.open(address) as other:
        with other.transaction(batch_bytes=64) as theirs:
            theirs.send(topic.name, bytes(500), partition=0)  # more than a batch: it is in the log soon
            until(lambda: topic.info().partitions[0].end == 1, "it is in the log")
            with store.transaction() as tx:
                tx.send(topic.name, b"own", partition=0)
                tx.send(topic.name, b"own", partition=1)
            assert values(read(store, topic.name)) == [b"own"]
        until(lambda: len(read(store, topic.name)) == 3, "both are there")
