"""The append lock is a word in `heads` (log/owner.h). Attacked: deaths at every step, stopped processes, Ctrl-C,
forks that nobody handles, two pid namespaces, words of another boot. Nothing is lost, no wait goes beyond its bound.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import klamm
from klamm.disk import _os
from klamm.disk.locks import LockFile
from klamm.log import head
from klamm.log.partition import Partition
from klamm.store import directory
from tests.crash.lock_words import BOUND_S, SIZES, SLOT, fork_unhandled, read_all
from tests.crash.stores import values
from tests.procs import PATIENCE, Child, Flag, asleep, children, die_with_parent, until
from tests.rig import Rig, batch, scan_files

pytestmark = [
    pytest.mark.skipif(not _os.HAS_BYTE_LOCKS, reason="one process at a time"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]

FORMAT_AT, LIVES_AT, OWNER_AT = 8, 264, 712  # see slot.h
WAITERS = 1 << 31


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, slots=200)


def peek(path: str | Path, slot: int, at: int) -> int:
    with open(f"{path}/heads", "rb") as file:
        return int(struct.unpack("<I", os.pread(file.fileno(), 4, slot * head.SLOT_BYTES + at))[0])


def poke(path: str | Path, slot: int, at: int, value: int) -> None:
    with open(f"{path}/heads", "r+b") as file:
        os.pwrite(file.fileno(), struct.pack("<I", value), slot * head.SLOT_BYTES + at)


def word(partition: Partition) -> int:
    return peek(Path(partition.directory).parents[1], partition.slot, OWNER_AT)


# ---- no system call


def only_calls(*numbers: int) -> None:
    """From now on any other system call ends this process."""

    class Instruction(ctypes.Structure):
        _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction))]

    load, equal, give, allow, kill = 0x20, 0x15, 0x06, 0x7FFF0000, 0x80000000
    tests = [(equal, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    code = [(load, 0, 0, 0), *tests, (give, 0, 0, kill), (give, 0, 0, allow)]
    filters = (Instruction * len(code))(*(Instruction(*each) for each in code))
    program = Program(len(code), filters)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    no_new_privileges, set_seccomp, with_filter = 38, 22, 2
    if prctl(no_new_privileges, 1, 0, 0, 0) or prctl(set_seccomp, with_filter, ctypes.byref(program), 0, 0):
        os._exit(2)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls")
def test_an_append_that_nobody_contends_makes_no_system_call_but_its_write(tmp_path: Path) -> None:
    pwrite, brk, map_, unmap, advise, end = 18, 12, 9, 11, 28, 231
    rig = Rig(tmp_path, slots=2)

    def append(*calls: int) -> None:
        mine = rig.child().partition(SLOT, segment_bytes=1 << 20, index_interval_bytes=1 << 20)
        batches = [batch(0, number) for number in range(100)]
        mine.append(batches[0])
        only_calls(*calls)
        for data in batches[1:]:
            mine.append(data)
        os._exit(0)

    with children() as start:
        status = start(lambda: append(pwrite, brk, map_, unmap, advise, end)).ended()
        if status and os.waitstatus_to_exitcode(status) == 2:
            pytest.skip("no filters for system calls here")
        assert status == 0
        assert os.WTERMSIG(start(lambda: append(brk, map_, unmap, advise, end)).ended()) == signal.SIGSYS


# ---- sleeping and waking


def hold(rig: Rig, slot: int, held: Flag, end: Flag) -> int:
    """In a child: take the lock, keep it until told; return how many processes it woke when it dropped it."""
    log = rig.child().partition(slot).log
    with log.append_lock():
        held.up()
        end.wait()
        _os.trap(1 << 40, kinds=_os.WAKE)
    return _os.steps_taken()


def test_a_process_that_sleeps_has_said_so_and_is_woken(rig: Rig) -> None:
    partition = rig.partition(SLOT)
    with children() as start:
        partition.log.lock()
        assert word(partition) == rig.life.number
        waiting = start(lambda: rig.child().partition(SLOT).append(batch(1, 0)))
        asleep(waiting)
        assert word(partition) == rig.life.number | WAITERS
        _os.trap(1 << 40, kinds=_os.WAKE)
        partition.log.unlock()
        assert _os.steps_taken() == 1
        _os.trap(0)
        assert waiting.answer(BOUND_S) == 0
    _os.trap(1 << 40, kinds=_os.WAKE)
    partition.append(batch(0, 0))
    partition.append(batch(0, 1))
    assert _os.steps_taken() <= 1, "the last one that slept leaves WAITERS set, and that is all"
    _os.trap(0)
    assert word(partition) == 0


@pytest.mark.parametrize("owner_dies", [False, True], ids=["dropped", "stolen"])
def test_a_process_that_slept_wakes_the_next_when_it_is_done(rig: Rig, tmp_path: Path, owner_dies: bool) -> None:
    """Two wait, and one is stopped. The one that gets the lock knows nothing of the other, and must not forget it."""
    partition = rig.partition(SLOT)
    flags = [[Flag(tmp_path / f"{name}{number}") for name in ("held", "end")] for number in range(3)]
    with children() as start:
        owner = start(partial(hold, rig, SLOT, *flags[0]))
        flags[0][0].wait()
        last = start(partial(hold, rig, SLOT, *flags[2]))
        asleep(last)
        last.signal(signal.SIGSTOP)
        assert last.stopped()
        first = start(partial(hold, rig, SLOT, *flags[1]))
        asleep(first)
        if owner_dies:
            owner.kill()
        else:
            flags[0][1].up()
            assert owner.answer() == 1
        flags[1][0].wait(BOUND_S)
        assert word(partition) & WAITERS
        flags[1][1].up()
        assert first.answer() == 1
        last.go_on()
        flags[2][0].wait(BOUND_S)
        flags[2][1].up()
        last.answer()
    assert word(partition) == 0


# ---- deaths at every step


def test_a_process_killed_at_any_step_of_its_wait_leaves_the_lock_to_the_next(rig: Rig) -> None:
    """The lock is held; the victim waits for it, and another behind it. (Others: test_killed_writer.)"""
    step, alive = 0, False
    while not alive:
        step += 1
        slot = rig.fresh_slot()
        partition = rig.partition(slot)

        def append(writer: int, at: int, slot: int = slot) -> None:
            mine = rig.child().partition(slot)
            _os.trap(at, kinds=_os.LOCK | _os.WAKE, signal=signal.SIGKILL)
            mine.append(batch(writer, 0))
            _os.trap(0)

        with children() as start:
            partition.log.lock()
            victim = start(partial(append, 1, step))
            until(lambda: not victim.running or _sleeps(victim), "it waits, or has died")  # noqa: B023
            other = start(partial(append, 2, 0))
            asleep(other)
            partition.log.unlock()
            alive = victim.ended() == 0
            other.answer(BOUND_S)
        partition.append(batch(3, 0))
        assert word(partition) == 0
        seen = read_all(partition)
        assert seen == scan_files(partition) and sorted(seen)[-2:] == [(2, 0), (3, 0)]
        assert not alive or (1, 0) in seen
    assert step >= 6, "take, say that it sleeps, take, drop twice, wake"


@pytest.mark.parametrize("contended", [False, True], ids=["free", "held"])
def test_ctrl_c_at_any_step_of_an_append_leaves_its_lock_free(rig: Rig, contended: bool) -> None:
    step, interrupted = 0, True
    while interrupted:
        step += 1
        slot = rig.fresh_slot()
        partition = rig.partition(slot)

        def append(at: int, slot: int = slot) -> bool:
            mine, interrupted = rig.child().partition(slot), False
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                _os.trap(at, kinds=_os.ALL & ~_os.READ, signal=signal.SIGINT)
                mine.append(batch(1, 0))
            except KeyboardInterrupt:
                interrupted = True
            _os.trap(0)
            assert mine.log.owner in (0, rig.life.number), "it has its lock still"
            mine.append(batch(1, 1))
            return interrupted

        with children() as start:
            if contended:
                partition.log.lock()
            child = start(partial(append, step))
            if contended:
                until(lambda: not child.running or _sleeps(child), "it waits")  # noqa: B023
                partition.log.unlock()
            interrupted = child.answer(BOUND_S)
        assert word(partition) == 0
        assert read_all(partition)[-1] == (1, 1)
    assert step > 15


def _sleeps(child: Child) -> bool:
    for _ in range(3):
        if not child.running or Path(f"/proc/{child.pid}/stat").read_text().rsplit(") ", 1)[1][0] != "S":
            return False
        time.sleep(0.003)
    return True


@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL], ids=["continued", "killed"])
def test_nothing_is_taken_from_a_stopped_process_and_everything_from_a_dead_one(rig: Rig, end: int) -> None:
    """Stopped at each step of an append: if it has the lock there, another waits, though it looks every 2 ms."""
    step, inside = 0, 0
    while True:
        step += 1
        slot = rig.fresh_slot()
        partition = rig.partition(slot)

        def append(writer: int, at: int, slot: int = slot) -> int:
            mine = rig.child().partition(slot)
            _os.trap(at, kinds=_os.ALL & ~_os.READ, signal=signal.SIGSTOP)
            return mine.append(batch(writer, 0))

        with children() as start:
            stopped = start(partial(append, 1, step))
            if not stopped.stopped():
                break
            owner = partition.log.owner
            other = start(partial(append, 2, 0))
            if owner:
                inside += 1
                asleep(other)
                time.sleep(0.01)
                assert other.running, f"stopped at step {step}, and its lock was taken"
                assert partition.log.owner == owner
                assert partition.log.is_locked_elsewhere
            stopped.signal(end)
            other.answer(BOUND_S)
            if end == signal.SIGCONT:
                stopped.answer()
        partition.append(batch(3, 0))
        seen = read_all(partition)
        assert seen == scan_files(partition) and set(seen) - {(1, 0)} == {(2, 0), (3, 0)}
        assert word(partition) == 0
    assert inside >= 10


def test_a_process_whose_owner_died_tries_without_waiting_and_has_it(rig: Rig) -> None:
    def lock_and(number: int) -> None:
        mine = rig.child().partition(SLOT)
        mine.log.lock()
        os.kill(os.getpid(), number)

    partition = rig.partition(SLOT)
    with children() as start:
        start(lambda: lock_and(signal.SIGKILL)).ended()
    assert partition.log.owner and not partition.log.is_locked_elsewhere
    assert partition.try_append(batch(0, 0)) == 0
    with children() as start:
        stopped = start(lambda: lock_and(signal.SIGSTOP))
        assert stopped.stopped()
        assert partition.try_append(batch(0, 1)) is None
        assert partition.append_now(batch(0, 1)) is None
    assert partition.append(batch(0, 1)) == 1


# ---- lives


def test_every_open_of_a_store_is_a_life_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "store"
    numbers = []
    for _ in range(3):
        with klamm.open(path) as store, klamm.open(path) as again:
            life = store._acquired().life
            assert life is not None and again._acquired().life is life
            numbers.append(life.number)

            def child(store: klamm.Store = store) -> int:
                store.topics.create("orders", exist_ok=True)
                store.append("orders", b"x", acks=1)
                life = store._acquired().life
                assert life is not None
                return life.number

            with children() as start:
                numbers.append(start(child).answer())
    assert numbers == sorted(set(numbers)) and numbers[0] > 0
    assert peek(path, 0, LIVES_AT) == numbers[-1]


@pytest.mark.parametrize("lives", [(1 << 31) - 3, (1 << 32) - 3])
def test_life_numbers_begin_again_after_the_last_and_skip_those_in_use(rig: Rig, lives: int) -> None:
    poke(rig.path, 0, LIVES_AT, lives)
    mine = [rig.child() for _ in range(4)]
    last = (1 << 31) - 1
    assert [each.life.number for each in mine] == [last - 1, last, rig.life.number + 1, rig.life.number + 2]
    for number, each in enumerate(mine):
        assert each.partition(SLOT).append(batch(0, number)) == number


def test_no_life_begins_in_a_mapping_that_cannot_be_written(rig: Rig) -> None:
    path = f"{rig.path}/heads"
    for writable, private in ((False, False), (False, True), (True, True)):
        with pytest.raises(ValueError, match="not mapped for writing"):
            head.Life(head.Heads(path, writable=writable, private=private), LockFile(path))
    other = head.Heads(path, writable=False)
    with pytest.raises(ValueError, match="another mapping"):
        head.Log(other, SLOT, rig.path, None, 1, life=rig.life)
    log = head.Log(other, SLOT, rig.path, None, 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        log.lock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with klamm.open(tmp_path / "store") as store:
        store.topics.create("orders")
        store.append("orders", b"first", acks="all")
    return tmp_path / "store"


def test_a_word_with_a_number_that_nobody_has_stored_holds_up_nobody(path: Path) -> None:
    """A flipped bit, or `heads` put back from a backup: of no life, or the very number that this process gets."""
    for number in (1 << 20, peek(path, 0, LIVES_AT) + 2):
        poke(path, SLOT, OWNER_AT, number)
        with klamm.open(path, busy_timeout=PATIENCE) as store:
            store.append("orders", b"x", acks=1)
            assert not store._acquired().heads.owners()


def test_after_a_boot_no_lock_is_held_whatever_the_words_say(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that is given out again would be that of a process that lives and knows nothing of the lock."""
    monkeypatch.setattr(directory, "boot_id", lambda: b"another boot, 16")
    lives = peek(path, 0, LIVES_AT)
    poke(path, SLOT, OWNER_AT, lives + 2 | WAITERS)
    ready, end = Flag(tmp_path / "ready"), Flag(tmp_path / "end")

    def live() -> int:
        with klamm.open(path) as store:
            ready.up()
            end.wait()
            life = store._acquired().life
            assert life is not None
            return life.number

    with klamm.open(path, busy_timeout=PATIENCE) as store, children() as start:
        assert not store._acquired().heads.owners()
        other = start(live)
        ready.wait()
        store.append("orders", b"second", acks=1)
        end.up()
        assert other.answer() == lives + 2
        assert values(store) == [b"first", b"second"]


