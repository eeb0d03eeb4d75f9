"""Groups by hand: joins, syncs, heartbeats, commits, and what administrators ask."""

from __future__ import annotations

from typing import Any

from klamm.kafka.wire.frames import read_response
from klamm.kafka.wire.messages import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from tests.interop.raw import Raw
from tests.interop.scripts import Desk, script

RANGE = [JOIN_GROUP.request.Protocol(name="range", metadata=b"\0\1\0\0\0\0\0\0\0\0")]


def joining(group: str, member: str = "", **fields: Any) -> dict[str, Any]:
    asked = {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": RANGE,
    }
    return {**asked, **fields}


def member_of(desk: Desk, group: str, raw: Raw | None = None, **fields: Any) -> tuple[str, int]:
    """A member that has joined an empty group and is its leader, with an assignment."""
    raw = raw or desk.raw
    named = raw.ask(JOIN_GROUP, 7, **joining(group, **fields))
    joined = named if named.error_code == 0 else raw.ask(JOIN_GROUP, 7, **joining(group, named.member_id, **fields))
    assert joined.error_code == 0, joined
    given = [SYNC_GROUP.request.Assignment(member_id=joined.member_id, assignment=b"\0\0\0\0\0\0\0\0\0\0")]
    known = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
    synced = raw.ask(SYNC_GROUP, 5, protocol_type="consumer", protocol_name="range", assignments=given, **known)
    assert synced.error_code == 0, synced
    return joined.member_id, joined.generation_id


def commit(
    desk: Desk,
    what: str,
    group: str,
    topic: str,
    offset: int = 5,
    generation: int = -1,
    member: str = "",
    version: int = 8,
    partition: int = 0,
    metadata: str | None = "note",
) -> Any:
    part = OFFSET_COMMIT.request.Partition(
        partition_index=partition, committed_offset=offset, committed_metadata=metadata
    )
    named = {"topic_id": desk.topic_id(topic)} if version >= 10 else {"name": topic}
    asked = [OFFSET_COMMIT.request.Topic(partitions=[part], **named)]
    fields = {"generation_id_or_member_epoch": generation, "member_id": member, "topics": asked}
    return desk.ask(what, OFFSET_COMMIT, version, group_id=group, **fields)


def committed(desk: Desk, what: str, group: str, *topics: str, stable: bool = False) -> Any:
    parts = [OFFSET_FETCH.request.GroupTopic(name=topic, partition_indexes=[0, 1]) for topic in topics]
    asked = [OFFSET_FETCH.request.Group(group_id=group, topics=parts or None)]
    return desk.ask(what, OFFSET_FETCH, 8, groups=asked, require_stable=stable)


@script
def coordinators(desk: Desk) -> None:
    group = desk.name("group")
    for version in range(4):
        desk.ask(f"v{version}", FIND_COORDINATOR, version, key=group, key_type=0)
    desk.ask("several", FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group, desk.name("other")])
    desk.ask("of a transaction", FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[desk.name("txn")])
    desk.ask("of an odd kind", FIND_COORDINATOR, 4, key_type=9, coordinator_keys=[group])
    desk.ask("of no name", FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[""])
    desk.ask("none", FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[])


@script
def a_member_joins_works_and_leaves(desk: Desk) -> None:
    group = desk.name("group")
    named = desk.ask("without a name", JOIN_GROUP, 7, **joining(group))
    joined = desk.ask("with its name", JOIN_GROUP, 7, **joining(group, named.member_id))
    known = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
    desk.ask("heartbeat before the sync", HEARTBEAT, 4, **known)
    given = [SYNC_GROUP.request.Assignment(member_id=joined.member_id, assignment=b"mine")]
    agreed = {"protocol_type": "consumer", "protocol_name": "range"}
    desk.ask("sync", SYNC_GROUP, 5, assignments=given, **agreed, **known)
    desk.ask("sync again", SYNC_GROUP, 5, assignments=[], **agreed, **known)
    desk.ask("heartbeat", HEARTBEAT, 4, **known)
    desk.ask("described", DESCRIBE_GROUPS, 5, groups=[group])
    desk.ask("join again", JOIN_GROUP, 7, **joining(group, joined.member_id))
    desk.ask("leave", LEAVE_GROUP, 4, group_id=group, members=[LEAVE_GROUP.request.Member(member_id=joined.member_id)])
    desk.ask("heartbeat after it left", HEARTBEAT, 4, **known)
    desk.ask("described, empty", DESCRIBE_GROUPS, 5, groups=[group])


