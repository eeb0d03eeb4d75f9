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
from tests.interop.scripts import ScriptContext, script

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


def member_of(context: ScriptContext, group: str, raw: Raw | None = None, **fields: Any) -> tuple[str, int]:
    """A member that has joined an empty group and is its leader, with an assignment."""
    raw = raw or context.raw
    named = raw.ask(JOIN_GROUP, 7, **joining(group, **fields))
    joined = named if named.error_code == 0 else raw.ask(JOIN_GROUP, 7, **joining(group, named.member_id, **fields))
    assert joined.error_code == 0, joined
    given = [SYNC_GROUP.request.Assignment(member_id=joined.member_id, assignment=b"\0\0\0\0\0\0\0\0\0\0")]
    known = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
    synced = raw.ask(SYNC_GROUP, 5, protocol_type="consumer", protocol_name="range", assignments=given, **known)
    assert synced.error_code == 0, synced
    return joined.member_id, joined.generation_id


def commit(
    context: ScriptContext,
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
    named = {"topic_id": context.topic_id(topic)} if version >= 10 else {"name": topic}
    asked = [OFFSET_COMMIT.request.Topic(partitions=[part], **named)]
    fields = {"generation_id_or_member_epoch": generation, "member_id": member, "topics": asked}
    return context.ask(what, OFFSET_COMMIT, version, group_id=group, **fields)


def committed(context: ScriptContext, what: str, group: str, *topics: str, stable: bool = False) -> Any:
    parts = [OFFSET_FETCH.request.GroupTopic(name=topic, partition_indexes=[0, 1]) for topic in topics]
    asked = [OFFSET_FETCH.request.Group(group_id=group, topics=parts or None)]
    return context.ask(what, OFFSET_FETCH, 8, groups=asked, require_stable=stable)


@script
def coordinators(context: ScriptContext) -> None:
    group = context.name("group")
    for version in range(4):
        context.ask(f"v{version}", FIND_COORDINATOR, version, key=group, key_type=0)
    context.ask("several", FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group, context.name("other")])
    context.ask("of a transaction", FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[context.name("txn")])
    context.ask("of an odd kind", FIND_COORDINATOR, 4, key_type=9, coordinator_keys=[group])
    context.ask("of no name", FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[""])
    context.ask("none", FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[])


@script
def a_member_joins_works_and_leaves(context: ScriptContext) -> None:
    group = context.name("group")
    named = context.ask("without a name", JOIN_GROUP, 7, **joining(group))
    joined = context.ask("with its name", JOIN_GROUP, 7, **joining(group, named.member_id))
    known = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
    context.ask("heartbeat before the sync", HEARTBEAT, 4, **known)
    given = [SYNC_GROUP.request.Assignment(member_id=joined.member_id, assignment=b"mine")]
    agreed = {"protocol_type": "consumer", "protocol_name": "range"}
    context.ask("sync", SYNC_GROUP, 5, assignments=given, **agreed, **known)
    context.ask("sync again", SYNC_GROUP, 5, assignments=[], **agreed, **known)
    context.ask("heartbeat", HEARTBEAT, 4, **known)
    context.ask("described", DESCRIBE_GROUPS, 5, groups=[group])
    context.ask("join again", JOIN_GROUP, 7, **joining(group, joined.member_id))
    context.ask(
        "leave", LEAVE_GROUP, 4, group_id=group, members=[LEAVE_GROUP.request.Member(member_id=joined.member_id)]
    )
    context.ask("heartbeat after it left", HEARTBEAT, 4, **known)
    context.ask("described, empty", DESCRIBE_GROUPS, 5, groups=[group])


@script
def joins_that_are_refused(context: ScriptContext) -> None:
    group = context.name("group")
    context.ask("no group", JOIN_GROUP, 7, **joining(""))
    context.ask("short session", JOIN_GROUP, 7, **joining(group, session_timeout_ms=1))
    context.ask("long session", JOIN_GROUP, 7, **joining(group, session_timeout_ms=2**31 - 1))
    context.ask("unknown member", JOIN_GROUP, 7, **joining(group, "nobody"))
    context.ask("no protocols", JOIN_GROUP, 7, **joining(group, protocols=[]))
    context.ask("no type", JOIN_GROUP, 7, **joining(group, protocol_type=""))
    member_of(context, group)
    context.ask("unknown member of a group", JOIN_GROUP, 7, **joining(group, "nobody"))
    other = [JOIN_GROUP.request.Protocol(name="other", metadata=b"")]
    context.ask("nothing in common", JOIN_GROUP, 3, **joining(group, protocols=other))
    context.ask("another type", JOIN_GROUP, 3, **joining(group, protocol_type="connect"))


