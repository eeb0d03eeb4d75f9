"""Recovery: what a power cut leaves is kept up to the first torn batch; damage is told apart from a torn tail."""

from __future__ import annotations

import errno
import itertools
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.batch import walk
from klamm.disk import _os
from klamm.errors import CorruptBatch, DiskFull, KlammError
from klamm.log import head, point, segment
from klamm.log.index import Index
from klamm.log.partition import Partition
from tests.log.logs import batch_of, flip, log_file, move_clock, power_cut, records
from tests.rig import Rig, Seen, batch, index_is_true, names, read_all, scan_files

LARGE = {"segment_bytes": 1 << 24, "index_interval_bytes": 4096}


def fill(partition: Partition, count: int, start: int = 0) -> Seen:
    for number in range(start, start + count):
        partition.append(batch(0, number))
    return [(0, number) for number in range(start + count)]


def cut_files(partition: Partition) -> list[Path]:
    return sorted(Path(partition.directory).glob("*.cut-*"))


def reopened(rig: Rig, partition: Partition, **changes: int | str) -> Partition:
    power_cut(partition)
    return rig.child().partition(partition.slot, **changes)


# ---- the tail


def test_a_log_that_is_whole_comes_back_whole(rig: Rig) -> None:
    partition = rig.partition(1)
    want = fill(partition, 12)
    before = partition.snapshot()
    again = reopened(rig, partition)
    now = again.snapshot()
    assert read_all(again) == scan_files(again) == want
    assert (now.next_offset, now.active_base, now.position) == (before.next_offset, before.active_base, before.position)
    assert now.stable_offset == 12
    assert again.ends().flushed == 12, "recovery syncs what it keeps"
    assert cut_files(again) == []
    assert index_is_true(again) > 0
    assert again.append(batch(1, 0)) == 12


def test_a_log_cut_anywhere_comes_back_as_the_whole_batches_before_the_cut(rig: Rig) -> None:
    """Every length of the last segment; what is left of a batch is moved aside."""
    sizes = [len(batch(0, number)) for number in range(3)]
    ends = list(itertools.accumulate([0, *sizes]))
    for length in range(ends[-1]):
        partition = rig.partition(rig.fresh_slot(), **LARGE)
        fill(partition, 3)
        path = log_file(partition, 0)
        whole = path.read_bytes()
        os.truncate(path, length)
        again = reopened(rig, partition, **LARGE)
        kept = max(n for n, end in enumerate(ends) if end <= length)
        assert read_all(again) == scan_files(again) == [(0, number) for number in range(kept)]
        torn = whole[ends[kept] : length]
        assert [path.read_bytes() for path in cut_files(again)] == ([torn] if torn.strip(b"\0") else [])
        assert again.append(batch(1, 0)) == kept
        assert read_all(again)[-1] == (1, 0)


@pytest.mark.parametrize("tail", [b"x", b"\0" * 500 + b"x", b"rubbish" * 100], ids=["byte", "zeroes", "rubbish"])
def test_rubbish_behind_the_last_batch_is_moved_aside(rig: Rig, tail: bytes) -> None:
    partition = rig.partition(1)
    want = fill(partition, 5)
    path = log_file(partition, partition.snapshot().active_base)
    with path.open("ab") as file:
        file.write(tail)
    again = reopened(rig, partition)
    assert read_all(again) == scan_files(again) == want
    (aside,) = cut_files(again)
    assert aside.read_bytes() == tail
    assert aside.name.startswith(path.name + ".cut-")


def test_everything_after_the_first_bad_batch_is_moved_aside_whole_segments_too(rig: Rig) -> None:
    partition = rig.partition(1)
    fill(partition, 16)
    bases = partition.segments()
    assert len(bases) >= 4
    bad = log_file(partition, bases[1])
    before = {base: log_file(partition, base).read_bytes() for base in bases}
    second = walk(before[bases[1]])[0].size
    flip(bad, second + 65)
    damaged = bad.read_bytes()
    again = reopened(rig, partition)
    assert read_all(again) == scan_files(again) == [(0, number) for number in range(bases[1] + 1)]
    assert again.segments() == bases[:2]
    aside = {path.name.split(".cut-")[0]: path.read_bytes() for path in cut_files(again)}
    assert aside.pop(bad.name) == damaged[second:]
    assert aside == {f"{base:020}.log": before[base] for base in bases[2:]}
    for base in bases[2:]:
        assert not log_file(partition, base, ".index").exists()
    assert again.append(batch(1, 0)) == bases[1] + 1
    index_is_true(again)


