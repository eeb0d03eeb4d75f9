"""The bell: whoever waits for a log wakes at once, also when writers or other waiters die."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from klamm.disk import _os
from klamm.log import _head, head
from tests.procs import PATIENCE, Flag, asleep, children, until
from tests.rig import Rig, batch, wait_any

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

SECOND = 1_000_000  # in microseconds, as a Poller counts
NAP = 0.5  # a sleep lasts no longer, bell or not
LONG = int(10 * PATIENCE) * SECOND  # who sleeps until then is given up before


@pytest.fixture(autouse=True)
def _no_trap() -> Iterator[None]:
    yield
    _os.trap(0)


@pytest.fixture
def no_nap() -> Iterator[None]:
    """Let nobody wake but by the bell: who misses it sleeps for longer than a test waits."""
    _head.set_poll_interval(1000 * LONG)
    yield
    _head.set_poll_interval()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, slots=128)


def bell_word(rig: Rig) -> bytes:
    return Path(rig.path, "heads").read_bytes()[64:68]


def waiter(rig: Rig, *slots: int) -> Callable[[], bool]:
    """An action: wait for one of the slots; whether it moved."""

    def wait() -> bool:
        mine = rig.child()
        logs = [mine.partition(slot).log for slot in slots]
        return wait_any(mine.heads, logs, [log.seq for log in logs], LONG)

    return wait


@pytest.mark.usefixtures("no_nap")
def test_a_sleeping_reader_is_woken_by_an_append(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    with children() as start:
        for number in range(1, 16):
            child = start(waiter(rig, 1))
            asleep(child)
            partition.append(batch(0, number))
            assert child.answer()


@pytest.mark.usefixtures("no_nap")
def test_every_waiter_of_a_topic_wakes(rig: Rig) -> None:
    partition = rig.partition(1)
    with children() as start:
        waiting = [start(waiter(rig, 1)) for _ in range(8)]
        for child in waiting:
            asleep(child)
        partition.append(batch(0, 0))
        assert [child.answer() for child in waiting] == [True] * 8


@pytest.mark.usefixtures("no_nap")
def test_a_ping_pong_of_a_thousand_rounds_never_misses_the_bell(rig: Rig) -> None:
    rounds = 1000

    def play(mine: int, other: int) -> None:
        child = rig.child()
        out, back = child.partition(mine), child.partition(other)
        for number in range(rounds):
            if mine < other:
                out.append(batch(mine, number))
            assert wait_any(child.heads, [back.log], [number], LONG)
            if mine > other:
                out.append(batch(mine, number))

    sizes = {"segment_bytes": 1 << 20}
    for slot in (1, 2):
        rig.partition(slot, **sizes)
    with children() as start:
        for player in [start(lambda: play(1, 2)), start(lambda: play(2, 1))]:
            player.answer()


def test_a_reader_wakes_although_its_writer_died_before_the_bell(tmp_path: Path) -> None:
    """Killed at each of its last steps, from the commit on: unlock, mask, word, wake."""
    died_silently = 0
    large = {"segment_bytes": 1 << 20, "index_interval_bytes": 1 << 20}  # each append takes the same steps
    with children() as start:
        cases = []
        for back in range(4):
            rig = Rig(tmp_path / str(back), slots=2)
            partition = rig.partition(1, **large)

            def append(rig: Rig = rig, back: int = back) -> None:
                child = rig.child()
                mine = child.partition(1, **large)
                for number in range(3):  # the first one opens files
                    assert not wait_any(child.heads, [mine.log], [mine.log.seq], 1)  # it listens, as the sleeper will
                    _os.trap(1 << 60)
                    mine.append(batch(0, number))
                steps = _os.steps_taken()
                Flag(f"{rig.path}/ready").up()
                Flag(f"{rig.path}/go").wait()
                _os.trap(steps - back, signal=signal.SIGKILL)
                mine.append(batch(0, 3))

            writer = start(append)
            Flag(f"{rig.path}/ready").wait()
            reader = start(waiter(rig, 1))
            asleep(reader)
            cases.append((rig, partition, reader, writer))
        words = [bell_word(rig) for rig, *_ in cases]
        for rig, *_ in cases:
            Flag(f"{rig.path}/go").up()
        for word, (rig, partition, reader, writer) in zip(words, cases, strict=True):
            assert os.WIFSIGNALED(writer.ended())
            assert partition.ends().end == 4, "it died before its commit"
            died_silently += bell_word(rig) == word
            assert reader.answer()
    assert died_silently == 3, "and the fourth died between the bell's word and the wake-up"


def test_a_killed_waiter_leaves_no_debt(rig: Rig) -> None:
    """Its bit stays in the mask: the next append rings for nobody, once, and no later one does."""
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    with children() as start:
        for _ in range(5):
            child = start(waiter(rig, 1))
            asleep(child)
            child.kill()
    _os.trap(1 << 60, kinds=_os.WAKE)
    for number in range(1, 20):
        partition.append(batch(0, number))
    assert _os.steps_taken() == 1


def test_no_waiter_no_bell(rig: Rig) -> None:
    partition, other = rig.partition(1), rig.partition(2)
    with children() as start:
        asleep(start(waiter(rig, 2)))
        _os.trap(1 << 60, kinds=_os.WAKE)
        for number in range(10):
            partition.append(batch(0, number))
        assert _os.steps_taken() == 0
        other.append(batch(0, 0))
        assert _os.steps_taken() == 1


def test_a_reader_that_spins_needs_no_bell(rig: Rig) -> None:
    partition = rig.partition(1)
    ready = Flag(f"{rig.path}/ready")

    def spin() -> bool:
        mine = rig.child()
        log = mine.partition(1).log
        seq = log.seq
        ready.up()
        return wait_any(mine.heads, [log], [seq], LONG, LONG)

    with children() as start:
        child = start(spin)
        ready.wait()
        time.sleep(0.02)
        _os.trap(1 << 60, kinds=_os.WAKE)
        partition.append(batch(0, 0))
        assert child.answer() is True
    assert _os.steps_taken() == 0


@pytest.mark.usefixtures("no_nap")
@pytest.mark.parametrize("count", [1, 33, 100])
def test_an_append_to_any_of_many_logs_wakes_who_waits_for_all(rig: Rig, count: int) -> None:
    """There are 32 bits: topics share them."""
    slots = list(range(1, count + 1))
    partitions = [rig.partition(slot) for slot in slots]
    for partition in (partitions[0], partitions[count // 2], partitions[-1]):
        with children() as start:
            child = start(waiter(rig, *slots))
            asleep(child)
            partition.append(batch(0, 0))
            assert child.answer()


def test_who_shares_a_bit_sleeps_on_when_the_other_topic_moves(rig: Rig) -> None:
    mine, other = rig.partition(1), rig.partition(33)
    with children() as start:
        child = start(waiter(rig, 1))
        asleep(child)
        for number in range(5):
            other.append(batch(0, number))
            asleep(child)
        assert child.running
        mine.append(batch(0, 0))
        assert child.answer()


def test_a_wait_that_is_over_before_it_began_returns_at_once(rig: Rig) -> None:
    partition = rig.partition(1)
    seq = partition.log.seq
    partition.append(batch(0, 0))
    started = time.monotonic()
    assert wait_any(rig.heads, [partition.log], [seq], LONG)
    assert time.monotonic() - started < PATIENCE


@pytest.mark.parametrize("spin_us", [0, 2000, 10 * SECOND])
def test_a_wait_ends_when_its_time_is_up_and_not_before(rig: Rig, spin_us: int) -> None:
    log = rig.partition(1).log
    for timeout_us in (0, 20_000):
        started = time.monotonic()
        assert not wait_any(rig.heads, [log], [log.seq], timeout_us, spin_us)
        assert timeout_us / SECOND <= time.monotonic() - started < PATIENCE


def test_a_wait_longer_than_one_nap_goes_on_sleeping(rig: Rig) -> None:
    log = rig.partition(1).log
    started = time.monotonic()
    assert not wait_any(rig.heads, [log], [log.seq], int((NAP + 0.1) * SECOND))
    assert time.monotonic() - started >= NAP + 0.1


def test_whoever_waits_for_no_log_is_interrupted_or_waits_for_its_time(rig: Rig) -> None:
    poller = head.Poller(rig.heads)
    assert poller.wait(20_000, 0) is None
    poller.interrupt()
    started = time.monotonic()
    assert poller.wait(LONG, 0) is None
    assert time.monotonic() - started < PATIENCE
    with pytest.raises(TypeError, match="not a log"):
        poller.watch([None])  # type: ignore[list-item]
    with pytest.raises(IndexError):
        poller.seen(0, 1)


def test_threads_of_one_process_wake_too_and_a_sleeper_lets_others_run(rig: Rig) -> None:
    partition = rig.partition(1)
    log, woken = partition.log, []
    seq = log.seq
    threads = [
        threading.Thread(target=lambda: woken.append(wait_any(rig.heads, [log], [seq], LONG)), daemon=True)
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    partition.append(batch(0, 0))
    for thread in threads:
        thread.join(PATIENCE)
    assert woken == [True] * 3


def test_control_c_ends_a_wait(rig: Rig) -> None:
    def wait() -> str:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            waiter(rig, 1)()
        except KeyboardInterrupt:
            return "interrupted"
        return "woke"

    with children() as start:
        child = start(wait)
        asleep(child)
        child.signal(signal.SIGINT)
        assert child.answer() == "interrupted"


def test_a_spin_ends_when_it_is_interrupted_and_by_control_c(rig: Rig) -> None:
    log = rig.partition(1).log
    poller = head.Poller(rig.heads)
    poller.watch([log])
    poller.seen(0, log.seq)
    ready = Flag(f"{rig.path}/ready")

    def spin() -> str:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            ready.up()
            poller.wait(LONG, LONG)
        except KeyboardInterrupt:
            return "interrupted"
        return "woke"

    with children() as start:
        child = start(spin)
        ready.wait()
        time.sleep(0.02)
        child.signal(signal.SIGINT)
        assert child.answer() == "interrupted"
    spinning = threading.Thread(target=poller.wait, args=(LONG, LONG), daemon=True)
    spinning.start()
    time.sleep(0.02)
    poller.interrupt()
    spinning.join(PATIENCE)
    assert not spinning.is_alive()


def test_whoever_may_not_write_the_store_waits_without_the_bell_and_sees_the_append_soon(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))

    def wait() -> tuple[bool, bool]:
        heads = head.Heads(f"{rig.path}/heads", writable=False)
        log = head.Log(heads, 1, partition.directory, None, 1)
        early = wait_any(heads, [log], [log.seq], 30_000)
        Flag(f"{rig.path}/ready").up()
        return early, wait_any(heads, [log], [1], LONG)

    with children() as start:
        child = start(wait)
        until(lambda: Flag(f"{rig.path}/ready") or not child.running, "it waits")
        partition.append(batch(0, 1))
        assert child.answer() == (False, True)
