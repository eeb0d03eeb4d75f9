"""Which process holds a lock byte: what /proc says, what is recorded beside the byte, and what cannot be known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from klamm.disk import _os, holders
from klamm.disk.locks import DB_LOCK, DB_LOCK_QUEUE, LockFile
from klamm.errors import StoreBusy
from klamm.log.head import Heads
from tests.procs import PATIENCE, Child, Flag, children, until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]


@pytest.fixture
def heads(tmp_path: Path) -> Heads:
    (tmp_path / "heads").touch()
    heads = Heads(str(tmp_path / "heads"))
    heads.initialise()
    heads.lay_out(1, 4)
    return heads


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "lock")


def word_of(pid: int, *, namespace: int | None = None, held_ms: int = 0) -> int:
    own = _os.identity()[1]
    taken = _os.monotonic_ms() // 100 - held_ms // 100
    return (taken & 0xFFFFFFFF) << 32 | (own if namespace is None else namespace) << 22 | pid


def test_the_holder_of_a_byte_is_found_with_its_command_and_whether_it_is_stopped(path: str, tmp_path: Path) -> None:
    held = Flag(tmp_path / "held")

    def hold() -> None:
        lock = LockFile(path)
        assert lock.try_hold(7) and lock.try_hold((1 << 40) + 3) and lock.try_hold(9, shared=True)
        held.up()
        signal.pause()

    with children() as start:
        child = start(hold)
        held.wait()
        ranges = holders.held_ranges(path)
        assert [(each.start, each.length, each.is_shared, each.process.pid) for each in ranges] == [
            (7, 1, False, child.pid),
            (9, 1, True, child.pid),
            ((1 << 40) + 3, 1, False, child.pid),
        ]
        holder = holders.find_holder(path, 7)
        assert holder is not None and holder.process is not None
        assert not holder.process.is_stopped and "python" in holder.process.command
        assert abs(holder.process.started_ms - time.time() * 1000) < 60_000
        assert holders.find_holder(path, 8) is None
        child.signal(signal.SIGSTOP)
        assert child.stopped()
        again = holders.find_holder(path, 7)
        assert again is not None and again.process is not None and again.process.is_stopped
        assert f"kill -CONT {child.pid}" in again.hint and "which is stopped" in str(again)
        child.kill()
        assert holders.held_ranges(path) == []
        assert holders.find_process(child.pid) is None


def test_a_command_is_shown_in_one_line_whatever_is_in_it() -> None:
    program = "import sys\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program, "\x1b[31m", "a\tb"], stdin=subprocess.PIPE) as child:
        until(lambda: (found := holders.find_process(child.pid)) is not None and "31m" in found.command, "it has begun")
        found = holders.find_process(child.pid)
        assert found is not None and found.command.endswith("-c import sys sys.stdin.read() [31m a b")
        child.communicate(timeout=60)


def test_a_process_that_takes_a_byte_is_recorded_beside_it(path: str, heads: Heads) -> None:
    lock = LockFile(path)
    lock.record_in(heads)
    assert heads.holder_of(6) == 0
    with lock.hold(6):
        holder = holders.recorded_holder(heads.holder_of(6))
        assert holder is not None and holder.process is not None and holder.since_ms is not None
        assert holder.process.pid == holder.pid == os.getpid()
        assert abs(holder.since_ms - time.time() * 1000) < 5000
        assert "another thread of this process" in str(holder)
    assert [heads.holder_of(byte) for byte in (4, 5, 7)] == [0, 0, 0]


def test_a_recorded_process_that_has_ended_or_whose_pid_is_anothers_is_not_the_holder() -> None:
    assert holders.recorded_holder(0) is None
    assert holders.recorded_holder(word_of(os.getpid())) is not None
    with children() as start:
        child = start(lambda: None)
        child.ended()
        assert holders.recorded_holder(word_of(child.pid)) is None
        young = start(signal.pause)
        assert holders.recorded_holder(word_of(young.pid)) is not None
        assert holders.recorded_holder(word_of(young.pid, held_ms=60_000)) is None, "it started after that"


def test_a_process_of_another_pid_namespace_is_unknown() -> None:
    namespace = _os.identity()[1] ^ 1
    holder = holders.recorded_holder(word_of(os.getpid(), namespace=namespace, held_ms=3000))
    assert holder is not None
    assert (holder.process, holder.pid) == (None, None) and holder.since_ms is not None
    assert str(holder).startswith("a process that cannot be seen from here, for 3.")


def test_a_name_with_brackets_and_spaces_does_not_confuse(tmp_path: Path) -> None:
    def rename() -> None:
        Path("/proc/self/comm").write_text("a) T (b")
        named.up()
        signal.pause()

    named = Flag(tmp_path / "named")
    with children() as start:
        child: Child = start(rename)
        named.wait()
        process = holders.find_process(child.pid)
        assert process is not None and process.pid == child.pid and not process.is_stopped


def test_the_error_names_the_holder_and_a_wait_of_no_length_does_not_look_for_it(path: str, heads: Heads) -> None:
    mine, other = LockFile(path, timeout_ms=30), LockFile(path)
    mine.record_in(heads)
    other.record_in(heads)
    with other.hold(6):
        with pytest.raises(StoreBusy, match=r"byte 6, clean lock of slot 1: held by another thread .* waited 0.03 s"):
            mine.hold(6).__enter__()
        with pytest.raises(StoreBusy, match=r"orders/0: clean lock: held by another process or thread$"):
            mine.hold(6, timeout_ms=0, what="orders/0: clean lock").__enter__()
    with mine.hold(6):
        pass


def test_a_waiting_process_is_woken_by_the_holder_and_not_by_a_look_now_and_then(
    path: str, heads: Heads, tmp_path: Path
) -> None:
    """Many hand-overs between two processes: with naps of 20 ms alone they would take seconds."""
    rounds = 200
    count = tmp_path / "count"
    count.write_bytes(b"0")

    def work() -> None:
        lock = LockFile(path)
        lock.record_in(heads)
        for _ in range(rounds):
            with lock.hold(6):
                number = int(count.read_bytes())
                time.sleep(0.0002)  # the other one comes, finds it taken, and sleeps
                count.write_bytes(b"%d" % (number + 1))

    with children() as start:
        for child in [start(work), start(work), start(work)]:
            child.answer()
    assert count.read_bytes() == b"%d" % (3 * rounds)


def test_a_killed_holder_wakes_nobody_and_the_next_process_goes_on(path: str, heads: Heads, tmp_path: Path) -> None:
    held = Flag(tmp_path / "held")

    def hold() -> None:
        lock = LockFile(path)
        lock.record_in(heads)
        with lock.hold(6):
            held.up()
            signal.pause()

    def wait() -> str:
        lock = LockFile(path)
        lock.record_in(heads)
        with lock.hold(6):
            return "held"

    with children() as start:
        holder = start(hold)
        held.wait()
        waiting = [start(wait) for _ in range(3)]
        byte = _os.WAITING + 6
        until(
            lambda: (
                sorted(each.process.pid for each in holders.held_ranges(path) if each.start == byte)
                == sorted(child.pid for child in waiting)
            ),
            "all three wait",
        )
        holder.kill()
        assert [child.answer() for child in waiting] == ["held"] * 3
    assert holders.held_ranges(path) == []


def test_a_process_in_the_queue_sleeps_until_it_is_woken(path: str, heads: Heads, tmp_path: Path) -> None:
    """Who wakes up by itself goes to sleep again behind all others: the queue would have no order."""
    held = Flag(tmp_path / "held")

    def locked() -> LockFile:
        lock = LockFile(path)
        lock.record_in(heads)
        return lock

    def hold() -> None:
        with locked().hold(DB_LOCK):
            held.up()
            signal.pause()

    def wait() -> None:
        with locked().hold(DB_LOCK, queue=DB_LOCK_QUEUE):
            pass

    def slept(child: Child) -> int:
        status = Path(f"/proc/{child.pid}/status").read_text()
        return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])

    with children() as start:
        holder = start(hold)
        held.wait()
        waiting = [start(wait), start(wait)]
        first = until(
            lambda: [
                each.process.pid
                for each in holders.held_ranges(path)
                if each.start == DB_LOCK_QUEUE and not each.is_shared
            ],
            "one of them is the first",
        )
        (second,) = (child for child in waiting if child.pid not in first)
        until(lambda: slept(second) >= 1, "the other one sleeps")
        before = slept(second)
        time.sleep(1.0)
        assert (
            slept(second) - before < 10
        )  # it shows that it waits, and looks twice a second whether the first was killed
        holder.kill()
        for child in waiting:
            child.answer()


def test_the_first_in_the_queue_is_woken_when_the_holder_has_had_its_row_and_not_before(
    path: str, heads: Heads, tmp_path: Path
) -> None:
    """Before, each hand-over would cost a switch between processes; later, the lock would be free and nobody has it."""
    row = 128
    waits = Flag(tmp_path / "waits")
    taken = tmp_path / "taken"

    def locked() -> LockFile:
        lock = LockFile(path)
        lock.record_in(heads)
        return lock

    def hold() -> None:
        lock = locked()
        for number in range(1, row + 1):
            with lock.hold(DB_LOCK, queue=DB_LOCK_QUEUE):
                taken.write_text(str(number))
                waits.wait()
        signal.pause()

    def wait() -> int:
        _os.set_first_interval(3600 * 10**9)  # the wake-up alone
        with locked().hold(DB_LOCK, queue=DB_LOCK_QUEUE, timeout_ms=-1):
            return int(taken.read_text())

    def sleeps(child: Child) -> bool:
        with open(tmp_path / "heads", "rb") as file:
            is_waiting = os.pread(file.fileno(), 4, 704 + 12) != bytes(4)  # KlammLockNote.waiting of byte 0
        return is_waiting and Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"

    with children() as start:
        start(hold)
        until(taken.exists, "the byte is held")
        first = start(wait)
        until(lambda: sleeps(first), "the other process sleeps")
        waits.up()
        assert first.answer() == row


@pytest.mark.parametrize("has_notes", [True, False])
def test_a_process_that_is_stopped_in_the_queue_delays_others_for_a_moment_only(
    path: str, heads: Heads, has_notes: bool
) -> None:
    """It is the first of those that wait for a lock that is free: the others take that, also when their row is over."""
    row = 128

    def locked() -> LockFile:
        lock = LockFile(path, timeout_ms=5000)
        if has_notes:
            lock.record_in(heads)
        return lock

    def wait() -> None:
        with locked().hold(DB_LOCK, queue=DB_LOCK_QUEUE, timeout_ms=-1):
            pass

    def take_often() -> None:
        lock = locked()
        for _ in range(2 * row):
            with lock.hold(DB_LOCK, queue=DB_LOCK_QUEUE):
                pass

    lock = locked()
    with children() as start:
        with lock.hold(DB_LOCK, queue=DB_LOCK_QUEUE):
            first = start(wait)
            until(lambda: lock.held(DB_LOCK_QUEUE), "it waits in the queue")
            first.signal(signal.SIGSTOP)
            assert first.stopped()
        start(take_often).answer()
        assert lock.held(DB_LOCK_QUEUE)
        first.go_on()
        first.answer()


def test_a_lock_that_was_released_is_not_said_to_be_held_by_a_thread_of_this_process(path: str, heads: Heads) -> None:
    lock = LockFile(path)
    lock.record_in(heads)
    with lock.hold(6):
        pass
    assert str(lock.busy(6, None, 30_000)).partition("held by ")[2].startswith("no process just now; waited 30 s")


def test_the_error_says_what_the_thread_that_holds_a_lock_does(path: str, heads: Heads) -> None:
    lock = LockFile(path, timeout_ms=30)
    lock.record_in(heads)
    holds, may_end = threading.Event(), threading.Event()

    def write_for_long() -> None:
        with lock.hold(6):
            holds.set()
            may_end.wait()

    holder = threading.Thread(target=write_for_long, name="a-writer")
    holder.start()
    try:
        assert holds.wait(PATIENCE)
        does = r"held by thread a-writer of this process \(.*test_holders\.py:\d+ in write_for_long"
        with pytest.raises(StoreBusy, match=does):
            lock.hold(6).__enter__()
    finally:
        may_end.set()
        holder.join()
    with lock.hold(6):
        pass


def test_a_forked_child_has_another_identity_and_the_same_namespace() -> None:
    pid, namespace = _os.identity()
    assert pid == os.getpid()
    with children() as start:
        child = start(_os.identity)
        assert child.answer() == (child.pid, namespace)
