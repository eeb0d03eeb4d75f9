"""Threads that sync for an event loop: each job comes back once, with what became of it, and the loop is told once."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator

import pytest

from klamm.disk import _os
from klamm.log.head import Result, Syncer
from tests.procs import PATIENCE, asleep, children, readable, until
from tests.rig import Rig, batch


class Syncing:
    """A syncer with as many threads as a test starts, and what a loop would see of it."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.syncer: Syncer[str] = Syncer(self.fd)
        self.threads: list[threading.Thread] = []

    def start(self) -> None:
        self.threads.append(threading.Thread(target=self.syncer.run, daemon=True))
        self.threads[-1].start()

    def done(self, count: int) -> dict[str, int]:
        """What became of so many jobs, once they are done."""
        found: list[tuple[str, int]] = []
        while len(found) < count:
            assert readable(self.fd, PATIENCE), f"{len(found)} of {count} jobs are done"
            os.eventfd_read(self.fd)
            found += self.syncer.take()
        assert len(dict(found)) == len(found)
        return dict(found)

    def close(self) -> None:
        self.syncer.stop()
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        os.close(self.fd)


@pytest.fixture
def syncing() -> Iterator[Syncing]:
    made = Syncing()
    yield made
    made.close()


def test_what_is_told_to_be_synced_is_on_disk(rig: Rig, syncing: Syncing) -> None:
    partition = rig.partition(1)
    for number in range(3):
        partition.append(batch(0, number))
    syncing.start()
    syncing.syncer.submit(partition.log, 3, "a")
    assert syncing.done(1) == {"a": 0}
    assert partition.log.flushed_offset == 3
    assert not partition.log.flushing
    assert len(syncing.syncer) == 0


def test_the_loop_is_told_once_of_all_that_is_done(rig: Rig, syncing: Syncing) -> None:
    partitions = [rig.partition(slot) for slot in range(1, 9)]
    for partition in partitions:
        partition.append(batch(0, 0))
        assert syncing.syncer.submit(partition.log, 1, partition.directory)  # nobody is there to do it
    syncing.start()
    until(lambda: all(partition.log.flushed_offset == 1 for partition in partitions), "all are synced")
    assert readable(syncing.fd, PATIENCE)
    syncing.syncer.stop()
    syncing.threads[0].join(PATIENCE)
    assert os.eventfd_read(syncing.fd) == 1
    assert sorted(syncing.syncer.take()) == sorted((partition.directory, 0) for partition in partitions)


def test_after_a_look_the_loop_is_told_again(rig: Rig, syncing: Syncing) -> None:
    partition = rig.partition(1)
    syncing.start()
    for number in range(50):
        partition.append(batch(0, number))
        syncing.syncer.submit(partition.log, number + 1, f"{number}")
        assert syncing.done(1) == {f"{number}": 0}


def test_more_threads_are_wanted_only_while_jobs_wait_for_one(rig: Rig, syncing: Syncing) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    assert syncing.syncer.submit(partition.log, 1, "first")
    syncing.start()
    assert syncing.done(1) == {"first": 0}
    asleep(syncing.threads[0])
    assert not syncing.syncer.submit(partition.log, 1, "second")
    assert syncing.done(1) == {"second": 0}


def test_an_error_of_the_disk_is_told_and_nothing_counts_as_synced(rig: Rig, syncing: Syncing) -> None:
    partition, other = rig.partition(1), rig.partition(2)
    for each in (partition, other):
        each.append(batch(0, 0))
        each.sync(1)
        each.append(batch(0, 1))
    _os.trap(1, kinds=_os.SYNC, error=errno.EIO)
    syncing.start()
    syncing.syncer.submit(partition.log, 2, "bad")
    assert syncing.done(1) == {"bad": -errno.EIO}
    _os.trap(0)
    assert partition.log.flushed_offset == 1
    syncing.syncer.submit(partition.log, 2, "again")
    syncing.syncer.submit(other.log, 2, "other")
    assert syncing.done(2) == {"again": Result.SYNC_FAILED, "other": 0}
    assert partition.log.flushed_offset == 1
    partition.sync(2)
    syncing.syncer.submit(partition.log, 2, "after a rewrite")
    assert syncing.done(1) == {"after a rewrite": 0}


