"""A failed fsync: SyncFailed, nothing acked is lost, and it heals when its cause is gone.

The kernel reports a failed sync once. The pages that could not be written count as clean from then on, and the next
fsync, by anybody, says that all is well. So whoever comes next must not believe it: the bytes have to be written again.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import klamm
from klamm.disk import _os
from klamm.errors import CorruptBatch, KlammError, SyncFailed
from klamm.log import head, point
from tests.crash.cases import memory_directory
from tests.crash.mounts import late_disk
from tests.crash.oracle import read_all
from tests.crash.workload import log_of, sealed
from tests.procs import children
from tests.rig import Rig, Sizes, run_child

MANY = 300
TRIES, LOST = 6, 3


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    with memory_directory(tmp_path) as path:
        yield path


class LostByTheKernel(Exception):
    """It wrote a page before it was asked to, could not, and read it again from the disk for the next write.

    Klamm says so (CorruptBatch: a failed sync lost records), and there is nothing to be shown on such a disk.
    """


def in_child(action: Callable[[], object]) -> None:
    """In a process of its own, which leaves nothing open or mapped."""

    def told() -> None:
        try:
            action()
        except CorruptBatch as error:
            if "a failed sync lost records" not in str(error):
                raise
            os._exit(LOST)

    status = run_child(told)
    if status == LOST << 8:
        raise LostByTheKernel
    assert status == 0, f"the child ended with status {status:#x}"


def append(store: klamm.Store, text: str) -> None:
    log = log_of(store, "orders/0")
    log.sync(log.append(sealed([text])) + 1)


def value(number: int) -> str:
    return f"{number} " + "." * 8000


def test_another_process_does_not_ack_what_a_failed_sync_has_lost(tmp_path: Path) -> None:
    for number in range(TRIES):
        with suppress(LostByTheKernel):
            another_process_after_a_failed_sync(tmp_path / f"late{number}")
            return
    pytest.fail(f"the kernel has lost what it could not write {TRIES} times")


def another_process_after_a_failed_sync(directory: Path) -> None:
    with late_disk(directory, 12 << 20) as disk:
        path = disk.path / "store"

        def begin() -> None:
            with klamm.open(path) as store:
                store.topics.create("orders", 1)
                log = log_of(store, "orders/0")
                log.append(sealed([value(0)]))
                log.sync(1)

        def fail() -> None:
            store = klamm.open(path)
            log = log_of(store, "orders/0")
            for number in range(1, MANY):
                log.append(sealed([value(number)]))
            with pytest.raises(SyncFailed, match="No space left"):
                log.sync(MANY)
            assert log.ends().flushed == 1
            assert read_all(log) == (0, [value(number) for number in range(MANY)]), "readers go on"
            os._exit(0)  # without closing

        def come_later() -> None:
            store = klamm.open(path)
            log = log_of(store, "orders/0")
            for name in Path(log.directory).glob("*.log"):
                fd = os.open(name, os.O_RDWR)
                with suppress(OSError):
                    os.fsync(fd)
                os.fsync(fd)  # says that all is well
                os.close(fd)
            for _ in range(2):
                with pytest.raises(SyncFailed):
                    log.sync(MANY)
                with pytest.raises(SyncFailed):
                    log.append(sealed(["more"]))
            assert log.ends().flushed == 1
            os._exit(0)

        def go_on() -> None:
            with klamm.open(path) as store:
                log = log_of(store, "orders/0")
                assert log.append(sealed([value(MANY)])) == MANY
                log.sync(MANY + 1)
                assert log.ends().flushed == MANY + 1
                assert not log.log.flags
                os._exit(0)  # without closing: nothing is synced later

        def look() -> None:
            with klamm.open(path) as store:
                found = read_all(log_of(store, "orders/0"))
                assert found == (0, [value(number) for number in range(MANY + 1)])
                broken = [each for each in store.check().breaches if not each.promise.startswith("I1")]
                assert not broken, broken[0]  # (entries of an index that the disk has lost count as missing)

        in_child(begin)
        disk.below.fill()
        in_child(fail)
        in_child(come_later)
        disk.below.resize(80 << 20)
        in_child(go_on)
        disk.unmount()  # from now on only what is on disk counts
        disk.mount()
        in_child(look)


def test_what_was_acked_before_a_failed_sync_survives_it_unhealed(tmp_path: Path) -> None:
    with late_disk(tmp_path / "late", 12 << 20) as disk:
        path = disk.path / "store"
        acked = 20

        def run() -> None:
            store = klamm.open(path)
            store.topics.create("orders", 1)
            log = log_of(store, "orders/0")
            for number in range(acked):
                log.append(sealed([value(number)]))
                log.sync(number + 1)
            disk.below.fill()
            for number in range(acked, MANY):
                log.append(sealed([value(number)]))
            with pytest.raises(SyncFailed):
                log.sync(MANY)
            os._exit(0)

        def look() -> None:
            with klamm.open(path) as store:
                log = log_of(store, "orders/0")
                lost = False
                try:
                    read_all(log)
                except CorruptBatch:
                    lost = True
                    with pytest.raises(CorruptBatch, match="a failed sync lost records"):
                        log.append(sealed(["more"]))
                    assert not [each for each in store.check(repair=True).breaches if not each.repaired]
                _, found = read_all(log_of(store, "orders/0"))
                assert acked <= len(found) < MANY if lost else len(found) == MANY
                assert found == [value(number) for number in range(len(found))]
                append(store, "more")
                assert read_all(log_of(store, "orders/0")) == (0, [*found, "more"])

        in_child(run)
        disk.below.resize(80 << 20)
        disk.unmount()
        disk.mount()
        in_child(look)


# Injected: any sync may fail.


def test_a_process_that_meets_a_failed_sync_writes_everything_since_the_last_good_one_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, slots=2)
    log = rig.partition(1, Sizes(segment_bytes=2000))
    log.append(sealed(["synced"]))
    log.sync(1)
    for number in range(10):
        log.append(sealed([f"{number}" + "." * 500]))
    _os.trap(1, kinds=_os.SYNC, error=errno.EIO, repeat=True)
    try:
        with pytest.raises(SyncFailed):
            log.sync(11)
    finally:
        _os.trap(0)
    assert log.log.flags & head.SYNC_FAILED
    assert log.log.flushed_offset == 1
    segments = sorted(Path(log.directory).glob("*.log"))
    assert len(segments) >= 3

    def come_later() -> None:
        mine = rig.child().partition(1, Sizes(segment_bytes=2000))
        before = {path: path.stat().st_mtime_ns for path in segments}
        mine.sync(11)
        assert mine.log.flushed_offset == 11
        unwritten = [path.name for path in segments if path.stat().st_mtime_ns == before[path]]
        assert not unwritten, "believed to be on disk without being written again"

    in_child(come_later)
    assert not log.log.flags


def test_readers_do_not_notice_that_a_log_is_healed(scratch: Path) -> None:
    """What is above flushed_offset is cut off and written again; a healer stands still at every step of it."""
    rig = Rig(scratch, slots=2)
    sizes = Sizes(segment_bytes=3 * len(sealed([value(0)])))
    log = rig.partition(1, sizes)
    for number in range(8):
        log.append(sealed([value(number)]))
    log.sync(8)
    log.log.flushed_offset = 4
    log.log.set_flags(head.SYNC_FAILED)
    found: list[object] = []

    def rewrite_unsynced() -> None:
        mine = rig.child().partition(1, sizes)
        _os.trap(1, kinds=_os.WRITE | _os.TRUNCATE | _os.SYNC | _os.RENAME, signal=signal.SIGSTOP, repeat=True)
        mine.rewrite_unsynced()

    def read() -> None:
        try:
            found.append(read_all(rig.child().partition(1, sizes)))
        except BaseException as error:
            found.append(error)

    readers = []
    with children() as start:
        healer = start(rewrite_unsynced)
        while healer.stopped():
            readers.append(threading.Thread(target=read))
            readers[-1].start()
            readers[-1].join(0.02)  # it is done, or waits for the healer
            healer.go_on()
        for reader in readers:
            reader.join(30)
    assert len(readers) > 10
    assert not log.log.flags & head.SYNC_FAILED
    assert found == [(0, [value(number) for number in range(8)])] * len(readers)


@pytest.mark.parametrize("how_long", ["once", "from then on"])
def test_whichever_sync_fails_it_is_told_and_healed(scratch: Path, how_long: str) -> None:
    told = 0
    for step in range(1, 200):
        path = scratch / str(step)
        store = klamm.open(path)
        store.topics.create("orders", 1, {"segment.bytes": "300"})
        log = log_of(store, "orders/0")
        values: list[str] = []
        acked = 0
        _os.trap(step, kinds=_os.SYNC, error=errno.EIO, repeat=how_long == "from then on")
        try:
            for number in range(9):
                base = log.append(sealed([f"{number}" + "." * 90]))
                values.append(f"{number}" + "." * 90)
                if number % 2:
                    log.sync(base + 1)
                    acked = base + 1
                    assert log.ends().flushed >= acked
            log.append(sealed(["produced"], epoch=0, sequence=0))
            values.append("produced")
            log.checkpoint()
            log.cleanup.delete_before(4)
        except KlammError:
            told += 1
        finally:
            alive = _os.steps_taken() < step
            _os.trap(0)
        known = point.load(log.directory)
        assert not isinstance(known, point.Point) or known.offset <= log.ends().flushed, (
            "a recovery point beyond what was synced"
        )
        end = log.append(sealed(["after"])) + 1
        log.sync(end)
        start, found = read_all(log)
        assert end > acked
        assert found[-1] == "after"
        assert [*found[:-1]] == values[start : end - 1]
        store.close()
        if alive:
            break
    assert told > (5 if how_long == "from then on" else 0)
    assert step < 150
