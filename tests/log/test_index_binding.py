"""An index belongs to what is in its segment: it is valid beside that and beside nothing else, and is made again."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from klamm.disk import _os
from klamm.log import _head, head, index_rebuild, recovery
from klamm.log.index import Index
from klamm.log.partition import Partition
from tests.log import compacted
from tests.log.logs import batch_of, flip, log_file, power_cut
from tests.log.test_index import check_all
from tests.rig import Rig, batch, dies, index_is_true, index_of

SIZE = len(batch_of([0]))
CHANGES = {"index_interval_bytes": 2 * SIZE, "segment_bytes": 10 * SIZE}


def filled(rig: Rig, times: list[int]) -> Partition:
    partition = rig.partition(rig.fresh_slot(), **CHANGES)
    for time in times:
        partition.append(batch_of([time]))
    return partition


def closed(partition: Partition) -> list[int]:
    return partition.segments()[:-1]


def are_valid(partition: Partition) -> list[bool]:
    found = []
    for base in closed(partition):
        with index_of(partition, base) as index:
            found.append(index.is_valid and (index.count > 0 or not log_file(partition, base).stat().st_size))
    return found


# ---- what an index is valid beside


def cut(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-SIZE])


def lengthened(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes() + path.read_bytes()[-SIZE:])


def replaced(path: Path, other: Path) -> None:
    shutil.copyfile(other, path)


def gone_on_differently(path: Path, other: Path) -> None:
    """As if two copies of a store had gone on by themselves: same start, same sizes, other records."""
    path.write_bytes(path.read_bytes()[: 3 * SIZE] + other.read_bytes()[3 * SIZE :])


def not_closed(path: Path, other: Path) -> None:
    """The process that rolled the segment was killed before it said what the segment is."""
    index = path.with_suffix(".index")
    data = bytearray(index.read_bytes())
    first = int.from_bytes(data[32:36], "little")
    index.write_bytes(_head.index_header(int(path.stem), first) + data[64:])


def of_another_base(path: Path, other: Path) -> None:
    shutil.copyfile(path.with_name(f"{10:020}.index"), path.with_suffix(".index"))


@pytest.mark.parametrize("change", [cut, lengthened, replaced, gone_on_differently, not_closed, of_another_base])
def test_an_index_is_valid_beside_its_own_segment_only(rig: Rig, change: Callable[[Path, Path], None]) -> None:
    partition = filled(rig, list(range(35)))
    other = filled(rig, [100 - time for time in range(35)])
    assert are_valid(partition) == [True, True, True]
    change(log_file(partition, 0), log_file(other, 0))
    assert are_valid(partition) == [False, True, True]


def test_the_index_of_a_segment_before_it_was_compacted_is_not_valid_after_that(rig: Rig) -> None:
    partition = rig.partition(1, **CHANGES, cleanup_policy="compact")
    partition.append(batch(0, 0))  # stays, so that the first batch is the same
    for number in range(40):
        partition.append(batch(1, number))
    path = log_file(partition, 0, ".index")
    before, start = path.read_bytes(), log_file(partition, 0).read_bytes()[:SIZE]
    partition.cleanup.compact(force=True)
    assert log_file(partition, 0).read_bytes()[:61] == start[:61]
    assert are_valid(partition)[0]
    path.write_bytes(before)
    assert not are_valid(partition)[0]


def test_entries_of_the_active_segment_beyond_the_commit_are_not_used(rig: Rig) -> None:
    partition = filled(rig, list(range(9)))
    with Index(partition.directory, 0, end_position=4 * SIZE) as index:
        assert index.count >= 3
        assert index.before_offset(8).offset == 4
        assert index.before_time(1000).offset == 4
    with Index(partition.directory, 0) as index:
        assert not index.is_valid, "not as that of a closed one"


def test_the_index_of_an_active_segment_is_not_valid_beside_another_log(rig: Rig) -> None:
    partition, other = filled(rig, list(range(9))), filled(rig, list(range(100, 109)))
    with index_of(partition, 0) as index:
        assert index.is_valid
    shutil.copyfile(log_file(other, 0), log_file(partition, 0))
    with index_of(partition, 0) as index:
        assert not index.is_valid


def test_a_copy_with_other_inodes_has_the_same_indexes(rig: Rig, tmp_path: Path) -> None:
    partition = filled(rig, list(range(35)))
    shutil.copytree(partition.directory, tmp_path / "copy")
    for base in closed(partition):
        with index_of(partition, base) as index, Index(str(tmp_path / "copy"), base) as copied:
            assert copied.is_valid
            assert [copied.entry(n) for n in range(copied.count)] == [index.entry(n) for n in range(index.count)]


def test_recovery_reads_on_from_its_point_although_the_end_of_the_segment_was_lost(rig: Rig) -> None:
    """The index of the closed segment was written back, the last bytes of the segment were not."""
    partition = filled(rig, list(range(8)))
    partition.checkpoint()
    for time in range(8, 12):
        partition.append(batch_of([time]))
    assert are_valid(partition) == [True]
    log_file(partition, 10).unlink()
    cut(log_file(partition, 0), log_file(partition, 0))
    partition.log.flushed_offset = 8
    power_cut(partition)
    scanned: list[int] = []
    scan = recovery.scan_segment

    def watch(*arguments: object, **options: object) -> recovery.Scanned:
        start = options["start"]
        scanned.append(start.position)  # type: ignore[attr-defined]
        return scan(*arguments, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "scan_segment", watch)
        again = rig.child().partition(partition.slot, **CHANGES)
    assert scanned == [8 * SIZE]
    assert again.ends().end == 9
    index_is_true(again)
    for time in range(9, 30):
        again.append(batch_of([time]))
    assert are_valid(again) == [True, True]
    check_all(again, [[time] for time in range(30)])


# ---- made again


def remove_indexes(partition: Partition) -> None:
    for base in closed(partition):
        log_file(partition, base, ".index").unlink()


def test_missing_indexes_are_made_again_as_they_were(rig: Rig) -> None:
    partition = filled(rig, [time % 7 for time in range(45)])
    before = [log_file(partition, base, ".index").read_bytes() for base in closed(partition)]
    remove_indexes(partition)
    assert partition.cleanup.rebuild_indexes() == closed(partition)
    assert [log_file(partition, base, ".index").read_bytes() for base in closed(partition)] == before
    assert partition.cleanup.rebuild_indexes(is_missing=True) == []


def test_a_reader_that_misses_an_index_says_so_and_one_that_does_not_is_silent(rig: Rig) -> None:
    partition = filled(rig, list(range(45)))
    looks = (lambda: partition.reader(15).read(1), lambda: partition.offset_at(15))
    rig.events.clear()
    for look in looks:
        look()
    assert rig.events == []
    remove_indexes(partition)
    for look in looks:
        rig.events.clear()
        look()
        assert set(rig.events) == {head.MISSING_INDEX}


def test_a_writer_killed_at_any_step_of_a_roll_leaves_indexes_that_are_valid_or_made_again(rig: Rig) -> None:
    step, killed = 0, True
    while killed:
        step += 1
        partition = filled(rig, list(range(10)))

        def act(slot: int = partition.slot, step: int = step) -> None:
            mine = rig.child().partition(slot, **CHANGES)
            _os.trap(step, signal=signal.SIGKILL)
            mine.append(batch_of([10]))
            _os.trap(0)

        killed = dies(act)
        for time in range(partition.ends().end, 25):
            partition.append(batch_of([time]))
        index_is_true(partition)
        check_all(partition, [[time] for time in range(25)])
        partition.cleanup.rebuild_indexes()
        assert are_valid(partition) == [True] * len(closed(partition)), step
        assert index_is_true(partition) > 8
    assert step > 40


def test_a_segment_that_is_compacted_while_its_index_is_made_again_keeps_the_new_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = rig.partition(1, **CHANGES, cleanup_policy="compact")
    for number in range(40):
        partition.append(batch(number if number % 2 else 0, number))  # something of each segment stays
    remove_indexes(partition)
    scan = recovery.scan_segment

    def scan_and_compact(*arguments: object, **options: object) -> recovery.Scanned:
        monkeypatch.setattr(recovery, "scan_segment", scan)
        found = scan(*arguments, **options)  # type: ignore[arg-type]
        partition.cleanup.compact(force=True)
        return found

    monkeypatch.setattr(recovery, "scan_segment", scan_and_compact)
    partition.cleanup.rebuild_indexes()
    assert all(are_valid(partition))
    assert compacted.indexes_are_true(partition) > 0


def test_a_damaged_segment_is_read_once_for_its_index_and_not_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = filled(rig, list(range(25)))
    remove_indexes(partition)
    flip(log_file(partition, 0), 3 * SIZE + 70)
    scanned: list[object] = []
    scan = recovery.scan_segment

    def watch(*arguments: object, **options: object) -> recovery.Scanned:
        scanned.append(arguments[1])
        return scan(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(recovery, "scan_segment", watch)
    assert partition.cleanup.rebuild_indexes(is_missing=True) == [10]
    assert partition.cleanup.rebuild_indexes(is_missing=True) == []
    assert scanned == [0, 10]
    assert are_valid(partition) == [False, True]


def test_a_rebuild_ends_when_its_store_is_closed_and_waits_for_no_cleaner(rig: Rig) -> None:
    partition = filled(rig, list(range(25)))
    remove_indexes(partition)
    with pytest.raises(index_rebuild.Stopped):
        partition.cleanup.rebuild_indexes(lambda: True)
    other = rig.child().partition(partition.slot, **CHANGES)
    with partition.cleanup.clean_lock():
        assert other.cleanup.rebuild_indexes() == []
    assert other.cleanup.rebuild_indexes() == [0, 10], "it is not forgotten"
