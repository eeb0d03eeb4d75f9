"""A process is stopped (SIGSTOP, a debugger) while it holds a lock: who waits, how long, what they are told.

A stopped process that syncs is replaced: others' acks="all" wait a second, and what the replaced process does when it
is continued changes nothing. For every other lock the wait is bounded and ends in StoreBusy, which names the holder.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import klamm
from klamm.disk import _os, locks
from klamm.errors import StoreBusy
from klamm.log import head
from klamm.log.partition import Partition
from klamm.store import directory
from tests.crash.cases import memory_directory, seed_of
from tests.procs import Child, Flag, children, until
from tests.rig import Rig, batch, read_all, scan_files

pytestmark = [
    pytest.mark.skipif(not _os.HAS_BYTE_LOCKS, reason="one process at a time"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]

LARGE = {"segment_bytes": 1 << 20, "index_interval_bytes": 1 << 20}
KINDS = _os.ALL & ~_os.READ
PAIRS = 60  # of steps at which the two processes are stopped, in `make test`


# ---- syncing


class Replacement:
    """A process is stopped at a step of its sync; another replaces it, and is stopped, or killed, at a step as well."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.slot = rig.fresh_slot()
        self.partition = rig.partition(self.slot, **LARGE)
        for number in range(3):
            self.partition.append(batch(0, number))
        self.partition.sync(3)
        self.partition.append(batch(0, 3))

    def _open(self, stopped_after_ms: int) -> Partition:
        mine = self.rig.child()
        mine.lock.stopped_after_ms = stopped_after_ms
        return mine.partition(self.slot, **LARGE)

    def first(self, step: int) -> None:
        mine = self._open(stopped_after_ms=1 << 40)  # it replaces no process
        _os.trap(step, kinds=KINDS, signal=signal.SIGSTOP)
        mine.sync(4)

    def second(self, step: int, number: int) -> None:
        mine = self._open(stopped_after_ms=0)
        mine.append(batch(0, 4))
        _os.trap(step, kinds=KINDS, signal=number)
        mine.sync(5)

    def run(self, first_step: int, second_step: int, number: int) -> tuple[bool, bool]:
        """Return whether the first and the second process got as far as their steps."""
        log = self.partition.log
        with children() as start:
            first = start(lambda: self.first(first_step))
            if not first.stopped():
                first.answer()
                return False, False
            before = log.flushed_offset
            second = start(lambda: self.second(second_step, number))
            reached = second.stopped()
            if not reached and second.status is not None and os.WIFSIGNALED(second.status):
                reached = True
            elif not reached:
                second.answer()
            self._go_on(first, before if reached else 5)
            if number == signal.SIGSTOP:
                second.go_on()
                second.answer()
            first.answer()
        self._check()
        return True, reached

    def _go_on(self, first: Child, before: int) -> None:
        """Continue the first process. While the second rewrites, the first must neither publish nor return."""
        log = self.partition.log
        is_rewriting = self._is_held() and bool(log.flags & head.SYNC_FAILED) and log.flushed_offset == before < 4
        first.go_on()
        if is_rewriting:
            until(lambda: not first.running or _sleeps(first), "the first process waits, or ends")
            assert first.running, "it acknowledged what the second process is rewriting"
            assert log.flushed_offset == before, "it moved flushed_offset while the second process is rewriting"
            assert log.flags & head.SYNC_FAILED

    def _is_held(self) -> bool:
        """Whether the second process holds the append lock."""
        return self.partition.log.is_locked_elsewhere

    def _check(self) -> None:
        partition = self.partition
        end = partition.ends().end
        assert end in (4, 5)  # the second process may have been killed before its append
        partition.sync(end)
        assert partition.log.flushed_offset == end
        expected = [(0, number) for number in range(end)]
        assert read_all(partition) == scan_files(partition) == expected
        assert not locks.held_by_others(self.rig.lock.fd, 4 * self.slot, 4), "a byte is still held"
        assert not partition.log.is_locked_elsewhere
        assert not locks.held_by_others(self.rig.lock.fd, partition.log.flush_byte, 1)
        partition.append(batch(0, end))
        partition.sync(end + 1)
        assert partition.log.flushed_offset == end + 1
        assert not partition.log.flags and not partition.log.flushing


