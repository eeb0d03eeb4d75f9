"""Retention and deletion: whole segments, the oldest first, never the active one, and never by a jump of the clock."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from klamm.batch import crc32c
from klamm.disk import _os
from klamm.errors import KlammError, OffsetOutOfRange
from klamm.log import head, point, retention
from klamm.log.partition import Partition
from tests.log.compacted import in_transaction, sealed
from tests.log.logs import batch_of, flip, log_file, move_clock, power_cut, records, set_anchor
from tests.procs import children
from tests.rig import Rig

DAY = 24 * 3600 * 1000
SIZE = len(batch_of([0], padding=20))


def filled(rig: Rig, ages_ms: list[int], *, in_segment: int = 2, **changes: int | str) -> Partition:
    """A record of each age, so many to a segment."""
    partition = rig.partition(rig.fresh_slot(), segment_bytes=in_segment * SIZE, **changes)
    now = rig.heads.clock_ms()
    for age in ages_ms:
        partition.append(batch_of([now - age], padding=20))
    return partition


# ---- by time


def test_segments_whose_every_record_is_too_old_go(rig: Rig) -> None:
    partition = filled(rig, [9 * DAY, 8 * DAY, 5 * DAY, 4 * DAY, 3 * DAY, DAY, 0], retention_ms=2 * DAY)
    assert partition.segments() == [0, 2, 4, 6]
    assert partition.cleanup.expire() == [0, 2]
    assert partition.segments() == [4, 6]
    assert partition.ends()[:2] == (4, 7)
    assert [record.offset for record in records(partition, 4)] == [4, 5, 6]
    assert partition.cleanup.expire() == []


def test_a_segment_stays_while_its_youngest_record_does_and_so_do_those_after_it(rig: Rig) -> None:
    """Timestamps out of order: only a prefix of the log goes."""
    partition = filled(rig, [9 * DAY, 0, 9 * DAY, 9 * DAY, 9 * DAY, 9 * DAY], retention_ms=DAY)
    assert partition.cleanup.expire() == []
    assert partition.ends().start == 0


def test_minus_one_keeps_for_ever(rig: Rig) -> None:
    partition = filled(rig, [9000 * DAY] * 9, retention_ms=-1, retention_bytes=-1)
    move_clock(rig, 9000 * DAY)
    assert partition.cleanup.expire() == []
    assert partition.ends()[:2] == (0, 9)


def test_the_active_segment_is_never_removed_but_closed_when_all_of_it_is_too_old(rig: Rig) -> None:
    partition = filled(rig, [9 * DAY] * 5, retention_ms=DAY)
    assert partition.cleanup.expire() == [0, 2, 4]
    assert partition.ends()[:2] == (5, 5)
    assert partition.segments() == [5], "empty, and named by the next offset"
    now = partition.snapshot()
    assert (now.active_base, now.position) == (5, 0)
    assert partition.cleanup.expire() == []
    assert bytes(partition.reader(5).read()) == b""
    assert partition.append(batch_of([0])) == 5, "offsets never start anew"


def test_an_active_segment_with_a_young_record_stays(rig: Rig) -> None:
    partition = filled(rig, [9 * DAY, 9 * DAY, 9 * DAY, 0], in_segment=10, retention_ms=DAY)
    assert partition.cleanup.expire() == []
    assert partition.snapshot().active_base == 0
    move_clock(rig, 2 * DAY)
    assert partition.cleanup.expire() == [0]
    assert partition.ends()[:2] == (4, 4)


def test_a_jump_of_the_wall_clock_expires_nothing(rig: Rig) -> None:
    """The store's clock is the wall clock of the first open since boot, plus the time since: it does not jump along.

    That the wall clock jumped ahead by years since then is the same as that the store's clock is years behind it.
    """
    set_anchor(rig, -3000 * DAY)
    partition = filled(rig, [3600 * 1000] * 6, retention_ms=DAY)
    assert time.time() * 1000 - records(partition)[0].timestamp > 2999 * DAY
    assert partition.cleanup.expire() == []
    assert rig.child().partition(partition.slot, segment_bytes=2 * SIZE, retention_ms=DAY).cleanup.expire() == []
    move_clock(rig, 2 * DAY)
    assert partition.cleanup.expire() == [0, 2, 4]


def test_a_clock_that_was_ahead_at_boot_expires_nothing_young_and_blocks_nothing(rig: Rig) -> None:
    """The wall clock was a year ahead when the store was opened, and was set right then."""
    set_anchor(rig, 365 * DAY)
    wall = rig.heads.wall_ms()
    partition = rig.partition(rig.fresh_slot(), segment_bytes=2 * SIZE, retention_ms=7 * DAY)
    for age in (9 * DAY, 9 * DAY, 1000, 1000, 0):
        partition.append(batch_of([wall - age], padding=20))
    assert partition.cleanup.expire() == [0], "what is old by both clocks goes; what is seconds old stays"
    assert partition.ends().start == 2
    move_clock(rig, 8 * DAY)
    assert partition.cleanup.expire() == [2, 4], "and it goes when it is old"


def test_a_clock_that_was_behind_at_boot_is_followed_when_the_wall_clock_has_been_right_for_an_hour(rig: Rig) -> None:
    """A machine without a battery boots in 1970; then the network sets its clock."""
    set_anchor(rig, -rig.heads.clock_ms() + 5000)
    wall = rig.heads.wall_ms()
    partition = rig.partition(rig.fresh_slot(), segment_bytes=2 * SIZE, retention_ms=7 * DAY)
    for age in (9 * DAY, 9 * DAY, 1000, 1000, 0):
        partition.append(batch_of([wall - age], padding=20))
    assert partition.cleanup.expire() == [], "nobody can know yet which clock is right"
    move_clock(rig, 59 * 60 * 1000)
    assert partition.cleanup.expire() == []
    move_clock(rig, 2 * 60 * 1000)
    assert partition.cleanup.expire() == [0]
    assert abs(rig.heads.followed_ms() - rig.heads.wall_ms()) < 60_000
    assert partition.ends()[:2] == (2, 5)


def test_a_wall_clock_is_not_followed_before_it_has_stayed_as_it_is_for_an_hour(rig: Rig) -> None:
    set_anchor(rig, -9 * DAY)  # as if it had jumped ahead after the store was opened
    partition = filled(rig, [1000] * 5, retention_ms=7 * DAY)
    assert partition.cleanup.expire() == []
    move_clock(rig, 50 * 60 * 1000)
    assert partition.cleanup.expire() == []
    set_anchor(rig, 4 * DAY)  # it jumps again, to another time
    assert partition.cleanup.expire() == []
    move_clock(rig, 50 * 60 * 1000)
    assert partition.cleanup.expire() == [], "the hour begins again"
    assert partition.ends().start == 0
    move_clock(rig, 11 * 60 * 1000)
    assert partition.cleanup.expire() == [0, 2, 4], "and ends"


def test_a_clock_in_any_state_deletes_no_record_that_is_young_by_the_wall_clock(rig: Rig) -> None:
    """However the anchor was wrong and however often, once an hour has passed retention works as if it had not been."""
    for wrong in (-20_000 * DAY, -DAY, -120_000, 120_000, DAY, 20_000 * DAY):
        set_anchor(rig, wrong)
        wall = rig.heads.wall_ms()
        partition = rig.partition(rig.fresh_slot(), segment_bytes=SIZE, retention_ms=7 * DAY)
        for age in (8 * DAY, 6 * DAY, 0):
            partition.append(batch_of([wall - age], padding=20))
        assert partition.cleanup.expire() in ([], [0])
        move_clock(rig, 61 * 60 * 1000)
        partition.cleanup.expire()
        assert partition.ends().start == 1, wrong


# ---- timestamps in the future


@pytest.mark.parametrize("stamp", [1 << 62, (1 << 63) - 2])
@pytest.mark.parametrize("at", [0, 1, 3, 7])
def test_a_record_from_the_future_does_not_switch_retention_off(rig: Rig, stamp: int, at: int) -> None:
    partition = rig.partition(rig.fresh_slot(), segment_bytes=2 * SIZE, retention_ms=DAY)
    for number in range(8):
        partition.append(batch_of([stamp if number == at else rig.heads.clock_ms()], padding=20))
    assert partition.cleanup.expire() == []
    move_clock(rig, 2 * DAY)
    assert partition.cleanup.expire() == [0, 2, 4, 6]
    assert partition.ends()[:2] == (8, 8)


def test_a_segment_written_while_the_clock_was_ahead_is_as_old_as_the_next_one(rig: Rig) -> None:
    """Timestamps and the file's time lie in the future alike; segments after it tell when it must have been written."""
    partition = rig.partition(rig.fresh_slot(), segment_bytes=2 * SIZE, retention_ms=DAY)
    now = rig.heads.clock_ms()
    for number in range(6):
        partition.append(batch_of([now + 900 * DAY if number < 4 else now], padding=20))
    for base in (0, 2):
        os.utime(log_file(partition, base), (now / 1000 + 900 * 86400,) * 2)
    assert partition.cleanup.expire() == []
    move_clock(rig, 2 * DAY)
    assert partition.cleanup.expire() == [0, 2, 4]


