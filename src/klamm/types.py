"""Values that the rooms hand to each other and to users. They do not change; ranges are half-open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Appended", "Batch", "PartitionInfo", "Position", "TopicInfo"]


class Position(NamedTuple):
    """Where a consumer stands in a partition: the next offset to read, and the leader epoch of what it read last.

    A position that is stored should keep its epoch: after a power cut, the epoch tells whether the offset still means
    the same records. -1: not known.
    """

    offset: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition as it was when asked."""

    number: int
    start: int
    """The first offset that is there."""
    end: int
    """One past the last."""
    leader_epoch: int
    size: int
    """Bytes of its segments."""

    @property
    def count(self) -> int:
        """Offsets from start to end."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as it was when asked."""

    name: str
    id: str
    partitions: tuple[PartitionInfo, ...]
    settings: Mapping[str, str]
    """What was set on purpose, by Kafka's names; everything else has its default."""
    created_ms: int

    @property
    def count(self) -> int:
        """Offsets in all of its partitions."""
        return sum(partition.count for partition in self.partitions)

    @property
    def size(self) -> int:
        """Bytes of all of its segments."""
        return sum(partition.size for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class Appended:
    """Where the records of one `append_many` went."""

    topic: str
    count: int
    ranges: Mapping[int, tuple[range, ...]]
    """By partition: the offsets, in the order of the records. Other writers' records lie between two ranges."""

    def __len__(self) -> int:
        return self.count


class Batch(list[Any]):
    """Records of one partition, as a consumer hands them out: a list that knows where it comes from.

    It covers the offsets from `begin` up to, but not including, `end`. Empty: nothing came in time.
    """

    __slots__ = ("begin", "end", "leader_epoch", "partition", "topic")

    def __init__(
        self,
        records: Iterable[Any] = (),
        topic: str = "",
        partition: int = -1,
        begin: int = -1,
        end: int = -1,
        leader_epoch: int = -1,
    ) -> None:
        list.__init__(self, records)  # quicker than super(): a poll that waits for one record makes one of these
        self.topic = topic
        self.partition = partition
        self.begin = begin
        self.end = end
        self.leader_epoch = leader_epoch

    def __repr__(self) -> str:
        return f"<Batch {self.topic}/{self.partition} [{self.begin}, {self.end}): {len(self)} records>"
