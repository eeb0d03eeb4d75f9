"""A power cut at every step of transactions, and of what resolves them: all or nothing, and what was committed stays.

The store that is left is opened, which resolves what the outage left: both partitions of `out` then hold exactly the
records before the group's offset. The second life starts from such a store, and is cut at every step, too.
"""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import klamm
from klamm.store import directory
from tests.crash import powercut
from tests.crash.cases import memory_directory, run_cases, seed_of
from tests.crash.powercut import Disk
from tests.crash.test_killed_transaction import progress, values

WORKLOAD = Path(__file__).with_name("transaction_workload.py")


@dataclass
class Told:
    """What the program was told, and what it asked for."""

    ready: bool = False
    committed: int = 0
    asked: int = 0

    def hear(self, note: dict[str, int]) -> None:
        self.ready |= "ready" in note
        self.asked = max(self.asked, note.get("committing", -1) + 1)
        self.committed = max(self.committed, note.get("committed", -1) + 1)


class Life:
    """One recorded run of the workload."""

    def __init__(self, scratch: Path, number: int, root: Path, before: Told) -> None:
        self.number = number
        self.before = before
        root.mkdir(exist_ok=True)
        self._disk = Disk.of(root)
        self.steps = powercut.record(root, scratch / f"trace-{number}", WORKLOAD, str(root), str(number))

    def moments(self) -> Iterator[tuple[int, Disk, Told]]:
        """Every one at which there are topics, with the disk as it is then. Uses the disk up."""
        told, taken = copy.copy(self.before), 0
        for moment in powercut.moments(self.steps):
            for step in self.steps[taken:moment]:
                self._disk.take(step)
                if step.kind == "N":
                    told.hear(step.note)
            taken = moment
            if told.ready:
                yield moment, self._disk, told


def look(target: Path, told: Told) -> None:
    with klamm.open(target / "events", create=False) as store:
        assert store.transactions() == [], "opening it has ended them"
        done = progress(store)
        assert told.committed <= done <= max(told.committed, told.asked), "what was committed stays, and nothing else"
        assert values(store, 0) == values(store, 1) == list(range(done))
        with store.transaction("mover") as tx:  # and all goes on
            tx.send("out", b"%d" % done, partition=0)
        assert values(store, 0) == list(range(done + 1))
        report = store.check()
        assert report.ok, report.breaches


def cut_everywhere(life: Life, scratch: Path, seed: int, lucks: list[float | None], stride: int) -> int:
    moments = [moment for moment, _, _ in copy.deepcopy(life).moments()][
        random.Random(seed).randrange(stride) :: stride
    ]
    states = life.moments()  # begun in the children, each its own

    def run(moment: int, worker: int) -> None:
        directory.boot_id = lambda: b"after the outage"
        disk, told = next((disk, told) for found, disk, told in states if found == moment)
        for variant, luck in enumerate(lucks):
            target = scratch / f"cut-{worker}"
            shutil.rmtree(target, ignore_errors=True)
            disk.cut(target, random.Random(f"{seed}:{life.number}:{moment}:{variant}"), luck)
            try:
                look(target, told)
            except BaseException:
                print(
                    f"life {life.number}, moment {moment} of {len(life.steps)}, variant {variant}, seed {seed}, {told}"
                )
                print(f"the last steps: {[step[:4] for step in life.steps[moment - 5 : moment]]}")
                raise

    run_cases(moments, run)
    return len(moments) * len(lucks)


@pytest.mark.parametrize(("stride", "rounds"), [(15, 1), pytest.param(1, 20, marks=pytest.mark.soak)])
def test_after_a_power_cut_a_transaction_is_whole_or_not_there(tmp_path: Path, stride: int, rounds: int) -> None:
    seed = seed_of()
    for attempt in range(rounds):
        with memory_directory(tmp_path) as scratch:
            first = Life(scratch, 1, scratch / "life-1", Told())
            states = list(copy.deepcopy(first).moments())
            assert cut_everywhere(copy.deepcopy(first), scratch, seed + attempt, [0, 1, None], stride) > 20
            dice = random.Random(seed + attempt)
            chosen = dice.randrange(len(states) // 4, len(states) // 2)
            for number, (_, disk, told) in enumerate(first.moments()):
                if number == chosen:
                    disk.cut(scratch / "life-2", dice, None)
                    second = Life(scratch, 2, scratch / "life-2", copy.copy(told))
                    break
            assert cut_everywhere(second, scratch, seed + attempt, [0, None], stride) > 20