def _sleeps(child: Child) -> bool:
    """Whether it sleeps in the kernel, and still does a moment later."""
    for _ in range(3):
        if Path(f"/proc/{child.pid}/stat").read_text().rsplit(") ", 1)[1][0] != "S":
            return False
        time.sleep(0.003)
    return True


def count_steps(rig: Rig) -> tuple[int, int]:
    """Return how many steps the sync of the first process has, and that of one that replaces a stopped process."""
    first = 1
    while Replacement(rig).run(first, 1 << 40, signal.SIGSTOP)[0]:
        first += 1
    case, second = Replacement(rig), 0

    def count() -> int:
        case.second(1 << 40, signal.SIGSTOP)
        return _os.steps_taken()

    with children() as start:
        stopped = start(lambda: case.first(4))
        assert stopped.stopped()
        second = start(count).answer()
        stopped.go_on()
        stopped.answer()
    return first - 1, second


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int]:
    with memory_directory(tmp_path_factory.mktemp("steps")) as memory:
        found = count_steps(Rig(memory, slots=100))
    assert found[0] >= 8 and found[1] >= 30
    return found


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_syncer_that_was_replaced_changes_nothing_when_it_goes_on(
    tmp_path: Path, steps: tuple[int, int], number: int
) -> None:
    dice = random.Random(seed_of())
    with memory_directory(tmp_path) as memory:
        rig = Rig(memory, slots=PAIRS + 10)
        for _ in range(PAIRS // 2):
            pair = dice.randint(1, steps[0]), dice.randint(1, steps[1])
            print(*pair)
            Replacement(rig).run(*pair, number)


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_syncer_replaced_at_every_step_changes_nothing_when_it_goes_on(
    tmp_path: Path, steps: tuple[int, int], number: int
) -> None:
    with memory_directory(tmp_path) as memory:
        for first in range(1, steps[0] + 1):
            rig = Rig(memory / str(first), slots=steps[1] + 10)
            for second in range(1, steps[1] + 1):
                print(first, second)
                Replacement(rig).run(first, second, number)


def stopping_sync(path: str, end: Flag | None = None) -> None:
    with klamm.open(path) as store:
        _os.trap(1, kinds=_os.SYNC, signal=signal.SIGSTOP)
        store.append("orders", b"from the stopped process")
        if end is not None:
            end.wait()


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "store")
    with klamm.open(path) as store:
        store.topics.create("orders")
        store.append("orders", b"first")
    return path


def values(path: str) -> list[bytes]:
    with klamm.open(path) as store, store.consumer("orders", wait=0, form="values") as orders:
        return list(orders)


def test_others_wait_about_a_second_for_a_process_that_is_stopped_while_it_syncs(path: str) -> None:
    with children() as start, klamm.open(path) as store:
        stopped = start(lambda: stopping_sync(path))
        assert stopped.stopped()
        store.append("orders", b"second", acks="all")  # StoreBusy after 30 s, if nobody replaced the stopped process
        held = [(each.lock, each.pid, each.is_stopped) for each in store.who() if each.of == "orders/0"]
        assert held == [("flush (replaced)", stopped.pid, True)]
        store.append("orders", b"third", acks="all")
        stopped.go_on()
        stopped.answer()
    assert values(path) == [b"first", b"from the stopped process", b"second", b"third"]


def test_several_processes_in_a_row_are_stopped_while_they_sync(path: str) -> None:
    def stop(number: int) -> None:
        with klamm.open(path) as store:
            lock = directory_lock(store)
            lock.stopped_after_ms = 50
            _os.trap(1, kinds=_os.SYNC, signal=signal.SIGSTOP)  # in its sync, or in the rewrite
            store.append("orders", b"%d" % number)

    with children() as start, klamm.open(path, busy_timeout=60) as store:
        directory_lock(store).stopped_after_ms = 50
        first = start(lambda: stop(1))
        assert first.stopped()
        second = start(lambda: stop(2))
        assert second.stopped(), "it replaced the first, and was stopped while it rewrote what the first had not synced"
        second.go_on()  # it holds the append lock: only the first can wait without an end
        second.answer()
        store.append("orders", b"3")
        first.go_on()
        first.answer()
    assert sorted(values(path)[1:]) == [b"1", b"2", b"3"]


