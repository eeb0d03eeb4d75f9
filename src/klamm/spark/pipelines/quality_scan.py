"""Count, in a task, what quality_report.py reports of the records: partial sums, which Spark adds up.

    kind "rows"     of a partition and an hour: records, first and last offset, oldest and latest timestamp, …
    kind "run"      of a partition: offsets that follow on, from `first` up to but without `last`
    kind "size"     so many values (`records`) of so many bytes (`bytes`)
    kind "field"    of an hour: so many records have that field, with that type

A task keeps no more than some thousands of them, and hands on what it has when there are more: whatever field names
there are, memory is bounded.

JSON is what parses and is an object or an array; `broken` is what begins like one and does not parse. Fields are named
by their path, to a depth of three, with dots between names; a name that has a dot itself is put in backticks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DEPTH", "HOUR_MS", "SCHEMA", "count", "field_types", "none", "parsed"]

DEPTH = 3
HOUR_MS = 3_600_000
SCHEMA = """
    kind STRING, partition INT, hour LONG, path STRING, type STRING, records LONG, first LONG, last LONG,
    oldest LONG, latest LONG, null_keys LONG, tombstones LONG, bytes LONG, json LONG, broken LONG
"""
_COLUMNS = [each.split()[0] for each in SCHEMA.split(",")]
_STRINGS = ("kind", "path", "type")
_MOST = 20_000
_LONGEST = 200


def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield partial sums of what is read, with the columns of SCHEMA."""
    fields: Counter[tuple[int | None, str, str]] = Counter()
    sizes: Counter[int] = Counter()
    for batch in batches:
        if batch.num_rows:
            yield from _sums_of_batch(batch, fields, sizes)
        if len(fields) + len(sizes) > _MOST:
            yield from _handed_on(fields, sizes)
    yield from _handed_on(fields, sizes)


def none() -> pa.RecordBatch:
    """Return no sums, with their columns."""
    return _made(0)


def _handed_on(fields: Counter[tuple[int | None, str, str]], sizes: Counter[int]) -> Iterator[pa.RecordBatch]:
    if sizes:
        yield _made(len(sizes), kind="size", bytes=list(sizes), records=list(sizes.values()))
    if fields:
        hours, paths, types = zip(*fields, strict=True)
        yield _made(len(fields), kind="field", hour=hours, path=paths, type=types, records=list(fields.values()))
    sizes.clear()
    fields.clear()


def _made(rows: int, **columns: Any) -> pa.RecordBatch:
    import pyarrow as pa

    arrays: list[Any] = []
    for name in _COLUMNS:
        kind: Any = pa.string() if name in _STRINGS else pa.int32() if name == "partition" else pa.int64()
        value = columns.get(name)
        arrays.append(
            pa.repeat(pa.scalar(value, kind), rows)
            if value is None or isinstance(value, str)
            else pa.array(value, kind)
        )
    return pa.RecordBatch.from_arrays(arrays, names=_COLUMNS)


def _sums_of_batch(
    batch: pa.RecordBatch, fields: Counter[tuple[int | None, str, str]], sizes: Counter[int]
) -> Iterator[pa.RecordBatch]:
    import numpy as np
    from pyarrow import compute, int64

    functions: Any = compute
    partitions = batch.column("partition").to_numpy(zero_copy_only=False)
    offsets = batch.column("offset").to_numpy(zero_copy_only=False)
    times: Any = batch.column("timestamp").cast(int64())
    times = np.floor_divide(times.to_numpy(zero_copy_only=False), 1000)
    hours = np.floor_divide(times, HOUR_MS)
    values: Any = batch.column("value")
    lengths = functions.binary_length(values)
    sizes.update(lengths.drop_null().to_pylist())
    null_key = functions.is_null(batch.column("key")).to_numpy(zero_copy_only=False)
    tombstone = functions.is_null(values).to_numpy(zero_copy_only=False)
    length = functions.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
    is_json, is_broken = _find_json(values, hours, times, fields)

    follows = (np.diff(offsets) == 1) & (np.diff(partitions) == 0)
    starts = np.concatenate(([0], np.flatnonzero(~follows) + 1))
    ends = np.concatenate((starts[1:], [len(offsets)]))
    yield _made(
        len(starts), kind="run", partition=partitions[starts], first=offsets[starts], last=offsets[ends - 1] + 1
    )
    columns: dict[str, list[int | None]] = {name: [] for name in _COLUMNS if name not in _STRINGS}
    for partition, hour in sorted({(int(p), int(h)) for p, h in zip(partitions, hours, strict=True)}):
        mine = (partitions == partition) & (hours == hour)
        sums = (
            partition,
            hour if hour >= 0 else None,
            mine.sum(),
            offsets[mine].min(),
            offsets[mine].max(),
            times[mine].min() if hour >= 0 else None,
            times[mine].max() if hour >= 0 else None,
            null_key[mine].sum(),
            tombstone[mine].sum(),
            length[mine].sum(),
            is_json[mine].sum(),
            is_broken[mine].sum(),
        )
        for name, value in zip(columns, sums, strict=True):
            columns[name].append(None if value is None else int(value))
    yield _made(len(columns["hour"]), kind="rows", **columns)


def _find_json(values: Any, hours: Any, times: Any, fields: Counter[tuple[int | None, str, str]]) -> tuple[Any, Any]:
    """Return which values are JSON, and which are broken; count their fields."""
    import numpy as np

    good, broken = np.zeros(len(values), bool), np.zeros(len(values), bool)
    for number, value in enumerate(values.to_pylist()):
        if value is None or not begins_like_json(value):
            continue
        found = parsed(value)
        good[number], broken[number] = found is not None, found is None
        if isinstance(found, dict):
            hour = int(hours[number]) if hours[number] >= 0 else None
            fields.update((hour, path, kind) for path, kind in set(field_types(found)))
    return good, broken


def begins_like_json(value: bytes) -> bool:
    return value[:1] in (b"{", b"[") or value[:64].lstrip()[:1] in (b"{", b"[")


def parsed(value: bytes) -> Any:
    """Return the object or array; None if it does not parse. NaN and Infinity are not JSON."""
    try:
        return json.loads(value, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def field_types(given: dict[str, Any], before: str = "", depth: int = 1) -> Iterator[tuple[str, str]]:
    """Yield path and type of each field."""
    for name, value in given.items():
        path = before + _spelled(name)
        yield path, _type(value)
        if isinstance(value, dict) and depth < DEPTH:
            yield from field_types(value, path + ".", depth + 1)


def _spelled(name: str) -> str:
    name = name.encode("utf-8", "backslashreplace").decode()  # half of a surrogate pair is not text for Spark
    name = name if len(name) <= _LONGEST else name[:_LONGEST] + "…"
    return f"`{name}`" if "." in name or not name else name


def _type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"
