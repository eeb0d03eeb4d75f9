"""Pipes in processes that are killed, stopped and ended by SIGTERM at random: each record has its effect once.

A short run here; in `make soak` round after round, for KLAMM_SOAK_SECONDS. Beside the checker of histories, outputs and
state are compared with the reference (tests/client/pipes.py).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.client.pipe.state import States
from tests.client import pipes
from tests.client.pipes import IN, LEFT, RIGHT
from tests.crash import jepsen_workload, rounds
from tests.crash.cases import memory_directory, seed_of
from tests.crash.checker import UNCOMMITTED
from tests.crash.jepsen_workload import Life, Regret, end_by_dice
from tests.crash.nemesis import Nemesis, Roles
from tests.crash.rounds import Mutants
from tests.crash.test_histories import judged
from tests.crash.test_history_mutants import progress_is_no_part_of_the_transaction

ROUND_SECONDS = 40.0
KEYS = 7
TOPICS = (IN, LEFT, RIGHT)


def keyed(life: Life) -> None:
    """Appends records with keys, some of them in transactions, some of which are aborted."""
    life.record("started", role="producer")
    dice = life.dice
    for number in itertools.count():
        if not life.writes_on():
            return
        names = life.names(dice.choice([1, 3, 20]))
        pairs = [(b"k%d" % dice.randrange(KEYS), name.encode()) for name in names]
        if dice.random() < 0.7:
            life.record("sending", topic=IN, ids=names, tx=None)
            life.store.append_many(IN, pairs, acks=1)
            life.record("sent", topic=IN, ids=names, places=[[0, None]] * len(names))
            continue
        tx = f"{life.name}:{number}"
        life.record("sending", topic=IN, ids=names, tx=tx)
        try:
            with life.store.transaction() as transaction:
                for key, value in pairs:
                    transaction.send(IN, value, key=key)
                end_by_dice(life, tx, transaction)
            life.record("committed", tx=tx)
        except Regret as error:
            life.record("aborted", tx=tx, why=repr(error))


def pipe(life: Life) -> None:
    """The pipe with everything. Now and then its function takes longer than a member may. SIGTERM ends it."""
    life.record("started", role="pipe")

    def name() -> str:
        (made,) = life.names(1)
        life.record("sending", topic=LEFT, ids=[made], tx=None)  # or RIGHT, which is the same to the checker
        return made

    def before(record: klamm.Record) -> None:
        if life.dice.random() < 0.002:
            time.sleep(life.dice.choice([0.5, 1.5]) * life.patience_ms / 1000)

    options = {
        "max_records": life.dice.choice([1, 10, 1000]),
        "max_poll_interval_ms": life.dice.choice([life.patience_ms, 10_000]),
    }
    with pipes.open_pipe(life.store, pipes.make(name, before), **options) as opened:

        def stop_at_the_end() -> None:
            while life.reads_on():
                time.sleep(0.05)
            opened.stop()

        threading.Thread(target=stop_at_the_end, daemon=True).start()
        with suppress(SystemExit):  # by a second SIGTERM, which does not wait for the transaction
            opened.run()
    life.record("ended")


def reader(life: Life) -> None:
    jepsen_workload.reader(life, topics=TOPICS)


def dirty_reader(life: Life) -> None:
    jepsen_workload.reader(life, UNCOMMITTED, TOPICS)


class PipeNemesis(Nemesis):
    """One run with pipes; at its end, outputs and state are compared with the reference."""

    def __init__(self, directory: Path, store: Path, seed: int, **options: Any) -> None:
        readers: Roles = [(reader, 1), (dirty_reader, 1), (pipe, 3)]
        super().__init__(directory, store, seed, [(keyed, 2)], readers, topics=TOPICS, end_well=["pipe"], **options)

    def _end(self) -> None:
        with klamm.open(self.store) as store:
            store.maintain()
            for what in pipes.anomalies(store):
                self._record("differs", what=what)


def test_pipes_that_are_killed_and_ended_at_any_moment_have_their_effect_once(tmp_path: Path) -> None:
    with memory_directory(tmp_path) as memory:
        nemesis = PipeNemesis(tmp_path, memory / "store", seed_of(), least_kills=10, least_ends=3)
        assert judged(nemesis, 3) == []
        print(nemesis.kills, "kills,", nemesis.ends, "ended by SIGTERM")


@pytest.mark.soak
def test_thousands_of_killed_pipes_have_their_effect_once(tmp_path: Path) -> None:
    rounds.soak(tmp_path, PipeNemesis, lambda nemesis: judged(nemesis, ROUND_SECONDS))


# ---- pipes that are broken in known ways

MUTANTS: Mutants = [(progress_is_no_part_of_the_transaction, {"not as the reference"})]
shows = partial(rounds.shows, MUTANTS)


@shows("not as the reference")
def the_changelog_is_written_beside_the_transaction() -> None:
    changes = States.changes

    def write_beside(self: States) -> Iterator[tuple[int, bytes, bytes | None]]:
        for number, key, value in changes(self):
            log = self._core.topic(self.changelog).partition(number)
            log.append_one(key, value, -1)
        return iter(())

    States.changes = write_beside  # type: ignore[method-assign]


@shows("not as the reference")
def the_state_is_not_read_when_a_partition_is_taken_over() -> None:
    States._load = lambda self, number: {}  # type: ignore[method-assign]


@pytest.mark.soak
@pytest.mark.parametrize(("mutant", "kinds"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_a_broken_pipe_is_found_out(mutant: Callable[[], None], kinds: set[str], tmp_path: Path) -> None:
    make = partial(PipeNemesis, prepare=mutant)
    rounds.found_out(tmp_path, kinds, make, rounds=8, seconds=8.0)
