"""Transactions as a program uses them: all or nothing, with progress of groups, and rewound when they are aborted."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

import klamm
import klamm.aio
from klamm.disk import _os
from klamm.errors import (
    Aborted,
    DiskFull,
    Fenced,
    Forked,
    GroupError,
    InvalidSetting,
    ReadOnly,
    RecordTooLarge,
    TransactionError,
    UnknownTopic,
)
from klamm.store.transaction_state import MAX_EPOCH
from tests.client.conftest import values_in
from tests.procs import children, until


@pytest.fixture
def store(store: klamm.Store) -> klamm.Store:
    """With topics `orders`, of one partition, and `invoices`, of three."""
    store.topics.create("orders")
    store.topics.create("invoices", 3)
    return store


def stands(consumer: klamm.Consumer, topic: str = "orders", partition: int = 0) -> int:
    found = consumer.committed(topic, partition)
    return -1 if found is None else found.offset


def commits_to_disk(store: klamm.Store) -> int:
    """Writes of this process, and connections."""
    return store._acquired().catalog.database._generation


# ---- all or nothing


def test_what_is_sent_is_seen_when_the_block_is_left_and_not_before(store: klamm.Store) -> None:
    with store.transaction(serde="json", batch_bytes=100) as tx:
        sent = [tx.send("invoices", {"n": n}, key=f"k{n}") for n in range(50)]
        tx.send("orders", "one")
        assert tx.state == "open"
        assert values_in(store, "invoices") == [] == values_in(store), "though some batches were full"
        assert store.topics.describe("invoices").count > 0
        assert not any(delivery.done for delivery in sent)
    assert tx.state == "committed"
    assert sorted(value["n"] for value in values_in(store, "invoices", serde="json")) == list(range(50))
    assert values_in(store, serde="json") == ["one"]
    found: dict[tuple[int, int | None], Any] = {}
    with store.consumer("invoices", wait=0, serde="json") as consumer:
        for record in consumer:
            found[record.partition, record.offset] = record.value["n"]
    assert [found[delivery.partition, delivery.result(0)] for delivery in sent] == list(range(50))


def test_an_exception_aborts_and_nothing_is_ever_seen(store: klamm.Store) -> None:
    tx = store.transaction(batch_bytes=1)
    delivery = tx.send("orders", b"no")
    assert store.topics.describe("orders").count == 1, "it is in the log"
    with pytest.raises(ZeroDivisionError), tx:
        raise ZeroDivisionError
    assert tx.state == "aborted"
    assert isinstance(delivery.error, Aborted)
    store.append("orders", b"yes")
    assert values_in(store) == [b"yes"]


def test_commit_and_abort_may_be_called_and_end_it(store: klamm.Store) -> None:
    with store.transaction() as tx:
        tx.send("orders", b"1")
        tx.commit()
        assert values_in(store) == [b"1"]
        for act in (tx.commit, lambda: tx.send("orders", b"2"), lambda: tx.commit_offsets(klamm.Batch())):
            with pytest.raises(TransactionError, match="over: committed"):
                act()
        with pytest.raises(TransactionError):
            tx.abort()
    with store.transaction() as tx:
        tx.send("orders", b"2")
        tx.abort()
        tx.abort()
        with pytest.raises(TransactionError, match="over: aborted"):
            tx.commit()
    with store.transaction() as tx:
        tx.send("orders", b"3")
    assert values_in(store) == [b"1", b"3"]


def test_records_of_a_partition_keep_their_order_over_many_batches(store: klamm.Store) -> None:
    with store.transaction(batch_bytes=50, compression="lz4") as tx:
        for n in range(300):
            tx.send("orders", b"%d" % n)
    assert values_in(store) == [b"%d" % n for n in range(300)]


def test_an_empty_transaction_leaves_no_trace(store: klamm.Store) -> None:
    before = commits_to_disk(store)
    with store.transaction() as tx:
        pass
    with pytest.raises(KeyError), store.transaction():
        raise KeyError
    assert tx.state == "committed"
    assert commits_to_disk(store) == before and list(store.transactions) == []


def test_a_small_transaction_costs_two_writes_to_the_database_and_one_sync(store: klamm.Store) -> None:
    for _ in range(3):
        with store.transaction() as tx:
            tx.send("orders", b"x")
    before = commits_to_disk(store)
    _os.trap(1 << 60, kinds=_os.SYNC)
    try:
        with store.transaction() as tx:
            for n in range(10):
                tx.send("orders", b"%d" % n)
        assert _os.steps_taken() == 1
    finally:
        _os.trap(0)
    assert commits_to_disk(store) == before + 2
    assert len({info.producer_id for info in store.transactions}) == 1, "the producer id is used again"


def test_a_producer_id_is_replaced_before_its_epochs_run_out(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("klamm.client.transaction.MAX_EPOCH", 3)
    for name in (None, "billing"):
        for n in range(8):
            with store.transaction(name) as tx:
                tx.send("orders", b"%d" % n)
    assert values_in(store) == [b"%d" % n for n in range(8)] * 2
    assert all(info.epoch < 3 for info in store.transactions)
    assert MAX_EPOCH > 1000


def test_keyless_records_of_small_transactions_go_round(store: klamm.Store) -> None:
    for n in range(30):
        with store.transaction() as tx:
            tx.send("invoices", b"%d" % n)
    assert [partition.count for partition in store.topics.describe("invoices").partitions] == [
        20,
        20,
        20,
    ]  # and a marker each


def test_many_transactions_in_many_threads_do_not_mix(store: klamm.Store) -> None:
    def work(thread: int) -> None:
        for n in range(15):
            with store.transaction(batch_bytes=60) as tx:
                for m in range(6):
                    tx.send("invoices", b"%d-%d-%d" % (thread, n, m), partition=m % 3)
                if n % 3 == 2:
                    tx.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    want = [b"%d-%d-%d" % (thread, n, m) for thread in range(4) for n in range(15) for m in range(6) if n % 3 != 2]
    found = values_in(store, "invoices")
    assert sorted(found) == sorted(want)
    for number in range(4):
        mine = [value for value in found if value.startswith(b"%d-" % number) and value.endswith(b"-0")]
        assert mine == sorted(mine, key=lambda value: int(value.split(b"-")[1]))


def test_timestamps_headers_and_partitioners_are_as_with_a_producer(store: klamm.Store) -> None:
    with store.transaction(partitioner=lambda key, count: 2) as tx:
        tx.send("invoices", b"v", key=b"k", headers=[("h", b"1")], timestamp=1_700_000_000_000)
    with store.consumer("invoices", wait=0) as consumer:
        (record,) = list(consumer)
    assert (record.partition, record.key, record.timestamp) == (2, b"k", 1_700_000_000_000)
    assert record.headers == (("h", b"1"),)


def test_a_log_that_stamps_its_records_tells_the_time(store: klamm.Store) -> None:
    store.topics.create("stamped", settings={"message.timestamp.type": "LogAppendTime"})
    with store.transaction() as tx:
        delivery = tx.send("stamped", b"v", timestamp=5)
    with store.consumer("stamped", wait=0) as consumer:
        (record,) = list(consumer)
    assert record.timestamp == delivery.timestamp > 5


# ---- names


def test_a_newer_store_of_a_name_fences_the_older_for_good(store: klamm.Store, path: Path) -> None:
    with klamm.open(path) as newer:
        older_tx = store.transaction("billing", batch_bytes=1)
        older_tx.send("orders", b"older")
        with newer.transaction("billing") as tx:
            assert store.topics.describe("orders").count == 2, "the older one was aborted at once"
            tx.send("orders", b"newer")
            with pytest.raises(Fenced):
                older_tx.send("orders", b"again")
            with pytest.raises(TransactionError):
                older_tx.commit()
        assert older_tx.state == "aborted"
        with pytest.raises(Fenced):
            store.transaction("billing")
        with newer.transaction("billing") as tx:
            tx.send("orders", b"newer still")
    with klamm.open(path) as newest, newest.transaction("billing") as tx:
        tx.send("orders", b"newest")
    assert values_in(store) == [b"newer", b"newer still", b"newest"]


def test_an_older_one_that_was_idle_is_fenced_when_it_goes_on(store: klamm.Store, path: Path) -> None:
    with store.transaction("billing") as tx:
        tx.send("orders", b"1")
    with klamm.open(path) as newer:
        newer.transaction("billing").abort()
        with pytest.raises(Fenced), store.transaction("billing") as tx:
            tx.send("orders", b"2")
    with pytest.raises(Fenced):
        store.transaction("billing")
    assert values_in(store) == [b"1"]


def test_an_older_producer_that_only_commits_offsets_is_fenced(store: klamm.Store, path: Path) -> None:
    store.append("orders", b"1")
    with klamm.open(path) as newer, store.consumer("orders", group="g", wait=0) as orders:
        tx = orders.transaction("billing")
        newer.transaction("billing").abort()
        tx.commit_offsets(orders.poll())
        with pytest.raises(Fenced):
            tx.commit()
        assert stands(orders) == -1


def test_a_second_one_of_a_name_in_the_same_store_ends_the_first(store: klamm.Store) -> None:
    first = store.transaction("billing", batch_bytes=1)
    first.send("orders", b"first")
    second = store.transaction("billing")
    with pytest.raises(Fenced):
        first.commit()
    second.send("orders", b"second")
    second.commit()
    with store.transaction("billing") as third:
        third.send("orders", b"third")
    assert values_in(store) == [b"second", b"third"]


def test_names_do_not_know_each_other(store: klamm.Store) -> None:
    with store.transaction("a") as one, store.transaction("b") as two:
        one.send("orders", b"1")
        two.send("orders", b"2")
    assert sorted(values_in(store)) == [b"1", b"2"]
    for name in ("", 7):
        with pytest.raises(TypeError):
            store.transaction(name)  # type: ignore[arg-type]


# ---- what goes wrong


def test_one_that_takes_too_long_is_aborted_by_others_and_told(store: klamm.Store, path: Path) -> None:
    tx = store.transaction(timeout=0.001, batch_bytes=1)
    tx.send("orders", b"late")
    until(lambda: (next(iter(store.transactions)).age_ms or 0) > 3, "time passes")
    store.maintain()
    with pytest.raises(Aborted):
        tx.send("orders", b"later")
    with pytest.raises(Aborted):
        tx.commit()
    assert tx.state == "aborted"
    with store.transaction() as tx:
        tx.send("orders", b"fine")
    assert values_in(store) == [b"fine"]


def test_a_name_whose_transaction_was_aborted_by_others_goes_on(store: klamm.Store) -> None:
    """Its row may be gone by then: nobody held it any more. That is no newer producer."""
    tx = store.transaction("billing", batch_bytes=1)
    tx.send("orders", b"late")
    assert store.transactions.abort(next(iter(store.transactions)).producer_id)
    with pytest.raises(Aborted):
        tx.commit()
    store.maintain()
    with store.transaction("billing") as tx:
        tx.send("orders", b"fine")
    assert values_in(store) == [b"fine"]


def test_a_reader_that_waits_in_front_of_a_dead_transaction_ends_it(store: klamm.Store, path: Path) -> None:
    """Nobody opens the store, or keeps house: the consumer itself does it."""

    def die() -> None:
        with klamm.open(path) as mine:
            tx = mine.transaction(batch_bytes=1)
            tx.send("orders", b"dead")
            os._exit(0)

    with store.consumer("orders", form="values") as consumer, children() as start:
        start(die).ended()
        store.append("orders", b"alive")
        assert list(consumer.poll(timeout=20)) == [b"alive"]


def test_an_error_that_was_caught_does_not_let_a_part_of_it_be_committed(store: klamm.Store) -> None:
    tx = store.transaction(batch_bytes=1)
    tx.send("orders", b"1")
    _os.trap(1, kinds=_os.WRITE, error=28)
    try:
        with pytest.raises(DiskFull):
            tx.send("orders", b"2")
    finally:
        _os.trap(0)
    with pytest.raises(Aborted) as refused:
        tx.send("orders", b"3")
    assert isinstance(refused.value.__cause__, DiskFull)
    with pytest.raises(Aborted):
        tx.commit()
    assert values_in(store) == [] and tx.state == "aborted"
    with store.transaction() as tx:
        tx.send("orders", b"4")
    assert values_in(store) == [b"4"]


def test_a_marker_that_cannot_be_written_is_written_by_the_next_one(
    store: klamm.Store, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tx = store.transaction()
    tx.send("orders", b"1")
    tx.send("invoices", b"1", partition=0)
    decide = tx._core.transactions.decide

    def decide_and_fill_the_disk(*arguments: Any, **options: Any) -> Any:
        decided = decide(*arguments, **options)
        _os.trap(1, kinds=_os.WRITE, error=28, repeat=True)
        return decided

    tx._core.transactions.decide = decide_and_fill_the_disk  # type: ignore[method-assign]
    try:
        tx.commit()
    finally:
        _os.trap(0)
        tx._core.transactions.decide = decide  # type: ignore[method-assign]
    assert tx.state == "committed" and "committed" in caplog.text
    assert values_in(store) == [], "not yet"
    with store.transaction() as following:
        following.send("orders", b"2")
    store.maintain()
    assert values_in(store) == [b"1", b"2"]
    assert values_in(store, "invoices") == [b"1"]


def test_a_record_that_is_refused_can_be_left_out(store: klamm.Store) -> None:
    store.topics.create("small", settings={"max.message.bytes": 200})
    with store.transaction() as tx:
        with pytest.raises(RecordTooLarge):
            tx.send("small", b"x" * 300)
        with pytest.raises(UnknownTopic):
            tx.send("nowhere", b"x")
        with pytest.raises(UnknownTopic):
            tx.send("invoices", b"x", partition=3)
        with pytest.raises(TypeError):
            tx.send("small", 3)  # type: ignore[call-overload]
        tx.send("small", b"y")
    assert values_in(store, "small") == [b"y"]


def test_a_topic_that_is_deleted_meanwhile_aborts_it(store: klamm.Store) -> None:
    tx = store.transaction()
    tx.send("orders", b"1")
    tx.send("invoices", b"1")
    store.topics.delete("invoices")
    with pytest.raises(UnknownTopic):
        tx.commit()
    assert tx.state == "aborted" and values_in(store) == []


def test_options_of_a_transaction_that_are_invalid_are_refused(store: klamm.Store) -> None:
    with pytest.raises(InvalidSetting):
        store.transaction(timeout=0)
    with pytest.raises(TypeError):
        store.transaction(timeout="1s")  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        store.transaction(partitioner=3)  # type: ignore[call-overload]
    with pytest.raises(InvalidSetting):
        store.transaction(compression="zip")  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        store.transaction(acks=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(store.transaction())


def test_closing_the_store_aborts_what_is_open_and_leaves_no_rows(path: Path) -> None:
    with klamm.open(path) as watching:
        watching.topics.create("orders")
        with klamm.open(path) as store:
            with store.transaction("billing") as tx:
                tx.send("orders", b"1")
            forgotten = store.transaction(batch_bytes=1)
            forgotten.send("orders", b"2")
        assert forgotten.state == "aborted"
        assert list(watching.transactions) == []
        assert watching._acquired().catalog.database.read("SELECT * FROM transaction_names") == []
        assert values_in(watching) == [b"1"]


def test_one_that_was_dropped_is_over_when_the_next_one_begins(store: klamm.Store) -> None:
    tx = store.transaction(batch_bytes=1)
    tx.send("orders", b"dropped")
    del tx
    gc.collect()
    store.transaction().abort()
    store.maintain()
    store.append("orders", b"1")
    assert values_in(store) == [b"1"]


def test_a_forked_child_can_neither_use_nor_end_its_parents_transaction(store: klamm.Store, tmp_path: Path) -> None:
    tx = store.transaction("billing", batch_bytes=1)
    tx.send("orders", b"1")

    def child() -> list[str]:
        message = []
        for act in (lambda: tx.send("orders", b"2"), tx.commit, tx.abort, lambda: tx.__exit__(None, None, None)):
            try:
                act()
                message.append("nothing")
            except Forked:
                message.append("Forked")
        tx.__exit__(KeyError, KeyError(), None)
        with store.transaction() as mine:
            mine.send("orders", b"child")
        store.close()
        return message

    with children() as start:
        assert start(child).answer() == ["Forked"] * 4
    assert [info.state for info in store.transactions if info.name] == ["ongoing"]
    store.maintain()
    tx.commit()
    assert values_in(store) == [b"1", b"child"]


# ---- asyncio


def test_the_same_for_asyncio(path: Path) -> None:
    async def work() -> None:
        async with klamm.aio.open(path) as store:
            await store.topics.create("orders")
            await store.topics.create("invoices", 2)
            await store.append_many("orders", [b"%d" % n for n in range(10)])
            async with store.consumer("orders", group="g", wait=0) as orders:
                async for batch in orders.batches(4):
                    async with store.transaction(consumers=orders, batch_bytes=30) as tx:
                        for record in batch:
                            await tx.send("invoices", record.value)
                        tx.commit_offsets(batch)
                await store.append_many("orders", [b"10", b"11"])
                tx = await orders.transaction()
                batch = await orders.poll()
                await tx.send("invoices", b"no")
                with pytest.raises(ZeroDivisionError):
                    async with tx:
                        raise ZeroDivisionError
                assert tx.state == "aborted"
                with pytest.raises(GroupError, match="does not take part"):
                    (await store.transaction()).commit_offsets(orders)
                tx = await store.transaction(consumers=[orders])
                again = await orders.poll()
                assert again.begin == batch.begin == 10
                tx.commit_offsets(orders)
                await tx.commit()
                tx = await store.transaction()
                await tx.abort()
                await store.append_many("orders", [b"12", b"13"])
                offsets = []
                async for record in orders:
                    offsets.append(record.offset)
                    if len(offsets) == 1:
                        await (await orders.transaction()).abort()
                assert offsets == [12, 12, 13], "the loop goes back, too"
            assert {each.state async for each in store.transactions} <= {"prepared_commit"}, "all are over"
            values = await asyncio.to_thread(values_in, store.sync, "invoices")
            assert sorted(values, key=int) == [b"%d" % n for n in range(10)]

    asyncio.run(work())


def test_read_only_stores_have_none(store: klamm.Store, path: Path) -> None:
    with klamm.open(path, read_only=True) as reader, pytest.raises(ReadOnly):
        reader.transaction()


def test_a_record_without_a_key_is_refused_by_send_if_the_topic_is_compacted(
    store: klamm.Store,
) -> None:
    store.topics.create("users", settings={"cleanup.policy": "compact"})
    with store.transaction() as tx:
        tx.send("users", b"1", key=b"a")
        with pytest.raises(klamm.InvalidRecord, match="users: a record without a key"):
            tx.send("users", b"2")
    assert tx.state == "committed"
    assert values_in(store, "users") == [b"1"]
