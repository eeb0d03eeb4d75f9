from __future__ import annotations

import pickle
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import RECORDS, TUPLES, VALUES, Builder, Record, crc32c, decode, verify
from klamm.errors import CorruptBatch
from tests.batch import strategies
from tests.batch.strategies import batch_of, codecs, log_of, record_lists


def patched(batch: bytes, position: int, format_: str, value: int) -> bytes:
    """The batch with one header field changed and its CRC made right again."""
    data = bytearray(batch)
    struct.pack_into(format_, data, position, value)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return bytes(data)


@given(record_lists, codecs, record_lists, codecs, st.data())
def test_reading_from_any_offset_on_gives_exactly_its_records(
    one: list[strategies.Record], codec: int, two: list[strategies.Record], other: int, data: st.DataObject
) -> None:
    log = log_of((one, codec), (two, other))
    everything = one + two
    start = data.draw(st.integers(0, len(everything) + 1))

    got = decode(log, form=RECORDS, from_offset=start, topic="t", partition=3)

    want = list(enumerate(everything))[start:]
    assert [(r.offset, (r.key, r.value, tuple(r.headers), r.timestamp)) for r in got] == want
    assert all((r.topic, r.partition, r.leader_epoch) == ("t", 3, 0) for r in got)
    assert decode(log, form=TUPLES, from_offset=start) == [(r[0], r[1]) for _, r in want]
    assert decode(log, form=VALUES, from_offset=start) == [r[1] for _, r in want]


def test_control_batches_are_skipped() -> None:
    marker = batch_of([(b"\0\0\0\1", b"\0\0\0\0\0\0", (), 1)], base_offset=1, attributes=0x30)
    data = batch_of([(None, b"a", (), 1)]) + marker + batch_of([(None, b"b", (), 1)], base_offset=2)
    assert [(r.offset, r.value) for r in decode(data)] == [(0, b"a"), (2, b"b")]


def test_with_log_append_time_every_record_has_the_batchs_timestamp() -> None:
    batch = patched(batch_of([(None, b"a", (), 5), (None, b"b", (), 9)]), 21, ">h", 0x08)
    batch = patched(batch, 35, ">q", 777)
    assert [r.timestamp for r in decode(batch)] == [777, 777]


def test_a_batch_without_timestamps_has_minus_one() -> None:
    batch = patched(patched(batch_of([(None, b"a", (), 5)]), 27, ">q", -1), 35, ">q", -1)
    assert decode(batch)[0].timestamp == -1


def test_the_delete_horizon_flag_is_tolerated() -> None:
    assert len(decode(patched(batch_of([(None, b"a", (), 5)]), 21, ">h", 0x40))) == 1


def test_a_cleaned_batch_keeps_its_gaps_and_may_be_empty() -> None:
    batch = batch_of([(None, b"a", (), 5)])
    gapped = patched(batch, 23, ">i", 10)
    assert verify(gapped, 0, True) == (len(gapped), 11)
    assert [r.offset for r in decode(gapped)] == [0]
    empty = bytearray(batch[:61])
    struct.pack_into(">i", empty, 8, 49)
    empty = bytearray(patched(patched(bytes(empty), 57, ">i", 0), 23, ">i", 4))
    assert verify(empty, 0, True) == (61, 5)
    assert decode(empty) == []


def test_the_leader_epoch_of_the_batch_is_that_of_its_records() -> None:
    batch = batch_of([(None, b"a", (), 5)])
    assert decode(batch[:12] + b"\0\0\0\7" + batch[16:])[0].leader_epoch == 7


def test_records_of_good_batches_can_be_had_when_a_later_batch_is_bad() -> None:
    good = batch_of([(None, b"a", (), 1)])
    bad = patched(batch_of([(None, b"b", (), 1)], base_offset=1), 61, ">b", 100)
    data = good + bad + batch_of([(None, b"c", (), 1)], base_offset=2)
    assert verify(data, 0, True) == (len(data), 3)
    with pytest.raises(CorruptBatch) as caught:
        decode(data)
    assert (caught.value.position, caught.value.next_offset) == (len(good), 2)
    assert decode(data[: len(good)], form=VALUES) == [b"a"]
    assert decode(data, form=VALUES, from_offset=2) == [b"c"]


