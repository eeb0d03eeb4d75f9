"""A power cut at every step of transactions, and of what resolves them: all or nothing, and what was committed stays.

The store that is left is opened, which resolves what the outage left: both partitions of `out` then hold exactly the
records before the group's offset. The second life starts from such a store, and is cut at every step, too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

import klamm
from klamm.store import once
from tests.crash.cases import memory_directory, seed_of
from tests.crash.recording import Luck, Notes, Recording
from tests.crash.test_killed_transaction import progress, values

WORKLOAD = Path(__file__).with_name("transaction_workload.py")


@dataclass
class Told:
    """What the program was told, and what it asked for."""

    committed: int = 0
    asked: int = 0

    @classmethod
    def by(cls, notes: Notes) -> Told:
        told = cls()
        for note in notes:
            told.asked = max(told.asked, note.get("committing", -1) + 1)
            told.committed = max(told.committed, note.get("committed", -1) + 1)
        return told


def look(target: Path, told: Told) -> None:
    with klamm.open(target / "events", create=False) as store:
        assert list(store.transactions) == [], "opening it has ended them"
        done = progress(store)
        assert told.committed <= done <= max(told.committed, told.asked), "what was committed stays, and nothing else"
        assert values(store, 0) == values(store, 1) == list(range(done))
        assert once.last(store._acquired().catalog.database, "mover") == (done - 1 if done else None)
        with store.transaction("mover") as tx:  # and all goes on
            tx.send("out", b"%d" % done, partition=0)
        assert values(store, 0) == list(range(done + 1))
        report = store.check()
        assert report.ok, report.breaches


def ready_moments(recording: Recording) -> list[int]:
    """Return the moments at which there are topics."""
    ready = recording.steps.index(next(step for step in recording.steps if step.kind == "N" and "ready" in step.note))
    return [moment for moment in recording.moments if moment > ready]


def cut_everywhere(recording: Recording, before: Notes, seed: int, lucks: Luck, stride: int) -> int:
    """Cut at every `stride`-th moment, and return the number of cuts."""
    moments = ready_moments(recording)[random.Random(seed).randrange(stride) :: stride]
    return recording.cut(
        lambda root, notes: look(root, Told.by(before + notes)), seed=seed, lucks=lucks, moments=moments
    )


@pytest.mark.parametrize(("stride", "rounds"), [(15, 1), pytest.param(1, 20, marks=pytest.mark.soak)])
def test_after_a_power_cut_a_transaction_is_whole_or_not_there(tmp_path: Path, stride: int, rounds: int) -> None:
    seed = seed_of()
    for attempt in range(rounds):
        with memory_directory(tmp_path) as scratch:
            first = Recording(scratch / "life-1", WORKLOAD, "1")
            assert cut_everywhere(first, [], seed + attempt, [0, 1, None], stride) > 20
            dice = random.Random(seed + attempt)
            moments = ready_moments(first)
            chosen = dice.choice(moments[len(moments) // 4 : len(moments) // 2])
            ((_, disk, before),) = first.states([chosen])
            disk.cut(scratch / "life-2", dice, None)
            second = Recording(scratch / "life-2", WORKLOAD, "2")
            assert cut_everywhere(second, before, seed + attempt, [0, None], stride) > 20
