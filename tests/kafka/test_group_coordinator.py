"""The group coordinator, case by case: what Kafka's does, and where ours differs (its docstring says where)."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.kafka import group_coordinator as module
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.group_values import JoinedMember, LeavingMember
from tests.kafka.coordinator_harness import GROUP, RANGE, REBALANCE_MS, SESSION_MS, CoordinatorHarness

E = ErrorCode
ONE: dict[str, Any] = {}
STATIC_A: dict[str, Any] = {"instance": "a"}
STATIC_B: dict[str, Any] = {"instance": "b"}
OTHER = (("range", b"other topics"),)


@pytest.fixture
def harness() -> CoordinatorHarness:
    return CoordinatorHarness()


# ---- coming


def test_the_first_member_leads_generation_1_and_is_told_who_is_there(harness: CoordinatorHarness) -> None:
    answer = harness.join(protocols=(("range", b"m"), ("sticky", b"n"))).answer
    assert answer.error == E.NONE
    assert (answer.generation, answer.protocol_type, answer.protocol) == (1, "consumer", "range")
    assert answer.leader == answer.member_id == "app-0"
    assert answer.members == (JoinedMember("app-0", None, b"m"),)
    assert harness.state == "CompletingRebalance"


def test_a_new_member_is_told_its_id_first_since_version_4(harness: CoordinatorHarness) -> None:
    asked = harness.join(required=True)
    assert asked.error == E.MEMBER_ID_REQUIRED
    assert asked.answer.generation == -1
    assert harness.state == "Empty"
    again = harness.join(asked.answer.member_id, required=True).answer
    assert (again.error, again.member_id, again.generation) == (E.NONE, asked.answer.member_id, 1)


def test_an_id_that_was_given_out_expires_with_the_session_and_an_unused_group_with_it(
    harness: CoordinatorHarness,
) -> None:
    member_id = harness.join(required=True).answer.member_id
    harness.wait(SESSION_MS - 1)
    assert harness.coordinator.knows(GROUP)
    harness.wait(1)
    assert not harness.coordinator.knows(GROUP)
    assert harness.join(member_id, required=True).error == E.UNKNOWN_MEMBER_ID
    assert harness.coordinator.next_deadline() is None


def test_a_static_member_needs_no_second_join(harness: CoordinatorHarness) -> None:
    answer = harness.join(instance="a", required=True).answer
    assert (answer.error, answer.member_id) == (E.NONE, "a-0")
    assert answer.members[0].instance_id == "a"


def test_a_rebalance_waits_for_ids_that_were_given_out(harness: CoordinatorHarness) -> None:
    generation, ids = harness.stable(ONE)
    pending = harness.join(required=True).answer.member_id
    asked = harness.join(ids[0], protocols=RANGE)
    assert asked.waits
    other = harness.join(pending)
    assert asked.answer.generation == other.answer.generation == generation + 1


@pytest.mark.parametrize("gone", ["leaves", "expires"])
def test_a_rebalance_ends_when_an_id_it_waits_for_goes(harness: CoordinatorHarness, gone: str) -> None:
    _, ids = harness.stable(ONE)
    pending = harness.join(required=True).answer.member_id
    asked = harness.join(ids[0])
    assert asked.waits
    if gone == "leaves":
        assert harness.leave(pending) == E.NONE
    else:
        harness.wait(SESSION_MS)
    assert asked.error == E.NONE


def test_the_oldest_unused_id_goes_when_there_are_too_many(
    harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_PENDING", 2)
    first, second, third = (harness.join(required=True).answer.member_id for _ in range(3))
    assert harness.join(first).error == E.UNKNOWN_MEMBER_ID
    assert harness.leave(second) == harness.leave(third) == E.NONE


def test_an_empty_group_waits_for_others_who_may_be_about_to_come() -> None:
    harness = CoordinatorHarness(initial_rebalance_delay_ms=3_000)
    first = harness.join()
    harness.wait(2_999)
    assert first.waits
    harness.wait(1)
    assert first.error == E.NONE


def test_the_delay_is_extended_while_members_come_but_not_beyond_the_rebalance_timeout() -> None:
    harness = CoordinatorHarness(initial_rebalance_delay_ms=3_000)
    asked = [harness.join(rebalance_ms=7_000)]
    for _ in range(2):
        harness.wait(2_000)
        asked.append(harness.join(rebalance_ms=7_000))
    harness.wait(2_999)
    assert all(each.waits for each in asked)
    harness.wait(1)
    assert {each.answer.generation for each in asked} == {1}
    assert [len(each.answer.members) for each in asked] == [3, 0, 0]


def test_the_delay_is_over_for_a_group_that_is_not_empty() -> None:
    harness = CoordinatorHarness(initial_rebalance_delay_ms=3_000)
    _, ids = harness.stable(ONE)
    asked = harness.join()
    assert harness.join(ids[0]).error == asked.error == E.NONE


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_a_session_timeout_out_of_range_is_refused(session_ms: int) -> None:
    asked = CoordinatorHarness(min_session_timeout_ms=6_000).join(session_ms=session_ms)
    assert asked.error == E.INVALID_SESSION_TIMEOUT


def test_a_group_without_a_name_is_refused(harness: CoordinatorHarness) -> None:
    now: dict[str, Any] = {"now_ms": harness.now_ms}
    assert harness.join(group="").error == E.INVALID_GROUP_ID
    assert harness.sync("m", 1, group="").error == E.INVALID_GROUP_ID
    assert harness.coordinator.heartbeat("", "m", 1, **now) == E.INVALID_GROUP_ID
    assert harness.coordinator.leave("", [LeavingMember("m")], **now).error == E.INVALID_GROUP_ID
    assert harness.coordinator.check_commit("", "", -1, **now) == E.INVALID_GROUP_ID
    assert harness.coordinator.delete("") == E.GROUP_ID_NOT_FOUND


def test_a_server_that_was_restarted_knows_no_member(harness: CoordinatorHarness) -> None:
    assert harness.join("m").error == E.UNKNOWN_MEMBER_ID
    assert harness.join("m", instance="a").error == E.UNKNOWN_MEMBER_ID
    assert harness.sync("m", 3).error == E.UNKNOWN_MEMBER_ID
    assert harness.heartbeat("m", 3) == E.UNKNOWN_MEMBER_ID
    assert harness.leave("m") == E.UNKNOWN_MEMBER_ID
    assert harness.commit("m", 3) == E.GROUP_ID_NOT_FOUND
    assert not harness.coordinator.knows(GROUP)


# ---- protocols


@pytest.mark.parametrize(
    "join",
    [
        {"protocol_type": "connect"},
        {"protocols": (("sticky", b""),)},
        {"protocols": ()},
    ],
)
def test_who_has_no_protocol_in_common_is_refused(harness: CoordinatorHarness, join: dict[str, Any]) -> None:
    harness.stable(ONE)
    assert harness.join(**join).error == E.INCONSISTENT_GROUP_PROTOCOL
    assert harness.join(**join, required=True).error == E.INCONSISTENT_GROUP_PROTOCOL
    assert harness.state == "Stable"


@pytest.mark.parametrize("join", [{"protocol_type": ""}, {"protocols": ()}])
def test_the_first_member_must_name_a_protocol(harness: CoordinatorHarness, join: dict[str, Any]) -> None:
    assert harness.join(**join).error == E.INCONSISTENT_GROUP_PROTOCOL
    assert not harness.coordinator.knows(GROUP)


def test_an_empty_group_may_change_its_protocol(harness: CoordinatorHarness) -> None:
    _, ids = harness.stable(ONE)
    harness.leave(ids[0])
    assert harness.join(protocol_type="connect", protocols=(("eager", b""),)).answer.protocol_type == "connect"


def test_most_votes_among_common_protocols_win(harness: CoordinatorHarness) -> None:
    a, b, c = (("a", b"1"), ("b", b"2"), ("c", b"3"))
    generation, ids = harness.completing({"protocols": (a, b)}, {"protocols": (c, b, a)}, {"protocols": (b, a)})
    assert generation == 1
    asked = harness.sync(ids[0], generation, {}, protocol="b", protocol_type="consumer")
    assert asked.answer.protocol == "b"


# ---- size


def test_a_full_group_lets_nobody_in_but_its_members() -> None:
    harness = CoordinatorHarness(max_size=2)
    _, ids = harness.stable(ONE, ONE)
    assert harness.join().error == harness.join(required=True).error == E.GROUP_MAX_SIZE_REACHED
    assert harness.join(instance="a").answer[:2] == (E.GROUP_MAX_SIZE_REACHED, "")
    assert harness.state == "Stable"
    asked = [harness.join(ids[0]), harness.join(ids[1])]
    assert [each.error for each in asked] == [E.NONE, E.NONE]


def test_the_last_ones_to_join_again_stay_outside_when_the_limit_was_lowered() -> None:
    harness = CoordinatorHarness()
    _, ids = harness.stable(ONE, ONE, ONE)
    harness.coordinator.config = harness.coordinator.config._replace(max_size=2)
    asked = [harness.join(member_id, protocols=OTHER) for member_id in ids]
    assert [each.error for each in asked] == [E.NONE, E.NONE, E.GROUP_MAX_SIZE_REACHED]
    assert harness.heartbeat(ids[2], asked[0].answer.generation) == E.UNKNOWN_MEMBER_ID


def test_an_id_that_was_given_out_is_used_up_when_the_group_is_full() -> None:
    harness = CoordinatorHarness(max_size=1)
    pending = harness.join(required=True).answer.member_id
    harness.stable(ONE)
    assert harness.join(pending).error == E.GROUP_MAX_SIZE_REACHED
    assert harness.leave(pending) == E.UNKNOWN_MEMBER_ID


def test_a_static_member_finds_its_place_again_in_a_full_group() -> None:
    harness = CoordinatorHarness(max_size=1)
    harness.stable(STATIC_A)
    assert harness.join(instance="a").error == E.NONE
    assert harness.join(instance="b").error == E.GROUP_MAX_SIZE_REACHED


# ---- joining again


def test_a_new_member_makes_the_others_join_again(harness: CoordinatorHarness) -> None:
    generation, ids = harness.stable(ONE)
    new = harness.join()
    assert new.waits
    assert harness.state == "PreparingRebalance"
    assert harness.heartbeat(ids[0], generation) == E.REBALANCE_IN_PROGRESS
    assert harness.sync(ids[0], generation).error == E.REBALANCE_IN_PROGRESS
    asked = harness.join(ids[0])
    assert asked.answer.generation == new.answer.generation == generation + 1
    assert new.answer.leader == ids[0]
    assert new.answer.members == ()
    assert len(asked.answer.members) == 2


def test_a_member_that_does_not_rejoin_in_time_is_removed(harness: CoordinatorHarness) -> None:
    generation, ids = harness.stable(ONE, {"session_ms": 1_000_000})
    asked = harness.join()
    harness.join(ids[0])
    harness.wait(REBALANCE_MS - 1)
    assert asked.waits
    harness.wait(1)
    assert asked.answer.generation == generation + 1
    assert harness.heartbeat(ids[1], generation) == E.UNKNOWN_MEMBER_ID


def test_the_longest_rebalance_timeout_of_the_members_counts(harness: CoordinatorHarness) -> None:
    long = {"session_ms": 1_000_000, "rebalance_ms": 200_000}
    harness.stable(ONE, long)
    asked = harness.join(rebalance_ms=1_000)
    harness.wait(199_999)
    assert asked.waits
    harness.wait(1)
    assert asked.error == E.NONE


def test_version_0_has_the_session_timeout_as_its_rebalance_timeout(harness: CoordinatorHarness) -> None:
    zero: dict[str, Any] = {"session_ms": 20_000, "rebalance_ms": -1}
    _, ids = harness.stable(zero, zero)
    asked = harness.join(ids[0], **zero)
    harness.wait(10_000)
    harness.heartbeat(ids[1], 1)
    assert asked.waits
    harness.wait(10_000)
    assert asked.error == E.NONE


def test_a_leader_that_is_late_is_replaced(harness: CoordinatorHarness) -> None:
    _, ids = harness.stable({"session_ms": 1_000_000}, ONE)
    asked = harness.join(ids[1], protocols=OTHER)
    harness.wait(REBALANCE_MS)
    assert asked.answer.leader == ids[1]
    assert asked.answer.members == (JoinedMember(ids[1], None, b"other topics"),)


def test_a_follower_who_says_the_same_again_changes_nothing(harness: CoordinatorHarness) -> None:
    generation, ids = harness.stable(ONE, ONE)
    answer = harness.join(ids[1]).answer
    assert (answer.error, answer.generation, answer.leader, answer.members) == (E.NONE, generation, ids[0], ())
    assert harness.state == "Stable"
    assert harness.sync(ids[1], generation).answer.assignment == ids[1].encode()


def test_a_follower_with_other_topics_begins_a_rebalance(harness: CoordinatorHarness) -> None:
    _, ids = harness.stable(ONE, ONE)
    assert harness.join(ids[1], protocols=OTHER).waits
    assert harness.state == "PreparingRebalance"


def test_a_leader_that_joins_again_begins_a_rebalance(harness: CoordinatorHarness) -> None:
    _, ids = harness.stable(ONE, ONE)
    assert harness.join(ids[0]).waits
    assert harness.state == "PreparingRebalance"


def test_who_missed_the_answer_gets_it_again_before_it_syncs(harness: CoordinatorHarness) -> None:
    generation, ids = harness.completing(ONE, ONE)
    answers = [harness.join(member_id).answer for member_id in ids]
    assert [answer.generation for answer in answers] == [generation] * 2
    assert [len(answer.members) for answer in answers] == [2, 0]
    assert harness.state == "CompletingRebalance"


def test_other_topics_before_the_sync_begin_a_rebalance_and_those_who_wait_join_again(
    harness: CoordinatorHarness,
) -> None:
    generation, ids = harness.completing(ONE, ONE)
    waiting = harness.sync(ids[1], generation)
    asked = harness.join(ids[0], protocols=OTHER)
    assert waiting.error == E.REBALANCE_IN_PROGRESS
    assert asked.waits
    assert harness.join(ids[1]).answer.generation == asked.answer.generation == generation + 1


def test_a_join_that_is_overtaken_by_another_of_the_same_member_is_answered(harness: CoordinatorHarness) -> None:
    _, ids = harness.stable(ONE, ONE)
    first = harness.join(ids[0])
    second = harness.join(ids[0])
    assert first.error == E.REBALANCE_IN_PROGRESS
    assert second.waits
    harness.join(ids[1])
    assert second.error == E.NONE


def test_a_new_member_does_not_wait_for_ever(harness: CoordinatorHarness) -> None:
    long = {"session_ms": 1_000_000, "rebalance_ms": 900_000}
    harness.stable(long)
    asked = harness.join()
    harness.wait(299_999)
    assert asked.waits
    harness.wait(1)
    assert asked.answer[:2] == (E.UNKNOWN_MEMBER_ID, "")


# ---- syncing


def test_followers_wait_for_the_leader_and_get_what_it_assigns(harness: CoordinatorHarness) -> None:
    generation, ids = harness.completing(ONE, ONE, ONE)
    waiting = harness.sync(ids[1], generation)
    assert waiting.waits
    leader = harness.sync(ids[0], generation, {ids[0]: b"x", ids[1]: b"y", "nobody": b"z"})
    assert harness.state == "Stable"
    assert waiting.answer == (E.NONE, "consumer", "range", b"y")
    assert leader.answer.assignment == b"x"
    assert harness.sync(ids[2], generation).answer.assignment == b""
    assert harness.sync(ids[1], generation).answer.assignment == b"y"


def test_who_does_not_sync_in_time_is_out_and_the_others_join_again(harness: CoordinatorHarness) -> None:
    generation, ids = harness.completing({"session_ms": 1_000_000}, ONE)
    waiting = harness.sync(ids[1], generation)
    harness.wait(REBALANCE_MS - 1)
    assert waiting.waits
    harness.wait(1)
    assert waiting.error == E.REBALANCE_IN_PROGRESS
    assert harness.heartbeat(ids[0], generation) == E.UNKNOWN_MEMBER_ID
    assert harness.join(ids[1]).answer.leader == ids[1]


def test_who_does_not_sync_in_time_is_out_of_a_stable_group_as_well(harness: CoordinatorHarness) -> None:
    generation, ids = harness.completing({"session_ms": 1_000_000}, {"session_ms": 1_000_000})
    harness.sync(ids[0], generation)
    harness.wait(REBALANCE_MS)
    assert harness.heartbeat(ids[1], generation) == E.UNKNOWN_MEMBER_ID
    assert harness.heartbeat(ids[0], generation) == E.REBALANCE_IN_PROGRESS


def test_a_group_of_which_nobody_syncs_is_empty(harness: CoordinatorHarness) -> None:
    harness.completing({"session_ms": 1_000_000})
    harness.wait(REBALANCE_MS)
    assert harness.state == "Empty"


def test_who_was_sent_away_from_a_sync_is_missed_after_its_session(harness: CoordinatorHarness) -> None:
    generation, ids = harness.completing({"session_ms": 1_000_000}, ONE)
    harness.sync(ids[1], generation)
    harness.wait(2 * SESSION_MS)
    harness.join(ids[0], protocols=OTHER, session_ms=1_000_000)
    harness.wait(SESSION_MS - 1)
    assert harness.state == "PreparingRebalance"
    harness.wait(1)
    assert harness.heartbeat(ids[1], generation) == E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"member_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
        ({"generation": 7}, E.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": "sticky"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"instance_id": "a"}, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_sync_that_does_not_fit_is_refused(
    harness: CoordinatorHarness, wrong: dict[str, Any], error: ErrorCode
) -> None:
    generation, ids = harness.completing(ONE)
    given: dict[str, Any] = {"member_id": ids[0], "generation": generation, **wrong}
    assert harness.sync(**given).error == error
    assert harness.state == "CompletingRebalance"


def test_a_sync_that_is_overtaken_by_another_of_the_same_member_is_answered(harness: CoordinatorHarness) -> None:
    generation, ids = harness.completing(ONE, ONE)
    first, second = harness.sync(ids[1], generation), harness.sync(ids[1], generation)
    assert first.error == E.REBALANCE_IN_PROGRESS
    harness.sync(ids[0], generation, {ids[1]: b"y"})
    assert second.answer.assignment == b"y"


def test_bytes_of_a_request_are_copied(harness: CoordinatorHarness) -> None:
    buffer = bytearray(b"topics")
    answer = harness.join(protocols=(("range", memoryview(buffer)),)).answer  # type: ignore[arg-type]
    buffer[:] = b"xxxxxx"
    again = harness.join(answer.member_id).answer
    assert again.members[0].metadata == b"topics"
    harness.sync(answer.member_id, 1, {answer.member_id: memoryview(buffer)})  # type: ignore[dict-item]
    buffer[:] = b"yyyyyy"
    assert harness.sync(answer.member_id, 1).answer.assignment == b"xxxxxx"


# ---- living and leaving


def test_a_member_lives_as_long_as_it_is_heard_of(harness: CoordinatorHarness) -> None:
    generation, ids = harness.stable(ONE)
    for _ in range(3):
        harness.wait(SESSION_MS - 1)
        assert harness.heartbeat(ids[0], generation) == E.NONE
    harness.wait(SESSION_MS)
    assert harness.heartbeat(ids[0], generation) == E.UNKNOWN_MEMBER_ID
    assert harness.state == "Empty"


def test_a_member_that_is_not_heard_of_makes_the_others_join_again(harness: CoordinatorHarness) -> None:
    generation, ids = harness.stable(ONE, {"session_ms": 5_000})
    harness.wait(5_000)
    assert harness.heartbeat(ids[0], generation) == E.REBALANCE_IN_PROGRESS
    assert harness.join(ids[0]).answer.generation == generation + 1


def test_a_commit_is_a_sign_of_life(harness: CoordinatorHarness) -> None:
    generation, ids = harness.stable(ONE)
    for _ in range(3):
        harness.wait(SESSION_MS - 1)
        assert harness.commit(ids[0], generation) == E.NONE
    assert harness.heartbeat(ids[0], generation) == E.NONE


def test_a_member_whose_requests_wait_is_not_missed(harness: CoordinatorHarness) -> None:
    slow: dict[str, Any] = {"session_ms": 1_000_000, "rebalance_ms": REBALANCE_MS}
    _, ids = harness.stable(slow, ONE)
    joining = harness.join(ids[1], protocols=OTHER)
    harness.wait(5 * SESSION_MS)
    leader = harness.join(ids[0], **slow).answer
    assert joining.error == E.NONE
    syncing = harness.sync(ids[1], leader.generation)
    harness.wait(5 * SESSION_MS)
    harness.sync(ids[0], leader.generation)
    assert syncing.error == E.NONE
    harness.wait(SESSION_MS)
    assert harness.heartbeat(ids[1], leader.generation) == E.UNKNOWN_MEMBER_ID


def test_a_heartbeat_is_refused_unless_its_member_and_generation_are_current(harness: CoordinatorHarness) -> None:
    generation, ids = harness.completing(ONE)
    assert harness.heartbeat(ids[0], generation) == E.NONE
    assert (
        harness.heartbeat(ids[0], generation - 1) == harness.heartbeat(ids[0], generation + 1) == E.ILLEGAL_GENERATION
    )
    assert harness.heartbeat("nobody", generation) == E.UNKNOWN_MEMBER_ID
    assert harness.heartbeat(ids[0], generation, "a") == E.UNKNOWN_MEMBER_ID


def test_who_leaves_is_not_waited_for(harness: CoordinatorHarness) -> None:
    generation, ids = harness.stable(ONE, ONE)
    asked = harness.join(ids[0])
    assert harness.leave(ids[1]) == E.NONE
    assert asked.answer.generation == generation + 1
    assert harness.leave(ids[1]) == E.UNKNOWN_MEMBER_ID


def test_the_last_one_who_leaves_leaves_an_empty_group_that_goes_on_counting(harness: CoordinatorHarness) -> None:
    generation, ids = harness.stable(ONE)
    assert harness.leave(ids[0]) == E.NONE
    assert harness.state == "Empty"
    assert harness.join().answer.generation > generation


def test_several_leave_at_once_each_with_its_own_error(harness: CoordinatorHarness) -> None:
    _, ids = harness.stable(ONE, STATIC_A, STATIC_B)
    leaving = [
        LeavingMember(ids[0]),
        LeavingMember("", "a"),  # by name, as an administrator does
        LeavingMember("nobody", "b"),
        LeavingMember("", "c"),
        LeavingMember("nobody"),
        LeavingMember(""),
    ]
    answer = harness.coordinator.leave(GROUP, leaving, now_ms=harness.now_ms)
    wanted = [E.NONE, E.NONE, E.FENCED_INSTANCE_ID, *[E.UNKNOWN_MEMBER_ID] * 3]
    assert [each.error for each in answer.members] == wanted
    assert [each[:2] for each in answer.members] == leaving
    description = harness.coordinator.describe(GROUP)
    assert description is not None
    assert [member.member_id for member in description.members] == [ids[2]]


def test_a_delayed_request_of_a_removed_member_gets_a_response(harness: CoordinatorHarness) -> None:
    generation, ids = harness.completing(ONE, STATIC_A)
    syncing = harness.sync(ids[1], generation, instance_id="a")
    assert harness.leave("", "a") == E.NONE
    assert syncing.error == E.UNKNOWN_MEMBER_ID
    joining = harness.join(instance="a")
    assert harness.leave("", "a") == E.NONE
    assert joining.error == E.UNKNOWN_MEMBER_ID
