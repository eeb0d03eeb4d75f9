from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import HEADER_SIZE, TUPLES, Builder, decode, encode_one, parse, verify
from klamm.errors import RecordTooLarge
from tests.batch.strategies import Record, batch_of, codecs, record_lists, records


def contents(batch: Any) -> list[Record]:
    return [(r.key, r.value, tuple(r.headers), r.timestamp) for r in decode(batch)]


@given(record_lists, codecs)
def test_what_was_added_is_what_is_decoded(given_records: list[Record], codec: int) -> None:
    batch = batch_of(given_records, codec)

    assert contents(batch) == given_records
    assert verify(batch, 0, True) == (len(batch), len(given_records))
    assert parse(batch).max_timestamp == max(r[3] for r in given_records)
    assert parse(batch).base_timestamp == given_records[0][3]


@given(record_lists)
def test_extend_makes_the_same_bytes_as_add(given_records: list[Record]) -> None:
    builder = Builder(1 << 20)
    assert builder.extend(given_records, 0, 7) == len(given_records)
    assert bytes(builder.seal()) == batch_of(given_records)


@given(st.lists(st.tuples(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=200)), min_size=1))
def test_extend_takes_pairs_and_gives_them_one_timestamp(pairs: list[tuple[bytes | None, bytes | None]]) -> None:
    builder = Builder(1 << 20)
    builder.extend(pairs, 0, 1234)
    assert contents(builder.seal()) == [(key, value, (), 1234) for key, value in pairs]
    assert decode(builder.seal(), form=TUPLES) == pairs


@given(st.lists(st.none() | st.binary(max_size=200), min_size=1))
def test_extend_values_makes_records_without_keys(values: list[bytes | None]) -> None:
    builder = Builder(1 << 20)
    assert builder.extend_values(values, 0, 5) == len(values)
    assert contents(builder.seal()) == [(None, value, (), 5) for value in values]


@given(record_lists, st.integers(HEADER_SIZE + 1, 600))
def test_a_batch_never_exceeds_its_limit_and_nothing_is_lost(given_records: list[Record], limit: int) -> None:
    builder = Builder(limit)
    seen: list[Record] = []
    start = 0
    try:
        while start < len(given_records):
            builder.clear()
            after = builder.extend(given_records, start, 0)
            assert after > start
            batch = builder.seal()
            assert len(batch) == builder.size <= limit
            seen += contents(batch)
            start = after
    except RecordTooLarge:
        assert len(batch_of([given_records[start + builder.count]])) > limit
        seen += contents(builder.seal()) if builder.count else []
        assert seen == given_records[: len(seen)]
    else:
        assert seen == given_records


def test_a_record_that_does_not_fit_changes_nothing() -> None:
    builder = Builder(200)
    assert builder.add(b"k", b"x" * 60, None, 10) == 0
    before = bytes(builder.seal())
    assert builder.add(b"k", b"x" * 100, None, 99) == -1
    assert bytes(builder.seal()) == before
    assert (builder.count, builder.max_timestamp) == (1, 10)


def test_a_record_larger_than_any_batch_is_an_error_that_says_so() -> None:
    builder = Builder(200)
    builder.add(None, b"before", None, 1)
    with pytest.raises(RecordTooLarge, match="at most 200"):
        builder.add(None, b"x" * 200, None, 1)
    with pytest.raises(RecordTooLarge):
        builder.extend([(None, b"fits"), (None, b"x" * 200)], 0, 1)
    assert [r.value for r in decode(builder.seal())] == [b"before", b"fits"]


@pytest.mark.parametrize("limit", [0, -1, 61, 1 << 31])
def test_a_limit_that_no_batch_can_have_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="at most"):
        Builder(limit)


def test_growth_keeps_what_is_there_and_a_view_that_somebody_still_holds() -> None:
    builder = Builder(1 << 20)
    builder.add(None, b"first", None, 1)
    held = builder.seal()
    copy = bytes(held)
    for number in range(5000):
        builder.add(None, b"%064d" % number, None, 1)
    assert bytes(held)[HEADER_SIZE:] == copy[HEADER_SIZE:]
    assert [r.value for r in decode(builder.seal())][4321 + 1] == b"%064d" % 4321


def test_a_cleared_builder_starts_anew() -> None:
    builder = Builder(1000)
    builder.add(b"old", b"old", None, 9_999)
    builder.clear()
    assert (builder.count, builder.size, builder.first_timestamp, builder.max_timestamp) == (0, HEADER_SIZE, -1, -1)
    builder.add(b"new", b"new", None, 1)
    assert contents(builder.seal()) == [(b"new", b"new", (), 1)]
    assert parse(builder.seal()).max_timestamp == 1


