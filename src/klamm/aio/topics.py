"""The topics of a store, as a collection for asyncio: `store.topics`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Generic

from klamm.other_names import explains_names
from klamm.typevars import K, V

if TYPE_CHECKING:
    from klamm.aio.store import Store
    from klamm.aio.topic import Topic
    from klamm.store.settings import Value
    from klamm.types import TopicInfo

__all__ = ["Topics"]


@explains_names
class Topics(Generic[K, V]):
    """The topics of a store: `store.topics`. `async for` gives their names."""

    def __init__(self, store: Store[K, V]) -> None:
        self._store = store
        self._sync = store.sync.topics
        self._reads, self._writes = store._reads, store._writes

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    async def __aiter__(self) -> AsyncIterator[str]:
        for name in await self._reads.run(list, self._sync):
            yield name

    def __getitem__(self, name: str) -> Topic[K, V]:
        """Return a handle on a topic, as `store[name]` does."""
        return self._store[name]

    async def create(
        self,
        name: str,
        partitions: int = 1,
        settings: Mapping[str, Value] | None = None,
        *,
        exist_ok: bool = False,
        **named: Value,
    ) -> Topic[K, V]:
        """Create a topic and return a handle on it. With `exist_ok`, leave an existing topic unchanged."""
        await self._writes.run(self._sync.create, name, partitions, settings, exist_ok=exist_ok, **named)
        return self._store[name]

    async def describe(self, name: str) -> TopicInfo:
        """Return a topic as it is now: its partitions and their ends, its settings."""
        return await self._reads.run(self._sync.describe, name)

    async def alter(
        self, name: str, settings: Mapping[str, Value] | None = None, *, reset: Iterable[str] = (), **named: Value
    ) -> TopicInfo:
        """Change some settings, reset those named in `reset` to their defaults; the rest stays."""
        return await self._writes.run(self._sync.alter, name, settings, reset=reset, **named)

    async def add_partitions(self, name: str, total: int) -> TopicInfo:
        """Grow the topic to `total` partitions. New records of a key may go to another one than its old records."""
        return await self._writes.run(self._sync.add_partitions, name, total)

    async def delete(self, name: str) -> None:
        """Delete the topic and its records. Later appends to it, in any process, raise UnknownTopic."""
        await self._writes.run(self._sync.delete, name)
