"""klamm.testing: topics from files; and a clock that goes ahead, for all who look at it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaException, Producer

import klamm
from klamm import testing
from klamm.errors import Aborted, InvalidRecord, InvalidSetting, ReadOnly
from pytest_klamm import KlammServer
from tests.procs import children, until

HOUR_MS = 3_600_000
BOOT_ID_AT, AHEAD_AT = 16, 152  # in the file heads


def values(store: klamm.Store, topic: str = "orders") -> list[bytes | None]:
    with store.consumer(topic, wait=0) as consumer:
        return [record.value for record in consumer]


def ahead_s(store: klamm.Store) -> float:
    return (testing.now(store) - datetime.now(UTC)).total_seconds()


# ---- records from files


def test_a_file_of_yaml_makes_topics_and_records(store: klamm.Store, tmp_path: Path) -> None:
    path = tmp_path / "seed.yaml"
    path.write_text("""
        orders:
          partitions: 3
          settings: {retention.ms: 1000000, cleanup.policy: compact}
          records:
            - {key: alice, value: {item: coffee, count: 2}, headers: {source: web}, timestamp: 2026-11-15T10:00:00Z}
            - {key: bob, value: plain text, partition: 2, timestamp: 1700000000000}
            - {key: bob, value: null, partition: 2, timestamp: "2026-11-15T12:00:00+02:00"}
            - {key: {base64: /w==}, value: 7, partition: 0}
        invoices:
          - one
          - {value: [1, 2]}
        empty:
    """)
    assert testing.seed(store, path) == {"orders": 4, "invoices": 2, "empty": 0}
    assert list(store.topics) == ["empty", "invoices", "orders"]
    orders = store.topics.describe("orders")
    assert len(orders.partitions) == 3 and orders.settings["cleanup.policy"] == "compact"
    with store.consumer("orders", wait=0) as consumer:
        found = {record.key if record.value is not None else None: record for record in consumer}
    alice, bob = found[b"alice"], found[b"bob"]
    assert (alice.value, tuple(alice.headers)) == (b'{"item":"coffee","count":2}', (("source", b"web"),))
    assert alice.timestamp == int(datetime(2026, 11, 15, 10, tzinfo=UTC).timestamp() * 1000)
    assert (bob.partition, bob.timestamp) == (2, 1_700_000_000_000)
    assert found[b"\xff"].value == b"7" and abs(found[b"\xff"].timestamp / 1000 - time.time()) < 60
    assert (found[None].key, found[None].timestamp) == (b"bob", alice.timestamp)
    assert values(store, "invoices") == [b"one", b"[1,2]"]


def test_json_lines_go_to_one_topic_or_to_those_they_name(store: klamm.Store, tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text('{"value": "a"}\n\n{"topic": "others", "value": "b", "partition": 1, "offset": 7}\n')
    assert testing.seed(store, path) == {"orders": 1, "others": 1}
    assert len(store.topics.describe("others").partitions) == 2
    assert testing.seed(store, path, topic="others") == {"others": 2}
    assert sorted(values(store, "others")) == [b"a", b"b", b"b"]  # type: ignore[type-var]


def test_what_a_store_exports_seeds_another(store: klamm.Store, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from klamm.cli.main import app

    store.topics.create("orders")
    store.append("orders", b"\xff", key=b"k", headers=[("h", b"1")], timestamp=5)
    path = tmp_path / "orders.jsonl"
    done = CliRunner().invoke(app, ["export", "orders", "--to", str(path), "--store", store.path])
    assert done.exit_code == 0, done.output
    with klamm.open(tmp_path / "another") as another:
        testing.seed(another, path)
        [record] = another.tail("orders", 1)
        assert (record.key, record.value, tuple(record.headers), record.timestamp) == (b"k", b"\xff", (("h", b"1"),), 5)


@pytest.mark.parametrize(
    ("name", "text", "error", "says"),
    [
        ("a.yaml", "- 1", InvalidRecord, "has no topics"),
        ("a.yaml", "orders: [{}]", InvalidRecord, "orders: record 0: not a record"),
        ("a.yaml", "orders: {record: []}", InvalidRecord, "'record' is nothing that a topic has"),
        ("a.yaml", "orders: {records: 3}", InvalidRecord, "expected a list of records"),
        ("a.yaml", "orders: [{value: 1, keys: 2}]", InvalidRecord, "'keys' is not a field of a record"),
        ("a.yaml", "orders: [{value: 1, timestamp: soon}]", InvalidRecord, "timestamp is 'soon'"),
        ("a.yaml", "orders: [{value: {at: 2026-11-15}}]", InvalidRecord, "not JSON serializable.*quote it"),
        ("a.yaml", "orders: [", InvalidRecord, "is not YAML"),
        ("a.jsonl", '{"value": 1}\n{', InvalidRecord, "line 2: is not JSON"),
        ("a.txt", "", InvalidSetting, "neither YAML nor JSON lines"),
        ("a.yaml", "there: {partitions: 2}", InvalidSetting, "there: already exists"),
        ("a.yaml", "orders: [a, {value: b, partition: -1}]", InvalidRecord, "record 1: there is no partition -1"),
        ("a.yaml", "orders: {partitions: 2, records: [{value: a, partition: 2}]}", InvalidRecord, "no partition 2; it"),
        (
            "a.yaml",
            "orders: [a]\nthere: [{value: a, partition: 1}]",
            InvalidRecord,
            "there: record 0: there is no part",
        ),
        ("a.yaml", "a: [x]\nb: {settings: {cleanup.policy: compact}, records: [x]}", InvalidRecord, "0: has no key"),
        ("a.yaml", "orders: [a]\nb: {settings: {clenup.policy: compact}}", InvalidSetting, "b: clenup.policy"),
        ("a.yaml", "orders: [a]\nor/ders: [b]", klamm.InvalidTopic, "or/ders"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_whole(
    store: klamm.Store, tmp_path: Path, name: str, text: str, error: type[Exception], says: str
) -> None:
    store.topics.create("there")
    (tmp_path / name).write_text(text)
    with pytest.raises(error, match=f"(?s){says}"):
        testing.seed(store, tmp_path / name)
    assert list(store.topics) == ["there"]


def test_a_file_that_is_not_there_or_names_its_topics_itself(store: klamm.Store, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="cannot be read: No such file"):
        testing.seed(store, tmp_path / "none.yaml")
    (tmp_path / "a.yaml").write_text("orders: []")
    with pytest.raises(InvalidSetting, match="names its topics itself"):
        testing.seed(store, tmp_path / "a.yaml", topic="orders")


# ---- the clock


def test_retention_goes_by_the_clock_and_new_records_bear_it(store: klamm.Store) -> None:
    store.topics.create("orders", settings={"retention.ms": HOUR_MS})
    producer = store.producer()
    producer.send("orders", b"old").result(10)
    store.append("orders", b"old", acks=1)
    assert abs(testing.advance(store, hours=2) - datetime.now(UTC) - timedelta(hours=2)) < timedelta(minutes=1)
    assert values(store) == []
    store.append("orders", b"one", acks=1)
    store.append("orders", b"one, on disk")
    store.append("orders", b"one with headers", headers=[("h", b"1")])
    store.append_many("orders", [b"many"])
    store.append_table("orders", pa.table({"value": [b"of a table"]}))
    producer.send("orders", b"sent")
    producer.send("orders", b"sent now", timestamp=-1)
    producer.close()
    with store.transaction() as transaction:
        transaction.send("orders", b"in a transaction")
    store.maintain()
    with store.consumer("orders", wait=0) as consumer:
        found = list(consumer)
    assert len(found) == 8
    for record in found:
        assert abs(record.timestamp - testing.now(store).timestamp() * 1000) < 60_000, record
    testing.advance(store, minutes=61)
    assert values(store) == []


def test_times_that_are_relative_are_relative_to_it(store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append("orders", b"read")
    with store.consumer("orders", group="billing", wait=0) as consumer:
        assert [record.value for record in consumer] == [b"read"]
        consumer.commit()
    store.append("orders", b"old")
    testing.advance(store, hours=2)
    store.append("orders", b"new")
    with store.consumer("orders", start=timedelta(hours=1), wait=0) as consumer:
        assert [record.value for record in consumer] == [b"new"]
    assert store.scan("orders", start="1h").to_table()["value"].to_pylist() == [b"new"]
    [offset] = store.groups.describe("billing").offsets
    assert offset.lag == 2 and offset.lag_ms is not None and offset.lag_ms >= 2 * HOUR_MS


def test_tombstones_go_by_it(store: klamm.Store) -> None:
    store.topics.create("users", settings={"cleanup.policy": "compact", "delete.retention.ms": HOUR_MS})
    store.append("users", b"x", key=b"alice")
    store.append("users", None, key=b"alice")
    store.compact(force=True)
    assert values(store, "users") == [None]
    testing.advance(store, hours=2)
    store.compact(force=True)
    assert values(store, "users") == []


def test_transactions_time_out_by_it(store: klamm.Store) -> None:
    store.topics.create("orders")
    transaction = store.transaction(timeout=60, batch_bytes=1)
    transaction.send("orders", b"never")
    testing.advance(store, minutes=2)
    with pytest.raises(Aborted):
        transaction.commit()
    assert values(store) == [] and list(store.transactions) == []


def test_a_member_that_may_come_back_is_awaited_by_it(store: klamm.Store) -> None:
    store.topics.create("orders", partitions=2)
    options: dict[str, Any] = {"group": "billing", "wait": 0, "rejoin_timeout": timedelta(hours=1)}
    with store.consumer("orders", **options, member="a") as one:
        with store.consumer("orders", **options, member="b") as other:
            until(lambda: one.poll() is not None and other.poll() is not None and len(one.assignment()) == 1, "a share")
        one.poll()
        assert len(one.assignment()) == 1, "b may come back"
        testing.advance(store, hours=2)
        until(lambda: one.poll() is not None and len(one.assignment()) == 2, "all of it")


def test_every_process_sees_it(store: klamm.Store) -> None:
    store.topics.create("orders")
    testing.advance(store, hours=2)

    def act() -> float:
        with klamm.open(store.path) as mine:
            mine.append("orders", b"1", acks=1)
            seen = ahead_s(mine)
            testing.advance(mine, hours=1)
            return seen

    with children() as start:
        assert start(act).answer() == pytest.approx(7200, abs=60)
    assert ahead_s(store) == pytest.approx(3 * 3600, abs=60)
    [record] = store.tail("orders", 1)
    assert record.timestamp / 1000 == pytest.approx(time.time() + 7200, abs=60)


def test_it_does_not_go_back_and_not_in_a_store_that_is_only_read(store: klamm.Store) -> None:
    with pytest.raises(InvalidSetting, match="does not go back"):
        testing.advance(store, hours=-1)
    with klamm.open(store.path, read_only=True) as reader:
        with pytest.raises(ReadOnly):
            testing.advance(reader, hours=1)
        testing.advance(store, hours=1)
        assert ahead_s(reader) == pytest.approx(3600, abs=60)


@pytest.mark.parametrize("where", [BOOT_ID_AT, AHEAD_AT, AHEAD_AT + 8], ids=["another boot", "damage", "its check"])
def test_it_is_the_true_time_again_after_a_boot_and_after_damage(tmp_path: Path, where: int) -> None:
    with klamm.open(tmp_path / "store") as store:
        testing.advance(store, hours=2)
    with (tmp_path / "store" / "heads").open("r+b") as heads:
        heads.seek(where)
        byte = heads.read(1)[0]
        heads.seek(where)
        heads.write(bytes([byte ^ 4]))
    with klamm.open(tmp_path / "store") as store:
        assert ahead_s(store) == pytest.approx(0, abs=60)
        testing.advance(store, hours=1)
        assert ahead_s(store) == pytest.approx(3600, abs=60)


# ---- the server's


def test_retention_of_what_a_kafka_client_sent(klamm_server: KlammServer) -> None:
    producer = Producer({"bootstrap.servers": klamm_server.address})
    producer.produce("orders", b"old")
    assert producer.flush(20) == 0
    klamm_server.advance(days=8)
    assert values(klamm_server.store) == []


def test_a_transaction_of_a_kafka_client_times_out_by_it(klamm_server: KlammServer) -> None:
    klamm_server.store.topics.create("orders")
    settings = {"bootstrap.servers": klamm_server.address, "transactional.id": "t", "transaction.timeout.ms": 60_000}
    producer = Producer(settings)
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("orders", b"never")
    assert producer.flush(20) == 0
    klamm_server.advance(minutes=2)
    assert list(klamm_server.store.transactions) == []
    with pytest.raises(KafkaException):
        producer.commit_transaction(20)
    assert values(klamm_server.store) == []


def test_a_session_ends_by_it_and_the_member_joins_again(klamm_server: KlammServer) -> None:
    klamm_server.store.topics.create("orders")
    assigned, lost = [], []
    consumer = Consumer({"bootstrap.servers": klamm_server.address, "group.id": "billing"})
    consumer.subscribe(
        ["orders"],
        on_assign=lambda _, places: assigned.append(places),
        on_revoke=lambda _, places: lost.append(places),
        on_lost=lambda _, places: lost.append(places),
    )
    try:
        until(lambda: consumer.poll(0.05) is None and len(assigned) == 1, "its partitions")
        klamm_server.advance(seconds=30)
        assert consumer.poll(0.2) is None and not lost, "its session lasts for 45 s"
        klamm_server.advance(minutes=1)
        until(lambda: consumer.poll(0.05) is None and len(lost) == 1 and len(assigned) == 2, "it joins again")
    finally:
        consumer.close()
