"""Bytes that want to do harm. The same tests run with the kernel built under AddressSanitizer: see asan.py.

A batch is made, its records or its header mangled, its lengths and its CRC made right again, so that the mangled bytes
reach the code behind these checks. Whatever happens must be a result or CorruptBatch, and all readers must agree on it.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from klamm.batch import (
    RECORDS,
    TUPLES,
    VALUES,
    Columns,
    Decoder,
    KeyMap,
    RecordFilter,
    Records,
    RecordScan,
    crc32c,
    decode,
    parse,
    scan_records,
    verify,
    walk,
)
from klamm.batch import codecs as batch_codecs
from klamm.batch.codecs import compress
from klamm.batch.header import DELETE_HORIZON
from klamm.errors import CorruptBatch, RecordTooLarge
from klamm.types import Position, TopicPartition
from tests.batch.strategies import EXAMPLES, SOME, Record, batch_of, codecs, record_lists

MANY = settings(max_examples=EXAMPLES)

# Bytes that mean something where a varint is read: -1, large and largest numbers, too long, endless.
NASTY = [
    b"\x00",
    b"\x01",
    b"\x02",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\x80\x00",
    b"\xfe\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x1f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
    b"\xff" * 12,
    b"\x80" * 12,
]

places = st.integers(0, 1 << 16)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("put"), places, st.sampled_from(NASTY) | st.binary(min_size=1, max_size=4)),
        st.tuples(st.just("insert"), places, st.sampled_from(NASTY) | st.binary(min_size=1, max_size=4)),
        st.tuples(st.just("cut"), places, st.integers(1, 9).map(bytes)),
        st.tuples(st.just("end"), places, st.just(b"")),
        st.tuples(st.just("flip"), places, st.integers(0, 7).map(lambda bit: bytes([1 << bit]))),
    ),
    max_size=4,
)


def mangled(data: bytes, mangling: list[tuple[str, int, bytes]]) -> bytes:
    for what, place, with_ in mangling:
        at = place % (len(data) + 1)
        if what == "put":
            data = data[:at] + with_ + data[at + len(with_) :]
        elif what == "insert":
            data = data[:at] + with_ + data[at:]
        elif what == "cut":
            data = data[:at] + data[at + len(with_) :]
        elif what == "end":
            data = data[:at]
        elif at < len(data):
            data = data[:at] + bytes([data[at] ^ with_[0]]) + data[at + 1 :]
    return data


def made_right(header: bytes, records: bytes) -> bytes:
    """Length and CRC of the batch as they should be."""
    data = bytearray(header[:61].ljust(61, b"\0") + records)
    struct.pack_into(">i", data, 8, len(data) - 12)
    data[16] = 2
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return bytes(data)


def outcome(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except CorruptBatch as error:
        return CorruptBatch if error.position is not None else error


def rows_of(data: Any) -> list[tuple[Any, ...]]:
    """What Columns makes of it, read back from its buffers by hand."""
    columns = Columns()
    columns.add(data)
    count, buffers = columns.finish()

    def strings(given_: tuple[Any, ...], rows: int) -> list[bytes | None]:
        _, validity, offsets, values = given_
        bits, at = validity and bytes(validity), struct.unpack(f"{rows + 1}i", bytes(offsets))
        whole = bytes(values)
        return [
            None if bits and not bits[row >> 3] >> (row & 7) & 1 else whole[at[row] : at[row + 1]]
            for row in range(rows)
        ]

    starts, header_count, names, values = buffers["headers"]
    pairs = [
        (name.decode(), value)
        for name, value in zip(strings(names, header_count), strings(values, header_count), strict=True)
        if name is not None
    ]
    at = struct.unpack(f"{count + 1}i", bytes(starts))
    return list(
        zip(
            struct.unpack(f"{count}q", bytes(buffers["offset"])),
            struct.unpack(f"{count}q", bytes(buffers["timestamp"])),
            strings(buffers["key"], count),
            strings(buffers["value"], count),
            [tuple(pairs[at[row] : at[row + 1]]) for row in range(count)],
            strict=True,
        )
    )


HORIZON = 1 << 40


def sifted(data: Any) -> list[Any]:
    """What compaction leaves of it, read back."""
    keys = KeyMap(1, bytes(16))
    end_offset = keys.add(data)
    record_filter = RecordFilter(keys, end_offset=end_offset, now_ms=HORIZON - 1, horizon_ms=HORIZON)
    left = record_filter.filter(data)
    kept = decode(data if left is None else left, form=RECORDS)
    if left is not None:
        walk(left)
    return kept


def check_sifted(records: list[Any], kept: list[Any], data: Any) -> None:
    """The latest of each key, as it was; tombstones may be gone, if the batch says that their time has come."""
    latest = {record.key: record.offset for record in sorted(records, key=lambda record: record.offset)}
    stays = [record for record in records if record.key is None or latest[record.key] == record.offset]
    if any(header.attributes & DELETE_HORIZON for header in walk(data)):
        stays = [record for record in stays if record.key is None or record.value is not None]
        kept = [record for record in kept if record.key is None or record.value is not None]
    assert kept == stays


def taken(data: Any, most: int) -> list[Any]:
    """What a Decoder makes of it, some at a time."""
    decoder = Decoder("", 0)
    decoder.use(RECORDS, None, None)
    decoder.seek(0)
    decoder.feed(data, 0)
    found: list[Any] = []
    last = Records(TopicPartition("", 0), Position(0), Position(0))
    while decoder.has_more:
        last = decoder.take(last, most)
        found += last
    return found


def scanned(data: Any, piece: int) -> Any:
    """What a RecordScan makes of it, so many bytes at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_codecs, "_PIECE", piece)
        try:
            scan = RecordScan(data, 0, 1 << 40)
        except RecordTooLarge as error:
            return error
        return scan.result, scan.outside, scan.unkeyed


