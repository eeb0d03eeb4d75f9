"""Looking at groups, and moving them: what a Store offers beside consumers.

A group is moved in two steps, so that one can look in between: `plan_reset` says where each partition stands and where
it would, `reset_offsets` does it, if the group still stands there and has no members.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from klamm.batch import RECORDS, decode
from klamm.client.start import Start, Starting, checked_position
from klamm.client.subscription import open_partitions, wanted_of
from klamm.errors import CommitGap, GroupBusy, InvalidSetting, KlammError, UnknownGroup
from klamm.store.groups import Group, OffsetRow, checked_metadata, checked_name, put_offsets
from klamm.types import (
    Committed,
    GroupInfo,
    GroupMember,
    GroupOffset,
    Lineage,
    LockInfo,
    OffsetMove,
    PartitionKey,
    Position,
    TopicId,
)

if TYPE_CHECKING:
    from klamm.batch import Record
    from klamm.log.partition import Partition
    from klamm.store.directory import Core, OpenTopic
    from klamm.store.settings import Value
    from klamm.types import TopicPartition

__all__ = ["GroupAdmin", "To"]

To: TypeAlias = Start | tuple[str, str]
"""A start, as a consumer takes it; or ("by", -10): back by ten; or ("group", "other"): where another group stands."""

_FORMAT = 1


class GroupAdmin(ABC):
    """The part of a Store that is about groups, about its own settings, and about the processes that use it."""

    @abstractmethod
    def _acquired(self) -> Core:
        """The store's core."""

    # ---- looking

    def groups(self) -> list[str]:
        """The names of all groups."""
        return self._acquired().groups.names()

    def group(self, name: str) -> GroupInfo:
        """A group as it is now: members, what they have, how far it has come, and how far it is behind."""
        core = self._acquired()
        group = core.groups.get(name)
        live = core.groups.live_places(group.number)
        topics = {topic.name: topic for topic in core.catalog.topics()}
        names = {topic.id: topic.name for topic in topics.values()}
        members: list[GroupMember] = []
        wanted: set[tuple[str, int]] = set()
        for row in core.groups.rows(group.number):
            if row.place in live:
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
            _standing(partition, stored.get(name))
            for name, partition in open_partitions(core, sorted(wanted | stored.keys()), skip_unknown=True).items()
        ]
        state = "active" if live else "empty"
        return GroupInfo(group.name, state, group.door, tuple(members), tuple(found), group.created_ms)

    # ---- moving

    def plan_reset(self, group: str, topics: Any = None, *, to: To) -> list[OffsetMove]:
        """Where the group stands, and where `to` would put it; nothing is moved yet.

        `topics`: a name, several, or {name: partitions}; None: everything the group has an offset in. `to` is what a
        consumer's `start` takes, ("by", n) or ("group", name); what lies outside of the log becomes its start or end.
        """
        core = self._acquired()
        found = core.groups.find(checked_name(group))
        stored = {} if found is None else _by_place(core, found)
        if topics is None and isinstance(to, Mapping):
            topics = _of_mapping(to)
        if topics is None and found is None:
            raise UnknownGroup(f"there is no group {group!r}", hint="name the topics, to give a new one offsets")
        names = sorted(stored) if topics is None else _places(core, topics)
        moved = _moved_by(core, to, stored)
        moves = []
        for name, partition in open_partitions(core, names).items():
            after = moved(name, partition)
            if after is not None:
                before = stored[name].offset if name in stored else None
                moves.append(OffsetMove(group, *name, before, *_clamped(partition, after)))
        return moves

    def reset_offsets(self, plan: Iterable[OffsetMove]) -> None:
        """Do what `plan_reset` said, all or nothing. GroupBusy if the group has members, or has moved since."""
        core = self._acquired()
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
        with database.gate(), database.transaction() as execute:
            for name, each in rows.items():
                group = core.groups.claim(execute, checked_name(name))
                core.groups.refuse_live(group)
                try:
                    put_offsets(execute, group.number, each, expect=expect[name])
                except CommitGap as error:
                    raise GroupBusy(
                        f"group {name!r}: has moved since the plan was made: {error.message}", hint="plan again"
                    ) from None

    def delete_group(self, name: str) -> None:
        """Forget a group and its offsets. GroupBusy if it has members."""
        self._acquired().groups.delete(name)

    def export_group(self, name: str) -> dict[str, Any]:
        """A group's offsets, as JSON takes them; for `import_group`, here or in another store."""
        core = self._acquired()
        offsets = [
            {
                "topic": topic,
                "partition": number,
                "offset": row.offset,
                "leader_epoch": row.leader_epoch,
                "metadata": row.metadata,
            }
            for (topic, number), row in sorted(_by_place(core, core.groups.get(name)).items())
        ]
        return {"format": _FORMAT, "group": name, "store_id": core.catalog.store_id, "offsets": offsets}

    def import_group(self, data: Mapping[str, Any], name: str | None = None) -> None:
        """Let a group, that of the export or `name`, stand where an exported one did. GroupBusy if it has members."""
        core = self._acquired()
        try:
            if data["format"] != _FORMAT:
                raise InvalidSetting(f"import_group: format {data['format']!r} is not known")
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
            raise InvalidSetting(f"import_group: {error} is missing", hint="take what export_group gave") from None
        database = core.catalog.database
        with database.gate(), database.transaction() as execute:
            group = core.groups.claim(execute, wanted)
            core.groups.refuse_live(group)
            put_offsets(execute, group.number, rows)

    # ---- settings of the store

    def settings(self) -> dict[str, str]:
        """Settings of the store itself, defaults included."""
        return self._acquired().catalog.settings().all()

    def alter(self, settings: Mapping[str, Value] | None = None, *, reset: Iterable[str] = ()) -> dict[str, str]:
        """Change some of them, put those named in `reset` back to their defaults, leave the rest."""
        resets = [reset] if isinstance(reset, str) else reset
        return self._acquired().catalog.alter({} if settings is None else settings, resets).all()

    # ---- transactions

    def lineage(self, record: Record) -> Lineage | None:
        """The committed transaction that a record came with: what it has read and written. None if that is not known:
        the record came without one, or `lineage.retention.ms` was not set then, or is over.
        """
        return self._acquired().transactions.lineage.find(record)

    # ---- processes

    def who(self) -> list[LockInfo]:
        """Return which processes hold or wait for which lock of the store, since when, and whether they are stopped."""
        from klamm.store.who import who

        return who(self._acquired())


