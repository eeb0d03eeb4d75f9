"""Groups over a real socket: coordinators, membership in every version, doors, and what people see and delete."""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.kafka.apis import TABLE, group_offsets, groups
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.group_store import _GENERATIONS
from klamm.kafka.wire.messages import (
    CONSUMER_GROUP_HEARTBEAT,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    SYNC_GROUP,
)
from klamm.store import wire_groups
from tests.kafka.connect import Raw, Served, served
from tests.kafka.member import GROUP, Client, Joined, address_in, every, hold_writes, serve_for_ever
from tests.procs import children, until

E = ErrorCode
TOO_LONG = "x" * 250
ROW_OF_HANDLERS = groups.HANDLERS + group_offsets.HANDLERS


def test_every_version_in_the_tables_is_supported() -> None:
    assert all(
        (row.min_version, row.max_version) == (row.api.min_version, row.api.max_version) for row in ROW_OF_HANDLERS
    )
    assert all(TABLE[row.api.key] is row for row in ROW_OF_HANDLERS)


# ---- coordinators


@every(FIND_COORDINATOR)
@pytest.mark.parametrize("key_type", [0, 1])
def test_this_server_coordinates_everything(server: Served, client: Client, version: int, key_type: int) -> None:
    here = (1, "127.0.0.1", server.server.port, E.NONE)
    answer = client.ask(FIND_COORDINATOR, version, key="g", key_type=key_type, coordinator_keys=["g", "h"])
    found = answer.coordinators if version >= 4 else [answer]
    assert [(each.node_id, each.host, each.port, each.error_code) for each in found] == [here] * len(found)
    assert version < 4 or [each.key for each in found] == ["g", "h"]


@pytest.mark.parametrize("version", [1, 3, 4, 6])
def test_there_are_no_coordinators_of_share_groups(client: Client, version: int) -> None:
    answer = client.ask(FIND_COORDINATOR, version, key="g:x:0", key_type=2, coordinator_keys=["g:x:0"])
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id, found.host, found.port) == (E.INVALID_REQUEST, -1, "", -1)


# ---- membership


@every(JOIN_GROUP)
def test_every_version_of_join_group_makes_the_first_member_the_leader(client: Client, version: int) -> None:
    client.begin_join(version=version)
    answer = client.answer()
    if version >= 4:
        assert (answer.error_code, answer.generation_id) == (E.MEMBER_ID_REQUIRED, -1)
        assert answer.member_id.startswith("tests-")
        assert answer.protocol_name == (None if version >= 7 else "")
        answer = client.join(answer.member_id, version=version)
    assert answer.error_code == 0 and answer.generation_id == 1 and answer.leader == answer.member_id
    assert answer.protocol_name == "range" and answer.protocol_type == ("consumer" if version >= 7 else None)
    assert [(each.member_id, each.metadata) for each in answer.members] == [(answer.member_id, b"topics")]


@pytest.mark.parametrize("version", [5, 9])
def test_a_static_leader_that_comes_back_is_told_not_to_assign_if_it_understands(client: Client, version: int) -> None:
    member = client.become_member(version=version, group_instance_id="i")
    answer = client.join(version=version, group_instance_id="i")
    assert (answer.error_code, answer.generation_id) == (0, member.generation)
    assert answer.member_id != member.member_id
    assert answer.skip_assignment == (version == 9)
    assert client.heartbeat(member) == E.UNKNOWN_MEMBER_ID


