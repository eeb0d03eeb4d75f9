"""What committed transactions have read and written is known for a time, if somebody wants to know."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import klamm
import klamm.aio
from klamm.errors import NotAStore
from klamm.kafka.error_codes import ErrorCode
from klamm.store import lineage
from klamm.types import InputRange, OutputRange
from tests.kafka.producing import Client, serving
from tests.procs import children


@pytest.fixture
def store(store: klamm.Store) -> klamm.Store:
    store.topics.create("t", 3)
    store.topics.create("out", 2)
    store.append_many("t", [b"%d" % n for n in range(6)], partition=0)
    store.alter({"lineage.retention.ms": 3_600_000})
    return store


def records(store: klamm.Store, topic: str = "out", partition: int = 0) -> list[klamm.Record]:
    with store.consumer(topic, partitions=[partition], wait=0) as consumer:
        return list(consumer)


def move(store: klamm.Store, count: int, *partitions: int, name: str | None = None) -> None:
    """A transaction from `t` to `out`."""
    with store.consumer("t", group="g", wait=0) as consumer, consumer.transaction(name) as tx:
        batch = consumer.poll(max_records=count)
        for record in batch:
            for partition in partitions:
                tx.send("out", record.value, partition=partition)
        tx.commit_offsets(batch)


def rows(store: klamm.Store) -> int:
    return int(store._acquired().catalog.database.read("SELECT count(*) FROM lineage")[0][0])


def test_a_record_leads_to_what_its_transaction_has_read_and_written(store: klamm.Store) -> None:
    move(store, 2, 0, 1)
    move(store, 3, 0, name="mover")
    first, second = records(store)[0], records(store)[2]
    found = store.lineage(first)
    assert found is not None
    assert found.inputs == (InputRange("g", "t", 0, 0, 2),)
    assert found.outputs == (OutputRange("out", 0, 0, 2), OutputRange("out", 1, 0, 2)) and found.name is None
    assert store.lineage(records(store)[1]) == found == store.lineage(records(store, partition=1)[1])
    later = store.lineage(second)
    assert later is not None and later.name == "mover"
    assert later.inputs == (InputRange("g", "t", 0, 2, 5),) and later.outputs == (OutputRange("out", 0, 3, 6),)
    assert later.ended_ms >= found.ended_ms > 0
    assert store.lineage(records(store, "t")[0]) is None, "it came without a transaction"
    assert store.check().ok


def test_records_of_others_in_between_belong_to_others(store: klamm.Store) -> None:
    one, two = (store.transaction(batch_bytes=1) for _ in range(2))
    for tx, value in ((one, b"1"), (two, b"2"), (one, b"1"), (two, b"2")):
        tx.send("out", value, partition=0)
    two.commit()
    one.commit()
    by_value = {record.value: store.lineage(record) for record in records(store)}
    assert by_value[b"1"] is not None and by_value[b"2"] is not None
    assert by_value[b"1"].producer_id != by_value[b"2"].producer_id
    assert by_value[b"1"].outputs == (OutputRange("out", 0, 0, 5),), "up to where the log ended when it was decided"
    assert by_value[b"2"].outputs == (OutputRange("out", 0, 1, 4),)


def test_nothing_is_kept_unless_it_is_asked_for(store: klamm.Store) -> None:
    store.alter(reset=["lineage.retention.ms"])
    move(store, 2, 0)
    assert store.settings()["lineage.retention.ms"] == "0"
    assert store.lineage(records(store)[0]) is None and rows(store) == 0


def test_what_is_aborted_or_skipped_is_not_told(store: klamm.Store) -> None:
    for number in (1, 1, 2):
        with store.transaction(batch_bytes=1) as tx:
            tx.once("loader", number)
            tx.send("out", b"x", partition=0)
            if number == 2:
                tx.abort()
    assert rows(store) == 1


def test_another_process_sees_the_setting_and_the_rows(store: klamm.Store, path: Path) -> None:
    def work() -> None:
        with klamm.open(path) as mine:
            move(mine, 2, 0)

    with children() as start:
        start(work).answer()
    found = store.lineage(records(store)[0])
    assert found is not None and found.inputs == (InputRange("g", "t", 0, 0, 2),)


@pytest.mark.parametrize("bumps", [False, True], ids=["older", "kip-890"])
def test_transactions_of_clients_of_the_server_are_told_apart(store: klamm.Store, bumps: bool) -> None:
    with serving(store) as coordinator:
        client = Client(store, coordinator, bumps=bumps)
        assert client.init() is ErrorCode.NONE
        for offset in (2, 5):
            assert client.send(1, value=b"%d" % offset) is ErrorCode.NONE
            assert client.commit_offsets("g", offset) is ErrorCode.NONE
            assert client.end(commit=True) is ErrorCode.NONE
            assert client.ask_end(commit=True).error in (ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE)
    found = [store.lineage(record) for record in records(store, "t", 1)]
    assert [None if each is None else (each.name, each.inputs, each.outputs) for each in found] == [
        ("billing", (InputRange("g", "t", 0, 0, 2),), (OutputRange("t", 1, 0, 1),)),
        ("billing", (InputRange("g", "t", 0, 2, 5),), (OutputRange("t", 1, 2, 3),)),
    ]
    assert rows(store) == 2


def test_old_rows_go_and_there_are_never_too_many(store: klamm.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "KEPT", 3)
    for _ in range(5):
        with store.transaction() as tx:
            tx.send("out", b"x", partition=0)
    assert rows(store) == 3
    store.maintain()
    assert rows(store) == 3
    store._acquired().heads.advance(3_700_000)
    store.maintain()
    assert rows(store) == 0
    with store.transaction() as tx:
        tx.send("out", b"x", partition=0)
    store.alter({"lineage.retention.ms": 0})
    store.maintain()
    assert rows(store) == 0, "nor is anything kept when it is switched off"


def test_a_deleted_topic_has_no_name_any_more(store: klamm.Store) -> None:
    move(store, 2, 0)
    store.topics.delete("t")
    found = store.lineage(records(store)[0])
    assert found is not None and found.inputs == (InputRange("g", None, 0, 0, 2),)


def test_a_damaged_row_is_an_error(store: klamm.Store) -> None:
    move(store, 2, 0)
    database = store._acquired().catalog.database
    with database.db_lock(), database.transaction() as execute:
        execute("UPDATE lineage SET epoch = 77")
    with pytest.raises(NotAStore, match="lineage"):
        store.lineage(records(store)[0])
    assert "lineage: a row of producer id" in store.check().breaches[0].message


def test_in_asyncio_it_is_the_same(store: klamm.Store, path: Path) -> None:
    move(store, 2, 0)
    record = records(store)[0]

    async def ask() -> klamm.Lineage | None:
        async with klamm.aio.open(path) as mine:
            return await mine.lineage(record)

    assert asyncio.run(ask()) == store.lineage(record) is not None
