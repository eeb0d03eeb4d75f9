"""One partition: append, sync, ends, the roll of segments, and what is refused."""

from __future__ import annotations

import errno
import os
import random
import struct
import time
from pathlib import Path

import pytest

from klamm.batch import RECORDS, Builder, Record, decode, walk
from klamm.disk import _os
from klamm.errors import CorruptBatch, DiskFull, KlammError, LogError, OffsetOutOfRange, ReadOnly, RecordTooLarge
from klamm.log import head, results
from klamm.log.partition import Partition
from tests.crash.cases import seed_of
from tests.log.logs import batch_of, flip, log_file, move_clock, records
from tests.rig import Rig, batch, index_is_true, names, read_all, scan_files

ONE = len(batch(0, 0))  # bytes of a batch


# ---- append


def test_an_append_gives_the_offset_of_its_first_record(rig: Rig) -> None:
    partition = rig.partition(1)
    assert partition.append(batch_of([1, 2, 3])) == 0
    assert partition.append(batch_of([4])) == 3
    assert partition.append(batch_of([5] * 10)) == 4
    assert [record.offset for record in records(partition)] == list(range(14))


def test_an_append_patches_offset_and_epoch_into_the_buffer_and_leaves_the_rest(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    data = batch(0, 1)
    before = bytes(data)
    assert partition.append(data) == 1
    assert data[16:] == before[16:]
    assert walk(bytes(data))[0].base_offset == 1
    assert log_file(partition, 0).read_bytes().endswith(bytes(data))


def test_only_the_first_bytes_of_a_larger_buffer_are_appended(rig: Rig) -> None:
    partition = rig.partition(1)
    data = batch(0, 0)
    buffer = data + b"rubbish" * 10
    assert partition.append(buffer, len(data)) == 0
    assert partition.append(memoryview(buffer), len(data)) == 1
    assert partition.try_append(buffer, len(data)) == 2
    assert scan_files(partition) == [(0, 0)] * 3


def test_one_record_can_be_appended_the_quick_way(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=10_000)
    for number, (key, value) in enumerate([(b"k", b"v"), (None, b"v"), (b"k", None), (None, None), (b"", b"x" * 3000)]):
        assert partition.append_one(key, value, number) == number
    found = [(record.key, record.value, record.timestamp) for record in records(partition)]
    assert found == [(b"k", b"v", 0), (None, b"v", 1), (b"k", None, 2), (None, None, 3), (b"", b"x" * 3000, 4)]
    before = int(time.time() * 1000)
    partition.append_one(None, b"now")
    assert before <= records(partition, 5)[0].timestamp <= int(time.time() * 1000)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bytearray(), id="nothing"),
        pytest.param(bytearray(60), id="short"),
        pytest.param(bytearray(100), id="zeroes"),
        pytest.param(batch(0, 0)[:-1], id="cut"),
        pytest.param(batch(0, 0) + b"x", id="long"),
        pytest.param(batch(0, 0) + batch(0, 0), id="two"),
        pytest.param(batch(0, 0)[:16] + b"\x01" + batch(0, 0)[17:], id="older magic"),
        pytest.param(batch(0, 0)[:23] + b"\xff" * 4 + batch(0, 0)[27:], id="negative count"),
    ],
)
def test_what_is_not_one_whole_batch_is_refused_and_leaves_no_trace(rig: Rig, data: bytearray) -> None:
    partition = rig.partition(1)
    with pytest.raises(ValueError):
        partition.append(data)
    assert partition.append(batch(0, 0)) == 0
    with pytest.raises(ValueError):
        partition.append(data)
    assert partition.append(batch(0, 1)) == 1
    assert scan_files(partition) == [(0, 0), (0, 1)]


@pytest.mark.parametrize("data", [None, "text", 7, [1, 2]])
def test_what_is_no_buffer_is_a_type_error(rig: Rig, data: object) -> None:
    with pytest.raises(TypeError):
        rig.partition(1).append(data)  # type: ignore[arg-type]


def test_a_size_beyond_the_buffer_or_a_buffer_that_cannot_be_written_is_refused(rig: Rig) -> None:
    partition = rig.partition(1)
    data = batch(0, 0)
    with pytest.raises(ValueError):
        partition.append(data, len(data) + 1)
    with pytest.raises((BufferError, TypeError, ValueError)):
        partition.append(bytes(data))  # type: ignore[arg-type]
    assert partition.ends().end == 0


