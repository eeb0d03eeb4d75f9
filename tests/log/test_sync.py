"""Sync: one for many, an error for all, and nothing acknowledged that may be lost."""

from __future__ import annotations

import errno
import signal
import threading
from pathlib import Path

import pytest

from klamm.disk import _os
from klamm.errors import Closed, CorruptBatch, SyncFailed
from klamm.log import head, recovery
from klamm.log.partition import Partition
from tests.log.logs import batch_of, flip, log_file
from tests.procs import asleep, children, until
from tests.rig import Rig, batch, read_all, scan_files

LARGE = {"segment_bytes": 1 << 20, "index_interval_bytes": 1 << 20}


def counted(kinds: int, action) -> int:  # type: ignore[no-untyped-def]
    """Steps of these kinds that `action` takes."""
    _os.trap(1 << 60, kinds=kinds)
    action()
    steps = _os.steps_taken()
    _os.trap(0)
    return steps


# ---- what is synced


def test_a_sync_covers_everything_committed_and_the_next_one_has_nothing_to_do(rig: Rig) -> None:
    partition = rig.partition(1)
    for number in range(12):
        partition.append(batch(0, number))
    assert len(partition.segments()) > 2
    steps = counted(_os.SYNC, lambda: partition.sync(1))
    assert partition.ends().flushed == 12
    assert steps == len(partition.segments()) + 3, "each segment, its directory, and the two above"
    assert counted(_os.SYNC, lambda: partition.sync(12)) == 0


