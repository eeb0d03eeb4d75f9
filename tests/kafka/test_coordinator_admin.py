"""The group coordinator: who may commit, and what people see and do with groups."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from klamm.kafka import group_table
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.group_values import GroupListing, LeavingMember
from tests.kafka.desk import GROUP, REBALANCE_MS, SESSION_MS, Desk

E = ErrorCode
ONE: dict[str, Any] = {}
STATIC_A: dict[str, Any] = {"instance": "a"}


@pytest.fixture
def desk() -> Desk:
    return Desk()


# ---- commits


def test_a_commit_is_refused_unless_its_member_and_generation_are_current(desk: Desk) -> None:
    assert desk.commit("", -1) == E.NONE
    generation, ids = desk.stable(ONE, STATIC_A)
    assert desk.commit(ids[0], generation) == desk.commit(ids[1], generation, "a") == E.NONE
    assert desk.commit(ids[0], generation + 1) == desk.commit(ids[0], -1) == E.ILLEGAL_GENERATION
    assert desk.commit("nobody", generation) == E.UNKNOWN_MEMBER_ID
    assert desk.commit(ids[0], generation, "a") == E.FENCED_INSTANCE_ID
    assert desk.commit("", -1) == desk.commit("", -1, "b") == E.UNKNOWN_MEMBER_ID


def test_a_member_may_commit_until_the_next_generation_begins(desk: Desk) -> None:
    generation, ids = desk.stable(ONE)
    desk.join()
    assert desk.commit(ids[0], generation) == E.NONE
    desk.join(ids[0])
    assert desk.commit(ids[0], generation) == E.ILLEGAL_GENERATION
    assert desk.commit(ids[0], generation + 1) == E.REBALANCE_IN_PROGRESS


def test_who_is_no_member_may_commit_for_an_empty_group(desk: Desk) -> None:
    generation, ids = desk.stable(ONE)
    desk.leave(ids[0])
    assert desk.commit("", -1) == E.NONE
    assert desk.commit(ids[0], generation) == desk.commit("", 0) == E.UNKNOWN_MEMBER_ID


def test_commits_in_transactions_may_name_nobody(desk: Desk) -> None:
    generation, ids = desk.completing(ONE)
    assert desk.commit("", -1, transactional=True) == E.NONE
    assert desk.commit(ids[0], generation, transactional=True) == E.NONE
    assert desk.commit(ids[0], generation - 1, transactional=True) == E.ILLEGAL_GENERATION
    assert desk.commit("nobody", -1, transactional=True) == E.UNKNOWN_MEMBER_ID
    assert desk.commit("nobody", -1, "a", transactional=True) == E.UNKNOWN_MEMBER_ID


def subscription(*topics: str) -> bytes:
    names = [name.encode() for name in topics]
    strings = b"".join(struct.pack(">h", len(name)) + name for name in names)
    return struct.pack(">hi", 1, len(names)) + strings + struct.pack(">ii", -1, 0)


def test_offsets_of_topics_that_are_consumed_cannot_be_deleted(desk: Desk) -> None:
    check = desk.coordinator.check_offset_delete
    topics = {"orders", "users"}
    assert check(GROUP, topics) == (E.NONE, frozenset())
    _, ids = desk.stable({"protocols": (("range", subscription("orders", "other")),)})
    assert check(GROUP, topics) == (E.NONE, frozenset({"orders"}))
    desk.join(protocols=(("range", b"\0\1\0\0\0\7what is that"),))
    assert check(GROUP, topics) == (E.NONE, frozenset(topics))
    desk.leave(ids[0])
    desk.wait(REBALANCE_MS)
    assert check(GROUP, topics) == (E.NONE, frozenset())
    desk.join(protocol_type="connect")
    assert check(GROUP, topics) == (E.NON_EMPTY_GROUP, frozenset())


# ---- groups, for people


def test_groups_are_listed_by_state_and_type(desk: Desk) -> None:
    desk.stable(ONE)
    desk.join(group="other", protocol_type="connect")
    billing = GroupListing(GROUP, "consumer", "Stable", "classic")
    other = GroupListing("other", "connect", "CompletingRebalance", "classic")
    list_groups = desk.coordinator.list_groups
    assert list_groups() == list_groups(types=["Classic"]) == [billing, other]
    assert list_groups(["stable"]) == [billing]
    assert list_groups(["Dead"]) == list_groups(types=["consumer"]) == []


def test_a_stable_group_is_described_in_full_and_another_without_metadata(desk: Desk) -> None:
    assert desk.coordinator.describe(GROUP) is None
    _, ids = desk.stable(STATIC_A)
    description = desk.coordinator.describe(GROUP)
    member = (ids[0], "a", "app", "/10.0.0.1", b"topics", ids[0].encode())
    assert description == (GROUP, "Stable", "consumer", "range", (member,))
    desk.join()
    description = desk.coordinator.describe(GROUP)
    assert description is not None
    assert description[:4] == (GROUP, "PreparingRebalance", "consumer", "")
    assert description.members[0] == (ids[0], "a", "app", "/10.0.0.1", b"", b"")


def test_a_group_is_deleted_when_it_has_no_members_and_counts_on_when_it_comes_again(desk: Desk) -> None:
    generation, ids = desk.stable(ONE)
    assert desk.coordinator.delete(GROUP) == E.NON_EMPTY_GROUP
    desk.leave(ids[0])
    assert desk.coordinator.delete(GROUP) == E.NONE
    assert desk.state == "Dead"
    assert desk.coordinator.delete(GROUP) == E.GROUP_ID_NOT_FOUND
    desk.coordinator.deleted(GROUP)
    assert not desk.coordinator.knows(GROUP)
    assert desk.join(required=True).error == E.MEMBER_ID_REQUIRED
    desk.wait(SESSION_MS)
    assert desk.join().answer.generation > generation + 1


def test_nothing_is_possible_while_a_group_is_being_deleted(desk: Desk) -> None:
    pending = desk.join(required=True).answer.member_id
    assert desk.coordinator.delete(GROUP) == E.NONE
    unavailable = E.COORDINATOR_NOT_AVAILABLE
    assert desk.join().error == desk.join(pending).error == desk.sync("m", 1).error == unavailable
    assert desk.heartbeat("m", 1) == desk.commit("", -1) == unavailable
    assert desk.coordinator.leave(GROUP, [LeavingMember(pending)], now_ms=desk.now_ms).error == unavailable
    desk.wait(SESSION_MS)
    assert desk.coordinator.check_offset_delete(GROUP, []) == (unavailable, frozenset())
    desk.coordinator.deleted(GROUP)
    assert desk.join(pending).error == E.UNKNOWN_MEMBER_ID


def test_generations_go_on_when_more_groups_are_gone_than_are_remembered(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_table, "_MAX_RETIRED", 1)
    for name in ("x", "y", "z"):
        member_id = desk.join(group=name).answer.member_id
        desk.coordinator.leave(name, [LeavingMember(member_id)], now_ms=desk.now_ms)
        desk.coordinator.delete(name)
        desk.coordinator.deleted(name)
    assert len(desk.coordinator._groups._retired) <= 1
    assert all(desk.join(group=name).answer.generation > 2 for name in ("x", "y", "z"))


def test_a_server_that_stops_answers_what_waits(desk: Desk) -> None:
    generation, ids = desk.completing(ONE, ONE)
    syncing = desk.sync(ids[1], generation, connection=1)
    desk.join(group="other")
    joining = desk.join(group="other", connection=2)
    desk.coordinator.close()
    assert syncing.error == joining.error == E.NOT_COORDINATOR
    assert desk.join().error == desk.heartbeat(ids[0], generation) == E.COORDINATOR_NOT_AVAILABLE
    assert desk.coordinator.next_deadline() is None
    assert len(desk.coordinator._mail) == 0