@script
def joins_that_are_refused(desk: Desk) -> None:
    group = desk.name("group")
    desk.ask("no group", JOIN_GROUP, 7, **joining(""))
    desk.ask("short session", JOIN_GROUP, 7, **joining(group, session_timeout_ms=1))
    desk.ask("long session", JOIN_GROUP, 7, **joining(group, session_timeout_ms=2**31 - 1))
    desk.ask("unknown member", JOIN_GROUP, 7, **joining(group, "nobody"))
    desk.ask("no protocols", JOIN_GROUP, 7, **joining(group, protocols=[]))
    desk.ask("no type", JOIN_GROUP, 7, **joining(group, protocol_type=""))
    member_of(desk, group)
    desk.ask("unknown member of a group", JOIN_GROUP, 7, **joining(group, "nobody"))
    other = [JOIN_GROUP.request.Protocol(name="other", metadata=b"")]
    desk.ask("nothing in common", JOIN_GROUP, 3, **joining(group, protocols=other))
    desk.ask("another type", JOIN_GROUP, 3, **joining(group, protocol_type="connect"))


@script
def joins_in_every_version(desk: Desk) -> None:
    for version in range(2, 10):
        group = desk.name(f"group{version}")
        first = desk.ask(f"v{version}", JOIN_GROUP, version, **joining(group))
        if first.error_code:
            desk.ask(f"v{version}, named", JOIN_GROUP, version, **joining(group, first.member_id))


@script
def two_members_rebalance(desk: Desk) -> None:
    group, topic = desk.name("group"), desk.topic()
    first, generation = member_of(desk, group)
    other = desk.other()
    named = other.ask(JOIN_GROUP, 7, **joining(group))
    other.send(JOIN_GROUP, 7, **joining(group, named.member_id))
    known = {"group_id": group, "generation_id": generation, "member_id": first}
    desk.until(HEARTBEAT, 4, lambda answer: answer.error_code, **known)
    desk.ask("heartbeat while it rebalances", HEARTBEAT, 4, **known)
    commit(desk, "commit while it rebalances", group, topic, 5, generation, first)
    desk.ask("sync while it rebalances", SYNC_GROUP, 4, assignments=[], **known)
    leads = desk.ask("the leader joins", JOIN_GROUP, 7, **joining(group, first))
    follows = read_response(JOIN_GROUP, 7, other.receive())[1]
    desk.note("the other has joined", [follows.error_code, follows.generation_id, len(follows.members)])
    desk.note("they agree", leads.leader == follows.leader == first)
    known = {"group_id": group, "generation_id": leads.generation_id}
    other.send(SYNC_GROUP, 4, member_id=follows.member_id, **known)
    parts = SYNC_GROUP.request.Assignment
    given = [parts(member_id=first, assignment=b"one"), parts(member_id=follows.member_id, assignment=b"other")]
    desk.ask("the leader syncs", SYNC_GROUP, 4, member_id=first, assignments=given, **known)
    desk.note("the other syncs", read_response(SYNC_GROUP, 4, other.receive())[1])
    desk.ask("an old generation", HEARTBEAT, 4, group_id=group, generation_id=generation, member_id=first)


@script
def strangers_are_refused(desk: Desk) -> None:
    group, missing, topic = desk.name("group"), desk.name("missing"), desk.topic()
    member, generation = member_of(desk, group)
    for what, (name, who, number) in {
        "unknown group": (missing, "nobody", 1),
        "unknown member": (group, "nobody", generation),
        "wrong generation": (group, member, generation + 1),
        "no group": ("", member, generation),
    }.items():
        known = {"group_id": name, "generation_id": number, "member_id": who}
        desk.ask(f"heartbeat: {what}", HEARTBEAT, 4, **known)
        desk.ask(f"sync: {what}", SYNC_GROUP, 4, assignments=[], **known)
        commit(desk, f"commit: {what}", name, topic, 5, number, who)
        leaving = [LEAVE_GROUP.request.Member(member_id=who if who == "nobody" else "other")]
        desk.ask(f"leave: {what}", LEAVE_GROUP, 4, group_id=name, members=leaving)
        desk.ask(f"leave, old: {what}", LEAVE_GROUP, 2, group_id=name, member_id="nobody")
    wrong = {"group_id": group, "generation_id": generation, "member_id": member, "assignments": []}
    desk.ask("sync: wrong type", SYNC_GROUP, 5, protocol_type="connect", protocol_name="range", **wrong)
    desk.ask("sync: wrong protocol", SYNC_GROUP, 5, protocol_type="consumer", protocol_name="other", **wrong)
    commit(desk, "commit of nobody to a group with members", group, topic)


@script
def static_members(desk: Desk) -> None:
    group = desk.name("group")
    first = desk.ask("joins", JOIN_GROUP, 7, **joining(group, group_instance_id="one"))
    known = {"group_id": group, "generation_id": first.generation_id, "group_instance_id": "one"}
    given = [SYNC_GROUP.request.Assignment(member_id=first.member_id, assignment=b"mine")]
    desk.ask("syncs", SYNC_GROUP, 4, member_id=first.member_id, assignments=given, **known)
    again = desk.ask("comes back", JOIN_GROUP, 7, **joining(group, group_instance_id="one"))
    desk.ask("the one before it", HEARTBEAT, 4, member_id=first.member_id, **known)
    desk.ask("syncs again", SYNC_GROUP, 4, member_id=again.member_id, **{**known, "generation_id": again.generation_id})
    desk.ask("another name", HEARTBEAT, 4, member_id=again.member_id, **{**known, "group_instance_id": "two"})
    commit(desk, "commit of the one before it", group, desk.topic(), 5, first.generation_id, first.member_id)
    leaving = [LEAVE_GROUP.request.Member(member_id="", group_instance_id=name) for name in ("one", "two")]
    desk.ask("are removed by name", LEAVE_GROUP, 4, group_id=group, members=leaving)


