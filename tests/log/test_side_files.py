"""Side files of a store from somebody else: whatever is in them, with checksums that fit, harms no process.

Sealed files are given random bodies and false counts under a right CRC, .aborted files random bytes and random numbers
(the mapped table of producers: test_producer_table.py). A reader of them gets an answer or one of our errors: no other
exception, no crash, no allocation out of proportion.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import crc32c
from klamm.disk import files
from klamm.errors import NewerFormat
from klamm.log import aborted, cleaner_checkpoint, point, producers, sealed, segment
from klamm.log.aborted_spans import AbortedSpans
from klamm.log.partition import Partition
from klamm.log.sealed import Lack
from tests.log.compacted import in_transaction
from tests.log.logs import records
from tests.rig import Rig

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


def entry_of(*numbers: int) -> bytes:
    body = struct.pack("<qqqI", *numbers, 0)
    return body + struct.pack("<I", crc32c(body))


numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 9)


@pytest.fixture(scope="module")
def aborting(tmp_path_factory: pytest.TempPathFactory) -> Partition:
    """A log in which producer 7 aborts a record, and then commits one."""
    partition = Rig(tmp_path_factory.mktemp("aborting"), slots=4).partition(1, segment_bytes=1 << 20)
    for epoch in range(2):
        partition.append(in_transaction(7, epoch, [(b"k", b"%d" % epoch)]))
        partition.append_marker(7, epoch + 1, commit=epoch == 1)
    return partition


@given(st.lists(st.tuples(numbers | st.just(7), numbers, numbers), max_size=8))
def test_entries_of_aborts_with_any_numbers_harm_no_reader(
    aborting: Partition, entries: list[tuple[int, int, int]]
) -> None:
    """Such a file may leave records out; none is invented, and readers come to the end."""
    path = Path(segment.path_of(aborting.directory, 0, aborted.SUFFIX))
    path.write_bytes(b"".join(entry_of(*entry) for entry in entries))
    assert aborted.is_whole(aborting.directory, 0)
    assert aborted.load(aborting.directory, 0) == entries
    found = records(aborting)
    assert {record.value for record in found} <= {b"0", b"1"}
    spans = AbortedSpans(aborting)
    spans.refresh(0)
    for end in (0, 1, 9, 2**63 - 1):
        assert set(spans.within(0, end)) <= {entry[:2] for entry in entries} | {(7, 0)}
    path.write_bytes(entry_of(7, 0, 1))
    assert [record.value for record in records(aborting)] == [b"1"]


def test_aborts_of_a_file_of_any_size_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIECE", 64)
    entries = [aborted.Aborted(7, number, number) for number in range(5)]
    aborted.write(str(tmp_path), 0, entries)
    assert aborted.load(str(tmp_path), 0) == entries
    assert aborted.holds(str(tmp_path), 0, entries) and not aborted.holds(str(tmp_path), 0, entries[1:])
    assert aborted.is_whole(str(tmp_path), 0)
    for size in (5 * 32 - 1, 32 + 1):
        os.truncate(segment.path_of(str(tmp_path), 0, aborted.SUFFIX), size)
        assert not aborted.is_whole(str(tmp_path), 0)
        assert aborted.load(str(tmp_path), 0) == entries[: size // 32]


def test_sealed_files_that_are_too_large_are_damaged_and_not_read(tmp_path: Path) -> None:
    for name in ("recovery", f"{0:020}.snapshot"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 1 << 40)
    assert point.load(str(tmp_path)) is Lack.DAMAGED
    assert producers.load(str(tmp_path), 0) is Lack.DAMAGED


@given(st.binary(min_size=4, max_size=4))
def test_a_checksum_that_does_not_fit_is_damage(wrong: bytes) -> None:
    data = sealed.seal(b"KLAMMCLN", 1, bytes(28))
    if wrong != struct.pack("<I", crc32c(data[:-4])):
        assert cleaner_checkpoint.parse(data[:-4] + wrong) is Lack.DAMAGED