def test_a_header_name_that_is_not_utf8_reads_as_java_reads_it() -> None:
    batch = bytearray(batch_of([(None, None, (("abc", b"v"),), 1)]))
    batch[batch.index(b"abc") + 1] = 0xFF
    assert decode(batch)[0].headers == (("a\ufffdc", b"v"),)


def test_a_cut_batch_is_an_error_in_decode_but_not_in_verify() -> None:
    whole = batch_of([(None, b"a", (), 1)])
    cut = whole + batch_of([(None, b"b", (), 1)], base_offset=1)[:-1]
    assert verify(cut, 0, True) == (len(whole), 1)
    with pytest.raises(CorruptBatch, match="cut short"):
        decode(cut)


@given(record_lists, codecs, st.data())
def test_verify_notices_any_flipped_bit_under_the_crc(
    given_records: list[strategies.Record], codec: int, data: st.DataObject
) -> None:
    batch = bytearray(batch_of(given_records, codec))
    position = data.draw(st.integers(16, len(batch) - 1))
    batch[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptBatch) as caught:
        verify(batch, 0, True)
    assert caught.value.position == 0


def test_verify_says_which_batch_has_the_wrong_crc_and_what_it_is() -> None:
    first = batch_of([(None, b"a", (), 1)])
    second = bytearray(batch_of([(None, b"b", (), 1)], base_offset=1))
    want = int.from_bytes(second[17:21], "big")
    second[-2] ^= 1
    with pytest.raises(CorruptBatch, match=f"byte {len(first)}: CRC is {crc32c(second[21:]):08x}, expected {want:08x}"):
        verify(first + second, 0, True)


def test_verify_holds_batches_to_their_offsets() -> None:
    first, later = batch_of([(None, b"a", (), 1)], base_offset=5), batch_of([(None, b"b", (), 1)], base_offset=8)
    assert verify(first + later, 5, False) == (len(first + later), 9)
    assert verify(first, 3, False) == (len(first), 6)
    for data, expected, contiguous in [
        (first + later, 5, True),
        (first, 4, True),
        (first, 6, False),
        (later + first, 0, False),
    ]:
        with pytest.raises(CorruptBatch, match="base offset is"):
            verify(data, expected, contiguous)


def test_verify_of_nothing_is_nothing() -> None:
    assert verify(b"", 7, True) == (0, 7)
    assert verify(memoryview(b"abc"), 7, True) == (0, 7)


def test_an_unknown_codec_is_damage() -> None:
    with pytest.raises(CorruptBatch, match="unknown codec 5"):
        decode(patched(batch_of([(None, b"a", (), 5)]), 21, ">h", 5))


def test_decode_takes_no_other_form() -> None:
    with pytest.raises(ValueError, match="form 3"):
        decode(b"", form=3)


def test_a_record_compares_pickles_and_prints() -> None:
    record = Record("t", 1, 2, 3, b"k", b"v", [("h", None)], 4)
    assert pickle.loads(pickle.dumps(record)) == record == Record("t", 1, 2, 3, b"k", b"v", (("h", None),), 4)
    assert record != Record("t", 1, 2, 3, b"k", b"w", (("h", None),), 4)
    other: object = ("t", 1, 2)
    assert record != other
    assert hash(record) == hash(pickle.loads(pickle.dumps(record)))
    assert repr(record) == (
        "Record(topic='t', partition=1, offset=2, timestamp=3, key=b'k', value=b'v', headers=(('h', None),))"
    )


def test_a_record_cannot_be_changed() -> None:
    record: Any = decode(batch_of([(b"k", b"v", (), 1)]))[0]
    with pytest.raises(AttributeError):
        record.value = b"other"


def test_many_records_cost_no_more_than_their_bytes() -> None:
    builder = Builder(1 << 20)
    builder.extend_values([b""] * 100_000, 0, 1)
    assert len(decode(builder.seal(), form=VALUES)) == 100_000
