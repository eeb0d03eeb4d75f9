"""Break Klamm in known ways, in the processes of a run: the checker must find out. In `make soak`.

Each mutant replaces a function or two in every process before it begins. A run is repeated until its anomaly shows:
some need a process to be killed between two writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.client.consume.consumer import session_of, session_that_read
from klamm.client.groups.commits import Commits
from klamm.client.groups.membership import Member
from klamm.client.transaction import Transaction
from klamm.disk.locks import OWNED, LockFile
from klamm.log.partition import Partition
from klamm.log.reader import Reader
from klamm.store.groups import Groups
from klamm.store.transaction_resolver import Resolver
from klamm.store.transactions import Transactions
from klamm.types import TopicPartition
from tests.crash import rounds
from tests.crash.nemesis import Nemesis
from tests.crash.rounds import Mutants
from tests.crash.test_histories import READERS, WRITERS

ROUNDS, ROUND_SECONDS = 8, 8.0

MUTANTS: Mutants = []
shows = partial(rounds.shows, MUTANTS)


@shows("two owners")
def a_partition_is_taken_without_its_byte() -> None:
    hold, release = LockFile.try_hold, LockFile.release
    group = 1 << 40

    def is_owner_byte(byte: int) -> bool:
        return group <= byte < 1 << 62 and byte % group >= OWNED

    def try_hold(self: LockFile, byte: int, *, shared: bool = False) -> bool:
        return is_owner_byte(byte) or hold(self, byte, shared=shared)

    def let_go(self: LockFile, byte: int) -> None:
        if not is_owner_byte(byte):
            release(self, byte)

    LockFile.try_hold = try_hold  # type: ignore[method-assign]
    LockFile.release = let_go  # type: ignore[method-assign]
    Groups.owned_slots = lambda self, number: set()  # type: ignore[method-assign]


@shows("lost progress", "unprocessed")
def a_member_commits_what_it_has_lost() -> None:
    Member.owns = lambda self, topic, partition: True  # type: ignore[method-assign]
    Member.topic_id = lambda self, name: self._topics[name[0]][0]  # type: ignore[method-assign]


@shows("lost progress")
def progress_is_not_read_when_a_partition_is_taken() -> None:
    load = Commits.load

    def forget(self: Commits, tps: Iterable[TopicPartition]) -> dict[TopicPartition, klamm.Position]:
        load(self, tps)
        return {}

    Commits.load = forget  # type: ignore[method-assign]


@shows("not once")
def progress_is_no_part_of_the_transaction() -> None:
    commit = Transaction.commit

    def remember(self: Any, read: klamm.Batch | klamm.Consumer) -> None:
        self.progress = read

    def commit_beside(self: Any) -> None:
        read = getattr(self, "progress", None)
        commit(self)
        if read is not None:
            session = session_that_read(read) if isinstance(read, klamm.Batch) else session_of(read)
            assert session is not None
            with suppress(klamm.NotOwner):
                session.commits.commit(read if isinstance(read, klamm.Batch) else None, "")

    Transaction.commit_offsets = remember  # type: ignore[method-assign]
    Transaction.commit = commit_beside  # type: ignore[method-assign]


@shows("aborted read")
def what_is_aborted_is_marked_as_committed() -> None:
    mark = Partition.append_marker

    def mark_as_committed(
        self: Partition, producer_id: int, epoch: int, *, commit: bool, same_epoch: bool = False
    ) -> int | None:
        return mark(self, producer_id, epoch, commit=True, same_epoch=same_epoch)

    Partition.append_marker = mark_as_committed  # type: ignore[method-assign]


@shows("aborted read", "early read")
def readers_do_not_stop_at_open_transactions() -> None:
    begin = Reader.__init__

    def begin_dirty(self: Reader, partition: Partition, offset: int, *, committed: bool = True) -> None:
        begin(self, partition, offset, committed=False)

    Reader.__init__ = begin_dirty  # type: ignore[method-assign]


@shows("lost", "torn")
def whoever_finishes_for_a_dead_process_aborts() -> None:
    complete = Resolver.complete

    def abort(self: Resolver, rows: list[Any]) -> Any:
        return complete(self, [row._replace(state="prepared_abort") for row in rows])

    Resolver.complete = abort  # type: ignore[method-assign]


@shows("lost", "torn", "not once")
def whoever_comes_too_late_to_commit_is_not_told() -> None:
    decide, check = Transactions.decide, Transactions._check_ongoing

    def decide_blindly(self: Transactions, *given: Any, **named: Any) -> bool | None:
        Transactions._check_ongoing = lambda self, execute, mine: None  # type: ignore[assignment, method-assign, misc]
        try:
            return decide(self, *given, **named)
        finally:
            Transactions._check_ongoing = check  # type: ignore[method-assign]

    Transactions.decide = decide_blindly  # type: ignore[method-assign]


@pytest.mark.soak
@pytest.mark.parametrize(("mutant", "kinds"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_a_broken_klamm_is_found_out(mutant: Callable[[], None], kinds: set[str], tmp_path: Path) -> None:
    def make(directory: Path, store: Path, seed: int) -> Nemesis:
        return Nemesis(directory, store, seed, WRITERS, READERS, prepare=mutant)

    rounds.found_out(tmp_path, kinds, make, rounds=ROUNDS, seconds=ROUND_SECONDS)
