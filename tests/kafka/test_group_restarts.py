"""Groups and a server that is stopped or killed, and started anew: members go on, without a rebalance."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.errors import DiskFull
from klamm.kafka import group_store
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.group_store import GroupStore
from klamm.kafka.wire.messages import DELETE_GROUPS, DESCRIBE_GROUPS, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from klamm.kafka.wire.structs import Struct
from klamm.store.wire_groups import WireGroups
from tests.kafka.connect import Served, served
from tests.kafka.member import GROUP, Client, Joined, address_in, hold_writes, serve_for_ever
from tests.procs import PATIENCE, Child, Flag, children, until

E = ErrorCode
FIRST = ("orders", 0)
QUICK = {"group_min_session_timeout_ms": 100}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with klamm.open(tmp_path / "events") as opened:
        opened.topics.create("orders", partitions=4)
    return tmp_path / "events"


class Life:
    """Servers of a store, one after the other: each in a process of its own, that is killed, or here, and stopped."""

    def __init__(self, path: Path, how: str, start: Callable[[Callable[[], object]], Child]) -> None:
        self._path, self._how, self._start = path, how, start
        self._told = path.parent / "address"
        self._process: Child | None = None
        self._served: Served | None = None

    def begin(self, broken: Callable[[], object] = lambda: None) -> str:
        """The address. `broken` runs first, in the process."""

        def action() -> None:
            broken()
            serve_for_ever(self._path, self._told, **QUICK)

        if self._how == "kill":
            self._process = self._start(action)
            return address_in(self._told)
        self._server = served(self._path, **QUICK)
        return self._server.__enter__().address

    def end(self) -> None:
        if self._how == "kill":
            assert self._process is not None
            self._process.kill()
        else:
            self._server.__exit__(None, None, None)


@contextmanager
def life(path: Path, how: str) -> Iterator[Life]:
    with children() as start:
        yield Life(path, how, start)


def described(client: Client) -> Struct:
    (group,) = client.ask(DESCRIBE_GROUPS, 5, groups=[GROUP]).groups
    return group


def sync(client: Client, member: Joined, *, group: str = GROUP, **assignments: bytes) -> Struct:
    make = SYNC_GROUP.request.Assignment
    asked = [make(member_id=name, assignment=what) for name, what in assignments.items()]
    return client.ask(
        SYNC_GROUP, 4, group_id=group, generation_id=member.generation, member_id=member.member_id, assignments=asked
    )


def leave(client: Client, member: Joined) -> None:
    leaving = [LEAVE_GROUP.request.Member(member_id=member.member_id)]
    assert client.ask(LEAVE_GROUP, 5, group_id=GROUP, members=leaving).members[0].error_code == 0


def rows(path: Path) -> int:
    with klamm.open(path) as opened:
        assert opened.check().breaches == []
        return len(opened._acquired().catalog.database.read("SELECT * FROM wire_groups"))


def pair(leader: Client, other: Client, **fields: Any) -> tuple[Joined, Joined]:
    """Two members of a stable generation, assigned `first` and `second`; `fields` are the first one's."""
    first = leader.become_member(**fields)
    other.begin_join(version=3)
    until(lambda: leader.heartbeat(first) == E.REBALANCE_IN_PROGRESS, "the group rebalances")
    generation = leader.join(first.member_id, **fields).generation_id
    first = Joined(first.member_id, generation)
    second = Joined(other.answer().member_id, generation)
    plan: dict[str, Any] = {first.member_id: b"first", second.member_id: b"second"}
    assert sync(leader, first, **plan).assignment == b"first"
    assert sync(other, second).assignment == b"second"
    return first, second


