"""Several producers' transactions, of several processes, with one decision: a coordinator's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from klamm.errors import Aborted, OnceMismatch
from klamm.store import once
from klamm.store.once import AlreadyCommitted, WriterNumber
from klamm.store.transactions import Identity
from tests.procs import children
from tests.store.open_transactions import core_of, log_of, markers, seen, stands_open
from tests.store.test_transactions import append, begin


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "events")


@pytest.fixture
def store(path: str) -> Iterator[klamm.Store]:
    with klamm.open(path) as opened:
        opened.topics.create("t", 3)
        yield opened


def handed_over(path: str, number: int, *, timeout_ms: int = 60_000) -> tuple[int, int]:
    """In a process of its own, which then ends: a record in one partition, left to a coordinator."""

    def work() -> tuple[int, int]:
        with klamm.open(path) as mine:
            identity = begin(mine, number, timeout_ms=timeout_ms)
            log_of(mine, number).sync(log_of(mine, number).ends().end)
            return core_of(mine).transactions.hand_over(identity)

    with children() as start:
        key: tuple[int, int] = start(work).answer()
        return key


def adopted(store: klamm.Store, *keys: tuple[int, int]) -> list[Identity]:
    return [core_of(store).transactions.adopt(*key) for key in keys]


@pytest.mark.parametrize("commit", [True, False])
def test_transactions_of_several_processes_have_one_end(store: klamm.Store, path: str, commit: bool) -> None:
    keys = [handed_over(path, number) for number in (0, 1, 2)]
    core_of(store).transactions.resolve([log_of(store, number) for number in range(3)])
    assert [info.state for info in store.transactions] == ["ongoing"] * 3, "their processes are gone, not their time"
    mine = adopted(store, *keys)
    before = store._acquired().catalog.database.version()[0]
    assert core_of(store).transactions.decide(*mine, commit=commit) is commit
    assert store._acquired().catalog.database.version()[0] == before + 1, "one SQLite transaction"
    for identity in mine:
        core_of(store).transactions.finish(identity, commit=commit)
    core_of(store).transactions.tidy()
    expected = [[b"%d-%d" % key] if commit else [] for key in keys]
    assert seen(store, 0, 1, 2) == expected and list(store.transactions) == [] and store.check().ok


def decide_once(store: klamm.Store, keys: list[tuple[int, int]], number: int, fingerprint: str = "") -> bool | None:
    """Decide several transactions together with a number of a writer."""
    put = WriterNumber("loader", "", number, fingerprint)
    return core_of(store).transactions.decide(
        *adopted(store, *keys), commit=True, also=lambda execute: once.put(execute, put)
    )


def test_a_number_and_transactions_of_several_processes_are_one_decision(store: klamm.Store, path: str) -> None:
    database = store._acquired().catalog.database
    first, again, other = ([handed_over(path, number) for number in (0, 1)] for _ in range(3))
    before = database.version()[0]
    assert decide_once(store, first, 17, "a") is True
    assert database.version()[0] == before + 1, "one SQLite transaction"
    with pytest.raises(AlreadyCommitted):
        decide_once(store, again, 17, "a")
    with pytest.raises(OnceMismatch):
        decide_once(store, other, 17, "b")
    states = {(info.producer_id, info.epoch): info.state for info in store.transactions}
    assert [states[key] for key in again + other] == ["ongoing"] * 4, "a refused number commits none of them"
    assert store.transactions.abort(other[0][0])
    with pytest.raises(Aborted):
        decide_once(store, other, 18)
    assert once.last(database, "loader") == 17, "nor does one that was aborted take the number"
    for key in again + other:
        store.transactions.abort(key[0])
    core_of(store).transactions.resolve()
    assert seen(store, 0, 1) == [[b"%d-%d" % key] for key in first] and store.check().ok


def test_a_coordinator_killed_after_its_decision_has_made_it_for_all(store: klamm.Store, path: str) -> None:
    keys = [handed_over(path, number) for number in (0, 1)]

    def coordinate() -> None:
        with klamm.open(path) as mine:
            core_of(mine).transactions.decide(*adopted(mine, *keys), commit=True)
            os.kill(os.getpid(), signal.SIGKILL)

    with children() as start:
        assert os.WIFSIGNALED(start(coordinate).ended())
    core_of(store).transactions.resolve()
    assert seen(store, 0, 1) == [[b"%d-%d" % key] for key in keys] and list(store.transactions) == []


def test_what_a_dead_coordinator_has_left_is_aborted_when_its_time_is_over(store: klamm.Store, path: str) -> None:
    keys = [handed_over(path, number, timeout_ms=60_000) for number in (0, 1)]
    core_of(store).transactions.resolve()
    assert stands_open(log_of(store, 0)) and stands_open(log_of(store, 1))
    late = adopted(store, *keys)
    core_of(store).heads.advance(61_000)
    core_of(store).transactions.resolve()
    assert list(store.transactions) == [] and seen(store, 0, 1) == [[], []]
    assert [markers(log_of(store, number)) for number in (0, 1)] == [[1], [1]]
    with pytest.raises(Aborted):
        core_of(store).transactions.decide(*late, commit=True)
    with pytest.raises(Aborted):
        core_of(store).transactions.adopt(*keys[0])


def test_one_that_was_aborted_keeps_all_from_being_committed(store: klamm.Store, path: str) -> None:
    keys = [handed_over(path, number) for number in (0, 1)]
    mine = adopted(store, *keys)
    assert store.transactions.abort(keys[1][0])
    with pytest.raises(Aborted):
        core_of(store).transactions.decide(*mine, commit=True)
    assert [info.state for info in store.transactions] == ["ongoing"], "the other one"
    assert core_of(store).transactions.decide(*mine, commit=False) is False
    core_of(store).transactions.resolve()
    assert list(store.transactions) == [] and seen(store, 0, 1) == [[], []]


def test_one_that_has_a_name_keeps_it_until_it_is_decided(store: klamm.Store) -> None:
    transactions = core_of(store).transactions
    key = transactions.hand_over(begin(store, 0, name="worker"))
    transactions.sweep_names()
    (other,) = adopted(store, key)
    assert transactions.decide(other, commit=True) is True
    transactions.finish(other, commit=True)
    key = transactions.hand_over(begin(store, 1, name="worker"))
    (late,) = adopted(store, key)
    transactions.identity("worker")
    with pytest.raises(klamm.Fenced):
        transactions.decide(late, commit=True)
    assert seen(store, 0, 1) == [[b"0-0"], []]


def test_whoever_handed_it_over_cannot_end_it_any_more_but_be_fenced(store: klamm.Store) -> None:
    transactions = core_of(store).transactions
    mine = begin(store, 0)
    transactions.hand_over(mine)
    (other,) = adopted(store, mine.key)
    assert transactions.decide(other, commit=True) is True
    transactions.finish(other, commit=True)
    with pytest.raises(klamm.Fenced):
        append(log_of(store), mine, 1)
    assert seen(store, 0) == [[b"0-0"]]
