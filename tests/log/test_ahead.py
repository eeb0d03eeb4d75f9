"""Blocks ahead of the commit (_ahead.pxi): no process takes them for records, and a closed segment has none."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from klamm.batch import walk
from klamm.disk import _os
from klamm.errors import KlammError
from klamm.log import cleaner_checkpoint, head, recovery, segment
from klamm.log.cleaner_checkpoint import CleanerCheckpoint
from klamm.log.partition import Partition
from tests.crash.cases import memory_directory
from tests.crash.lock_words import BOUND_S
from tests.procs import children
from tests.rig import Rig, Sizes, batch, read_all

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="blocks are allocated ahead on Linux")
SIZES = Sizes(segment_bytes=400_000, index_interval_bytes=8192)
LEAST = 64 << 10
PADDING = 4000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with memory_directory(tmp_path) as path:
        yield Rig(path, slots=1000)


def fill(partition: Partition, count: int, *, start: int = 0, sync: bool = True, writer: int = 1) -> None:
    for number in range(start, start + count):
        end = partition.append(batch(writer, number, PADDING)) + 1
        if sync:
            partition.sync(end)


def size_of(partition: Partition, base: int | None = None) -> int:
    base = partition.snapshot().active_base if base is None else base
    return os.path.getsize(segment.path_of(partition.directory, base))


def ahead_of(partition: Partition) -> int:
    """Return by how much the active segment is longer than its commit."""
    return size_of(partition) - partition.snapshot().position


def numbers(partition: Partition) -> list[int]:
    return [number for _, number in read_all(partition)]


def are_exact(partition: Partition) -> None:
    """Closed segments end with their last batch, and what is behind the commit is zeros."""
    now = partition.snapshot()
    for base in segment.bases(partition.directory):
        data = Path(segment.path_of(partition.directory, base)).read_bytes()
        end = now.position if base == now.active_base else len(data)
        assert sum(header.size for header in walk(data[:end])) == end
        assert not data[end:].strip(b"\0")


def test_a_log_that_is_synced_has_blocks_ahead_once_it_is_not_small(rig: Rig) -> None:
    partition = rig.partition(rig.fresh_slot(), SIZES)
    for number in range(60):
        fill(partition, 1, start=number)
        position = partition.snapshot().position
        assert 0 <= ahead_of(partition) <= position
        assert position >= LEAST or not ahead_of(partition)
        assert size_of(partition) <= SIZES.segment_bytes
    assert ahead_of(partition) > 0
    assert numbers(partition) == list(range(60))
    are_exact(partition)


def test_a_log_that_is_not_synced_has_none(rig: Rig) -> None:
    partition = rig.partition(rig.fresh_slot(), SIZES)
    fill(partition, 60, sync=False)
    assert ahead_of(partition) == 0


def test_a_closed_segment_ends_with_its_last_batch(rig: Rig) -> None:
    partition = rig.partition(rig.fresh_slot(), SIZES)
    fill(partition, 250)
    assert len(segment.bases(partition.directory)) >= 3
    are_exact(partition)
    assert numbers(partition) == list(range(250))
    partition.log.lock()
    partition.log.roll()
    partition.log.unlock()
    are_exact(partition)


@pytest.mark.parametrize(
    "close", [lambda each: each.log.close_idle(), lambda each: each.close()], ids=["idle", "close"]
)
def test_what_is_not_used_is_given_back_when_files_are_closed(rig: Rig, close: Callable[[Partition], None]) -> None:
    slot = rig.fresh_slot()
    partition, other = rig.partition(slot, SIZES), rig.child().partition(slot, SIZES)
    fill(partition, 60)
    assert ahead_of(partition) > 0
    with other.log.append_lock():
        partition.log.close_idle()
        assert ahead_of(other) > 0, "another process has the lock"
    fill(partition, 1, start=60)
    close(partition)
    assert ahead_of(other) == 0
    fill(other, 60, start=61)
    are_exact(other)
    assert numbers(other) == list(range(121))


def test_two_processes_take_turns_at_one_segment(rig: Rig) -> None:
    slot = rig.fresh_slot()
    pair = [rig.partition(slot, SIZES), rig.child().partition(slot, SIZES)]
    for number in range(200):
        fill(pair[number % 2], 1, start=number)
        if number % 50 == 49:
            pair[number % 3 % 2].log.close_idle()
    for partition in pair:
        are_exact(partition)
        assert numbers(partition) == list(range(200))


def test_a_process_that_opens_a_log_with_blocks_ahead_goes_on_in_it(rig: Rig) -> None:
    slot = rig.fresh_slot()
    fill(rig.partition(slot, SIZES), 40)
    partition = rig.child().partition(slot, SIZES)
    assert ahead_of(partition) > 0 and not recovery.is_older(partition.log)
    epoch = partition.snapshot().leader_epoch
    fill(partition, 40, start=40)
    assert partition.snapshot().leader_epoch == epoch, "it was recovered"
    assert numbers(partition) == list(range(80))


def test_a_head_that_is_older_than_the_log_is_told_from_blocks_ahead(rig: Rig) -> None:
    slot = rig.fresh_slot()
    partition = rig.partition(slot, SIZES)
    fill(partition, 40)
    before = Path(rig.path, "heads").read_bytes()[slot * 1024 : (slot + 1) * 1024]
    fill(partition, 1, start=40)
    assert ahead_of(partition) > 0
    with open(f"{rig.path}/heads", "r+b") as file:
        file.seek(slot * 1024)
        file.write(before)
    log = head.Log(rig.heads, slot, partition.directory, rig.lock, 1, life=rig.life)
    assert recovery.is_older(log)
    log.configure(
        segment_bytes=1 << 20,
        segment_ms=-1,
        segment_records=-1,
        index_interval=4096,
        producer_expiration_ms=1,
        timestamp_after_ms=1 << 60,
        catalog_version=rig.heads.catalog_version,
    )
    assert log.append(batch(1, 41)) == head.Result.OLDER_HEAD


def recovered(rig: Rig, slot: int) -> Partition:
    """The log as it is after a boot."""
    rig.heads.mark(slot, head.NEEDS_RECOVERY)
    return rig.child().partition(slot, SIZES)


def cut_files(partition: Partition) -> list[Path]:
    return list(Path(partition.directory).glob("*.cut-*"))


def test_a_rest_of_zeros_was_never_written_and_leaves_no_cut_file(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    slot = rig.fresh_slot()
    partition = rig.partition(slot, SIZES)
    fill(partition, 40)
    assert ahead_of(partition) > 0
    with caplog.at_level(logging.WARNING, "klamm"):
        again = recovered(rig, slot)
    assert ahead_of(again) == 0 and cut_files(again) == [] and caplog.messages == []
    assert numbers(again) == list(range(40))
    fill(again, 40, start=40)
    assert numbers(again) == list(range(80))


def test_a_torn_batch_in_front_of_zeros_is_kept(rig: Rig) -> None:
    slot = rig.fresh_slot()
    partition = rig.partition(slot, SIZES)
    fill(partition, 40)
    now, torn = partition.snapshot(), bytes(batch(1, 40, PADDING))[:2000]
    with open(segment.path_of(partition.directory, now.active_base), "r+b") as file:
        file.seek(now.position)
        file.write(torn)
    again = recovered(rig, slot)
    (left,) = cut_files(again)
    assert left.read_bytes().startswith(torn) and ahead_of(again) == 0
    assert numbers(again) == list(range(40))


def test_zeros_where_records_were_synced_are_damage(rig: Rig) -> None:
    slot = rig.fresh_slot()
    partition = rig.partition(slot, SIZES)
    fill(partition, 40)
    partition.close()
    path = segment.path_of(partition.directory, 0)
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.seek(size - PADDING)
        file.write(bytes(PADDING))
    os.unlink(f"{partition.directory}/recovery")
    with pytest.raises(KlammError, match="had been synced"):
        recovered(rig, slot)
    assert os.path.getsize(path) == size


def test_a_closed_segment_whose_rest_came_back_with_a_power_cut_is_cut(rig: Rig) -> None:
    """The roll gave it back, and nothing has synced that."""
    slot = rig.fresh_slot()
    partition = rig.partition(slot, SIZES)
    fill(partition, 120)
    first, second, *_ = segment.bases(partition.directory)
    size = size_of(partition, first)
    partition.close()
    os.unlink(f"{partition.directory}/recovery")
    os.truncate(segment.path_of(partition.directory, first), size + 5000)
    assert second > 0
    again = recovered(rig, slot)
    assert size_of(again, first) == size and cut_files(again) == []
    assert numbers(again) == list(range(120))


def test_zeros_in_a_compacted_log_are_no_gap_of_compaction(rig: Rig) -> None:
    """What was not synced may be lost, but then so is all that follows."""
    slot = rig.fresh_slot()
    partition = rig.partition(slot, SIZES)
    fill(partition, 250, sync=False)
    first, second, third = segment.bases(partition.directory)
    cleaner_checkpoint.store(partition.directory, CleanerCheckpoint(0, third))
    path = segment.path_of(partition.directory, first)
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.seek(size - size // second)
        file.write(bytes(size // second))
    again = recovered(rig, slot)
    assert numbers(again) == list(range(second - 1))
    assert len(cut_files(again)) == 2, "segments that do not follow"


@pytest.mark.parametrize("start", [14, 30, 92])  # before blocks are allocated; between; before the segment is full
def test_a_writer_killed_at_any_step_leaves_committed_batches_and_zeros(rig: Rig, start: int) -> None:
    step, alive = 0, False
    while not alive:
        step += 1
        slot = rig.fresh_slot()

        def append(slot: int = slot, step: int = step) -> None:
            mine = rig.child().partition(slot, SIZES)
            fill(mine, start)
            _os.trap(step, kinds=_os.ALL & ~_os.READ, signal=signal.SIGKILL)
            fill(mine, 6, start=start)
            _os.trap(0)
            os._exit(0)

        with children() as launch:
            alive = launch(partial(append)).ended(BOUND_S) == 0
        partition = rig.partition(slot, SIZES)
        end = partition.append(batch(1, 1000))
        partition.sync(end + 1)
        are_exact(partition)
        found = numbers(partition)
        assert found == [*range(len(found) - 1), 1000] and start <= len(found) - 1 <= start + 6
    assert step > 20


def test_a_full_disk_refuses_no_batch_that_still_fits(rig: Rig) -> None:
    partition = rig.partition(rig.fresh_slot(), SIZES)
    fill(partition, 20)
    partition.log.close_idle()
    _os.trap(1, kinds=_os.TRUNCATE, error=errno.ENOSPC)
    try:
        partition.append(batch(1, 20, PADDING))
        assert _os.steps_taken() == 1
        partition.append(batch(1, 21, PADDING))
        assert _os.steps_taken() == 1, "not again before that room would be used up"
    finally:
        _os.trap(0)
    assert ahead_of(partition) == 0
    assert numbers(partition) == list(range(22))


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_the_first_producer_of_a_log_with_blocks_ahead_is_remembered(rig: Rig, has_snapshot: bool) -> None:
    """The table of producers is made of the log, up to its commit."""
    partition = rig.partition(rig.fresh_slot(), SIZES)
    fill(partition, 40)
    if has_snapshot:
        partition.checkpoint()
        fill(partition, 1, start=40)
    assert ahead_of(partition) > 0
    count = partition.snapshot().next_offset
    assert partition.append(batch(1, count, producer=7, sequence=0)) == count
    assert [producer for producer, *_ in partition.producers()] == [7]
