"""Several transactions of clients, and a writer's number, with one decision (store/joint_decision.py)."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

import klamm
from klamm.errors import Fenced
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.transaction_coordinator import TransactionCoordinator
from klamm.store import joint_decision, once
from klamm.store.joint_decision import Decision
from klamm.store.once import WriterNumber
from klamm.store.transaction_state import MAX_EPOCH
from klamm.types import InputRange, OutputRange
from tests.kafka.producing import Client, serving, set_epoch
from tests.procs import children, until
from tests.store.open_transactions import core_of, log_of, markers, seen, stands_open

NONE = ErrorCode.NONE
WRITER, SCOPE = "query q", "query q/t/"
FIRST = WriterNumber(WRITER, "topic t", 7, "offsets a", "where it ended")


def tasks(store: klamm.Store, coordinator: TransactionCoordinator, *numbers: int) -> list[Client]:
    """Attempts of tasks, which have each written to a partition."""
    made = [Client(store, coordinator, f"{SCOPE}{number}-0", bumps=True) for number in numbers]
    for number, client in zip(numbers, made, strict=True):
        assert client.init() is NONE
        assert client.send(number, value=b"of %d" % number) is NONE
    return made


def decision(*clients: Client, commit: bool = True, **more: Any) -> Decision:
    producers = {client.name: (client.producer_id, client.epoch) for client in clients}
    return Decision(WRITER, SCOPE, producers, commit, **more)


def last(store: klamm.Store) -> WriterNumber | None:
    with core_of(store).catalog.database.reading() as execute:
        return once.find(execute, WRITER, "topic t")


@pytest.mark.parametrize("commit", [True, False])
def test_all_have_one_end_in_one_write(store: klamm.Store, coordinator: TransactionCoordinator, commit: bool) -> None:
    clients = tasks(store, coordinator, 0, 1, 2)
    before = core_of(store).catalog.database.version()[0]
    code, decided = coordinator.decide(decision(*clients, commit=commit))
    assert code is NONE and decided is not None and len(decided.steps) == 3
    assert core_of(store).catalog.database.version()[0] == before + 1
    assert seen(store, 0, 1, 2) == ([[b"of 0"], [b"of 1"], [b"of 2"]] if commit else [[], [], []])
    assert [len(markers(log_of(store, number))) for number in range(3)] == [1, 1, 1]
    assert not any(stands_open(log_of(store, number)) for number in range(3))


def test_what_is_not_named_is_aborted_and_its_producer_fenced(
    store: klamm.Store, coordinator: TransactionCoordinator
) -> None:
    winner, failed = tasks(store, coordinator, 0, 1)
    slow = Client(store, coordinator, f"{SCOPE}0-1", bumps=True)  # the same task, once more
    assert slow.init() is NONE and slow.send(0, value=b"twice") is NONE
    other = Client(store, coordinator, "query q2/t/0-0", bumps=True)
    assert other.init() is NONE and other.send(2, value=b"of another job") is NONE
    assert coordinator.decide(decision(winner))[0] is NONE
    assert seen(store, 0, 1, 2) == [[b"of 0"], [], []]
    for zombie, number in ((failed, 1), (slow, 0)):
        assert zombie.send(number, value=b"late") is ErrorCode.INVALID_PRODUCER_EPOCH
        assert coordinator.decide(decision(zombie))[0] is ErrorCode.PRODUCER_FENCED
        with pytest.raises(Fenced):  # the log refuses it, too
            zombie.append(number, b"late")
        assert zombie.end(commit=True) is ErrorCode.PRODUCER_FENCED
    assert other.end(commit=True) is NONE
    assert seen(store, 0, 1, 2) == [[b"of 0"], [], [b"of another job"]]


def test_an_attempt_that_has_not_written_yet_is_fenced_too(
    store: klamm.Store, coordinator: TransactionCoordinator
) -> None:
    (winner,) = tasks(store, coordinator, 0)
    slow, other = (Client(store, coordinator, name, bumps=True) for name in (f"{SCOPE}0-1", "query q2/t/0-0"))
    assert slow.init() is NONE and other.init() is NONE
    assert coordinator.decide(decision(winner))[0] is NONE
    assert slow.send(1, value=b"late") is ErrorCode.INVALID_PRODUCER_EPOCH
    assert not stands_open(log_of(store, 1)), "readers would wait behind it until it times out"
    before = coordinator.row(slow.name)
    assert coordinator.decide(decision(commit=False))[0] is NONE
    assert coordinator.row(slow.name) == before, "once is enough"
    assert slow.init() is NONE and slow.send(1, value=b"of the next batch") is NONE
    assert coordinator.decide(decision(slow))[0] is NONE
    assert other.send(2, value=b"of another job") is NONE and other.end(commit=True) is NONE
    assert seen(store, 0, 1, 2) == [[b"of 0"], [b"of the next batch"], [b"of another job"]]
    assert klamm.check(store.path).ok


def test_nothing_is_decided_if_one_of_them_is_over(store: klamm.Store, coordinator: TransactionCoordinator) -> None:
    clients = tasks(store, coordinator, 0, 1, 2)
    again = Client(store, coordinator, clients[1].name, bumps=True)
    assert again.init() is NONE  # a newer attempt of the second
    code, decided = coordinator.decide(decision(*clients, number=FIRST))
    assert code is ErrorCode.PRODUCER_FENCED and decided is not None and decided.name == clients[1].name
    assert last(store) is None and seen(store, 0, 1, 2) == [[], [], []]
    unknown = Decision(WRITER, SCOPE, {f"{SCOPE}9-0": (4711, 0)}, True, FIRST)
    assert coordinator.decide(unknown)[0] is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert again.send(1, value=b"new") is NONE
    assert coordinator.decide(decision(clients[0], again, clients[2], number=FIRST))[0] is NONE
    assert seen(store, 0, 1, 2) == [[b"of 0"], [b"new"], [b"of 2"]] and last(store) == FIRST


def test_the_number_is_recorded_if_it_is_still_the_one_that_was_seen(
    store: klamm.Store, coordinator: TransactionCoordinator
) -> None:
    (client,) = tasks(store, coordinator, 0)
    assert coordinator.decide(decision(client, number=FIRST))[0] is NONE
    assert last(store) == FIRST
    second = FIRST._replace(number=8, fingerprint="offsets b")
    (client,) = tasks(store, coordinator, 1)
    for seen_before in (None, (7, "offsets x"), (6, "offsets a")):
        code, decided = coordinator.decide(decision(client, number=second, last=seen_before))
        assert code is NONE and decided is not None and decided.conflict and decided.last == FIRST
    assert last(store) == FIRST and seen(store, 0, 1) == [[b"of 0"], []]
    assert coordinator.decide(decision(client, number=second, last=(7, "offsets a")))[0] is NONE
    assert last(store) == second and seen(store, 0, 1) == [[b"of 0"], [b"of 1"]]


def test_a_number_that_is_not_above_the_last_one_commits_nothing(
    store: klamm.Store, coordinator: TransactionCoordinator
) -> None:
    (client,) = tasks(store, coordinator, 0)
    assert coordinator.decide(decision(client, number=FIRST))[0] is NONE
    (client,) = tasks(store, coordinator, 1)
    for number, fingerprint in ((7, "offsets a"), (7, "offsets b"), (6, "offsets a")):
        again = FIRST._replace(number=number, fingerprint=fingerprint)
        code, decided = coordinator.decide(decision(client, number=again, last=(7, "offsets a")))
        assert code is NONE and decided is not None and decided.last == FIRST
        assert decided.conflict == f"{WRITER}: number {number} to topic t: is not above 7, the last one"
    assert last(store) == FIRST and seen(store, 0, 1) == [[b"of 0"], []]


def test_lineage_of_a_decision_has_the_offsets_that_any_of_them_moves(
    store: klamm.Store, coordinator: TransactionCoordinator
) -> None:
    store.alter({"lineage.retention.ms": 3_600_000})
    clients = tasks(store, coordinator, 0, 1)
    assert clients[0].commit_offsets("g", 3) is NONE
    assert coordinator.decide(decision(*clients))[0] is NONE
    for number in (0, 1):
        with store.consumer({"t": [number]}, wait=0) as consumer:
            (found,) = [store.lineage(record) for record in consumer]
        assert found is not None
        assert found.inputs == (InputRange("g", "t", 0, 0, 3),) and found.outputs == (OutputRange("t", number, 0, 1),)


def test_a_decision_that_comes_again_has_the_same_response_and_changes_nothing(
    store: klamm.Store, coordinator: TransactionCoordinator
) -> None:
    clients = tasks(store, coordinator, 0, 1)
    for _ in range(3):
        assert coordinator.decide(decision(*clients))[0] is NONE
    assert coordinator.decide(decision(*clients, commit=False))[0] is ErrorCode.INVALID_TXN_STATE
    assert [len(markers(log_of(store, number))) for number in range(2)] == [1, 1]


def test_transactional_ids_are_used_again_and_forgotten_when_the_job_is_over(
    store: klamm.Store, coordinator: TransactionCoordinator
) -> None:
    for _ in range(3):
        assert coordinator.decide(decision(*tasks(store, coordinator, 0, 1, 2)))[0] is NONE
    assert len(coordinator.rows()) == 3 and [len(each) for each in seen(store, 0, 1, 2)] == [3, 3, 3]
    left = tasks(store, coordinator, 0)[0]
    assert coordinator.decide(decision(commit=False, forgets=True))[0] is NONE  # its markers are to come
    assert coordinator.decide(decision(commit=False, forgets=True))[0] is NONE
    assert coordinator.rows() == [] and not stands_open(log_of(store, 0))
    with core_of(store).catalog.database.reading() as execute:
        assert joint_decision.names_in(execute, SCOPE) == []
    assert left.send(0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert klamm.check(store.path).ok


def test_a_producer_whose_epochs_have_come_to_an_end_is_decided_too(
    store: klamm.Store, coordinator: TransactionCoordinator
) -> None:
    (client,) = tasks(store, coordinator, 0)
    assert coordinator.decide(decision(client))[0] is NONE
    coordinator.tick()  # that it is complete is written
    set_epoch(store, client, MAX_EPOCH - 1)
    (client,) = tasks(store, coordinator, 0)
    assert client.epoch == MAX_EPOCH
    assert coordinator.decide(decision(client))[0] is NONE
    (client,) = tasks(store, coordinator, 0)
    assert coordinator.decide(decision(client))[0] is NONE
    assert seen(store, 0) == [[b"of 0"] * 3] and not stands_open(log_of(store, 0))


def test_a_decision_waits_for_requests_at_its_transactions(
    store: klamm.Store, coordinator: TransactionCoordinator
) -> None:
    clients = tasks(store, coordinator, 0, 1)
    is_held, is_free = threading.Event(), threading.Event()

    def hold() -> None:
        with core_of(store).transactions.resolver.turns.wait(clients[1].name):
            is_held.set()
            is_free.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    assert is_held.wait(60)
    threading.Timer(0.1, is_free.set).start()
    until(lambda: coordinator.decide(decision(*clients))[0] is NONE, "it has its turn")
    other.join()
    assert seen(store, 0, 1) == [[b"of 0"], [b"of 1"]]


@pytest.mark.parametrize("step", ["before", "after", "between markers"])
def test_a_server_killed_around_the_decision_leaves_all_or_nothing(path: Any, step: str) -> None:
    with klamm.open(path) as store:
        store.topics.create("t", 3)

    def die(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def serve_and_die() -> None:
        with klamm.open(path) as mine, serving(mine) as coordinator:
            clients = tasks(mine, coordinator, 0, 1, 2)
            resolver = core_of(mine).transactions.resolver
            if step == "before":
                joint_decision.once.write = die  # type: ignore[attr-defined]
            elif step == "after":
                coordinator._finish = die  # type: ignore[method-assign]
            else:
                mark, done = resolver.mark_all, []

                def mark_one(row: Any) -> Any:
                    done.append(row)
                    return mark(row) if len(done) == 1 else die()

                resolver.mark_all = mark_one  # type: ignore[method-assign]
            coordinator.decide(decision(*clients, number=FIRST))

    with children() as start:
        assert start(serve_and_die).ended() == signal.SIGKILL
    with klamm.open(path) as store, serving(store) as coordinator:
        whole = [[b"of 0"], [b"of 1"], [b"of 2"]]
        assert seen(store, 0, 1, 2) == ([[], [], []] if step == "before" else whole)
        assert last(store) == (None if step == "before" else FIRST)
        if step == "before":  # the clients go on, and the decision comes again
            rows = coordinator.rows()
            assert [row.is_ongoing for row in rows] == [True] * 3
            producers = {str(row.name): row.key for row in rows}
            assert coordinator.decide(Decision(WRITER, SCOPE, producers, True, FIRST))[0] is NONE
            assert seen(store, 0, 1, 2) == whole and last(store) == FIRST
        assert not any(stands_open(log_of(store, number)) for number in range(3))