def read_in_every_way(given_: bytes) -> Any:
    """All readers give the same records, or CorruptBatch."""
    # A bytes object ends with a zero of its own; here nothing lies behind the last byte, so that a look at it is seen.
    data = (ctypes.c_ubyte * len(given_)).from_buffer_copy(given_)
    outcome(lambda: walk(data))
    outcome(lambda: parse(data))
    outcome(lambda: verify(data, 0, False))
    records = outcome(lambda: decode(data, form=RECORDS))
    tuples = outcome(lambda: decode(data, form=TUPLES))
    values = outcome(lambda: decode(data, form=VALUES))
    rows = outcome(lambda: rows_of(data))
    kept = outcome(lambda: sifted(data))
    outcome(lambda: scan_records(data))
    for piece in (1, 5, 1 << 18):  # what a server has decompressed of a batch at a time
        outcome(partial(scanned, data, piece))
    for most in (1, 3):
        assert outcome(partial(taken, data, most)) == records
    if records is CorruptBatch:
        assert tuples is values is rows is kept is CorruptBatch
    else:
        assert tuples == [(r.key, r.value) for r in records]
        assert values == [r.value for r in records]
        assert rows == [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]
        if kept is not CorruptBatch or not any(header.is_control for header in walk(data)):
            check_sifted(records, kept, data)
    return records


@MANY
@given(record_lists, codecs, changes, changes)
def test_mangled_records_are_damage_or_records_to_every_reader(
    records: list[Record], codec: int, in_records: list[Any], in_header: list[Any]
) -> None:
    batch = batch_of(records)
    header = bytearray(mangled(batch[:61], in_header).ljust(61, b"\0")[:61])
    body = mangled(batch[61:], in_records)
    if codec:
        header[22] = header[22] & ~7 | codec
        body = compress(codec, memoryview(body))
    read_in_every_way(made_right(bytes(header), body))


@MANY
@given(record_lists, codecs, changes)
def test_mangled_compressed_bytes_are_damage_or_records(records: list[Record], codec: int, mangling: list[Any]) -> None:
    batch = batch_of(records, codec)
    read_in_every_way(made_right(batch[:61], mangled(batch[61:], mangling)))


@MANY
@given(record_lists, codecs, changes)
def test_mangled_batches_with_nothing_made_right(records: list[Record], codec: int, mangling: list[Any]) -> None:
    read_in_every_way(mangled(batch_of(records, codec) + batch_of(records, codec, len(records)), mangling))


@MANY
@given(st.binary(max_size=150))
@example(b"")
def test_random_bytes_are_refused_in_every_way_of_reading(noise: bytes) -> None:
    read_in_every_way(noise)
    read_in_every_way(made_right(bytes(61), noise))


@SOME
@given(record_lists, codecs)
def test_every_cut_of_a_batch_is_damage_to_its_readers(records: list[Record], codec: int) -> None:
    batch = batch_of(records, codec)
    for cut in range(1, len(batch)):
        assert outcome(partial(decode, batch[:cut])) is CorruptBatch


def record(*parts: bytes) -> bytes:
    body = b"".join(parts)
    assert len(body) < 64
    return bytes([2 * len(body)]) + body


KEY, VALUE, NO_HEADERS = b"\x02k", b"\x02v", b"\x00"


