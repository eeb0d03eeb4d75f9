"""The transaction coordinator of transactional producers when servers are killed, writers stopped, batches late, rows
damaged.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.disk.locks import SERVER
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.transaction_coordinator import Identified
from klamm.store import markers as store_markers
from tests.kafka.producing import Client, hasten, hold_server, offset_of, place_of, serving
from tests.procs import Flag, children
from tests.store.open_transactions import core_of, hold_append_lock, log_of, markers, seen, stands_open

NONE = ErrorCode.NONE


# ---- without a server


@pytest.mark.parametrize("bumps", [False, True])
def test_without_a_server_programs_end_what_is_decided_and_what_is_late(store: klamm.Store, bumps: bool) -> None:
    resolve = core_of(store).transactions.resolve
    with serving(store) as coordinator:
        client = Client(store, coordinator, bumps=bumps)
        assert client.init() is NONE and client.send(0) is NONE
        hasty = Client(store, coordinator, "hasty", bumps=bumps)
        assert hasty.init() is NONE and hasty.send(1) is NONE
        hasten(store, coordinator, "hasty")
        resolve([log_of(store), log_of(store, 1)])
        assert stands_open(log_of(store, 1)), "there is a server"
    resolve([log_of(store), log_of(store, 1)])
    assert [stands_open(log_of(store, number)) for number in (0, 1)] == [True, False]
    members = core_of(store).members
    assert members is not None and not members.held(SERVER)
    with serving(store) as coordinator:
        client.coordinator = coordinator
        assert client.end(commit=True) is NONE
    assert seen(store, 0, 1) == [[b"x"], []]


def test_a_resolver_leaves_a_client_with_one_epoch_alone(store: klamm.Store, older: Client) -> None:
    resolve = core_of(store).transactions.resolve
    assert older.send(0) is NONE
    resolve([log_of(store)])
    store.maintain()
    assert older.end(commit=True) is NONE
    resolve([log_of(store)])
    assert older.send(0) is NONE and older.end(commit=True) is NONE
    assert markers(log_of(store)) == [0, 0]


def test_what_comes_after_the_marker_in_the_same_epoch_is_aborted(store: klamm.Store, older: Client) -> None:
    assert older.send(0) is NONE and older.end(commit=True) is NONE
    older.append(0, b"late")
    assert stands_open(log_of(store))
    core_of(store).transactions.resolve([log_of(store)])  # as whoever keeps house does
    older.coordinator.tick()
    assert not stands_open(log_of(store)) and seen(store, 0) == [[b"x"]]
    assert older.send(0, value=b"y") is NONE and older.end(commit=True) is NONE
    assert seen(store, 0) == [[b"x", b"y"]]


def test_what_came_late_is_left_to_the_server_whatever_epoch_its_client_has_by_now(
    store: klamm.Store, older: Client
) -> None:
    assert older.send(0) is NONE and older.end(commit=True) is NONE
    older.append(0, b"late")
    assert older.init() is NONE and older.epoch == 1
    core_of(store).transactions.resolve([log_of(store)])
    assert markers(log_of(store)) == [0], "a marker of epoch 1 could come into the client's next transaction"
    older.coordinator.tick()
    assert markers(log_of(store)) == [0, 0] and not stands_open(log_of(store))
    assert older.send(0, value=b"y") is NONE and older.end(commit=True) is NONE
    assert seen(store, 0) == [[b"x", b"y"]]


def test_what_comes_late_does_not_keep_a_later_epoch_from_ending(store: klamm.Store, older: Client) -> None:
    assert older.send(0) is NONE and older.end(commit=True) is NONE
    older.append(0, b"late")
    assert older.init() is NONE and older.add(0) is NONE
    assert older.init() is NONE, "which aborts, though something older is open there"
    assert older.send(0, value=b"y") is NONE and older.end(commit=True) is NONE
    assert seen(store, 0) == [[b"x", b"y"]]


# ---- a server that is killed


STEPS = ["init", "add", "send", "offsets", "decide", "mark", "end"]


@pytest.mark.parametrize("bumps", [False, True], ids=["older", "kip-890"])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_a_server_killed_at_any_step_forgets_nothing(
    store: klamm.Store, path: Path, step: str, commit: bool, bumps: bool
) -> None:
    def die(*_: object) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def serve() -> None:
        with klamm.open(path) as mine, serving(mine) as coordinator:
            client = Client(mine, coordinator, bumps=bumps)
            assert client.init() is NONE
            actions: dict[str, Callable[[], ErrorCode]] = {
                "init": lambda: NONE,
                "add": lambda: client.add(0),
                "send": lambda: client.send(0, 1),
                "offsets": lambda: client.commit_offsets("g", 3),
            }
            for each, action in actions.items():
                assert action() is NONE
                if each == step:
                    die()
            if step == "decide":
                coordinator._resolver.complete = die  # type: ignore[assignment, method-assign]
            if step == "mark":
                mark = coordinator._resolver._mark
                coordinator._resolver._mark = lambda *of: mark(*of) and die()  # type: ignore[method-assign]
            assert client.end(commit=commit) is NONE
            die()

    with children() as start:
        assert os.WIFSIGNALED(start(serve).ended())
    with serving(store) as coordinator:
        client = Client(store, coordinator, bumps=bumps)
        row = coordinator.row("billing")
        assert row is not None
        client.producer_id, client.epoch = row.producer_id, 0
        done = STEPS.index(step)
        assert row.is_ongoing == (0 < done < 4)
        assert (("g", *place_of(store)) in coordinator.pending_offsets({"g"})) == (done == 3)
        if done == 0:
            assert row.epoch == 0 and client.add(0) is NONE
        if 0 <= done < 2:
            assert client.send(0, 1) is NONE
        if 0 <= done < 3:
            assert client.commit_offsets("g", 3) is NONE
        assert client.end(commit=commit) is NONE, "once more, where it was done"
        assert [stands_open(log_of(store, number)) for number in (0, 1)] == [False, False]
        assert seen(store, 0, 1) == ([[b"x"], [b"x"]] if commit else [[], []])
        assert offset_of(store, "g") == (3 if commit else None)
        if not bumps:
            client.sequences = {place_of(store, number): 1 for number in (0, 1)}
        assert client.send(0, value=b"next") is NONE and client.end(commit=True) is NONE
        assert seen(store, 0)[0][-1:] == [b"next"]
        assert client.init() is NONE
        assert store.check().breaches == []


def test_a_starting_server_waits_for_whoever_resolves(store: klamm.Store, path: Path, tmp_path: Path) -> None:
    held, go = Flag(tmp_path / "held"), Flag(tmp_path / "go")

    def resolver() -> None:
        with klamm.open(path) as mine:
            assert hold_server(core_of(mine))
            held.up()
            go.wait()

    with children() as start:
        child = start(resolver)
        held.wait()
        assert not hold_server(core_of(store), 0.02)
        go.up()
        with serving(store):
            pass
        child.answer()


# ---- a log that cannot be written


def test_a_stopped_writer_keeps_nobody_waiting(store: klamm.Store, path: Path, tmp_path: Path, client: Client) -> None:
    ready, go = Flag(tmp_path / "ready"), Flag(tmp_path / "go")

    with children() as start:
        stopped = start(partial(hold_append_lock, path, 1, ready, go))
        ready.wait()
        assert client.send(0, 1) is NONE
        for number in (0, 1):
            log_of(store, number).sync(log_of(store, number).ends().end)
        go.up()
        assert stopped.stopped()
        assert client.end(commit=True) is NONE, "it is committed"
        assert [stands_open(log_of(store, number)) for number in (0, 1)] == [False, True]
        assert client.add(0) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert client.commit_offsets("g", 1) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert client.coordinator.check_produce(client.producer_id, client.epoch, place_of(store)) in (
            ErrorCode.CONCURRENT_TRANSACTIONS,
        )
        assert client.init() is ErrorCode.CONCURRENT_TRANSACTIONS
        client.coordinator.tick()
        assert [info.state for info in store.transactions] == ["prepared_commit"]
        stopped.go_on()
        stopped.answer()
        client.coordinator.tick()
    assert list(store.transactions) == [] and seen(store, 0, 1) == [[b"x"], [b"x"]]
    assert client.send(0, 1) is NONE and client.end(commit=True) is NONE


def test_a_process_that_syncs_for_ever_makes_a_commit_be_tried_again(
    store: klamm.Store, path: Path, tmp_path: Path, newer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_markers, "_STALLED_S", 0.01)
    ready, go = Flag(tmp_path / "ready"), Flag(tmp_path / "go")

    def hold() -> None:
        with klamm.open(path) as mine, log_of(mine).log.flush_lock():
            ready.up()
            go.wait()

    with children() as start:
        assert newer.send(0) is NONE
        child = start(hold)
        ready.wait()
        assert newer.ask_end(commit=True) == Identified(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert [info.state for info in store.transactions] == ["ongoing"]
        go.up()
        child.answer()
    assert newer.end(commit=True) is NONE and seen(store, 0) == [[b"x"]]


# ---- damage


def test_rows_that_are_not_as_they_were_written_are_told(store: klamm.Store, newer: Client) -> None:
    assert newer.commit_offsets("g", 3) is NONE
    database = core_of(store).catalog.database
    with database.db_lock(), database.transaction() as execute:
        execute("UPDATE pending_offsets SET offset = 4")
    (breach,) = store.check().breaches
    assert "pending_offsets: producer id" in breach.message
    with database.db_lock(), database.transaction() as execute:
        execute("UPDATE transactions SET next_epoch = 5")
    assert "transactions: the row of producer id" in store.check().breaches[0].message
    with pytest.raises(klamm.NotAStore, match="damaged"):
        newer.end(commit=True)
