"""The consumer groups of a store, as a collection: `store.groups`.

A reset can be done in two steps, so that one can look in between: `plan_reset` returns where each partition is and
where it would be, `apply` does it, if the group is still there and has no members.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from klamm.batch import RECORDS, decode
from klamm.client.subscription import open_partitions, wanted_of
from klamm.errors import CommitGap, GroupBusy, GroupError, InvalidSetting, KlammError, UnknownGroup
from klamm.other_names import explains_names
from klamm.store.groups import Group, OffsetRow, checked_metadata, checked_name, put_offsets
from klamm.store.names import nearest
from klamm.store.wire_groups import WireGroups
from klamm.types import (
    Committed,
    GroupInfo,
    GroupMember,
    GroupOffset,
    OffsetMove,
    PartitionKey,
    Position,
    TopicId,
)
from klamm.where import Where, WhereLike, checked_position, fixed, is_named, is_positions, position_in, topics_of

if TYPE_CHECKING:
    from klamm.log.partition import Partition
    from klamm.store.directory import Core, OpenTopic
    from klamm.types import TopicPartition

__all__ = ["Groups"]

_FORMAT = 1


class _Owner(Protocol):
    """A Store: each call asks it for its core, which is another one in a forked child."""

    @property
    def path(self) -> str: ...
    def _acquired(self) -> Core: ...


@explains_names
class Groups:
    """The consumer groups of a store, by name: `store.groups`. Iterating over it gives the names."""

    __slots__ = ("_store",)

    def __init__(self, store: _Owner) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"<Groups of {self._store.path}>"

    def __iter__(self) -> Iterator[str]:
        return iter(self._store._acquired().groups.names())

    def __len__(self) -> int:
        return len(self._store._acquired().groups.names())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._store._acquired().groups.find(name) is not None

    def __getitem__(self, name: str) -> GroupInfo:
        return self.describe(name)

    # ---- looking

    def describe(self, name: str) -> GroupInfo:
        """Return a group as it is now: members, their partitions, committed offsets and lag."""
        core = self._store._acquired()
        group = core.groups.get(name)
        live = core.groups.live_member_indexes(group.number)
        at_server = group.door == "kafka" and core.groups.has_members_at_server(group)
        topics = {topic.name: topic for topic in core.catalog.topics()}
        names = {topic.id: topic.name for topic in topics.values()}
        members: list[GroupMember] = _members_at_server(core, group, topics) if at_server else []
        wanted: set[tuple[str, int]] = {
            (topic, number)
            for member in members
            for topic in member.topics
            for number in range(len(topics[topic].partitions))
        }
        for row in core.groups.rows(group.number):
            if row.member_index in live:
                chosen = wanted_of(row.topics, topics)
                owned = tuple((topic, number) for topic, number in row.owned)
                members.append(GroupMember(row.id, row.name, tuple(sorted(chosen)), owned, row.joined_ms))
                for topic, numbers in chosen.items():
                    count = len(topics[topic].partitions)
                    wanted.update((topic, number) for number in (range(count) if numbers is None else numbers))
        stored = {
            (names[row.topic_id], row.partition): row
            for row in core.groups.offsets(group.number).values()
            if row.topic_id in names
        }
        found = [
            _group_offset(partition, stored.get(name))
            for name, partition in open_partitions(core, sorted(wanted | stored.keys()), skip_unknown=True).items()
        ]
        return GroupInfo(
            group.name,
            "active" if live or at_server else "empty",
            group.door,
            tuple(members),
            tuple(found),
            group.created_ms,
        )

    # ---- moving

    def plan_reset(
        self,
        group: str,
        topics: Any = None,
        *,
        to: WhereLike | None = None,
        by: int | None = None,
        like: str | None = None,
    ) -> list[OffsetMove]:
        """Return where the group is, and where it would be; nothing is moved yet.

        `topics`: a name, several, or {name: partitions}; None: everything the group has an offset in. The
        target is one of `to`, which takes what a consumer's `start` takes; `by`, so many offsets ahead, or back if
        negative; and `like`, where another group is. What lies outside of the log becomes its start or end.
        """
        core = self._store._acquired()
        found = core.groups.find(checked_name(group))
        stored = {} if found is None else _by_partition(core, found)
        target = _target(core, to, by, like, stored)
        if topics is None and to is not None:
            topics = topics_of(Where(to))
        if topics is None and found is None:
            near = nearest(group, core.groups.names())
            raise UnknownGroup(
                f"Consumer group {group!r} does not exist",
                hint=near or "name the topics, to give a new one offsets",
                code=None if near else "new_group",
            )
        if topics is None and not stored:
            raise GroupError(
                f"group {group!r}: has no committed offsets",
                hint="name the topics, to give it offsets",
                code="new_group",
            )
        names = sorted(stored) if topics is None else _places(core, topics)
        moves = []
        for name, partition in open_partitions(core, names).items():
            after = target(name, partition)
            if after is not None:
                before = stored[name].offset if name in stored else None
                moves.append(OffsetMove(group, *name, before, *_clamped(partition, after)))
        return moves

    def reset(
        self,
        group: str,
        topics: Any = None,
        *,
        to: WhereLike | None = None,
        by: int | None = None,
        like: str | None = None,
    ) -> list[OffsetMove]:
        """Move the group to a target, all or nothing, and return the moves: `plan_reset` and `apply` in one."""
        plan = self.plan_reset(group, topics, to=to, by=by, like=like)
        self.apply(plan)
        return plan

    def apply(self, plan: Iterable[OffsetMove]) -> None:
        """Do what `plan_reset` returned, all or nothing. GroupBusy if the group has members, or has moved since."""
        core = self._store._acquired()
        moves = list(plan)
        for move in moves:
            if not isinstance(move, OffsetMove):
                raise TypeError(f"a plan consists of OffsetMoves, not {type(move).__name__}")
        rows: dict[str, list[OffsetRow]] = {}
        expect: dict[str, dict[PartitionKey, int | None]] = {}
        ids = {name: core.topic(name).topic.id for name in {move.topic for move in moves}}
        for move in moves:
            row = OffsetRow(ids[move.topic], move.partition, move.after, move.leader_epoch)
            rows.setdefault(move.group, []).append(row)
            expect.setdefault(move.group, {})[row.key] = move.before
        database = core.catalog.database
        with database.db_lock(), database.transaction() as execute:
            for name, each in rows.items():
                group = core.groups.claim(execute, checked_name(name))
                core.groups.check_not_live(group)
                try:
                    put_offsets(execute, group.number, each, expect=expect[name])
                except CommitGap as error:
                    raise GroupBusy(
                        f"group {name!r}: has moved since the plan was made: {error.message}", hint="plan again"
                    ) from None

    def delete(self, name: str) -> None:
        """Delete a group and its offsets. GroupBusy if it has members."""
        self._store._acquired().groups.delete(name)

    def export(self, name: str) -> dict[str, Any]:
        """Return a group's offsets as JSON takes them, for `import_`, here or in another store."""
        core = self._store._acquired()
        offsets = [
            {
                "topic": topic,
                "partition": number,
                "offset": row.offset,
                "leader_epoch": row.leader_epoch,
                "metadata": row.metadata,
            }
            for (topic, number), row in sorted(_by_partition(core, core.groups.get(name)).items())
        ]
        return {"format": _FORMAT, "group": name, "store_id": core.catalog.store_id, "offsets": offsets}

    def import_(self, data: Mapping[str, Any], name: str | None = None) -> None:
        """Set offsets from an export: of its group, or of `name`. Raise GroupBusy if the group has members."""
        core = self._store._acquired()
        if not isinstance(data, Mapping):
            raise TypeError(f"groups.import_: expected what groups.export returned, not {type(data).__name__}")
        try:
            if data["format"] != _FORMAT:
                raise InvalidSetting(f"groups.import_: format {data['format']!r} is not known")
            wanted = checked_name(data["group"] if name is None else name)
            same_store = data["store_id"] == core.catalog.store_id  # else its epochs mean nothing here
            opened = {name: core.topic(name) for name in {each["topic"] for each in data["offsets"]}}
            rows = [
                OffsetRow(
                    _topic_id(opened[each["topic"]], each["partition"]),
                    each["partition"],
                    *checked_position((each["offset"], each["leader_epoch"] if same_store else -1)),
                    checked_metadata(each["metadata"]),
                )
                for each in data["offsets"]
            ]
        except KeyError as error:
            raise InvalidSetting(
                f"groups.import_: {error} is missing", hint="pass what groups.export returned"
            ) from None
        database = core.catalog.database
        with database.db_lock(), database.transaction() as execute:
            group = core.groups.claim(execute, wanted)
            core.groups.check_not_live(group)
            put_offsets(execute, group.number, rows)


