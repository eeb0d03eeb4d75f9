"""The transaction coordinator of transactional producers: what Kafka would answer, and what then is in the logs and in
klamm.db.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import klamm
from klamm.errors import Aborted, Fenced, GroupBusy, OutOfOrderSequence
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.transaction_coordinator import NEEDS_REGISTRATION, TransactionCoordinator
from klamm.store import transaction_table, transactions
from klamm.store.transaction_state import MAX_EPOCH, Add
from klamm.types import PartitionKey
from tests.kafka.producing import Client, Settings, hasten, offset_of, offset_row, place_of, serving, set_epoch
from tests.procs import children, until
from tests.store.open_transactions import core_of, log_of, markers, seen, server_names, stands_open

NONE = ErrorCode.NONE


# ---- who they are


def test_without_a_transactional_id_everybody_is_new(coordinator: TransactionCoordinator) -> None:
    first, second = coordinator.init_producer_id(None, 0), coordinator.init_producer_id(None, 0, 5, 3)
    assert first == (NONE, first.producer_id, 0) and second == (NONE, second.producer_id, 0)
    assert first.producer_id != second.producer_id


def test_a_transactional_id_keeps_its_producer_id_and_its_epoch_grows(coordinator: TransactionCoordinator) -> None:
    first = coordinator.init_producer_id("a", 1000)
    assert first.epoch == 0
    assert coordinator.init_producer_id("a", 1000) == (NONE, first.producer_id, 1)
    assert coordinator.init_producer_id("b", 1000).producer_id != first.producer_id


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("", 1000), ErrorCode.INVALID_REQUEST),
        (("a" * 5000, 1000), ErrorCode.INVALID_REQUEST),
        (("a", 1000, 7, -1), ErrorCode.INVALID_REQUEST),
        (("a", 1000, -1, 7), ErrorCode.INVALID_REQUEST),
        (("a", 0), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (("a", -1), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (("a", 900_001), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_an_init_that_is_refused_leaves_no_row(
    coordinator: TransactionCoordinator, arguments: tuple[str, int], code: ErrorCode
) -> None:
    assert coordinator.init_producer_id(*arguments) == (code, -1, -1)
    assert coordinator.rows() == []


def test_who_says_who_he_was_gets_the_next_epoch_once(coordinator: TransactionCoordinator) -> None:
    producer_id = coordinator.init_producer_id("a", 1000).producer_id
    assert coordinator.init_producer_id("a", 1000, producer_id, 0) == (NONE, producer_id, 1)
    assert coordinator.init_producer_id("a", 1000, producer_id, 0) == (NONE, producer_id, 1), "the answer was lost"
    assert coordinator.init_producer_id("a", 1000, producer_id, 1) == (NONE, producer_id, 2)
    assert coordinator.init_producer_id("a", 1000, producer_id, 0).error is ErrorCode.PRODUCER_FENCED
    assert coordinator.init_producer_id("a", 1000, producer_id + 1, 2).error is ErrorCode.PRODUCER_FENCED
    assert coordinator.init_producer_id("a", 1000) == (NONE, producer_id, 3)
    assert coordinator.init_producer_id("a", 1000, producer_id, 2).error is ErrorCode.PRODUCER_FENCED, (
        "somebody newer came"
    )


def test_after_the_last_epoch_comes_another_producer_id(store: klamm.Store, older: Client) -> None:
    set_epoch(store, older, MAX_EPOCH)
    first = older.producer_id
    assert older.init() is NONE
    assert older.producer_id != first and older.epoch == 0
    assert [row.producer_id for row in older.coordinator.rows()] == [older.producer_id]
    assert store.check().breaches == []
    again = older.coordinator.init_producer_id("billing", 1000, first, MAX_EPOCH)
    assert again == (NONE, older.producer_id, 0), "it has not heard of it"
    zombie = older.coordinator.init_producer_id("billing", 1000, first, 0)
    assert zombie.error is ErrorCode.PRODUCER_FENCED, "it was fenced long before"


def test_what_was_left_open_is_aborted_when_its_client_comes_again(store: klamm.Store, client: Client) -> None:
    assert client.send(0, 1) is NONE
    zombie = Client(store, client.coordinator, bumps=client.bumps)
    zombie.producer_id, zombie.epoch, zombie.sequences = client.producer_id, client.epoch, dict(client.sequences)
    assert client.init() is NONE
    assert client.producer_id == zombie.producer_id and client.epoch > zombie.epoch
    assert [stands_open(log_of(store, number)) for number in range(2)] == [False, False]
    assert seen(store, 0, 1) == [[], []]
    with pytest.raises(Fenced):
        zombie.append(0)
    assert zombie.send(2) in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    assert zombie.end(commit=True) is ErrorCode.PRODUCER_FENCED
    assert client.send(0) is NONE and client.end(commit=True) is NONE
    assert seen(store, 0) == [[b"x"]] and store.check().breaches == []


def test_who_says_who_he_was_aborts_his_own(store: klamm.Store, client: Client) -> None:
    assert client.send(0) is NONE
    before = client.producer_id, client.epoch
    assert client.init(again=True) is NONE
    assert client.epoch == before[1] + 1 and not stands_open(log_of(store))
    assert client.coordinator.init_producer_id("billing", 1000, *before) == (NONE, client.producer_id, client.epoch)
    assert client.send(0) is NONE
    assert client.coordinator.init_producer_id("billing", 1000, *before).error is ErrorCode.PRODUCER_FENCED
    assert client.end(commit=True) is NONE


# ---- what is part of a transaction


def test_a_batch_is_taken_where_its_transaction_has_the_partition(store: klamm.Store, client: Client) -> None:
    coordinator, here, there = client.coordinator, place_of(store, 0), place_of(store, 1)
    me = client.producer_id, client.epoch
    assert coordinator.check_produce(*me, here) is NEEDS_REGISTRATION
    assert client.add(0) is NONE and client.add(0) is NONE
    assert coordinator.check_produce(*me, here) is NONE
    assert coordinator.check_produce(*me, there) is NEEDS_REGISTRATION
    assert coordinator.check_produce(me[0], me[1] + 1, here) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert coordinator.check_produce(me[0], me[1] - 1, here) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert coordinator.check_produce(me[0] + 1, me[1], here) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert coordinator.verify("billing", *me, [here, there]) == {here}
    assert coordinator.verify("billing", me[0], me[1] + 1, [here]) is ErrorCode.PRODUCER_FENCED
    assert coordinator.verify("nobody", *me, [here]) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert client.end(commit=True) is NONE
    assert coordinator.check_produce(client.producer_id, client.epoch, here) is NEEDS_REGISTRATION
    assert coordinator.verify("billing", client.producer_id, client.epoch, [here]) == set()


def test_partitions_and_groups_are_added_only_by_the_producer_of_the_transaction(
    store: klamm.Store, client: Client
) -> None:
    coordinator, here = client.coordinator, [place_of(store)]
    me = client.producer_id, client.epoch

    for added in ((frozenset(here), frozenset[str]()), (frozenset[PartitionKey](), frozenset({"g"}))):
        for name, producer_id, epoch, code in (
            ("nobody", *me, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            ("billing", me[0] + 1, me[1], ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            ("billing", me[0], me[1] + 1, ErrorCode.PRODUCER_FENCED),
            ("billing", me[0], me[1] - 1, ErrorCode.PRODUCER_FENCED),
        ):
            event = Add((producer_id, epoch), *added)
            assert coordinator.apply_together([(name, event)]) == [None], "left to who is asked alone"
            assert coordinator.apply(name, event).error is code
    assert list(store.transactions) == []


# ---- how it ends


@pytest.mark.parametrize("commit", [True, False])
def test_transactions_one_after_the_other(store: klamm.Store, client: Client, commit: bool) -> None:
    first = client.epoch
    for number in range(4):
        assert client.send(0, 1, value=b"%d" % number) is NONE
        assert seen(store, 0)[0] == ([b"%d" % n for n in range(number)] if commit else [])
        assert client.end(commit=commit) is NONE
        assert log_of(store).log.flushed_offset == log_of(store).ends().end, "the marker is on disk"
    assert markers(log_of(store)) == [first + n + 1 if client.bumps else first for n in range(4)]
    assert seen(store, 0, 1) == [[b"0", b"1", b"2", b"3"] if commit else []] * 2
    assert client.epoch == (first + 4 if client.bumps else first)
    assert [found.state for found in store.transactions] == ["prepared_commit" if commit else "prepared_abort"]
    client.coordinator.tick()
    assert list(store.transactions) == [] and store.check().breaches == []


def test_the_older_kind_goes_on_with_its_sequences_and_leaves_other_logs_alone(
    store: klamm.Store, older: Client
) -> None:
    assert older.send(0) is NONE and older.add(1) is NONE
    assert older.end(commit=True) is NONE
    assert log_of(store, 1).ends().end == 0
    assert older.send(0) is NONE and older.sequences[place_of(store)] == 2
    older.sequences[place_of(store)] = 5
    with pytest.raises(OutOfOrderSequence):
        older.append(0)


def test_ending_twice_is_ending_once_in_the_older_kind(store: klamm.Store, older: Client) -> None:
    assert older.end(commit=True) is ErrorCode.INVALID_TXN_STATE, "nothing has begun"
    assert older.end(commit=False) is ErrorCode.INVALID_TXN_STATE
    assert older.send(0) is NONE
    for _ in range(3):
        assert older.ask_end(commit=True) == (NONE, older.producer_id, older.epoch)
    assert older.end(commit=False) is ErrorCode.INVALID_TXN_STATE
    assert older.send(0) is NONE
    assert older.end(commit=False) is NONE and older.end(commit=False) is NONE
    assert older.end(commit=True) is ErrorCode.INVALID_TXN_STATE
    assert markers(log_of(store)) == [0, 0]


def test_ending_twice_is_ending_once_in_the_newer_kind(store: klamm.Store, newer: Client) -> None:
    assert newer.end(commit=True) is ErrorCode.INVALID_TXN_STATE, "nothing has begun"
    assert newer.send(0) is NONE
    for _ in range(3):  # it does not hear the answer
        assert newer.ask_end(commit=True) == (NONE, newer.producer_id, newer.epoch + 1)
    assert newer.ask_end(commit=False).error is ErrorCode.INVALID_TXN_STATE
    assert newer.end(commit=True) is NONE and newer.epoch == 1
    assert newer.end(commit=True) is ErrorCode.INVALID_TXN_STATE, "that would be the next one, which has not begun"
    assert newer.send(0) is NONE
    old = newer.coordinator.end("billing", newer.producer_id, newer.epoch - 1, commit=True, bump=True)
    assert old.error is ErrorCode.PRODUCER_FENCED, "a late one does not end the next"
    assert stands_open(log_of(store))
    assert newer.end(commit=False) is NONE
    assert markers(log_of(store)) == [1, 2]


def test_an_empty_transaction_of_the_newer_kind_can_be_aborted(store: klamm.Store, newer: Client) -> None:
    assert newer.end(commit=False) is NONE and newer.epoch == 1
    assert newer.end(commit=False) is NONE and newer.epoch == 2
    assert newer.send(0) is NONE and newer.end(commit=True) is NONE
    assert seen(store, 0) == [[b"x"]]


def test_a_transaction_is_ended_only_by_its_producer(client: Client) -> None:
    assert client.send(0) is NONE
    me = client.producer_id, client.epoch

    def end(name: str, producer_id: int, epoch: int) -> ErrorCode:
        return client.coordinator.end(name, producer_id, epoch, commit=True, bump=client.bumps).error

    assert end("nobody", *me) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end("billing", me[0] + 1, me[1]) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end("billing", me[0], me[1] + 1) is ErrorCode.PRODUCER_FENCED
    assert end("billing", me[0], me[1] - 1) is ErrorCode.PRODUCER_FENCED
    assert end("billing", -1, -1) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert client.end(commit=True) is NONE


@pytest.mark.parametrize("with_records", [True, False])
def test_the_last_epoch_of_a_producer_id_ends_with_another(
    store: klamm.Store, newer: Client, with_records: bool
) -> None:
    set_epoch(store, newer, MAX_EPOCH)
    before = newer.producer_id, newer.epoch
    assert (newer.send(0) if with_records else newer.commit_offsets("g", 7)) is NONE
    answer = newer.ask_end(commit=True)
    assert answer.error is NONE and answer.producer_id != before[0] and answer.epoch == 0
    assert newer.ask_end(commit=True) == answer
    assert newer.ask_end(commit=False).error is ErrorCode.INVALID_TXN_STATE
    assert newer.end(commit=True) is NONE
    assert newer.send(0, value=b"y") is NONE and newer.end(commit=True) is NONE
    assert seen(store, 0) == [[b"x", b"y"] if with_records else [b"y"]]
    assert offset_of(store, "g") == (None if with_records else 7)
    assert store.check().breaches == [] and [row.producer_id for row in newer.coordinator.rows()] == [newer.producer_id]
    assert [row[0] for row in core_of(store).catalog.database.read("SELECT producer_id FROM transactions")] == [
        newer.producer_id
    ]


def test_a_deleted_topic_is_left_out(store: klamm.Store, client: Client) -> None:
    assert client.send(0) is NONE
    store.topics.create("gone")
    there = core_of(store).topic("gone").topic.id, 0
    event = Add((client.producer_id, client.epoch), frozenset({there}))
    assert client.coordinator.apply("billing", event).error is NONE
    store.topics.delete("gone")
    assert client.end(commit=True) is NONE and seen(store, 0) == [[b"x"]]
    client.coordinator.tick()
    assert list(store.transactions) == []


# ---- offsets of groups


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_become_the_groups_with_the_commit(store: klamm.Store, client: Client, commit: bool) -> None:
    coordinator, here = client.coordinator, place_of(store)
    assert client.commit_offsets("g", 3) is NONE and client.commit_offsets("g", 5) is NONE
    assert client.send(1) is NONE
    assert offset_of(store, "g") is None
    assert coordinator.pending_offsets({"g", "i"}) == {("g", *here)} and coordinator.pending_offsets({"h"}) == set()
    assert client.end(commit=commit) is NONE
    assert offset_of(store, "g") == (5 if commit else None)
    assert coordinator.pending_offsets({"g"}) == set()
    assert core_of(store).catalog.database.read("SELECT * FROM pending_offsets") == []
    assert store.check().breaches == []


def test_what_committing_offsets_refuses(
    store: klamm.Store, older: Client, coordinator: TransactionCoordinator
) -> None:
    rows, me = [offset_row(store, 1)], (older.producer_id, older.epoch)

    def commit(name: str, producer_id: int, epoch: int, group: str = "g", *, implicit: bool = True) -> ErrorCode:
        return coordinator.commit_offsets(name, producer_id, epoch, group, rows, implicit=implicit)

    assert commit("nobody", *me) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert commit("billing", me[0] + 1, me[1]) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert commit("billing", me[0], me[1] + 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert commit("billing", *me, implicit=False) is ErrorCode.INVALID_TXN_STATE, "the group was not added"
    assert older.add(0) is NONE
    assert commit("billing", *me, implicit=False) is ErrorCode.INVALID_TXN_STATE
    assert commit("billing", *me, group="") is ErrorCode.INVALID_GROUP_ID
    assert coordinator.pending_offsets({"g"}) == set() and older.end(commit=True) is NONE
    assert offset_of(store, "g") is None


def test_a_group_whose_members_are_programs_is_refused(store: klamm.Store, newer: Client) -> None:
    with store.consumer("t", group="g", wait=0) as consumer:
        consumer.poll()
        assert newer.commit_offsets("g", 3) is ErrorCode.UNKNOWN_MEMBER_ID
        assert newer.coordinator.pending_offsets({"g"}) == set() and list(store.transactions) == []
    assert newer.commit_offsets("g", 3) is NONE and newer.end(commit=True) is NONE
    assert offset_of(store, "g") == 3


def test_programs_cannot_join_a_group_that_a_transaction_is_about_to_move(path: Path, store: klamm.Store) -> None:
    with serving(store) as coordinator:
        client = Client(store, coordinator, bumps=True)
        assert client.init() is NONE and client.commit_offsets("g", 3) is NONE
    with (
        pytest.raises(GroupBusy, match="a transaction over the wire"),
        store.consumer("t", group="g", wait=0) as one,
    ):
        one.poll()
    assert store.transactions.abort(client.producer_id)
    with store.consumer("t", group="g", wait=0) as one:
        one.poll()


@pytest.mark.parametrize("what", ["group", "topic"])
def test_what_is_deleted_meanwhile_gets_no_offset(store: klamm.Store, newer: Client, what: str) -> None:
    assert newer.commit_offsets("g", 3) is NONE and newer.send(1) is NONE
    if what == "topic":
        store.topics.delete("t")
    else:
        database = core_of(store).catalog.database
        with database.db_lock(), database.transaction() as execute:
            execute("DELETE FROM groups")
    assert newer.end(commit=True) is NONE
    assert core_of(store).catalog.database.read("SELECT * FROM offsets") == []
    assert core_of(store).catalog.database.read("SELECT * FROM pending_offsets") == []


# ---- time


def test_a_transaction_that_takes_too_long_is_aborted_and_its_client_fenced(store: klamm.Store, client: Client) -> None:
    coordinator, me = client.coordinator, (client.producer_id, client.epoch)
    assert client.send(0, 1) is NONE and client.commit_offsets("g", 3) is NONE
    coordinator.tick()
    assert stands_open(log_of(store))
    hasten(store, coordinator)
    coordinator.tick()
    assert not stands_open(log_of(store)) and not stands_open(log_of(store, 1))
    assert coordinator.pending_offsets({"g"}) == set() and list(store.transactions) == []
    assert coordinator.check_produce(*me, place_of(store)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.end(commit=True) is ErrorCode.PRODUCER_FENCED
    assert client.end(commit=False) is ErrorCode.PRODUCER_FENCED
    with pytest.raises(Fenced):
        client.append(0)
    assert client.init(again=True) is ErrorCode.PRODUCER_FENCED
    assert client.init() is NONE and client.send(0) is NONE and client.end(commit=True) is NONE
    assert seen(store, 0, 1) == [[b"x"], []] and offset_of(store, "g") is None


def test_a_transaction_from_before_the_boot_is_over_when_the_server_starts(store: klamm.Store) -> None:
    with serving(store) as coordinator:
        client = Client(store, coordinator, bumps=False)
        assert client.init() is NONE and client.send(0) is NONE
    core_of(store).transactions.resolver.boot_id = "another"
    with serving(store) as coordinator:
        assert not stands_open(log_of(store)) and list(store.transactions) == []
        assert client.coordinator.end("billing", client.producer_id, client.epoch, commit=True, bump=False).error


def test_a_server_remembers_so_many_names(store: klamm.Store) -> None:
    with serving(store, Settings(max_transactional_ids=2)) as coordinator:
        for name in ("a", "b"):
            assert coordinator.init_producer_id(name, 1000).error is NONE
        assert coordinator.init_producer_id("c", 1000) == (ErrorCode.POLICY_VIOLATION, -1, -1)
        assert coordinator.init_producer_id("a", 1000).error is NONE, "it is known"
        assert coordinator.init_producer_id(None, 0).error is NONE
        assert {row.name for row in coordinator.rows()} == {"a", "b"}


def test_names_are_forgotten_a_part_at_a_time(store: klamm.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others want the write lock of klamm.db, too."""
    monkeypatch.setattr(transactions, "_PIECE", 2)
    with serving(store, Settings(transactional_id_expiration_ms=-10)) as coordinator:
        for number in range(5):
            assert coordinator.init_producer_id(f"{number}", 1000).error is NONE
        database = core_of(store).catalog.database
        generation = database._generation
        coordinator.expire()
        assert coordinator.rows() == [] and server_names(store) == []
        assert database._generation == generation + 3