def test_a_record_from_the_future_does_not_keep_a_log_from_being_compacted(rig: Rig) -> None:
    partition = rig.partition(rig.fresh_slot(), cleanup_policy="compact", segment_bytes=200, min_compaction_lag_ms=DAY)
    for number in range(8):
        partition.append(sealed([(b"k", b"." * 20, None, 1 << 62 if number == 1 else rig.heads.clock_ms())]))
    assert partition.cleanup.compact() is None, "all of it is too young"
    move_clock(rig, 2 * DAY)
    done = partition.cleanup.compact()
    assert done is not None and done.records_removed > 0


def test_the_stores_clock_goes_at_the_pace_of_the_machine(rig: Rig) -> None:
    clock, boot = rig.heads.clock_ms(), _os.boot_ms()
    time.sleep(0.02)
    assert abs((rig.heads.clock_ms() - clock) - (_os.boot_ms() - boot)) <= 1000
    assert rig.heads.clock_ms() >= clock + 19
    assert abs(rig.child().heads.clock_ms() - rig.heads.clock_ms()) <= 1000


def test_records_without_timestamps_are_as_old_as_their_file(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=2 * SIZE, retention_ms=DAY)
    for _ in range(5):
        data = batch_of([0], padding=20)
        for at in (27, 35):  # both timestamps -1: none
            data[at : at + 8] = b"\xff" * 8
        data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
        partition.append(data)
    assert partition.cleanup.expire() == []
    os.utime(log_file(partition, 0), (1, 1))
    assert partition.cleanup.expire() == [0]
    assert partition.ends()[:2] == (2, 5)