@every(SYNC_GROUP)
def test_every_version_of_sync_group_hands_out_the_assignment_of_the_leader(
    server: Served, client: Client, version: int
) -> None:
    first = client.become_member()
    with Client(server.address) as second:
        second.begin_join()
        second_id = second.answer().member_id
        second.begin_join(second_id)
        until(lambda: client.heartbeat(first) == E.REBALANCE_IN_PROGRESS, "the group rebalances")
        generation = client.join(first.member_id).generation_id
        assert second.answer().generation_id == generation == first.generation + 1
        same = {"group_id": GROUP, "generation_id": generation, "protocol_type": "consumer", "protocol_name": "range"}
        second.begin(SYNC_GROUP, version, member_id=second_id, **same)
        make = SYNC_GROUP.request.Assignment
        plan = [make(member_id=first.member_id, assignment=b"a"), make(member_id=second_id, assignment=b"b")]
        answers = [
            client.ask(SYNC_GROUP, version, member_id=first.member_id, assignments=plan, **same),
            second.answer(),
        ]
    assert [(each.error_code, each.assignment) for each in answers] == [(0, b"a"), (0, b"b")]
    if version >= 5:
        assert (answers[1].protocol_type, answers[1].protocol_name) == ("consumer", "range")
        nothing = client.ask(SYNC_GROUP, 5, group_id=GROUP, generation_id=generation, member_id=first.member_id)
        assert nothing.error_code == E.INCONSISTENT_GROUP_PROTOCOL


@every(HEARTBEAT)
def test_a_heartbeat_of_another_generation_or_member_is_refused(client: Client, version: int) -> None:
    member = client.become_member()
    asked = {"group_id": GROUP, "generation_id": member.generation, "member_id": member.member_id}
    assert client.ask(HEARTBEAT, version, **asked).error_code == 0
    assert client.ask(HEARTBEAT, version, **asked | {"generation_id": 7}).error_code == E.ILLEGAL_GENERATION
    assert client.ask(HEARTBEAT, version, **asked | {"member_id": "m"}).error_code == E.UNKNOWN_MEMBER_ID


@every(LEAVE_GROUP)
def test_a_member_that_has_left_is_unknown(client: Client, version: int) -> None:
    member = client.become_member()
    make = LEAVE_GROUP.request.Member
    for expected in (E.NONE, E.UNKNOWN_MEMBER_ID):
        answer = client.ask(
            LEAVE_GROUP, version, group_id=GROUP, member_id=member.member_id, members=[make(member_id=member.member_id)]
        )
        if version < 3:
            assert answer.error_code == expected
        else:
            assert (answer.error_code, answer.members[0].error_code) == (0, expected)
            assert answer.members[0].member_id == member.member_id


def test_a_session_that_is_not_heard_of_ends(store: klamm.Store) -> None:
    with served(Path(store.path), group_min_session_timeout_ms=1) as running, Client(running.address) as client:
        members: list[Joined] = []

        def becomes_one(session_timeout_ms: int) -> bool:
            """Unless its session is over before it syncs."""
            joined = client.join(session_timeout_ms=session_timeout_ms)
            members.append(Joined(joined.member_id, joined.generation_id))
            asked = {"generation_id": joined.generation_id, "member_id": joined.member_id}
            return bool(client.ask(SYNC_GROUP, 4, group_id=GROUP, **asked).error_code == 0)

        assert any(map(becomes_one, (50, 500, 5000)))
        until(lambda: states(client) == {GROUP: "Empty"}, "the member is gone")
        assert [client.heartbeat(each) for each in members] == [E.UNKNOWN_MEMBER_ID] * len(members)


def test_a_client_that_goes_while_the_door_is_claimed_is_no_member(server: Served, client: Client) -> None:
    go_on = hold_writes(server)
    gone = Client(server.address)
    gone.begin_join(version=3)
    store_of = server.broker.group_store
    until(lambda: server.call(lambda: store_of._last is not None), "the door is being claimed")
    gone.close()
    until(lambda: len(server.server.listener.connections) == 1, "the connection is closed")
    go_on.set()
    until(lambda: server.call(lambda: store_of._last is not None and store_of._last.done()), "the door is claimed")
    assert states(client) == {GROUP: "Empty"}
    groups = server.broker.core.groups
    until(lambda: not groups.held_doors(), "the group may have members at the other door")


def test_nothing_is_left_of_a_join_whose_client_is_gone(server: Served, client: Client) -> None:
    """It waits for a member that does not join again."""
    client.become_member()
    waiting = Client(server.address)
    waiting.begin_join(version=3)
    until(lambda: states(client) == {GROUP: "PreparingRebalance"}, "it waits")
    assert server.call(lambda: len(server.broker.tasks)) == 1
    waiting.close()
    until(lambda: server.call(lambda: len(server.broker.tasks)) == 0, "its handler has ended")


