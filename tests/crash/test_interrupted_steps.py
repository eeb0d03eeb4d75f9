"""Ctrl-C, and exceptions that come from outside, at every step of append, sync, checkpoint, recovery, cleaning and the
rewrite after a failed sync: what test_killed_writer.py does with SIGKILL. The process lives on, and that is the danger:
what it holds stays held.

Another process goes on at once, nothing committed is lost, nothing is written again as if a sync had failed, and
the process that was interrupted can do the same once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from klamm.disk import _os, locks
from klamm.log import head
from klamm.log.partition import Partition
from tests.crash.cases import memory_directory
from tests.interrupts import HOWS, Injected, steps_of, struck_at
from tests.rig import Rig, Seen, batch, index_is_true, read_all, scan_files

pytestmark = pytest.mark.skipif(not _os.HAS_BYTE_LOCKS, reason="one process at a time")

BUSY_MS = 5000  # a lock that has leaked is an error after this, and no hang


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with memory_directory(tmp_path) as memory:
        yield made(memory)


def made(path: Path) -> Rig:
    rig = Rig(path)
    rig.lock.timeout_ms = BUSY_MS
    return rig


def fill(partition: Partition, count: int) -> None:
    for number in range(count):
        partition.append(batch(0, number))


def fill_and_fail(partition: Partition) -> None:
    """The last batch was not synced, and the sync has failed."""
    fill(partition, 8)
    partition.sync(8)
    partition.append(batch(0, 8))
    partition.log.set_flags(head.SYNC_FAILED)


def fill_and_reboot(partition: Partition) -> None:
    fill(partition, 3)
    partition.checkpoint()
    for number in range(3, 9):
        partition.append(batch(0, number))
    partition.log.set_flags(head.NEEDS_RECOVERY)


class Action(NamedTuple):
    prepare: Callable[[Partition], object]
    act: Callable[[Partition], object]
    appends: int = 0  # batches, of writer 1
    deletes: int = 0  # offsets below this


def append(mine: Partition) -> None:
    mine.append(batch(1, 0, 90))


def append_and_sync(mine: Partition) -> None:
    mine.sync(mine.append(batch(1, 0, 90)) + 1)


def append_of_producer(mine: Partition) -> None:
    mine.append(batch(1, 0, producer=7, sequence=0))


ACTIONS = {
    "first append": Action(lambda partition: fill(partition, 0), append, appends=1),
    "append with an index entry": Action(lambda partition: fill(partition, 1), append, appends=1),
    "append that rolls": Action(lambda partition: fill(partition, 3), append_and_sync, appends=1),
    "append of a producer": Action(lambda partition: fill(partition, 1), append_of_producer, appends=1),
    "sync": Action(lambda partition: fill(partition, 10), lambda mine: mine.sync(10)),
    "checkpoint": Action(lambda partition: fill(partition, 6), lambda mine: mine.checkpoint()),
    "cleaning": Action(lambda partition: fill(partition, 12), lambda mine: mine.cleanup.delete_before(7), deletes=7),
    "rewrite": Action(fill_and_fail, lambda mine: mine.rewrite_unsynced()),
}


def is_all_free(rig: Rig, partition: Partition) -> bool:
    """Whether no other user of the rig holds a lock of this log."""
    held = locks.held_by_others(rig.lock.fd, 4 * partition.slot, 4)
    return not held and not partition.log.is_locked_elsewhere


def records_of(count: int) -> Seen:
    return [(0, number) for number in range(count)]


def holds(partition: Partition, action: Action, count: int) -> Seen:
    """Return what is in the log; it may have what the action appends, and lack what it deletes, and nothing else."""
    start = partition.ends().start
    assert start in (0, action.deletes)
    found = read_all(partition, start)
    before = records_of(count)[start:]
    assert found in (before, [*before, *[(1, number) for number in range(action.appends)]])
    return found


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", ACTIONS)
def test_an_exception_from_outside_at_any_step_holds_up_nobody_and_loses_nothing(rig: Rig, name: str, how: str) -> None:
    action = ACTIONS[name]
    counted = rig.partition(rig.fresh_slot())
    action.prepare(counted)
    steps = steps_of(partial(action.act, counted))
    assert steps >= 4
    interrupted = 0
    for step in range(1, steps + 1):
        partition = rig.partition(rig.fresh_slot())
        action.prepare(partition)
        count = partition.ends().end
        theirs = made(Path(rig.path))
        mine = theirs.partition(partition.slot)
        try:
            with struck_at(step, how):
                action.act(mine)
        except (KeyboardInterrupt, Injected):
            interrupted += 1
        assert is_all_free(rig, partition), f"step {step}: a lock is still held"
        assert not partition.log.flushing, f"step {step}: the next sync would write everything again"
        assert not partition.log.flags & head.SYNC_FAILED or name == "rewrite"
        found = holds(partition, action, count)
        for log in (partition, mine):  # another process, then the interrupted one
            base = log.append(batch(2, len(found)))
            found.append((2, len(found)))
            log.sync(base + 1)
            assert log.log.flushed_offset == base + 1 and not log.log.flags
        start = partition.ends().start
        assert read_all(partition, start) == read_all(mine, start) == found
        if not start:
            assert scan_files(partition) == found
        index_is_true(partition)
        action.act(mine)
        assert is_all_free(rig, partition)
    assert interrupted == steps, "an exception was swallowed"


@pytest.mark.parametrize("how", HOWS)
def test_a_recovery_with_an_exception_from_outside_at_any_step_is_finished_by_the_next(rig: Rig, how: str) -> None:
    counted = rig.partition(rig.fresh_slot())
    fill_and_reboot(counted)
    steps = steps_of(lambda: rig.partition(counted.slot))
    assert steps > 15
    for step in range(1, steps + 1):
        partition = rig.partition(rig.fresh_slot())
        fill_and_reboot(partition)
        theirs = made(Path(rig.path))
        try:
            with struck_at(step, how):
                theirs.partition(partition.slot)
        except (KeyboardInterrupt, Injected):
            pass
        assert is_all_free(rig, partition), f"step {step}: a lock is still held"
        other = rig.partition(partition.slot)
        assert not other.log.flags
        assert read_all(other) == scan_files(other) == records_of(9)
        again = theirs.partition(partition.slot)
        again.append(batch(1, 1))
        again.sync(10)
        assert read_all(other) == [*records_of(9), (1, 1)]
        index_is_true(other)
