"""Appending without a producer: one record, or a list of them, committed by the caller.

A Target is a topic as of a version of the catalog; its store keeps one for each topic it appends to.

`append_many` makes as few and as large batches as the topic's `max.message.bytes` allows. A batch is there whole or not
at all; several batches are not one. When a record cannot be taken, those before it in its partition are appended, none
after it there is, and the error says which one it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from klamm.batch import Builder, check_level, number_of, partition_for, partition_records
from klamm.batch.header import TRANSACTIONAL
from klamm.errors import InvalidRecord, RecordTooLarge
from klamm.log.head import ONE_BYTES, QuickTarget
from klamm.types import Appended

if TYPE_CHECKING:
    from types import TracebackType

    from klamm.client.serde import Serializer
    from klamm.log.partition import Partition
    from klamm.store.directory import OpenTopic

__all__ = ["Target", "codec_of", "keyless", "limit_of", "sealed"]

_CHUNK = 16_384  # records that are taken from an iterator at a time
_SLICE = 16_384  # records that are sorted by partition at a time: they stay in the CPU's cache
_OPEN_BYTES = 64 << 20  # bytes of batches that are filled at the same time
_MAX_SPARE = 8
_REFUSALS = (TypeError, ValueError, RecordTooLarge, InvalidRecord)


def codec_of(compression: str | None, level: int | None) -> int:
    """Return the codec's number, after codec and level were checked."""
    if compression is None:
        compression = "none"
    number = number_of(compression)
    check_level(compression, level)
    return number


def keyless(topic: str) -> InvalidRecord:
    """Return the error for a record without a key in a compacted topic."""
    return InvalidRecord(
        f"{topic}: a record without a key, and the topic is compacted",
        hint="give it a key: compaction keeps the latest record of each",
    )


def limit_of(max_message_bytes: int) -> int:
    """Return a limit that a Builder accepts; the partition still checks what passes it."""
    return max(max_message_bytes, 128)


def sealed(
    builder: Builder,
    codec: int,
    level: int | None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    *,
    transactional: bool = False,
) -> memoryview:
    """Return the whole batch; not compressed if that would make it larger, because it then might not fit any more."""
    attributes = TRANSACTIONAL if transactional else 0
    batch = builder.seal(codec, level, producer_id, producer_epoch, sequence, attributes)
    if codec and len(batch) > builder.size:
        batch = builder.seal(0, None, producer_id, producer_epoch, sequence, attributes)
    return batch