@script
def joins_in_every_version(context: ScriptContext) -> None:
    for version in range(2, 10):
        group = context.name(f"group{version}")
        first = context.ask(f"v{version}", JOIN_GROUP, version, **joining(group))
        if first.error_code:
            context.ask(f"v{version}, named", JOIN_GROUP, version, **joining(group, first.member_id))


@script
def two_members_rebalance(context: ScriptContext) -> None:
    group, topic = context.name("group"), context.topic()
    first, generation = member_of(context, group)
    other = context.other()
    named = other.ask(JOIN_GROUP, 7, **joining(group))
    other.send(JOIN_GROUP, 7, **joining(group, named.member_id))
    known = {"group_id": group, "generation_id": generation, "member_id": first}
    context.until(HEARTBEAT, 4, lambda answer: answer.error_code, **known)
    context.ask("heartbeat while it rebalances", HEARTBEAT, 4, **known)
    commit(context, "commit while it rebalances", group, topic, 5, generation, first)
    context.ask("sync while it rebalances", SYNC_GROUP, 4, assignments=[], **known)
    leads = context.ask("the leader joins", JOIN_GROUP, 7, **joining(group, first))
    follows = read_response(JOIN_GROUP, 7, other.receive())[1]
    context.note("the other has joined", [follows.error_code, follows.generation_id, len(follows.members)])
    context.note("they agree", leads.leader == follows.leader == first)
    known = {"group_id": group, "generation_id": leads.generation_id}
    other.send(SYNC_GROUP, 4, member_id=follows.member_id, **known)
    parts = SYNC_GROUP.request.Assignment
    given = [parts(member_id=first, assignment=b"one"), parts(member_id=follows.member_id, assignment=b"other")]
    context.ask("the leader syncs", SYNC_GROUP, 4, member_id=first, assignments=given, **known)
    context.note("the other syncs", read_response(SYNC_GROUP, 4, other.receive())[1])
    context.ask("an old generation", HEARTBEAT, 4, group_id=group, generation_id=generation, member_id=first)


@script
def strangers_are_refused(context: ScriptContext) -> None:
    group, missing, topic = context.name("group"), context.name("missing"), context.topic()
    member, generation = member_of(context, group)
    for what, (name, who, number) in {
        "unknown group": (missing, "nobody", 1),
        "unknown member": (group, "nobody", generation),
        "wrong generation": (group, member, generation + 1),
        "no group": ("", member, generation),
    }.items():
        known = {"group_id": name, "generation_id": number, "member_id": who}
        context.ask(f"heartbeat: {what}", HEARTBEAT, 4, **known)
        context.ask(f"sync: {what}", SYNC_GROUP, 4, assignments=[], **known)
        commit(context, f"commit: {what}", name, topic, 5, number, who)
        leaving = [LEAVE_GROUP.request.Member(member_id=who if who == "nobody" else "other")]
        context.ask(f"leave: {what}", LEAVE_GROUP, 4, group_id=name, members=leaving)
        context.ask(f"leave, old: {what}", LEAVE_GROUP, 2, group_id=name, member_id="nobody")
    wrong = {"group_id": group, "generation_id": generation, "member_id": member, "assignments": []}
    context.ask("sync: wrong type", SYNC_GROUP, 5, protocol_type="connect", protocol_name="range", **wrong)
    context.ask("sync: wrong protocol", SYNC_GROUP, 5, protocol_type="consumer", protocol_name="other", **wrong)
    commit(context, "commit of nobody to a group with members", group, topic)


@script
def static_members(context: ScriptContext) -> None:
    group = context.name("group")
    first = context.ask("joins", JOIN_GROUP, 7, **joining(group, group_instance_id="one"))
    known = {"group_id": group, "generation_id": first.generation_id, "group_instance_id": "one"}
    given = [SYNC_GROUP.request.Assignment(member_id=first.member_id, assignment=b"mine")]
    context.ask("syncs", SYNC_GROUP, 4, member_id=first.member_id, assignments=given, **known)
    again = context.ask("comes back", JOIN_GROUP, 7, **joining(group, group_instance_id="one"))
    context.ask("the one before it", HEARTBEAT, 4, member_id=first.member_id, **known)
    context.ask(
        "syncs again", SYNC_GROUP, 4, member_id=again.member_id, **{**known, "generation_id": again.generation_id}
    )
    context.ask("another name", HEARTBEAT, 4, member_id=again.member_id, **{**known, "group_instance_id": "two"})
    commit(context, "commit of the one before it", group, context.topic(), 5, first.generation_id, first.member_id)
    leaving = [LEAVE_GROUP.request.Member(member_id="", group_instance_id=name) for name in ("one", "two")]
    context.ask("are removed by name", LEAVE_GROUP, 4, group_id=group, members=leaving)


