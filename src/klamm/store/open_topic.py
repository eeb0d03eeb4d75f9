"""A topic that a process has open, with those of its partitions that were asked for."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from klamm.log.partition import Partition
    from klamm.store.catalog import Topic
    from klamm.store.directory import Core
    from klamm.types import TopicId

__all__ = ["OpenTopic", "bell_bit"]


class OpenTopic:
    """A topic and its partitions, opened when first asked for."""

    def __init__(self, core: Core, topic: Topic) -> None:
        self._core = core
        self.topic = topic
        self.version = 0  # of the catalog, when `topic` was read
        self.name = topic.name
        self.directory = f"{core.files}/topics/{topic.directory}"
        self.open_partitions: dict[int, Partition] = {}

    @property
    def count(self) -> int:
        """How many partitions it has."""
        return len(self.topic.partitions)

    def partition(self, number: int) -> Partition:
        found = self.open_partitions.get(number)
        if found is None:
            found = self._core.open_partition(self, number)
        return found

    def partitions(self) -> list[Partition]:
        return [self.partition(number) for number in range(self.count)]

    def opened_one(self, number: int) -> Partition | None:
        """Return the partition if it was opened before."""
        return self.open_partitions.get(number)

    def opened(self) -> list[Partition]:
        """Return the partitions that were opened so far."""
        return list(self.open_partitions.values())


def bell_bit(topic_id: TopicId) -> int:
    """Return the bit, one of 32, that waiters for a topic listen to."""
    return 1 << (zlib.crc32(topic_id.encode()) % 32)