def _members_at_server(core: Core, group: Group, topics: Container[str]) -> list[GroupMember]:
    """Return the members that belong to the Kafka server; none while they have yet to be assigned something."""
    from klamm.store.consumer_protocol import assigned_partitions, subscribed_topics

    image = WireGroups(core).image(group)
    if image is None:
        return []
    is_consumer = image.protocol_type == "consumer"
    members = []
    for member in image.members:
        metadata = next((metadata for name, metadata in member.protocols if name == image.protocol), b"")
        assignment = (assigned_partitions(member.assignment) or ()) if is_consumer else ()
        subscribed = subscribed_topics(metadata) if is_consumer else None
        if subscribed is None:
            subscribed = frozenset(topic for topic, _ in assignment)
        chosen = tuple(sorted(topic for topic in subscribed if topic in topics))
        host = member.client_host.removeprefix("/")
        members.append(
            GroupMember(member.member_id, member.instance_id, chosen, assignment, None, member.client_id, host)
        )
    return members


def _by_partition(core: Core, group: Group) -> dict[tuple[str, int], OffsetRow]:
    names = {topic.id: topic.name for topic in core.catalog.topics()}
    rows = core.groups.offsets(group.number).values()
    return {(names[row.topic_id], row.partition): row for row in rows if row.topic_id in names}