def test_a_batch_beyond_max_message_bytes_is_refused_and_one_that_just_fits_is_taken(rig: Rig) -> None:
    partition = rig.partition(1, max_message_bytes=ONE)
    for append in (partition.append, partition.try_append):
        with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
            append(batch(0, 0, 21))
    assert partition.append(batch(0, 0)) == 0
    with pytest.raises(RecordTooLarge):
        partition.append_one(None, b"x" * ONE)
    assert scan_files(partition) == [(0, 0)]


def test_settings_are_loaded_again_when_the_catalog_has_changed(rig: Rig) -> None:
    seen: list[Partition] = []
    partition = rig.partition(1)
    plain = partition._reload
    partition._reload = lambda each: (seen.append(each), plain(each))[1]
    partition.append(batch(0, 0))
    assert seen == []
    rig.heads.bump_catalog_version()
    assert partition.append(batch(0, 1)) == 1
    assert seen == [partition]
    partition.append(batch(0, 2))
    assert len(seen) == 1


def test_a_full_disk_is_said_plainly_and_appends_go_on_afterwards(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    for step in (1, 2):
        _os.trap(step, kinds=_os.WRITE, error=errno.ENOSPC)
        with pytest.raises(DiskFull):
            partition.append(batch(0, 1))
        _os.trap(0)
        assert scan_files(partition) == [(0, 0)]
    assert partition.append(batch(0, 1)) == 1


def test_other_errors_of_the_system_name_the_partition(rig: Rig) -> None:
    partition = rig.partition(1)
    _os.trap(1, kinds=_os.WRITE, error=errno.EIO)
    with pytest.raises(LogError, match="orders/1: cannot append: Input/output error"):
        partition.append(batch(0, 0))
    _os.trap(1, kinds=_os.OPEN, error=errno.EROFS, repeat=True)
    partition.log.close_idle()
    with pytest.raises(ReadOnly):
        partition.append(batch(0, 0))


def test_too_many_open_files_makes_room_and_tries_again(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    partition.log.close_idle()
    rig.events.clear()
    _os.trap(1, kinds=_os.OPEN, error=errno.EMFILE)
    assert partition.append(batch(0, 1)) == 1
    assert rig.events[0] & head.OPENED


# ---- timestamps


def test_create_time_keeps_the_producers_timestamps(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(batch_of([5, 3, 9]))
    assert [record.timestamp for record in records(partition)] == [5, 3, 9]
    assert partition.snapshot().max_timestamp == 9


@pytest.mark.parametrize("codec", [0, 1])
def test_log_append_time_stamps_every_record_with_the_time_of_its_append(rig: Rig, codec: int) -> None:
    partition = rig.partition(1, message_timestamp_type="LogAppendTime", segment_bytes=10_000)
    for append in (partition.append, partition.try_append):
        before = int(time.time() * 1000)
        start = append(batch_of([5, 3, 9], codec=codec))
        after = int(time.time() * 1000)
        assert start is not None
        stamps = {record.timestamp for record in records(partition, start)}
        assert len(stamps) == 1 and before <= stamps.pop() <= after
    partition.append_one(None, b"x", 7)
    assert records(partition, 6)[0].timestamp >= before
    assert partition.snapshot().max_timestamp >= before
    assert len(scan_bytes(partition)) == 7, "and the checksums are right"


def scan_bytes(partition: Partition) -> list[Record]:
    return decode(log_file(partition, 0).read_bytes(), form=RECORDS)


# ---- rolling


def sizes_of(partition: Partition) -> dict[int, int]:
    return {base: log_file(partition, base).stat().st_size for base in partition.segments()}


def test_a_segment_that_would_grow_beyond_segment_bytes_is_closed(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=3 * ONE)
    for number in range(10):
        partition.append(batch(0, number))
    assert sizes_of(partition) == {0: 3 * ONE, 3: 3 * ONE, 6: 3 * ONE, 9: ONE}
    assert rig.events.count(head.OPENED | head.ROLLED | head.RECOVERY_POINT) == 3
    assert read_all(partition) == scan_files(partition) == [(0, number) for number in range(10)]
    assert index_is_true(partition) > 3


def test_a_batch_larger_than_segment_bytes_gets_a_segment_of_its_own(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=300)
    for number, padding in enumerate([2000, 10, 3000, 3000, 10]):
        partition.append(batch(0, number, padding))
    assert partition.segments() == [0, 1, 2, 3, 4]
    assert read_all(partition) == [(0, number) for number in range(5)]


def test_a_segment_of_segment_records_is_closed(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=1 << 20, segment_records=5)
    for count in (2, 2, 2, 5, 1, 4, 7, 1):
        partition.append(batch_of([0] * count))
    assert partition.segments() == [0, 4, 6, 11, 16, 23]
    assert len(records(partition)) == 24


def test_a_segment_older_than_segment_ms_is_closed_at_the_next_append(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=1 << 20, segment_ms=60_000)
    partition.append(batch(0, 0))
    move_clock(rig, 50_000)
    partition.append(batch(0, 1))
    assert partition.segments() == [0]
    move_clock(rig, 15_000)
    assert partition.segments() == [0], "time alone changes no file"
    partition.append(batch(0, 2))
    assert partition.segments() == [0, 2]
    move_clock(rig, 59_000)  # counted from the segment's first record
    partition.append(batch(0, 3))
    assert partition.segments() == [0, 2]
    move_clock(rig, 10**9)
    partition.append(batch(0, 4))
    assert partition.segments() == [0, 2, 4]
    assert read_all(partition) == [(0, number) for number in range(5)]


def test_the_age_of_a_segment_is_the_same_for_every_process(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=1 << 20, segment_ms=60_000)
    partition.append(batch(0, 0))
    move_clock(rig, 61_000)
    rig.child().partition(1, segment_bytes=1 << 20, segment_ms=60_000).append(batch(1, 0))
    assert partition.segments() == [0, 1]
    partition.append(batch(0, 1))
    assert partition.segments() == [0, 1]


def test_writers_with_segments_open_follow_a_roll_of_another(rig: Rig) -> None:
    writers = [rig.partition(1), rig.child().partition(1), rig.child().partition(1)]
    for number in range(30):
        assert writers[number % 3].append(batch(number % 3, number)) == number
    assert read_all(writers[0]) == scan_files(writers[0]) == [(number % 3, number) for number in range(30)]
    assert len(writers[0].segments()) > 5
    assert index_is_true(writers[0]) > 5


def test_a_roll_by_hand_closes_a_segment_that_has_records_and_no_other(rig: Rig) -> None:
    partition = rig.partition(1)

    def roll() -> None:
        partition.log.lock()
        try:
            partition.log.roll()
        finally:
            partition.log.unlock()

    partition.append(batch(0, 0))
    roll()
    seq = partition.log.seq
    roll()
    assert partition.log.seq == seq
    assert partition.snapshot().active_base == 1
    assert partition.snapshot().position == 0
    assert read_all(partition) == [(0, 0)]
    partition.append(batch(0, 1))
    assert read_all(partition) == [(0, 0), (0, 1)]


# ---- what there is


def test_ends_tell_the_range_and_what_is_on_disk(rig: Rig) -> None:
    partition = rig.partition(1)
    assert partition.ends() == (0, 0, 0, 0, 0)
    assert partition.log_size() == 0
    for number in range(10):
        partition.append(batch(0, number))
    assert partition.ends() == (0, 10, 10, 0, 0)
    partition.sync(4)
    assert partition.ends().flushed == 10, "a sync is for everything that is committed"
    partition.append(batch(0, 10))
    assert partition.ends() == (0, 11, 11, 10, 0)
    assert partition.log_size() == sum(sizes_of(partition).values())


def test_an_empty_partition_has_no_files_and_can_be_read_synced_and_closed(rig: Rig) -> None:
    partition = rig.partition(1)
    assert bytes(partition.reader(0).read()) == b""
    assert partition.offset_at(0) is None
    partition.sync(0)
    partition.checkpoint()
    assert partition.cleanup.expire() == []
    assert partition.cleanup.delete_before(0) == 0
    partition.close()
    assert not os.path.exists(partition.directory)


def test_without_a_lock_file_a_partition_can_only_be_read(rig: Rig) -> None:
    rig.partition(1).append(batch(0, 0))
    heads = head.Heads(f"{rig.path}/heads", writable=False)
    mine = rig.child()
    mine.heads, mine.lock, mine.life = heads, None, None  # type: ignore[assignment]
    partition = mine.partition(1)
    assert names(partition.reader(0).read()) == [(0, 0)]
    assert partition.ends() == (0, 1, 1, 0, 0)
    assert partition.offset_at(0) == 0
    assert partition.cleanup.expire() == []
    for use in (
        lambda: partition.append(batch(0, 1)),
        lambda: partition.cleanup.delete_before(1),
        lambda: partition.sync(1),
    ):
        with pytest.raises(ReadOnly):
            use()
    partition.checkpoint()
    flip(Path(rig.path, "heads"), head.SLOT_BYTES + 128 + partition.log.seq % 8 * 64)
    with pytest.raises(CorruptBatch):
        partition.ends()
    partition.close()


def test_an_offset_beyond_the_end_or_before_the_start_is_an_error_that_tells_the_range(rig: Rig) -> None:
    partition = rig.partition(1)
    for number in range(10):
        partition.append(batch(0, number))
    partition.cleanup.delete_before(4)
    for offset in (-1, 0, 3, 11, 1 << 62):
        with pytest.raises(OffsetOutOfRange) as caught:
            partition.reader(offset).read()
        assert (caught.value.offset, caught.value.start, caught.value.end) == (offset, 4, 10)
    assert bytes(partition.reader(10).read()) == b""


def test_a_log_of_one_process_is_the_log_of_all(rig: Rig) -> None:
    """What one appends the others read at once, with settings and readers of their own."""
    mine, other = rig.partition(1), rig.child().partition(1)
    reader = other.reader(0)
    for number in range(20):
        mine.append(batch(0, number))
        assert names(reader.read()) == [(0, number)]
        assert bytes(reader.read()) == b""


def test_headers_on_disk_are_what_kafka_would_have_written(rig: Rig) -> None:
    partition = rig.partition(1)
    builder = Builder(1 << 20)
    builder.add(b"k", b"v", [("h", b"1"), ("none", None)], 1234)
    partition.append(batch(0, 0))
    partition.append(bytearray(builder.seal()))
    raw = log_file(partition, 0).read_bytes()[ONE:]
    assert struct.unpack_from(">q", raw)[0] == 1
    assert struct.unpack_from(">i", raw, 8)[0] == len(raw) - 12
    assert raw[16] == 2
    (record,) = decode(raw, form=RECORDS)
    assert (record.offset, record.timestamp, record.key, record.value) == (1, 1234, b"k", b"v")
    assert record.headers == (("h", b"1"), ("none", None))


# ---- results of native calls


def test_every_result_of_a_native_call_has_an_error_in_words(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    for result in head.Result:
        error = results.error_of(partition, result)
        assert isinstance(error, KlammError) and "Unknown error" not in str(error), result
    assert isinstance(results.error_of(partition, -errno.ENOSPC), DiskFull)
    assert "Input/output error" in str(results.error_of(partition, -errno.EIO))


def test_an_error_of_others_is_not_taken_for_one_of_the_head(rig: Rig) -> None:
    partition = rig.partition(1)
    for name in ("mine", "damaged_head"):
        with pytest.raises(RuntimeError, match=f"^{name}$"), partition.translate_errors():
            raise RuntimeError(name)


def test_an_append_that_may_not_wait_makes_no_files(rig: Rig) -> None:
    """Nor opens one for the first time: it is left to a thread. What was closed because it was idle is opened again."""
    chance = random.Random(seed_of())
    partition = rig.partition(1, segment_bytes=1000, index_interval_bytes=300)
    number = left = closed = 0
    for _ in range(300):
        before = sorted(os.listdir(partition.directory)) if number else []
        _os.trap(1 << 60, kinds=_os.OPEN)
        offset = partition.append_now(batch(0, number, chance.randrange(100)))
        opened = _os.steps_taken()
        _os.trap(0)
        if offset is None:
            assert opened == 0
            left += 1
            offset = partition.append(batch(0, number, chance.randrange(100)))
        elif number:
            assert sorted(os.listdir(partition.directory)) == before
            assert opened <= closed
            closed -= opened
        assert offset == number
        number += 1
        if chance.random() < 0.1:
            closed = 2  # the segment and its index
            partition.log.close_idle()
    assert 10 < left < 150
    assert partition.snapshot().next_offset == number == 300
