"""The machine of transactions, without a store: what it answered in every recorded history, and its promises."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.store.transaction_state import (
    ABORT,
    COMPLETE_COMMIT,
    COORDINATOR,
    MAX_EPOCH,
    OWNERS,
    PROCESS,
    SERVER,
    Add,
    CommitOffsets,
    End,
    Event,
    Fence,
    Init,
    Marked,
    Now,
    Outcome,
    Resolve,
    Row,
    Step,
    step,
)
from tests.store.transaction_histories import KINDS, recorded, script
from tests.store.transaction_model import Model


@pytest.mark.parametrize("kind", KINDS)
def test_the_machine_answers_as_was_recorded(kind: str) -> None:
    for seed, outcomes in enumerate(recorded(kind)):
        model, rows = Model(kind), ""
        words = script(kind, seed)
        for number, (word, outcome) in enumerate(zip(words, outcomes, strict=True)):
            answer, _, state = outcome.partition("|")
            rows = rows if state == "=" else state.split("|")[0]
            where = f"{kind} {seed}: step {number}: {word}; before: {words[:number]}"
            assert model.act(word) == answer, where
            servers = {row.producer_id for row in model.rows.values() if row.owner == "server"}
            known = {text for text in rows.split() if "o" in text or int(text.split(".")[0]) in servers}
            assert model.state() == known, where


NOW = Now("boot", 1_000_000, 5_000_000, 5_000_000)
CLIENTS = st.tuples(st.sampled_from([1, 2]), st.sampled_from([-1, 0, 1, 2, 3, MAX_EPOCH - 1, MAX_EPOCH, MAX_EPOCH + 1]))
PARTITIONS = st.frozensets(st.tuples(st.just("t"), st.integers(0, 1)))
FRESH = st.sampled_from([None, 0])  # which one: `rows_after`
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Init, st.just("a"), st.just(1_000), st.none() | CLIENTS, FRESH),
    st.builds(Add, CLIENTS, PARTITIONS, st.frozensets(st.just("g"))),
    st.builds(CommitOffsets, CLIENTS, st.just("g"), st.booleans()),
    st.builds(End, CLIENTS, st.booleans(), st.booleans(), st.none() | PARTITIONS, FRESH),
    st.builds(Fence, st.booleans()),
    st.builds(Resolve, st.booleans()),
    st.builds(Marked, st.booleans()),
)


def rows_after(owner: str, events: list[Event]) -> list[tuple[Row | None, Event, Step]]:
    """What each event met, and made of it, in a row that begins as its owner's rows do."""
    row: Row | None = None if owner == SERVER else Row(1, 0, owner, name="a")
    steps = []
    fresh_id = 1
    for sent in events:
        event = sent
        if isinstance(event, Init | End) and event.fresh_id is not None:
            event, fresh_id = event._replace(fresh_id=fresh_id), fresh_id + 1
        if isinstance(event, Init) and owner != SERVER:
            continue
        done = step(row, event, NOW)
        steps.append((row, event, done))
        row = done.row
    return steps


SEQUENCES = st.lists(EVENTS, max_size=25)


@settings(max_examples=300, deadline=None)
@given(owner=st.sampled_from(OWNERS), events=SEQUENCES)
def test_what_is_decided_is_never_undone(owner: str, events: list[Event]) -> None:
    for row, _, done in rows_after(owner, events):
        for new in (done.row, done.retired):
            if row is not None and row.is_prepared and new is not None and new.producer_id == row.producer_id:
                assert new.is_committed == row.is_committed and not new.is_ongoing
            if new is not None and new.is_committed and not (row is not None and row.is_committed):
                assert row is not None and row.is_ongoing, "only what went on is committed"