@script
def commits_without_members(desk: Desk) -> None:
    group, topic = desk.name("group"), desk.topic(2)
    for version in range(2, 11):
        commit(desk, f"v{version}", group, topic, version, version=version)
    committed(desk, "all", group)
    committed(desk, "some", group, topic, desk.name("missing"))
    commit(desk, "no metadata", group, topic, 7, metadata=None)
    commit(desk, "empty metadata", group, topic, 7, partition=1, metadata="")
    committed(desk, "without metadata", group)
    commit(desk, "a topic that is not there", group, desk.name("missing2"))
    commit(desk, "a partition that is not there", group, topic, partition=7)
    commit(desk, "too much metadata", group, topic, metadata="x" * 4097)
    commit(desk, "just enough metadata", group, topic, metadata="x" * 4096)
    commit(desk, "negative", group, topic, -5)
    committed(desk, "of a group that is not there", desk.name("nobody"))
    committed(desk, "of a group that is not there, by topic", desk.name("nobody2"), topic)
    committed(desk, "of no group", "")


@script
def offsets_are_fetched_in_every_version(desk: Desk) -> None:
    group, topic = desk.name("group"), desk.topic()
    commit(desk, "commit", group, topic)
    for version in range(1, 8):
        asked = [OFFSET_FETCH.request.Topic(name=topic, partition_indexes=[0, 3])]
        desk.ask(f"v{version}", OFFSET_FETCH, version, group_id=group, topics=asked)
    for version in range(2, 8):
        desk.ask(f"v{version}, all", OFFSET_FETCH, version, group_id=group, topics=None)


@script
def groups_are_listed_and_described(desk: Desk) -> None:
    group, simple, topic = desk.name("group"), desk.name("simple"), desk.topic()
    member_of(desk, group)
    commit(desk, "a group of offsets only", simple, topic)

    def listed(what: str, version: int = 5, **fields: Any) -> None:
        found = desk.raw.ask(LIST_GROUPS, version, **fields)
        desk.note(what, [each for each in found.groups if each.group_id in (group, simple)])

    listed("all")
    listed("stable", states_filter=["Stable"])
    listed("empty", states_filter=["Empty"])
    listed("of no such state", states_filter=["Odd"])
    listed("classic", types_filter=["classic"])
    listed("consumer", types_filter=["consumer"])
    listed("old", 2)
    desk.ask("described", DESCRIBE_GROUPS, 5, groups=[group, simple])
    desk.ask("not there", DESCRIBE_GROUPS, 5, groups=[desk.name("missing")])
    desk.ask("not there, newer", DESCRIBE_GROUPS, 6, groups=[desk.name("missing2")])
    desk.ask("no name", DESCRIBE_GROUPS, 5, groups=[""])


@script
def groups_are_deleted(desk: Desk) -> None:
    busy, idle, topic = desk.name("busy"), desk.name("idle"), desk.topic()
    member_of(desk, busy)
    commit(desk, "commit", idle, topic)
    names = [busy, idle, desk.name("missing"), ""]
    desk.ask("deleted", DELETE_GROUPS, 2, groups_names=names)
    committed(desk, "nothing is left", idle)
    desk.ask("deleted again", DELETE_GROUPS, 2, groups_names=[idle])


@script
def offsets_are_deleted(desk: Desk) -> None:
    group, topic, other = desk.name("group"), desk.topic(), desk.topic(word="other")
    commit(desk, "commit", group, topic)
    commit(desk, "commit other", group, other)

    def delete(what: str, name: str, *topics: str) -> None:
        parts = [OFFSET_DELETE.request.Partition(partition_index=0)]
        asked = [OFFSET_DELETE.request.Topic(name=each, partitions=parts) for each in topics]
        desk.ask(what, OFFSET_DELETE, 0, group_id=name, topics=asked)

    delete("one", group, topic)
    committed(desk, "the other is left", group)
    delete("again", group, topic)
    delete("a topic that is not there", group, desk.name("missing"))
    delete("a group that is not there", desk.name("nobody"), topic)
    delete("no group", "", topic)
    # A member that subscribes to `other`.
    name = other.encode()
    metadata = b"\0\1\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\0\0\0\0\0\0\0\0"
    busy = desk.name("busy")
    protocols = [JOIN_GROUP.request.Protocol(name="range", metadata=metadata)]
    member, generation = member_of(desk, busy, protocols=protocols)
    commit(desk, "a member commits", busy, other, 5, generation, member)
    commit(desk, "and something else", busy, topic, 5, generation, member)
    delete("what a member reads, and what not", busy, other, topic)
