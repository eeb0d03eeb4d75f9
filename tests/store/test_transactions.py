"""Rows, owners and resolvers: whoever is killed, stopped or late, a transaction is whole or not there."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import klamm
from klamm.batch import Builder
from klamm.batch.header import TRANSACTIONAL
from klamm.disk.locks import TRANSACTION
from klamm.errors import Aborted, Fenced, NotAStore, ReadOnly, readable
from klamm.log.partition import Partition
from klamm.store.transaction_state import MAX_EPOCH
from klamm.store.transactions import Identity
from tests.procs import Flag, children, until
from tests.store.open_transactions import core_of, hold_append_lock, log_of, markers, seen, stands_open


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "events")


@pytest.fixture
def store(path: str) -> Iterator[klamm.Store]:
    with klamm.open(path) as opened:
        opened.topics.create("t", 3)
        yield opened


def begin(
    store: klamm.Store, *numbers: int, name: str | None = None, timeout_ms: int = 60_000, topic: str = "t"
) -> Identity:
    """A transaction with a record in each of these partitions."""
    all_of = core_of(store).transactions
    mine = all_of.identity(name)
    add(store, mine, *numbers, timeout_ms=timeout_ms, topic=topic)
    return mine


def add(store: klamm.Store, mine: Identity, *numbers: int, timeout_ms: int = 60_000, topic: str = "t") -> None:
    opened = core_of(store).topic(topic)
    places = {(opened.topic.id, number): opened.partition(number) for number in numbers}
    core_of(store).transactions.register(mine, places, timeout_ms)
    for partition in places.values():
        append(partition, mine)


def append(partition: Partition, mine: Identity, sequence: int = 0) -> None:
    builder = Builder(1 << 20)
    builder.add(None, b"%d-%d" % (mine.producer_id, mine.epoch), None, 0)
    sealed = builder.seal(0, None, mine.producer_id, mine.epoch, sequence, TRANSACTIONAL)
    partition.append(bytearray(sealed))


@contextmanager
def abandoned(store: klamm.Store, path: str, act: Callable[[klamm.Store], object]) -> Iterator[None]:
    """After `act` in another process, which is killed."""

    def work() -> None:
        with klamm.open(path) as mine:
            act(mine)
            os.kill(os.getpid(), signal.SIGKILL)

    with children() as start:
        assert os.WIFSIGNALED(start(work).ended())
        yield


# ---- one's own


def test_a_committed_transaction_is_seen_and_its_row_goes_with_a_later_registration(store: klamm.Store) -> None:
    all_of = core_of(store).transactions
    mine = begin(store, 0, 1)
    assert seen(store, 0, 1) == [[], []]
    assert all_of.decide(mine, commit=True) is True
    all_of.finish(mine, commit=True)
    assert seen(store, 0, 1) == [[b"0-0"], [b"0-0"]]
    assert [(info.epoch, info.state) for info in store.transactions] == [(0, "prepared_commit")]
    add(store, mine, 2)
    assert [info.epoch for info in store.transactions] == [0, 1], "its markers are not on disk yet"
    for number in (0, 1):
        log_of(store, number).sync(log_of(store, number).ends().end)
    all_of.decide(mine, commit=False)
    all_of.finish(mine, commit=False)
    add(store, mine, 0)
    assert [info.epoch for info in store.transactions] == [1, 2]
    all_of.decide(mine, commit=True)
    all_of.finish(mine, commit=True)
    all_of.tidy()
    assert list(store.transactions) == []
    assert seen(store, 0, 1, 2) == [[b"0-0", b"0-2"], [b"0-0"], []]


def test_a_row_tells_people_what_is_going_on(store: klamm.Store) -> None:
    mine = begin(store, 2, 0, name="billing", timeout_ms=5_000)
    (info,) = list(store.transactions)
    assert info.producer_id == mine.producer_id
    assert (info.name, info.state, info.timeout_ms) == ("billing", "ongoing", 5_000)
    assert info.partitions == (("t", 0), ("t", 2))
    assert info.age_ms is not None and 0 <= info.age_ms < 60_000


def test_a_person_can_abort_any_transaction(store: klamm.Store) -> None:
    mine = begin(store, 0, 1)
    assert store.transactions.abort(mine.producer_id)
    assert not store.transactions.abort(mine.producer_id)
    assert not stands_open(log_of(store)) and seen(store, 0, 1) == [[], []]
    with pytest.raises(Aborted):
        core_of(store).transactions.decide(mine, commit=True)


def test_what_was_written_with_the_decision_is_undone_when_it_is_refused(store: klamm.Store) -> None:
    all_of = core_of(store).transactions
    mine = begin(store, 0)

    def refuse(execute: Callable[..., object]) -> None:
        execute("DELETE FROM transactions")
        raise Fenced("no")

    with pytest.raises(Fenced):
        all_of.decide(mine, commit=True, also=refuse)
    assert [info.state for info in store.transactions] == ["ongoing"]


def test_nothing_can_be_begun_in_a_store_that_is_open_for_reading_only(store: klamm.Store, path: str) -> None:
    mine = begin(store, 0)
    with klamm.open(path, read_only=True) as reader:
        with pytest.raises(ReadOnly):
            reader.transaction()
        with pytest.raises(ReadOnly):
            reader.transactions.abort(mine.producer_id)
        assert [info.state for info in reader.transactions] == ["ongoing"]
        core_of(reader).transactions.resolve([log_of(reader)])
    assert [info.state for info in store.transactions] == ["ongoing"]


# ---- somebody else's


@pytest.mark.parametrize("decided", [None, True, False])
def test_the_transaction_of_a_killed_process_is_ended_as_it_was_decided(
    store: klamm.Store, path: str, decided: bool | None
) -> None:
    def act(mine: klamm.Store) -> None:
        identity = begin(mine, 0, 1)
        if decided is not None:
            core_of(mine).transactions.decide(identity, commit=decided)

    with abandoned(store, path, act):
        assert stands_open(log_of(store, 0)) and stands_open(log_of(store, 1))
        core_of(store).transactions.resolve()
        assert not stands_open(log_of(store, 0)) and not stands_open(log_of(store, 1))
        assert seen(store, 0, 1) == ([[b"0-0"], [b"0-0"]] if decided else [[], []])
        assert list(store.transactions) == []


def test_a_partition_that_is_registered_and_empty_gets_a_marker_too(store: klamm.Store, path: str) -> None:
    def act(mine: klamm.Store) -> None:
        all_of, opened = core_of(mine).transactions, core_of(mine).topic("t")
        all_of.register(all_of.identity(), {(opened.topic.id, 2): opened.partition(2)}, 1000)

    with abandoned(store, path, act):
        core_of(store).transactions.resolve()
        assert markers(log_of(store, 2)) == [1]


def test_a_store_that_is_opened_ends_what_killed_processes_left(store: klamm.Store, path: str) -> None:
    def look() -> tuple[bool, int]:
        with klamm.open(path) as mine:
            return stands_open(log_of(mine)), len(mine.transactions)

    with abandoned(store, path, lambda mine: begin(mine, 0)), children() as start:
        living = begin(store, 1)
        assert start(look).answer() == (False, 1), "the killed one's is over, the living one's is not"
        core_of(store).transactions.decide(living, commit=True)


def test_a_living_process_has_its_time_and_no_more(store: klamm.Store, path: str) -> None:
    patient, hasty = begin(store, 0), begin(store, 1, timeout_ms=1)
    until(lambda: (list(store.transactions)[1].age_ms or 0) > 5, "the time passes")
    with klamm.open(path) as other:
        core_of(other).transactions.resolve()
    assert stands_open(log_of(store, 0)) and not stands_open(log_of(store, 1))
    all_of = core_of(store).transactions
    with pytest.raises(Aborted):
        all_of.decide(hasty, commit=True)
    with pytest.raises(Aborted):
        add(store, hasty, 2)
    with pytest.raises(Fenced):
        append(log_of(store, 1), hasty, 1)
    assert all_of.decide(patient, commit=True)
    all_of.finish(patient, commit=True)
    assert seen(store, 0, 1) == [[b"%d-0" % patient.producer_id], []]


def test_a_prepared_transaction_is_finished_by_anybody_though_its_process_lives(store: klamm.Store) -> None:
    all_of = core_of(store).transactions
    mine = begin(store, 0, 1)
    all_of.decide(mine, commit=True)
    all_of.resolve(only_abandoned=True)
    assert stands_open(log_of(store))
    all_of.resolve()
    assert seen(store, 0, 1) == [[b"0-0"], [b"0-0"]]
    all_of.finish(mine, commit=True)
    assert markers(log_of(store, 0)) == [1], "once is enough"
    add(store, mine, 0)
    all_of.decide(mine, commit=True)
    all_of.finish(mine, commit=True)
    assert seen(store, 0) == [[b"0-0", b"0-1"]]


def test_a_transaction_from_before_the_boot_is_over(store: klamm.Store) -> None:
    all_of = core_of(store).transactions
    mine = begin(store, 0)
    all_of.let_go(mine)  # as every byte is after a boot
    all_of.resolver.boot_id = "another"
    assert next(iter(store.transactions)).age_ms is None
    all_of.resolve()
    assert list(store.transactions) == [] and not stands_open(log_of(store))


def test_a_clock_of_another_boot_ends_nothing_that_is_alive(store: klamm.Store) -> None:
    all_of = core_of(store).transactions
    mine = begin(store, 0, timeout_ms=1)
    all_of.resolver.boot_id = "another"
    all_of.resolve()
    assert [(info.state, info.producer_id) for info in store.transactions] == [("ongoing", mine.producer_id)]


def test_what_is_open_in_a_log_and_in_no_row_is_aborted(store: klamm.Store) -> None:
    all_of = core_of(store).transactions
    stray, mine = begin(store, 0), begin(store, 0)
    database = core_of(store).catalog.database
    with database.db_lock(), database.transaction() as execute:
        execute("DELETE FROM transactions WHERE producer_id = ?", (stray.producer_id,))
    all_of.resolve([log_of(store)])
    assert log_of(store).open_transactions() == [(mine.producer_id, 0, 1)]
    with pytest.raises(Aborted):
        all_of.decide(stray, commit=True)
    store.maintain()
    assert stands_open(log_of(store))


def test_a_deleted_topic_is_left_out(store: klamm.Store, path: str) -> None:
    store.topics.create("other")

    def act(mine: klamm.Store) -> None:
        identity = begin(mine, 0)
        add(mine, identity, 0, topic="other")
        core_of(mine).transactions.decide(identity, commit=True)

    with abandoned(store, path, act):
        store.topics.delete("other")
        core_of(store).transactions.resolve()
        assert list(store.transactions) == [] and seen(store, 0) == [[b"0-0"]]


def test_a_topic_that_is_deleted_under_a_transaction_does_not_hold_its_row(store: klamm.Store) -> None:
    store.topics.create("other")
    all_of = core_of(store).transactions
    mine = begin(store, 0)
    add(store, mine, 0, topic="other")
    store.topics.delete("other")
    all_of.decide(mine, commit=True)
    all_of.finish(mine, commit=True)
    all_of.tidy()
    assert list(store.transactions) == [] and seen(store, 0) == [[b"0-0"]]


def test_many_resolvers_at_once_write_one_marker_a_partition(store: klamm.Store, path: str, tmp_path: Path) -> None:
    go = Flag(tmp_path / "go")

    def act(mine: klamm.Store) -> None:
        for _ in range(3):
            begin(mine, 0, 1, 2)

    def resolve() -> None:
        go.wait()
        with klamm.open(path) as mine:  # which resolves, too
            core_of(mine).transactions.resolve([log_of(mine, number) for number in range(3)])

    with abandoned(store, path, act), children() as start:
        busy = [start(resolve) for _ in range(6)]
        go.up()
        for child in busy:
            child.answer()
        assert [markers(log_of(store, number)) for number in range(3)] == [[1, 1, 1]] * 3
        assert list(store.transactions) == []


def test_a_stopped_writer_of_one_partition_does_not_keep_the_others_waiting(
    store: klamm.Store, path: str, tmp_path: Path
) -> None:
    ready, go = Flag(tmp_path / "ready"), Flag(tmp_path / "go")

    with children() as start:
        stopped = start(partial(hold_append_lock, path, 1, ready, go))
        ready.wait()
        with abandoned(store, path, lambda mine: begin(mine, 0, 1, 2)):
            go.up()
        assert stopped.stopped()
        core_of(store).transactions.resolve([log_of(store, number) for number in range(3)])
        assert [stands_open(log_of(store, number)) for number in range(3)] == [False, True, False]
        assert [info.state for info in store.transactions] == ["prepared_abort"]
        stopped.go_on()
        stopped.answer()
        core_of(store).transactions.resolve()
        assert not stands_open(log_of(store, 1)) and list(store.transactions) == []


# ---- names


def test_a_newer_one_of_a_name_ends_the_older(store: klamm.Store) -> None:
    all_of = core_of(store).transactions
    older = begin(store, 0, name="billing")
    newer = all_of.identity("billing")
    assert not stands_open(log_of(store))
    assert newer.producer_id != older.producer_id
    with pytest.raises(Fenced):
        all_of.decide(older, commit=True)
    with pytest.raises(Fenced):
        add(store, older, 1)
    with pytest.raises(Fenced):
        all_of.identity("billing", after=older)
    newest = all_of.identity("billing", after=newer)
    with pytest.raises(Fenced):
        all_of.decide(newer, commit=True, also=lambda _: None)
    assert all_of.decide(newest, commit=True, also=lambda _: None)


def test_names_without_a_holder_are_swept(store: klamm.Store) -> None:
    all_of = core_of(store).transactions
    held, gone = all_of.identity("held"), all_of.identity("gone")
    all_of.let_go(gone)
    store.maintain()
    names = core_of(store).catalog.database.read("SELECT name, producer_id FROM transaction_names")
    assert names == [("held", held.producer_id)]


def test_the_byte_of_a_producer_id_is_held_by_one_process(store: klamm.Store, path: str) -> None:
    mine = core_of(store).transactions.identity()
    members = core_of(store).members
    assert members is not None

    def others() -> bool:
        with klamm.open(path) as other:
            held = core_of(other).members
            assert held is not None
            return bool(held.held(TRANSACTION + mine.producer_id))

    with children() as start:
        assert start(others).answer()
        core_of(store).transactions.let_go(mine)
        assert not start(others).answer()


def test_a_producer_id_that_another_process_holds_already_is_refused(store: klamm.Store, path: str) -> None:
    members, catalog = core_of(store).members, core_of(store).catalog
    assert members is not None
    following = catalog.allocate_producer_id() + 1
    assert members.try_hold(TRANSACTION + following)
    with pytest.raises(NotAStore, match="members"):
        core_of(store).transactions.identity()


# ---- damage, copies


@pytest.mark.parametrize("column", ["state", "partitions", "crc", "timeout_ms", "name"])
def test_a_damaged_row_is_told_and_nobody_guesses(store: klamm.Store, column: str) -> None:
    mine = begin(store, 0, name="billing")
    other = begin(store, 1)
    core_of(store).transactions.let_go(mine)
    core_of(store).transactions.let_go(other)
    database = core_of(store).catalog.database
    wrong = {"state": "prepared_commit", "partitions": "{}", "crc": 1, "timeout_ms": 2, "name": None}[column]
    with database.db_lock(), database.transaction() as execute:
        execute(f"UPDATE transactions SET {column} = ? WHERE producer_id = ?", (wrong, mine.producer_id))
    (breach,) = store.check().breaches
    assert "producer id 0" in breach.message
    core_of(store).transactions.resolve([log_of(store)])
    assert stands_open(log_of(store, 0)) and not stands_open(log_of(store, 1))
    with pytest.raises(NotAStore):
        core_of(store).transactions.decide(mine, commit=True)


def test_a_damaged_name_is_told(store: klamm.Store) -> None:
    all_of = core_of(store).transactions
    all_of.identity("billing")
    database = core_of(store).catalog.database
    with database.db_lock(), database.transaction() as execute:
        execute("UPDATE transaction_names SET producer_id = 77")
    (breach,) = store.check().breaches
    assert "billing" in breach.message
    with pytest.raises(NotAStore):
        all_of.identity("billing")


def test_a_copy_holds_each_transaction_whole_or_not_at_all(store: klamm.Store, tmp_path: Path) -> None:
    """Copies are made while three threads commit and abort; each transaction has a record in every partition."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            number = 0
            while not stop.is_set():
                number += 1
                with store.transaction() as tx:
                    for partition in range(3):
                        tx.send("t", b"%d-%d" % (thread, number), partition=partition)
                    if number % 4 == 0:
                        tx.abort()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for copy in range(6):
            before = len(seen(store, 0)[0])
            until(lambda before=before: len(seen(store, 0)[0]) > before + 2, "they go on")  # type: ignore[misc]
            store.backup(tmp_path / f"copy-{copy}")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    for copy in range(6):
        with klamm.open(tmp_path / f"copy-{copy}") as opened:
            assert list(opened.transactions) == [], "opening it has ended them all"
            found = seen(opened, 0, 1, 2)
            assert len(found[0]) > 2 and sorted(found[0]) == sorted(found[1]) == sorted(found[2])
            for worker in range(3):
                mine = [int(value.split(b"-")[1]) for value in found[0] if value.startswith(b"%d-" % worker)]
                assert mine == [number for number in range(1, len(mine) * 2) if number % 4][: len(mine)]
            assert opened.check().ok