# ---- members go on


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_members_go_on_after_a_restart(path: Path, how: str) -> None:
    with life(path, how) as server:
        address = server.begin()
        with Client(address) as leader, Client(address) as other:
            first, second = pair(leader, other)
            before = described(leader)
            assert before.group_state == "Stable" and len(before.members) == 2
            assert leader.commit({FIRST: 1}, first) == [0]
            server.end()
        for life_number in range(2):
            with Client(server.begin()) as client:
                assert client.heartbeat(first) == client.heartbeat(second) == E.NONE
                assert described(client) == before
                assert client.commit({FIRST: 5 + life_number}, second) == [0]
                assert client.offsets() == {FIRST: 5 + life_number}
                assert sync(client, second).assignment == b"second"
                assert client.heartbeat(first._replace(member_id="nobody")) == E.UNKNOWN_MEMBER_ID
                assert client.heartbeat(first._replace(generation=99)) == E.ILLEGAL_GENERATION
                with klamm.open(path) as store, pytest.raises(klamm.GroupBusy):
                    store.consumer("orders", group=GROUP)
                server.end()
    assert rows(path) == 1


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_member_that_died_meanwhile_expires_and_the_others_rebalance(path: Path, how: str) -> None:
    with life(path, how) as server:
        address = server.begin()
        with Client(address) as leader, Client(address) as other:
            first, second = pair(leader, other, session_timeout_ms=1_000)
            server.end()
        with Client(server.begin()) as client:
            assert client.heartbeat(second) in (E.NONE, E.REBALANCE_IN_PROGRESS)  # it is known
            until(lambda: client.heartbeat(second) == E.REBALANCE_IN_PROGRESS, "the other one is missed")
            assert client.heartbeat(first) == E.UNKNOWN_MEMBER_ID
            again = client.join(second.member_id)
            assert again.error_code == 0 and again.leader == second.member_id
            assert again.generation_id > second.generation + 100  # above whatever the last server may have given out
            server.end()


def test_static_members_keep_their_places_and_ids(path: Path) -> None:
    with life(path, "kill") as server:
        with Client(server.begin()) as client:
            old = client.become_member(group_instance_id="i")
            answer = client.join(group_instance_id="i")
            new = Joined(answer.member_id, answer.generation_id)
            assert new.generation == old.generation and new.member_id != old.member_id
            server.end()
        with Client(server.begin()) as client:
            assert client.heartbeat(new) == E.NONE
            assert client.heartbeat(old) == E.UNKNOWN_MEMBER_ID
            assert sync(client, new).assignment == b"mine"
            came_back = client.join(group_instance_id="i")
            assert (came_back.error_code, came_back.generation_id) == (0, new.generation)
            server.end()


def test_killed_between_taking_the_assignment_and_storing_it_clients_rejoin(path: Path) -> None:
    stuck = Flag(path.parent / "stuck")

    def never_keep() -> None:
        def persist(self: GroupStore, image: object) -> None:
            stuck.up()
            time.sleep(PATIENCE)

        GroupStore._persist = persist  # type: ignore[method-assign]

    with life(path, "kill") as server:
        with Client(server.begin(never_keep)) as client:
            joined = client.join()
            asked = {"generation_id": joined.generation_id, "member_id": joined.member_id}
            client.begin(SYNC_GROUP, 4, group_id=GROUP, **asked)
            stuck.wait()
            server.end()
        with Client(server.begin()) as client:
            old = Joined(joined.member_id, joined.generation_id)
            assert sync(client, old).error_code == E.UNKNOWN_MEMBER_ID
            assert client.become_member().generation > old.generation
            server.end()


# ---- what is not kept


def test_nobody_hears_of_a_generation_that_waits_to_be_written(path: Path) -> None:
    with served(path) as running, Client(running.address) as client, Client(running.address) as second:
        joined = client.join()
        member = Joined(joined.member_id, joined.generation_id)
        go_on = hold_writes(running)
        client.begin(SYNC_GROUP, 4, group_id=GROUP, generation_id=member.generation, member_id=member.member_id)
        group = running.broker.group_coordinator._groups.get(GROUP)
        assert group is not None
        until(lambda: group.persisting, "the generation waits")
        assert second.heartbeat(member) == E.NONE
        assert described(second).group_state == "CompletingRebalance"
        go_on.set()
        assert client.answer().error_code == 0
        assert described(second).group_state == "Stable"


