"""A partition of an engine: its file, what was read of it and not handed out, and its position.

    reader     whole, verified batches from the log
    decoder    those batches, of which some records are taken at a time; only one batch is uncompressed at a time
    _rest      records that were taken from the decoder, and may not have been handed out
    handed     what was returned last, which is `_rest`, or a part of it

The position is that of `handed`. An exception may come at any moment (Ctrl-C, a serde): what was taken from the
decoder and not stored in `_rest` is seen by the decoder's offset, and read again from the position.

Memory: at most half of `max_bytes` is read at once, or a batch that is larger, and a quarter of it taken from
compressed batches; the records returned before may still be with the caller. With one batch that is uncompressed, that
makes at most `max_bytes` and the largest batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.batch import BatchMemory, Decoder
from klamm.client.consume.read_engine import ReadFormat, Records, position_is_gone
from klamm.errors import CorruptBatch, OffsetOutOfRange, UnknownTopic
from klamm.log import head
from klamm.types import Position, TopicPartition

if TYPE_CHECKING:
    from klamm.log.partition import Partition

__all__ = ["Cursor"]

_FIRST_BYTES = 64 << 10


class Cursor:
    """One partition. For the reading thread, apart from `handed`."""

    __slots__ = (
        "_decoded",
        "_max_bytes",
        "_read_bytes",
        "_rest",
        "decoder",
        "handed",
        "has_turn",
        "index",
        "is_paused",
        "is_used_up",
        "last_read",
        "log",
        "name",
        "partition",
        "reader",
        "seq",
    )

    def __init__(
        self, partition: Partition, position: Position, read_format: ReadFormat, *, committed: bool, max_bytes: int
    ) -> None:
        self.partition = partition
        self.name = TopicPartition(partition.topic, partition.number)
        self.log = partition.log
        self.reader = partition.reader(position.offset, committed=committed)
        self.decoder = Decoder(partition.topic, partition.number, BatchMemory())
        self.is_paused = False
        self.is_used_up = False  # what was read at once was handed out: it is others' turn
        self.last_read = 0  # the number of its chunk
        self.index = 0  # in the engine's list
        self.seq = 0  # of the head, when the end of the log was seen
        self._max_bytes = max(4, max_bytes)
        self._read_bytes = min(self._max_bytes // 2, _FIRST_BYTES)
        self.decoder.use(*read_format)
        self.handed = Records(self.name, position, position)
        self.seek(position)

    def use(self, read_format: ReadFormat) -> None:
        """Make records into another form; what was made already is read again."""
        self.decoder.use(*read_format)
        self.seek(self.handed.position)

    def seek(self, position: Position) -> None:
        """Continue there; drop what was read and not returned."""
        self.has_turn = True  # it is in the engine's queue, or will be once it is not paused
        self._rest: Records | None = None
        before, self.handed = self.handed, Records(self.name, position, position)
        before.end_iteration()
        self._drop(position.offset)

    def _drop(self, offset: int) -> None:
        """Drop what was read, and continue with what the reader reads at `offset`."""
        self.decoder.seek(offset)
        self._decoded = offset  # the decoder's offset; another one: an exception came in between

    # ---- returning records

    @property
    def has_more(self) -> bool:
        """Whether records were read that were not handed out."""
        return self._rest is not None or self.decoder.has_more

    def take(self, most: int) -> Records | None:
        """Return the next records, which are handed out as they are iterated; None if what was read has none."""
        rest = self._rest
        if rest is not None:
            found = rest.part(self.handed.end, most)
        elif self.decoder.offset != self._decoded:  # an exception came: read again from the position
            self.seek(self.handed.position)
            return None
        else:
            try:
                found = self._rest = self.decoder.take(self.handed, most, self._max_bytes >> 2)
            except CorruptBatch as error:
                raise self._located(error) from None
            self._decoded = found.end
        self.handed = found
        return found if found.has_more else None

    def put_back(self) -> None:
        """End what `take` has returned: what was not handed out is returned again."""
        handed = self.handed = self.handed.stop()
        if self._rest is not None and handed.end >= self._rest.end:
            self._rest = None

    # ---- reading

    def fill(self, reset: str | None) -> bool:
        """Read on, once everything was handed out; False at the end of the log. `seq` is the head's before the look.

        A position that is not in the log moves to its "earliest" or "latest" offset, if `reset` says so.
        """
        reader = self.reader
        while True:
            self.seq = self.log.seq
            reader.seek(self.handed.offset)
            try:
                data = reader.read(self._read_bytes)
            except OffsetOutOfRange as error:
                self._check_not_deleted()
                if reset not in ("earliest", "latest"):
                    raise position_is_gone(self.name, error.offset, error.start, error.end) from None
                self.seek(Position(error.start if reset == "earliest" else error.end))
                continue
            except (CorruptBatch, FileNotFoundError):
                self._check_not_deleted()
                raise
            if not data:
                self._skip_to(reader.offset)
                self.decoder.release()
                return False
            if len(data) > self._read_bytes >> 1:
                # A batch that is larger than that is read twice, unless it fits into what is read at once.
                most = self._max_bytes // 2 if len(data) <= self._max_bytes // 2 else self._max_bytes
                self._read_bytes = min(most, 2 * self._read_bytes)
            if self.take_over(data):
                return True

    def take_over(self, data: memoryview | bytes) -> bool:
        """Continue with what the reader has read. Return False if there are no records in it."""
        self.decoder.feed(data, self.reader.offset)
        self._decoded = self.decoder.offset
        if self.decoder.has_more:
            self.is_used_up = True  # once that is handed out
            return True
        self._skip_to(self.decoder.offset)
        return False

    @property
    def end(self) -> tuple[int, int, int, int, bool] | None:
        """Where a Poller may read on for it; None: not known."""
        return self.reader.end if self.reader.offset == self.handed.offset else None

    def _skip_to(self, offset: int) -> None:
        """Move the position over what has no records: markers, and what was aborted."""
        position = self.handed.position
        if offset > position.offset:
            self._drop(offset)
            skipped = Position(offset, position.leader_epoch)
            self.handed = Records(self.name, skipped, skipped)

    def _check_not_deleted(self) -> None:
        if self.log.flags & head.DELETED:
            raise UnknownTopic(f"{self.name.topic}: the topic was deleted")

    def _located(self, error: CorruptBatch) -> CorruptBatch:
        topic, number = self.name
        return CorruptBatch(
            f"{topic}/{number}: the batch at offset {self.handed.offset}: {error.message}",
            path=self.partition.directory,
            next_offset=error.next_offset,
            hint="run `check(repair=True)` on the store, or seek to next_offset to skip the batch",
        )
