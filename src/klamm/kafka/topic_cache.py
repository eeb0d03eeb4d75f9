"""The topics of the store as the loop sees them: plain look-ups. Before a request is handled, the catalog's version is
compared with the one that is known, and if it is another, what changed is read, in a thread. ACLs, which change with
the same version, are read with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING

from klamm.store.settings import Value
from klamm.store.topic_changes import TopicChanges, TopicReader

if TYPE_CHECKING:
    from klamm.kafka.pools import Pools
    from klamm.kafka.security.authorizer import Authorizer, VersionedIndex
    from klamm.kafka.settings import ServerSettings
    from klamm.store.directory import Core, OpenTopic

__all__ = ["Topics"]


class Topics:
    """The topics of one store."""

    def __init__(
        self, core: Core, pools: Pools, settings: ServerSettings, authorizer: Authorizer | None = None
    ) -> None:
        self._core = core
        self._pools = pools
        self._settings = settings
        self._heads = core.heads
        self._reader = TopicReader(core)
        self._authorizer = authorizer
        self._version = -1
        self._by_name: dict[str, OpenTopic] = {}
        self._by_id: dict[bytes, OpenTopic] = {}
        self._sorted: list[OpenTopic] | None = []
        self._partition_count: int | None = 0
        self._refreshing: asyncio.Future[None] | None = None

    @property
    def is_fresh(self) -> bool:
        return self._heads.catalog_version == self._version

    @property
    def version(self) -> int:
        """Of the catalog, as it is known here."""
        return self._version

    def find(self, name: str) -> OpenTopic | None:
        return self._by_name.get(name)

    def by_id(self, uuid: bytes) -> OpenTopic | None:
        return self._by_id.get(uuid)

    def all(self) -> list[OpenTopic]:
        """Return all topics, by name."""
        if self._sorted is None:
            self._sorted = sorted(self._by_name.values(), key=attrgetter("name"))
        return self._sorted

    @property
    def partition_count(self) -> int:
        """Of all topics together."""
        if self._partition_count is None:
            self._partition_count = sum(topic.count for topic in self._by_name.values())
        return self._partition_count

    @staticmethod
    def uuid(opened: OpenTopic) -> bytes:
        return bytes.fromhex(opened.topic.id)

    async def refresh(self) -> None:
        """Read what changed. All callers wait for the same read."""
        while not self.is_fresh:
            await asyncio.shield(self._refresh())

    def refresh_soon(self) -> None:
        """Begin to read what changed. An error is left to the first caller of `refresh`."""
        self._refresh()

    def _refresh(self) -> asyncio.Future[None]:
        if self._refreshing is None or self._refreshing.done():  # to await one that is done lets no other task run
            self._refreshing = asyncio.ensure_future(self._read())
            self._refreshing.add_done_callback(self._refreshed)
        return self._refreshing

    def _refreshed(self, done: asyncio.Future[None]) -> None:
        if self._refreshing is done:
            self._refreshing = None
        if not done.cancelled():
            done.exception()  # seen: `refresh` raises it, `refresh_soon` tries again with the next request

    async def _read(self) -> None:
        changes, index = await self._pools.catalog(self._read_changes)
        if self._authorizer is not None and index is not None:
            self._authorizer.use(index)
        for topic in changes.gone:
            self._by_id.pop(self.uuid(topic), None)
            if self._by_name.get(topic.name) is topic:
                del self._by_name[topic.name]
        for topic in changes.changed:
            self._by_name[topic.name] = self._by_id[self.uuid(topic)] = topic
        if changes.changed or changes.gone:
            self._sorted = self._partition_count = None
        self._version = changes.version

    def _read_changes(self) -> tuple[TopicChanges, VersionedIndex | None]:
        """Read topics and ACLs, in a thread. The version is that of before: what is read is at least as new."""
        changes = self._reader.read()
        return changes, None if self._authorizer is None else self._authorizer.read()

    async def create(
        self, name: str, partitions: int | None = None, settings: Mapping[str, Value] | None = None
    ) -> OpenTopic:
        """Create a topic and return it. Raise TopicExists, InvalidTopic or InvalidSetting if that is not possible."""
        count = self._settings.default_partitions if partitions is None else partitions
        await self._pools.administer(self._core.create_topic, name, count, settings or {})
        await self.refresh()
        found = self.find(name)
        return found if found is not None else await self._pools.catalog(self._core.topic, name)
