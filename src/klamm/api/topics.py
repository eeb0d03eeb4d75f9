"""The topics of a store, as a collection: `store.topics`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Generic

from klamm.api.topic import Topic
from klamm.errors import TopicExists, UnknownTopic
from klamm.other_names import explains_names
from klamm.store.deletion import delete_topic
from klamm.store.settings import named_settings
from klamm.types import PartitionInfo, TopicInfo, html_table
from klamm.typevars import K, V

if TYPE_CHECKING:
    from klamm.api.store import Store
    from klamm.log.partition import Partition
    from klamm.store.settings import Value

__all__ = ["Topics", "topics_table"]


@explains_names
class Topics(Generic[K, V]):
    """The topics of a store, by name: `store.topics`. Iterating over it gives the names.

    Settings are given as a mapping with Kafka's names, {"retention.ms": 3_600_000}, or as keywords with `_` for `.`:
    retention_ms=3_600_000.
    """

    __slots__ = ("_store",)

    def __init__(self, store: Store[K, V]) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"<Topics of {self._store.path}>"

    def _repr_html_(self) -> str:
        return topics_table(repr(self), [self.describe(name) for name in self])

    def __iter__(self) -> Iterator[str]:
        return iter([topic.name for topic in self._store._acquired().catalog.topics()])

    def __len__(self) -> int:
        return len(self._store._acquired().catalog.topics())

    def __contains__(self, name: object) -> bool:
        catalog = self._store._acquired().catalog
        if not isinstance(name, str):
            return False
        try:
            catalog.topic(name)
        except UnknownTopic:
            return False
        return True

    def __getitem__(self, name: str) -> Topic[K, V]:
        """Return a handle on a topic, as `store[name]` does. UnknownTopic if there is none."""
        return self._store[name]

    def create(
        self,
        name: str,
        partitions: int = 1,
        settings: Mapping[str, Value] | None = None,
        *,
        exist_ok: bool = False,
        **named: Value,
    ) -> Topic[K, V]:
        """Create a topic and return a handle on it. With `exist_ok`, leave an existing topic unchanged."""
        try:
            self._store._acquired().create_topic(name, partitions, named_settings(settings, named))
        except TopicExists:
            if not exist_ok:
                raise
        return Topic(self._store, name)

    def describe(self, name: str) -> TopicInfo:
        """Return a topic as it is now: its partitions and their ends, its settings."""
        opened = self._store._acquired().topic(name)
        topic = opened.topic
        infos = [_info(opened.partition(number)) for number in range(len(topic.partitions))]
        return TopicInfo(topic.name, topic.id, tuple(infos), topic.settings.to_dict(), topic.created_ms)

    def alter(
        self, name: str, settings: Mapping[str, Value] | None = None, *, reset: Iterable[str] = (), **named: Value
    ) -> TopicInfo:
        """Change some settings, reset those named in `reset` to their defaults; the rest stays."""
        core = self._store._acquired()
        resets = [reset] if isinstance(reset, str) else reset
        core.catalog.alter_settings(name, named_settings(settings, named), resets)
        return self.describe(name)

    def add_partitions(self, name: str, total: int) -> TopicInfo:
        """Grow the topic to `total` partitions. New records of a key may go to another one than its old records."""
        core = self._store._acquired()
        core.catalog.add_partitions(name, total, core.lay_out)
        return self.describe(name)

    def delete(self, name: str) -> None:
        """Delete the topic and its records. Later appends to it, in any process, raise UnknownTopic."""
        delete_topic(self._store._writable(), name)
        self._store._targets.pop(name, None)


def topics_table(title: str, infos: Iterable[TopicInfo]) -> str:
    """Return a table for a notebook: one line a topic."""
    rows = [(info.name, len(info.partitions), info.count, info.size) for info in infos]
    return html_table(title, ("topic", "partitions", "offsets", "bytes"), rows)


def _info(partition: Partition) -> PartitionInfo:
    ends = partition.ends()
    return PartitionInfo(partition.number, ends.start, ends.end, ends.leader_epoch, partition.log_size())