@pytest.mark.parametrize("name", ["", TOO_LONG, "a\nb"])
def test_names_that_no_group_can_have(client: Client, name: str) -> None:
    asked = {"group_id": name, "member_id": "m", "generation_id": 1}
    assert client.join(group=name).error_code == E.INVALID_GROUP_ID
    assert client.ask(SYNC_GROUP, 4, **asked).error_code == E.INVALID_GROUP_ID
    assert client.ask(HEARTBEAT, 4, **asked).error_code == E.INVALID_GROUP_ID
    assert client.ask(LEAVE_GROUP, 5, group_id=name).error_code == E.INVALID_GROUP_ID
    (described,) = client.ask(DESCRIBE_GROUPS, 6, groups=[name]).groups
    assert (described.error_code, described.group_state) == (E.INVALID_GROUP_ID, "Dead")
    assert delete(client, name) == [E.INVALID_GROUP_ID]
    assert states(client) == {}


def test_the_stores_group_max_size_counts_and_may_change(store: klamm.Store, server: Served, client: Client) -> None:
    store.alter({"group.max.size": 1})
    client.become_member()
    with Client(server.address) as other:
        assert other.join(version=3).error_code == E.GROUP_MAX_SIZE_REACHED
        store.alter({"group.max.size": 2})
        other.begin_join(version=3)
        until(lambda: states(client)[GROUP] == "PreparingRebalance", "the other is let in")


# ---- doors


def test_a_group_with_embedded_members_is_not_joined_over_the_wire_until_they_have_gone(
    store: klamm.Store, server: Served, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), store.consumer("orders", group=GROUP):
        for version in (0, 3, 5, 9):
            assert client.join(version=version).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    lines = [record.getMessage() for record in caplog.records if "rejected" in record.getMessage()]
    assert len(lines) == 1 and GROUP in lines[0] and "have the store open" in lines[0]
    assert client.become_member().generation > 0
    with pytest.raises(klamm.GroupBusy, match="Kafka server"):
        store.consumer("orders", group=GROUP)


def test_the_same_between_processes(tmp_path: Path) -> None:
    path, told = tmp_path / "events", tmp_path / "address"
    with klamm.open(path) as opened:
        opened.topics.create("orders")
    with children() as start:
        process = start(lambda: serve_for_ever(path, told))
        with klamm.open(path) as store, Client(address_in(told)) as client:
            with store.consumer("orders", group=GROUP):
                assert client.join().error_code == E.INCONSISTENT_GROUP_PROTOCOL
            client.become_member()
            with pytest.raises(klamm.GroupBusy):
                store.consumer("orders", group=GROUP)
            with pytest.raises(klamm.GroupBusy):
                store.groups.delete(GROUP)
            process.kill()
            store.consumer("orders", group=GROUP).close()


# ---- generations


def test_generations_go_on_after_a_restart_and_after_a_kill(tmp_path: Path) -> None:
    path, told = tmp_path / "events", tmp_path / "address"
    with klamm.open(path) as opened:
        opened.topics.create("orders")
    seen = []
    with children() as start:
        for _ in range(3):
            process = start(lambda: serve_for_ever(path, told, group_min_session_timeout_ms=100))
            with Client(address_in(told)) as client:
                member = client.become_member()
                for _ in range(4):  # a leader that joins again wants a rebalance
                    seen.append(client.join(member.member_id).generation_id)
                    assert (
                        client.ask(
                            SYNC_GROUP, 4, group_id=GROUP, generation_id=seen[-1], member_id=member.member_id
                        ).error_code
                        == 0
                    )
                seen.append(client.shorten_session(member))
            process.kill()
    assert seen == sorted(set(seen))


def test_generations_are_reserved_before_they_are_used_up(store: klamm.Store, server: Served, client: Client) -> None:
    client.become_member()
    store_of = server.broker.group_store
    used = 3 * _GENERATIONS
    server.call(lambda: store_of.has_begun(used))
    until(lambda: store_of._reserved > used, "more are reserved")
    assert store_of.groups.reserve_generations(1) == store_of._reserved >= used + _GENERATIONS