@pytest.mark.parametrize(
    ("records", "count", "last_delta"),
    [
        pytest.param(b"", 1, 0, id="no record where one should be"),
        pytest.param(b"\x0e" * 6, 0x7FFFFFFF, 0x7FFFFFFF, id="more records than bytes"),
        pytest.param(record(b"\0\0\0", KEY, VALUE, NO_HEADERS) + b"\0", 1, 0, id="a byte after the last record"),
        pytest.param(record(b"\0\0\0", KEY, VALUE, NO_HEADERS, b"\0"), 1, 0, id="a byte after the headers"),
        pytest.param(record(b"\0\0\2", KEY, VALUE, NO_HEADERS), 1, 0, id="an offset beyond the last delta"),
        pytest.param(record(b"\0\0\1", KEY, VALUE, NO_HEADERS), 1, 5, id="a negative offset delta"),
        pytest.param(record(b"\0\0\0", KEY, VALUE, NO_HEADERS) * 2, 2, 5, id="the same offset twice"),
        pytest.param(record(b"\0\0\0", b"\x03", VALUE, NO_HEADERS), 1, 0, id="a key of -2 bytes"),
        pytest.param(record(b"\0\0\0", b"\x7ek", VALUE, NO_HEADERS), 1, 0, id="a key longer than the record"),
        pytest.param(record(b"\0\0\0", KEY, b"\x03", NO_HEADERS), 1, 0, id="a value of -2 bytes"),
        pytest.param(record(b"\0\0\0", KEY, b"\x7ev", NO_HEADERS), 1, 0, id="a value longer than the record"),
        pytest.param(record(b"\0\0\0", KEY, VALUE, b"\x01"), 1, 0, id="-1 headers"),
        pytest.param(record(b"\0\0\0", KEY, VALUE, b"\xfe\xff\xff\xff\x0f"), 1, 0, id="2^31 - 1 headers"),
        pytest.param(record(b"\0\0\0", KEY, VALUE, b"\x02\x01\x00"), 1, 0, id="a header without a name"),
        pytest.param(record(b"\0\0\0", KEY, VALUE, b"\x02\x02h\x03"), 1, 0, id="a header's value of -2 bytes"),
        pytest.param(record(b"\0\0\0", KEY, VALUE, b"\x02\x02h\x7e"), 1, 0, id="a header longer than the record"),
        pytest.param(record(b"\0\0", b"\x80" * 5 + b"\0", KEY, VALUE, NO_HEADERS), 1, 0, id="a varint too long"),
        pytest.param(record(b"\0\0", b"\xfe\xff\xff\xff\x1f", KEY, VALUE, NO_HEADERS), 1, 0, id="a varint of 33 bits"),
        pytest.param(record(b"\0", b"\xff" * 9 + b"\2", b"\0", KEY, VALUE, NO_HEADERS), 1, 0, id="65 bits"),
        pytest.param(b"\xfe\xff\xff\xff\x0f" + bytes(40), 1, 0, id="a record longer than the batch"),
        pytest.param(b"\x01" + bytes(40), 1, 0, id="a record of -1 bytes"),
        pytest.param(b"\x00" + bytes(40), 1, 0, id="a record of 0 bytes"),
    ],
)
@pytest.mark.parametrize("codec", range(5))
def test_each_way_to_break_the_format_is_damage(records: bytes, count: int, last_delta: int, codec: int) -> None:
    header = bytearray(batch_of([(b"k", b"v", (), 0)])[:61])
    struct.pack_into(">i", header, 57, count)
    struct.pack_into(">i", header, 23, last_delta)
    header[22] = codec
    data = made_right(bytes(header), compress(codec, memoryview(records)) if codec else records)
    assert verify(data, 0, True) == (len(data), last_delta + 1)
    assert read_in_every_way(data) is CorruptBatch


@pytest.mark.parametrize("tail", [b"\x80", b"\xff", b"\x80\x80", b"\xff" * 4])
def test_a_record_that_ends_within_a_number_is_damage_wherever_it_is_cut(tail: bytes) -> None:
    body = b"\0\0\0" + KEY + VALUE + b"\x04\x02h\x02x\x02i\x02y"
    header = batch_of([(b"k", b"v", (), 0)])[:61]
    for cut in range(len(body) - 1):
        assert read_in_every_way(made_right(header, record(body[:cut], tail))) is CorruptBatch


def test_the_longest_varints_that_are_allowed_are_read() -> None:
    timestamp = b"\xfe" + b"\xff" * 8 + b"\x01"  # 2^63 - 1
    body = b"\0" + timestamp + b"\x80\x80\x80\x80\x00" + KEY + b"\x82\x00v" + NO_HEADERS
    header = bytearray(batch_of([(b"k", b"v", (), 0)])[:61])
    got = read_in_every_way(made_right(bytes(header), record(body)))
    assert [(r.offset, r.timestamp, r.key, r.value) for r in got] == [(0, (1 << 63) - 1, b"k", b"v")]


def test_a_timestamp_beyond_64_bits_wraps_as_in_java() -> None:
    header = bytearray(batch_of([(b"k", b"v", (), 1)])[:61])
    body = b"\0" + b"\xfe" + b"\xff" * 8 + b"\x01" + b"\0" + KEY + VALUE + NO_HEADERS
    assert [r.timestamp for r in read_in_every_way(made_right(bytes(header), record(body)))] == [-(1 << 63)]