def test_a_segment_that_does_not_follow_on_is_moved_aside(rig: Rig) -> None:
    partition = rig.partition(1)
    fill(partition, 16)
    bases = partition.segments()
    log_file(partition, bases[1]).unlink()
    again = reopened(rig, partition)
    assert read_all(again) == [(0, number) for number in range(bases[1])]
    assert len(cut_files(again)) == len(bases) - 2
    assert again.append(batch(1, 0)) == bases[1]


def test_a_batch_larger_than_what_is_read_at_once_is_kept(rig: Rig) -> None:
    changes = {"segment_bytes": 1 << 26, "max_message_bytes": 1 << 24}
    partition = rig.partition(1, **changes)
    for padding in (10, 9 << 20, 10):
        partition.append(batch_of([1], padding=padding))
    os.truncate(log_file(partition, 0), partition.snapshot().position - 5)
    again = reopened(rig, partition, **changes)
    assert [len(record.value) for record in records(again)] == [10, 9 << 20]


# ---- below the recovery point


def damages() -> list[object]:
    return [
        pytest.param(lambda path: flip(path, 70), id="flipped"),
        pytest.param(lambda path: os.truncate(path, 100), id="cut"),
        pytest.param(lambda path: os.truncate(path, 0), id="emptied"),
        pytest.param(lambda path: path.unlink(), id="missing"),
    ]


@pytest.mark.parametrize("knows", [True, False], ids=["head knows what was synced", "head is new"])
@pytest.mark.parametrize("damage", damages())
def test_damage_below_the_recovery_point_is_an_error_and_nothing_is_cut(rig: Rig, damage, knows: bool) -> None:  # type: ignore[no-untyped-def]
    partition = rig.partition(1, **LARGE)
    fill(partition, 5)
    partition.checkpoint()
    fill(partition, 5, 5)
    damage(log_file(partition, 0))
    if not knows:
        partition.log.set_flags(head.NEW_HEAD)
    before = {path.name: path.read_bytes() for path in Path(partition.directory).glob("*.log")}
    for _ in range(2):
        with pytest.raises(CorruptBatch) as caught:
            reopened(rig, partition, **LARGE)
        assert caught.value.path is not None and caught.value.path.startswith(partition.directory)
        assert {path.name: path.read_bytes() for path in Path(partition.directory).glob("*.log")} == before
        assert cut_files(partition) == []
    assert partition.log.flags & head.NEEDS_RECOVERY


def test_damage_far_below_the_recovery_point_is_met_by_the_reader(rig: Rig) -> None:
    """Recovery does not read what was synced long ago; whoever reads it checks it."""
    partition = rig.partition(1)
    fill(partition, 16)
    partition.checkpoint()
    flip(log_file(partition, 0), 70)
    again = reopened(rig, partition)
    assert names(again.reader(15).read()) == [(0, 15)]
    with pytest.raises(CorruptBatch):
        again.reader(0).read()


def test_a_missing_segment_below_the_recovery_point_is_an_error(rig: Rig) -> None:
    partition = rig.partition(1)
    fill(partition, 16)
    partition.checkpoint()
    log_file(partition, 0).unlink()
    with pytest.raises(CorruptBatch, match="missing"):
        reopened(rig, partition)


def test_what_was_synced_up_to_the_point_may_not_be_cut_by_a_byte_less(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    fill(partition, 3)
    partition.checkpoint()
    path = log_file(partition, 0)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptBatch):
            reopened(rig, partition, **LARGE)
        assert path.stat().st_size == length
    path.write_bytes(whole)
    assert len(read_all(reopened(rig, partition, **LARGE))) == 3


# ---- epochs