def filled(rig: Rig) -> Partition:
    """Several segments, and a producer."""
    partition = rig.partition(rig.fresh_slot())
    for number in range(10):
        partition.append(batch(0, number, producer=7, sequence=number))
    return partition


def test_a_process_stopped_while_it_writes_a_recovery_point_holds_up_others_in_one_sync_only(tmp_path: Path) -> None:
    held_up = []
    rig = Rig(tmp_path, slots=100)
    rig.lock.stopped_after_ms, rig.lock.timeout_ms = 1 << 40, 1000
    for step in itertools.count(1):
        partition = filled(rig)

        def write_point(slot: int = partition.slot, step: int = step) -> None:
            mine = rig.child().partition(slot)
            _os.trap(step, kinds=_os.SYNC, signal=signal.SIGSTOP)
            mine.checkpoint()

        with children() as start:
            child = start(write_point)
            if not child.stopped():
                child.answer()
                break
            if partition.log.flushing:
                held_up.append(step)
            else:
                partition.append(batch(0, 10))
                partition.sync(11)  # StoreBusy, if the stopped process held the flush lock
            child.go_on()
            child.answer()
        assert partition.log.recovery_point[0] >= 0
    partition = filled(rig)
    _os.trap(1 << 40, kinds=_os.SYNC)
    partition.sync(10)
    one_sync = _os.steps_taken()
    _os.trap(0)
    assert held_up == list(range(1, one_sync + 1))
    assert step - 1 > one_sync + 3, "snapshot, indexes and the file `recovery` come after it"


def directory_lock(store: klamm.Store) -> locks.LockFile:
    lock = store._acquired().lock
    assert lock is not None
    return lock


def wait_longer(store: klamm.Store) -> None:
    """Drop the short timeout of an expected error: syncs, rewrites and looks into /proc take as long as they take."""
    directory_lock(store).timeout_ms = locks.BUSY_TIMEOUT_MS


def test_a_process_that_syncs_slowly_but_runs_is_not_replaced(path: str, tmp_path: Path) -> None:
    held, end = Flag(tmp_path / "held"), Flag(tmp_path / "end")

    def sync_slowly() -> None:
        with klamm.open(path) as store:
            log = store._acquired().topic("orders").partition(0).log
            log.flushing = True
            with log.flush_lock():
                held.up()
                end.wait()
                log.flushing = False

    with children() as start, klamm.open(path, busy_timeout=0.3) as store:
        slow = start(sync_slowly)
        held.wait()
        directory_lock(store).stopped_after_ms = 0
        log = store._acquired().topic("orders").partition(0).log
        byte = log.flush_byte
        with pytest.raises(StoreBusy, match=rf"flush lock: held by pid {slow.pid} .*waited 0.3 s") as caught:
            store.append("orders", b"second", acks="all")
        assert "is stopped" not in str(caught.value)
        assert log.flush_byte == byte
        end.up()
        slow.answer()
        wait_longer(store)
        store.append("orders", b"third", acks="all")
        assert not log.flags
    assert values(path) == [b"first", b"second", b"third"]


