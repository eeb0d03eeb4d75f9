"""A store in a directory, as a target: each batch gets the offset that it has in the source.

Offsets that no record has are taken by batches without records, as after compaction. A batch goes where it belongs or
nowhere, so the log itself says how far it was copied, and a copy that was killed goes on there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from klamm.api import Store
from klamm.batch import RECORDS, decode, parse, patch
from klamm.errors import InvalidSetting
from klamm.transfer.chunk import Chunk, GroupOffsets, SourceTopic
from klamm.types import OffsetMove, TopicPartition

if TYPE_CHECKING:
    from klamm.batch import Record
    from klamm.log.partition import Partition
    from klamm.log.reader import Reader

__all__ = ["DirectoryTarget"]

_MAX_OFFSETS = (1 << 31) - 1  # of a batch
_SYNC_BYTES = 64 << 20
_LAST = 10  # records that are compared with the source before a copy goes on


class DirectoryTarget:
    """See chunk.Target."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.name = store.path
        self._starts: dict[TopicPartition, int] = {}  # where partitions begin that have no record yet
        self._written: dict[TopicPartition, int] = {}  # since the last sync: the offset behind
        self._unsynced = 0  # bytes

    def prepare(self, topics: Sequence[SourceTopic]) -> None:
        for topic in topics:
            if topic.name not in self._store.topics:
                self._store.topics.create(topic.name, topic.partitions, topic.settings)
                continue
            count = self._store._acquired().topic(topic.name).count
            if count > topic.partitions:
                raise InvalidSetting(
                    f"{self.name}: topic {topic.name!r} has {count} partitions, and {topic.partitions} in the source",
                    hint="copy into another store",
                )
            if count < topic.partitions:
                self._store.topics.add_partitions(topic.name, topic.partitions)

    def positions(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        ends = {partition: self._log(partition).ends().end for partition in partitions}
        return {partition: end for partition, end in ends.items() if end}

    def last_records(self, partition: TopicPartition, position: int) -> list[Record]:
        log = self._log(partition)
        first, count = log.ends().start, 1
        while True:  # the last batches may have no records
            start = max(first, position - count)
            with log.reader(start, committed=False) as reader:
                records = self._records(partition, reader, start)
            if records or start == first:
                return records[-_LAST:]
            count *= 16

    @staticmethod
    def _records(partition: TopicPartition, reader: Reader, start: int) -> list[Record]:
        records: list[Record] = []
        while data := reader.read():
            records += decode(
                data, form=RECORDS, from_offset=start, topic=partition.topic, partition=partition.partition
            )
        return records

    def is_empty(self, partition: TopicPartition) -> bool:
        return self._log(partition).ends().end == 0

    def begin(self, partition: TopicPartition, offset: int) -> None:
        if offset:
            self._starts[partition] = offset

    def write(self, chunk: Chunk) -> None:
        log = self._log(chunk.partition)
        position = log.ends().end
        for batch in chunk.batches:
            header = parse(batch)
            _skip(log, position, header.base_offset)
            log.append_at(header.base_offset, batch, is_copy=True)
            position = header.next_offset
            self._unsynced += len(batch)
        _skip(log, position, chunk.end)
        self._written[chunk.partition] = chunk.end
        if self._unsynced >= _SYNC_BYTES:
            self.commit()

    def commit(self) -> None:
        for partition, end in self._written.items():
            log = self._log(partition)
            log.sync(end)
            start = self._starts.pop(partition, 0)
            if start:
                log.cleanup.delete_before(start)
        self._written.clear()
        self._unsynced = 0

    def move_group(self, group: str, offsets: GroupOffsets) -> int:
        groups = self._store.groups
        stored = {}
        if group in groups:
            exported = groups.export(group)["offsets"]
            stored = {TopicPartition(each["topic"], each["partition"]): each["offset"] for each in exported}
        copied = {partition: min(offset, self._log(partition).ends().end) for partition, offset in offsets.items()}
        moved = {partition: offset for partition, offset in copied.items() if offset > stored.get(partition, -1)}
        groups.apply(
            [OffsetMove(group, *partition, stored.get(partition), moved[partition], -1) for partition in moved]
        )
        return len(moved)

    def close(self) -> None:
        """Do nothing: the store belongs to its opener."""

    def _log(self, partition: TopicPartition) -> Partition:
        return self._store._acquired().topic(partition.topic).partition(partition.partition)


def _skip(log: Partition, position: int, offset: int) -> None:
    """Skip the offsets [position, offset): no record gets them."""
    while position < offset:
        count = min(offset - position, _MAX_OFFSETS)
        log.append_at(position, bytearray(patch.empty(0, count, 0)), is_copy=True)
        position += count
