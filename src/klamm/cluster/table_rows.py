"""The rows of an Arrow table as records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from klamm.arrow.schema import pyarrow
from klamm.errors import InvalidRecord, InvalidSetting

__all__ = ["rows_of"]

_COLUMNS = ("value", "key", "timestamp", "headers", "partition")


def rows_of(table: Any) -> Iterator[tuple[int | None, tuple[Any, Any, Any, Any]]]:
    """Yield the partition of each row, if it says one, and its key, value, headers and timestamp."""
    pa = pyarrow()
    reader = pa.RecordBatchReader.from_stream(table)
    names = [name for name in _COLUMNS if name in reader.schema.names]
    if "value" not in names:
        raise InvalidRecord("append_table: there is no column `value`", hint=f"columns: {', '.join(_COLUMNS)}")
    for batch in reader:
        columns = {name: _plain(batch.column(name), name, pa) for name in names}
        for row in range(batch.num_rows):
            given = {name: values[row] for name, values in columns.items()}
            headers = given.get("headers")
            pairs = None if headers is None else [(each["key"], each["value"]) for each in headers]
            yield given.get("partition"), (given.get("key"), given["value"], pairs, given.get("timestamp"))


def _plain(column: Any, name: str, pa: Any) -> list[Any]:
    kind = column.type
    if name == "timestamp" and pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("ms", kind.tz)).cast(pa.int64())
    elif name in ("key", "value"):
        if not any(
            test(kind)
            for test in (
                pa.types.is_binary,
                pa.types.is_large_binary,
                pa.types.is_string,
                pa.types.is_large_string,
                pa.types.is_null,
            )
        ):
            raise InvalidSetting(f"append_table: column {name} is {kind}; expected binary or text")
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            column = column.cast(pa.binary())
    values: list[Any] = column.to_pylist()
    return values