class Target(QuickTarget):
    """A topic, for appends."""

    __slots__ = ("_builders", "_turn", "keyed", "opened", "single", "topic")

    def __init__(self, opened: OpenTopic, version: int, *, takes_bytes: bool = True) -> None:
        """Prepare a target. `takes_bytes`: keys and values are bytes as they come, and need not go through a serde."""
        self.opened = opened
        self.topic = opened.topic
        self.version = version
        self.single: Partition | None = opened.partition(0) if opened.count == 1 else None
        settings = opened.topic.settings
        self.keyed = "compact" in settings.cleanup_policy
        usual = settings.message_timestamp_type == "CreateTime" and settings.max_message_bytes >= ONE_BYTES
        usual = usual and settings.compression_type in ("producer", "uncompressed")
        usual = usual and not self.keyed and takes_bytes
        self.quick = self.single.log if self.single is not None and usual else None
        self._turn = 0
        self._builders: list[Builder] = []

    def choose(self, key: Any, partition: int | None) -> Partition:
        """Return the partition of one record: the given one, or by its key, or each partition in turn."""
        opened = self.opened
        if key is None and self.keyed:
            raise keyless(self.topic.name)
        if partition is not None:
            return opened.partition(partition)
        if self.single is not None:
            return self.single
        count = len(self.topic.partitions)
        if key is not None:
            return opened.partition(partition_for(key, count))
        turn = self._turn
        self._turn = (turn + 1) % count
        return opened.partition(turn)

    def append_many(
        self,
        records: Iterable[Any],
        *,
        durable: bool,
        partition: int | None,
        timestamp: int,
        codec: int,
        level: int | None,
        serializer: Serializer | None = None,
    ) -> Appended:
        single = self.single if partition is None else self.opened.partition(partition)
        work = _Work(self, codec, level)
        try:
            if single is not None:
                self._fill_one(work, single, records, timestamp, serializer)
            else:
                self._fill_by_key(work, records, timestamp, serializer)
        except Exception as error:
            if work.count:
                error.add_note(f"{work.count} records of this append_many were appended: {work.ranges}")
            if durable:
                work.sync()
            raise
        if durable:
            work.sync()
        return Appended(self.topic.name, work.count, {number: tuple(found) for number, found in work.ranges.items()})

    def _fill_one(
        self,
        work: _Work,
        partition: Partition,
        records: Iterable[Any],
        timestamp: int,
        serializer: Serializer | None,
    ) -> None:
        builder = self._take_builder()
        chunks = _chunks(records) if serializer is None else _serialized(_slices(records, _SLICE), serializer)
        try:
            for chunk in chunks:
                work.extend(partition, builder, chunk, timestamp, values=_are_values(chunk))
            work.commit(partition, builder)
        except (_RecordError, *_REFUSALS) as error:
            place = work.count + builder.count
            work.commit(partition, builder)
            raise self._refused(error if isinstance(error, _RecordError) else _RecordError(error, 0), place) from None
        finally:
            self._give_back(builder)

    def _fill_by_key(self, work: _Work, records: Iterable[Any], timestamp: int, serializer: Serializer | None) -> None:
        """Append slice by slice: sort the records by partition, and fill a batch for each."""
        partitions = self.opened.partitions()
        count = len(partitions)
        most = max(1 << 16, _OPEN_BYTES // count)
        builders: dict[int, Builder] = {}
        done = 0
        refusal: Exception | None = None
        try:
            slices = _slices(records, max(_SLICE, 8 * count))
            for piece in slices if serializer is None else _serialized(slices, serializer):
                sorted_, unsortable = self._sorted(piece, count)
                for number, mine in sorted_:
                    builder = builders.get(number)
                    if builder is None:
                        builder = builders[number] = self._take_builder()
                    before = work.count + builder.count
                    try:
                        work.extend(partitions[number], builder, mine, timestamp, values=mine is piece)
                    except _REFUSALS as error:
                        raise _RecordError(error, _index_of(mine[work.count + builder.count - before], piece)) from None
                    if builder.size >= most:
                        work.commit(partitions[number], builder)
                if unsortable is not None:
                    raise unsortable
                done += len(piece)
        except _RecordError as refused:
            refusal = self._refused(refused, done + refused.place)
        for number, builder in builders.items():
            work.commit(partitions[number], builder)
            self._give_back(builder)
        if refusal is not None:
            raise refusal

    def _sorted(self, piece: Sequence[Any], count: int) -> tuple[list[tuple[int, Sequence[Any]]], _RecordError | None]:
        """Return the records by partition, up to one that cannot be assigned.

        Records without a key stay together, and go to each partition in turn.
        """
        turn = self._turn % count
        self._turn = (turn + 1) % count
        if _are_values(piece):
            return [(turn, piece)], None
        refused: _RecordError | None = None
        try:
            lists = partition_records(piece, count, turn)
        except _REFUSALS as error:
            refused = _RecordError(error, _unsortable(piece, count))
            lists = partition_records(piece[: refused.place], count, turn)
        return [(number, mine) for number, mine in enumerate(lists) if mine], refused

    def _refused(self, refused: _RecordError, place: int) -> Exception:
        error = refused.error
        if isinstance(error, RecordTooLarge):
            return RecordTooLarge(
                f"{self.topic.name}: record {place} of append_many: {error.message}",
                hint=error.hint or "send smaller records, or raise the topic's max.message.bytes",
            )
        if isinstance(error, InvalidRecord):
            return type(error)(f"{error.message}: record {place} of append_many", hint=error.hint)
        error.add_note(f"record {place} of append_many to {self.topic.name}")
        return error.with_traceback(refused.traceback)

    def _take_builder(self) -> Builder:
        limit = limit_of(self.topic.settings.max_message_bytes)
        try:
            builder = self._builders.pop()
        except IndexError:
            return Builder(limit)
        return builder if builder.limit == limit else Builder(limit)

    def _give_back(self, builder: Builder) -> None:
        if len(self._builders) < _MAX_SPARE:
            builder.clear()
            self._builders.append(builder)


class _Work:
    """The appends of one call so far."""

    __slots__ = ("_codec", "_level", "_target", "count", "ranges")

    def __init__(self, target: Target, codec: int, level: int | None) -> None:
        self._target = target
        self._codec = codec
        self._level = level
        self.count = 0
        self.ranges: dict[int, list[range]] = {}

    def extend(
        self, partition: Partition, builder: Builder, records: Sequence[Any], timestamp: int, *, values: bool
    ) -> None:
        """Fill the batch with `records`; commit it whenever it is full."""
        if self._target.keyed:
            bad = next((at for at, record in enumerate(records) if values or not record or record[0] is None), None)
            if bad is not None:
                if bad:
                    self.extend(partition, builder, records[:bad], timestamp, values=values)
                raise keyless(self._target.topic.name)
        extend = builder.extend_values if values else builder.extend
        done = 0
        builder.earliest, builder.latest = partition.timestamp_bounds()
        if timestamp == -1:
            timestamp = partition.now_ms()
        while (done := extend(records, done, timestamp)) < len(records):
            self.commit(partition, builder)

    def commit(self, partition: Partition, builder: Builder) -> None:
        count = builder.count
        if not count:
            return
        first = partition.append(sealed(builder, self._codec, self._level))
        builder.clear()
        self.count += count
        found = self.ranges.setdefault(partition.number, [])
        if found and found[-1].stop == first:
            found[-1] = range(found[-1].start, first + count)
        else:
            found.append(range(first, first + count))

    def sync(self) -> None:
        for number, found in self.ranges.items():
            self._target.opened.partition(number).sync(found[-1].stop)


def _chunks(records: Iterable[Any]) -> Iterator[Sequence[Any]]:
    """Yield lists and tuples as they are; anything else in pieces."""
    if isinstance(records, list | tuple):
        if records:
            yield records if type(records) in (list, tuple) else list(records)
        return
    if isinstance(records, str | bytes | bytearray | memoryview | dict):
        raise TypeError(f"records are {type(records).__name__}; expected (key, value) tuples, or values")
    iterator = iter(records)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk


def _slices(records: Iterable[Any], size: int) -> Iterator[Sequence[Any]]:
    for chunk in _chunks(records):
        for start in range(0, len(chunk), size):
            yield chunk if len(chunk) <= size else chunk[start : start + size]


def _serialized(slices: Iterator[Sequence[Any]], serializer: Serializer) -> Iterator[Sequence[Any]]:
    """Yield the records as bytes. What a serde raises is raised as _RecordError, once those before it were taken."""
    for piece in slices:
        done: list[Any] = []
        refused: _RecordError | None = None
        try:
            for record in piece:
                done.append(serializer.record(record))
        except Exception as error:  # noqa: BLE001  # of the user's function
            refused = _RecordError(error, 0, error.__traceback__)
        if done:
            yield done
        if refused is not None:
            raise refused


def _index_of(bad: Any, records: Sequence[Any]) -> int:
    return next(place for place, record in enumerate(records) if record is bad)


def _unsortable(records: Sequence[Any], count: int) -> int:
    for place, record in enumerate(records):
        try:
            partition_records([record], count, 0)
        except _REFUSALS:
            return place
    raise AssertionError("each one can be sorted, but not all of them")


class _RecordError(Exception):
    """A record that cannot be taken, and where it is in its slice. The traceback is that of a user's function."""

    def __init__(self, error: Exception, place: int, traceback: TracebackType | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.place = place
        self.traceback = traceback


def _are_values(chunk: Sequence[Any]) -> bool:
    return not isinstance(chunk[0], tuple | list)
