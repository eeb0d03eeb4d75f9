"""The consumer groups of a store, as a collection for asyncio: `store.groups`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from klamm.other_names import explains_names

if TYPE_CHECKING:
    from klamm.aio.store import Store
    from klamm.types import GroupInfo, OffsetMove
    from klamm.where import WhereLike

__all__ = ["Groups"]


@explains_names
class Groups:
    """The consumer groups of a store: `store.groups`. `async for` gives their names."""

    def __init__(self, store: Store[Any, Any]) -> None:
        self._sync = store.sync.groups
        self._reads, self._writes = store._reads, store._writes

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    async def __aiter__(self) -> AsyncIterator[str]:
        for name in await self._reads.run(list, self._sync):
            yield name

    async def describe(self, name: str) -> GroupInfo:
        """Return a group as it is now: members, their partitions, committed offsets and lag."""
        return await self._reads.run(self._sync.describe, name)

    async def plan_reset(
        self,
        group: str,
        topics: Any = None,
        *,
        to: WhereLike | None = None,
        by: int | None = None,
        like: str | None = None,
    ) -> list[OffsetMove]:
        """Return the group's offsets, and those after the reset; change nothing yet."""
        return await self._reads.run(self._sync.plan_reset, group, topics, to=to, by=by, like=like)

    async def reset(
        self,
        group: str,
        topics: Any = None,
        *,
        to: WhereLike | None = None,
        by: int | None = None,
        like: str | None = None,
    ) -> list[OffsetMove]:
        """Move the group to a target, all or nothing, and return the moves: `plan_reset` and `apply` in one."""
        return await self._writes.run(self._sync.reset, group, topics, to=to, by=by, like=like)

    async def apply(self, plan: Iterable[OffsetMove]) -> None:
        """Do what `plan_reset` returned, all or nothing. GroupBusy if the group has members, or has moved since."""
        await self._writes.run(self._sync.apply, plan)

    async def delete(self, name: str) -> None:
        """Delete a group and its offsets. GroupBusy if it has members."""
        await self._writes.run(self._sync.delete, name)

    async def export(self, name: str) -> dict[str, Any]:
        """Return a group's offsets as JSON takes them, for `import_`, here or in another store."""
        return await self._reads.run(self._sync.export, name)

    async def import_(self, data: Mapping[str, Any], name: str | None = None) -> None:
        """Set offsets from an export: of its group, or of `name`. Raise GroupBusy if the group has members."""
        await self._writes.run(self._sync.import_, data, name)
