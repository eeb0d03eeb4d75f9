"""`consumer.run` in many processes, killed, stopped and terminated at random: their histories show no anomaly.

A short run here; in `make soak` round after round, with worker processes, too, for KLAMM_SOAK_SECONDS. KLAMM_SEED
repeats the dice, though not the moments. See checker.py and run_roles.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from klamm.client.work.tasks import Tasks
from klamm.client.work.workers import _Progress, _Run
from tests.crash import rounds
from tests.crash.cases import memory_directory, seed_of
from tests.crash.jepsen_workload import plain, transactional
from tests.crash.nemesis import Nemesis, Roles
from tests.crash.rounds import Mutants, soak
from tests.crash.run_roles import process_runner, runner
from tests.crash.test_histories import judged

WRITERS: Roles = [(plain, 1), (transactional, 1)]
READERS: Roles = [(runner, 3)]
END_WELL = ("runner", "process_runner")
ROUND_SECONDS = 40.0


def test_kills_and_terminations_of_runs_leave_no_anomaly(tmp_path: Path) -> None:
    with memory_directory(tmp_path) as memory:
        nemesis = Nemesis(
            tmp_path, memory / "store", seed_of(), WRITERS, READERS, end_well=END_WELL, least_kills=5, least_ends=5
        )
        assert judged(nemesis, 3) == []
        print(nemesis.kills, "kills,", nemesis.ends, "ended by SIGTERM")


@pytest.mark.soak
def test_thousands_of_kills_and_terminations_of_runs_leave_no_anomaly(tmp_path: Path) -> None:
    readers: Roles = [(runner, 3), (process_runner, 1)]
    soak(
        tmp_path,
        lambda directory, store, seed: Nemesis(directory, store, seed, WRITERS, readers, end_well=END_WELL, rest_s=180),
        lambda nemesis: judged(nemesis, ROUND_SECONDS),
    )


# ---- a broken Klamm is found out

MUTANTS: Mutants = []
shows = partial(rounds.shows, MUTANTS)


@shows("unprocessed")
def what_is_not_done_is_committed() -> None:
    def complete(self: Any) -> None:
        while self.tasks:
            task = self.tasks.popleft()
            self.position = type(self.position)(task.next_offset, task.record.leader_epoch)

    _Progress.complete = complete  # type: ignore[method-assign]


@shows("unprocessed")
def a_record_that_failed_counts_as_done() -> None:
    Tasks.again = lambda self, worker, delay_s: self.done(worker)  # type: ignore[assignment, method-assign]


@shows("restless", "unexpected")
def a_run_ends_without_a_commit() -> None:
    finish = _Run._finish_running

    def finish_and_forget(self: Any, loop: Any) -> None:
        finish(self, loop)
        self._commit = lambda places=None: None

    _Run._finish_running = finish_and_forget  # type: ignore[method-assign]


@pytest.mark.soak
@pytest.mark.parametrize(("mutant", "kinds"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_a_broken_run_is_found_out(mutant: Callable[[], None], kinds: set[str], tmp_path: Path) -> None:
    def make(directory: Path, store: Path, seed: int) -> Nemesis:
        return Nemesis(directory, store, seed, WRITERS, READERS, end_well=END_WELL, prepare=mutant)

    rounds.found_out(tmp_path, kinds, make, rounds=8, seconds=4.0)