def test_a_copy_is_one_moment_of_all_logs_and_of_the_database(
    store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction tries to commit between two looks at the ends of logs."""
    tx = store.transaction(batch_bytes=1)
    for partition in range(3):
        tx.send("t", b"x", partition=partition)
    committing = threading.Thread(target=tx.commit)
    catalog, snapshot = core_of(store).catalog, Partition.snapshot
    looks = 0

    def copy(destination: str) -> None:
        nonlocal looks
        catalog.database.backup(destination)
        looks = 1

    def look(partition: Partition) -> object:
        nonlocal looks
        if looks and threading.current_thread() is threading.main_thread():
            looks += 1
            if looks == 3:
                committing.start()
                committing.join(0.2)  # it comes to nothing while the copy is made
        return snapshot(partition)

    monkeypatch.setattr(catalog, "backup", copy)
    monkeypatch.setattr(Partition, "snapshot", look)
    store.backup(tmp_path / "copy")
    committing.join()
    monkeypatch.undo()
    assert looks > 3 and seen(store, 0, 1, 2) == [[b"x"]] * 3
    with klamm.open(tmp_path / "copy") as opened:
        assert seen(opened, 0, 1, 2) == [[]] * 3


def test_a_resolver_that_read_a_row_before_its_commit_does_not_undo_it(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_of = core_of(store).transactions
    mine = begin(store, 0, timeout_ms=1)
    until(lambda: (next(iter(store.transactions)).age_ms or 0) > 3, "time passes")
    db_lock = core_of(store).catalog.database.db_lock

    def too_late() -> object:  # between its look at the rows and the klamm.db lock
        monkeypatch.undo()
        all_of.decide(mine, commit=True)
        return db_lock()

    monkeypatch.setattr(core_of(store).catalog.database, "db_lock", too_late)
    all_of.resolve()
    assert [info.state for info in store.transactions] == ["prepared_commit"]
    all_of.resolve()
    assert seen(store, 0) == [[b"0-0"]]


def test_entries_of_aborts_that_a_power_cut_left_half_written_are_cleared_away(path: str) -> None:
    with klamm.open(path) as store:
        store.topics.create("t")
        with store.transaction() as tx:
            tx.send("t", b"1")
        store.maintain()  # from here on, recovery reads the log again
        with store.transaction() as tx:
            tx.send("t", b"2")
        where = Path(readable(log_of(store).directory))
    for base in (0, 77):  # of a segment that is there, and of one that is not
        (where / f"{base:020}.aborted").write_bytes(bytes(32))
    Path(path, "heads").write_bytes(b"")  # so everything is recovered
    with klamm.open(path) as store:
        assert seen(store, 0) == [[b"1", b"2"]]
        assert store.check().breaches == []
        assert list(where.glob("*.aborted")) == []


def test_an_epoch_fits_into_the_log() -> None:
    assert MAX_EPOCH + 1 < 2**15
