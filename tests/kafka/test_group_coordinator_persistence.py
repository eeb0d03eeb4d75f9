"""The group coordinator, and what of a group outlives it: known answers."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.kafka.error_codes import ErrorCode
from klamm.store.group_image import GroupImage, MemberImage, decoded, encoded
from tests.kafka.coordinator_harness import GROUP, RANGE, REBALANCE_MS, SESSION_MS, CoordinatorHarness

E = ErrorCode


def persisted(harness: CoordinatorHarness, *joins: dict[str, Any]) -> tuple[int, list[str]]:
    """A stable generation that is kept, each member assigned its own id."""
    generation, ids = harness.completing(*joins)
    instances = [join.get("instance") for join in joins]
    plan = {member_id: member_id.encode() for member_id in ids}
    asked = [
        harness.sync(ids[n], generation, plan if n == 0 else {}, instance_id=instances[n]) for n in range(len(ids))
    ]
    harness.persisted()
    assert [each.answer.assignment for each in asked] == list(plan.values())
    return generation, ids


def test_nobody_hears_its_assignment_before_it_is_kept() -> None:
    harness = CoordinatorHarness(persisting=True)
    generation, (leader, other) = harness.completing({}, {})
    early = harness.sync(other, generation)
    first = harness.sync(leader, generation, {leader: b"l", other: b"o"})
    assert early.waits and first.waits and harness.state == "CompletingRebalance"
    assert harness.commit(other, generation) == E.REBALANCE_IN_PROGRESS
    again = harness.sync(leader, generation, {leader: b"something else"})
    assert first.error == E.REBALANCE_IN_PROGRESS and again.waits
    ((image, _),) = harness.to_keep
    told = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": REBALANCE_MS, "protocols": RANGE}
    members = tuple(
        MemberImage(each, None, "app", "/10.0.0.1", assignment=what, **told)  # type: ignore[arg-type]
        for each, what in ((leader, b"l"), (other, b"o"))
    )
    assert image == GroupImage(GROUP, generation, "consumer", "range", leader, members)
    harness.persisted()
    assert (early.answer.assignment, again.answer.assignment) == (b"o", b"l")
    assert harness.state == "Stable" and harness.commit(other, generation) == E.NONE
    for _ in range(3):
        assert harness.heartbeat(other, generation) == E.NONE
    assert harness.to_keep == []


def test_what_cannot_be_kept_is_told_nobody_and_the_group_rebalances() -> None:
    harness = CoordinatorHarness(persisting=True)
    generation, (leader, other) = harness.completing({}, {})
    asked = [harness.sync(other, generation), harness.sync(leader, generation, {other: b"o"})]
    harness.persisted(ok=False)
    assert [each.error for each in asked] == [E.COORDINATOR_NOT_AVAILABLE] * 2
    assert harness.state == "PreparingRebalance" and harness.heartbeat(other, generation) == E.REBALANCE_IN_PROGRESS
    joins = [harness.join(leader), harness.join(other)]
    assert [each.answer.generation for each in joins] == [generation + 1] * 2


def test_a_rebalance_that_begins_meanwhile_counts_and_the_answer_of_the_store_is_too_late() -> None:
    harness = CoordinatorHarness(persisting=True)
    generation, (leader, other) = harness.completing({}, {})
    asked = harness.sync(leader, generation, {other: b"o"})
    assert harness.leave(other) == E.NONE
    assert asked.error == E.REBALANCE_IN_PROGRESS
    harness.persisted()
    assert harness.state == "PreparingRebalance"
    assert harness.join(leader).answer.generation == generation + 1
    late = harness.sync(leader, generation + 1, {leader: b"all"})
    assert late.waits
    harness.persisted()
    assert late.answer.assignment == b"all"


def test_a_member_that_does_not_sync_in_time_is_missed_while_others_wait_for_the_store() -> None:
    harness = CoordinatorHarness(persisting=True)
    generation, (leader, _) = harness.completing({"session_ms": 1_800_000}, {"session_ms": 1_800_000})
    asked = harness.sync(leader, generation)
    harness.wait(REBALANCE_MS)
    assert asked.error == E.REBALANCE_IN_PROGRESS


def test_members_go_on_after_a_restart() -> None:
    harness = CoordinatorHarness(persisting=True)
    generation, (leader, other) = persisted(harness, {}, {"instance": "i"})
    before = harness.coordinator.describe(GROUP)
    harness.restart(above=1_000)
    assert harness.coordinator.describe(GROUP) == before
    assert harness.heartbeat(leader, generation) == harness.heartbeat(other, generation, "i") == E.NONE
    assert harness.commit(leader, generation) == E.NONE
    assert harness.sync(other, generation, instance_id="i").answer.assignment == other.encode()
    assert harness.heartbeat("someone", generation) == E.UNKNOWN_MEMBER_ID
    assert harness.heartbeat(leader, generation + 1) == E.ILLEGAL_GENERATION
    same = harness.join(other, instance="i")  # says the same, is no leader: nothing happens
    assert (same.answer.generation, same.answer.leader) == (generation, leader)
    assert harness.to_keep == []


def test_who_is_not_heard_of_after_a_restart_expires_and_the_others_rebalance_above_all_generations() -> None:
    harness = CoordinatorHarness(persisting=True)
    generation, (leader, other) = persisted(harness, {}, {})
    harness.restart(above=1_000)
    harness.wait(SESSION_MS - 1)
    assert harness.heartbeat(other, generation) == E.NONE
    harness.wait(1)
    assert harness.heartbeat(other, generation) == E.REBALANCE_IN_PROGRESS
    answer = harness.join(other).answer
    assert (answer.generation, answer.leader) == (1_001, other)
    assert harness.heartbeat(leader, generation) == E.UNKNOWN_MEMBER_ID


def test_killed_before_the_generation_is_kept_members_find_the_one_before() -> None:
    harness = CoordinatorHarness(persisting=True)
    generation, (leader, other) = persisted(harness, {}, {})
    rejoins = [harness.join(leader), harness.join(other)]
    assert [each.answer.generation for each in rejoins] == [generation + 1] * 2
    harness.sync(leader, generation + 1, {other: b"new"})
    harness.restart(above=500)
    assert harness.sync(leader, generation + 1).error == E.ILLEGAL_GENERATION
    rejoins = [harness.join(leader), harness.join(other)]
    assert [each.answer.generation for each in rejoins] == [501] * 2


def test_an_empty_group_is_not_kept() -> None:
    harness = CoordinatorHarness(persisting=True)
    _, (leader,) = persisted(harness, {})
    harness.leave(leader)
    harness.persisted()
    assert harness.image is not None and harness.image.members == ()
    harness.restart(above=500)
    assert not harness.coordinator.knows(GROUP)
    member = harness.join().answer
    assert member.generation == 501
    harness.leave(member.member_id)
    assert harness.to_keep == []  # it was never stable


def test_a_static_member_that_comes_back_hears_its_new_id_when_it_is_kept() -> None:
    harness = CoordinatorHarness(persisting=True)
    generation, (leader, old) = persisted(harness, {}, {"instance": "i"})
    asked = harness.join(instance="i")
    assert asked.waits and harness.state == "Stable" and harness.heartbeat(leader, generation) == E.NONE
    second = harness.join(instance="i")  # impatient
    assert asked.error == E.FENCED_INSTANCE_ID
    harness.persisted()
    assert second.waits
    harness.persisted()
    new = second.answer.member_id
    assert second.answer.generation == generation and new != old
    harness.restart(above=500)
    assert harness.heartbeat(new, generation, "i") == E.NONE
    assert harness.heartbeat(old, generation, "i") == E.FENCED_INSTANCE_ID
    assert harness.sync(new, generation, instance_id="i").answer.assignment == old.encode()


def test_a_new_id_that_cannot_be_kept_or_is_overtaken() -> None:
    harness = CoordinatorHarness(persisting=True)
    _, (leader, _) = persisted(harness, {}, {"instance": "i"})
    asked = harness.join(instance="i")
    harness.persisted(ok=False)
    assert asked.answer[:2] == (E.COORDINATOR_NOT_AVAILABLE, "") and harness.state == "Stable"
    asked = harness.join(instance="i")
    harness.join(leader)
    assert asked.answer[:2] == (E.REBALANCE_IN_PROGRESS, "")
    harness = CoordinatorHarness(persisting=True)
    persisted(harness, {}, {"instance": "i"})
    asked, gone = harness.join(instance="i"), harness.join(instance="i", connection="wire")
    harness.coordinator.disconnected("wire", now_ms=harness.now_ms)
    harness.persisted()
    harness.persisted()
    assert gone.waits and len(harness.coordinator._pending) == 0
    asked = harness.join(instance="i")
    harness.leave("", "i")
    assert asked.error == E.UNKNOWN_MEMBER_ID
    asked = harness.join(instance="i")
    harness.coordinator.close()
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
