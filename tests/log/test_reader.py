"""Readers: from any offset, with any window, across segments, past what is gone, and up to what is damaged."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest

from klamm.batch import Header, walk
from klamm.disk import _os
from klamm.errors import CorruptBatch, OffsetOutOfRange, UnknownTopic
from klamm.log.partition import Partition
from klamm.log.reader import Reader
from tests.log.logs import batch_of, flip, log_file, records
from tests.rig import Rig, batch, names, read_all

ONE = len(batch(0, 0))
COUNTS = (1, 5, 2, 1, 1, 9, 3, 1, 1, 4, 7, 1)  # of records, batch by batch


def filled(rig: Rig, **changes: int | str) -> Partition:
    partition = rig.partition(rig.fresh_slot(), **changes)
    for number, count in enumerate(COUNTS):
        partition.append(batch_of([number] * count, padding=number))
    return partition


def read_until_damage(reader: Reader, window: int) -> tuple[list[Header], CorruptBatch]:
    """The batches before the damage, and what is said of it."""
    seen: list[Header] = []
    try:
        while data := reader.read(window):
            seen += walk(data)
    except CorruptBatch as error:
        return seen, error
    pytest.fail("the damage was not noticed")


def offsets_of(batches: list[Header]) -> list[int]:
    return [offset for each in batches for offset in range(each.base_offset, each.next_offset)]


# ---- from any offset


@pytest.mark.parametrize("interval", [1, 100, 1 << 20], ids=["dense", "sparse", "none"])
@pytest.mark.parametrize("segment_bytes", [1, 400, 1 << 20], ids=["each its own", "several", "one"])
def test_reading_from_every_offset_gives_every_record_from_there_on(
    rig: Rig, interval: int, segment_bytes: int
) -> None:
    partition = filled(rig, index_interval_bytes=interval, segment_bytes=segment_bytes)
    end = sum(COUNTS)
    for start in range(end + 1):
        assert [record.offset for record in records(partition, start)] == list(range(start, end))


@pytest.mark.parametrize("max_bytes", [-1, 0, 1, 60, 61, 62, 100, ONE, 2 * ONE + 1, 1 << 30])
def test_any_window_gives_whole_batches_and_at_least_one(rig: Rig, max_bytes: int) -> None:
    partition = filled(rig)
    for start in (0, 3, 10, sum(COUNTS) - 1):
        reader = partition.reader(start)
        following = start
        while data := reader.read(max_bytes):
            found = walk(data)
            assert found[0].base_offset <= following < found[0].next_offset
            assert sum(each.size for each in found) == len(data)
            assert len(data) <= max_bytes or len(found) == 1
            following = found[-1].next_offset
            assert reader.offset == following
        assert following == sum(COUNTS)


def test_a_batch_larger_than_the_window_is_read_whole(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=1 << 22, max_message_bytes=1 << 22)
    sizes = [10, 100_000, 10, 1_500_000, 10]
    for number, padding in enumerate(sizes):
        partition.append(batch_of([number], padding=padding))
    for window in (50, 1000, 100_000, 1 << 20):
        assert [len(record.value) for record in records(partition, 0, window)] == sizes
        assert [len(record.value) for record in records(partition, 3, window)] == sizes[3:]


def test_a_reader_goes_on_where_it_stopped_when_more_is_appended(rig: Rig) -> None:
    partition = rig.partition(1)
    reader = partition.reader(0)
    seen = []
    for number in range(40):
        partition.append(batch(0, number))
        if number % 3 == 0:
            while data := reader.read(300):
                seen += names(data)
            assert reader.offset == number + 1
            if number % 2:
                reader.close()  # its place is kept
    while data := reader.read():
        seen += names(data)
    assert seen == [(0, number) for number in range(40)]


def test_a_seek_leads_anywhere_in_the_log_and_out_of_range_is_told(rig: Rig) -> None:
    partition = filled(rig)
    reader = partition.reader(0)
    end = sum(COUNTS)
    for offset in (30, 0, end - 1, 7, 7, 8, end):
        reader.seek(offset)
        data = reader.read(1)
        if offset == end:
            assert not data
        else:
            found = walk(data)[0]
            assert found.base_offset <= offset < found.next_offset
    reader.seek(end + 1)
    with pytest.raises(OffsetOutOfRange):
        reader.read()
    reader.seek(3)
    assert reader.read(1)


def test_a_reader_never_reads_beyond_the_commit(rig: Rig) -> None:
    """Bytes that a writer has written and not committed are in the file already."""
    partition = rig.partition(1, segment_bytes=1 << 20)
    partition.append(batch(0, 0))
    uncommitted = batch(9, 9)
    uncommitted[:8] = (1).to_bytes(8, "big")  # the offset it will have
    following = partition.reader(0)
    with log_file(partition, 0).open("ab") as file:
        file.write(uncommitted)
    for reader in (partition.reader(0), following):
        assert names(reader.read()) == [(0, 0)]
        assert bytes(reader.read()) == b""
    assert bytes(partition.reader(1).read()) == b""
    partition.append(batch(0, 1))
    assert read_all(partition) == [(0, 0), (0, 1)]


def test_a_reader_of_a_quiet_log_makes_no_system_call(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    reader = partition.reader(0)
    reader.read()
    _os.trap(1 << 60, kinds=_os.ALL & ~_os.READ)
    for _ in range(10):
        assert not reader.read()
    assert _os.steps_taken() == 0


# ---- what is gone


def test_a_reader_whose_records_were_deleted_is_told_the_range(rig: Rig) -> None:
    partition = filled(rig, segment_bytes=300)
    opened, fresh = partition.reader(0), partition.reader(0)
    opened.read(1)
    bases = partition.segments()
    partition.cleanup.delete_before(bases[2] + 1)
    assert partition.segments()[0] == bases[2]
    for reader in (opened, fresh):
        with pytest.raises(OffsetOutOfRange) as caught:
            reader.read()
        assert (caught.value.start, caught.value.end) == (bases[2] + 1, sum(COUNTS))
        reader.seek(caught.value.start)
    assert [record.offset for record in records(partition, bases[2] + 1)] == list(range(bases[2] + 1, sum(COUNTS)))


def test_a_reader_within_a_removed_segment_reads_on_as_long_as_its_offset_is_in_the_log(rig: Rig) -> None:
    partition = filled(rig, segment_bytes=300)
    bases = partition.segments()
    reader = partition.reader(0)
    while reader.offset < bases[1]:
        reader.read(1)
    partition.cleanup.delete_before(bases[1])  # the segment it has open is gone, its offset is not
    assert not log_file(partition, 0).exists()
    seen = []
    while data := reader.read(1):
        seen += [each.base_offset for each in walk(data)]
    assert seen[0] == bases[1]
    assert reader.offset == sum(COUNTS)


def test_a_reader_of_a_deleted_topic_is_told_so(rig: Rig) -> None:
    partition = filled(rig, segment_bytes=300)
    opened, fresh = partition.reader(0), partition.reader(5)
    opened.read(1)
    partition.mark_deleted()
    shutil.rmtree(partition.directory)
    with pytest.raises(UnknownTopic):
        fresh.read()
    with pytest.raises(UnknownTopic):
        list(iter(lambda: bytes(opened.read(1)), b""))


@pytest.mark.parametrize("which", [0, 1, 2, -2, -1])
def test_a_missing_segment_is_an_error_after_everything_before_it(rig: Rig, which: int) -> None:
    partition = filled(rig, segment_bytes=300)
    bases = partition.segments()
    gone = bases[which]
    log_file(partition, gone).unlink()
    reader = partition.reader(0)
    seen, error = read_until_damage(reader, 1)
    assert offsets_of(seen) == list(range(gone))
    assert error.path is not None and error.path.startswith(partition.directory)
    with pytest.raises(CorruptBatch):
        partition.reader(gone).read()
    if which not in (-1, len(bases) - 1):
        after = bases[bases.index(gone) + 1]
        assert records(partition, after)[0].offset == after


# ---- damage


@pytest.mark.parametrize("window", [1, 1 << 20])
@pytest.mark.parametrize("byte", [8, 11, 16, 17, 21, 23, 30, 50, 61, 70])
def test_everything_before_a_damaged_batch_is_delivered_and_the_error_says_where_it_is(
    rig: Rig, window: int, byte: int
) -> None:
    """Damage in the length, the magic, the CRC, the attributes, the count, times, producer, records."""
    partition = filled(rig, segment_bytes=1 << 20, index_interval_bytes=1 << 20)
    path = log_file(partition, 0)
    positions = list(itertools.accumulate([0, *(each.size for each in walk(path.read_bytes()))]))
    bad = 5
    start = sum(COUNTS[:bad])
    flip(path, positions[bad] + byte, 0x40)
    reader = partition.reader(0)
    seen, error = read_until_damage(reader, window)
    assert offsets_of(seen) == list(range(start))
    assert error.path == str(path)
    assert error.position == positions[bad]
    assert f"{path}: byte {positions[bad]}: " in error.message
    assert error.message.count("byte ") == 1
    assert reader.offset == start
    with pytest.raises(CorruptBatch):  # and it is met again
        reader.read(window)
    if byte not in (8, 11, 16, 23):  # the header still tells where reading can go on
        assert error.next_offset == start + COUNTS[bad]
    reader.seek(start + COUNTS[bad])
    if byte not in (8, 11, 16, 23):
        assert walk(reader.read(1))[0].base_offset == start + COUNTS[bad]


@pytest.mark.parametrize("byte", range(8))
def test_a_batch_with_another_offset_than_the_one_that_follows_is_damage(rig: Rig, byte: int) -> None:
    """Offsets lie outside of the CRC; that they follow on is their check."""
    partition = filled(rig, segment_bytes=1 << 20, index_interval_bytes=1 << 20)
    path = log_file(partition, 0)
    second = walk(path.read_bytes())[0].size
    flip(path, second + byte, 0x01)
    reader = partition.reader(0)
    assert len(walk(reader.read())) == 1
    with pytest.raises(CorruptBatch) as caught:
        reader.read()
    assert caught.value.position == second


@pytest.mark.parametrize("cut", [1, 30, 61, 62])
def test_a_closed_segment_that_was_cut_is_an_error_after_what_is_left(rig: Rig, cut: int) -> None:
    partition = filled(rig, segment_bytes=400)
    path = log_file(partition, 0)
    sizes = [each.size for each in walk(path.read_bytes())]
    os.truncate(path, sum(sizes) - cut)
    reader = partition.reader(0)
    seen, error = read_until_damage(reader, 1000)
    assert len(seen) == len(sizes) - 1
    assert error.path == str(path)
    assert error.position == sum(sizes[:-1])


def test_a_closed_segment_that_lost_a_whole_batch_is_an_error(rig: Rig) -> None:
    partition = filled(rig, segment_bytes=400)
    path = log_file(partition, 0)
    found = walk(path.read_bytes())
    os.truncate(path, sum(each.size for each in found[:-1]))
    reader = partition.reader(0)
    seen, error = read_until_damage(reader, 1000)
    assert seen == found[:-1]
    assert reader.offset == found[-1].base_offset
    assert error.next_offset == partition.segments()[1]


def test_a_closed_segment_that_was_cut_below_the_log_start_is_an_error_and_no_endless_search(rig: Rig) -> None:
    partition = filled(rig, segment_bytes=400)
    path = log_file(partition, 0)
    found = walk(path.read_bytes())
    partition.cleanup.delete_before(found[-1].base_offset)
    os.truncate(path, found[0].size)
    with pytest.raises(CorruptBatch):
        partition.reader(found[-1].base_offset).read()


def test_an_active_segment_that_was_cut_is_an_error_after_what_is_left(rig: Rig) -> None:
    partition = filled(rig, segment_bytes=1 << 20)
    path = log_file(partition, 0)
    sizes = [each.size for each in walk(path.read_bytes())]
    for left in (0, 10, sum(sizes[:3]), sum(sizes[:3]) + 30):
        data = path.read_bytes()
        os.truncate(path, left)
        seen, _ = read_until_damage(partition.reader(0), 1000)
        assert len(seen) == (3 if left >= sum(sizes[:3]) else 0)
        path.write_bytes(data)


def test_rubbish_and_directories_beside_the_segments_are_ignored(rig: Rig) -> None:
    partition = filled(rig, segment_bytes=300)
    directory = Path(partition.directory)
    for name in (
        "notes.txt",
        "123.log",
        f"{3:020}.log.cut-1",
        f"{3:021}.log",
        "-0000000000000000003.log",
        f"{3:020}.LOG",
    ):
        (directory / name).write_bytes(b"rubbish")
    assert len(records(partition)) == sum(COUNTS)
    assert len(records(partition, 4)) == sum(COUNTS) - 4
