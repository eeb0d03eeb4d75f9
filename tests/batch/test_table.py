"""Arrow columns -> batches."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import (
    BinaryColumn,
    Builder,
    HeadersColumn,
    NumberColumn,
    decode,
    digest_rows,
    encode_columns,
    encode_one,
    parse,
    partition_for,
    partition_rows,
    too_large,
    verify,
)
from klamm.errors import RecordTooLarge, UnknownTopic
from tests.batch.strategies import Record, header_lists, payloads, timestamps

rows_of = st.lists(st.tuples(payloads, payloads, header_lists, st.none() | timestamps), max_size=30)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def binary(array: pa.Array, *, large: bool = False) -> BinaryColumn:
    validity, offsets, data = array.buffers()
    assert offsets is not None
    return BinaryColumn(len(array), validity, offsets, data, start=array.offset, large=large)


def number_column(array: pa.Array) -> NumberColumn:
    validity, data = array.buffers()
    assert data is not None
    return NumberColumn(len(array), validity, data, start=array.offset)


def headers(array: Any, *, large: bool = False) -> HeadersColumn:
    pairs = array.values
    validity, starts = array.buffers()[:2]
    names, values = binary(pairs.field("key")), binary(pairs.field("value"))
    return HeadersColumn(len(array), validity, starts, names, values, start=array.offset, large=large)


@given(rows_of, st.integers(0, 5), st.booleans(), st.integers(120, 3000))
def test_columns_become_the_records_they_hold(rows: list[tuple[Any, ...]], skip: int, large: bool, limit: int) -> None:
    kind = pa.large_binary() if large else pa.binary()
    keys = pa.array([r[0] for r in rows], kind)[skip:]
    values = pa.array([r[1] for r in rows], kind)[skip:]
    times = pa.array([r[3] for r in rows], pa.int64())[skip:]
    lists = pa.array([[{"key": k, "value": v} for k, v in r[2]] for r in rows], HEADERS)[skip:]
    columns = {
        "value": binary(values, large=large),
        "key": binary(keys, large=large),
        "timestamps": number_column(times),
        "headers": headers(lists),
    }
    got: list[Record] = []
    builder = Builder(limit)
    index, count = 0, len(values)
    try:
        while index < count:
            builder.clear()
            after = encode_columns(builder, index, count, timestamp=42, **columns)  # type: ignore[arg-type]
            assert after > index and builder.size <= limit
            got += [(r.key, r.value, tuple(r.headers), r.timestamp) for r in decode(builder.seal())]
            index = after
    except RecordTooLarge:
        row = rows[skip + index + builder.count]
        with pytest.raises(RecordTooLarge):
            Builder(limit).add(row[0], row[1], row[2], 0)
    else:
        assert got == [(r[0], r[1], r[2], 42 if r[3] is None else r[3]) for r in rows[skip:]]


def test_only_a_value_is_needed() -> None:
    builder = Builder(1000)
    assert encode_columns(builder, 0, 3, binary(pa.array([b"a", None, b""])), timestamp=7) == 3
    assert [(r.key, r.value, tuple(r.headers), r.timestamp) for r in decode(builder.seal())] == [
        (None, b"a", (), 7),
        (None, None, (), 7),
        (None, b"", (), 7),
    ]


@given(rows_of, st.randoms(use_true_random=False), st.integers(0, 30), st.booleans())
def test_records_have_one_digest_in_any_order_and_any_parts_and_others_have_another(
    rows: list[tuple[Any, ...]], dice: random.Random, cut: int, large: bool
) -> None:
    def digest(rows: list[tuple[Any, ...]], seed: int = 7) -> int:
        kind = pa.large_binary() if large else pa.binary()
        return digest_rows(
            binary(pa.array([r[1] for r in rows], kind), large=large),
            binary(pa.array([r[0] for r in rows], kind), large=large),
            number_column(pa.array([r[3] for r in rows], pa.int64())),
            headers(pa.array([[{"key": k, "value": v} for k, v in r[2]] for r in rows], HEADERS)),
            seed,
        )

    total = digest(rows)
    shuffled = dice.sample(rows, len(rows))
    assert digest(shuffled) == total
    assert (digest(shuffled[:cut]) + digest(shuffled[cut:])) % 2**64 == total
    if not rows:
        return
    key, value, pairs, timestamp = rows[0]
    others = [
        (key, (value or b"") + b"!", pairs, timestamp),
        ((key or b"") + b"!", value, pairs, timestamp),
        (key, value, (*pairs, ("more", None)), timestamp),
        (key, value, pairs, (timestamp or 0) + 1),
    ]
    assert len({total, digest(rows, 8), digest(rows[1:]), *(digest([one, *rows[1:]]) for one in others)}) == 7


def test_no_key_is_as_a_null_key_in_a_digest_and_columns_are_of_one_length() -> None:
    values, keys = binary(pa.array([b"a", None])), binary(pa.array([None, None], pa.binary()))
    assert digest_rows(values) == digest_rows(values, keys) != digest_rows(binary(pa.array([b"a", b""])))
    with pytest.raises(ValueError, match="different lengths"):
        digest_rows(values, binary(pa.array([b"k"])))


@given(st.lists(st.none() | st.binary(max_size=5), max_size=50), st.integers(1, 5), st.data())
def test_rows_are_grouped_by_partition_in_order(keys: list[bytes | None], count: int, data: st.DataObject) -> None:
    keyless = data.draw(st.integers(0, count - 1))
    column = binary(pa.array(keys, pa.binary()))
    selection, starts = partition_rows(0, len(keys), column, None, count, keyless)
    got = [list(selection[starts[p] : starts[p + 1]]) for p in range(count)]
    want: list[list[int]] = [[] for _ in range(count)]
    for row, key in enumerate(keys):
        want[keyless if key is None else partition_for(key, count)].append(row)
    assert got == want
    builder = Builder(1 << 20)
    for partition in range(count):
        builder.clear()
        after = encode_columns(builder, starts[partition], starts[partition + 1], column, selection=selection)
        assert after == starts[partition + 1]
        if want[partition]:
            assert [r.value for r in decode(builder.seal())] == [keys[row] for row in want[partition]]


def test_a_given_partition_goes_before_the_key() -> None:
    numbers = number_column(pa.array([2, None, 0, None], pa.int64()))
    keys = binary(pa.array([b"x", b"foobar", b"y", None]))
    selection, starts = partition_rows(0, 4, keys, numbers, 3, 1)
    got = {row: p for p in range(3) for row in selection[starts[p] : starts[p + 1]]}
    assert got == {0: 2, 1: partition_for(b"foobar", 3), 2: 0, 3: 1}
    assert list(partition_rows(0, 4, None, numbers, 3, 1)[0]) == [2, 1, 3, 0]
    part, starts = partition_rows(1, 3, keys, numbers, 3, 1)
    assert sorted(part) == [1, 2] and starts[-1] == 2
    with pytest.raises(IndexError):
        partition_rows(0, 5, keys, None, 3, 1)
    with pytest.raises(UnknownTopic, match="row 0: there is no partition 2"):
        partition_rows(0, 4, keys, numbers, 2, 0)


def test_the_first_row_that_fits_no_batch_is_found() -> None:
    values = binary(pa.array([b"a", b"x" * 50, b"x" * 60]))
    assert [too_large(values, limit=limit) for limit in (65, 100, 125, 1000)] == [0, 1, 2, -1]
    for limit in range(60, 200):
        row = too_large(values, values, limit=limit)
        for number, value in enumerate([b"a", b"x" * 50, b"x" * 60]):
            size = encode_one(bytearray(), value, value)
            assert size <= limit if number < row or row < 0 else number > row or size > limit


def test_a_batch_may_be_filled_by_several_tables() -> None:
    builder = Builder(1000)
    for part in ([b"a", b"b"], [b"c"]):
        encode_columns(builder, 0, len(part), binary(pa.array(part)), timestamp=1)
    builder.add(None, b"d", None, 2)
    assert [(r.offset, r.value) for r in decode(builder.seal())] == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]


def test_buffers_that_lie_are_refused() -> None:
    offsets = struct.pack("=4i", 0, 3, 2, 9)
    with pytest.raises(ValueError, match="offset 2 of row 2 after 3"):
        BinaryColumn(3, None, offsets, b"123456789")
    with pytest.raises(ValueError, match="offset 3 of row 1"):
        BinaryColumn(1, None, offsets, b"12")
    with pytest.raises(ValueError, match="bytes of offsets"):
        BinaryColumn(1000, None, b"\0" * 16, b"")
    with pytest.raises(ValueError, match="bytes of validity"):
        BinaryColumn(9, b"\xff", b"\0" * 40, b"")
    with pytest.raises(ValueError, match="rows from"):
        BinaryColumn(-1, None, b"", None)
    with pytest.raises(ValueError, match="rows from"):
        BinaryColumn(1 << 62, None, b"", None)
    with pytest.raises(ValueError, match="bytes of numbers"):
        NumberColumn(2, None, bytes(8))
    with pytest.raises(ValueError, match="negative"):
        NumberColumn(1, None, b"\xff" * 8)
    one = BinaryColumn(1, None, bytes(8), b"")
    with pytest.raises(ValueError, match="of 1 headers"):
        HeadersColumn(1, None, b"\0\0\0\0\2\0\0\0", one, one)
    with pytest.raises(ValueError, match="name is null"):
        HeadersColumn(1, None, b"\0\0\0\0\1\0\0\0", BinaryColumn(1, b"\0", bytes(8), b""), one)


def test_rows_that_are_not_there_are_refused() -> None:
    column = binary(pa.array([b"a", b"b"]))
    with pytest.raises(IndexError):
        encode_columns(Builder(1000), 0, 3, column)
    with pytest.raises(IndexError):
        encode_columns(Builder(1000), 0, 2, column, selection=pa.array([0, 2], pa.int32()).buffers()[1])
    with pytest.raises(IndexError):
        encode_columns(Builder(1000), 0, 9, column, selection=bytes(16))
    with pytest.raises(ValueError, match="columns of 2 and 1 rows"):
        encode_columns(Builder(1000), 0, 2, column, binary(pa.array([b"a"])))


def numbers(values: list[int]) -> NumberColumn:
    return number_column(pa.array(values, pa.int64()))


@given(st.lists(st.integers(1, 5) | st.integers(1, 1 << 20), min_size=1, max_size=40), st.integers(0, 1 << 50))
def test_records_get_the_offsets_they_are_given_with_gaps_between_them(gaps: list[int], base: int) -> None:
    places = [base + sum(gaps[: n + 1]) - 1 for n in range(len(gaps))]
    builder = Builder(1 << 20)
    column = binary(pa.array([b"%d" % place for place in places]))
    assert encode_columns(builder, 0, len(gaps), column, offsets=numbers(places), base_offset=base) == len(gaps)
    batch = builder.seal()
    patched = bytearray(batch)
    patched[:8] = base.to_bytes(8)  # as an append does
    header = parse(patched)
    assert (header.record_count, header.next_offset) == (len(gaps), places[-1] + 1)
    assert builder.count + builder.skipped == places[-1] + 1 - base
    assert [(each.offset, each.value) for each in decode(patched)] == [(place, b"%d" % place) for place in places]
    assert verify(patched, base, True) == (len(patched), places[-1] + 1)


def test_an_offset_that_does_not_follow_is_refused_and_one_too_far_away_does_not_fit() -> None:
    column = binary(pa.array([b"a", b"b", b"c"]))
    for wrong in ([5, 5, 6], [5, 4, 6], [3, 8, 9]):
        with pytest.raises(ValueError, match="does not follow on"):
            encode_columns(Builder(1000), 0, 3, column, offsets=numbers(wrong), base_offset=4)
    builder = Builder(1000)
    far = [4, 4 + (1 << 31) - 2, 4 + (1 << 31) - 1]
    assert encode_columns(builder, 0, 3, column, offsets=numbers(far), base_offset=4) == 2
    assert parse(builder.seal()).last_offset_delta == (1 << 31) - 2
    with pytest.raises(ValueError, match="gaps"):
        builder.add(None, b"d")
    with pytest.raises(ValueError, match="gaps"):
        builder.extend([(None, b"d")])
    builder.clear()
    assert builder.add(None, b"d") == 0
    assert parse(builder.seal()).last_offset_delta == 0
