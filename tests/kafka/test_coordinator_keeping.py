"""The group coordinator, and what of a group outlives it: known answers."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.group_image import GroupImage, MemberImage, decoded, encoded
from tests.kafka.desk import GROUP, RANGE, REBALANCE_MS, SESSION_MS, Desk

E = ErrorCode


def kept(desk: Desk, *joins: dict[str, Any]) -> tuple[int, list[str]]:
    """A stable generation that is kept, each member assigned its own id."""
    generation, ids = desk.completing(*joins)
    instances = [join.get("instance") for join in joins]
    plan = {member_id: member_id.encode() for member_id in ids}
    asked = [desk.sync(ids[n], generation, plan if n == 0 else {}, instance_id=instances[n]) for n in range(len(ids))]
    desk.kept()
    assert [each.answer.assignment for each in asked] == list(plan.values())
    return generation, ids


def test_nobody_hears_its_assignment_before_it_is_kept() -> None:
    desk = Desk(keeping=True)
    generation, (leader, other) = desk.completing({}, {})
    early = desk.sync(other, generation)
    first = desk.sync(leader, generation, {leader: b"l", other: b"o"})
    assert early.waits and first.waits and desk.state == "CompletingRebalance"
    assert desk.commit(other, generation) == E.REBALANCE_IN_PROGRESS
    again = desk.sync(leader, generation, {leader: b"something else"})
    assert first.error == E.REBALANCE_IN_PROGRESS and again.waits
    ((image, _),) = desk.to_keep
    told = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": REBALANCE_MS, "protocols": RANGE}
    members = tuple(
        MemberImage(each, None, "app", "/10.0.0.1", assignment=what, **told)  # type: ignore[arg-type]
        for each, what in ((leader, b"l"), (other, b"o"))
    )
    assert image == GroupImage(GROUP, generation, "consumer", "range", leader, members)
    desk.kept()
    assert (early.answer.assignment, again.answer.assignment) == (b"o", b"l")
    assert desk.state == "Stable" and desk.commit(other, generation) == E.NONE
    for _ in range(3):
        assert desk.heartbeat(other, generation) == E.NONE
    assert desk.to_keep == []


def test_what_cannot_be_kept_is_told_nobody_and_the_group_rebalances() -> None:
    desk = Desk(keeping=True)
    generation, (leader, other) = desk.completing({}, {})
    asked = [desk.sync(other, generation), desk.sync(leader, generation, {other: b"o"})]
    desk.kept(ok=False)
    assert [each.error for each in asked] == [E.COORDINATOR_NOT_AVAILABLE] * 2
    assert desk.state == "PreparingRebalance" and desk.heartbeat(other, generation) == E.REBALANCE_IN_PROGRESS
    joins = [desk.join(leader), desk.join(other)]
    assert [each.answer.generation for each in joins] == [generation + 1] * 2


def test_a_rebalance_that_begins_meanwhile_counts_and_the_answer_of_the_store_is_too_late() -> None:
    desk = Desk(keeping=True)
    generation, (leader, other) = desk.completing({}, {})
    asked = desk.sync(leader, generation, {other: b"o"})
    assert desk.leave(other) == E.NONE
    assert asked.error == E.REBALANCE_IN_PROGRESS
    desk.kept()
    assert desk.state == "PreparingRebalance"
    assert desk.join(leader).answer.generation == generation + 1
    late = desk.sync(leader, generation + 1, {leader: b"all"})
    assert late.waits
    desk.kept()
    assert late.answer.assignment == b"all"


def test_a_member_that_does_not_sync_in_time_is_missed_while_others_wait_for_the_store() -> None:
    desk = Desk(keeping=True)
    generation, (leader, _) = desk.completing({"session_ms": 1_800_000}, {"session_ms": 1_800_000})
    asked = desk.sync(leader, generation)
    desk.wait(REBALANCE_MS)
    assert asked.error == E.REBALANCE_IN_PROGRESS


def test_members_go_on_after_a_restart() -> None:
    desk = Desk(keeping=True)
    generation, (leader, other) = kept(desk, {}, {"instance": "i"})
    before = desk.coordinator.describe(GROUP)
    desk.restart(above=1_000)
    assert desk.coordinator.describe(GROUP) == before
    assert desk.heartbeat(leader, generation) == desk.heartbeat(other, generation, "i") == E.NONE
    assert desk.commit(leader, generation) == E.NONE
    assert desk.sync(other, generation, instance_id="i").answer.assignment == other.encode()
    assert desk.heartbeat("someone", generation) == E.UNKNOWN_MEMBER_ID
    assert desk.heartbeat(leader, generation + 1) == E.ILLEGAL_GENERATION
    same = desk.join(other, instance="i")  # says the same, is no leader: nothing happens
    assert (same.answer.generation, same.answer.leader) == (generation, leader)
    assert desk.to_keep == []


def test_who_is_not_heard_of_after_a_restart_expires_and_the_others_rebalance_above_all_generations() -> None:
    desk = Desk(keeping=True)
    generation, (leader, other) = kept(desk, {}, {})
    desk.restart(above=1_000)
    desk.wait(SESSION_MS - 1)
    assert desk.heartbeat(other, generation) == E.NONE
    desk.wait(1)
    assert desk.heartbeat(other, generation) == E.REBALANCE_IN_PROGRESS
    answer = desk.join(other).answer
    assert (answer.generation, answer.leader) == (1_001, other)
    assert desk.heartbeat(leader, generation) == E.UNKNOWN_MEMBER_ID


def test_killed_before_the_generation_is_kept_members_find_the_one_before() -> None:
    desk = Desk(keeping=True)
    generation, (leader, other) = kept(desk, {}, {})
    rejoins = [desk.join(leader), desk.join(other)]
    assert [each.answer.generation for each in rejoins] == [generation + 1] * 2
    desk.sync(leader, generation + 1, {other: b"new"})
    desk.restart(above=500)
    assert desk.sync(leader, generation + 1).error == E.ILLEGAL_GENERATION
    rejoins = [desk.join(leader), desk.join(other)]
    assert [each.answer.generation for each in rejoins] == [501] * 2


def test_an_empty_group_is_not_kept() -> None:
    desk = Desk(keeping=True)
    _, (leader,) = kept(desk, {})
    desk.leave(leader)
    desk.kept()
    assert desk.image is not None and desk.image.members == ()
    desk.restart(above=500)
    assert not desk.coordinator.knows(GROUP)
    member = desk.join().answer
    assert member.generation == 501
    desk.leave(member.member_id)
    assert desk.to_keep == []  # it was never stable


def test_a_static_member_that_comes_back_hears_its_new_id_when_it_is_kept() -> None:
    desk = Desk(keeping=True)
    generation, (leader, old) = kept(desk, {}, {"instance": "i"})
    asked = desk.join(instance="i")
    assert asked.waits and desk.state == "Stable" and desk.heartbeat(leader, generation) == E.NONE
    second = desk.join(instance="i")  # impatient
    assert asked.error == E.FENCED_INSTANCE_ID
    desk.kept()
    assert second.waits
    desk.kept()
    new = second.answer.member_id
    assert second.answer.generation == generation and new != old
    desk.restart(above=500)
    assert desk.heartbeat(new, generation, "i") == E.NONE
    assert desk.heartbeat(old, generation, "i") == E.FENCED_INSTANCE_ID
    assert desk.sync(new, generation, instance_id="i").answer.assignment == old.encode()


def test_a_new_id_that_cannot_be_kept_or_is_overtaken() -> None:
    desk = Desk(keeping=True)
    _, (leader, _) = kept(desk, {}, {"instance": "i"})
    asked = desk.join(instance="i")
    desk.kept(ok=False)
    assert asked.answer[:2] == (E.COORDINATOR_NOT_AVAILABLE, "") and desk.state == "Stable"
    asked = desk.join(instance="i")
    desk.join(leader)
    assert asked.answer[:2] == (E.REBALANCE_IN_PROGRESS, "")
    desk = Desk(keeping=True)
    kept(desk, {}, {"instance": "i"})
    asked, gone = desk.join(instance="i"), desk.join(instance="i", connection="wire")
    desk.coordinator.disconnected("wire", now_ms=desk.now_ms)
    desk.kept()
    desk.kept()
    assert gone.waits and len(desk.coordinator._mail) == 0
    asked = desk.join(instance="i")
    desk.leave("", "i")
    assert asked.error == E.UNKNOWN_MEMBER_ID
    asked = desk.join(instance="i")
    desk.coordinator.close()
    assert asked.error == E.NOT_COORDINATOR


@pytest.mark.parametrize(
    "state", [b"", b"{}", b"[]", b'{"format": 2}', b'{"format": 1, "members": 5}', b'{"format": 1, "members": [{}]}']
)
def test_bytes_that_are_no_group(state: bytes) -> None:
    with pytest.raises(ValueError):
        decoded(GROUP, state)


def test_an_image_survives_its_bytes() -> None:
    member = MemberImage("m-ä", "i", "c", "/h", 1, 2, (("p", bytes(range(256))), ("q", b"")), b"\0\xff")
    image = GroupImage(GROUP, 7, "consumer", "p", "m-ä", (member, member._replace(member_id="n", instance_id=None)))
    assert decoded(GROUP, encoded(image)) == image
    with pytest.raises(ValueError):
        decoded(GROUP, encoded(image._replace(leader="x")))
