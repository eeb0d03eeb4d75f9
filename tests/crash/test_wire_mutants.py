"""Break the server in known ways: the checker must find out. In `make soak`; a first one is in test_wire_histories.py.

Each mutant replaces a function or two in every life of the server. A run is repeated until its anomaly shows: some need
the server, or a client, to be killed between two steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from klamm.kafka.apis import fetch
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.fetch_sessions import FetchSession
from klamm.kafka.group_coordinator import GroupCoordinator
from klamm.kafka.transaction_coordinator import Identified, TransactionCoordinator
from klamm.store.wire_groups import WireGroups
from tests.crash import rounds
from tests.crash.rounds import Mutants
from tests.crash.test_wire_histories import READERS, WRITERS
from tests.crash.wire_nemesis import WireNemesis
from tests.crash.wire_workload import wire_plain, wire_transformer, wire_worker

ROUNDS, ROUND_SECONDS = 30, 8.0  # it ends with the first that shows
DICE = random.Random(1)
# For zombies: members that are stopped for longer than their session, and go on. Few writers, so that many do.
ZOMBIES: dict[str, Any] = {
    "writers": [(wire_plain, 1)],
    "readers": [(wire_worker, 3), (wire_transformer, 3)],
    "stop_share": 0.9,
    "stop_s": 3.0,
    "server_share": 0.0,
}

MUTANTS: Mutants = []
shows = partial(rounds.shows, MUTANTS)


@shows("lost", "torn", "not once", "aborted read", "restless", "unexpected")
def the_end_of_a_transaction_is_answered_and_forgotten() -> None:
    """Every third or so: it is aborted when its time is over."""
    end = TransactionCoordinator.end

    def forget(self: Any, name: str, producer_id: int, epoch: int, *, commit: bool, bump: bool) -> Identified:
        if commit and DICE.random() < 0.3:
            return Identified(ErrorCode.NONE, producer_id, epoch)
        return end(self, name, producer_id, epoch, commit=commit, bump=bump)

    TransactionCoordinator.end = forget  # type: ignore[method-assign]


@shows("lost progress")
def offsets_are_answered_and_forgotten() -> None:
    commit = WireGroups.commit

    def forget(self: Any, commits: Any) -> Any:
        commits = list(commits)
        if DICE.random() < 0.3:
            return [[True] * len(each.rows) for each in commits]
        return commit(self, commits)

    WireGroups.commit = forget  # type: ignore[method-assign]


@shows("lost progress", "two owners", "unprocessed", "not once")
def whoever_was_a_member_may_commit() -> None:
    """See ZOMBIES."""
    GroupCoordinator.check_commit = lambda self, *given, **named: ErrorCode.NONE  # type: ignore[method-assign]


@shows("aborted read", "early read")
def everybody_reads_what_is_open() -> None:
    begin = fetch._FetchRequest.__init__

    def begin_dirty(self: Any, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        self.committed = False

    fetch._FetchRequest.__init__ = begin_dirty  # type: ignore[method-assign]


@shows("not once", "lost progress", "disordered")
def nobody_waits_for_offsets_that_a_transaction_may_move() -> None:
    TransactionCoordinator.pending_offsets = lambda self, groups: set()  # type: ignore[method-assign]


@shows("missed", "skipped", "lost")
def a_fetch_session_goes_on_one_too_far() -> None:
    """Now and then. Clients without a session have none of it: their requests are full."""
    look = FetchSession.look

    def too_far(self: Any) -> bool:
        if self.id and DICE.random() < 0.1:
            for wanted in self.pending:
                if wanted.partition is not None and wanted.offset < wanted.partition.ends().end - 1:
                    wanted.offset += 1
        return look(self)

    FetchSession.look = too_far  # type: ignore[method-assign]


@pytest.mark.soak
@pytest.mark.parametrize(("mutant", "kinds"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_a_broken_server_is_found_out(mutant: Callable[[], None], kinds: set[str], tmp_path: Path) -> None:
    def make(directory: Path, store: Path, seed: int) -> WireNemesis:
        options: dict[str, Any] = {"writers": WRITERS, "readers": READERS}
        if mutant is whoever_was_a_member_may_commit:
            options = ZOMBIES
        return WireNemesis(directory, store, seed, break_server=mutant, **options)

    rounds.found_out(tmp_path, kinds, make, rounds=ROUNDS, seconds=ROUND_SECONDS)