def test_a_syncing_process_of_which_nobody_knows_anything_is_replaced_later(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("klamm.disk.holders.find_process", lambda pid: None)  # as in another container
    with children() as start, klamm.open(path, busy_timeout=0.3) as store:
        lock = directory_lock(store)
        lock.stopped_after_ms = 0
        stopped = start(lambda: stopping_sync(path))
        assert stopped.stopped()
        with pytest.raises(StoreBusy, match="cannot be seen from here"):
            store.append("orders", b"second", acks="all")
        wait_longer(store)
        lock.unknown_after_ms = 100
        store.append("orders", b"third", acks="all")
        stopped.go_on()
        stopped.answer()
    assert values(path) == [b"first", b"from the stopped process", b"second", b"third"]


# ---- other locks


def stop_in_append(path: str) -> None:
    with klamm.open(path) as store:
        _os.trap(1, kinds=_os.WRITE, signal=signal.SIGSTOP)
        store.append("orders", b"from the stopped process", acks=1)


def stop_in_commit(path: str) -> None:
    with klamm.open(path) as store, store._acquired().catalog.database.db_lock():
        os.kill(os.getpid(), signal.SIGSTOP)


def stop_in_retention(path: str) -> None:
    with klamm.open(path) as store:
        core = store._acquired()
        slot = core.topic("orders").partition(0).slot
        assert core.lock is not None
        with core.lock.hold(head.clean_byte(slot)):
            os.kill(os.getpid(), signal.SIGSTOP)


def stop_in_open(path: str) -> None:
    lock = locks.LockFile(f"{path}/lock")
    with lock.hold(directory.OPENING):
        os.kill(os.getpid(), signal.SIGSTOP)


def open_again(path: str) -> None:
    """In a child: this process has the store open already."""

    def work() -> str:
        try:
            klamm.open(path, busy_timeout=0.2).close()
        except StoreBusy as error:
            return str(error)
        return ""

    with children() as start:
        message = start(work).answer()
    if message:
        raise StoreBusy(message)


def reset(store: klamm.Store) -> None:
    with store.consumer("orders", group="g", wait=0) as orders:
        batch = orders.poll(timeout=0)
        assert batch
        orders.commit(batch)


CASES: dict[str, tuple[Callable[[str], None], Callable[[klamm.Store], object], str, str]] = {
    "appending": (stop_in_append, lambda store: store.append("orders", b"x", acks=1), "append lock", "append"),
    "appending, and a sync": (stop_in_append, lambda store: store.append("orders", b"x"), "append lock", "append"),
    "committing": (stop_in_commit, lambda store: store.topics.create("more"), "write lock of klamm.db", "klamm.db"),
    "committing offsets": (stop_in_commit, reset, "write lock of klamm.db", "klamm.db"),
    "cleaning": (stop_in_retention, lambda store: store["orders"].delete_records({0: 1}), "clean lock", "clean"),
    "opening": (stop_in_open, lambda store: open_again(store.path), "lock for opening the store", "opening"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wait_for_a_stopped_process_ends_in_an_error_that_names_it(path: str, case: str) -> None:
    stop, action, name, lock = CASES[case]
    with children() as start, klamm.open(path, busy_timeout=0.2) as store:
        stopped = start(lambda: stop(path))
        assert stopped.stopped()
        with pytest.raises(StoreBusy) as caught:
            action(store)
        message = str(caught.value)
        assert f"{name}: held by pid {stopped.pid} (" in message and "which is stopped" in message, message
        assert "waited 0.2 s" in message and f"kill -CONT {stopped.pid}" in message, message
        (row,) = [each for each in store.who() if each.pid == stopped.pid and each.lock == lock]
        assert (row.state, row.is_stopped) == ("holds", True)
        stopped.go_on()
        stopped.answer()
        wait_longer(store)
        action(store)
        assert not [each for each in store.who() if each.lock == lock]


def test_a_process_that_waits_is_shown_as_waiting(path: str) -> None:
    def wait() -> None:
        with klamm.open(path) as store:
            store.append("orders", b"x", acks=1)

    with children() as start, klamm.open(path) as store:
        stopped = start(lambda: stop_in_append(path))
        assert stopped.stopped()
        waiting = start(wait)

        def rows() -> list[tuple[str, str, int | None]]:
            return [(each.lock, each.state, each.pid) for each in store.who() if each.of == "orders/0"]

        expected = [("append", "holds", stopped.pid), ("append", "waits", waiting.pid)]
        until(lambda: rows() == expected, "both are shown")
        stopped.go_on()
        stopped.answer()
        waiting.answer()
        assert rows() == []


def test_the_first_in_the_queue_for_klamm_db_does_not_block_the_others_without_a_bound(path: str) -> None:
    def wait() -> None:
        with klamm.open(path) as store:
            store.topics.create("queued")

    with children() as start, klamm.open(path, busy_timeout=0.2) as store:
        holder = start(lambda: stop_in_commit(path))
        assert holder.stopped()
        first = start(wait)
        until(
            lambda: [each for each in store.who() if each.lock == "klamm.db queue" and each.pid == first.pid],
            "it is in the queue",
        )
        first.signal(signal.SIGSTOP)
        assert first.stopped()
        holder.go_on()
        holder.answer()
        wait_longer(store)
        store.topics.create("free")  # the lock itself is free, and the first try takes it
        first.go_on()
        first.answer()
        assert {"queued", "free"} <= set(store.topics)