@settings(max_examples=300, deadline=None)
@given(owner=st.sampled_from(OWNERS), events=SEQUENCES)
def test_only_its_producer_commits_and_epochs_never_go_back(owner: str, events: list[Event]) -> None:
    for row, event, done in rows_after(owner, events):
        new = done.row
        if row is None or new is None:
            continue
        if new.producer_id == row.producer_id:
            assert new.next_epoch >= row.next_epoch and new.epoch >= row.epoch
        else:
            assert isinstance(event, Init | End) and new.owner == SERVER and new.next_epoch == 0
        if new.is_committed and row.is_ongoing:
            assert isinstance(event, End) and event.client == (row.producer_id, row.epoch)
        if new.is_ongoing or new.is_prepared:
            assert new.next_epoch in (new.epoch, new.epoch + 1) and new.producer_id == row.producer_id
        if row.is_ongoing and not new.is_ongoing and not isinstance(event, End):
            assert not new.is_committed and new.next_epoch == row.epoch + 1, "whoever is late is fenced"


@settings(max_examples=300, deadline=None)
@given(owner=st.sampled_from(OWNERS), events=SEQUENCES)
def test_whoever_is_refused_changes_nothing(owner: str, events: list[Event]) -> None:
    for row, _, done in rows_after(owner, events):
        if done.outcome in (Outcome.UNKNOWN, Outcome.FENCED, Outcome.INVALID, Outcome.NEEDS_SYNC):
            assert done.row == row and done.retired is None


@settings(max_examples=300, deadline=None)
@given(events=SEQUENCES, end=st.builds(End, CLIENTS, st.booleans(), st.just(True)))
def test_an_end_that_comes_again_has_the_same_answer_and_no_effect(events: list[Event], end: End) -> None:
    end = end._replace(fresh_id=0)
    steps = rows_after(SERVER, [*events, end, end])
    first, second = steps[-2][2], steps[-1][2]
    if first.outcome is Outcome.OK and first.row is not None and end.client[1] >= 0:
        assert (second.outcome, second.row, second.retired) == (Outcome.OK, first.row, None)


def ongoing(owner: str, **more: object) -> Row:
    done = step(Row(1, 0, owner)._replace(**more), Add((1, 0), frozenset({("t", 0)})), NOW)  # type: ignore[arg-type]
    assert done.row is not None and done.row.is_ongoing
    return done.row


@pytest.mark.parametrize(
    ("owner", "is_held", "late_ms", "boot_id", "is_aborted"),
    [
        (PROCESS, True, 0, "boot", False),
        (PROCESS, False, 0, "boot", True),
        (PROCESS, True, 1, "boot", True),
        (PROCESS, True, 1, "another", False),
        (PROCESS, False, 1, "another", True),
        (SERVER, False, 0, "boot", False),
        (SERVER, False, 1, "boot", True),
        (SERVER, True, 0, "another", True),
        (COORDINATOR, False, 0, "boot", False),
        (COORDINATOR, False, 1, "boot", True),
        (COORDINATOR, True, 0, "another", True),
    ],
)
def test_who_is_gone_or_late_is_aborted_as_its_owner_has_it(
    owner: str, is_held: bool, late_ms: int, boot_id: str, is_aborted: bool
) -> None:
    row = ongoing(owner)
    later = NOW._replace(boot_ms=row.started_boot_ms + row.timeout_ms + late_ms, boot_id=boot_id)
    done = step(row, Resolve(is_held), later)
    assert done.row is not None
    assert (done.outcome is Outcome.OK) == is_aborted == (done.row.state == ABORT)


def test_a_commit_waits_until_every_partition_is_on_disk() -> None:
    row = ongoing(SERVER)
    assert step(row, End((1, 0), True, True, frozenset()), NOW).outcome is Outcome.NEEDS_SYNC
    assert step(row, End((1, 0), False, True, frozenset()), NOW).outcome is Outcome.OK
    assert step(row, End((1, 0), True, True, row.partitions), NOW).outcome is Outcome.OK


def test_a_row_of_a_process_goes_when_it_is_marked_and_a_servers_stays_with_its_name() -> None:
    for owner, has_name, stays in ((PROCESS, True, False), (SERVER, True, True), (SERVER, False, False)):
        decided = step(ongoing(owner), End((1, 0), True, True), NOW).row
        marked = step(decided, Marked(has_name), NOW)
        assert marked.outcome is Outcome.OK
        assert (marked.row is not None and marked.row.state == COMPLETE_COMMIT) == stays