def test_an_empty_batch_cannot_be_sealed() -> None:
    with pytest.raises(ValueError, match="empty"):
        Builder(1000).seal()


def test_minus_one_is_now() -> None:
    builder = Builder(1000)
    before = int(time.time() * 1000)
    builder.add(None, b"v", None, -1)
    buffer = bytearray()
    size = encode_one(buffer, None, b"v", None, -1)
    after = int(time.time() * 1000)
    assert before <= builder.first_timestamp <= after
    assert before <= parse(buffer[:size]).max_timestamp <= after


def test_keys_and_values_may_be_any_bytes_like() -> None:
    builder = Builder(1000)
    builder.add(bytearray(b"k"), memoryview(b"xvx")[1:2], [("h", bytearray(b"1")), ("i", memoryview(b"2"))], 1)
    builder.extend([(bytearray(b"k"), memoryview(b"v"))], 0, 1)
    assert contents(builder.seal()) == [(b"k", b"v", (("h", b"1"), ("i", b"2")), 1), (b"k", b"v", (), 1)]


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        (("key", b"v"), "key is str, expected bytes or None"),
        ((b"k", "value"), "value is str"),
        ((b"k", 7), "value is int"),
        ((b"k", b"v", [("name", 7)]), "header 'name' is int"),
        ((b"k", b"v", [(b"name", b"v")]), "name is bytes, expected str"),
        ((b"k", b"v", {"name"}), "a header is 'name', expected a \\(name, value\\) pair"),
        ((b"k", b"v", "name"), "headers are str"),
        ((b"k", b"v", [("a", b"b", b"c")]), "pair"),
    ],
)
def test_wrong_types_are_a_type_error_and_add_nothing(record: tuple[Any, ...], complaint: str) -> None:
    builder = Builder(1000)
    builder.add(b"k", b"v", None, 1)
    before = bytes(builder.seal())
    with pytest.raises(TypeError, match=complaint):
        builder.add(*record)
    with pytest.raises(TypeError, match=complaint):
        builder.extend([record], 0, 1)
    with pytest.raises(TypeError, match=complaint):
        encode_one(bytearray(), *record)
    assert bytes(builder.seal()) == before


@pytest.mark.parametrize("record", [b"bytes", (b"only one",), (1, 2, 3, 4, 5), None])
def test_what_is_no_record_is_a_type_error(record: Any) -> None:
    with pytest.raises(TypeError):
        Builder(1000).extend([(b"k", b"v"), record], 0, 1)


def test_a_negative_timestamp_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Builder(1000).add(b"k", b"v", None, -2)
    with pytest.raises(ValueError, match="negative"):
        Builder(1000).extend([(b"k", b"v", None, -3)], 0, 1)


def test_extend_starts_where_it_is_told() -> None:
    builder = Builder(1000)
    assert builder.extend(((b"a", b"1"), (b"b", b"2"), (b"c", b"3")), 1, 5) == 3
    assert [r.key for r in decode(builder.seal())] == [b"b", b"c"]
    assert builder.extend([(b"d", b"4")], 9, 5) == 9
    with pytest.raises(IndexError):
        builder.extend([], -1, 5)


@given(records)
def test_encode_one_makes_the_same_bytes_as_a_batch_of_one(record: Record) -> None:
    buffer = bytearray(10)
    size = encode_one(buffer, *record)
    assert bytes(buffer[:size]) == batch_of([record])


def test_encode_one_uses_the_buffer_again() -> None:
    buffer = bytearray(4096)
    large = encode_one(buffer, b"key", b"x" * 3000, None, 1)
    small = encode_one(buffer, None, b"y", None, 1)
    assert small < large <= len(buffer) == 4096
    assert decode(buffer[:small])[0].value == b"y"


def test_two_threads_at_one_builder_get_an_error_and_no_crash() -> None:
    builder = Builder(1 << 20)
    records = [(b"k", b"x" * 100)] * 5000
    stop = threading.Event()
    refused = 0

    def disturb() -> None:
        nonlocal refused
        while not stop.is_set():
            try:
                builder.add(b"k", b"y" * 1000, None, 1)
                builder.clear()
            except RuntimeError:
                refused += 1

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(300):
            try:
                builder.extend(records, 0, 1)
                builder.seal()
            except (RuntimeError, ValueError):  # busy, or cleared by the other
                refused += 1
    finally:
        stop.set()
        thread.join()


def test_seal_can_be_called_again_with_another_codec() -> None:
    builder = Builder(100_000)
    builder.extend([(None, b"abc" * 1000)], 0, 1)
    plain, packed = bytes(builder.seal()), bytes(builder.seal(4))
    assert len(packed) < len(plain) == len(builder.seal())
    assert decode(plain) == decode(packed)