def test_a_sync_within_a_segment_is_one_call(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    partition.append(batch(0, 0))
    partition.sync(1)
    for number in range(1, 6):
        partition.append(batch(0, number))
        assert counted(_os.SYNC, lambda n=number: partition.sync(n + 1)) == 1


def test_the_first_sync_after_a_roll_syncs_both_segments_and_their_names(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    partition.sync(1)
    while partition.snapshot().active_base == 0:
        partition.append(batch(0, 1))
    end = partition.ends().end
    assert counted(_os.SYNC, lambda: partition.sync(end)) == 5


def test_what_another_process_has_synced_need_not_be_synced_again(rig: Rig) -> None:
    mine, other = rig.partition(1), rig.child().partition(1)
    mine.append(batch(0, 0))
    other.sync(1)
    assert counted(_os.SYNC, lambda: mine.sync(1)) == 0


# ---- group commit


def test_whoever_waits_for_a_sync_shares_the_next_one(rig: Rig) -> None:
    """Eight processes append while a ninth is stopped in its sync: one more sync acknowledges all of them."""
    partition = rig.partition(1, **LARGE)
    partition.append(batch(0, 0))
    partition.sync(1)
    partition.append(batch(0, 1))

    def stopped() -> None:
        mine = rig.child().partition(1, **LARGE)
        _os.trap(1, kinds=_os.SYNC, signal=signal.SIGSTOP)
        mine.sync(2)

    def ack(writer: int) -> int:
        mine = rig.child().partition(1, **LARGE)
        offset = mine.append(batch(writer, 0))
        return counted(_os.SYNC, lambda: mine.sync(offset + 1))

    with children() as start:
        first = start(stopped)
        assert first.stopped()
        waiting = [start(lambda n=n: ack(n)) for n in range(1, 9)]  # type: ignore[misc]
        until(lambda: partition.ends().end == 10, "all have appended")
        assert partition.ends().flushed == 1, "nobody is told before it is so"
        assert all(child.running for child in waiting)
        first.go_on()
        first.answer()
        assert sum(child.answer() for child in waiting) <= 2
    assert partition.ends().flushed == 10


def test_processes_that_wait_for_a_sync_share_the_next_one(tmp_path: Path) -> None:
    """All that was appended while one process synced is on disk after one more sync, whoever makes it."""
    rig = Rig(tmp_path, slots=2)
    partition = rig.partition(1, **LARGE)
    partition.append(batch(0, 0))
    partition.sync(1)  # the names, too

    def work(writer: int) -> int:
        mine = rig.child().partition(1, **LARGE)
        _os.trap(1 << 60, kinds=_os.SYNC)
        offset = mine.append(batch(writer, 0))
        mine.sync(offset + 1)
        assert mine.log.flushed_offset > offset
        return _os.steps_taken()

    with children() as start:
        with partition.log.flush_lock():
            workers = [start(lambda n=n: work(n)) for n in range(1, 9)]  # type: ignore[misc]
            until(lambda: partition.ends().end == 9, "all have appended")
        assert sum(worker.answer() for worker in workers) == 1


def test_threads_share_their_syncs_too(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    done: list[int] = []

    def work(writer: int) -> None:
        for number in range(30):
            offset = partition.append(batch(writer, number))
            partition.sync(offset + 1)
            assert partition.log.flushed_offset > offset
            done.append(offset)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(done) == list(range(180))


def test_processes_that_wait_for_a_sync_go_on_when_the_syncing_process_dies(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    partition.append(batch(0, 0))

    def die() -> None:
        mine = rig.child().partition(1, **LARGE)
        _os.trap(1, kinds=_os.SYNC, signal=signal.SIGSTOP)
        mine.sync(1)

    def ack() -> None:
        mine = rig.child().partition(1, **LARGE)
        mine.sync(1)

    with children() as start:
        syncer = start(die)
        assert syncer.stopped()
        waiting = [start(ack) for _ in range(3)]
        for child in waiting:
            asleep(child)
        assert all(child.running for child in waiting)
        syncer.kill()
        for child in waiting:
            child.answer()
    assert partition.ends().flushed == 1
    assert partition.log.flags == 0


# ---- failure


def failing(partition: Partition, *, repeat: bool) -> None:
    _os.trap(1, kinds=_os.SYNC, error=errno.EIO, repeat=repeat)


def test_a_sync_that_fails_once_is_made_good_by_writing_the_bytes_again(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel reports the error once and may have dropped the pages: syncing again would prove nothing."""
    partition = rig.partition(1, **LARGE)
    for number in range(3):
        partition.append(batch(0, number))
    partition.sync(3)
    size = log_file(partition, 0).stat().st_size
    partition.append(batch(0, 3))
    failing(partition, repeat=False)
    partition.sync(4)
    _os.trap(0)
    assert "recovered from a failed sync" in caplog.text
    assert partition.ends().flushed == 4
    assert partition.log.flags == 0
    assert read_all(partition) == scan_files(partition) == [(0, number) for number in range(4)]

    partition.append(batch(0, 4))
    partition.log.set_flags(head.SYNC_FAILED)
    written = counted(_os.WRITE, lambda: recovery.rewrite_unsynced(partition.log))
    assert written >= 2, "it only synced again"
    assert log_file(partition, 0).stat().st_size == size + 2 * len(batch(0, 3))


def test_a_disk_that_keeps_failing_refuses_syncs_and_appends_until_it_works_again(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    partition, other = rig.partition(1, **LARGE), rig.child().partition(1, **LARGE)
    partition.append(batch(0, 0))
    partition.sync(1)
    partition.append(batch(0, 1))
    failing(partition, repeat=True)
    for _ in range(2):
        with pytest.raises(SyncFailed):
            partition.sync(2)
        for each in (partition, other):
            with pytest.raises(SyncFailed):
                each.append(batch(9, 9))
        assert partition.log.flags & head.SYNC_FAILED
        assert partition.ends().flushed == 1, "nothing is acknowledged meanwhile"
    assert read_all(partition) == [(0, 0), (0, 1)], "readers go on"
    lost = "a sync failed, or its process died or was stopped: offsets 1 to 1 are not known to be on disk"
    assert caplog.text.count(lost) == 1, "the failure is logged once, however often it is met"
    assert "recovered from a failed sync" not in caplog.text
    _os.trap(0)
    assert other.append(batch(0, 2)) == 2
    assert caplog.text.count("recovered from a failed sync") == 1
    assert partition.log.flags == 0
    assert partition.ends().flushed == 2, "healed up to what was committed then"
    partition.sync(3)
    assert read_all(partition) == scan_files(partition) == [(0, 0), (0, 1), (0, 2)]


def test_another_process_does_not_take_a_later_sync_for_success(rig: Rig) -> None:
    """It has descriptors of its own, whose fsync would succeed: it writes the bytes again first."""
    partition = rig.partition(1, **LARGE)
    partition.append(batch(0, 0))
    partition.sync(1)
    partition.append(batch(0, 1))
    failing(partition, repeat=True)
    with pytest.raises(SyncFailed):
        partition.sync(2)
    _os.trap(0)

    def ack() -> int:
        mine = rig.child().partition(1, **LARGE)
        return counted(_os.WRITE, lambda: mine.sync(2))

    with children() as start:
        assert start(ack).answer() >= 2
    assert partition.ends().flushed == 2
    assert partition.log.flags == 0


@pytest.mark.parametrize("where", ["segment", "directory"])
def test_a_failed_sync_of_a_directory_counts_like_one_of_a_file(rig: Rig, where: str) -> None:
    partition = rig.partition(1, **LARGE)
    partition.append(batch(0, 0))
    _os.trap(1 if where == "segment" else 2, kinds=_os.SYNC, error=errno.EIO, repeat=True)
    with pytest.raises(SyncFailed, match="Input/output error"):
        partition.sync(1)
    _os.trap(0)
    assert partition.ends().flushed == 0
    partition.sync(1)
    assert partition.ends().flushed == 1


def test_a_syncer_that_died_counts_as_failed(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    partition.append(batch(0, 0))

    def die() -> None:
        mine = rig.child().partition(1, **LARGE)
        _os.trap(1, kinds=_os.SYNC, signal=signal.SIGKILL)
        mine.sync(1)

    with children() as start:
        start(die).ended()
    was_flushing = partition.log.flushing
    assert counted(_os.WRITE, lambda: partition.sync(1)) >= 2, "it believed the dead one's sync"
    assert was_flushing and not partition.log.flushing
    assert partition.ends().flushed == 1


def test_bytes_that_a_failed_sync_lost_are_an_error_and_never_acknowledged(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    partition.append(batch(0, 0))
    partition.sync(1)
    partition.append(batch(0, 1))
    end = partition.snapshot().position
    partition.log.set_flags(head.SYNC_FAILED)
    flip(log_file(partition, 0), end - 5)  # a dropped page shows what was on disk before
    for _ in range(2):
        with pytest.raises(CorruptBatch) as caught:
            partition.sync(2)
        assert caught.value.position == len(batch(0, 0))
        assert partition.ends().flushed == 1
        with pytest.raises(CorruptBatch):
            partition.append(batch(0, 2))
    flip(log_file(partition, 0), end - 5)
    partition.sync(2)
    assert partition.ends().flushed == 2


def test_healing_writes_batches_larger_than_its_window_and_many_segments(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=6 << 20, max_message_bytes=16 << 20)
    paddings = (10, 5 << 20, 10, 9 << 20, 10, 10)
    for number, padding in enumerate(paddings):
        partition.append(batch_of([number], padding=padding))
    before = {path.name: path.read_bytes() for path in Path(partition.directory).glob("*.log")}
    partition.log.set_flags(head.SYNC_FAILED)
    partition.sync(len(paddings))
    assert {path.name: path.read_bytes() for path in Path(partition.directory).glob("*.log")} == before
    assert partition.ends().flushed == len(paddings)


def test_control_c_ends_a_wait_for_a_sync(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    partition.append(batch(0, 0))

    def wait() -> str:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        mine = rig.child().partition(1, **LARGE)
        try:
            mine.sync(1)
        except KeyboardInterrupt:
            return "interrupted"
        return "synced"

    with partition.log.flush_lock(), children() as start:
        child = start(wait)
        asleep(child)
        child.signal(signal.SIGINT)
        assert child.answer() == "interrupted"
    partition.sync(1)


def test_a_partition_that_cannot_be_synced_is_closed_all_the_same(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    failing(partition, repeat=True)
    with pytest.raises(SyncFailed):
        partition.close()
    _os.trap(0)
    with pytest.raises(Closed):
        partition.append(batch(0, 1))
    assert read_all(rig.child().partition(1)) == [(0, 0)]


# ---- recovery points


def test_a_checkpoint_syncs_first_and_is_skipped_when_nothing_changed(rig: Rig) -> None:
    partition = rig.partition(1)
    for number in range(10):
        partition.append(batch(0, number))
    partition.checkpoint()
    assert partition.ends().flushed == 10
    now = partition.snapshot()
    assert partition.log.recovery_point == (now.active_base, now.position)
    assert counted(_os.ALL & ~_os.READ, partition.checkpoint) == 0


def test_appends_ask_for_a_recovery_point_at_each_roll_and_every_64_mib(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=1 << 30, max_message_bytes=20 << 20)
    asked = []
    for number in range(9):
        rig.events.clear()
        partition.append(batch_of([number], padding=16 << 20))
        if any(events & head.RECOVERY_POINT for events in rig.events):
            asked.append(number)
            partition.checkpoint()
    assert len(asked) == 2 and asked[1] - asked[0] in (4, 5)
