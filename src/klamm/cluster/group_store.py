"""The groups of a cluster: their offsets and members, as the layers above ask a store for them.

A group has a number while this store is open, as it has one in a directory; a member that joins has one of its own, so
that what is committed by that number is committed by that member, in its generation.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from klamm.errors import UnknownGroup, UnknownTopic
from klamm.store.groups import Group, OffsetRow
from klamm.store.names import nearest
from klamm.types import PartitionKey, TopicPartition

if TYPE_CHECKING:
    from klamm.cluster.cluster_core import ClusterCore

__all__ = ["ClusterGroups"]

_DEAD = "DEAD"


class Committer(Protocol):
    """A member of a group."""

    group: str

    def committed(self) -> dict[TopicPartition, Any]:
        """Return what the group has committed, as librdkafka's TopicPartitions."""
        ...

    def commit(self, offsets: dict[TopicPartition, OffsetRow]) -> None: ...


class ClusterGroups:
    """The groups of a cluster, for any thread."""

    def __init__(self, core: ClusterCore) -> None:
        self._core = core
        self._mutex = threading.Lock()
        self._numbers = itertools.count(1)
        self._names: dict[int, str] = {}
        self._by_name: dict[str, int] = {}
        self._members: dict[int, Committer] = {}

    def register(self, member: Committer) -> int:
        """Return a number by which the member's offsets are read and committed."""
        with self._mutex:
            number = next(self._numbers)
            self._names[number] = member.group
            self._members[number] = member
        return number

    def forget(self, number: int) -> None:
        """Forget the number of a member that has left."""
        with self._mutex:
            self._members.pop(number, None)
            self._names.pop(number, None)

    # ---- looking

    def names(self) -> list[str]:
        return self._core.admin.group_names()

    def find(self, name: str) -> Group | None:
        """Return a group; None if it has neither members nor offsets."""
        state, members = self._core.admin.members(name)
        if state == _DEAD and not members and not self._core.admin.committed(name):
            return None
        with self._mutex:
            number = self._by_name.get(name)
            if number is None:
                number = self._by_name[name] = next(self._numbers)
                self._names[number] = name
        return Group(name, number, "kafka", 0)

    def get(self, name: str) -> Group:
        """Like `find`, but raise UnknownGroup."""
        group = self.find(name)
        if group is None:
            hint = nearest(name, self.names()) or "a group begins with the first member that joins"
            raise UnknownGroup(f"Consumer group {name!r} does not exist", hint=hint)
        return group

    def offsets(self, number: int) -> dict[PartitionKey, OffsetRow]:
        """Return the committed offsets of a group; those of topics that are gone are left out."""
        name, member = self._names.get(number), self._members.get(number)
        found: dict[PartitionKey, OffsetRow] = {}
        if member is not None:
            committed = member.committed()
        else:
            committed = {} if name is None else self._core.admin.committed(name)
        for tp, each in committed.items():
            try:
                topic_id = self._core.topic(tp.topic).topic.id
            except UnknownTopic:
                continue
            epoch = -1 if each.leader_epoch is None else each.leader_epoch
            row = OffsetRow(topic_id, tp.partition, each.offset, epoch, each.metadata or "")
            found[row.key] = row
        return found

    # ---- changing

    def commit(self, number: int, rows: Iterable[OffsetRow]) -> None:
        """Commit offsets as the member of that number. NotOwner if it is no longer of the group's generation."""
        self._members[number].commit(self.by_name(rows))

    def by_name(self, rows: Iterable[OffsetRow]) -> dict[TopicPartition, OffsetRow]:
        """Return offsets by the names of their topics."""
        found = {}
        for row in rows:
            name = self._core.catalog.name_of(row.topic_id)
            if name is None:
                raise UnknownTopic("the topic was deleted")
            found[TopicPartition(name, row.partition)] = row
        return found

    def delete(self, name: str) -> None:
        self._core.admin.delete_group(name)

    def changed(self) -> None:
        """Do nothing: others are told by the cluster."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        from klamm.cluster.cluster_core import unsupported

        raise unsupported(self._core.path, f"what needs its groups' {name}", "see the table of what a cluster can do")
