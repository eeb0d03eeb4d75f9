from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import Columns, crc32c, decode
from klamm.batch._kernel import COLUMNS
from klamm.errors import CorruptBatch
from tests.batch.strategies import Record, batch_of, codecs, log_of, record_lists


def strings(kind: pa.DataType, rows: int, given_: tuple[Any, ...]) -> pa.Array:
    nulls, validity, offsets, data = given_
    buffers = [None if validity is None else pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, rows, buffers, nulls)


def table(finished: tuple[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """The buffers as Arrow sees them, checked in full, as rows."""
    rows, buffers = finished
    arrays: dict[str, pa.Array] = {}
    for name, given_ in buffers.items():
        if name in ("key", "value"):
            arrays[name] = strings(pa.binary(), rows, given_)
        elif name == "headers":
            starts, count, names, values = given_
            pairs = pa.StructArray.from_arrays(
                [strings(pa.string(), count, names), strings(pa.binary(), count, values)], ["key", "value"]
            )
            kind: pa.DataType = pa.list_(pairs.type)
            arrays[name] = pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(starts)], 0, 0, [pairs])
        else:
            kind = pa.int64() if name in ("offset", "timestamp") else pa.int32()
            arrays[name] = pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(given_)], 0)
    for array in arrays.values():
        array.validate(full=True)
    return pa.table(arrays).to_pylist() if arrays else [{}] * rows


def expected(data: bytes, names: Any = COLUMNS, start: int = 0, end_offset: int = 1 << 62) -> list[dict[str, Any]]:
    rows = [
        {
            "offset": r.offset,
            "timestamp": r.timestamp,
            "timestamp_type": 0,
            "leader_epoch": 0,
            "key": r.key,
            "value": r.value,
            "headers": [{"key": name, "value": value} for name, value in r.headers],
        }
        for r in decode(data, from_offset=start)
        if r.offset < end_offset
    ]
    return [{name: row[name] for name in row if name in names} for row in rows]


@given(
    record_lists,
    codecs,
    record_lists,
    codecs,
    st.sets(st.sampled_from(sorted(COLUMNS))),
    st.integers(0, 25),
    st.integers(0, 25),
)
def test_columns_hold_what_decode_gives(
    one: list[Record], codec: int, two: list[Record], other: int, names: set[str], start: int, end_offset: int
) -> None:
    log = log_of((one, codec), (two, other))
    columns = Columns(names)
    want = expected(log, names, start, end_offset)
    assert columns.add(log, start, end_offset) == len(want) == columns.rows
    got = table(columns.finish())
    assert got == want
    assert columns.rows == 0


@given(st.lists(record_lists, min_size=1, max_size=4), codecs, st.integers(1, 9), st.integers(1, 400))
def test_bounds_cut_the_rows_anywhere_and_lose_none(
    runs: list[list[Record]], codec: int, max_rows: int, max_bytes: int
) -> None:
    log = log_of(*((run, codec) for run in runs))
    columns = Columns(max_rows=max_rows, max_bytes=max_bytes)
    got: list[dict[str, Any]] = []
    offset = 0
    while True:
        columns.add(log, offset)
        offset = columns.next_offset
        full = columns.full
        assert columns.rows <= max_rows
        assert columns.bytes <= max_bytes + 1000
        got += table(columns.finish())
        if not full:
            break
    assert got == expected(log)
    assert offset == sum(map(len, runs))


@given(st.lists(record_lists, min_size=1, max_size=5))
def test_batches_added_one_by_one_make_one_run_of_rows(runs: list[list[Record]]) -> None:
    columns = Columns()
    log, offset = b"", 0
    for run in runs:
        batch = batch_of(run, 0, offset)
        offset += len(run)
        log += batch
        assert columns.add(batch) == len(run)
    assert table(columns.finish()) == expected(log)


def test_thousands_of_rows_with_rare_nulls_and_headers_grow_every_buffer() -> None:
    records: list[Record] = [
        (
            None if n % 1000 == 999 else b"%d" % n,
            None if n % 777 == 776 else b"v" * (n % 50),
            (("h", None), ("é" * (n % 5), b"x" * (n % 7))) if n % 100 == 50 else (),
            n,
        )
        for n in range(5000)
    ]
    log = log_of(*((records[start : start + 300], 0) for start in range(0, 5000, 300)))
    columns = Columns()
    columns.add(log)
    held = columns.finish()
    columns.add(log)
    again = columns.finish()
    assert table(held) == table(again) == expected(log)


def test_control_batches_are_skipped_and_passed() -> None:
    marker = batch_of([(b"\0\0\0\1", b"\0\0\0\0\0\0", (), 1)], base_offset=1, attributes=0x30)
    columns = Columns()
    assert columns.add(batch_of([(None, b"a", (), 1)]) + marker) == 1
    assert columns.next_offset == 2


def test_log_append_time_is_told_by_the_type() -> None:
    batch = bytearray(batch_of([(None, b"a", (), 5)]))
    struct.pack_into(">h", batch, 21, 8)
    struct.pack_into(">q", batch, 35, 999)
    columns = Columns({"timestamp", "timestamp_type"})
    columns.add(batch)
    assert table(columns.finish()) == [{"timestamp": 999, "timestamp_type": 1}]


def test_a_bad_batch_takes_back_its_own_rows_and_keeps_those_before() -> None:
    good = batch_of([(b"a", b"1", (("h", b"x"),), 1), (None, b"2", (), 2)])
    bad = bytearray(batch_of([(None, b"3", (("i", None),), 3), (None, None, (), 4), (b"k", b"5", (), 5)], 0, 2))
    bad[-1] = 9  # three headers of which nothing is there
    struct.pack_into(">I", bad, 17, crc32c(bad[21:]))
    after = batch_of([(b"c", b"6", (("j", b"y"),), 6)], base_offset=5)
    columns = Columns()
    with pytest.raises(CorruptBatch, match="record 2") as caught:
        columns.add(good + bad + after)
    assert (caught.value.position, caught.value.next_offset) == (len(good), 5)
    assert (columns.rows, columns.next_offset) == (2, 2)
    columns.add(after, 5)
    assert table(columns.finish()) == expected(good + after)


@given(st.binary(max_size=12))
def test_a_header_name_reads_the_same_as_in_decode_whatever_its_bytes(name: bytes) -> None:
    placeholder = "x" * len(name)
    batch = batch_of([(b"k", b"v", ((placeholder, b"1"), ("next", b"2")), 1)])
    position = batch.index(b"1") - 1 - len(name)
    batch = batch[:position] + name + batch[position + len(name) :]
    columns = Columns({"headers"})
    columns.add(batch)
    assert table(columns.finish()) == expected(batch, {"headers"})
    assert next(iter(decode(batch)[0].headers))[0] == name.decode(errors="replace")


def test_a_column_or_bound_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="no column 'price'"):
        Columns({"price"})
    for bounds in ({"max_rows": 0}, {"max_bytes": 0}, {"max_bytes": 1 << 31}):
        with pytest.raises(ValueError, match="max_"):
            Columns(**bounds)  # type: ignore[arg-type]
