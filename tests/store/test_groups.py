"""Groups in klamm.db and in lock bytes: rows, places, doors, damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.disk._os import HeldBytes
from klamm.disk.locks import group_lock_base
from klamm.errors import CommitGap, GroupBusy, InvalidSetting, NotAStore, UnknownGroup, UnknownTopic
from klamm.store import directory
from klamm.store.check import check
from klamm.store.directory import Core
from klamm.store.groups import JoinResult, OffsetRow
from klamm.types import TopicId
from tests.procs import Flag, children

EVERYTHING = {"topics": {"orders": None}}


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    opened = directory.acquire(str(tmp_path / "events"), read_only=False, create=True, force_filesystem=False)
    opened.catalog.create_topic("orders", 2, {}, opened.lay_out)
    yield opened
    directory.release(opened)


def join(
    core: Core, name: str = "g", member: str | None = None, *, rejoin_ms: int = 0, max_size: int = 10
) -> JoinResult:
    member_id = f"id-{len(core.groups.rows(0)) if core.groups.names() else 0}-{member}"
    return core.groups.join(
        name, member_id, member, EVERYTHING, rejoin_ms, max_size, lambda byte, joined: hold(core, byte)
    )


def hold(core: Core, byte: int) -> bool:
    assert core.members is not None
    return core.members.try_hold(byte)


def leave(core: Core, joined: JoinResult, *, keep_row: bool) -> None:
    assert core.members is not None
    core.members.release(group_lock_base(joined.group.number) + joined.member_index)
    core.groups.left(joined, keep_row=keep_row)


def topic_id(core: Core) -> TopicId:
    return core.topic("orders").topic.id


# Members


def test_a_member_gets_the_lowest_free_place_and_a_named_one_its_own(core: Core) -> None:
    a, b, named = join(core), join(core), join(core, member="m")
    assert [joined.member_index for joined in (a, b, named)] == [0, 1, 2]
    assert core.groups.live_member_indexes(a.group.number) == {0, 1, 2}
    leave(core, a, keep_row=False)
    leave(core, named, keep_row=True)
    assert [row.member_index for row in core.groups.rows(0)] == [1, 2]
    assert [join(core).member_index for _ in range(2)] == [0, 3]
    again = join(core, member="m")
    assert again.member_index == 2
    with pytest.raises(GroupBusy):
        join(core, member="m")
    with pytest.raises(GroupBusy, match=r"group\.max\.size"):
        join(core, max_size=4)


def test_rows_of_the_dead_go_when_somebody_joins(core: Core, tmp_path: Path) -> None:
    has, path = Flag(tmp_path / "has"), core.path

    def die() -> None:
        mine = directory.acquire(path, read_only=False, create=False, force_filesystem=False)
        for member in (None, None, "m"):
            join(mine, member=member)
        has.up()

    with children() as start:
        child = start(die)
        has.wait()
        child.ended()
    assert [row.member_index for row in core.groups.rows(0)] == [0, 1, 2]
    assert core.groups.live_member_indexes(0) == set()
    assert join(core).member_index == 0
    assert [(row.member_index, row.name) for row in core.groups.rows(0)] == [(0, None), (2, "m")]


def test_a_late_member_is_expired_unless_it_is_back(core: Core) -> None:
    named = join(core, member="m")
    (row,) = core.groups.rows(0)
    core.groups.expire(0, row)
    assert len(core.groups.rows(0)) == 1
    leave(core, named, keep_row=True)
    core.groups.expire(0, row._replace(joined_ms=row.joined_ms - 1))  # it was another life of it that was late
    assert len(core.groups.rows(0)) == 1
    core.groups.expire(0, row)
    assert core.groups.rows(0) == [] and core.groups.live_member_indexes(0) == set()


def test_a_join_that_fails_leaves_nothing_behind(core: Core) -> None:
    before = core.groups._held(0, 1 << 62)
    locks: list[HeldBytes[str, JoinResult]] = [HeldBytes(core.members)]
    with pytest.raises(TypeError):
        core.groups.join(
            "g", "id", None, {"topics": object()}, 0, 10, lambda byte, joined: locks[0].take("", byte, joined)
        )
    assert core.groups._held(0, 1 << 62) != before, "the byte is the caller's to release"
    locks.clear()
    assert core.groups._held(0, 1 << 62) == before
    assert core.groups.names() == []


def test_the_number_of_a_group_is_never_given_again(core: Core) -> None:
    numbers = []
    for name in ("a", "b", "a"):
        joined = join(core, name)
        numbers.append(joined.group.number)
        leave(core, joined, keep_row=False)
        core.groups.delete(name)
    assert numbers == [0, 1, 2]
    with pytest.raises(UnknownGroup):
        core.groups.delete("a")


@pytest.mark.parametrize("name", ["", "x" * 250, "a\nb"])
def test_a_name_that_does_not_fit_is_refused(core: Core, name: str) -> None:
    with pytest.raises(InvalidSetting):
        core.groups.claim_door(name, "klamm")


# Doors


def test_a_door_is_claimed_when_nobody_sits_at_the_other(core: Core) -> None:
    groups = core.groups
    joined = join(core)
    with pytest.raises(GroupBusy, match="have the store open"):
        groups.claim_door("g", "kafka")
    leave(core, joined, keep_row=False)
    group = groups.claim_door("g", "kafka")
    assert group.door == "kafka"
    with pytest.raises(GroupBusy, match="Kafka server"):
        join(core)
    with pytest.raises(GroupBusy, match="Kafka server"):
        groups.delete("g")
    assert groups.claim_door("g", "kafka").door == "kafka"
    groups.leave_door(group)
    assert join(core).group.door == "klamm"


# Offsets


def test_offsets_are_kept_by_topic_and_partition_and_compared_when_asked(core: Core) -> None:
    group = core.groups.claim_door("g", "klamm")
    first = OffsetRow(topic_id(core), 0, 5, 1, "note")
    other = OffsetRow(topic_id(core), 1, 7)
    core.groups.commit(group.number, [first, other])
    found = core.groups.offsets(group.number)
    assert found[first.key][:5] == first[:5] and found[first.key].committed_ms > 0
    core.groups.commit(group.number, [first._replace(offset=6)], expect={first.key: 5})
    for expect in (5, None):
        with pytest.raises(CommitGap) as gap:
            core.groups.commit(
                group.number,
                [other._replace(offset=9), first._replace(offset=9)],
                expect={first.key: expect, other.key: 7},
            )
        assert gap.value.expected == 6
    assert {row.offset for row in core.groups.offsets(group.number).values()} == {6, 7}
    with pytest.raises(UnknownTopic):
        core.groups.commit(group.number, [OffsetRow(TopicId("nothing"), 0, 5)])


def test_an_offset_commit_is_not_synced_and_other_writes_are(core: Core) -> None:
    group = core.groups.claim_door("g", "klamm")
    row = OffsetRow(topic_id(core), 0, 5)
    database = core.catalog.database

    def mode() -> int:
        return int(database.read("PRAGMA synchronous")[0][0])

    core.groups.commit(group.number, [row])
    assert mode() == 1
    core.catalog.alter({"group.max.size": 7})
    assert mode() == 2
    core.groups.commit(group.number, [row])
    assert mode() == 1
    with database.db_lock(), database.transaction():
        pass
    assert mode() == 2


# Damage


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE offsets SET offset = 6", "offsets: the row"),
        ("UPDATE members SET topics = '{}'", "members: the row of member 0"),
        ("UPDATE groups SET door = 'kafka'", "groups: the row of 'g'"),
    ],
)
def test_rows_that_are_not_as_they_were_written_are_found(core: Core, statement: str, said: str) -> None:
    group = join(core).group
    core.groups.commit(group.number, [OffsetRow(topic_id(core), 0, 5)])
    assert check(core).ok
    with core.catalog.database.db_lock(), core.catalog.database.transaction() as execute:
        execute(statement)
    (breach,) = check(core).breaches
    assert said in breach.message
    assert breach.promise.startswith("G5")
    number = group.number
    read = {"offsets": lambda: core.groups.offsets(number), "members": lambda: core.groups.rows(number)}
    with pytest.raises(NotAStore, match="damaged"):
        read.get(said.split(":", maxsplit=1)[0], lambda: core.groups.get("g"))()
