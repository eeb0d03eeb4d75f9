"""Syncs of several logs at once: what is told to be synced is on disk, and what cannot be done at once is left."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.disk import _os
from klamm.kafka.parallel_sync import ParallelSync
from klamm.log.partition import Partition
from tests.crash.cases import memory_directory
from tests.procs import PATIENCE, until
from tests.rig import Rig, batch


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with memory_directory(tmp_path) as path:
        yield Rig(path, slots=100)
    _os.trap(0)


@pytest.fixture
def syncs() -> Iterator[ParallelSync]:
    made = ParallelSync()
    yield made
    made.close()


def appended(rig: Rig, count: int) -> list[tuple[Partition, int]]:
    partitions = [rig.partition(slot) for slot in range(1, count + 1)]
    for partition in partitions:
        partition.append(batch(0, 0))
    return [(partition, 1) for partition in partitions]


def test_logs_are_on_disk_when_it_returns(rig: Rig, syncs: ParallelSync) -> None:
    ends = appended(rig, 20)
    assert syncs.sync(ends) == [True] * 20
    assert all(partition.log.flushed_offset == 1 for partition, _ in ends)
    assert syncs.sync([]) == []


def test_what_another_process_syncs_or_the_disk_refuses_is_left(rig: Rig, syncs: ParallelSync) -> None:
    ends = appended(rig, 3)
    with ends[1][0].log.flush_lock():
        assert syncs.sync(ends) == [True, False, True]
    ends[0][0].append(batch(0, 1))
    _os.trap(1, kinds=_os.SYNC, error=errno.EIO)
    assert syncs.sync([(ends[0][0], 2)]) == [False]
    _os.trap(0)
    assert ends[0][0].log.flushed_offset == 1


def test_many_threads_have_their_own_logs_synced(rig: Rig, syncs: ParallelSync) -> None:
    ends = appended(rig, 40)
    found: dict[int, list[bool]] = {}

    def sync(number: int) -> None:
        found[number] = syncs.sync(ends[number::10])

    threads = [threading.Thread(target=sync, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == {number: [True] * 4 for number in range(10)}
    assert all(partition.log.flushed_offset == 1 for partition, _ in ends)


def pipes() -> list[str]:
    """Logs have descriptors of their own, opened when they are first synced."""
    return sorted(name for name in map(str, map(target_of, os.listdir("/proc/self/fd"))) if name.startswith("pipe"))


def target_of(descriptor: str) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # the one that listed them
        return None


def test_it_leaves_no_thread_and_no_descriptor_and_then_syncs_nothing(rig: Rig) -> None:
    ends = appended(rig, 8)
    threads, before = set(os.listdir("/proc/self/task")), set(pipes())  # those of others may end at any time
    syncs = ParallelSync()
    assert all(syncs.sync(ends))
    assert set(os.listdir("/proc/self/task")) - threads
    syncs.close()
    until(lambda: not set(os.listdir("/proc/self/task")) - threads, "the threads have ended")
    assert not set(pipes()) - before
    ends[0][0].append(batch(0, 1))
    assert syncs.sync([(ends[0][0], 2)]) == [False]
