"""The group coordinator: who may commit, and what people see and do with groups."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from klamm.kafka import group_table
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.group_values import GroupListing, LeavingMember
from tests.kafka.coordinator_harness import GROUP, REBALANCE_MS, SESSION_MS, CoordinatorHarness

E = ErrorCode
ONE: dict[str, Any] = {}
STATIC_A: dict[str, Any] = {"instance": "a"}


@pytest.fixture
def harness() -> CoordinatorHarness:
    return CoordinatorHarness()


# ---- commits


def test_a_commit_is_refused_unless_its_member_and_generation_are_current(harness: CoordinatorHarness) -> None:
    assert harness.commit("", -1) == E.NONE
    generation, ids = harness.stable(ONE, STATIC_A)
    assert harness.commit(ids[0], generation) == harness.commit(ids[1], generation, "a") == E.NONE
    assert harness.commit(ids[0], generation + 1) == harness.commit(ids[0], -1) == E.ILLEGAL_GENERATION
    assert harness.commit("nobody", generation) == E.UNKNOWN_MEMBER_ID
    assert harness.commit(ids[0], generation, "a") == E.FENCED_INSTANCE_ID
    assert harness.commit("", -1) == harness.commit("", -1, "b") == E.UNKNOWN_MEMBER_ID


def test_a_member_may_commit_until_the_next_generation_begins(harness: CoordinatorHarness) -> None:
    generation, ids = harness.stable(ONE)
    harness.join()
    assert harness.commit(ids[0], generation) == E.NONE
    harness.join(ids[0])
    assert harness.commit(ids[0], generation) == E.ILLEGAL_GENERATION
    assert harness.commit(ids[0], generation + 1) == E.REBALANCE_IN_PROGRESS


def test_who_is_no_member_may_commit_for_an_empty_group(harness: CoordinatorHarness) -> None:
    generation, ids = harness.stable(ONE)
    harness.leave(ids[0])
    assert harness.commit("", -1) == E.NONE
    assert harness.commit(ids[0], generation) == harness.commit("", 0) == E.UNKNOWN_MEMBER_ID


def test_commits_in_transactions_may_name_nobody(harness: CoordinatorHarness) -> None:
    generation, ids = harness.completing(ONE)
    assert harness.commit("", -1, transactional=True) == E.NONE
    assert harness.commit(ids[0], generation, transactional=True) == E.NONE
    assert harness.commit(ids[0], generation - 1, transactional=True) == E.ILLEGAL_GENERATION
    assert harness.commit("nobody", -1, transactional=True) == E.UNKNOWN_MEMBER_ID
    assert harness.commit("nobody", -1, "a", transactional=True) == E.UNKNOWN_MEMBER_ID


def subscription(*topics: str) -> bytes:
    names = [name.encode() for name in topics]
    strings = b"".join(struct.pack(">h", len(name)) + name for name in names)
    return struct.pack(">hi", 1, len(names)) + strings + struct.pack(">ii", -1, 0)


def test_offsets_of_topics_that_are_consumed_cannot_be_deleted(harness: CoordinatorHarness) -> None:
    check = harness.coordinator.check_offset_delete
    topics = {"orders", "users"}
    assert check(GROUP, topics) == (E.NONE, frozenset())
    _, ids = harness.stable({"protocols": (("range", subscription("orders", "other")),)})
    assert check(GROUP, topics) == (E.NONE, frozenset({"orders"}))
    harness.join(protocols=(("range", b"\0\1\0\0\0\7what is that"),))
    assert check(GROUP, topics) == (E.NONE, frozenset(topics))
    harness.leave(ids[0])
    harness.wait(REBALANCE_MS)
    assert check(GROUP, topics) == (E.NONE, frozenset())
    harness.join(protocol_type="connect")
    assert check(GROUP, topics) == (E.NON_EMPTY_GROUP, frozenset())


# ---- groups, for people


def test_groups_are_listed_by_state_and_type(harness: CoordinatorHarness) -> None:
    harness.stable(ONE)
    harness.join(group="other", protocol_type="connect")
    billing = GroupListing(GROUP, "consumer", "Stable", "classic")
    other = GroupListing("other", "connect", "CompletingRebalance", "classic")
    list_groups = harness.coordinator.list_groups
    assert list_groups() == list_groups(types=["Classic"]) == [billing, other]
    assert list_groups(["stable"]) == [billing]
    assert list_groups(["Dead"]) == list_groups(types=["consumer"]) == []


def test_a_stable_group_is_described_in_full_and_another_without_metadata(harness: CoordinatorHarness) -> None:
    assert harness.coordinator.describe(GROUP) is None
    _, ids = harness.stable(STATIC_A)
    description = harness.coordinator.describe(GROUP)
    member = (ids[0], "a", "app", "/10.0.0.1", b"topics", ids[0].encode())
    assert description == (GROUP, "Stable", "consumer", "range", (member,))
    harness.join()
    description = harness.coordinator.describe(GROUP)
    assert description is not None
    assert description[:4] == (GROUP, "PreparingRebalance", "consumer", "")
    assert description.members[0] == (ids[0], "a", "app", "/10.0.0.1", b"", b"")


def test_a_group_is_deleted_when_it_has_no_members_and_counts_on_when_it_comes_again(
    harness: CoordinatorHarness,
) -> None:
    generation, ids = harness.stable(ONE)
    assert harness.coordinator.delete(GROUP) == E.NON_EMPTY_GROUP
    harness.leave(ids[0])
    assert harness.coordinator.delete(GROUP) == E.NONE
    assert harness.state == "Dead"
    assert harness.coordinator.delete(GROUP) == E.GROUP_ID_NOT_FOUND
    harness.coordinator.deleted(GROUP)
    assert not harness.coordinator.knows(GROUP)
    assert harness.join(required=True).error == E.MEMBER_ID_REQUIRED
    harness.wait(SESSION_MS)
    assert harness.join().answer.generation > generation + 1


def test_nothing_is_possible_while_a_group_is_being_deleted(harness: CoordinatorHarness) -> None:
    pending = harness.join(required=True).answer.member_id
    assert harness.coordinator.delete(GROUP) == E.NONE
    unavailable = E.COORDINATOR_NOT_AVAILABLE
    assert harness.join().error == harness.join(pending).error == harness.sync("m", 1).error == unavailable
    assert harness.heartbeat("m", 1) == harness.commit("", -1) == unavailable
    assert harness.coordinator.leave(GROUP, [LeavingMember(pending)], now_ms=harness.now_ms).error == unavailable
    harness.wait(SESSION_MS)
    assert harness.coordinator.check_offset_delete(GROUP, []) == (unavailable, frozenset())
    harness.coordinator.deleted(GROUP)
    assert harness.join(pending).error == E.UNKNOWN_MEMBER_ID


def test_generations_go_on_when_more_groups_are_gone_than_are_remembered(
    harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_table, "_MAX_RETIRED", 1)
    for name in ("x", "y", "z"):
        member_id = harness.join(group=name).answer.member_id
        harness.coordinator.leave(name, [LeavingMember(member_id)], now_ms=harness.now_ms)
        harness.coordinator.delete(name)
        harness.coordinator.deleted(name)
    assert len(harness.coordinator._groups._retired) <= 1
    assert all(harness.join(group=name).answer.generation > 2 for name in ("x", "y", "z"))


def test_a_server_that_stops_answers_what_waits(harness: CoordinatorHarness) -> None:
    generation, ids = harness.completing(ONE, ONE)
    syncing = harness.sync(ids[1], generation, connection=1)
    harness.join(group="other")
    joining = harness.join(group="other", connection=2)
    harness.coordinator.close()
    assert syncing.error == joining.error == E.NOT_COORDINATOR
    assert harness.join().error == harness.heartbeat(ids[0], generation) == E.COORDINATOR_NOT_AVAILABLE
    assert harness.coordinator.next_deadline() is None
    assert len(harness.coordinator._pending) == 0
