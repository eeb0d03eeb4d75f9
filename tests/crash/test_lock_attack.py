"""Writers of one log are killed and stopped at random, and fork in C: nothing is lost, and nobody waits beyond a bound.

Each step of the lock by itself: test_lock_word.py.
"""

from __future__ import annotations

import itertools
import mmap
import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from klamm.disk import _os
from tests.crash.cases import memory_directory, seed_of
from tests.crash.lock_words import BOUND_S, SIZES, SLOT, fork_unhandled, read_all
from tests.procs import children, until
from tests.rig import Rig, batch, scan_files

pytestmark = [
    pytest.mark.skipif(not _os.HAS_BYTE_LOCKS, reason="one process at a time"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]


class Toll(NamedTuple):
    deaths: int
    inside: int
    """Deaths at a step of an append."""
    stops: int
    records: int
    longest_s: float
    """That one append took."""


def attack(path: Path, *, deaths: int, stops: int, writers: int, seed: int) -> Toll:
    """Writers of one log are killed and stopped at random, by themselves at a step and from outside; some fork."""
    rig = Rig(path, slots=2)
    board = memoryview(mmap.mmap(-1, 16 * (3 * deaths + writers + 1))).cast("q")
    acked, longest = board[: len(board) // 2], board[len(board) // 2 :]

    def write(writer: int) -> None:
        dice = random.Random(seed + writer)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        partition = rig.child().partition(SLOT, SIZES)
        batches = [batch(writer, number, dice.randrange(200)) for number in range(20)]
        if dice.random() < 0.6:
            _os.trap(dice.randrange(1, 600), kinds=_os.ALL & ~_os.READ, signal=signal.SIGKILL)
        for number in itertools.count():
            data = batches[number] if number < len(batches) else batch(writer, number)
            begin = time.monotonic_ns()
            partition.append(data)
            longest[writer] = max(longest[writer], time.monotonic_ns() - begin)
            acked[writer] = number + 1
            if dice.random() < 0.002 and not fork_unhandled():
                time.sleep(dice.random() * 0.01)  # with a copy of every descriptor, then gone
                os._exit(0)

    dice = random.Random(seed)
    killed = inside = stopped = 0
    with children() as start:
        numbers = list(range(writers))
        alive = [start(partial(write, number)) for number in numbers]
        while killed < deaths or stopped < stops:
            at = dice.randrange(writers)
            victim, number, appends = alive[at], numbers[at], dice.randrange(30)
            until(lambda: acked[number] >= appends or not victim.running, "it appends")  # noqa: B023
            time.sleep(dice.random() * 0.003)
            if victim.running and stopped < stops and dice.random() < 0.25:
                victim.signal(signal.SIGSTOP)
                time.sleep(0.004 + dice.random() * 0.012)
                victim.go_on()
                stopped += 1
                continue
            died_by_itself = not victim.running
            victim.kill()
            assert victim.status is not None and os.WIFSIGNALED(victim.status), f"a writer failed\n{victim.error}"
            victim.close()
            killed, inside = killed + 1, inside + died_by_itself
            if writers + killed < len(acked):
                numbers[at] = writers + killed - 1
                alive[at] = start(partial(write, numbers[at]))
        for child in alive:
            child.kill()
            assert child.status is not None and os.WIFSIGNALED(child.status), f"a writer failed\n{child.error}"
    partition = rig.partition(SLOT, SIZES)
    partition.append(batch(10**6, 0))
    seen = read_all(partition)
    assert seen == scan_files(partition)
    assert len(seen) == partition.ends().end
    by_writer: dict[int, list[int]] = {}
    for writer, number in seen:
        by_writer.setdefault(writer, []).append(number)
    for writer, count in enumerate(acked):
        there = by_writer.get(writer, [])
        assert there == list(range(len(there))), f"writer {writer}: lost, twice or out of order"
        assert len(there) in (count, count + 1), f"writer {writer} was told {count}, {len(there)} are there"
    toll = Toll(killed, inside, stopped, len(seen), max(longest) / 1e9)
    print(toll)
    assert toll.longest_s < BOUND_S
    return toll


def test_hundreds_of_deaths_and_stops_lose_nothing_and_hold_up_nobody(tmp_path: Path) -> None:
    with memory_directory(tmp_path) as memory:
        toll = attack(memory, deaths=200, stops=40, writers=3, seed=seed_of())
    assert toll.inside > 10 and toll.records > 1000


@pytest.mark.soak
@pytest.mark.parametrize("writers", [3, 6])
def test_thousands_of_deaths_and_stops_lose_nothing_and_hold_up_nobody(tmp_path: Path, writers: int) -> None:
    toll = attack(tmp_path, deaths=5000, stops=1000, writers=writers, seed=seed_of())
    assert toll.inside > 500 and toll.records > 50_000