# ---- forks that nobody handles


def test_a_process_and_its_unhandled_fork_take_turns_as_two_processes_do(rig: Rig, tmp_path: Path) -> None:
    """They have one life number between them, and one open file of its byte: neither takes its own number for free."""
    count = 3000
    done = Flag(tmp_path / "done")
    one, two = rig.partition(2), rig.partition(2)
    with one.log.append_lock():
        assert two.try_append(batch(0, 0)) is None
    assert two.try_append(batch(0, 0)) == 0

    def parent() -> None:
        mine = rig.child().partition(SLOT, SIZES)
        mine.append(batch(0, 0))
        me = 1 if fork_unhandled() else 2
        for number in range(count):
            mine.append(batch(me, number))
        if me == 2:
            done.up()
            os._exit(0)
        done.wait()
        os.wait()

    with children() as start:
        start(parent).answer()
    partition = rig.partition(SLOT, SIZES)
    seen = read_all(partition)
    assert seen == scan_files(partition)
    for writer in (1, 2):
        assert [number for each, number in seen if each == writer] == list(range(count))


# ---- pid namespaces


def in_pid_namespace(action: Callable[[], object]) -> None:
    """Run `action` as process 1 of a namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_pids, new_users = 0x20000000, 0x10000000
    if libc.unshare(new_pids) and libc.unshare(new_pids | new_users):
        os._exit(2)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            die_with_parent()
            assert os.getpid() == 1
            action()
            code = 0
        finally:
            os._exit(code)
    os._exit(0 if os.waitpid(pid, 0)[1] == 0 else 1)


def test_processes_of_two_pid_namespaces_exclude_each_other_and_take_over_from_the_dead(rig: Rig) -> None:
    """Both have pid 1. The first one ends with the lock in its hands, and the other goes on."""
    count = 3000

    def write(writer: int) -> None:
        mine = rig.child().partition(SLOT, SIZES)
        for number in range(count):
            if writer == 1 and number == count // 2:
                mine.log.lock()
                os._exit(0)
            mine.append(batch(writer, number))

    with children() as start:
        writers = [start(lambda writer=writer: in_pid_namespace(lambda: write(writer))) for writer in (1, 2)]  # type: ignore[misc]
        statuses = [os.waitstatus_to_exitcode(child.ended()) for child in writers]
    if 2 in statuses:
        pytest.skip("no pid namespaces here")
    assert statuses == [0, 0]
    partition = rig.partition(SLOT, SIZES)
    seen = read_all(partition)
    assert seen == scan_files(partition)
    assert Counter(writer for writer, _ in seen) == {1: count // 2, 2: count}
    assert [number for writer, number in seen if writer == 2] == list(range(count))
