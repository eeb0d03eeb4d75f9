"""The consumer groups of a cluster, as a collection: `store.groups`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from klamm.client.groups.group_admin import Groups
from klamm.errors import GroupBusy, InvalidSetting, UnknownGroup, UnknownTopic
from klamm.store.groups import checked_metadata, checked_name
from klamm.types import Committed, GroupInfo, GroupMember, GroupOffset, OffsetMove, TopicPartition
from klamm.where import checked_position

if TYPE_CHECKING:
    from klamm.cluster.cluster_core import ClusterCore

__all__ = ["GroupsOfCluster"]

_FORMAT = 1
_LIVE = ("STABLE", "PREPARING_REBALANCING", "COMPLETING_REBALANCING", "ASSIGNING", "RECONCILING")


class GroupsOfCluster(Groups):
    """The groups of a cluster. A reset of several topics is one request, of which the cluster takes all, or says which
    it did not.
    """

    __slots__ = ()

    def _core(self) -> ClusterCore:
        core: Any = self._store._acquired()
        found: ClusterCore = core
        return found

    def describe(self, name: str) -> GroupInfo:
        """Return a group as it is now. How old what waits is (`lag_ms`), is not known here."""
        core = self._core()
        state, members = core.admin.members(name)
        stored = core.admin.committed(name)
        if state == "DEAD" and not members and not stored:
            core.groups.get(name)  # raises UnknownGroup, with a hint
        found = [
            GroupMember(
                each.id,
                each.name,
                tuple(sorted({tp.topic for tp in each.assignment})),
                tuple(each.assignment),
                None,
                each.client_id,
                each.host,
            )
            for each in members
        ]
        wanted = {tp for each in members for tp in each.assignment} | stored.keys()
        known = {topic: _count(core, topic) for topic in {tp.topic for tp in wanted}}
        wanted = {tp for tp in wanted if tp.partition < known[tp.topic]}
        offsets = []
        for tp, ends in sorted(core.admin.ends(wanted).items()):
            each = stored.get(tp)
            committed = None
            if each is not None:
                epoch = -1 if each.leader_epoch is None else each.leader_epoch
                committed = Committed(each.offset, epoch, each.metadata or "")
            at = max(ends.start, 0 if committed is None else committed.offset)
            lag = max(0, ends.end - at)
            offsets.append(GroupOffset(*tp, committed, ends.end, lag, None if lag else 0))
        is_live = bool(members) or state in _LIVE
        return GroupInfo(name, "active" if is_live else "empty", "kafka", tuple(found), tuple(offsets), 0)

    def apply(self, plan: Iterable[OffsetMove]) -> None:
        """Do what `plan_reset` returned. GroupBusy if the group has members, or has moved since."""
        core = self._core()
        moves = list(plan)
        by_group: dict[str, dict[TopicPartition, OffsetMove]] = {}
        for move in moves:
            if not isinstance(move, OffsetMove):
                raise TypeError(f"a plan consists of OffsetMoves, not {type(move).__name__}")
            by_group.setdefault(checked_name(move.group), {})[TopicPartition(move.topic, move.partition)] = move
        for group, wanted in by_group.items():
            self._check_not_live(core, group)
            stored = core.admin.offsets(group)
            for tp, move in wanted.items():
                if stored.get(tp) != move.before:
                    raise GroupBusy(
                        f"group {group!r}: has moved since the plan was made: {tp.topic}/{tp.partition} is at"
                        f" {stored.get(tp)}, not {move.before}",
                        hint="plan again",
                    )
            core.admin.move_group(group, {tp: (move.after, move.leader_epoch, "") for tp, move in wanted.items()})

    def _check_not_live(self, core: ClusterCore, group: str) -> None:
        _, members = core.admin.members(group)
        if members:
            raise GroupBusy(f"group {group!r}: has {len(members)} members", hint="stop its consumers first")

    def delete(self, name: str) -> None:
        """Delete a group and its offsets. GroupBusy if it has members."""
        core = self._core()
        core.groups.get(name)
        self._check_not_live(core, name)
        try:
            core.admin.delete_group(name)
        except UnknownGroup:  # another client was quicker
            pass

    def import_(self, data: Mapping[str, Any], name: str | None = None) -> None:
        """Give a group, that of the export or `name`, the offsets of an exported one. GroupBusy if it has members."""
        core = self._core()
        if not isinstance(data, Mapping):
            raise TypeError(f"groups.import_: expected what groups.export returned, not {type(data).__name__}")
        try:
            if data["format"] != _FORMAT:
                raise InvalidSetting(f"groups.import_: format {data['format']!r} is not known")
            group = checked_name(data["group"] if name is None else name)
            same_store = data["store_id"] == core.catalog.store_id  # else its epochs mean nothing here
            wanted = {}
            for each in data["offsets"]:
                partition = core.topic(each["topic"]).partition(each["partition"])
                at = checked_position((each["offset"], each["leader_epoch"] if same_store else -1))
                wanted[TopicPartition(partition.topic, partition.number)] = (*at, checked_metadata(each["metadata"]))
        except KeyError as error:
            if isinstance(error, UnknownTopic):
                raise
            raise InvalidSetting(
                f"groups.import_: {error} is missing", hint="pass what groups.export returned"
            ) from None
        self._check_not_live(core, group)
        core.admin.move_group(group, wanted)


def _count(core: ClusterCore, topic: str) -> int:
    """Return how many partitions a topic has; none if it was deleted."""
    try:
        return core.topic(topic).count
    except UnknownTopic:
        return 0
