"""Which timestamps records may have: the same limits at every Python door, and nothing of a refused record stays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.cli.main import run
from klamm.errors import InvalidTimestamp
from klamm.testing import advance

HOUR = 3600 * 1000
LIMITS = {"message.timestamp.before.max.ms": HOUR, "message.timestamp.after.max.ms": 2 * HOUR}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def store(path: Path) -> Iterator[klamm.Store]:
    with klamm.open(path) as store:
        store.topics.create("usual")
        store.topics.create("many", partitions=3)
        store.topics.create("strict", settings=LIMITS)
        store.topics.create("stamped", settings={"message.timestamp.type": "LogAppendTime"})
        yield store


def stamps(store: klamm.Store, topic: str) -> list[int]:
    with store.consumer(topic, wait=0) as consumer:
        return [record.timestamp for record in consumer]


def send(store: klamm.Store, topic: str, stamp: int) -> None:
    with store.producer() as producer:
        producer.send(topic, b"v", timestamp=stamp)


def send_in_transaction(store: klamm.Store, topic: str, stamp: int) -> None:
    with store.transaction() as transaction:
        transaction.send(topic, b"v", timestamp=stamp)


def append_table(store: klamm.Store, topic: str, stamp: int) -> None:
    pa = pytest.importorskip("pyarrow")
    store.append_table(topic, pa.table({"value": [b"v"], "timestamp": [stamp]}))


DOORS: dict[str, Callable[[klamm.Store, str, int], Any]] = {
    "append": lambda store, topic, stamp: store.append(topic, b"v", timestamp=stamp),
    "append with headers": lambda store, topic, stamp: store.append(topic, b"v", headers=[("h", b"")], timestamp=stamp),
    "append_many": lambda store, topic, stamp: store.append_many(topic, [b"v"], timestamp=stamp),
    "append_many, by record": lambda store, topic, stamp: store.append_many(topic, [(b"k", b"v", None, stamp)]),
    "append_table": append_table,
    "producer": send,
    "transaction": send_in_transaction,
}


@pytest.mark.parametrize("door", DOORS)
def test_a_record_too_far_from_now_is_refused_and_one_that_is_near_enough_is_taken(
    store: klamm.Store, door: str
) -> None:
    put, now = DOORS[door], now_ms()
    for topic, good, bad in (
        ("usual", (0, now, now + HOUR - 60_000), (now + HOUR + 60_000, 1 << 62)),
        ("strict", (now - HOUR + 60_000, now + 2 * HOUR - 60_000), (0, now - HOUR - 60_000, now + 2 * HOUR + 60_000)),
        ("stamped", (0, now, 1 << 62), ()),
    ):
        for stamp in good:
            put(store, topic, stamp)
        for stamp in bad:
            with pytest.raises(InvalidTimestamp, match=r"message\.timestamp\.(before|after)\.max\.ms"):
                put(store, topic, stamp)
        found = stamps(store, topic)
        assert found == list(good) if topic != "stamped" else len(found) == len(good)


@pytest.mark.parametrize("topic", ["usual", "many"])
def test_append_many_appends_what_comes_before_a_refused_record_and_names_it(store: klamm.Store, topic: str) -> None:
    rows = [(b"k", b"%d" % number, None, now_ms()) for number in range(10)]
    rows[6] = (b"k", b"late", None, 1 << 61)
    with pytest.raises(InvalidTimestamp, match="record 6 of append_many"):
        store.append_many(topic, rows)
    with store.consumer(topic, wait=0) as consumer:
        assert [record.value for record in consumer] == [b"%d" % number for number in range(6)]


def test_append_table_appends_what_comes_before_a_refused_row_and_names_it(store: klamm.Store) -> None:
    pa = pytest.importorskip("pyarrow")
    rows = [now_ms()] * 5 + [1 << 61] + [now_ms()]
    with pytest.raises(InvalidTimestamp, match="usual: row 5"):
        store.append_table("usual", pa.table({"value": [b"v"] * 7, "timestamp": rows}))
    assert len(stamps(store, "usual")) == 5


def test_a_producer_refuses_a_record_when_it_is_sent_and_the_others_of_its_batch_are_appended(
    store: klamm.Store,
) -> None:
    with store.producer(linger_ms=10_000) as producer:
        producer.send("usual", b"before")
        with pytest.raises(InvalidTimestamp):
            producer.send("usual", b"late", timestamp=1 << 61)
        producer.send("usual", b"after")
    assert len(stamps(store, "usual")) == 2


def test_the_limits_are_those_of_the_moment_of_the_append(store: klamm.Store) -> None:
    store.append("usual", b"v", acks=1)  # the fast path is in use
    stamp = now_ms() + 3 * HOUR
    with pytest.raises(InvalidTimestamp):
        store.append("usual", b"v", timestamp=stamp)
    store.topics.alter("usual", {"message.timestamp.after.max.ms": 4 * HOUR})
    store.append("usual", b"v", timestamp=stamp)
    store.topics.alter("usual", {}, reset=["message.timestamp.after.max.ms"])
    with pytest.raises(InvalidTimestamp):
        store.append("usual", b"v", timestamp=stamp)
    advance(store, hours=3)
    store.append("usual", b"v", timestamp=stamp)


def test_the_command_line_refuses_what_the_library_refuses(
    store: klamm.Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KLAMM_STORE", store.path)
    lines = tmp_path / "records.jsonl"
    lines.write_text(f'{{"value": "a", "timestamp": {now_ms()}}}\n{{"value": "b", "timestamp": {1 << 61}}}\n')
    assert run(["import", "usual", str(lines)]) == 1
    assert "message.timestamp.after.max.ms" in capsys.readouterr().err
    assert (1 << 61) not in stamps(store, "usual")
