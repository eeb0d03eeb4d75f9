"""A store in a directory, as a source: batches are read as they lie in the log, and none is decompressed."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from klamm.api import Store
from klamm.batch import patch, walk
from klamm.store.names import RESERVED
from klamm.transfer.chunk import Chunk, SourceTopic, records_of
from klamm.transfer.read_ahead import read_ahead
from klamm.types import TopicPartition
from klamm.where import fixed, position_in

if TYPE_CHECKING:
    from klamm.batch import Record
    from klamm.log.partition import Partition
    from klamm.log.reader import Reader
    from klamm.where import Where

__all__ = ["DirectorySource"]

_CHUNK_BYTES = 1 << 20  # fits into a core's cache
_IDLE_S = 0.1  # between two looks at logs that have all been read


class DirectorySource:
    """See chunk.Source."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.name = store.path
        self.source_id = store.store_id

    def topic_names(self) -> list[str]:
        return [name for name in self._store.topics if not name.startswith(RESERVED)]

    def describe(self, names: Sequence[str]) -> list[SourceTopic]:
        infos = [self._store.topics.describe(name) for name in names]
        return [SourceTopic(info.name, len(info.partitions), info.settings) for info in infos]

    def start(self, partition: TopicPartition, since: Where) -> int:
        core = self._store._acquired()
        log = core.topic(partition.topic).partition(partition.partition)
        return position_in(fixed(since, core.heads.wall_ms()), log).offset

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        ends = self._log(partition).ends()
        return ends.start, ends.stable

    def read_between(self, partition: TopicPartition, start: int, end: int) -> list[Record]:
        records: list[Record] = []
        with self._log(partition).reader(start) as reader:
            while reader.offset < end:
                chunk = _read(partition, reader)
                if chunk is None:
                    break
                records += records_of(chunk, start, end)
        return records

    def chunks(self, positions: Mapping[TopicPartition, int], *, follow: bool) -> Iterator[Chunk | None]:
        return read_ahead(self._chunks(positions, follow=follow))

    def _chunks(self, positions: Mapping[TopicPartition, int], *, follow: bool) -> Generator[Chunk | None]:
        limits = {partition: self.bounds(partition)[1] for partition in positions}
        readers = {partition: self._log(partition).reader(offset) for partition, offset in positions.items()}
        try:
            while readers:
                is_idle = True
                for partition, reader in list(readers.items()):
                    chunk = _read(partition, reader)
                    if chunk is not None:
                        is_idle = False
                        yield chunk
                    elif follow:
                        continue
                    if not follow and (chunk is None or reader.offset >= limits[partition]):
                        readers.pop(partition).close()
                if is_idle and readers:
                    yield None
                    time.sleep(_IDLE_S)
        finally:
            for reader in readers.values():
                reader.close()

    def groups(self, partitions: Sequence[TopicPartition]) -> dict[str, dict[TopicPartition, int]]:
        groups, wanted = self._store.groups, set(partitions)
        offsets = {
            name: {TopicPartition(each["topic"], each["partition"]): each["offset"] for each in exported["offsets"]}
            for name in groups
            if (exported := groups.export(name))
        }
        return {
            name: chosen
            for name, stored in offsets.items()
            if (chosen := {partition: offset for partition, offset in stored.items() if partition in wanted})
        }

    def close(self) -> None:
        """Do nothing: the store belongs to its opener."""

    def _log(self, partition: TopicPartition) -> Partition:
        return self._store._acquired().topic(partition.topic).partition(partition.partition)


def _read(partition: TopicPartition, reader: Reader) -> Chunk | None:
    """Return what comes next, without markers and producer ids; None at the end of what is committed."""
    start = reader.offset
    data = memoryview(bytearray(reader.read(_CHUNK_BYTES)))
    if reader.offset == start:
        return None
    batches = []
    at = 0
    for header in walk(data):
        batch, at = data[at : at + header.size], at + header.size
        if header.is_control or not header.record_count:
            continue
        if header.producer_id >= 0:
            patch.discharge(batch)
        batches.append(batch)
    return Chunk(partition, start, reader.offset, batches)
