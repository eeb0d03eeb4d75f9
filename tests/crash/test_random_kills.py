"""Writers killed at random moments, many at once, while readers follow: hundreds here, thousands in `make soak`.

Every committed record is read exactly once, in order, by every reader; what a writer was told is committed is there.
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

import pytest

from klamm.disk import _os
from klamm.log.partition import Partition
from tests.crash.cases import seed_of
from tests.procs import children
from tests.rig import Rig, Seen, Sizes, batch, names, scan_files, wait_any

SEED = seed_of()
SIZES = Sizes(segment_bytes=64 << 10, index_interval_bytes=4096)
SLOT = 1


def hammer(path: Path, kills: int, writers: int, readers: int, records: int) -> None:
    """Kill that many writers at least, and more until there are that many records: all are accounted for."""
    print(f"KLAMM_SEED={SEED}")
    rig = Rig(path, slots=2)
    most = 20 * kills  # on a busy machine, writers are killed before they have written anything
    acked = memoryview(mmap.mmap(-1, 8 * (most + writers))).cast("q")
    stop = path / "stop"

    def write(writer: int) -> None:
        dice = random.Random(SEED + writer)
        partition = rig.child().partition(SLOT, SIZES)
        if dice.random() < 0.5:
            _os.trap(dice.randrange(1, 4000), signal=signal.SIGKILL)
        for first in itertools.count(step=20):
            for number, data in enumerate([batch(writer, first + n, dice.randrange(200)) for n in range(20)], first):
                offset = partition.append(data)
                acked[writer] = number + 1
                if dice.random() < 0.02:
                    partition.sync(offset + 1)
                elif dice.random() < 0.005:
                    partition.checkpoint()

    def follow() -> None:
        mine = rig.child()
        partition = mine.partition(SLOT, SIZES)
        reader, offset = partition.reader(0), 0
        last: dict[int, int] = {}
        while True:
            done = stop.exists()
            seq = partition.log.seq
            data = reader.read(8192)
            for writer, number in names(data):
                assert last.get(writer, -1) == number - 1, f"writer {writer}: {number} after {last.get(writer)}"
                last[writer] = number
                offset += 1
            assert reader.offset == offset
            if not data:
                if done:
                    break
                wait_any(mine.heads, [partition.log], [seq], 5_000)
        for writer, count in enumerate(acked):
            have = last.get(writer, -1) + 1
            assert have in (count, count + 1), f"writer {writer} was told {count}, {have} are there"

    with children() as start:
        followers = [start(follow) for _ in range(readers)]
        alive = [start(partial(write, number)) for number in range(writers)]
        dice = random.Random(SEED)
        for killed in itertools.count():
            if killed >= kills and sum(acked) >= records:
                break
            assert killed < most, f"{sum(acked)} records"
            time.sleep(dice.random() * 0.01)
            victim = alive.pop(dice.randrange(writers))
            victim.kill()
            assert os.WIFSIGNALED(victim.ended()), f"a writer failed\n{victim.error}"
            victim.close()
            for follower in followers:
                assert follower.running, f"a reader found damage\n{follower.error}"
            alive.append(start(partial(write, writers + killed)))
        for writer in alive:
            writer.kill()
        stop.touch()
        for follower in followers:
            follower.answer()
    partition = rig.partition(SLOT, SIZES)
    partition.append(batch(10**6, 0))
    partition.sync(partition.ends().end)
    seen = read_all_large(partition)
    assert seen == scan_files(partition)
    assert len(set(seen)) == len(seen) == partition.ends().end
    assert len(seen) > records


def read_all_large(partition: Partition) -> Seen:
    seen: Seen = []
    with partition.reader(0) as reader:
        while data := reader.read():
            seen += names(data)
    return seen


@pytest.mark.timeout(110)
def test_hundreds_of_killed_writers_never_disturb_a_reader(tmp_path: Path) -> None:
    hammer(tmp_path, kills=300, writers=3, readers=2, records=1000)


@pytest.mark.soak
def test_thousands_of_killed_writers_never_disturb_a_reader(tmp_path: Path) -> None:
    hammer(tmp_path, kills=10_000, writers=4, readers=3, records=10_000)
