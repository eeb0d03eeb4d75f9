"""Rows of Arrow record batches -> sealed batches, in order for each partition. The caller puts them into a log
(append_table.py), or into a file that the Spark driver publishes (spark/staged_batches.py).

Bytes go from Arrow's buffers into batches without becoming Python objects. Rows of a partition keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.arrow.schema import pyarrow
from klamm.batch import (
    BinaryColumn,
    Builder,
    HeadersColumn,
    NumberColumn,
    encode_columns,
    partition_rows,
    too_large,
)
from klamm.errors import InvalidRecord, InvalidTimestamp, RecordTooLarge

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SMALLEST_LIMIT", "Encoder", "Rows", "Shape", "numbers"]

_CHUNK_ROWS = 16_384  # rows that are sorted by partition at a time: they stay in the CPU's cache
_OPEN_BYTES = 64 << 20  # of batches that are filled at the same time
SMALLEST_LIMIT = 128

Emit = Callable[[int, memoryview, int], None]
"""Takes a sealed batch: its partition, its bytes (good until it returns), its number of records."""


class Shape(NamedTuple):
    """The properties of a topic that an encoder needs."""

    name: str
    partitions: int
    max_message_bytes: int
    keyed: bool
    """Whether it is compacted, so that every record needs a key."""


class Rows(NamedTuple):
    """The columns of one record batch, as the kernel reads them: value, and optionally key and the others."""

    rows: int
    value: BinaryColumn
    key: BinaryColumn | None
    timestamps: NumberColumn | None
    headers: HeadersColumn | None
    partitions: NumberColumn | None
    keyless: int  # the first row without a key; -1: none is
    times: Any  # the column of timestamps, as Arrow has it; None: there is none

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Rows:
        has = {name: batch.column(name) for name in batch.schema.names}
        times = _milliseconds(has["timestamp"]) if "timestamp" in has else None
        return cls(
            batch.num_rows,
            _binary(has["value"], "value"),
            _binary(has["key"], "key") if "key" in has else None,
            None if times is None else _int64(times, "timestamp"),
            _headers(has["headers"]) if "headers" in has else None,
            numbers(has["partition"], "partition") if "partition" in has else None,
            _first_null(has["key"]) if "key" in has else 0 if batch.num_rows else -1,
            times,
        )

    def first_outside(self, timestamp: int, earliest: int, latest: int) -> tuple[int, int]:
        """Return the first row whose timestamp is not in [earliest, latest], and that timestamp; (-1, -1) if there is
        none.

        `timestamp` is for rows that have none.
        """
        import pyarrow.compute as pc

        if timestamp != -1 and not earliest <= timestamp <= latest:
            index = 0 if self.times is None else _first_null(self.times)
            if 0 <= index < self.rows:
                return index, timestamp
        if self.times is None:
            return -1, -1
        extremes: Any = pc.min_max(self.times).as_py()
        if extremes["min"] is None or (earliest <= extremes["min"] and extremes["max"] <= latest):
            return -1, -1
        first, last = (pyarrow().scalar(bound, pyarrow().int64()) for bound in (earliest, latest))
        outside: Any = pc.or_(pc.less(self.times, first), pc.greater(self.times, last))
        index = int(pc.index(outside, True).as_py())
        return index, int(self.times[index].as_py())


def _first_null(array: Any) -> int:
    if not array.null_count:
        return -1
    import pyarrow.compute as pc

    return int(pc.index(array.is_null(), True).as_py())


def _binary(array: Any, what: str) -> BinaryColumn:
    """Return a column of plain binary or strings unchanged, other kinds of them converted."""
    pa = pyarrow()
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    if kind not in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()):
        views = (getattr(pa, name)() for name in ("binary_view", "string_view") if hasattr(pa, name))
        if not (pa.types.is_fixed_size_binary(kind) or pa.types.is_null(kind) or kind in tuple(views)):
            raise TypeError(f"column {what!r} is {kind}, expected binary or string")
        array = array.cast(pa.large_string() if str(kind) == "string_view" else pa.large_binary())
        kind = array.type
    validity, offsets, data = array.buffers()
    large = kind in (pa.large_binary(), pa.large_string())
    return BinaryColumn(len(array), validity, offsets or b"", data, start=array.offset, large=large)


def numbers(array: Any, what: str) -> NumberColumn:
    """Return whole numbers, as the kernel reads them."""
    return _int64(_whole_numbers(array, what), what)


def _whole_numbers(array: Any, what: str) -> Any:
    pa = pyarrow()
    if not (pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
        raise TypeError(f"column {what!r} is {array.type}, expected whole numbers")
    return array.cast(pa.int64())


def _milliseconds(array: Any) -> Any:
    pa = pyarrow()
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", array.type.tz), safe=False).view(pa.int64())  # without a zone: UTC
    return _whole_numbers(array, "timestamp")


def _int64(array: Any, what: str) -> NumberColumn:
    validity, values = array.buffers()
    try:
        return NumberColumn(len(array), validity, values or b"", start=array.offset)
    except ValueError as error:
        raise ValueError(f"column {what!r}: {error}") from None


def _headers(array: Any) -> HeadersColumn:
    pa = pyarrow()
    wanted = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    try:
        array = array.cast(wanted)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):
        raise TypeError(f"column 'headers' is {array.type}, expected {wanted}") from None
    validity, starts = array.buffers()[:2]
    pairs = array.values
    if pairs.null_count:
        raise ValueError("column 'headers': a header is null")
    names, values = _binary(pairs.field(0), "headers"), _binary(pairs.field(1), "headers")
    return HeadersColumn(len(array), validity, starts or b"", names, values, start=array.offset)


class Encoder:
    """Encodes the rows of one topic into batches."""

    def __init__(
        self,
        shape: Shape,
        emit: Emit,
        *,
        codec: int = 0,
        level: int | None = None,
        partition: int | None = None,
        sticky: int = 0,
    ) -> None:
        """Prepare an encoder. `partition` is for rows without one; `sticky` is the first partition for rows without a
        key.
        """
        self._shape = shape
        self._emit = emit
        self._codec = codec
        self._level = level
        self._fixed = partition
        self._limit = max(shape.max_message_bytes, SMALLEST_LIMIT)
        self._builders: dict[int, Builder] = {}
        self._sticky = sticky % shape.partitions
        self._rows = 0

    @property
    def size(self) -> int:
        """Bytes in batches that are not full yet."""
        return sum(builder.size for builder in self._builders.values() if builder.count)

    def take(self, rows: Rows, timestamp: int = -1, bounds: tuple[int, int] | None = None) -> None:
        """Encode all rows of one record batch, and pass on full batches.

        `bounds` are the earliest and the latest timestamp that the topic accepts; None: they are checked later.
        """
        large = too_large(rows.value, rows.key, rows.headers, limit=self._limit)
        end = rows.rows if large < 0 else large
        keyless = self._shape.keyed and 0 <= rows.keyless < end
        if keyless:
            end = rows.keyless
        outside, stamp = (-1, -1) if bounds is None else rows.first_outside(timestamp, *bounds)
        if 0 <= outside < end:
            end = outside
        together = self._fixed is not None or self._shape.partitions == 1 or rows.key is None
        if together and rows.partitions is None:
            self._fill(rows, 0, end, None, timestamp, self._fixed)
        else:
            for start in range(0, end, _CHUNK_ROWS):
                self._fill_by_partition(rows, start, min(start + _CHUNK_ROWS, end), timestamp)
                if self.size > _OPEN_BYTES:
                    self.give_all()
        self._rows += end
        if bounds is not None and end == outside:
            raise InvalidTimestamp.outside(f"{self._shape.name}: row {self._rows}", stamp, *bounds)
        if keyless:
            raise InvalidRecord(
                f"{self._shape.name}: row {self._rows} has no key, and the topic is compacted",
                hint="give it a key: compaction keeps the latest record of each",
            )
        if large >= 0:
            raise RecordTooLarge(
                f"{self._shape.name}: row {self._rows} does not fit a batch of at most {self._limit} bytes",
                hint="send smaller records, or raise the topic's max.message.bytes",
            )

    def _fill_by_partition(self, rows: Rows, start: int, stop: int, timestamp: int) -> None:
        count = self._shape.partitions
        key, rest = (rows.key, self._sticky) if self._fixed is None else (None, self._fixed)
        selection, starts = partition_rows(start, stop, key, rows.partitions, count, rest)
        for number in range(count):
            if starts[number] < starts[number + 1]:
                self._fill(rows, starts[number], starts[number + 1], selection, timestamp, number)

    def _fill(
        self, rows: Rows, start: int, stop: int, selection: memoryview | None, timestamp: int, number: int | None
    ) -> None:
        """Encode rows, or selected rows, into batches of partition `number`; None: of the sticky one."""
        while start < stop:
            target = self._sticky if number is None else number
            builder = self._builders.get(target)
            if builder is None:
                builder = self._builders[target] = Builder(self._limit)
            start = encode_columns(
                builder, start, stop, rows.value, rows.key, rows.timestamps, rows.headers, selection, timestamp
            )
            if start < stop:
                self._give(target, builder)

    def _give(self, number: int, builder: Builder) -> None:
        batch = builder.seal(self._codec, self._level)
        if self._codec and len(batch) > builder.size:
            batch = builder.seal()  # compression made it larger, perhaps too large
        self._emit(number, batch, builder.count)
        builder.clear()
        if number == self._sticky:
            self._sticky = (number + 1) % self._shape.partitions

    def give_all(self) -> None:
        """Seal and pass on the open batches."""
        for number, builder in self._builders.items():
            if builder.count:
                self._give(number, builder)
