"""Lock bytes: who excludes whom among threads, processes and forks, and what a dead holder leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from klamm.disk import _os
from klamm.disk.locks import DB_LOCK, DB_LOCK_QUEUE, MAX_MEMBER_INDEX, OWNED, LockFile, group_lock_base
from klamm.errors import StoreBusy
from tests.interrupts import Interrupted, interrupt_at, points_of
from tests.procs import Flag, asleep, children, until

# Python 3.12 warns of forks with threads; that they are safe here is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "lock")


def is_free(path: str, byte: int) -> bool:
    """Whether somebody who comes anew could have the byte alone."""
    lock = LockFile(path)
    try:
        return lock.try_hold(byte)
    finally:
        lock.close()


# ---- threads


def test_threads_exclude_each_other_though_they_share_the_descriptor(path: str) -> None:
    lock = LockFile(path)
    inside, most, rounds = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, rounds
        for _ in range(50):
            with lock.hold(5):
                inside += 1
                most = max(most, inside)
                time.sleep(0)  # let others run
                rounds += 1
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (most, rounds) == (1, 300)


def test_a_thread_that_waits_too_long_is_told_so_and_others_keep_their_lock(path: str) -> None:
    lock = LockFile(path)
    with lock.hold(1):
        started = time.monotonic()
        with pytest.raises(StoreBusy, match="byte 1"), lock.hold(1, timeout_ms=50):
            pass
        assert time.monotonic() - started > 0.04
        with lock.hold(2, timeout_ms=1000):  # bytes know nothing of each other
            pass
        assert not is_free(path, 1)
    with lock.hold(1, timeout_ms=1000):
        pass


def test_an_exception_inside_lets_go_of_the_byte(path: str) -> None:
    lock = LockFile(path)
    with pytest.raises(ZeroDivisionError), lock.hold(1):
        raise ZeroDivisionError
    assert is_free(path, 1)


# ---- processes


def test_a_process_that_waits_too_long_is_told_so(path: str) -> None:
    mine, theirs = LockFile(path), LockFile(path)  # two descriptors are as good as two processes
    with mine.hold(1), pytest.raises(StoreBusy), theirs.hold(1, timeout_ms=30):
        pass
    with theirs.hold(1, timeout_ms=1000):
        pass


def test_processes_exclude_each_other(path: str, tmp_path: Path) -> None:
    (tmp_path / "count").write_bytes(b"0")

    def work() -> None:
        lock = LockFile(path)
        for _ in range(100):
            with lock.hold(3):
                count = int((tmp_path / "count").read_bytes())
                (tmp_path / "count").write_bytes(b"%d" % (count + 1))

    with children() as start:
        for child in [start(work) for _ in range(4)]:
            child.answer()
    assert (tmp_path / "count").read_bytes() == b"400"


def test_a_killed_holder_frees_its_byte_at_once_and_a_stopped_one_keeps_it(path: str, tmp_path: Path) -> None:
    held = Flag(tmp_path / "held")

    def hold() -> None:
        with LockFile(path).hold(9):
            held.up()
            time.sleep(60)

    def wait() -> None:
        with LockFile(path).hold(9, timeout_ms=20_000):
            pass

    with children() as start:
        child = start(hold)
        held.wait()
        child.signal(signal.SIGSTOP)
        assert child.stopped()
        time.sleep(0.05)
        assert not is_free(path, 9)
        waiter = start(wait)
        time.sleep(0.05)
        assert waiter.running
        child.kill()
        waiter.answer()
        assert is_free(path, 9)


def test_control_c_ends_a_wait_for_a_byte(path: str) -> None:
    mine = LockFile(path)

    def wait() -> str:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with LockFile(path).hold(4):
                return "held"
        except KeyboardInterrupt:
            return "interrupted"

    with children() as start, mine.hold(4):
        child = start(wait)
        asleep(child)
        child.signal(signal.SIGINT)
        assert child.answer() == "interrupted"


@pytest.mark.parametrize("first", ["shared", "alone"])
@pytest.mark.parametrize("second", ["shared", "alone"])
def test_only_shared_holders_go_together(path: str, first: str, second: str) -> None:
    mine, theirs = LockFile(path), LockFile(path)
    assert mine.try_hold(0, shared=first == "shared")
    assert theirs.try_hold(0, shared=second == "shared") == (first == second == "shared")
    mine.release(0)
    assert theirs.try_hold(0)


def test_a_shared_holder_becomes_the_only_one_when_the_others_have_gone_and_can_share_again(path: str) -> None:
    mine, theirs = LockFile(path), LockFile(path)
    assert mine.try_hold(0, shared=True) and theirs.try_hold(0, shared=True)
    assert not mine.try_hold(0)
    assert not is_free(path, 0), "a refused promotion keeps what was held"
    theirs.close()
    assert mine.try_hold(0)
    assert not LockFile(path).try_hold(0, shared=True)
    assert mine.try_hold(0, shared=True)
    assert LockFile(path).try_hold(0, shared=True)


def test_closing_another_descriptor_of_the_file_does_not_drop_the_lock(path: str) -> None:
    mine = LockFile(path)
    assert mine.try_hold(0)
    os.close(os.open(path, os.O_RDWR))  # would free a lock of the older kind
    LockFile(path).close()
    assert not is_free(path, 0)


def test_a_lock_file_is_never_written(path: str) -> None:
    lock = LockFile(path)
    with lock.hold(1 << 40):
        assert os.path.getsize(path) == 0


def test_a_lock_file_that_must_be_there_is_not_made(path: str) -> None:
    with pytest.raises(FileNotFoundError):
        LockFile(path, create=False)


# ---- forks


@pytest.mark.parametrize("how", ["for long", "for a moment"])
def test_a_forked_child_does_not_keep_a_killed_parents_lock(path: str, tmp_path: Path, how: str) -> None:
    forked = Flag(tmp_path / "forked")

    def parent() -> None:
        lock = LockFile(path)
        if how == "for long":
            assert lock.try_hold(0)
        else:
            block = lock.hold(0)
            block.__enter__()
        pid = os.fork()
        if pid:
            time.sleep(60)
        (tmp_path / "pid").write_text(str(os.getpid()))
        forked.up()
        time.sleep(60)
        os._exit(0)

    with children() as start:
        child = start(parent)
        forked.wait()
        grandchild = int((tmp_path / "pid").read_text())
        try:
            assert not is_free(path, 0)
            child.kill()
            until(lambda: is_free(path, 0), "the byte is free")
            os.kill(grandchild, 0)  # it lives, and yet
        finally:
            os.kill(grandchild, signal.SIGKILL)


def test_a_forked_child_does_not_free_its_parents_lock(path: str) -> None:
    """Neither by closing, nor by leaving the block in which its parent holds it, nor by its end."""
    lock = LockFile(path)
    assert lock.try_hold(0)
    with children() as start:
        with lock.hold(7):
            start(lock.close).answer()

            def leave() -> None:
                with contextlib.ExitStack() as stack:
                    stack.push(block)

            block = lock.hold(8)
            block.__enter__()
            start(leave).answer()
            start(lambda: None).answer()
            assert not is_free(path, 0)
            assert not is_free(path, 7)
            assert not is_free(path, 8)
            block.__exit__(None, None, None)
        assert is_free(path, 7) and is_free(path, 8)
    assert not is_free(path, 0)


def test_a_child_forked_while_another_thread_holds_a_byte_can_open_the_file_and_wait_for_it(path: str) -> None:
    lock = LockFile(path)
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.hold(6):
            inside.set()
            leave.wait(30)

    def work() -> bool:
        assert not is_free(path, 6)
        with LockFile(path).hold(6, timeout_ms=20_000):
            return True

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(30)
    with children() as start:
        child = start(work)
        time.sleep(0.05)
        assert child.running
        leave.set()
        thread.join(30)
        assert child.answer() is True


# ---- bytes held for long


def test_held_knows_our_bytes_and_those_of_others(tmp_path: Path) -> None:
    ours, theirs = LockFile(str(tmp_path / "members")), LockFile(str(tmp_path / "members"))
    region = group_lock_base(3)
    assert ours.held(region, MAX_MEMBER_INDEX) == []
    for byte in (0, 1, 5, 900_000):
        assert ours.try_hold(region + byte)
    for byte in (2, 7, 8, 9, MAX_MEMBER_INDEX + 3):
        assert theirs.try_hold(region + byte)
    wanted = [(region, 3), (region + 5, 1), (region + 7, 3), (region + 900_000, 1)]
    assert ours.held(region, MAX_MEMBER_INDEX) == theirs.held(region, MAX_MEMBER_INDEX) == wanted
    assert ours.held(region + 8) == [(region + 8, 1)] and ours.held(region + 3) == []
    assert ours.held(region + 8, 100) == [(region + 8, 2)]
    theirs.close()
    assert ours.held(region, MAX_MEMBER_INDEX) == [(region, 2), (region + 5, 1), (region + 900_000, 1)]


def test_two_holders_in_one_process_exclude_each_other(tmp_path: Path) -> None:
    lock = LockFile(str(tmp_path / "members"))
    assert lock.try_hold(7) and not lock.try_hold(7)
    lock.release(7)
    assert lock.try_hold(7)
    assert lock.try_hold(7, shared=True)  # its holder lets others in
    assert lock.try_hold(7)  # and out again
    assert not lock.try_hold(7)


def test_a_forked_child_frees_nothing_of_its_parents(tmp_path: Path) -> None:
    lock = LockFile(str(tmp_path / "members"))
    assert lock.try_hold(7)

    def child() -> bool:
        lock.release(7)
        lock.close()
        return lock.try_hold(7)

    with children() as start:
        assert start(child).answer() is False
    other = LockFile(str(tmp_path / "members"))
    assert not other.try_hold(7)
    assert _os.find_lock(other.fd, 0, 100) == (7, 1)


def test_regions_do_not_overlap() -> None:
    for number in (0, 1, 1000):
        assert group_lock_base(number) > 1 << 32
        assert MAX_MEMBER_INDEX <= OWNED and group_lock_base(number) + OWNED + MAX_MEMBER_INDEX < group_lock_base(
            number + 1
        )
    assert group_lock_base((1 << 22) - 2) + (1 << 40) <= 1 << 62


def test_with_a_queue_everybody_gets_his_turn_and_nobody_is_in_there_with_another(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")

    def count_up() -> int:
        lock = LockFile(str(tmp_path / "lock"))
        for _ in range(200):
            with lock.hold(DB_LOCK, queue=DB_LOCK_QUEUE):
                counter.write_text(str(int(counter.read_text()) + 1))
        return 200

    with children() as start:
        counted = [start(count_up) for _ in range(6)]
        assert sum(child.answer() for child in counted) == int(counter.read_text()) == 1200


def test_the_first_in_a_queue_may_be_killed(tmp_path: Path) -> None:
    lock = LockFile(str(tmp_path / "lock"))

    def wait() -> None:
        with LockFile(str(tmp_path / "lock")).hold(DB_LOCK, queue=DB_LOCK_QUEUE):
            pass

    with children() as start:
        with lock.hold(DB_LOCK, queue=DB_LOCK_QUEUE):
            first = start(wait)
            until(lambda: lock.held(DB_LOCK_QUEUE), "somebody waits in the queue")
            second = start(wait)
            first.kill()
            until(lambda: lock.held(DB_LOCK_QUEUE), "the next one is first")
            assert second.running
        second.answer()
    lock.close()


def test_a_timed_lock_is_held_in_its_block_if_it_was_free_in_time() -> None:
    lock = threading.Lock()
    for timeout in (None, 0, 10):
        with _os.TimedLock(lock, timeout) as is_held:
            assert is_held and lock.locked()
            for short in (0, -1, 0.001):
                with _os.TimedLock(lock, short) as is_held_twice:
                    assert not is_held_twice
                assert lock.locked()
        assert not lock.locked()


def test_an_interrupt_leaves_no_timed_lock_held() -> None:
    lock = threading.Lock()

    def work() -> None:
        with _os.TimedLock(lock, 5) as is_held:
            assert is_held
            len("anything")

    for point in range(1, points_of(work) + 1):
        with pytest.raises(Interrupted), interrupt_at(point):
            work()
        assert not lock.locked(), point
