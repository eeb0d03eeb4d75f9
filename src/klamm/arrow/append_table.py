"""Arrow -> records: a table, or a stream of record batches of any length, appended to a topic.

    value      binary or string                 needed; null is a tombstone
    key        binary or string                 null, or no such column: no key
    timestamp  timestamp, or milliseconds       null, or no such column: the time of the call
    headers    list of (key, value) structs, or a map of string to binary
    partition  whole numbers                    null, or no such column: by key, else sticky

The columns `topic`, `offset` and `timestampType` of a scan are ignored. Any other column is an error: it may be one of
the above with a misspelled name.

Bytes go from Arrow's buffers into batches without becoming Python objects. Rows of a partition keep their order. If
a row is invalid, the rows before it are appended, none after it is, and the error names the row. If a whole column is
invalid, nothing of its record batch is appended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.arrow.encoding import Encoder, Rows, Shape
from klamm.arrow.schema import no_column, pyarrow
from klamm.errors import InvalidRecord, InvalidSetting, RecordTooLarge, UnknownTopic
from klamm.types import Appended

if TYPE_CHECKING:
    import pyarrow as pa

    from klamm.store.directory import OpenTopic

__all__ = ["append_table"]

_WANTED = ("value", "key", "timestamp", "headers", "partition")
_IGNORED = frozenset({"topic", "offset", "timestampType"})


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
    """Append the rows of `table`, and return their ranges of offsets.

    `table` is a pyarrow table, record batch or reader, or anything with Arrow's `__arrow_c_stream__` or
    `__arrow_c_array__`: a Polars or pandas frame, a DuckDB relation, a scan. `partition` and `timestamp` are for rows
    without their own. `durable`: return when everything is on disk.
    """
    reader = _reader(table)
    _check_names(reader.schema)
    work = _Work(opened, codec, level, partition)
    refused: Exception | None = None
    try:
        for batch in reader:
            work.take(Rows.of(batch), timestamp)
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


class _Work:
    """The appends of one call so far."""

    def __init__(self, opened: OpenTopic, codec: int, level: int | None, partition: int | None) -> None:
        self._opened = opened
        settings = opened.topic.settings
        self._encoder = Encoder(
            Shape(opened.name, opened.count, settings.max_message_bytes, "compact" in settings.cleanup_policy),
            self._append,
            codec=codec,
            level=level,
            partition=None if partition is None else opened.partition(partition).number,
        )
        self.commit_all = self._encoder.give_all
        self.count = 0
        self.ranges: dict[int, list[range]] = {}

    def take(self, rows: Rows, timestamp: int) -> None:
        self._encoder.take(rows, timestamp, self._opened.partition(0).timestamp_bounds())

    def _append(self, number: int, batch: memoryview, count: int) -> None:
        first = self._opened.partition(number).append(batch)
        after = first + count
        self.count += count
        found = self.ranges.setdefault(number, [])
        if found and found[-1].stop == first:
            found[-1] = range(found[-1].start, after)
        else:
            found.append(range(first, after))

    def sync(self) -> None:
        """Wait until everything that was appended is on disk."""
        for number, found in self.ranges.items():
            self._opened.partition(number).sync(found[-1].stop)
