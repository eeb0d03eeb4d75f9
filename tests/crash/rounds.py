"""Runs of a nemesis, one after the other: until a time is over, or until somebody is found out.

A nemesis is made by `make(directory, store, seed)`; its histories go to `directory`. Each round has a seed of its own.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.crash.cases import memory_directory, seed_of
from tests.crash.checker import Anomaly, check
from tests.crash.nemesis import Nemesis, Restless, RoleFailed

SOAK_SECONDS = float(os.environ.get("KLAMM_SOAK_SECONDS", "1800"))

N = TypeVar("N", bound=Nemesis)
Mutant = Callable[[], None]
Mutants = list[tuple[Mutant, set[str]]]


def soak(directory: Path, make: Callable[[Path, Path, int], N], judged: Callable[[N], list[Anomaly]]) -> None:
    """Round after round without an anomaly. Every other one on a disk, where a sync takes its time."""
    seed, kills, deadline = seed_of(), 0, time.monotonic() + SOAK_SECONDS
    with memory_directory(directory) as memory:
        for number in itertools.count():
            if time.monotonic() > deadline:
                break
            own = directory / f"round-{number}"
            own.mkdir()
            store = (own if number % 2 else memory) / f"store-{number}"
            nemesis = make(own, store, seed + number)
            anomalies = judged(nemesis)
            assert anomalies == [], f"KLAMM_SEED={seed + number}, histories in {own}"
            kills += nemesis.kills
            print(f"round {number}: KLAMM_SEED={seed + number}, {kills} kills", flush=True)
            shutil.rmtree(store)
            shutil.rmtree(own)


def found_out(
    directory: Path, kinds: set[str], make: Callable[[Path, Path, int], Nemesis], *, rounds: int, seconds: float
) -> None:
    """One of these anomalies shows. Somebody may have to be killed at the right moment, so it may need a few runs, each
    longer than the one before.

    A run that does not come to rest at its end is one, too: "restless"; and one whose client reports an error that no
    rule allows: "unexpected".
    """
    seed = seed_of()
    found: set[str] = set()
    for number in range(rounds):
        own = directory / f"round-{number}"
        own.mkdir()
        with memory_directory(own) as memory:
            nemesis = make(own, memory / "store", seed + number)
            try:
                found |= {anomaly.kind for anomaly in check(nemesis.run(seconds * (1 + number / 4)))}
            except Restless:
                found.add("restless")
            except RoleFailed as error:
                print(error)
                found.add("unexpected")
        if found & kinds:
            return
    raise AssertionError(f"not found out; found {found or 'nothing'}")


def shows(mutants: Mutants, *kinds: str) -> Callable[[Mutant], Mutant]:
    """What a mutant is found out by: any of these."""

    def note(mutant: Mutant) -> Mutant:
        mutants.append((mutant, set(kinds)))
        return mutant

    return note
