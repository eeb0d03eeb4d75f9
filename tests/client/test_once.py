"""A transaction that has a number is committed at most once, by whomever, and says so when it was skipped."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import klamm
import klamm.aio
from klamm.errors import Aborted, InvalidSetting, NotAStore, OnceMismatch, TransactionError
from klamm.store import once
from tests.client.conftest import values_in
from tests.procs import Flag, children


@pytest.fixture
def store(store: klamm.Store) -> klamm.Store:
    store.topics.create("orders", 2)
    return store


def load(store: klamm.Store, number: int, *values: bytes, **options: Any) -> str:
    """A job that does not ask whether it has to work."""
    with store.transaction() as tx:
        tx.once("loader", number, **options)
        for value in values:
            tx.send("orders", value)
    return tx.state


def is_open(store: klamm.Store) -> bool:
    return any(info.state == "ongoing" for info in store.transactions)


def test_a_number_that_is_committed_is_skipped(store: klamm.Store) -> None:
    assert load(store, 17, b"a", b"b") == "committed"
    with store.transaction() as tx:
        assert not tx.once("loader", 17)
        sent = tx.send("orders", b"a")
        assert tx.state == "open"
    assert tx.state == "skipped"
    with pytest.raises(Aborted, match="was skipped"):
        sent.result(0)
    assert load(store, 17, b"a", b"b") == "skipped"
    assert sorted(values_in(store)) == [b"a", b"b"]
    with store.transaction() as tx:
        assert tx.once("loader", 18)
        tx.send("orders", b"c")
    assert tx.state == "committed" and sorted(values_in(store)) == [b"a", b"b", b"c"]
    assert store.check().ok


def test_a_skipped_transaction_leaves_nothing_behind(store: klamm.Store) -> None:
    load(store, 1, b"a")
    ends = [log.ends().end for log in store._acquired().topic("orders").partitions()]
    with store.transaction(batch_bytes=1) as tx:
        assert not tx.once("loader", 1)
        for n in range(100):
            tx.send("orders", b"%d" % n)
    assert tx.state == "skipped"
    assert [log.ends().end for log in store._acquired().topic("orders").partitions()] == ends, "nothing was appended"
    with store.transaction(batch_bytes=1) as tx:
        tx.send("orders", b"before it asked", partition=0)
        assert not tx.once("loader", 1)
    assert tx.state == "skipped" and values_in(store) == [b"a"]
    with pytest.raises(TransactionError, match="skipped"):
        tx.commit()


def test_another_fingerprint_and_an_earlier_number_are_errors(store: klamm.Store) -> None:
    assert load(store, 5, b"a", fingerprint="abc") == "committed"
    assert load(store, 5, b"a", fingerprint="abc") == "skipped"
    for number, fingerprint, said in ((5, "xyz", "another fingerprint"), (4, "abc", "comes after 5")):
        with pytest.raises(OnceMismatch, match=said) as caught:
            load(store, number, b"b", fingerprint=fingerprint)
        assert (caught.value.number, caught.value.last_number) == (number, 5)
        assert caught.value.hint is not None and "above 5" in caught.value.hint
    assert values_in(store) == [b"a"] and not is_open(store)


def test_writers_and_targets_count_for_themselves(store: klamm.Store) -> None:
    assert load(store, 5, b"a") == "committed"
    assert load(store, 3, b"b", target="elsewhere") == "committed"
    with store.transaction() as tx:
        assert tx.once("another", 0)
    assert tx.state == "committed", "one without records has a number, too"
    with store.transaction() as tx:
        assert not tx.once("another", 0)


def test_a_number_is_free_again_when_its_transaction_was_aborted(store: klamm.Store) -> None:
    with store.transaction() as tx:
        assert tx.once("loader", 1)
        tx.send("orders", b"a")
        tx.abort()
    assert tx.state == "aborted"
    assert load(store, 1, b"a") == "committed" and values_in(store) == [b"a"]
    with store.transaction() as tx:
        assert not tx.once("loader", 1)
        tx.abort()
    assert tx.state == "aborted"


def test_of_two_that_race_for_a_number_one_is_skipped(store: klamm.Store, path: Path, tmp_path: Path) -> None:
    asked, go = Flag(tmp_path / "asked"), Flag(tmp_path / "go")

    def work() -> str:
        with klamm.open(path) as mine:
            with mine.transaction() as tx:
                assert tx.once("loader", 1, fingerprint="same")
                tx.send("orders", b"other", partition=0)
                asked.up()
                go.wait()
            return tx.state

    with children() as start:
        child = start(work)
        asked.wait()
        assert load(store, 1, b"mine", fingerprint="same") == "committed"
        go.up()
        assert child.answer() == "skipped"
    assert values_in(store) == [b"mine"] and not is_open(store)


def test_whoever_loses_the_race_with_another_fingerprint_is_told(store: klamm.Store) -> None:
    tx = store.transaction(batch_bytes=1)
    assert tx.once("loader", 1, fingerprint="a")
    tx.send("orders", b"late")
    assert load(store, 1, b"mine", fingerprint="b") == "committed"
    with pytest.raises(OnceMismatch):
        tx.commit()
    assert tx.state == "aborted" and values_in(store) == [b"mine"]


def test_many_threads_commit_each_number_once(store: klamm.Store) -> None:
    states: list[str] = []

    def work() -> None:
        for number in range(10):
            try:
                states.append(load(store, number, b"%d" % number))
            except OnceMismatch:
                states.append("late")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert states.count("committed") == 10 and len(states) == 40
    assert sorted(values_in(store)) == [b"%d" % number for number in range(10)]


def test_progress_of_a_group_goes_with_the_number(store: klamm.Store) -> None:
    store.topics.create("in")
    store.append_many("in", [b"0", b"1"])
    with store.consumer("in", group="g", wait=0) as consumer:
        batch = consumer.poll(max_records=1)
        with consumer.transaction() as tx:
            assert tx.once("mover", 0)
            tx.commit_offsets(batch)
            tx.send("orders", batch[0].value)
        batch = consumer.poll(max_records=1)
        with consumer.transaction() as tx:
            assert not tx.once("mover", 0)
            tx.commit_offsets(batch)
        position = consumer.committed("in", 0)
        assert position is not None and position.offset == 1, "a skipped one moves nothing"
        assert [record.value for record in consumer.poll(max_records=1)] == [b"1"], "which comes again"


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("", 1), {}, InvalidSetting),
        (("a", -1), {}, InvalidSetting),
        (("a", 1 << 63), {}, InvalidSetting),
        (("a", 1), {"fingerprint": "x" * 4097}, InvalidSetting),
        (("a", True), {}, TypeError),
        (("a", "1"), {}, TypeError),
        ((b"a", 1), {}, TypeError),
        (("a", 1), {"fingerprint": b"x"}, TypeError),
        (("a", 1), {"target": None}, TypeError),
    ],
)
def test_what_is_no_number_of_a_writer(
    store: klamm.Store, arguments: Any, options: Any, error: type[Exception]
) -> None:
    with pytest.raises(error), store.transaction() as tx:
        tx.once(*arguments, **options)


def test_a_transaction_has_one_number(store: klamm.Store) -> None:
    with store.transaction() as tx:
        assert tx.once("loader", 1)
        with pytest.raises(TransactionError, match="has a number already: loader: number 1"):
            tx.once("loader", 2)


async def _in_tasks(path: Path) -> list[str]:
    states = []
    async with klamm.aio.open(path) as store:
        for _ in range(2):
            async with store.transaction() as tx:
                if await tx.once("loader", 1, fingerprint="f"):
                    await tx.send("orders", b"a")
            states.append(tx.state)
    return states


def test_in_asyncio_it_is_the_same(store: klamm.Store, path: Path) -> None:
    assert asyncio.run(_in_tasks(path)) == ["committed", "skipped"]
    assert values_in(store) == [b"a"]


# ---- rows of klamm.db


def test_a_row_is_forgotten_when_its_writer_is_silent_and_many_others_are_not(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = store._acquired().catalog.database
    monkeypatch.setattr(once, "KEPT", 3)
    now_ms = 10**12
    with database.db_lock(), database.transaction() as execute:
        for n in range(6):
            number = once.WriterNumber(f"query {n}", "topic orders", 7)
            once.write(execute, number, now_ms=now_ms - once.SILENT_MS - 1000 + n)
    assert once.sweep(database, now_ms=now_ms) == 3
    assert [once.last(database, f"query {n}", "topic orders") for n in range(6)] == [None, None, None, 7, 7, 7]
    assert once.sweep(database, now_ms=now_ms + 10**12) == 0  # few writers: none is ever forgotten


def test_a_damaged_row_is_an_error(store: klamm.Store) -> None:
    load(store, 1, b"a")
    database = store._acquired().catalog.database
    with database.db_lock(), database.transaction() as execute:
        execute("UPDATE once SET number = 0")
    with pytest.raises(NotAStore, match="damaged"):
        load(store, 1, b"a")
    assert "once: the row of 'loader'" in store.check().breaches[0].message
