"""The table of keys and the record filter: what compaction does to batches."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import CODECS, Builder, KeyMap, RecordFilter, decode, scan_records, verify, walk
from klamm.batch._kernel import ENTRY_BYTES, siphash128
from klamm.batch.header import TRANSACTIONAL
from klamm.batch.markers import commits, marker
from klamm.errors import CorruptBatch

SEED = bytes(range(16))


def batch(base: int, *pairs: tuple[bytes | None, bytes | None], codec: int = 0, **identity: int) -> bytes:
    builder = Builder(1 << 24)
    for number, pair in enumerate(pairs):
        builder.add(*pair, None, 100 + number)
    data = builder.seal(codec, **identity)
    return base.to_bytes(8, "big") + bytes(data[8:])


def at(base: int, data: bytearray) -> bytes:
    return base.to_bytes(8, "big") + bytes(data[8:])


@pytest.mark.parametrize(
    ("size", "want"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
    ],
)
def test_the_hash_is_siphash_2_4_with_128_bits(size: int, want: str) -> None:
    """The vectors of its authors: input 00 01 02 …, key 00 01 … 0f."""
    assert siphash128(SEED, bytes(range(size))).hex() == want


@given(st.lists(st.binary(max_size=20), max_size=200), st.integers(0, 2**64))
def test_the_table_is_a_dict_of_latest_offsets(keys: list[bytes], seed: int) -> None:
    table = KeyMap(1 << 16, seed.to_bytes(16, "little"))
    want: dict[bytes, int] = {}
    for offset, key in enumerate(keys):
        assert table.add(batch(offset, (key, b""))) == offset + 1
        want[key] = offset
    assert {key: table.latest(key) for key in keys} == want
    assert len(table) == len(want)
    assert table.latest(b"never seen, for it is too long") is None


def test_a_full_table_says_where_to_go_on_and_takes_keys_that_it_has() -> None:
    table = KeyMap(1, SEED)
    assert table.memory_bytes == 64 * ENTRY_BYTES
    data = batch(10, *[(b"k%d" % (n % 60), b"") for n in range(100)], codec=3)
    assert table.add(data) == 10 + 48, "three quarters of 64"
    assert table.full and len(table) == 48
    table = KeyMap(1, SEED)
    assert table.add(batch(10, *[(b"k%d" % (n % 48), b"") for n in range(100)])) == 110
    assert not table.full


def column(*keys: bytes) -> tuple[bytes, bytes]:
    """As Arrow has it."""
    bounds = [0]
    for key in keys:
        bounds.append(bounds[-1] + len(key))
    return struct.pack(f"={len(bounds)}i", *bounds), b"".join(keys)


@given(st.lists(st.tuples(st.binary(max_size=9), st.integers(0, 2**62)), max_size=150))
def test_keys_and_offsets_that_are_known_are_put_as_if_they_were_read(given: list[tuple[bytes, int]]) -> None:
    table = KeyMap(1 << 16, SEED)
    want: dict[bytes, int] = {}
    for key, offset in given:
        want[key] = max(offset, want.get(key, 0))
    offsets = struct.pack(f"={len(given)}q", *(offset for _, offset in given))
    assert table.put(*column(*(key for key, _ in given)), offsets)
    assert {key: table.latest(key) for key in want} == want
    assert len(table) == len(want)


def test_a_table_that_is_full_takes_no_more_keys() -> None:
    table = KeyMap(1, SEED)
    keys = [b"k%d" % n for n in range(49)]
    assert (table.put(*column(*keys[:48]), bytes(48 * 8)), table.full) == (True, False)
    assert (table.put(*column(*keys), bytes(49 * 8)), table.full) == (False, True)
    assert len(table) == 48


def test_a_column_that_lies_outside_of_its_bytes_is_refused() -> None:
    table = KeyMap(1, SEED)
    for bounds in ((0, 4), (-1, 2), (2, 1)):
        with pytest.raises(ValueError, match="bounds that lie outside"):
            table.put(struct.pack("=2i", *bounds), b"abc", bytes(8))
    with pytest.raises(ValueError, match="an offset below 0"):
        table.put(struct.pack("=2i", 0, 3), b"abc", struct.pack("=q", -1))
    with pytest.raises(ValueError, match="bounds of 8 bytes for offsets of 16"):
        table.put(bytes(8), b"", bytes(16))
    assert len(table) == 0


def test_a_record_filter_in_the_middle_of_the_log_is_told_whose_transactions_are_open() -> None:
    mine = {"producer_epoch": 0, "base_sequence": 0, "attributes": TRANSACTIONAL}
    begun = batch(0, (b"a", b"1"), producer_id=7, **mine) + batch(1, (b"b", b"1"), producer_id=8, **mine)
    ended = at(2, marker(7, 1, commit=True, timestamp=5)) + batch(3, (b"c", b"1"), producer_id=9, **mine)
    ended += at(4, marker(9, 1, commit=True, timestamp=5))
    table = KeyMap(1, SEED)
    table.add(begun + ended)
    whole, first = (RecordFilter(table, end_offset=5, now_ms=0, horizon_ms=20) for _ in range(2))
    assert whole.filter(begun + ended) is None and whole.open_ids == {8}
    assert first.filter(begun) is None
    assert (first.open_ids, first.seen_ids, first.asked_ids) == ({7, 8}, {7, 8}, set())
    told = RecordFilter(table, end_offset=5, now_ms=0, horizon_ms=20, open_ids=first.open_ids)
    assert told.filter(ended) is None and told.open_ids == {8}
    untold = RecordFilter(table, end_offset=5, now_ms=0, horizon_ms=20)
    assert untold.filter(ended) is not None, "a marker that was taken for a lone one"
    assert (untold.open_ids, untold.seen_ids, untold.asked_ids) == (set(), {7, 9}, {7})
    assert first.open_ids - untold.seen_ids | untold.open_ids == whole.open_ids


def test_it_is_no_larger_than_it_has_to_be() -> None:
    assert KeyMap(1 << 30, SEED, most=1000).memory_bytes == 1500 * ENTRY_BYTES
    assert KeyMap(1 << 20, SEED, most=1 << 40).memory_bytes == (1 << 20) // ENTRY_BYTES * ENTRY_BYTES


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_only_offsets_from_start_to_upto_are_noted_and_sifted(codec: int) -> None:
    data = batch(0, *[(b"k", b"%d" % n) for n in range(10)], codec=codec) + batch(10, (b"k", b"10"))
    table = KeyMap(1, SEED)
    assert table.add(data, 3, 7) == 7
    assert table.latest(b"k") == 6
    left = RecordFilter(table, end_offset=7, now_ms=0, horizon_ms=0).filter(data)
    assert left is not None
    assert [record.offset for record in decode(left)] == [6, 7, 8, 9, 10]
    assert verify(left, 0, True) == (len(left), 11)


def test_nothing_to_take_out_is_none_and_nothing_left_is_empty() -> None:
    data = batch(0, (b"a", b"1"), (b"b", b"2"))
    table = KeyMap(1, SEED)
    table.add(data)
    record_filter = RecordFilter(table, end_offset=2, now_ms=0, horizon_ms=0)
    assert record_filter.filter(data) is None
    assert (record_filter.records, record_filter.kept) == (2, 2)
    table.add(batch(2, (b"a", b"3"), (b"b", b"4")))
    left = RecordFilter(table, end_offset=4, now_ms=0, horizon_ms=0).filter(data)
    assert left is not None and len(left) == 0


def test_records_of_aborted_transactions_are_as_if_they_were_not_there() -> None:
    data = batch(0, (b"a", b"1"))
    data += batch(1, (b"a", b"2"), producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
    data += at(2, marker(7, 1, commit=False, timestamp=5))
    data += batch(3, (b"a", None), producer_id=8, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
    data += at(4, marker(8, 1, commit=False, timestamp=5))
    table = KeyMap(1, SEED, aborted=[(8, 3, 4), (7, 1, 2), (7, 100, 200)])
    assert table.add(data) == 5
    assert table.latest(b"a") == 0
    left = RecordFilter(table, end_offset=5, now_ms=10, horizon_ms=20).filter(data)
    assert left is not None
    headers = walk(left)
    assert [(h.base_offset, h.is_control, h.base_timestamp) for h in headers] == [
        (0, False, 100),
        (2, True, 20),
        (4, True, 20),
    ]
    assert not commits(left[headers[0].size : headers[0].size + headers[1].size]), "a marker says what it said"
    assert RecordFilter(table, end_offset=5, now_ms=19, horizon_ms=29).filter(left) is None
    again = RecordFilter(table, end_offset=5, now_ms=20, horizon_ms=30).filter(left)
    assert again is not None
    assert [header.base_offset for header in walk(again)] == [0]


def test_a_batch_that_would_grow_beyond_what_can_be_read_gets_no_horizon() -> None:
    """A thousand tombstones grow by some bytes each; the batch is whole nonetheless."""
    data = batch(0, *[(b"%d" % n, None) for n in range(1000)], codec=4)
    table = KeyMap(1 << 20, SEED)
    table.add(data)
    left = RecordFilter(table, end_offset=1000, now_ms=0, horizon_ms=1 << 50).filter(data)
    assert left is not None
    assert [r.timestamp for r in decode(left)] == [100 + n for n in range(1000)]


def test_whether_all_records_have_keys() -> None:
    for codec in CODECS.values():
        assert scan_records(batch(0, (b"", b""), (b"a", None), codec=codec))[0]
        assert not scan_records(batch(0, (b"", b""), (None, b"1"), codec=codec))[0]
    with pytest.raises(CorruptBatch):
        scan_records(b"short")
    for seed in (b"", bytes(15), bytes(17)):
        with pytest.raises(ValueError, match="seed"):
            KeyMap(1, seed)
