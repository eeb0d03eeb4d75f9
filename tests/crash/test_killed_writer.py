"""SIGKILL at every step of append, roll, index, sync, checkpoint, recovery and cleaning: nothing committed is lost,
nothing uncommitted is seen, and whoever comes next goes on.

A child is trapped at step n and dies there; `n` counts up until the child lives. So every store into a mapped file and
every system call has been a place of death.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from klamm.disk import _os
from klamm.errors import KlammError
from klamm.log import head, segment
from klamm.log.partition import Partition
from tests.rig import Rig, Seen, batch, dies, index_is_true, killed_at, read_all, scan_files


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def numbers(count: int) -> Seen:
    return [(0, number) for number in range(count)]


def fill(partition: Partition, count: int) -> Seen:
    for number in range(count):
        partition.append(batch(0, number))
    return numbers(count)


@pytest.mark.parametrize("already", [0, 1, 3, 4], ids=["first", "index", "roll", "after roll"])
def test_a_writer_killed_at_any_step_leaves_committed_batches_and_nothing_else(rig: Rig, already: int) -> None:
    """Its successor dies at every step, too; then somebody lives."""
    deaths = 0
    step, alive = 0, False
    while not alive:
        step, second, lives = step + 1, 0, False
        while not lives:
            second += 1
            slot = rig.fresh_slot()
            partition = rig.partition(slot)
            want = fill(partition, already)

            def append(writer: int, padding: int, at: int, slot: int = slot) -> Callable[[], object]:
                def run() -> None:
                    mine = rig.child().partition(slot)
                    killed_at(at, lambda: mine.append(batch(writer, 0, padding)))()

                return run

            alive = not dies(append(1, 90, step))
            if partition.snapshot().next_offset > already:
                want.append((1, 0))
            assert not alive or want[-1] == (1, 0)
            assert read_all(partition) == want
            lives = not dies(append(2, 5, second))
            if partition.snapshot().next_offset > len(want):
                want.append((2, 0))
            assert not lives or want[-1] == (2, 0)
            assert read_all(partition) == want
            if lives:
                now = partition.snapshot()
                assert os.stat(segment.path_of(partition.directory, now.active_base)).st_size == now.position
            partition.append(batch(3, 0))
            want.append((3, 0))
            assert read_all(partition) == read_all(rig.partition(slot)) == scan_files(partition) == want
            index_is_true(partition)
            deaths += (not alive) + (not lives)
            if second > 2 and step % 5:  # every pair would be thousands: the successor's steps in full at each fifth
                lives = True
    assert deaths > 20


Prepare = Callable[[Partition], object]
Act = Callable[[Rig, int], Callable[[], object]]


def victims(rig: Rig, prepare: Prepare, act: Act, *, steps: int) -> Iterator[tuple[Partition, bool]]:
    """One log after the other: `prepare`d, then used by a child that is killed at its n-th step, and whether it lived.

    `act` gives what the child does under the trap. The last child lives, after more than `steps` deaths.
    """
    step, alive = 0, False
    while not alive:
        step += 1
        slot = rig.fresh_slot()
        partition = rig.partition(slot)
        prepare(partition)
        alive = not dies(lambda slot=slot, step=step: killed_at(step, act(rig.child(), slot))())  # type: ignore[misc]
        yield partition, alive
    assert step > steps


def again(rig: Rig, partition: Partition) -> Partition:
    """The same log, as another process opens it."""
    return rig.child().partition(partition.slot)


def test_an_idempotent_producer_killed_at_any_step_neither_loses_nor_doubles_its_batch(rig: Rig) -> None:
    """The successor sends the same batch again, as a retrying producer would."""

    def prepare(partition: Partition) -> None:
        partition.append(batch(0, 0, producer=7, sequence=0))

    def act(mine: Rig, slot: int) -> Callable[[], object]:
        return partial(mine.partition(slot).append, batch(0, 1, producer=7, sequence=1))

    for partition, _ in victims(rig, prepare, act, steps=20):
        assert partition.append(batch(0, 1, producer=7, sequence=1)) == 1
        assert partition.append(batch(0, 2, producer=7, sequence=2)) == 2
        assert read_all(partition) == scan_files(partition) == [(0, 0), (0, 1), (0, 2)]


def test_a_syncer_killed_at_any_step_acks_nothing_that_is_not_on_disk_and_blocks_nobody(rig: Rig) -> None:
    found = set()
    for partition, _ in victims(
        rig, lambda partition: fill(partition, 10), lambda mine, slot: partial(mine.partition(slot).sync, 10), steps=10
    ):
        assert partition.log.flushed_offset in (0, 10)
        died_in_sync = partition.log.flushing
        partition.append(batch(0, 10))
        segments = list(Path(partition.directory).glob("*.log"))
        for path in segments:
            os.utime(path, (0, 0))
        partition.sync(11)
        # the kernel may have reported an error to the dead process alone, so a sync is not enough: it is written again
        assert any(path.stat().st_mtime for path in segments) == died_in_sync
        found.add(died_in_sync)
        assert partition.log.flushed_offset == 11
        assert not partition.log.flags
        assert read_all(partition) == numbers(11)
    assert found == {False, True}


def test_a_checkpoint_killed_at_any_step_leaves_a_point_that_recovery_can_start_from(rig: Rig) -> None:
    def prepare(partition: Partition) -> None:
        fill(partition, 3)
        partition.append(batch(5, 0, producer=5, sequence=0))
        partition.checkpoint()
        partition.append(batch(5, 1, producer=5, sequence=1))
        partition.append(batch(0, 9))

    for partition, _ in victims(rig, prepare, lambda mine, slot: mine.partition(slot).checkpoint, steps=10):
        partition.log.set_flags(head.NEEDS_RECOVERY)
        other = again(rig, partition)
        assert read_all(other) == scan_files(other) == [*numbers(3), (5, 0), (5, 1), (0, 9)]
        assert other.append(batch(5, 1, producer=5, sequence=1)) == 4, "the producer's last batch was forgotten"


@pytest.mark.parametrize("torn", [False, True])
def test_a_recovery_killed_at_any_step_is_finished_by_the_next(rig: Rig, torn: bool) -> None:
    def prepare(partition: Partition) -> None:
        fill(partition, 3)
        partition.checkpoint()
        for number in range(3, 9):
            partition.append(batch(0, number))
        if torn:
            with sorted(Path(partition.directory).glob("*.log"))[-1].open("ab") as file:
                file.write(bytes(batch(9, 9))[:50])
        partition.log.set_flags(head.NEEDS_RECOVERY)

    for partition, _ in victims(rig, prepare, lambda mine, slot: partial(mine.partition, slot), steps=15):
        other = again(rig, partition)
        assert not other.log.flags
        assert read_all(other) == scan_files(other) == numbers(9)
        index_is_true(other)
        other.append(batch(1, 1))
        assert read_all(other) == [*numbers(9), (1, 1)]
        assert other.snapshot().leader_epoch >= 1
        assert other.end_of_epoch(0) == 9


def test_a_cleaner_killed_at_any_step_leaves_a_log_without_holes(rig: Rig) -> None:
    for partition, alive in victims(
        rig,
        lambda partition: fill(partition, 12),
        lambda mine, slot: partial(mine.partition(slot).cleanup.delete_before, 7),
        steps=10,
    ):
        start = partition.ends().start
        assert start in (0, 7)
        assert not alive or start == 7
        assert read_all(partition, start) == numbers(12)[start:]
        partition.log.set_flags(head.NEEDS_RECOVERY)  # the same after a power cut
        other = again(rig, partition)
        start = other.ends().start
        assert start in (0, 7)
        assert read_all(other, start) == numbers(12)[start:]
        other.cleanup.delete_before(7)
        assert other.segments()[0] == 4


def test_a_healer_killed_at_any_step_leaves_the_flag_or_a_healed_log(rig: Rig) -> None:
    def prepare(partition: Partition) -> None:
        fill(partition, 8)
        partition.sync(8)
        partition.append(batch(0, 8))
        partition.log.set_flags(head.SYNC_FAILED)

    for partition, _ in victims(rig, prepare, lambda mine, slot: mine.partition(slot).rewrite_unsynced, steps=5):
        assert partition.log.flushed_offset == 9 or partition.log.flags & head.SYNC_FAILED
        assert read_all(again(rig, partition)) == numbers(9), "readers do not need a writer to go on"
        partition.append(batch(0, 9))
        partition.sync(10)
        assert read_all(partition) == numbers(10)
        assert not partition.log.flags


def test_an_append_that_fails_at_any_step_leaves_no_trace_and_the_next_one_succeeds(rig: Rig) -> None:
    """ENOSPC at every step: raised or harmless, never half. EINTR: tried again, unnoticed."""
    failures = 0
    for already in (0, 1, 3):
        for code in (errno.ENOSPC, errno.EINTR):
            for step in range(1, 60):
                partition = rig.partition(rig.fresh_slot())
                want = fill(partition, already)
                _os.trap(step, error=code)
                try:
                    partition.append(batch(1, 0, 90))
                    want.append((1, 0))
                except KlammError:
                    assert code == errno.ENOSPC
                    failures += 1
                    _os.trap(0)
                    assert scan_files(partition) == want, "cut off at once, not only by the next writer"
                finally:
                    _os.trap(0)
                partition.append(batch(2, 0, 5))
                want.append((2, 0))
                assert read_all(partition) == scan_files(partition) == want
                index_is_true(partition)
    assert failures > 5
