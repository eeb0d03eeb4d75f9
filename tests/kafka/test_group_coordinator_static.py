"""The group coordinator: members that come back under their name, and connections that close."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.group_values import JoinRequest, JoinResponse
from tests.kafka.coordinator_harness import GROUP, RANGE, REBALANCE_MS, SESSION_MS, CoordinatorHarness, SentRequest

E = ErrorCode
ONE: dict[str, Any] = {}
STATIC_A: dict[str, Any] = {"instance": "a"}
STATIC_B: dict[str, Any] = {"instance": "b"}
OTHER = (("range", b"other topics"),)


@pytest.fixture
def harness() -> CoordinatorHarness:
    return CoordinatorHarness()


# ---- static members


def test_a_static_member_comes_back_without_a_rebalance_and_gets_what_it_had(harness: CoordinatorHarness) -> None:
    generation, ids = harness.stable(ONE, STATIC_A)
    answer = harness.join(instance="a").answer
    assert (answer.error, answer.generation, answer.leader, answer.members) == (E.NONE, generation, ids[0], ())
    assert answer.member_id != ids[1]
    assert harness.state == "Stable"
    assert harness.heartbeat(ids[0], generation) == E.NONE
    assert harness.sync(answer.member_id, generation, instance_id="a").answer.assignment == ids[1].encode()


def test_a_static_member_that_was_replaced_is_fenced(harness: CoordinatorHarness) -> None:
    generation, ids = harness.stable(ONE, STATIC_A)
    harness.join(instance="a")
    old = ids[1]
    assert harness.join(old, instance="a").error == E.FENCED_INSTANCE_ID
    assert harness.sync(old, generation, instance_id="a").error == E.FENCED_INSTANCE_ID
    assert harness.heartbeat(old, generation, "a") == harness.commit(old, generation, "a") == E.FENCED_INSTANCE_ID
    assert harness.leave(old, "a") == E.FENCED_INSTANCE_ID
    assert harness.commit(old, generation, "a", transactional=True) == E.FENCED_INSTANCE_ID
    assert harness.heartbeat(old, generation) == E.UNKNOWN_MEMBER_ID


def test_a_static_leader_that_comes_back_is_not_told_so_unless_it_can_skip_the_assignment(
    harness: CoordinatorHarness,
) -> None:
    generation, ids = harness.stable(STATIC_A, ONE)
    answer = harness.join(instance="a").answer
    assert (answer.leader, answer.skip_assignment, answer.members) == (ids[0], False, ())
    again = harness.join(instance="a", skip=True).answer
    assert (again.leader, again.skip_assignment, again.generation) == (again.member_id, True, generation)
    assert [member.member_id for member in again.members] == [ids[1], again.member_id]
    follower = harness.join(ids[1], skip=True).answer
    assert (follower.leader, follower.skip_assignment) == (again.member_id, False)


def test_a_static_member_that_comes_back_with_other_topics_begins_no_rebalance(harness: CoordinatorHarness) -> None:
    harness.stable(ONE, STATIC_A)
    assert harness.join(instance="a", protocols=OTHER).error == E.NONE
    assert harness.state == "Stable"


def test_a_static_member_that_comes_back_and_changes_the_protocol_begins_a_rebalance(
    harness: CoordinatorHarness,
) -> None:
    both = (("range", b""), ("sticky", b""))
    _, ids = harness.stable({"protocols": both}, {"protocols": both, "instance": "a"})
    asked = harness.join(instance="a", protocols=(("sticky", b""),))
    assert asked.waits
    assert harness.join(ids[0], protocols=both).answer.protocol == asked.answer.protocol == "sticky"


def test_a_static_member_that_comes_back_before_the_sync_begins_a_rebalance(harness: CoordinatorHarness) -> None:
    generation, ids = harness.completing(ONE, STATIC_A)
    syncing = harness.sync(ids[1], generation, instance_id="a")
    asked = harness.join(instance="a")
    assert syncing.error == E.FENCED_INSTANCE_ID
    assert asked.waits
    assert harness.sync(ids[0], generation).error == E.REBALANCE_IN_PROGRESS
    assert harness.join(ids[0]).answer.generation == asked.answer.generation == generation + 1


def test_a_static_member_that_comes_back_while_its_join_waits_takes_over(harness: CoordinatorHarness) -> None:
    _, ids = harness.stable(ONE, STATIC_A)
    first = harness.join(ids[1], instance="a", protocols=OTHER)
    second = harness.join(instance="a", protocols=OTHER)
    assert first.answer[:2] == (E.FENCED_INSTANCE_ID, ids[1])
    assert second.waits
    assert harness.join(ids[0]).error == second.error == E.NONE


def test_the_session_of_a_static_member_begins_anew_when_it_comes_back(harness: CoordinatorHarness) -> None:
    generation, _ = harness.stable(STATIC_A)
    harness.wait(SESSION_MS - 1)
    member_id = harness.join(instance="a", session_ms=5_000).answer.member_id
    harness.wait(4_999)
    assert harness.heartbeat(member_id, generation, "a") == E.NONE
    harness.wait(5_000)
    assert harness.heartbeat(member_id, generation, "a") == E.UNKNOWN_MEMBER_ID


def test_a_static_member_that_does_not_join_again_stays_until_its_session_ends(harness: CoordinatorHarness) -> None:
    long: dict[str, Any] = {"session_ms": 100_000}
    generation, ids = harness.stable(ONE, STATIC_A | long)
    asked = harness.join(ids[0])
    harness.wait(REBALANCE_MS)
    assert asked.answer.generation == generation + 1
    assert [member.instance_id for member in asked.answer.members] == [None, "a"]
    harness.sync(ids[0], generation + 1, {ids[1]: b"kept"})
    assert harness.join(instance="a", **long).error == E.NONE
    assert harness.state == "Stable"


def test_a_rebalance_goes_on_while_none_but_static_members_are_there_and_none_joins(
    harness: CoordinatorHarness,
) -> None:
    long: dict[str, Any] = {"session_ms": 100_000}
    generation, ids = harness.stable(ONE, STATIC_A | long)
    harness.leave(ids[0])
    harness.wait(REBALANCE_MS)
    assert harness.state == "PreparingRebalance"
    asked = harness.join(ids[1], instance="a", **long)
    assert asked.answer.generation == generation + 1
    harness.wait(100_000)
    assert harness.state == "Empty"


def test_a_static_member_leaves_when_its_session_ends(harness: CoordinatorHarness) -> None:
    generation, ids = harness.stable(STATIC_A, STATIC_B)
    harness.wait(SESSION_MS - 1)
    assert harness.heartbeat(ids[0], generation, "a") == E.NONE
    harness.wait(1)
    assert harness.heartbeat(ids[0], generation, "a") == E.REBALANCE_IN_PROGRESS
    assert harness.heartbeat(ids[1], generation, "b") == E.UNKNOWN_MEMBER_ID


def test_an_id_that_was_given_out_cannot_be_used_with_a_name(harness: CoordinatorHarness) -> None:
    pending = harness.join(required=True).answer.member_id
    assert harness.join(pending, instance="a").error == E.UNKNOWN_MEMBER_ID
    assert harness.join(pending).error == E.NONE


# ---- connections


def test_a_join_whose_connection_closes_still_counts_and_the_answer_can_be_had_again(
    harness: CoordinatorHarness,
) -> None:
    generation, ids = harness.stable(ONE, ONE)
    lost = harness.join(ids[1], protocols=OTHER, connection="tcp")
    harness.coordinator.disconnected("tcp", now_ms=harness.now_ms)
    asked = harness.join(ids[0])
    assert asked.answer.generation == generation + 1
    assert len(asked.answer.members) == 2
    assert lost.waits
    assert harness.join(ids[1], protocols=OTHER).answer.generation == generation + 1


def test_a_member_whose_connection_closes_while_it_joins_is_missed_after_its_session(
    harness: CoordinatorHarness,
) -> None:
    generation, ids = harness.stable(ONE, ONE, {"session_ms": 1_000_000})
    lost = harness.join(ids[1], protocols=OTHER, connection="tcp")
    harness.join(ids[0])
    harness.coordinator.disconnected("tcp", now_ms=harness.now_ms)
    harness.wait(SESSION_MS)
    assert harness.heartbeat(ids[1], generation) == E.UNKNOWN_MEMBER_ID
    assert harness.state == "PreparingRebalance"
    assert lost.waits


def test_a_new_member_whose_connection_closes_is_missed_after_its_session_as_well(harness: CoordinatorHarness) -> None:
    harness.stable({"session_ms": 1_000_000})
    pending = harness.join(required=True).answer.member_id
    harness.join(pending, connection="tcp")
    harness.coordinator.disconnected("tcp", now_ms=harness.now_ms)
    harness.wait(SESSION_MS - 1)
    description = harness.coordinator.describe(GROUP)
    assert description is not None
    assert [member.member_id for member in description.members][1:] == [pending]
    harness.wait(1)
    assert harness.join(pending).error == E.UNKNOWN_MEMBER_ID


def test_a_member_whose_connection_closes_may_join_again_on_another(harness: CoordinatorHarness) -> None:
    harness.stable({"session_ms": 1_000_000})
    pending = harness.join(required=True).answer.member_id
    harness.join(pending, connection="tcp")
    harness.coordinator.disconnected("tcp", now_ms=harness.now_ms)
    harness.wait(SESSION_MS - 1)
    asked = harness.join(pending, connection="tcp 2")
    harness.wait(REBALANCE_MS - SESSION_MS + 1)
    assert asked.error == E.NONE
    assert len(harness.coordinator._pending) == 0


def test_a_new_member_that_was_never_told_its_id_goes_with_its_connection(harness: CoordinatorHarness) -> None:
    generation, ids = harness.stable(ONE)
    harness.join(connection="tcp")
    harness.coordinator.disconnected("tcp", now_ms=harness.now_ms)
    assert len(harness.join(ids[0]).answer.members) == 1
    assert harness.state == "CompletingRebalance"
    assert harness.heartbeat(ids[0], generation + 1) == E.NONE


def test_a_new_static_member_does_not_go_with_its_connection(harness: CoordinatorHarness) -> None:
    _, ids = harness.stable(ONE)
    harness.join(instance="a", connection="tcp")
    harness.coordinator.disconnected("tcp", now_ms=harness.now_ms)
    assert len(harness.join(ids[0]).answer.members) == 2


def test_a_sync_whose_connection_closes_is_done_and_its_member_missed_after_its_session(
    harness: CoordinatorHarness,
) -> None:
    generation, ids = harness.completing({"session_ms": 1_000_000}, ONE)
    lost = harness.sync(ids[1], generation, connection="tcp")
    harness.coordinator.disconnected("tcp", now_ms=harness.now_ms)
    harness.wait(SESSION_MS - 1)
    assert harness.join(ids[1]).answer.generation == generation
    harness.wait(SESSION_MS)
    assert harness.heartbeat(ids[1], generation) == E.UNKNOWN_MEMBER_ID
    assert lost.waits


def test_a_connection_without_delayed_requests_may_close(harness: CoordinatorHarness) -> None:
    generation, ids = harness.stable({"connection": "tcp"})
    harness.coordinator.disconnected("tcp", now_ms=harness.now_ms)
    assert harness.heartbeat(ids[0], generation) == E.NONE


# ---- callbacks


def test_a_callback_may_call_the_coordinator(harness: CoordinatorHarness) -> None:
    asked = SentRequest[JoinResponse](harness.now_ms)

    def sync_at_once(answer: JoinResponse) -> None:
        asked(answer)
        assert harness.sync(answer.member_id, answer.generation, {answer.member_id: b"x"}).answer.assignment == b"x"

    request = JoinRequest(GROUP, "", "consumer", RANGE, SESSION_MS, REBALANCE_MS, member_id_required=False)
    harness.coordinator.join(request, sync_at_once, now_ms=harness.now_ms)
    assert asked.error == E.NONE
    assert harness.state == "Stable"