# ---- by size


@pytest.mark.parametrize(
    ("limit", "left"), [(1 << 40, 10), (7 * SIZE, 8), (6 * SIZE, 6), (5 * SIZE, 6), (1, 2), (0, 2)]
)
def test_the_oldest_segments_go_while_the_rest_is_still_as_large_as_retention_bytes(
    rig: Rig, limit: int, left: int
) -> None:
    partition = filled(rig, [0] * 10, retention_ms=-1, retention_bytes=limit)
    removed = partition.cleanup.expire()
    assert removed == list(range(0, 10 - left, 2))
    assert partition.ends()[:2] == (10 - left, 10)
    assert partition.log_size() == left * SIZE
    assert partition.segments()[-1] == 8, "the active one stays however large"


def test_what_is_too_old_and_what_is_too_much_both_go(rig: Rig) -> None:
    partition = filled(rig, [9 * DAY] * 4 + [0] * 6, retention_ms=DAY, retention_bytes=4 * SIZE)
    assert partition.cleanup.expire() == [0, 2, 4]


def test_many_cleaners_at_once_remove_each_segment_once(rig: Rig) -> None:
    partition = filled(rig, [9 * DAY] * 40 + [0], retention_ms=DAY)

    def clean() -> list[int]:
        mine = rig.child().partition(partition.slot, segment_bytes=2 * SIZE, retention_ms=DAY)
        return mine.cleanup.expire()

    with children() as start:
        removed = [base for child in [start(clean) for _ in range(4)] for base in child.answer()]
    assert sorted(removed) == list(range(0, 40, 2))
    assert partition.ends()[:2] == (40, 41)