def test_a_tick_reads_what_others_have_changed_and_nothing_else(
    store: klamm.Store, coordinator: TransactionCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes write to klamm.db all the time, and there may be very many transactional ids."""
    clients = [Client(store, coordinator, f"{number}", bumps=True) for number in range(100)]
    for client in clients:
        assert client.init() is NONE
    assert clients[7].send(0) is NONE and clients[7].commit_offsets("g", 3) is NONE
    coordinator._reload()
    coordinator._reload()  # what was in the copy before the first one
    rows, parsed = coordinator.rows(), list[object]()
    parse = transaction_table._parse
    monkeypatch.setattr(transaction_table, "_parse", lambda columns: parsed.append(columns[0]) or parse(columns))

    def create() -> None:
        with klamm.open(store.path) as other:
            other.topics.create("another")

    def abort() -> None:
        with klamm.open(store.path) as other:
            other.transactions.abort(clients[7].producer_id)

    before = coordinator._transactions.version()
    with children() as start:
        start(create).answer()
    assert coordinator._transactions.version() != before
    coordinator.tick()
    assert coordinator.rows() == rows and parsed == []
    with children() as start:
        start(abort).answer()
    coordinator.tick()
    assert set(parsed) == {clients[7].producer_id}
    changed = [row for row, known in zip(coordinator.rows(), rows, strict=True) if row != known]
    assert [row.name for row in changed] == ["7"] and coordinator.pending_offsets({"g"}) == set()


def test_names_are_forgotten_when_nobody_has_used_them_for_long(store: klamm.Store) -> None:
    with serving(store, Settings(transactional_id_expiration_ms=-1)) as coordinator:
        idle, busy = Client(store, coordinator, "idle", bumps=True), Client(store, coordinator, "busy", bumps=True)
        assert idle.init() is NONE and busy.init() is NONE and busy.send(0) is NONE
        store.maintain()
        assert [row.name for row in coordinator.rows()] == ["idle", "busy"], "programs leave them alone"

        def is_gone() -> bool:
            coordinator.expire()
            return len(coordinator.rows()) == 1

        until(is_gone, "a millisecond passes")
        assert [row.name for row in coordinator.rows()] == ["busy"]
        assert idle.send(0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert store.check().breaches == []


@pytest.mark.parametrize(("interval_ms", "is_swept"), [(0, True), (3_600_000, False)])
def test_expired_names_are_looked_for_as_often_as_the_setting_says(
    store: klamm.Store, interval_ms: int, is_swept: bool
) -> None:
    settings = Settings(
        transactional_id_expiration_ms=-10, transaction_remove_expired_transaction_cleanup_interval_ms=interval_ms
    )
    with serving(store, settings) as coordinator:
        assert Client(store, coordinator, "idle", bumps=True).init() is NONE
        coordinator.tick()
        assert [row.name for row in coordinator.rows()] == ([] if is_swept else ["idle"])


# ---- programs and clients of one name


def test_a_program_that_takes_a_name_over_fences_its_client(store: klamm.Store, client: Client) -> None:
    assert client.send(0) is NONE and client.commit_offsets("g", 3) is NONE
    with store.transaction("billing") as mine:
        mine.send("t", b"program", partition=0)
        client.coordinator.tick()
        assert client.end(commit=True) is ErrorCode.PRODUCER_FENCED
        assert client.add(1) is ErrorCode.PRODUCER_FENCED
        assert client.init(again=True) is ErrorCode.PRODUCER_FENCED
    assert seen(store, 0) == [[b"program"]] and client.coordinator.rows() == [] and offset_of(store, "g") is None
    assert store.check().breaches == []


@pytest.mark.parametrize("state", ["empty", "ongoing", "complete"])
def test_a_program_in_another_process_takes_a_name_over(
    store: klamm.Store, path: Path, client: Client, state: str
) -> None:
    if state != "empty":
        assert client.send(0) is NONE
    if state == "complete":
        assert client.end(commit=True) is NONE

    def take_over() -> None:
        with klamm.open(path) as mine, mine.transaction("billing") as tx:
            tx.send("t", b"program", partition=1)

    with children() as start:
        start(take_over).answer()
    assert client.coordinator.row("billing") is not None, "it has not looked yet"
    assert client.add(1) in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    client.coordinator.tick()
    assert client.coordinator.rows() == [] and list(store.transactions) == [] and store.check().breaches == []
    assert client.coordinator.check_produce(client.producer_id, client.epoch, place_of(store)) is (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )
    assert core_of(store).catalog.database.read("SELECT * FROM transactions") == []
    assert seen(store, 0, 1) == [[b"x"] if state == "complete" else [], [b"program"]]


def test_a_client_that_takes_a_name_over_fences_the_program(
    store: klamm.Store, coordinator: TransactionCoordinator
) -> None:
    mine = store.transaction("billing", batch_bytes=1)
    mine.send("t", b"program", partition=0)
    client = Client(store, coordinator, bumps=False)
    assert client.init() is NONE
    assert not stands_open(log_of(store)) and list(store.transactions) == []
    with pytest.raises((Fenced, Aborted)):
        mine.commit()
    assert client.send(0) is NONE and client.end(commit=True) is NONE
    assert seen(store, 0) == [[b"x"]]
    with pytest.raises(Fenced):
        store.transaction("billing")
    assert store.check().breaches == []


def test_a_person_can_abort_a_clients_transaction(store: klamm.Store, client: Client) -> None:
    assert client.send(0) is NONE
    (info,) = list(store.transactions)
    assert (info.producer_id, info.name, info.state) == (client.producer_id, "billing", "ongoing")
    assert info.partitions == (("t", 0),) and info.epoch == client.epoch
    assert store.transactions.abort(client.producer_id)
    assert not store.transactions.abort(client.producer_id)
    assert [info.state for info in store.transactions] == ["prepared_abort"], "marking is the server's"
    client.coordinator.tick()
    assert not stands_open(log_of(store)) and list(store.transactions) == []
    assert client.end(commit=True) is ErrorCode.PRODUCER_FENCED
