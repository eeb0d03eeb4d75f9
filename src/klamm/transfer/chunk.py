"""The unit of a copy: records of one partition, as whole batches.

Promises
  CPY1  A chunk has every committed record of its offsets, and no other. What is not in a batch was aborted, is a
        marker, or was removed by retention or compaction.
  CPY2  Chunks of a partition follow on: each begins where the one before it ended.
  CPY3  What a target says it has come to (`positions`) is on disk there, and nothing behind it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from klamm.batch import RECORDS, Record, decode
from klamm.types import TopicPartition
from klamm.where import Where

__all__ = ["Chunk", "GroupOffsets", "Source", "SourceTopic", "Target", "records_of"]

GroupOffsets = Mapping[TopicPartition, int]
"""The committed offsets of a group."""


class Chunk(NamedTuple):
    """Offsets [start, end) of a partition, and the batches that lie there."""

    partition: TopicPartition
    start: int
    end: int
    batches: Sequence[memoryview]
    """Whole, sealed, in the order of offsets, without producer ids. Their buffers are the receiver's."""


class SourceTopic(NamedTuple):
    """A topic as the source has it."""

    name: str
    partitions: int
    settings: Mapping[str, str]
    """Those that were set, by Kafka's names."""


class Source(Protocol):
    """The source of a copy."""

    name: str
    source_id: str
    """The same for each copy of its topics, and for no other source."""

    def topic_names(self) -> list[str]:
        """Return the names of its topics, without internal ones."""
        ...

    def describe(self, names: Sequence[str]) -> list[SourceTopic]:
        """Return these topics."""
        ...

    def start(self, partition: TopicPartition, since: Where) -> int:
        """Return the offset that `since` means."""
        ...

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """Return the first offset, and the one behind the last record that may be read now."""
        ...

    def read_between(self, partition: TopicPartition, start: int, end: int) -> list[Record]:
        """Return the committed records of these few offsets."""
        ...

    def chunks(self, positions: Mapping[TopicPartition, int], *, follow: bool) -> Iterator[Chunk | None]:
        """Read from these positions up to what is there now, or with `follow` without an end; then None comes whenever
        there is nothing to read for a moment.
        """
        ...

    def groups(self, partitions: Sequence[TopicPartition]) -> dict[str, dict[TopicPartition, int]]:
        """Return what each group has committed of these partitions."""
        ...

    def close(self) -> None: ...


class Target(Protocol):
    """The target of a copy."""

    name: str

    def prepare(self, topics: Sequence[SourceTopic]) -> None:
        """Make what is missing of these topics."""
        ...

    def positions(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return how far each partition was copied; a partition without a copied offset is left out."""
        ...

    def last_records(self, partition: TopicPartition, position: int) -> list[Record]:
        """Return some of the last records before `position`, with the source's offsets. None only if the target has
        none at all. LogError if what was copied is not there any more.
        """
        ...

    def is_empty(self, partition: TopicPartition) -> bool:
        """Return whether the partition has no record, of this copy or of others."""
        ...

    def begin(self, partition: TopicPartition, offset: int) -> None:
        """Begin a partition without a copied record at an offset of the source."""
        ...

    def write(self, chunk: Chunk) -> None:
        """Take a chunk, which begins where the one before it ended."""
        ...

    def commit(self) -> None:
        """Return when everything that was taken is on disk."""
        ...

    def move_group(self, group: str, offsets: GroupOffsets) -> int:
        """Move a group forward to where these offsets of the source are here. Return how many partitions it has moved
        in. GroupBusy if the group has members.
        """
        ...

    def close(self) -> None: ...


def records_of(chunk: Chunk, start: int = 0, end: int | None = None) -> list[Record]:
    """Return the records of a chunk, or those of them at offsets [start, end)."""
    return [
        record
        for batch in chunk.batches
        for record in decode(batch, form=RECORDS, topic=chunk.partition.topic, partition=chunk.partition.partition)
        if record.offset >= start and (end is None or record.offset < end)
    ]