def _by_place(core: Core, group: Group) -> dict[tuple[str, int], OffsetRow]:
    names = {topic.id: topic.name for topic in core.catalog.topics()}
    rows = core.groups.offsets(group.number).values()
    return {(names[row.topic_id], row.partition): row for row in rows if row.topic_id in names}


def _moved_by(
    core: Core, to: Any, stored: Mapping[tuple[str, int], OffsetRow]
) -> Callable[[TopicPartition, Partition], Position | None]:
    """Return what says where a partition would be; None: it is left alone."""
    if isinstance(to, tuple) and len(to) == 2 and to[0] == "by":
        if not isinstance(to[1], int) or isinstance(to[1], bool):
            raise TypeError(f"to: by is a whole number, not {type(to[1]).__name__}")
        by = to[1]
        return lambda name, _: Position(max(0, stored[name].offset + by)) if name in stored else None
    if isinstance(to, tuple) and len(to) == 2 and to[0] == "group":
        others = _by_place(core, core.groups.get(to[1]))
        return lambda name, _: Position(others[name].offset, others[name].leader_epoch) if name in others else None
    starting = Starting(to)
    is_mapping = isinstance(to, Mapping)
    return lambda name, partition: (
        None if is_mapping and not starting.names(*name) else starting.position_in(partition, new=False)
    )


def _topic_id(opened: OpenTopic, number: int) -> TopicId:
    opened.partition(number)  # UnknownTopic if it has not so many
    return opened.topic.id


def _places(core: Core, topics: Any) -> list[tuple[str, int]]:
    """A name, several, or {name: partitions}."""
    if isinstance(topics, str):
        topics = [topics]
    found = []
    for name in topics:
        opened = core.topic(name)
        numbers = topics[name] if isinstance(topics, Mapping) and topics[name] is not None else range(opened.count)
        found += [(name, opened.partition(number).number) for number in numbers]
    return sorted(set(found))


def _of_mapping(to: Mapping[Any, Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for key in to:
        if not isinstance(key, tuple) or len(key) != 2:
            raise TypeError(f"to: {key!r} is not (topic, partition)")
        found.setdefault(key[0], []).append(key[1])
    return found


def _clamped(partition: Partition, position: Position) -> Position:
    ends = partition.ends()
    offset = min(max(position.offset, ends.start), ends.end)
    return position if offset == position.offset else Position(offset)


def _standing(partition: Partition, row: OffsetRow | None) -> GroupOffset:
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
    """The time of the first record from an offset on; None if there is none."""
    with partition.reader(offset) as reader:
        while data := reader.read(4096):
            for record in decode(data, form=RECORDS, from_offset=offset):
                return int(record.timestamp)
    return None