def test_a_damaged_segment_is_not_taken_for_an_old_one(rig: Rig) -> None:
    partition = filled(rig, [9 * DAY] * 6 + [0], retention_ms=DAY)
    log_file(partition, 2, ".index").unlink()
    flip(log_file(partition, 2), 70)
    try:
        removed = partition.cleanup.expire()
    except KlammError:
        removed = []
    assert removed in ([], [0])
    assert log_file(partition, 2).exists()


def test_the_age_of_a_segment_without_an_index_is_read_from_its_records(rig: Rig) -> None:
    partition = filled(rig, [9 * DAY, 9 * DAY, 9 * DAY, 0, 0], retention_ms=DAY)
    for path in Path(partition.directory).glob("*.index"):
        path.unlink()
    assert partition.cleanup.expire() == [0]
    assert partition.ends().start == 2


# ---- before an offset


@pytest.mark.parametrize("offset", range(11))
def test_records_before_an_offset_go_and_all_others_stay(rig: Rig, offset: int) -> None:
    partition = filled(rig, [0] * 10)
    assert partition.cleanup.delete_before(offset) == offset
    assert partition.ends()[:2] == (offset, 10)
    assert [record.offset for record in records(partition, offset)] == list(range(offset, 10))
    assert partition.segments()[0] == min(offset // 2 * 2, 8)
    assert partition.cleanup.delete_before(0) == offset, "backwards is no deletion"
    power_cut(partition)
    again = rig.child().partition(partition.slot, segment_bytes=2 * SIZE)
    assert again.ends()[:2] == (offset, 10)
    assert [record.offset for record in records(again, offset)] == list(range(offset, 10))


@pytest.mark.parametrize("offset", [-1, 11, 1 << 40])
def test_an_offset_that_is_not_there_cannot_be_deleted_before(rig: Rig, offset: int) -> None:
    partition = filled(rig, [0] * 10)
    with pytest.raises(OffsetOutOfRange):
        partition.cleanup.delete_before(offset)
    assert partition.ends()[:2] == (0, 10)


def test_a_deletion_is_on_disk_before_a_file_goes(rig: Rig) -> None:
    partition = filled(rig, [0] * 10)
    _os.trap(1, kinds=_os.UNLINK, error=5)
    with pytest.raises(KlammError):
        partition.cleanup.delete_before(7)
    _os.trap(0)
    known = point.load(partition.directory)
    assert isinstance(known, point.Point)
    assert known.log_start == 7
    assert partition.ends()[:2] == (7, 10)
    assert log_file(partition, 0).exists()
    partition.cleanup.delete_before(7)
    assert partition.segments() == [6, 8]


def test_what_was_deleted_is_not_found_by_its_time(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=1 << 20)
    for timestamp in (10, 50, 20, 30, 40):
        partition.append(batch_of([timestamp, timestamp + 1]))
    assert partition.offset_at(45) == 2
    partition.cleanup.delete_before(3)
    assert partition.offset_at(45) == 3
    assert partition.offset_at(0) == 3
    partition.cleanup.delete_before(4)
    assert partition.offset_at(45) is None
    assert partition.offset_at(41) == 9
    assert partition.offset_at(21) == 5


def test_what_went_with_a_segment_is_still_known_of_its_producers(rig: Rig) -> None:
    """A transaction that ended there is not open for ever, and a batch that lay there is a duplicate."""
    partition = filled(rig, [])
    first = batch_of([0], producer=5, epoch=0, sequence=0)
    partition.append(first)
    partition.append(in_transaction(7, 0, [(b"a", b"1")]))
    partition.checkpoint()
    partition.append(batch_of([0], producer=5, epoch=0, sequence=1))
    partition.append_marker(7, 1, commit=True)
    partition.append(batch_of([0], padding=20))
    assert partition.cleanup.delete_before(5) == 5
    power_cut(partition)
    again = rig.child().partition(partition.slot, segment_bytes=2 * SIZE)
    assert again.ends()[:3] == (5, 5, 5)
    assert again.append(batch_of([0], producer=5, epoch=0, sequence=1)) == 2
    assert again.append(batch_of([0], producer=5, epoch=0, sequence=2)) == 5


def test_a_reader_of_a_removed_segment_is_told_and_one_beyond_reads_on(rig: Rig) -> None:
    partition = filled(rig, [9 * DAY] * 6 + [0] * 4, retention_ms=DAY)
    behind, ahead = partition.reader(1), partition.reader(5)
    behind.read(1)
    ahead.read(1)
    assert partition.cleanup.expire() == [0, 2, 4]
    with pytest.raises(OffsetOutOfRange) as caught:
        behind.read()
    assert caught.value.start == 6
    assert ahead.read(1)
    assert ahead.offset == 7


def test_a_cleaner_never_holds_up_an_append_for_long(rig: Rig) -> None:
    """Stopped while it unlinks, it holds the clean byte only."""
    partition = filled(rig, [0] * 10)

    def clean() -> None:
        mine = rig.child().partition(partition.slot, segment_bytes=2 * SIZE)
        _os.trap(1, kinds=_os.UNLINK, signal=19)
        mine.cleanup.delete_before(7)

    with children() as start:
        cleaner = start(clean)
        assert cleaner.stopped()
        assert partition.try_append(batch_of([0])) == 10
        partition.sync(11)
        assert [record.offset for record in records(partition, 7)] == [7, 8, 9, 10]
        cleaner.go_on()
        cleaner.answer()
    assert partition.segments()[0] == 6


def test_removing_bumps_the_version_of_the_segments(rig: Rig) -> None:
    partition = filled(rig, [0] * 10)
    before = partition.log.segments_version
    partition.cleanup.delete_before(1)
    assert partition.log.segments_version == before
    partition.cleanup.delete_before(5)
    assert partition.log.segments_version > before


def test_the_active_segment_is_not_among_those_that_expire(rig: Rig) -> None:
    partition = filled(rig, [9 * DAY] * 5)
    now = partition.snapshot()
    start = retention.expired(
        partition.directory, now, retention_ms=0, retention_bytes=0, clock_ms=rig.heads.clock_ms()
    )
    assert start == now.active_base == 4
    assert partition.log.flags & head.DELETED == 0


def test_retention_first_rewrites_what_a_killed_syncer_left_unsynced(rig: Rig) -> None:
    partition = filled(rig, [9 * DAY] * 6, retention_ms=2 * DAY)
    partition.log.flushing = True  # and nobody holds the flush byte: whoever synced was killed
    assert partition.cleanup.delete_before(6) == 6
    assert not partition.log.flags & head.SYNC_FAILED
    partition.append(batch_of([0], padding=20))
    partition.log.flushing = True
    assert partition.cleanup.expire() != []


def test_a_checkpoint_survives_one_killed_syncer_after_the_other(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between healing and syncing somebody else may sync, and be killed."""
    partition = filled(rig, [0] * 6)
    rewrite_unsynced, more = partition.rewrite_unsynced, iter(range(3))

    def rewrite_and_leave_another() -> bool:
        done = rewrite_unsynced()
        if next(more, None) is not None:
            partition.append(batch_of([0], padding=20))  # not synced yet when the process that syncs it is killed
            partition.log.flushing = True
        return done

    monkeypatch.setattr(partition, "rewrite_unsynced", rewrite_and_leave_another)
    partition.log.flushing = True
    partition.checkpoint(force=True)
    assert next(more, None) is None and not partition.log.flags & head.SYNC_FAILED and not partition.log.flushing
