"""A power cut at every step of a workload: all that was acked is there, nothing is invented, nobody skips a record.

Each life of a store is recorded (powercut.c) and cut at every step, several times: with nothing that was not synced,
with all of it, and with random parts (powercut.py). Every store that is left must open and keep what the workload was
told (oracle.py). The next life starts from one of them, so recovery is cut at every step, too.

A failure prints its seed, which KLAMM_SEED gives back. Threads make the steps of a run differ, so its trace is kept.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from klamm.log import head, retention, segment
from klamm.store import directory
from tests.crash import oracle, powercut
from tests.crash.cases import memory_directory, run_cases, seed_of
from tests.crash.oracle import Promises
from tests.crash.powercut import Disk
from tests.crash.workload import sealed
from tests.procs import children
from tests.rig import Rig

WORKLOAD = Path(__file__).with_name("workload.py")
Luck = list[float | None]  # of what was not synced: 0 none of it survives, 1 all of it, None random parts


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    with memory_directory(tmp_path) as path:
        yield path


class Life:
    """One recorded run of the workload, which may be cut anywhere."""

    def __init__(self, scratch: Path, number: int, seed: int, before: Promises, root: Path | None = None) -> None:
        self.number = number
        self.seed = seed
        self.before = before
        root = root or scratch / f"life{number}-{seed}"
        root.mkdir(exist_ok=True)
        self.disk = Disk.of(root)
        self.trace = scratch / f"trace{number}-{seed}"
        self.steps = powercut.record(root, self.trace, WORKLOAD, str(root), str(number), str(seed))
        self.moments = list(powercut.moments(self.steps))

    def states(self) -> Iterator[tuple[int, Disk, Promises]]:
        """Every moment, with the disk and the promises as they are then."""
        disk, promises, taken = self.disk, self.before.copy(), 0
        del self.disk  # it is used up
        for moment in self.moments:
            for step in self.steps[taken:moment]:
                disk.take(step)
                if step.kind == "N":
                    promises.hear(step.note)
            taken = moment
            yield moment, disk, promises


def cut_everywhere(life: Life, variants: Luck, scratch: Path) -> int:
    """Cut a life at every moment, and look at what is left. How many cuts that were."""
    states = life.states()  # begun in the children, each its own
    chosen = [(luck, powercut.distinct(life.steps, life.moments, luck)) for luck in variants]

    def run(moment: int, worker: int) -> None:
        directory.boot_id = lambda: b"after the outage"
        disk, promises = next((disk, promises) for found, disk, promises in states if found == moment)
        for variant, (luck, at) in enumerate(chosen):
            if moment not in at:
                continue
            dice = random.Random(f"{life.seed}:{moment}:{variant}")
            target = scratch / f"cut{worker}"
            shutil.rmtree(target, ignore_errors=True)
            disk.cut(target, dice, luck)
            try:
                oracle.check(target, promises, dice)
            except BaseException:
                print(f"life {life.number}, moment {moment} of {len(life.steps)}, variant {variant}, seed {life.seed}")
                print(f"the last steps: {[step[:4] for step in life.steps[moment - 5 : moment]]}")
                raise

    try:
        run_cases(life.moments, run)
    except pytest.fail.Exception:
        print(f"the trace is kept in {shutil.copy(life.trace, '/tmp')}")
        raise
    return sum(len(at) for _, at in chosen)


def next_life(life: Life, scratch: Path, number: int, seed: int) -> Life:
    """A life that starts with what a power cut left of the one before."""
    dice = random.Random(seed)
    chosen = dice.choice(life.moments[len(life.moments) // 4 :])
    root = scratch / f"life{number}-{seed}"
    for moment, disk, promises in life.states():
        if moment == chosen:
            print(f"life {number} starts from moment {moment} of life {life.number}")
            disk.cut(root, dice, None)
            return Life(scratch, number, seed, promises, root)
    raise AssertionError("the moment does not come")


def live_and_die(scratch: Path, seed: int, lives: list[Luck]) -> int:
    """A chain of lives, each cut at every moment. How many cuts that were."""
    cuts = 0
    life = Life(scratch, 1, seed, Promises())
    for number, variants in enumerate(lives, 1):
        if number > 1:
            life = next_life(life, scratch, number, seed + number - 1)
        cuts += cut_everywhere(life, variants, scratch)
    return cuts


def test_no_power_cut_loses_an_ack_or_invents_a_record_or_lets_a_reader_skip_one(scratch: Path) -> None:
    cuts = live_and_die(scratch, seed_of(), [[0, 1, None, None], [0, None, None], [None, None]])
    print(cuts, "cuts")
    assert cuts > 1000


def test_a_log_that_was_never_synced_and_lost_its_first_segment_has_no_hole_but_is_empty(scratch: Path) -> None:
    """The names of its files were not synced either, and any of them may be gone."""
    rig = Rig(scratch, slots=2)
    log = rig.partition(1)
    for number in range(12):
        log.append(sealed([f"{number}" + "." * 90]))
    bases = log.segments()
    assert len(bases) > 3
    os.unlink(segment.path_of(log.directory, bases[0]))
    rig.heads.mark_all(head.NEEDS_RECOVERY)
    again = rig.child().partition(1)
    assert oracle.read_all(again) == (0, [])
    assert again.append(sealed(["first"])) == 0
    assert len(list(Path(log.directory).glob("*.cut-*"))) == len(bases) - 1


def test_a_log_whose_every_record_was_deleted_goes_on_at_its_next_offset(scratch: Path) -> None:
    """Its recovery point may lie at the end of the segment that went last."""
    rig = Rig(scratch, slots=2)
    log = rig.partition(1)
    for number in range(3):
        log.append(sealed([f"{number}"]))
    log.checkpoint()
    assert log.cleanup.delete_before(3) == 3
    log.log.lock()
    log.log.roll()
    log.log.unlock()
    assert retention.remove_unreachable(log.log) == [0]
    for base in log.segments():  # the empty one, whose name nobody has synced
        os.unlink(segment.path_of(log.directory, base))
    rig.heads.mark_all(head.NEEDS_RECOVERY)
    again = rig.child().partition(1)
    assert oracle.read_all(again) == (3, [])
    assert again.append(sealed(["next"])) == 3


def test_a_log_that_lost_all_its_files_starts_in_an_epoch_that_it_never_had(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = scratch / "store"

    def until_the_outage() -> None:
        store = klamm.open(path)
        store.topics.create("orders")
        store.append("orders", b"lost", acks=1)
        with store.consumer("orders", group="g", wait=0) as consumer:
            assert [record.value for record in consumer] == [b"lost"]
            consumer.commit()
        os.kill(os.getpid(), signal.SIGKILL)

    with children() as start:
        assert os.WTERMSIG(start(until_the_outage).ended()) == signal.SIGKILL
    (files,) = path.glob("topics/*/0")
    shutil.rmtree(files)  # neither its name nor what is in it was synced
    monkeypatch.setattr(directory, "boot_id", lambda: b"after the outage")
    with klamm.open(path) as store:
        store.append("orders", b"another")
        with store.consumer("orders", group="g", wait=0) as consumer:
            assert [record.value for record in consumer] == [b"another"]  # at offset 0, which the group had read


@pytest.mark.soak
def test_no_power_cut_does_in_an_hour(scratch: Path) -> None:
    seed = seed_of()
    until = time.monotonic() + float(os.environ.get("KLAMM_SOAK_SECONDS", "3600"))
    while time.monotonic() < until:
        print(f"KLAMM_SEED={seed}")
        live_and_die(scratch, seed, [[0, 1] + [None] * 6] * 5)
        for left in scratch.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        seed += 100
