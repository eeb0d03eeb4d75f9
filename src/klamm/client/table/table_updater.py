"""Update a table from its log: what the process that maintains a table does with each partition.

A part of a partition is read, its records with a key are reduced to the last one of each key, and those are written
together with the position that the part ends at. The position carries the leader epoch of the log, as of a commit that
has everything below it: where that epoch turns out to have ended earlier, the table has what the log has lost.

    sound      the position is in the log, its epoch did not end before it, and no tombstone behind it can be gone:
               compaction keeps those for `delete.retention.ms`, so the table must have stood still for less
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.batch import TUPLES, decode
from klamm.errors import CorruptBatch, OffsetOutOfRange
from klamm.types import Position
from klamm.where import resume_at

if TYPE_CHECKING:
    from klamm.client.table.rocksdb import RocksTable
    from klamm.log.head import Heads
    from klamm.log.partition import Partition
    from klamm.log.reader import Reader

__all__ = ["PartitionProgress", "TableDiverged", "TableUpdater"]

_CHUNK_BYTES = 1 << 20
_MAX_OPEN = 64  # files of the log
_RECORD_EVERY_MS = 600_000  # how often a table that has everything notes that it does
_DOUBT_MS = 60_000  # how long it may have stood still before tombstones are thought of


class TableDiverged(Exception):
    """The table cannot go on from where it is: it has to be rebuilt."""


class PartitionProgress:
    """One partition, and how far it was applied."""

    __slots__ = ("epoch", "partition", "position", "reader")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.reader: Reader | None = None
        self.position = Position(0)  # without an epoch: nothing was applied
        self.epoch = -1  # of the log, when `position` was last compared with it

    def beginning(self) -> Position:
        """Return the position at which an empty table begins."""
        return Position(self.partition.snapshot().log_start)

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None


class TableUpdater:
    """The partitions of a topic on their way into a table."""

    def __init__(self, heads: Heads) -> None:
        self.partitions: list[PartitionProgress] = []
        self.count = 0  # records that were read
        self._heads = heads
        self._complete_ms = self._written_ms = heads.clock_ms()

    def load(self, db: RocksTable) -> bool:
        """Take over how far the table goes. False: it is not a table of this log, as that is now."""
        now_ms = self._heads.clock_ms()
        self._written_ms = now_ms
        self._complete_ms = db.complete_ms() or now_ms
        sound = [self.load_progress(progress, db) for progress in self.partitions]
        return all(sound)

    def load_progress(self, progress: PartitionProgress, db: RocksTable) -> bool:
        ends = progress.partition.ends()
        found = db.position(progress.partition.number)
        progress.close()
        progress.epoch = ends.leader_epoch
        progress.position = progress.beginning() if found is None else found
        return found is None or self._is_sound(progress)

    def _is_sound(self, progress: PartitionProgress) -> bool:
        position, ends = progress.position, progress.partition.ends()
        if resume_at(progress.partition, position) != position or not ends.start <= position.offset <= ends.end:
            return False
        settings = progress.partition.settings
        if position.offset == ends.end or "compact" not in settings.cleanup_policy:
            return True
        limit = settings.delete_retention_ms
        return self._heads.clock_ms() - self._complete_ms < limit

    def apply(self, progress: PartitionProgress, db: RocksTable) -> None:
        """Apply the next part of a partition. Raise TableDiverged if it does not continue where the table ends."""
        partition, begin = progress.partition, progress.position.offset
        has_some = progress.position.leader_epoch >= 0
        now, now_ms = partition.snapshot(), self._heads.clock_ms()
        in_doubt = now.leader_epoch != progress.epoch or now_ms - self._complete_ms > _DOUBT_MS
        if has_some and in_doubt and not self._is_sound(progress):
            raise TableDiverged
        progress.epoch = now.leader_epoch
        reader = progress.reader
        if reader is None:
            reader = progress.reader = partition.reader(begin)
        try:
            data = reader.read(_CHUNK_BYTES)
            found = decode(data, form=TUPLES, from_offset=begin) if data else []
        except OffsetOutOfRange as error:
            partition.check_not_deleted()
            if has_some:
                raise TableDiverged from None
            progress.close()
            progress.position = Position(error.start)
            return
        except (CorruptBatch, FileNotFoundError):
            progress.close()
            partition.check_not_deleted()
            raise
        if len(self.partitions) > _MAX_OPEN:
            reader.close()  # it keeps its place
        # Without data nothing below the commit is left to be read: only markers, or what was aborted.
        end = max(begin, reader.offset if data else now.stable_offset)
        if end > begin:
            latest: dict[bytes, bytes | None] = dict(found)
            latest.pop(None, None)  # type: ignore[call-overload]  # without a key there is no place in a mapping
            position = Position(end, now.leader_epoch)
            db.write(latest, partition.number, position, now_ms)
            progress.position = position
            self._complete_ms = self._written_ms = now_ms
            self.count += len(found)

    def rest(self, db: RocksTable) -> None:
        """Record that everything is applied, now and then."""
        self._complete_ms = self._heads.clock_ms()
        if self._complete_ms - self._written_ms > _RECORD_EVERY_MS:
            self.record_complete(db)

    def record_complete(self, db: RocksTable) -> None:
        """Note that everything is applied."""
        self._written_ms = self._complete_ms = self._heads.clock_ms()
        db.record_complete(self._complete_ms)

    def close(self) -> None:
        for progress in self.partitions:
            progress.close()
