"""Transactions of several clients at once: each whole or not there, and none waits for another's disk."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import klamm
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.transaction_coordinator import TransactionCoordinator
from klamm.log.partition import Partition
from klamm.store.transaction_state import Row
from tests.crash.cases import seed_of
from tests.kafka.producing import Client, offset_of, offset_row
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


def hold_marking(monkeypatch: pytest.MonkeyPatch, desk: TransactionCoordinator, name: str) -> Gate:
    """Whoever is about to write the markers of a transactional id waits."""
    gate, original = Gate(), desk._resolver._mark_all

    def mark_all(row: Row) -> bool:
        if row.name == name:
            gate()
        return original(row)

    monkeypatch.setattr(desk._resolver, "_mark_all", mark_all)
    return gate


def test_transactions_of_eight_clients_at_once_are_whole_or_not_there(
    store: klamm.Store, desk: TransactionCoordinator
) -> None:
    seed = seed_of()
    over = threading.Event()
    expected: list[set[str]] = [set() for _ in range(8)]

    def work(number: int) -> None:
        chance = random.Random(seed + number)
        client = Client(store, desk, f"client{number}", bumps=number % 2 == 0)
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
            desk.tick()
            desk.expire()

    with running(tick):
        try:
            with running(*[lambda number=number: work(number) for number in range(8)]):
                pass
        finally:
            over.set()
    found = [f"{partition}:{value}" for partition in range(3) for value in values(store, partition)]
    assert len(found) == len(set(found)), f"seed {seed}"
    assert set(found) == set().union(*expected), f"seed {seed}"
    assert all(row.is_over for row in desk.rows())
    assert len(desk.rows()) == 8
    assert len(desk._turns) == 0
    before = desk.rows()
    desk._reload()
    assert desk.rows() == before, "the copy is what klamm.db says"


def values(store: klamm.Store, partition: int) -> list[str]:
    return [value.decode() for value in seen(store, partition)[0]]


def test_a_client_whose_disk_hangs_keeps_no_other_waiting(
    store: klamm.Store, desk: TransactionCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = (Client(store, desk, name, bumps=False) for name in ("slow", "quick"))
    for client in (slow, quick):
        assert client.init() is NONE
    assert slow.send(0) is NONE
    gate = hold_marking(monkeypatch, desk, "slow")
    with running(lambda: slow.end(commit=True)):
        assert gate.reached.wait(PATIENCE)
        try:
            assert quick.send(1) is NONE
            assert quick.end(commit=True) is NONE
            assert desk.init_producer_id("third", 60_000).error is NONE
            who = slow.name, slow.producer_id, slow.epoch
            offsets = [offset_row(store, 1)]
            assert desk.commit_offsets(*who, "g", offsets, implicit=True) is ErrorCode.CONCURRENT_TRANSACTIONS
        finally:
            gate.open.set()
    assert rows_of(desk, "slow").is_over


def rows_of(desk: TransactionCoordinator, name: str) -> Row:
    row = desk.row(name)
    assert row is not None
    return row


def test_a_tick_does_not_mark_what_a_thread_is_about_to(
    store: klamm.Store, desk: TransactionCoordinator, older: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next transaction may have the same epoch: a marker that came later would end it."""
    assert older.send(0) is NONE
    gate = hold_marking(monkeypatch, desk, older.name)
    with running(lambda: older.end(commit=True)):
        assert gate.reached.wait(PATIENCE)
        try:
            with running(desk.tick, desk._resolver.resolve_held):
                pass
            assert markers(log_of(store, 0)) == []
        finally:
            gate.open.set()
    assert len(markers(log_of(store, 0))) == 1


def test_what_came_late_is_not_aborted_while_its_producer_begins_again(
    store: klamm.Store, desk: TransactionCoordinator, older: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the epoch of what the producer is about to write."""
    assert older.send(0) is NONE
    assert older.end(commit=True) is NONE
    older.append(1, b"late")
    partition = log_of(store, 1)
    gate, original = Gate(), desk._transactions.apply

    def apply(name: str, *args: object, **options: object) -> object:
        gate()
        return original(name, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(desk._transactions, "apply", apply)
    with running(lambda: older.add(1)):
        assert gate.reached.wait(PATIENCE)
        try:
            desk._resolver.abort_hanging([partition])
            assert markers(partition) == []
        finally:
            gate.open.set()
    monkeypatch.setattr(desk._transactions, "apply", original)
    assert desk._resolver._reported == {partition}, "for the next time"
    desk._resolver.abort_reported()
    assert markers(partition) == [], "it is part of the next transaction by now"


def test_what_changes_while_all_is_read_again_stays_known(
    store: klamm.Store, desk: TransactionCoordinator, older: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = desk._transactions.load
    late = Client(store, desk, "late", bumps=False)

    def load() -> object:
        loaded = original()
        assert late.init() is NONE
        assert older.send(0) is NONE
        assert older.commit_offsets("g", 3) is NONE
        return loaded

    monkeypatch.setattr(desk._transactions, "load", load)
    desk._reload()
    monkeypatch.setattr(desk._transactions, "load", original)
    assert rows_of(desk, "late").producer_id == late.producer_id
    assert rows_of(desk, older.name).is_ongoing
    assert desk.pending_offsets("g")
    desk.tick()
    assert rows_of(desk, "late").producer_id == late.producer_id
    assert late.send(2) is NONE
    assert late.end(commit=True) is NONE


def test_partitions_of_one_transaction_are_synced_at_once(
    store: klamm.Store, desk: TransactionCoordinator, older: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = threading.Barrier(3)
    original = Partition.sync

    def sync(self: Partition, upto: int) -> None:
        barrier.wait(PATIENCE)
        original(self, upto)

    assert older.send(0, 1, 2) is NONE
    monkeypatch.setattr(Partition, "sync", sync)
    assert older.end(commit=True) is NONE
    monkeypatch.setattr(Partition, "sync", original)
    assert all(log.log.flushed_offset == log.ends().end for log in (log_of(store, number) for number in range(3)))


def test_many_ends_share_a_commit(
    store: klamm.Store, desk: TransactionCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [Client(store, desk, f"client{number}", bumps=False) for number in range(8)]
    for client in clients:
        assert client.init() is NONE
        assert client.send(0) is NONE
        assert client.end(commit=True) is NONE  # what is read of the catalog for it is known then
        assert client.send(0) is NONE
    database = core_of(store).catalog.database
    group, commits, gate = desk._resolver.group_commit, [0], Gate()
    original = database.transaction

    def transaction(*, durable: bool = True) -> object:
        commits[0] += durable
        return original(durable=durable)

    with running(lambda: group.run(lambda execute: gate())):
        assert gate.reached.wait(PATIENCE)
        monkeypatch.setattr(database, "transaction", transaction)
        with running(*[lambda client=client: client.end(commit=True) for client in clients]):
            for _ in range(int(PATIENCE * 1000)):
                if len(group._queue) == 8:
                    break
                threading.Event().wait(0.001)
            assert len(group._queue) == 8
            gate.open.set()
    assert commits[0] == 1
    assert len(seen(store, 0)[0]) == 16
