"""A topic, or a part of it, as a stream of Arrow record batches.

A Scan is lazy: it knows what to read, and reads when a stream is requested. Each stream starts again, with the ends
of the log as they are then, and holds one record batch and one piece of the log at a time, however long the log is.
Partitions come one after the other, each in the order of its offsets.

Because a Scan has `__arrow_c_stream__`, whatever reads Arrow reads it:

    orders = store.scan("orders", start="1h")
    duckdb.sql("select key, count(*) from orders group by key")     # by the name of the variable
    orders.to_polars()              # or to_pandas(), or to_table() of pyarrow
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import TYPE_CHECKING, Any

from klamm.arrow import frames
from klamm.arrow.schema import chosen, pyarrow, schema_of
from klamm.batch import Columns
from klamm.errors import CorruptBatch, Forked, InvalidSetting
from klamm.log.reader import reads_committed
from klamm.store.handle import StoreHandle
from klamm.where import Where, fixed, range_in

if TYPE_CHECKING:
    import pyarrow as pa

    from klamm.choices import Column, Isolation
    from klamm.log.partition import Partition
    from klamm.store.directory import OpenTopic
    from klamm.where import WhereLike

__all__ = ["Scan"]

BATCH_ROWS = 32_768  # so that a batch is still in the CPU's cache when its consumer looks at it
_TABLE_ROWS = 131_072  # of a table's batches, which stay in memory anyway: fewer and larger page faults
BATCH_BYTES = 16 << 20
_READ_BYTES = 4 << 20
_MAX_ROWS = 1 << 24
_MAX_BYTES = 1 << 30

# What the kernel calls them.
_GATHERED = {"timestampType": "timestamp_type"}
_CONSTANT = {"topic", "partition"}


class Scan(StoreHandle, by="store.scan(…)", of=FunctionType):
    """A topic, or a part of it, to be read. Made by `store.scan`."""

    def __init__(
        self,
        open_topic: Callable[[], OpenTopic],
        *,
        partitions: int | Iterable[int] | None = None,
        start: WhereLike = "earliest",
        end: WhereLike = "latest",
        columns: Column | Iterable[Column] | None = None,
        isolation: Isolation = "read_committed",
        batch_rows: int | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        """Prepare a scan. `open_topic` returns the topic as it is when a stream begins."""
        pyarrow()
        if batch_rows is not None and not 1 <= batch_rows <= _MAX_ROWS:
            raise InvalidSetting(f"batch_rows: {batch_rows} is invalid", hint=f"expected 1 to {_MAX_ROWS}")
        if not 1 <= batch_bytes <= _MAX_BYTES:
            raise InvalidSetting(f"batch_bytes: {batch_bytes} is invalid", hint=f"expected 1 to {_MAX_BYTES}")
        self._open_topic = open_topic
        self._partitions = None if partitions is None else _numbers(partitions)
        self._start = Where(start, name="start")
        self._end = Where(end, name="end")
        self._columns = chosen(columns)
        self._committed = reads_committed(isolation)
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._topic = open_topic().name
        self._opened()  # raise now for a missing partition, not when the stream is read

    def __repr__(self) -> str:
        return f"<Scan {self._topic}: {', '.join(self._columns)}>"

    @property
    def schema(self) -> pa.Schema:
        """Arrow's schema of the stream."""
        return schema_of(self._columns)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return a new stream, for Arrow's PyCapsule interface."""
        stream: Any = self.reader()
        return stream.__arrow_c_stream__(requested_schema)

    def reader(self) -> pa.RecordBatchReader:
        """Return a new stream, as a pyarrow.RecordBatchReader."""
        reader: pa.RecordBatchReader = pyarrow().RecordBatchReader.from_batches(self.schema, self.batches())
        return reader

    def to_table(self) -> pa.Table:
        """Return everything as one table, in memory."""
        batches = list(self._stream(self._batch_rows or _TABLE_ROWS))
        table: pa.Table = pyarrow().Table.from_batches(batches, self.schema)
        return table

    def to_pandas(self) -> Any:
        """Return everything as a pandas.DataFrame."""
        return frames.to_pandas(self.to_table())

    def to_polars(self) -> Any:
        """Return everything as a polars.DataFrame."""
        return frames.to_polars(self.to_table())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return a new stream, as an iterator of record batches; none is empty."""
        return self._stream(self._batch_rows or BATCH_ROWS)

    def _stream(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        assemble = _Assembly(self._topic, self._columns, batch_rows, self.schema)
        opened = self._opened()
        # All ends are looked at before the first record is read: the stream is of one moment.
        start, end = (fixed(where, opened[0].now_ms()) for where in (self._start, self._end))
        ranges = [(each, range_in(each, start, end, committed=self._committed)) for each in opened]
        columns = Columns(assemble.gathered, max_rows=batch_rows, max_bytes=self._batch_bytes)
        for partition, offsets in ranges:
            if offsets:
                for _ in _fill(columns, partition, offsets, self._committed):
                    yield assemble(partition.number, *columns.finish())

    def _opened(self) -> list[Partition]:
        opened = self._open_topic()
        if self._partitions is None:
            return opened.partitions()
        return [opened.partition(number) for number in self._partitions]


def _numbers(partitions: int | Iterable[int]) -> list[int]:
    """Return the partitions, each once."""
    numbers = [partitions] if isinstance(partitions, int) else [*partitions]
    for number in numbers:
        if type(number) is not int:  # nor bool
            raise TypeError(f"partitions: {number!r} is invalid: expected an int")
    return list(dict.fromkeys(numbers))


def _fill(columns: Columns, partition: Partition, offsets: range, committed: bool) -> Iterator[None]:
    """Fill `columns` repeatedly; the caller empties it each time before it continues."""
    position = offsets.start
    for data, after in _pieces(partition, offsets, committed):
        while data and position < after:
            try:
                columns.add(data, position, offsets.stop)
            except CorruptBatch as error:
                raise _placed(error, partition) from None
            position = after  # records missing at the end are aborted or compacted
            if columns.full:
                position = columns.next_offset
                yield
    if columns.rows:
        yield


def _pieces(partition: Partition, offsets: range, committed: bool) -> Iterator[tuple[memoryview, int]]:
    """Yield pieces of the log and where each ends. From the second on, the next one is read ahead."""
    process = os.getpid()

    def read() -> tuple[memoryview, int]:
        data = reader.read(_READ_BYTES)
        return data, min(reader.offset, offsets.stop) if data else offsets.stop

    with partition.reader(offsets.start, committed=committed) as reader:
        data, after = read()
        yield data, after
        if after >= offsets.stop:
            return
        with ThreadPoolExecutor(1, thread_name_prefix="klamm-scan") as ahead:
            coming = ahead.submit(read)
            while after < offsets.stop:
                if os.getpid() != process:
                    raise Forked(
                        f"{partition.topic}: a scan that was begun before a fork",
                        hint="start the scan again in this process",
                    )
                data, after = coming.result()
                if after < offsets.stop:
                    coming = ahead.submit(read)
                yield data, after


def _placed(error: CorruptBatch, partition: Partition) -> CorruptBatch:
    return CorruptBatch(
        f"{partition.topic}/{partition.number}: {error.message}",
        path=partition.directory,
        next_offset=error.next_offset,
        hint="run `check(repair=True)` on the store, or scan up to the batch and from next_offset on",
    )


class _Assembly:
    """Builds record batches from the kernel's buffers, without a copy."""

    def __init__(self, topic: str, columns: tuple[str, ...], rows: int, schema: pa.Schema) -> None:
        self._columns = columns
        self._schema = schema
        self._rows = rows
        self._topic = topic
        self._pa = pyarrow()
        self._constant: dict[str, tuple[str | int, Any]] = {}
        self.gathered = [_GATHERED.get(name, name) for name in columns if name not in _CONSTANT]

    def __call__(self, partition: int, rows: int, buffers: dict[str, Any]) -> pa.RecordBatch:
        arrays = [self._array(name, partition, rows, buffers) for name in self._columns]
        batch: pa.RecordBatch = self._pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return batch

    def _array(self, name: str, partition: int, rows: int, buffers: dict[str, Any]) -> Any:
        if name in _CONSTANT:
            return self._repeated(name, self._topic if name == "topic" else partition, rows)
        pa = self._pa
        kind = self._schema.field(name).type
        given = buffers[_GATHERED.get(name, name)]
        if name in ("key", "value"):
            return self._strings(kind, rows, given)
        if name == "headers":
            starts, count, names, values = given
            pair = kind.value_type
            children = [
                self._strings(pair.field(0).type, count, names),
                self._strings(pair.field(1).type, count, values),
            ]
            pairs = pa.Array.from_buffers(pair, count, [None], 0, 0, children)
            return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(starts)], 0, 0, [pairs])
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(given)], 0)

    def _strings(self, kind: pa.DataType, rows: int, given: tuple[Any, ...]) -> Any:
        nulls, validity, offsets, data = given
        buffer = self._pa.py_buffer
        held = [None if validity is None else buffer(validity), buffer(offsets), buffer(data)]
        return self._pa.Array.from_buffers(kind, rows, held, nulls)

    def _repeated(self, name: str, value: str | int, rows: int) -> Any:
        """Return an array of one repeated value, shared by all batches: each gets a slice."""
        known = self._constant.get(name)
        if known is None or known[0] != value or len(known[1]) < rows:
            scalar = _scalar(self._pa, value, self._schema.field(name).type)
            known = self._constant[name] = (value, self._pa.repeat(scalar, min(self._rows, 2 * rows)))
        return known[1].slice(0, rows)


def _scalar(pa: Any, value: str | int, kind: pa.DataType) -> Any:
    """Return `value` as an Arrow scalar. pyarrow.scalar() would import pandas, where it is installed: half a second."""
    if isinstance(value, int):
        held = [None, pa.py_buffer(struct.pack("=i", value))]
    else:
        data = value.encode()
        held = [None, pa.py_buffer(struct.pack("=ii", 0, len(data))), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, 1, held)[0]