def _target(
    core: Core,
    to: WhereLike | None,
    by: int | None,
    like: str | None,
    stored: Mapping[tuple[str, int], OffsetRow],
) -> Callable[[TopicPartition, Partition], Position | None]:
    """Return a function that returns where a partition would be, or None to leave it alone."""
    if sum(target is not None for target in (to, by, like)) != 1:
        raise InvalidSetting("reset: no target given, or several", hint="say one of to=, by= and like=")
    if by is not None:
        if not isinstance(by, int) or isinstance(by, bool):
            raise TypeError(f"by is a whole number, not {type(by).__name__}")
        return lambda name, _: Position(max(0, stored[name].offset + by)) if name in stored else None
    if like is not None:
        others = _by_partition(core, core.groups.get(like))
        return lambda name, _: Position(others[name].offset, others[name].leader_epoch) if name in others else None
    assert to is not None
    where = fixed(Where(to, name="to"), core.heads.wall_ms())
    return lambda name, partition: (
        None if is_positions(where) and not is_named(where, *name) else position_in(where, partition)
    )


def _topic_id(opened: OpenTopic, number: int) -> TopicId:
    opened.partition(number)  # UnknownTopic if it has not so many
    return opened.topic.id


def _places(core: Core, topics: Any) -> list[tuple[str, int]]:
    """Return the partitions that a name, several, or {name: partitions} stand for."""
    if isinstance(topics, str):
        topics = [topics]
    found = []
    for name in topics:
        opened = core.topic(name)
        numbers = topics[name] if isinstance(topics, Mapping) and topics[name] is not None else range(opened.count)
        found += [(name, opened.partition(number).number) for number in numbers]
    return sorted(set(found))


def _clamped(partition: Partition, position: Position) -> Position:
    ends = partition.ends()
    offset = min(max(position.offset, ends.start), ends.end)
    return position if offset == position.offset else Position(offset)


def _group_offset(partition: Partition, row: OffsetRow | None) -> GroupOffset:
    ends = partition.ends()
    committed = None if row is None else Committed(row.offset, row.leader_epoch, row.metadata)
    at = max(ends.start, 0 if row is None else row.offset)
    lag = max(0, ends.end - at)
    lag_ms: int | None = 0
    if lag:
        try:
            waiting = _first_record(partition, at)
        except (KlammError, OSError):
            lag_ms = None
        else:
            if waiting is not None:
                lag_ms = max(0, partition.now_ms() - waiting)
            elif ends.stable == ends.end:  # only markers, and what was aborted
                lag = 0
    return GroupOffset(partition.topic, partition.number, committed, ends.end, lag, lag_ms)


def _first_record(partition: Partition, offset: int) -> int | None:
    """Return the time of the first record from an offset on; None if there is none."""
    with partition.reader(offset) as reader:
        while data := reader.read(4096):
            for record in decode(data, form=RECORDS, from_offset=offset):
                return int(record.timestamp)
    return None