def test_a_full_disk_makes_the_group_rebalance(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise DiskFull("no space is left")

    with served(path) as running, Client(running.address) as client:
        with monkeypatch.context() as patched:
            patched.setattr(WireGroups, "persist", full)
            joined = client.join()
            member = Joined(joined.member_id, joined.generation_id)
            assert sync(client, member).error_code == E.COORDINATOR_NOT_AVAILABLE
            assert client.heartbeat(member) == E.REBALANCE_IN_PROGRESS
        again = client.join(member.member_id)
        assert again.generation_id == member.generation + 1
        assert sync(client, Joined(member.member_id, again.generation_id)).error_code == 0


def test_whoever_left_is_forgotten_and_a_deleted_group_as_well(path: Path) -> None:
    with served(path) as running, Client(running.address) as client:
        leave(client, client.become_member())
        client.become_member("other")
    assert rows(path) == 1
    with served(path) as running, Client(running.address) as client:
        assert described(client).group_state == "Empty"
        (answer,) = client.ask(DELETE_GROUPS, 2, groups_names=["other"]).results
        assert answer.error_code == E.NON_EMPTY_GROUP
    with klamm.open(path) as opened:
        opened.groups.delete("other")  # no server
    assert rows(path) == 0


def test_a_group_that_processes_took_over_meanwhile_has_no_members_any_more(path: Path) -> None:
    with served(path) as running, Client(running.address) as client:
        member = client.become_member()
        reset = client.become_member("reset")
    with klamm.open(path) as store:
        with store.consumer("orders", group=GROUP):
            pass
        store.groups.reset("reset", "orders", to="earliest")
    assert rows(path) == 0
    with served(path) as running, Client(running.address) as client:
        assert client.heartbeat(member) == E.UNKNOWN_MEMBER_ID
        assert client.commit({FIRST: 7}, member) == [E.UNKNOWN_MEMBER_ID]
        assert client.heartbeat(reset, "reset") == E.UNKNOWN_MEMBER_ID
        with klamm.open(path) as store, store.consumer("orders", group=GROUP):
            pass  # the door is free


def test_a_group_that_is_too_large_lives_in_memory_only(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_store, "MOST_STATE", 10_000)
    large = [JOIN_GROUP.request.Protocol(name="range", metadata=bytes(10_000))]
    with caplog.at_level(logging.WARNING, "klamm.kafka"), served(path) as running, Client(running.address) as client:
        member = client.become_member()
        for _ in range(3):
            member = Joined(member.member_id, client.join(member.member_id, protocols=large).generation_id)
            assert sync(client, member).error_code == 0
        assert client.heartbeat(member) == E.NONE
    assert len([each for each in caplog.records if "too large to persist" in each.message]) == 1
    assert rows(path) == 0
    with served(path) as running, Client(running.address) as client:
        assert client.heartbeat(member) == E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("damage", ["state = x'00'", "state = x'7b7d', crc = {crc}"])
def test_a_row_that_is_damaged_is_dropped_and_clients_join_anew(path: Path, damage: str) -> None:
    from klamm.store.rows import crc

    with served(path) as running, Client(running.address) as client:
        member = client.become_member()
        sound = client.become_member("sound")
    with klamm.open(path) as store:
        database = store._acquired().catalog.database
        number = store._acquired().groups.get(GROUP).number
        with database.db_lock(), database.transaction() as execute:
            setting = damage.format(crc=crc(number, b"{}"))
            execute(f"UPDATE wire_groups SET {setting} WHERE group_number = ?", (number,))
        breaches = [each.message for each in store.check().breaches]
        assert len(breaches) == ("{crc}" not in damage) and all("wire_groups" in each for each in breaches)
    with served(path) as running, Client(running.address) as client:
        assert client.heartbeat(member) == E.UNKNOWN_MEMBER_ID
        assert client.heartbeat(sound, "sound") == E.NONE
        with klamm.open(path) as store, store.consumer("orders", group=GROUP):
            pass
    assert rows(path) == 1


def test_a_server_that_cannot_listen_holds_no_door(path: Path) -> None:
    with served(path) as running, Client(running.address) as client:
        client.become_member()
    with klamm.open(path) as store:
        with served(path.parent / "another") as other, pytest.raises(OSError), served(path, kafka=other.server.port):
            pass
        with store.consumer("orders", group=GROUP):
            pass
