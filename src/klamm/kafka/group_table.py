"""The groups of a server, by name, and the generations of groups that are gone.

Promises
  GTB1  Generations of a group only grow, even when it is deleted and comes again: its last one is remembered, and when
        too many are, groups that are new begin above the highest that was forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from klamm.kafka.group_memory import GroupMemory
from klamm.kafka.group_state import Group, Member
from klamm.store.group_image import GroupImage

__all__ = ["GroupTable"]

_MAX_RETIRED = 10_000  # groups that are gone, whose generations are remembered one by one


class GroupTable:
    """The groups of one coordinator."""

    def __init__(self, on_timer: Callable[[Group, int], None], expire: Callable[[Member, int], None]) -> None:
        """Prepare. `on_timer` is called when the time of a group is up, `expire` when the session of a member is."""
        self._on_timer = on_timer
        self._expire = expire
        self._groups: dict[str, Group] = {}
        self._retired: dict[str, int] = {}  # the generations of groups that are gone
        self._floor = 0  # and of those that are no longer in there
        self.memory = GroupMemory()

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def get(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def begin_above(self, generation: int) -> None:
        """Start new groups above this generation."""
        self._floor = max(self._floor, generation)

    def create(self, group_id: str) -> Group:
        generation = self._retired.pop(group_id, self._floor)
        return self._add(Group(group_id, generation, self._on_timer, self.memory))

    def restore(self, image: GroupImage) -> Group:
        """Add a group that an earlier server has persisted."""
        assert image.group_id not in self._groups
        return self._add(Group.restored(image, self._floor, self._on_timer, self._expire, self.memory))

    def _add(self, group: Group) -> Group:
        self._groups[group.id] = group
        return group

    def forget_empty(self, group: Group) -> None:
        """Remove a group of which nothing is lost."""
        if group.is_empty:
            self.retire(group)

    def retire(self, group: Group) -> None:
        """Remove a group without members; remember its generation."""
        group.close()
        del self._groups[group.id]
        if group.generation > self._floor:
            self._retired[group.id] = group.generation
            if len(self._retired) > _MAX_RETIRED:
                self.begin_above(self._retired.pop(next(iter(self._retired))))

    def clear(self) -> None:
        self._groups.clear()