def test_it_does_not_wait_for_another_process_that_syncs(rig: Rig, syncing: Syncing) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    syncing.start()
    with partition.log.flush_lock():
        syncing.syncer.submit(partition.log, 1, "busy")
        assert syncing.done(1) == {"busy": -errno.EAGAIN}
    syncing.syncer.submit(partition.log, 1, "free")
    assert syncing.done(1) == {"free": 0}


def test_a_log_that_is_closed_or_deleted_is_not_synced(rig: Rig, syncing: Syncing) -> None:
    closed, deleted = rig.partition(1), rig.partition(2)
    for partition in (closed, deleted):
        partition.append(batch(0, 0))
    syncing.syncer.submit(closed.log, 1, "closed")
    syncing.syncer.submit(deleted.log, 1, "deleted")
    closed.log.abandon()
    successor = rig.partition(2)
    deleted.mark_deleted()
    with successor.log.append_lock():
        successor.log.use_again(bytes(16), 7)
    syncing.start()
    assert syncing.done(2) == {"closed": Result.ABANDONED, "deleted": Result.DELETED}


def test_jobs_begin_in_order_however_many_there_are(rig: Rig, syncing: Syncing) -> None:
    """Beyond the first room of the ring, and around its end."""
    partitions = [rig.partition(slot) for slot in range(1, 41)]
    syncing.start()
    for turn in range(1, 7):
        for partition in partitions:
            partition.append(batch(0, turn))
        for partition in partitions:
            for copy in range(turn):
                syncing.syncer.submit(partition.log, turn, f"{partition.directory} {copy}")
        found = syncing.done(turn * len(partitions))
        assert set(found.values()) == {0}
        assert all(partition.log.flushed_offset == turn for partition in partitions)


def test_several_threads_do_each_job_once(rig: Rig, syncing: Syncing) -> None:
    partitions = [rig.partition(slot) for slot in range(1, 33)]
    for _ in range(4):
        syncing.start()
    for turn in range(1, 21):
        for partition in partitions:
            partition.append(batch(0, turn))
            syncing.syncer.submit(partition.log, turn, partition.directory)
        assert set(syncing.done(len(partitions)).values()) == {0}
        assert all(partition.log.flushed_offset == turn for partition in partitions)


def test_what_has_not_begun_is_left_when_it_is_stopped(rig: Rig, syncing: Syncing) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    syncing.syncer.submit(partition.log, 1, "left")
    syncing.syncer.stop()
    syncing.start()
    syncing.threads[0].join(PATIENCE)
    assert not syncing.threads[0].is_alive()
    assert syncing.syncer.take() == []
    assert not readable(syncing.fd, 0)
    assert partition.log.flushed_offset == 0


def test_a_stop_is_not_missed_by_a_thread_that_is_about_to_sleep() -> None:
    for _ in range(200):
        made = Syncing()
        made.start()
        made.close()


def test_a_log_is_not_collected_while_it_is_to_be_synced(rig: Rig, syncing: Syncing) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    syncing.syncer.submit(partition.log, 1, "a")
    del partition
    syncing.start()
    assert syncing.done(1) == {"a": 0}
    assert rig.partition(1).log.flushed_offset == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_it_goes_on_while_the_process_forks(rig: Rig, syncing: Syncing) -> None:
    partition = rig.partition(1)
    syncing.start()
    with children() as fork:
        for number in range(5):
            partition.append(batch(0, number))
            syncing.syncer.submit(partition.log, number + 1, f"{number}")
            fork(lambda: None)
            assert syncing.done(1) == {f"{number}": 0}
    assert partition.log.flushed_offset == 5
