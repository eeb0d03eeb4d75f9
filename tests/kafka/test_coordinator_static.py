"""The group coordinator: members that come back under their name, and connections that close."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.group_values import JoinRequest, JoinResponse
from tests.kafka.desk import GROUP, RANGE, REBALANCE_MS, SESSION_MS, Asked, Desk

E = ErrorCode
ONE: dict[str, Any] = {}
STATIC_A: dict[str, Any] = {"instance": "a"}
STATIC_B: dict[str, Any] = {"instance": "b"}
OTHER = (("range", b"other topics"),)


@pytest.fixture
def desk() -> Desk:
    return Desk()


# ---- static members


def test_a_static_member_comes_back_without_a_rebalance_and_gets_what_it_had(desk: Desk) -> None:
    generation, ids = desk.stable(ONE, STATIC_A)
    answer = desk.join(instance="a").answer
    assert (answer.error, answer.generation, answer.leader, answer.members) == (E.NONE, generation, ids[0], ())
    assert answer.member_id != ids[1]
    assert desk.state == "Stable"
    assert desk.heartbeat(ids[0], generation) == E.NONE
    assert desk.sync(answer.member_id, generation, instance_id="a").answer.assignment == ids[1].encode()


def test_a_static_member_that_was_replaced_is_fenced(desk: Desk) -> None:
    generation, ids = desk.stable(ONE, STATIC_A)
    desk.join(instance="a")
    old = ids[1]
    assert desk.join(old, instance="a").error == E.FENCED_INSTANCE_ID
    assert desk.sync(old, generation, instance_id="a").error == E.FENCED_INSTANCE_ID
    assert desk.heartbeat(old, generation, "a") == desk.commit(old, generation, "a") == E.FENCED_INSTANCE_ID
    assert desk.leave(old, "a") == E.FENCED_INSTANCE_ID
    assert desk.commit(old, generation, "a", transactional=True) == E.FENCED_INSTANCE_ID
    assert desk.heartbeat(old, generation) == E.UNKNOWN_MEMBER_ID


def test_a_static_leader_that_comes_back_is_not_told_so_unless_it_can_skip_the_assignment(desk: Desk) -> None:
    generation, ids = desk.stable(STATIC_A, ONE)
    answer = desk.join(instance="a").answer
    assert (answer.leader, answer.skip_assignment, answer.members) == (ids[0], False, ())
    again = desk.join(instance="a", skip=True).answer
    assert (again.leader, again.skip_assignment, again.generation) == (again.member_id, True, generation)
    assert [member.member_id for member in again.members] == [ids[1], again.member_id]
    follower = desk.join(ids[1], skip=True).answer
    assert (follower.leader, follower.skip_assignment) == (again.member_id, False)


def test_a_static_member_that_comes_back_with_other_topics_begins_no_rebalance(desk: Desk) -> None:
    desk.stable(ONE, STATIC_A)
    assert desk.join(instance="a", protocols=OTHER).error == E.NONE
    assert desk.state == "Stable"


def test_a_static_member_that_comes_back_and_changes_the_protocol_begins_a_rebalance(desk: Desk) -> None:
    both = (("range", b""), ("sticky", b""))
    _, ids = desk.stable({"protocols": both}, {"protocols": both, "instance": "a"})
    asked = desk.join(instance="a", protocols=(("sticky", b""),))
    assert asked.waits
    assert desk.join(ids[0], protocols=both).answer.protocol == asked.answer.protocol == "sticky"


def test_a_static_member_that_comes_back_before_the_sync_begins_a_rebalance(desk: Desk) -> None:
    generation, ids = desk.completing(ONE, STATIC_A)
    syncing = desk.sync(ids[1], generation, instance_id="a")
    asked = desk.join(instance="a")
    assert syncing.error == E.FENCED_INSTANCE_ID
    assert asked.waits
    assert desk.sync(ids[0], generation).error == E.REBALANCE_IN_PROGRESS
    assert desk.join(ids[0]).answer.generation == asked.answer.generation == generation + 1


def test_a_static_member_that_comes_back_while_its_join_waits_takes_over(desk: Desk) -> None:
    _, ids = desk.stable(ONE, STATIC_A)
    first = desk.join(ids[1], instance="a", protocols=OTHER)
    second = desk.join(instance="a", protocols=OTHER)
    assert first.answer[:2] == (E.FENCED_INSTANCE_ID, ids[1])
    assert second.waits
    assert desk.join(ids[0]).error == second.error == E.NONE


def test_the_session_of_a_static_member_begins_anew_when_it_comes_back(desk: Desk) -> None:
    generation, _ = desk.stable(STATIC_A)
    desk.wait(SESSION_MS - 1)
    member_id = desk.join(instance="a", session_ms=5_000).answer.member_id
    desk.wait(4_999)
    assert desk.heartbeat(member_id, generation, "a") == E.NONE
    desk.wait(5_000)
    assert desk.heartbeat(member_id, generation, "a") == E.UNKNOWN_MEMBER_ID


def test_a_static_member_that_does_not_join_again_stays_until_its_session_ends(desk: Desk) -> None:
    long: dict[str, Any] = {"session_ms": 100_000}
    generation, ids = desk.stable(ONE, STATIC_A | long)
    asked = desk.join(ids[0])
    desk.wait(REBALANCE_MS)
    assert asked.answer.generation == generation + 1
    assert [member.instance_id for member in asked.answer.members] == [None, "a"]
    desk.sync(ids[0], generation + 1, {ids[1]: b"kept"})
    assert desk.join(instance="a", **long).error == E.NONE
    assert desk.state == "Stable"


def test_a_rebalance_goes_on_while_none_but_static_members_are_there_and_none_joins(desk: Desk) -> None:
    long: dict[str, Any] = {"session_ms": 100_000}
    generation, ids = desk.stable(ONE, STATIC_A | long)
    desk.leave(ids[0])
    desk.wait(REBALANCE_MS)
    assert desk.state == "PreparingRebalance"
    asked = desk.join(ids[1], instance="a", **long)
    assert asked.answer.generation == generation + 1
    desk.wait(100_000)
    assert desk.state == "Empty"


def test_a_static_member_leaves_when_its_session_ends(desk: Desk) -> None:
    generation, ids = desk.stable(STATIC_A, STATIC_B)
    desk.wait(SESSION_MS - 1)
    assert desk.heartbeat(ids[0], generation, "a") == E.NONE
    desk.wait(1)
    assert desk.heartbeat(ids[0], generation, "a") == E.REBALANCE_IN_PROGRESS
    assert desk.heartbeat(ids[1], generation, "b") == E.UNKNOWN_MEMBER_ID


def test_an_id_that_was_given_out_cannot_be_used_with_a_name(desk: Desk) -> None:
    pending = desk.join(required=True).answer.member_id
    assert desk.join(pending, instance="a").error == E.UNKNOWN_MEMBER_ID
    assert desk.join(pending).error == E.NONE


# ---- connections


def test_a_join_whose_connection_closes_still_counts_and_the_answer_can_be_had_again(desk: Desk) -> None:
    generation, ids = desk.stable(ONE, ONE)
    lost = desk.join(ids[1], protocols=OTHER, connection="tcp")
    desk.coordinator.disconnected("tcp", now_ms=desk.now_ms)
    asked = desk.join(ids[0])
    assert asked.answer.generation == generation + 1
    assert len(asked.answer.members) == 2
    assert lost.waits
    assert desk.join(ids[1], protocols=OTHER).answer.generation == generation + 1


def test_a_member_whose_connection_closes_while_it_joins_is_missed_after_its_session(desk: Desk) -> None:
    generation, ids = desk.stable(ONE, ONE, {"session_ms": 1_000_000})
    lost = desk.join(ids[1], protocols=OTHER, connection="tcp")
    desk.join(ids[0])
    desk.coordinator.disconnected("tcp", now_ms=desk.now_ms)
    desk.wait(SESSION_MS)
    assert desk.heartbeat(ids[1], generation) == E.UNKNOWN_MEMBER_ID
    assert desk.state == "PreparingRebalance"
    assert lost.waits


def test_a_new_member_whose_connection_closes_is_missed_after_its_session_as_well(desk: Desk) -> None:
    desk.stable({"session_ms": 1_000_000})
    pending = desk.join(required=True).answer.member_id
    desk.join(pending, connection="tcp")
    desk.coordinator.disconnected("tcp", now_ms=desk.now_ms)
    desk.wait(SESSION_MS - 1)
    description = desk.coordinator.describe(GROUP)
    assert description is not None
    assert [member.member_id for member in description.members][1:] == [pending]
    desk.wait(1)
    assert desk.join(pending).error == E.UNKNOWN_MEMBER_ID


def test_a_member_whose_connection_closes_may_join_again_on_another(desk: Desk) -> None:
    desk.stable({"session_ms": 1_000_000})
    pending = desk.join(required=True).answer.member_id
    desk.join(pending, connection="tcp")
    desk.coordinator.disconnected("tcp", now_ms=desk.now_ms)
    desk.wait(SESSION_MS - 1)
    asked = desk.join(pending, connection="tcp 2")
    desk.wait(REBALANCE_MS - SESSION_MS + 1)
    assert asked.error == E.NONE
    assert len(desk.coordinator._mail) == 0


def test_a_new_member_that_was_never_told_its_id_goes_with_its_connection(desk: Desk) -> None:
    generation, ids = desk.stable(ONE)
    desk.join(connection="tcp")
    desk.coordinator.disconnected("tcp", now_ms=desk.now_ms)
    assert len(desk.join(ids[0]).answer.members) == 1
    assert desk.state == "CompletingRebalance"
    assert desk.heartbeat(ids[0], generation + 1) == E.NONE


def test_a_new_static_member_does_not_go_with_its_connection(desk: Desk) -> None:
    _, ids = desk.stable(ONE)
    desk.join(instance="a", connection="tcp")
    desk.coordinator.disconnected("tcp", now_ms=desk.now_ms)
    assert len(desk.join(ids[0]).answer.members) == 2


def test_a_sync_whose_connection_closes_is_done_and_its_member_missed_after_its_session(desk: Desk) -> None:
    generation, ids = desk.completing({"session_ms": 1_000_000}, ONE)
    lost = desk.sync(ids[1], generation, connection="tcp")
    desk.coordinator.disconnected("tcp", now_ms=desk.now_ms)
    desk.wait(SESSION_MS - 1)
    assert desk.join(ids[1]).answer.generation == generation
    desk.wait(SESSION_MS)
    assert desk.heartbeat(ids[1], generation) == E.UNKNOWN_MEMBER_ID
    assert lost.waits


def test_a_connection_without_anything_parked_may_close(desk: Desk) -> None:
    generation, ids = desk.stable({"connection": "tcp"})
    desk.coordinator.disconnected("tcp", now_ms=desk.now_ms)
    assert desk.heartbeat(ids[0], generation) == E.NONE


# ---- callbacks


def test_a_callback_may_call_the_coordinator(desk: Desk) -> None:
    asked = Asked[JoinResponse](desk.now_ms)

    def sync_at_once(answer: JoinResponse) -> None:
        asked(answer)
        assert desk.sync(answer.member_id, answer.generation, {answer.member_id: b"x"}).answer.assignment == b"x"

    request = JoinRequest(GROUP, "", "consumer", RANGE, SESSION_MS, REBALANCE_MS, member_id_required=False)
    desk.coordinator.join(request, sync_at_once, now_ms=desk.now_ms)
    assert asked.error == E.NONE
    assert desk.state == "Stable"