def test_each_recovery_starts_an_epoch_and_tells_where_the_older_ones_ended(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    ends = []
    for epoch in range(4):
        assert partition.ends().leader_epoch == epoch
        fill(partition, 3, epoch * 3)
        ends.append(partition.ends().end)
        for known in range(epoch + 1):
            assert partition.end_of_epoch(known) == ends[known]
        partition = reopened(rig, partition, **LARGE)
    assert [record.leader_epoch for record in records(partition)] == [n // 3 for n in range(12)]


def test_a_position_read_before_a_lost_tail_is_known_to_lie_beyond_its_epoch(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    fill(partition, 6)
    stored, epoch = 6, partition.ends().leader_epoch
    os.truncate(log_file(partition, 0), partition.snapshot().position - 1)
    again = reopened(rig, partition, **LARGE)
    fill(again, 5, 100)
    assert again.ends().end == 10
    assert again.end_of_epoch(epoch) == 5 < stored


def test_epochs_are_known_to_whoever_opens_later_and_survive_checkpoints_and_deletion(rig: Rig) -> None:
    partition = rig.partition(1)
    fill(partition, 6)
    partition = reopened(rig, partition)
    fill(partition, 6, 6)
    partition.checkpoint()
    partition.cleanup.delete_before(9)
    partition.close()
    other = rig.child().partition(1)
    assert other.epochs() == ((0, 0), (1, 6))
    assert (other.end_of_epoch(0), other.end_of_epoch(1)) == (6, 12)
    again = reopened(rig, other)
    assert again.epochs() == ((0, 0), (1, 6), (2, 12))


def test_epochs_are_read_from_the_log_when_the_point_is_lost(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    fill(partition, 4)
    partition = reopened(rig, partition, **LARGE)
    fill(partition, 4, 4)
    (Path(partition.directory) / "recovery").unlink()
    again = reopened(rig, partition, **LARGE)
    assert again.ends().leader_epoch == 2
    assert (again.end_of_epoch(0), again.end_of_epoch(1)) == (4, 8)


@pytest.mark.parametrize("is_synced", [True, False], ids=["synced", "not synced"])
@pytest.mark.parametrize("epoch", [1, 2**31 - 1])
def test_an_epoch_that_the_log_never_had_is_damage_without_a_recovery_point_too(
    rig: Rig, epoch: int, is_synced: bool
) -> None:
    partition = rig.partition(1, **LARGE)
    fill(partition, 3)
    if is_synced:
        partition.sync(3)
    path = log_file(partition, 0)
    with path.open("r+b") as file:
        file.seek(walk(path.read_bytes())[0].size + 12)
        file.write(struct.pack(">i", epoch))
    assert not (Path(partition.directory) / "recovery").exists()
    if is_synced:
        with pytest.raises(CorruptBatch, match=f"leader epoch is {epoch}") as caught:
            reopened(rig, partition, **LARGE)
        assert caught.value.path == str(path)
        return
    again = reopened(rig, partition, **LARGE)
    assert read_all(again) == [(0, 0)]
    assert again.ends().leader_epoch == 1
    again.append(batch(0, 1))
    assert [record.leader_epoch for record in records(again)] == [0, 1]
    assert read_all(reopened(rig, again, **LARGE)) == [(0, 0), (0, 1)]


def test_epochs_never_outgrow_what_a_batch_can_have(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    fill(partition, 1)
    partition.checkpoint()
    known = point.load(partition.directory)
    assert isinstance(known, point.Point)
    point.store(partition.directory, known._replace(epochs=((0, 0), (point.MAX_EPOCH, 1))))
    for number in range(1, 4):
        partition = reopened(rig, partition, **LARGE)
        assert partition.ends().leader_epoch == point.MAX_EPOCH
        fill(partition, 1, number)
    assert len(read_all(partition)) == 4


# ---- what else comes back


def test_the_index_is_made_to_agree(rig: Rig) -> None:
    partition = rig.partition(1)
    want = fill(partition, 20)
    for number, path in enumerate(sorted(Path(partition.directory).glob("*.index"))):
        if number % 3 == 0:
            path.unlink()
        elif number % 3 == 1:
            flip(path, 40)
        else:
            os.truncate(path, 50)
    again = reopened(rig, partition)
    assert index_is_true(again) >= len(again.segments()) - 1
    for base, following in itertools.pairwise(again.segments()):
        with Index(again.directory, base) as found:
            closing = found.closing(log_file(again, base).stat().st_size)
            assert closing is not None and closing.offset == following
    fill(again, 20, 20)
    assert index_is_true(again) >= len(again.segments()) - 1
    assert read_all(again) == want + [(0, number) for number in range(20, 40)]


def test_the_log_start_comes_back(rig: Rig) -> None:
    partition = rig.partition(1)
    want = fill(partition, 12)
    partition.cleanup.delete_before(7)
    again = reopened(rig, partition)
    assert again.ends()[:2] == (7, 12)
    assert read_all(again, 7) == want[7:]


def test_an_empty_segment_that_was_rolled_to_comes_back_by_its_offset(rig: Rig) -> None:
    """Offsets never start anew: everything before was deleted, and the next offset is still known."""
    partition = rig.partition(1)
    fill(partition, 6)
    partition.log.lock()
    partition.log.roll()
    partition.log.unlock()
    partition.cleanup.delete_before(6)
    partition.checkpoint()
    again = reopened(rig, partition)
    assert again.ends()[:2] == (6, 6)
    assert again.append(batch(1, 0)) == 6
    assert read_all(again, 6) == [(1, 0)]


def test_a_partition_never_used_needs_no_files(rig: Rig) -> None:
    partition = rig.partition(1)
    again = reopened(rig, partition)
    assert again.ends()[:2] == (0, 0)
    assert not os.path.exists(again.directory)
    assert again.append(batch(0, 0)) == 0


def test_the_youngest_timestamp_and_the_age_of_the_active_segment_are_known_again(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    for timestamp in (5, 40, 7):
        partition.append(batch_of([timestamp]))
    partition.checkpoint()
    partition.append(batch_of([6]))
    changes = {**LARGE, "segment_ms": 60_000}
    again = reopened(rig, partition, **changes)
    assert again.snapshot().max_timestamp == 40
    assert again.offset_at(40) == 1
    again.append(batch_of([1]))
    assert again.segments() == [0], "its age counts from the recovery"
    move_clock(rig, 70_000)
    again.append(batch_of([1]))
    assert again.segments() == [0, 5]


def test_a_head_full_of_rubbish_is_rebuilt(rig: Rig) -> None:
    partition = rig.partition(1)
    want = fill(partition, 12)
    fd = os.open(f"{rig.path}/heads", os.O_RDWR)
    os.pwrite(fd, bytes(range(256)) * 4, head.SLOT_BYTES)
    flags = (head.NEEDS_RECOVERY | head.SYNC_FAILED).to_bytes(8, "little")
    os.pwrite(fd, flags, head.SLOT_BYTES + 8)
    os.close(fd)
    again = rig.child().partition(1)
    assert read_all(again) == scan_files(again) == want
    assert again.log.flags == 0
    assert not again.log.flushing
    fill(again, 5, 12)
    again.sync(17)
    assert len(read_all(again)) == 17


def test_processes_that_have_it_open_go_on_after_another_recovered_it(rig: Rig) -> None:
    mine, other = rig.partition(1), rig.child().partition(1)
    fill(mine, 6)
    other.append(batch(1, 0))
    power_cut(mine)
    assert other.append(batch(1, 1)) == 7  # recovers on the way
    assert mine.append(batch(0, 6)) == 8
    assert mine.ends().leader_epoch == 1
    assert read_all(mine) == scan_files(mine)


# ---- how much is read


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


@pytest.mark.parametrize("producer", [-1, 7], ids=["plain", "idempotent"])
def test_recovery_after_a_clean_close_reads_almost_nothing(rig: Rig, producer: int) -> None:
    partition = rig.partition(1, **LARGE)
    for number in range(4000):
        partition.append(batch(0, number, 400, producer=producer, sequence=number if producer >= 0 else -1))
    partition.close()
    assert log_file(partition, 0).stat().st_size > 1_500_000
    power_cut(partition)
    _os.trap(1 << 60, kinds=_os.READ)
    before = bytes_read()
    again = rig.child().partition(1, **LARGE)
    took, steps = bytes_read() - before, _os.steps_taken()
    _os.trap(0)
    assert took < 100_000
    assert steps < 200
    assert again.ends().end == 4000
    assert again.append(batch(1, 0)) == 4000
    if producer >= 0:
        assert again.append(batch(0, 3999, 400, producer=producer, sequence=3999)) == 3999


def test_a_partition_that_needs_no_recovery_reads_no_file_when_opened(rig: Rig) -> None:
    partition = rig.partition(1)
    fill(partition, 20)
    partition.close()
    _os.trap(1 << 60, kinds=_os.OPEN)  # the head is read, which is mapped
    mine = rig.child()
    before = _os.steps_taken()
    mine.partition(1)
    assert _os.steps_taken() == before


# ---- in memory, for a store that may not be written


def test_a_dry_recovery_sees_the_same_and_touches_nothing(rig: Rig) -> None:
    partition = rig.partition(1)
    want = fill(partition, 9)
    with log_file(partition, partition.snapshot().active_base).open("ab") as file:
        file.write(bytes(batch(9, 9))[:50])
    power_cut(partition)
    before = {path.name: path.read_bytes() for path in Path(partition.directory).iterdir()}
    mine = rig.child()
    heads = Path(rig.path, "heads").read_bytes()
    mine.heads = head.Heads(f"{rig.path}/heads", writable=False, private=True)
    mine.lock = mine.life = None  # type: ignore[assignment]
    dry_run = mine.partition(1)
    assert read_all(dry_run) == want
    assert dry_run.ends()[:2] == (0, 9)
    assert {path.name: path.read_bytes() for path in Path(partition.directory).iterdir()} == before
    assert Path(rig.path, "heads").read_bytes() == heads
    assert read_all(rig.child().partition(1)) == want


# ---- failure


def test_a_recovery_that_fails_at_any_step_loses_nothing_and_the_next_one_succeeds(rig: Rig) -> None:
    failures = 0
    for code in (errno.ENOSPC, errno.EIO):
        for step in range(1, 90):
            partition = rig.partition(rig.fresh_slot())
            want = fill(partition, 3)
            partition.checkpoint()
            fill(partition, 4, 3)
            want += [(0, number) for number in range(3, 7)]
            with log_file(partition, partition.snapshot().active_base).open("ab") as file:
                file.write(b"torn")
            power_cut(partition)
            mine = rig.child()
            _os.trap(step, kinds=_os.ALL & ~_os.STORE & ~_os.LOCK, error=code)
            failed: Exception | None = None
            try:
                mine.partition(partition.slot)
            except (KlammError, OSError) as error:
                failed = error
            finally:
                _os.trap(0)
            failures += failed is not None
            assert failed is None or code == errno.EIO or isinstance(failed, DiskFull), failed
            again = rig.child().partition(partition.slot)
            assert read_all(again) == scan_files(again) == want
            assert again.append(batch(1, 0)) == 7
    assert failures > 40


@settings(max_examples=60)
@given(st.data())
def test_any_history_of_appends_checkpoints_and_power_cuts_keeps_a_prefix(shared: Rig, data: st.DataObject) -> None:
    """Cuts take bytes off what was not synced, never off what was."""
    changes = {"segment_bytes": data.draw(st.sampled_from([200, 500, 1 << 20])), "index_interval_bytes": 150}
    partition = shared.partition(shared.fresh_slot(), **changes)
    log: Seen = []
    safe = 0
    for number in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["append", "append", "append", "sync", "checkpoint", "cut"])):
            case "append":
                for each in range(data.draw(st.integers(1, 6))):
                    partition.append(batch(number, each))
                    log.append((number, each))
            case "sync":
                partition.sync(len(log))
                safe = len(log)
            case "checkpoint":
                partition.checkpoint()
                safe = len(log)
            case "cut":
                now = partition.snapshot()
                path = Path(segment.path_of(partition.directory, now.active_base))
                if path.exists():
                    batches = walk(path.read_bytes())
                    least = sum(each.size for each in batches if each.base_offset < safe)
                    os.truncate(path, data.draw(st.integers(least, now.position)))
                partition = reopened(shared, partition, **changes)
                kept = partition.ends().end
                assert safe <= kept <= len(log)
                log = log[:kept]
                safe = kept
        assert read_all(partition) == log
        index_is_true(partition)
    assert read_all(reopened(shared, partition, **changes)) == log
