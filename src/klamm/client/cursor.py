"""A consumer's place in one partition, and the records it has read there and not yet handed out.

    chunk            records from offset `begin` up to `end`, decoded; chunk[index] is the next to hand out

A chunk is whatever whole batches a read of some bytes gave. It is decoded at once, for that is quickest, and handed out
in parts. Positions are exact nonetheless, inside of a chunk, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import length_hint
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.batch import RECORDS, TUPLES, Record, decode, walk
from klamm.batch.patch import leader_epoch_of
from klamm.errors import CorruptBatch, OffsetOutOfRange, UnknownTopic
from klamm.log import head
from klamm.types import Batch, Position

if TYPE_CHECKING:
    from klamm.log.partition import Partition

__all__ = ["Cursor", "Reading", "converted"]

_FIRST_BYTES = 64 << 10


class Reading(NamedTuple):
    """How a consumer wants its records."""

    form: int
    key_of: Callable[[bytes], Any] | None
    value_of: Callable[[bytes], Any] | None
    max_bytes: int
    on_out_of_range: str


class Cursor:
    """One partition of a consumer."""

    __slots__ = (
        "_begin",
        "_chunk",
        "_chunk_epoch",
        "_end",
        "_epoch",
        "_index",
        "_iterator",
        "_next",
        "_offsets",
        "_size",
        "log",
        "number",
        "partition",
        "paused",
        "place",
        "reader",
        "seq",
        "tenure",
        "topic",
    )

    def __init__(self, partition: Partition, position: Position, *, committed: bool = True) -> None:
        self.partition = partition
        self.topic = partition.topic
        self.number = partition.number
        self.log = partition.log
        self.reader = partition.reader(position.offset, committed=committed)
        self.paused = False
        self.place = 0
        self.seq = 0
        self.tenure = object()  # tells batches from before a partition was lost and came back
        self._size = _FIRST_BYTES
        self.seek(position)

    def seek(self, position: Position) -> None:
        """Go on reading there; what was read and not handed out is dropped."""
        self._begin = self._end = self._next = position.offset
        self._epoch = self._chunk_epoch = position.leader_epoch
        self._chunk: list[Any] = []
        self._index = 0
        self._offsets: list[int] | None = None
        self._iterator: Iterator[Any] | None = None

    @property
    def position(self) -> Position:
        index = self._settled()
        return Position(self._offset_of(index), self._chunk_epoch if index else self._epoch)

    # ---- handing out

    def has_more(self) -> bool:
        """Whether records were read that were not handed out."""
        return self._index < len(self._chunk)

    def take(self, count: int) -> Batch:
        """The next records, at most `count`."""
        chunk, first = self._chunk, self._index
        stop = first + count
        if first == 0 and stop >= len(chunk):
            self._index = len(chunk)
            return Batch(chunk, self.topic, self.number, self._begin, self._end, self._chunk_epoch)
        records = chunk[first:stop]
        begin = self._offset_of(first)
        self._index = first + len(records)
        return Batch(records, self.topic, self.number, begin, self._offset_of(self._index), self._chunk_epoch)

    def iterate(self) -> Iterator[Any]:
        """The rest of the chunk, record by record; what the iterator has given counts as handed out."""
        iterator = self._iterator = iter(self._chunk)
        iterator.__setstate__(self._index)  # type: ignore[attr-defined]  # that is how list iterators are restored
        return iterator

    @property
    def is_iterated(self) -> bool:
        return self._iterator is not None

    def end_iteration(self) -> None:
        self._index = self._settled()
        self._iterator = None

    def _settled(self) -> int:
        return self._index if self._iterator is None else len(self._chunk) - length_hint(self._iterator)

    def _offset_of(self, index: int) -> int:
        if index >= len(self._chunk):
            return self._end
        if self._offsets is not None:
            return self._offsets[index]
        return self._begin + index

    # ---- reading

    def fill(self, how: Reading) -> bool:
        """Read the next chunk, once the last one was handed out; False at the end of the log.

        `seq` is then the head's, as it was before the look.
        """
        while True:
            self.seq = self.log.seq
            reader, begin = self.reader, self._end
            if reader.offset != self._next:
                reader.seek(self._next)
            try:
                data = reader.read(self._size)
            except OffsetOutOfRange as error:
                self._refuse_deleted()
                if how.on_out_of_range == "error":
                    raise
                self.seek(Position(error.start if how.on_out_of_range == "earliest" else error.end))
                continue
            except (CorruptBatch, FileNotFoundError):
                self._refuse_deleted()
                raise
            if not data:
                self._next = reader.offset  # beyond what has no records: markers, and what was aborted
                return False
            if len(data) > self._size >> 1:
                self._size = min(how.max_bytes, 2 * self._size)
            end = reader.offset
            try:
                chunk = self._records(data, how.form, how.key_of, how.value_of)
            except CorruptBatch as error:
                if not error.position:
                    raise self._placed(error) from None
                data = data[: error.position]  # first what is good; the next read meets the bad one
                chunk, end = self._carefully(data, walk(data)[-1].next_offset, how)
            except Exception:  # noqa: BLE001  # a serde's; it is raised when its record is the first
                chunk, end = self._carefully(data, end, how)
            self._take_over(chunk, begin, end, data, how.form)
            if chunk:
                return True

    def _take_over(self, chunk: list[Any], begin: int, end: int, data: memoryview, form: int) -> None:
        offsets: list[int] | None = None
        if len(chunk) != end - begin:  # gaps: markers, or cleaning took records out
            plain = chunk if form == RECORDS else self._records(data, RECORDS, None, None)
            offsets = [record.offset for record in plain[: len(chunk)]]
        epoch = leader_epoch_of(data)
        if epoch != self._chunk_epoch:
            epoch = walk(data)[-1].leader_epoch
        self._epoch, self._chunk_epoch = self._chunk_epoch, epoch
        self._begin, self._end, self._offsets, self._iterator = begin, end, offsets, None
        self._next = end
        self._chunk, self._index = chunk, 0

    def _records(self, data: memoryview, form: int, key_of: Any, value_of: Any) -> list[Any]:
        return decode(
            data,
            form=form,
            from_offset=self._end,
            topic=self.topic,
            partition=self.number,
            key_of=key_of,
            value_of=value_of,
        )

    def _carefully(self, data: memoryview, end: int, how: Reading) -> tuple[list[Any], int]:
        """Records up to the one that a serde fails on, and the offset of that one, which is told next time."""
        found: list[Any] = []
        for record in self._records(data, RECORDS, None, None):
            try:
                found.append(converted(record, how))
            except Exception as error:
                if found:
                    return found, record.offset
                error.add_note(
                    f"while reading {self.topic}/{self.number} at offset {record.offset}: its key or value does not"
                    f" suit the serde; seek to {record.offset + 1} to skip it"
                )
                raise
        return found, end

    def _refuse_deleted(self) -> None:
        if self.log.flags & head.DELETED:
            raise UnknownTopic(f"{self.topic}: the topic was deleted")

    def _placed(self, error: CorruptBatch) -> CorruptBatch:
        return CorruptBatch(
            f"{self.topic}/{self.number}: the batch at offset {self._end}: {error.message}",
            path=self.partition.directory,
            next_offset=error.next_offset,
            hint="run `check(repair=True)` on the store, or seek to next_offset to skip the batch",
        )


def converted(record: Record, how: Reading) -> Any:
    """A record as it was read without serdes, in the form that was asked for."""
    value = record.value if record.value is None or how.value_of is None else how.value_of(record.value)
    if how.form not in (RECORDS, TUPLES):
        return value
    key = record.key if record.key is None or how.key_of is None else how.key_of(record.key)
    if how.form == TUPLES:
        return key, value
    return Record(
        record.topic, record.partition, record.offset, record.timestamp, key, value, record.headers, record.leader_epoch
    )