def test_numbers_of_generations_begin_anew_before_they_do_not_fit(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = wire_groups.WireGroups(store._acquired())
    monkeypatch.setattr(wire_groups, "_LAST_GENERATION", 20)
    assert [wire.reserve_generations(10) for _ in range(4)] == [0, 10, 0, 10]
    assert store.check().breaches == []


# ---- for people


def states(client: Client, **filters: Any) -> dict[str, str]:
    answer = client.ask(LIST_GROUPS, 5, **filters)
    assert answer.error_code == 0
    return {each.group_id: each.group_state for each in answer.groups}


def delete(client: Client, *names: str, version: int = 2) -> list[int]:
    answer = client.ask(DELETE_GROUPS, version, groups_names=list(names))
    assert [each.group_id for each in answer.results] == list(names)
    return [each.error_code for each in answer.results]


def test_groups_without_members_and_offsets_are_forgotten(server: Served, store: klamm.Store, client: Client) -> None:
    def leave(group: str, member_id: str) -> None:
        client.ask(LEAVE_GROUP, 3, group_id=group, members=[LEAVE_GROUP.request.Member(member_id=member_id)])

    first = client.become_member("passing")
    leave("passing", first.member_id)
    reading = client.become_member("reading")
    assert client.commit({("orders", 0): 1}, reading, group="reading") == [0]
    leave("reading", reading.member_id)
    client.become_member("staying")
    client.begin_join(group="coming")
    assert client.answer().error_code == E.MEMBER_ID_REQUIRED
    with store.consumer("orders", group="embedded"):
        assert states(client)["passing"] == "Empty"
        until(lambda: server.call(lambda: "passing" not in server.broker.group_store._here), "its door is left")
        server.run(server.broker.group_store.forget_empty())
        persisted = {"coming", "embedded", "reading", "staying"}
        assert set(states(client)) == set(store.groups) == persisted
        assert not server.call(lambda: server.broker.group_coordinator.knows("passing"))
    again = client.become_member("passing")
    assert again.generation > first.generation
    assert client.commit({("orders", 0): 1}, again, group="passing") == [0]


@every(LIST_GROUPS)
def test_groups_of_both_doors_are_listed_and_filtered_by_state_and_type(
    store: klamm.Store, client: Client, version: int
) -> None:
    client.become_member("joined")
    client.commit({("orders", 0): 1}, group="simple")
    with store.consumer("orders", group="embedded"):
        found = client.ask(LIST_GROUPS, version)
        all_states = states(client)
        stable = states(client, states_filter=["stable"])
        assert states(client, types_filter=["Classic"]) == all_states
        assert states(client, types_filter=["share"]) == {}
    kinds = [("embedded", "consumer"), ("joined", "consumer"), ("simple", "")]
    assert [(each.group_id, each.protocol_type) for each in found.groups] == kinds
    assert all_states == {"embedded": "Stable", "joined": "Stable", "simple": "Empty"}
    assert set(stable) == {"embedded", "joined"}
    if version >= 4:
        assert {each.group_id: each.group_state for each in found.groups} == all_states
    if version >= 5:
        assert {each.group_type for each in found.groups} == {"classic"}


@every(DESCRIBE_GROUPS)
def test_groups_of_both_doors_are_described_in_the_order_of_the_request(
    store: klamm.Store, client: Client, version: int
) -> None:
    member = client.become_member("joined")
    client.commit({("orders", 0): 1}, group="simple")
    with store.consumer("orders", group="embedded", member="m") as consumer:
        until(lambda: consumer.poll(timeout=0.01) or len(consumer.assignment()) == 4, "all is assigned")
        names = ["joined", "simple", "embedded", "none"]
        answer = client.ask(DESCRIBE_GROUPS, version, groups=names, include_authorized_operations=True)
    joined, simple, embedded, none = answer.groups
    assert [each.group_id for each in answer.groups] == names
    all_operations = sum(1 << number for number in (3, 6, 8, 10, 11)) if version >= 3 else -(2**31)
    assert [each.authorized_operations for each in answer.groups] == [
        -(2**31) if each.error_code else all_operations for each in answer.groups
    ]
    assert (joined.group_state, joined.protocol_type, joined.protocol_data) == ("Stable", "consumer", "range")
    (seen,) = joined.members
    assert (seen.member_id, seen.client_id, seen.client_host) == (member.member_id, "tests", "/127.0.0.1")
    assert (seen.member_metadata, seen.member_assignment) == (b"topics", b"mine")
    assert (simple.group_state, simple.members, simple.error_code) == ("Empty", [], 0)
    assert (embedded.group_state, embedded.protocol_type) == ("Stable", "consumer")
    (seen,) = embedded.members
    assert seen.member_id and seen.group_instance_id == ("m" if version >= 4 else None)
    assert seen.member_assignment == struct.pack(">hih6si4ii", 0, 1, 6, b"orders", 4, 0, 1, 2, 3, -1)
    assert (none.group_state, none.members) == ("Dead", [])
    assert none.error_code == (E.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    assert none.error_message == (f"Group {names[-1]} not found." if version >= 6 else None)


@every(DELETE_GROUPS)
def test_only_an_empty_group_is_deleted(store: klamm.Store, client: Client, version: int) -> None:
    member = client.become_member("joined")
    client.commit({("orders", 0): 1}, member, group="joined")
    client.commit({("orders", 0): 1}, group="simple")
    with store.consumer("orders", group="embedded"):
        asked = ["joined", "simple", "embedded", "none", "simple"]
        expected = [E.NON_EMPTY_GROUP, E.NONE, E.NON_EMPTY_GROUP, E.GROUP_ID_NOT_FOUND, E.GROUP_ID_NOT_FOUND]
        assert delete(client, *asked, version=version) == expected
    assert set(states(client)) == {"joined", "embedded"}
    assert client.offsets("simple") == {} and client.offsets("joined") == {("orders", 0): 1}
    client.ask(LEAVE_GROUP, 0, group_id="joined", member_id=member.member_id)
    assert delete(client, "joined", "embedded", version=version) == [E.NONE, E.NONE]
    assert states(client) == {} and list(store.groups) == []
    again = client.become_member("joined")
    assert again.generation > member.generation and client.offsets("joined") == {}


def test_a_group_can_be_joined_after_the_store_has_refused_to_delete_it(
    server: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.commit({("orders", 0): 1})

    def fail(_: object) -> None:
        raise klamm.DiskFull("no space")

    with monkeypatch.context() as patch:
        patch.setattr(server.broker.group_store.groups, "delete", fail)
        assert delete(client, GROUP) == [E.KAFKA_STORAGE_ERROR]
    assert client.offsets() == {("orders", 0): 1}
    assert client.become_member().generation == 1


def test_nobody_joins_or_commits_while_a_group_is_being_deleted(server: Served, client: Client) -> None:
    client.commit({("orders", 0): 1})
    go_on = hold_writes(server)
    with Client(server.address) as other:
        client.begin(DELETE_GROUPS, 2, groups_names=[GROUP])
        coordinator = server.broker.group_coordinator
        until(lambda: server.call(lambda: coordinator.knows(GROUP)), "the group is dead")
        other.begin_commit({("orders", 0): 2})
        assert other.committed() == [E.COORDINATOR_NOT_AVAILABLE]
        other.begin_join("somebody")
        assert other.answer().error_code == E.COORDINATOR_NOT_AVAILABLE
        go_on.set()
        assert client.answer().results[0].error_code == 0
        assert other.offsets() == {}
        assert other.become_member().generation == 1


@every(CONSUMER_GROUP_HEARTBEAT)
def test_a_client_of_the_newer_protocol_is_told_at_once(raw: Raw, version: int) -> None:
    answered = raw.ask(
        CONSUMER_GROUP_HEARTBEAT, version, group_id="g", member_id="m", subscribed_topic_names=["orders"]
    )
    assert answered.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "group.protocol=classic" in answered.error_message
