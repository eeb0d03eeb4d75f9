"""Arrow -> records: a table, or a stream of record batches of any length, appended to a topic.

    value      binary or string                 needed; null is a tombstone
    key        binary or string                 null, or no such column: no key
    timestamp  timestamp, or milliseconds       null, or no such column: the time of the call
    headers    list of (key, value) structs, or a map of string to binary
    partition  whole numbers                    null, or no such column: by key, else sticky

`topic`, `offset` and `timestampType`, which a scan has as well, mean nothing here; any other column is an error, for it
may be one of the above with a slip in its name.

Bytes go from Arrow's buffers into batches without becoming Python objects. Rows of a partition keep their order. When a
row cannot be taken, the rows before it are appended, none after it is, and the error says which one it was; if it is a
whole column that does not fit, nothing of its record batch is appended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.arrow.schema import no_column, pyarrow
from klamm.batch import (
    BinaryColumn,
    Builder,
    HeadersColumn,
    NumberColumn,
    encode_columns,
    partition_rows,
    too_large,
)
from klamm.errors import InvalidRecord, InvalidSetting, RecordTooLarge, UnknownTopic
from klamm.types import Appended

if TYPE_CHECKING:
    import pyarrow as pa

    from klamm.store.directory import OpenTopic

__all__ = ["append_table"]

_WANTED = ("value", "key", "timestamp", "headers", "partition")
_IGNORED = frozenset({"topic", "offset", "timestampType"})
_CHUNK_ROWS = 16_384  # rows that are sorted by partition at a time: they stay in the CPU's cache
_OPEN_BYTES = 64 << 20  # of batches that are filled at the same time
_SMALLEST_LIMIT = 128


def append_table(
    opened: OpenTopic,
    table: Any,
    *,
    durable: bool = True,
    partition: int | None = None,
    timestamp: int = -1,
    codec: int = 0,
    level: int | None = None,
) -> Appended:
    """Append the rows of `table`: where they went.

    `table` is a pyarrow table, record batch or reader, or anything with Arrow's `__arrow_c_stream__` or
    `__arrow_c_array__`: a Polars or pandas frame, a DuckDB relation, a scan. `partition` and `timestamp` are for rows
    that say nothing themselves. `durable`: it returns when all is on disk.
    """
    reader = _reader(table)
    _check_names(reader.schema)
    work = _Work(opened, codec, level, partition)
    refused: Exception | None = None
    try:
        for batch in reader:
            work.take(_Rows.of(batch), timestamp)
    except (TypeError, ValueError, RecordTooLarge, InvalidRecord, UnknownTopic) as error:
        refused = error
    work.commit_all()
    if durable:
        work.sync()
    if refused is not None:
        if work.count:
            refused.add_note(f"{work.count} rows of this append_table were appended: {work.ranges}")
        raise refused
    return Appended(opened.name, work.count, {number: tuple(found) for number, found in work.ranges.items()})


def _reader(table: Any) -> Any:
    pa = pyarrow()
    if isinstance(table, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(table.schema, [table])
    if isinstance(table, pa.RecordBatchReader):
        return table
    if hasattr(table, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(table)
    if hasattr(table, "__arrow_c_array__"):
        return _reader(pa.record_batch(table))
    raise TypeError(f"a table is something that Arrow can read, not {type(table).__name__}")


def _check_names(schema: pa.Schema) -> None:
    names: list[str] = schema.names
    for name in names:
        if name not in _WANTED and name not in _IGNORED:
            raise no_column(name, _WANTED)
    if "value" not in names:
        raise InvalidSetting("the table has no column 'value'", hint="rename one, or make one of the others")
    if len(set(names)) < len(names):
        raise InvalidSetting(f"two columns have the same name: {', '.join(names)}")


class _Rows(NamedTuple):
    """The columns of one record batch, as the kernel reads them."""

    rows: int
    value: BinaryColumn
    key: BinaryColumn | None
    timestamps: NumberColumn | None
    headers: HeadersColumn | None
    partitions: NumberColumn | None
    keyless: int  # the first row without a key; -1: none is

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> _Rows:
        has = {name: batch.column(name) for name in batch.schema.names}
        return cls(
            batch.num_rows,
            _binary(has["value"], "value"),
            _binary(has["key"], "key") if "key" in has else None,
            _timestamps(has["timestamp"]) if "timestamp" in has else None,
            _headers(has["headers"]) if "headers" in has else None,
            _numbers(has["partition"], "partition") if "partition" in has else None,
            _first_null(has["key"]) if "key" in has else 0 if batch.num_rows else -1,
        )


def _first_null(array: Any) -> int:
    if not array.null_count:
        return -1
    import pyarrow.compute as pc

    return int(pc.index(array.is_null(), True).as_py())


def _binary(array: Any, what: str) -> BinaryColumn:
    """Plain binary and strings as they lie; other kinds of them made so."""
    pa = pyarrow()
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    if kind not in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()):
        views = (getattr(pa, name)() for name in ("binary_view", "string_view") if hasattr(pa, name))
        if not (pa.types.is_fixed_size_binary(kind) or pa.types.is_null(kind) or kind in tuple(views)):
            raise TypeError(f"column {what!r} is {kind}, want binary or string")
        array = array.cast(pa.large_string() if str(kind) == "string_view" else pa.large_binary())
        kind = array.type
    validity, offsets, data = array.buffers()
    large = kind in (pa.large_binary(), pa.large_string())
    return BinaryColumn(len(array), validity, offsets or b"", data, start=array.offset, large=large)


def _numbers(array: Any, what: str) -> NumberColumn:
    pa = pyarrow()
    if not (pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
        raise TypeError(f"column {what!r} is {array.type}, want whole numbers")
    return _int64(array.cast(pa.int64()), what)


def _timestamps(array: Any) -> NumberColumn:
    pa = pyarrow()
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", array.type.tz), safe=False).view(pa.int64())  # without a zone: UTC
    return _numbers(array, "timestamp")


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
        raise TypeError(f"column 'headers' is {array.type}, want {wanted}") from None
    validity, starts = array.buffers()[:2]
    pairs = array.values
    if pairs.null_count:
        raise ValueError("column 'headers': a header is null")
    names, values = _binary(pairs.field(0), "headers"), _binary(pairs.field(1), "headers")
    return HeadersColumn(len(array), validity, starts or b"", names, values, start=array.offset)


class _Work:
    """What one call has appended so far, and the batches it is filling."""

    def __init__(self, opened: OpenTopic, codec: int, level: int | None, partition: int | None) -> None:
        self._opened = opened
        self._codec = codec
        self._level = level
        self._fixed = None if partition is None else opened.partition(partition).number
        self._limit = max(opened.topic.settings.max_message_bytes, _SMALLEST_LIMIT)
        self._keyed = "compact" in opened.topic.settings.cleanup_policy
        self._builders: dict[int, Builder] = {}
        self._sticky = 0
        self._rows = 0
        self.count = 0
        self.ranges: dict[int, list[range]] = {}

    def take(self, rows: _Rows, timestamp: int) -> None:
        """Encode all rows of one record batch, and commit the batches that are full."""
        large = too_large(rows.value, rows.key, rows.headers, limit=self._limit)
        end = rows.rows if large < 0 else large
        keyless = self._keyed and 0 <= rows.keyless < end
        if keyless:
            end = rows.keyless
        together = self._fixed is not None or self._opened.count == 1 or rows.key is None
        if together and rows.partitions is None:
            self._fill(rows, 0, end, None, timestamp, self._fixed)
        else:
            for start in range(0, end, _CHUNK_ROWS):
                self._fill_by_partition(rows, start, min(start + _CHUNK_ROWS, end), timestamp)
                if sum(builder.size for builder in self._builders.values()) > _OPEN_BYTES:
                    self.commit_all()
        self._rows += end
        if keyless:
            raise InvalidRecord(
                f"{self._opened.name}: row {self._rows} has no key, and the topic is compacted",
                hint="give it a key: compaction keeps the latest record of each",
            )
        if large >= 0:
            raise RecordTooLarge(
                f"{self._opened.name}: row {self._rows} does not fit a batch of at most {self._limit} bytes",
                hint="send smaller records, or raise the topic's max.message.bytes",
            )

    def _fill_by_partition(self, rows: _Rows, start: int, stop: int, timestamp: int) -> None:
        key, rest = (rows.key, self._sticky) if self._fixed is None else (None, self._fixed)
        selection, starts = partition_rows(start, stop, key, rows.partitions, self._opened.count, rest)
        for number in range(self._opened.count):
            if starts[number] < starts[number + 1]:
                self._fill(rows, starts[number], starts[number + 1], selection, timestamp, number)

    def _fill(
        self, rows: _Rows, start: int, stop: int, selection: memoryview | None, timestamp: int, number: int | None
    ) -> None:
        """Rows, or selected rows, into batches of partition `number`; None: of the sticky one."""
        while start < stop:
            target = self._sticky if number is None else number
            builder = self._builders.get(target)
            if builder is None:
                builder = self._builders[target] = Builder(self._limit)
            start = encode_columns(
                builder, start, stop, rows.value, rows.key, rows.timestamps, rows.headers, selection, timestamp
            )
            if start < stop:
                self._commit(target, builder)

    def _commit(self, number: int, builder: Builder) -> None:
        batch = builder.seal(self._codec, self._level)
        if self._codec and len(batch) > builder.size:
            batch = builder.seal()  # compression made it larger, and it might not fit any more
        first = self._opened.partition(number).append(batch)
        after = first + builder.count
        builder.clear()
        self.count += after - first
        found = self.ranges.setdefault(number, [])
        if found and found[-1].stop == first:
            found[-1] = range(found[-1].start, after)
        else:
            found.append(range(first, after))
        if number == self._sticky:
            self._sticky = (number + 1) % self._opened.count

    def commit_all(self) -> None:
        """Commit what is in open batches."""
        for number, builder in self._builders.items():
            if builder.count:
                self._commit(number, builder)

    def sync(self) -> None:
        """Wait until all that was appended is on disk."""
        for number, found in self.ranges.items():
            self._opened.partition(number).sync(found[-1].stop)
