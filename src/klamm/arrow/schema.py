"""The columns of records, named and typed as in Spark's Kafka source.

key, value      binary                        null: no key; a tombstone
topic           string
partition       int32
offset          int64
timestamp       timestamp[ms, UTC]
timestampType   int32                         0: set by the producer, 1: when it was appended
headers         list<struct<key: string, value: binary>>
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from klamm.choices import Column, options_of
from klamm.errors import InvalidSetting, NotInstalled

if TYPE_CHECKING:
    from pyarrow import Schema

__all__ = ["COLUMNS", "chosen", "no_column", "pyarrow", "schema_of"]

COLUMNS: tuple[str, ...] = options_of(Column)


def pyarrow() -> Any:
    """Return the package, or raise an error that says how to install it."""
    try:
        import pyarrow
    except ImportError:
        raise NotInstalled.package("pyarrow", "'klamm[arrow]'") from None
    return pyarrow


def chosen(columns: Iterable[str] | None) -> tuple[str, ...]:
    """Return the columns that were requested, in that order; None: all."""
    if columns is None:
        return COLUMNS
    if isinstance(columns, str):
        columns = [columns]
    names = tuple(columns)
    for name in names:
        if name not in COLUMNS:
            raise no_column(name)
    if len(set(names)) < len(names) or not names:
        raise InvalidSetting(
            f"columns are {', '.join(names) or 'none'}", hint="expected each at most once, and one at least"
        )
    return names


def no_column(name: object, known: Sequence[str] = COLUMNS) -> InvalidSetting:
    """Return the error for a column that does not exist."""
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    return InvalidSetting(f"there is no column {name!r}", hint=hint)


def schema_of(columns: Iterable[str]) -> Schema:
    """Return Arrow's schema of these columns."""
    pa = pyarrow()
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("ms", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    }
    nullable = {"key", "value"}
    made: Schema = pa.schema([pa.field(name, types[name], name in nullable) for name in columns])
    return made