@script
def commits_without_members(context: ScriptContext) -> None:
    group, topic = context.name("group"), context.topic(2)
    for version in range(2, 11):
        commit(context, f"v{version}", group, topic, version, version=version)
    committed(context, "all", group)
    committed(context, "some", group, topic, context.name("missing"))
    commit(context, "no metadata", group, topic, 7, metadata=None)
    commit(context, "empty metadata", group, topic, 7, partition=1, metadata="")
    committed(context, "without metadata", group)
    commit(context, "a topic that is not there", group, context.name("missing2"))
    commit(context, "a partition that is not there", group, topic, partition=7)
    commit(context, "too much metadata", group, topic, metadata="x" * 4097)
    commit(context, "just enough metadata", group, topic, metadata="x" * 4096)
    commit(context, "negative", group, topic, -5)
    committed(context, "of a group that is not there", context.name("nobody"))
    committed(context, "of a group that is not there, by topic", context.name("nobody2"), topic)
    committed(context, "of no group", "")


@script
def offsets_are_fetched_in_every_version(context: ScriptContext) -> None:
    group, topic = context.name("group"), context.topic()
    commit(context, "commit", group, topic)
    for version in range(1, 8):
        asked = [OFFSET_FETCH.request.Topic(name=topic, partition_indexes=[0, 3])]
        context.ask(f"v{version}", OFFSET_FETCH, version, group_id=group, topics=asked)
    for version in range(2, 8):
        context.ask(f"v{version}, all", OFFSET_FETCH, version, group_id=group, topics=None)


@script
def groups_are_listed_and_described(context: ScriptContext) -> None:
    group, simple, topic = context.name("group"), context.name("simple"), context.topic()
    member_of(context, group)
    commit(context, "a group of offsets only", simple, topic)

    def listed(what: str, version: int = 5, **fields: Any) -> None:
        found = context.raw.ask(LIST_GROUPS, version, **fields)
        context.note(what, [each for each in found.groups if each.group_id in (group, simple)])

    listed("all")
    listed("stable", states_filter=["Stable"])
    listed("empty", states_filter=["Empty"])
    listed("of no such state", states_filter=["Odd"])
    listed("classic", types_filter=["classic"])
    listed("consumer", types_filter=["consumer"])
    listed("old", 2)
    context.ask("described", DESCRIBE_GROUPS, 5, groups=[group, simple])
    context.ask("not there", DESCRIBE_GROUPS, 5, groups=[context.name("missing")])
    context.ask("not there, newer", DESCRIBE_GROUPS, 6, groups=[context.name("missing2")])
    context.ask("no name", DESCRIBE_GROUPS, 5, groups=[""])


@script
def groups_are_deleted(context: ScriptContext) -> None:
    busy, idle, topic = context.name("busy"), context.name("idle"), context.topic()
    member_of(context, busy)
    commit(context, "commit", idle, topic)
    names = [busy, idle, context.name("missing"), ""]
    context.ask("deleted", DELETE_GROUPS, 2, groups_names=names)
    committed(context, "nothing is left", idle)
    context.ask("deleted again", DELETE_GROUPS, 2, groups_names=[idle])


@script
def offsets_are_deleted(context: ScriptContext) -> None:
    group, topic, other = context.name("group"), context.topic(), context.topic(word="other")
    commit(context, "commit", group, topic)
    commit(context, "commit other", group, other)

    def delete(what: str, name: str, *topics: str) -> None:
        parts = [OFFSET_DELETE.request.Partition(partition_index=0)]
        asked = [OFFSET_DELETE.request.Topic(name=each, partitions=parts) for each in topics]
        context.ask(what, OFFSET_DELETE, 0, group_id=name, topics=asked)

    delete("one", group, topic)
    committed(context, "the other is left", group)
    delete("again", group, topic)
    delete("a topic that is not there", group, context.name("missing"))
    delete("a group that is not there", context.name("nobody"), topic)
    delete("no group", "", topic)
    # A member that subscribes to `other`.
    name = other.encode()
    metadata = b"\0\1\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\0\0\0\0\0\0\0\0"
    busy = context.name("busy")
    protocols = [JOIN_GROUP.request.Protocol(name="range", metadata=metadata)]
    member, generation = member_of(context, busy, protocols=protocols)
    commit(context, "a member commits", busy, other, 5, generation, member)
    commit(context, "and something else", busy, topic, 5, generation, member)
    delete("what a member reads, and what not", busy, other, topic)
