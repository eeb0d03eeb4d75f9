"""Transactions of several clients at once: each whole or not there, and none waits for another's disk."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

import klamm
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.transaction_coordinator import TransactionCoordinator
from klamm.log.partition import Partition
from klamm.store.transaction_state import End, Row
from tests.crash.cases import seed_of
from tests.kafka.producing import Client, offset_of, offset_row, place_of
from tests.procs import PATIENCE
from tests.store.open_transactions import core_of, log_of, markers, seen

NONE = ErrorCode.NONE


@contextmanager
def running(*actions: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Threads; the block ends when they have, and what they raise is raised."""
    errors: list[BaseException] = []

    def run(action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:  # raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    yield errors
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


class Gate:
    """Holds whoever comes to it, once it is closed, until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.open.wait(PATIENCE)


def hold_marking(monkeypatch: pytest.MonkeyPatch, coordinator: TransactionCoordinator, name: str) -> Gate:
    """Whoever is about to write the markers of a transactional id, alone, waits; together none is written."""
    gate, original = Gate(), coordinator._resolver.mark_all

    def mark_all(row: Row) -> bool:
        if row.name == name:
            gate()
        return original(row)

    monkeypatch.setattr(coordinator._resolver, "mark_all", mark_all)
    monkeypatch.setattr(coordinator._resolver, "mark_now", lambda rows: [False] * len(rows))
    return gate


def two_that_end(store: klamm.Store, coordinator: TransactionCoordinator) -> list[tuple[str, End]]:
    """Requests to commit, of clients with a transaction each, in partitions 0 and 1."""
    clients = [Client(store, coordinator, name, bumps=True) for name in ("a", "b")]
    for number, client in enumerate(clients):
        assert client.init() is NONE and client.send(number) is NONE
        assert client.end(commit=False) is NONE and client.send(number) is NONE  # its log is known from now on
    return [(client.name, End((client.producer_id, client.epoch), True, True)) for client in clients]


def test_of_those_that_end_together_one_whose_log_is_held_is_left_to_be_ended_alone(
    store: klamm.Store, coordinator: TransactionCoordinator
) -> None:
    asked = two_that_end(store, coordinator)
    with log_of(store, 1).log.append_lock():
        first, second = coordinator.apply_together(asked)
    assert first is not None and first.error is NONE and second is None
    assert seen(store, 0, 1) == [[b"x"], []] and rows_in_database(store) == ["prepared_commit"] * 2
    assert coordinator.apply(*asked[1]).error is NONE
    assert seen(store, 0, 1) == [[b"x"], [b"x"]]
    assert [len(markers(log_of(store, number))) for number in (0, 1)] == [2, 2]


def test_of_those_that_end_together_one_whose_log_is_not_open_is_left(
    store: klamm.Store, coordinator: TransactionCoordinator
) -> None:
    """To open it may take a recovery, which waits for whoever appends there."""
    asked = two_that_end(store, coordinator)
    del coordinator._resolver._opened[place_of(store, 1)]
    first, second = coordinator.apply_together(asked)
    assert first is not None and second is None and not coordinator._resolver.are_open([place_of(store, 1)])
    assert coordinator.apply(*asked[1]).error is NONE and seen(store, 0, 1) == [[b"x"], [b"x"]]


def test_of_those_that_end_together_one_that_another_thread_is_at_is_left(
    store: klamm.Store, coordinator: TransactionCoordinator
) -> None:
    asked = two_that_end(store, coordinator)
    gate = Gate()

    def hold() -> None:
        with coordinator._turns.wait("b"):
            gate()

    with running(hold):
        assert gate.reached.wait(PATIENCE)
        first, second = coordinator.apply_together(asked)
        gate.open.set()
    assert first is not None and first.error is NONE and second is None
    assert sorted(rows_in_database(store)) == ["ongoing", "prepared_commit"]


def test_together_none_is_decided_before_its_records_are_on_disk(
    store: klamm.Store, coordinator: TransactionCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = two_that_end(store, coordinator)
    log_of(store, 0).sync(3)
    monkeypatch.setattr(coordinator._resolver, "sync_now", lambda ends: None)
    assert coordinator.apply_together(asked) == [None, None], "one is decided, and its marker not synced"
    assert sorted(rows_in_database(store)) == ["ongoing", "prepared_commit"]
    assert not seen(store, 1)[0]


def test_those_that_end_together_are_one_write(
    store: klamm.Store, coordinator: TransactionCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = two_that_end(store, coordinator)
    database = core_of(store).catalog.database
    generation = database._generation
    assert [found and found.error for found in coordinator.apply_together(asked)] == [NONE, NONE]
    assert database._generation == generation + 1
    assert seen(store, 0, 1) == [[b"x"], [b"x"]]
    assert all(log_of(store, number).log.flushed_offset == 4 for number in (0, 1)), "the markers are on disk"
    coordinator.tick()
    assert rows_in_database(store) == ["complete_commit"] * 2 and database._generation == generation + 2


def rows_in_database(store: klamm.Store) -> list[str]:
    return [state for (state,) in core_of(store).catalog.database.read("SELECT state FROM transactions")]


@pytest.mark.parametrize("bumps", [False, True])
def test_that_a_transaction_is_complete_is_written_with_the_next_one(
    store: klamm.Store, coordinator: TransactionCoordinator, bumps: bool
) -> None:
    client = Client(store, coordinator, "a", bumps=bumps)
    assert client.init() is NONE and client.send(0) is NONE and client.end(commit=True) is NONE
    assert rows_in_database(store) == ["prepared_commit"]
    coordinator._reload()
    row = coordinator.row("a")
    assert row is not None and row.is_over, "what is on disk is known, though it is not written"
    generation = core_of(store).catalog.database._generation
    assert client.send(0) is NONE
    assert rows_in_database(store) == ["ongoing"]
    assert core_of(store).catalog.database._generation == generation + 1
    assert client.end(commit=False) is NONE
    assert rows_in_database(store) == ["prepared_abort"]
    coordinator.tick()
    assert rows_in_database(store) == ["complete_abort"]
    generation = core_of(store).catalog.database._generation
    coordinator.tick()
    assert core_of(store).catalog.database._generation == generation, "once"
    assert len(markers(log_of(store))) == 2


def test_a_tick_does_not_complete_the_next_transaction_of_the_same_epoch(
    store: klamm.Store, coordinator: TransactionCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client is at it: what was seen before may not be written any more."""
    client = Client(store, coordinator, "a", bumps=False)
    assert client.init() is NONE and client.send(0) is NONE and client.end(commit=True) is NONE
    assert client.send(0) is NONE
    gate = hold_marking(monkeypatch, coordinator, "a")
    with running(lambda: client.end(commit=True)):
        assert gate.reached.wait(PATIENCE)
        coordinator.tick()
        assert rows_in_database(store) == ["prepared_commit"]
        gate.open.set()
    assert len(markers(log_of(store))) == 2


def test_transactions_of_eight_clients_at_once_are_whole_or_not_there(
    store: klamm.Store, coordinator: TransactionCoordinator
) -> None:
    seed = seed_of()
    over = threading.Event()
    expected: list[set[str]] = [set() for _ in range(8)]

    def work(number: int) -> None:
        chance = random.Random(seed + number)
        client = Client(store, coordinator, f"client{number}", bumps=number % 2 == 0)
        assert client.init() is NONE
        for turn in range(12):
            partitions = chance.sample(range(3), chance.randrange(1, 4))
            value = f"{number}.{turn}"
            assert client.send(*partitions, value=value.encode()) is NONE
            if chance.random() < 0.3:
                assert client.commit_offsets(f"group{number}", turn) is NONE
                moves = True
            else:
                moves = False
            commit = chance.random() < 0.7
            assert client.end(commit=commit) is NONE
            if commit:
                expected[number] |= {f"{partition}:{value}" for partition in partitions}
            if moves and commit:
                assert offset_of(store, f"group{number}") == turn

    def tick() -> None:
        while not over.is_set():
            coordinator.tick()
            coordinator.expire()

    with running(tick):
        try:
            with running(*[lambda number=number: work(number) for number in range(8)]):
                pass
        finally:
            over.set()
    found = [f"{partition}:{value}" for partition in range(3) for value in values(store, partition)]
    assert len(found) == len(set(found)), f"seed {seed}"
    assert set(found) == set().union(*expected), f"seed {seed}"
    assert all(row.is_over for row in coordinator.rows())
    assert len(coordinator.rows()) == 8
    assert len(coordinator._turns) == 0
    before = coordinator.rows()
    coordinator._reload()
    assert coordinator.rows() == before, "the copy is what klamm.db says"


def values(store: klamm.Store, partition: int) -> list[str]:
    return [value.decode() for value in seen(store, partition)[0]]


def test_a_client_whose_disk_hangs_keeps_no_other_waiting(
    store: klamm.Store, coordinator: TransactionCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = (Client(store, coordinator, name, bumps=False) for name in ("slow", "quick"))
    for client in (slow, quick):
        assert client.init() is NONE
    assert slow.send(0) is NONE
    gate = hold_marking(monkeypatch, coordinator, "slow")
    with running(lambda: slow.end(commit=True)):
        assert gate.reached.wait(PATIENCE)
        try:
            assert quick.send(1) is NONE
            assert quick.end(commit=True) is NONE
            assert coordinator.init_producer_id("third", 60_000).error is NONE
            who = slow.name, slow.producer_id, slow.epoch
            offsets = [offset_row(store, 1)]
            assert coordinator.commit_offsets(*who, "g", offsets, implicit=True) is ErrorCode.CONCURRENT_TRANSACTIONS
        finally:
            gate.open.set()
    assert rows_of(coordinator, "slow").is_over


def rows_of(coordinator: TransactionCoordinator, name: str) -> Row:
    row = coordinator.row(name)
    assert row is not None
    return row


def test_a_tick_does_not_mark_what_a_thread_is_about_to(
    store: klamm.Store, coordinator: TransactionCoordinator, older: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next transaction may have the same epoch: a marker that came later would end it."""
    assert older.send(0) is NONE
    gate = hold_marking(monkeypatch, coordinator, older.name)
    with running(lambda: older.end(commit=True)):
        assert gate.reached.wait(PATIENCE)
        try:
            with running(coordinator.tick, coordinator._resolver.resolve_held):
                pass
            assert markers(log_of(store, 0)) == []
        finally:
            gate.open.set()
    assert len(markers(log_of(store, 0))) == 1


def test_what_came_late_is_not_aborted_while_its_producer_begins_again(
    store: klamm.Store, coordinator: TransactionCoordinator, older: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the epoch of what the producer is about to write."""
    assert older.send(0) is NONE
    assert older.end(commit=True) is NONE
    older.append(1, b"late")
    partition = log_of(store, 1)
    gate, original = Gate(), coordinator._transactions.apply

    def apply(name: str, *args: object, **options: object) -> object:
        gate()
        return original(name, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(coordinator._transactions, "apply", apply)
    monkeypatch.setattr(coordinator, "apply_together", lambda asked: [None] * len(asked))
    with running(lambda: older.add(1)):
        assert gate.reached.wait(PATIENCE)
        try:
            coordinator._resolver.abort_hanging([partition])
            assert markers(partition) == []
        finally:
            gate.open.set()
    monkeypatch.setattr(coordinator._transactions, "apply", original)
    assert coordinator._resolver._reported == {partition}, "for the next time"
    coordinator._resolver.abort_reported()
    assert markers(partition) == [], "it is part of the next transaction by now"


def test_what_changes_while_all_is_read_again_stays_known(
    store: klamm.Store, coordinator: TransactionCoordinator, older: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = coordinator._reader.read
    late = Client(store, coordinator, "late", bumps=False)

    def read(also: Iterable[int] = ()) -> object:
        found = original(also)
        assert late.init() is NONE
        assert older.send(0) is NONE
        assert older.commit_offsets("g", 3) is NONE
        return found

    monkeypatch.setattr(coordinator._reader, "read", read)
    coordinator._reload()
    monkeypatch.setattr(coordinator._reader, "read", original)
    assert rows_of(coordinator, "late").producer_id == late.producer_id
    assert rows_of(coordinator, older.name).is_ongoing
    assert coordinator.pending_offsets({"g"})
    coordinator.tick()
    assert rows_of(coordinator, "late").producer_id == late.producer_id
    assert late.send(2) is NONE
    assert late.end(commit=True) is NONE


def test_partitions_of_one_transaction_are_synced_at_once(
    store: klamm.Store, coordinator: TransactionCoordinator, older: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = threading.Barrier(3)
    original = Partition.sync

    def sync(self: Partition, end_offset: int) -> None:
        barrier.wait(PATIENCE)
        original(self, end_offset)

    assert older.send(0, 1, 2) is NONE
    monkeypatch.setattr(Partition, "sync", sync)
    assert older.end(commit=True) is NONE
    monkeypatch.setattr(Partition, "sync", original)
    assert all(log.log.flushed_offset == log.ends().end for log in (log_of(store, number) for number in range(3)))


def test_many_ends_share_a_commit(
    store: klamm.Store, coordinator: TransactionCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [Client(store, coordinator, f"client{number}", bumps=False) for number in range(8)]
    for client in clients:
        assert client.init() is NONE
        assert client.send(0) is NONE
        assert client.end(commit=True) is NONE  # what is read of the catalog for it is known then
        assert client.send(0) is NONE
    database = core_of(store).catalog.database
    group, commits, gate = coordinator._resolver.group_commit, [0], Gate()
    original = database.transaction

    def transaction(*, durable: bool = True) -> object:
        commits[0] += durable
        return original(durable=durable)

    with running(lambda: group.run(lambda execute: gate())):
        assert gate.reached.wait(PATIENCE)
        monkeypatch.setattr(database, "transaction", transaction)
        with running(*[lambda client=client: client.end(commit=True) for client in clients]):
            for _ in range(int(PATIENCE * 1000)):
                if len(group._queue) == 9:  # with the one that is being written
                    break
                threading.Event().wait(0.001)
            assert len(group._queue) == 9
            gate.open.set()
    assert commits[0] == 1
    assert len(seen(store, 0)[0]) == 16
