"""Side files of a store from somebody else: whatever is in them, with checksums that fit, harms no process.

Sealed files are given random bodies and false counts under a right CRC, .aborted files random bytes (the mapped table
of producers: test_producer_table.py). A reader of them gets an answer or one of our errors: no other exception, no
crash, no allocation out of proportion.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import crc32c
from klamm.errors import NewerFormat
from klamm.log import aborted, cleaner_checkpoint, point, producers, sealed
from klamm.log.sealed import Lack

KINDS: dict[bytes, tuple[int, Callable[[bytes], object], type]] = {
    b"KLAMMREC": (2, point.parse, point.Point),
    b"KLAMMCLN": (1, cleaner_checkpoint.parse, cleaner_checkpoint.CleanerCheckpoint),
    b"KLAMMPSN": (1, producers.parse, list),
}


@pytest.mark.parametrize("magic", KINDS)
@given(st.binary(max_size=400))
def test_any_body_under_a_right_checksum_is_read_or_damaged(magic: bytes, body: bytes) -> None:
    version, parse, kind = KINDS[magic]
    found = parse(sealed.seal(magic, version, body))
    assert found is Lack.DAMAGED or isinstance(found, kind)
    with pytest.raises(NewerFormat):
        parse(sealed.seal(magic, version + 1, body))
    assert parse(sealed.seal(b"SOMEBODY", version, body)) is Lack.DAMAGED
    assert parse(body) is Lack.DAMAGED or len(body) > 16


@pytest.mark.parametrize("count", [1, 6, 400, 500_000, 2**31, 2**32 - 1, 2**63 - 1, -1])
def test_false_counts_in_a_snapshot_are_damage(count: int) -> None:
    places = struct.pack("<qiiq", 0, 0, 0, 0) * 6
    of_batches = struct.pack("<I", 1) + struct.pack("<qqqq", 1, -1, 0, count) + places
    of_producers = struct.pack("<I", count & 0xFFFFFFFF) + struct.pack("<qqqq", 1, -1, 0, 1) + places[:24]
    for body in (of_batches, of_producers):
        found = producers.parse(sealed.seal(b"KLAMMPSN", 1, body))
        assert found is Lack.DAMAGED or (body is of_producers and count == 1)


@given(st.binary(max_size=400))
def test_any_bytes_are_entries_of_aborts_or_none(data: bytes) -> None:
    entries = aborted.parse(data)
    assert len(entries) <= len(data) // aborted.ENTRY_SIZE


@given(st.binary(min_size=4, max_size=4))
def test_a_checksum_that_does_not_fit_is_damage(wrong: bytes) -> None:
    data = sealed.seal(b"KLAMMCLN", 1, bytes(28))
    if wrong != struct.pack("<I", crc32c(data[:-4])):
        assert cleaner_checkpoint.parse(data[:-4] + wrong) is Lack.DAMAGED
