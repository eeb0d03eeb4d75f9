"""Group commit: writes of several threads share a SQLite transaction, and each has its own outcome."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.errors import KlammError
from klamm.store.database import Database, Execute
from klamm.store.group_commit import GroupCommit, _Write
from tests.crash.cases import memory_directory
from tests.interrupts import interrupt_at
from tests.procs import PATIENCE, until
from tests.store.open_transactions import core_of


class Commits:
    """A group commit on a real klamm.db, and the transactions that it makes."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database = database
        self.group = GroupCommit(database)
        self.durable: list[bool] = []
        original = database.transaction

        def transaction(*, durable: bool = True) -> Any:
            self.durable.append(durable)
            return original(durable=durable)

        monkeypatch.setattr(database, "transaction", transaction)
        with database.db_lock(), original() as execute:
            execute("CREATE TABLE written (number INTEGER)")

    def written(self) -> list[int]:
        return [number for (number,) in self.database.read("SELECT number FROM written ORDER BY rowid")]

    def together(self, *writes: Any, durable: bool = True) -> list[Any]:
        """Run a write, and while it is under way, hand over `writes`, one after the other: what became of each."""
        begun, enough = threading.Event(), threading.Event()
        outcomes: list[Any] = [None] * len(writes)

        def first(execute: Execute) -> None:
            begun.set()
            assert enough.wait(PATIENCE)

        def run(index: int) -> None:
            try:
                outcomes[index] = self.group.run(writes[index], durable=durable)
            except Exception as error:
                outcomes[index] = error

        threads = [threading.Thread(target=self.group.run, args=(first,))]
        threads[0].start()
        assert begun.wait(PATIENCE)
        for index in range(len(writes)):
            threads.append(threading.Thread(target=run, args=(index,)))
            threads[-1].start()
            until(lambda index=index: len(self.group._queue) == index + 2, "it is queued")  # type: ignore[misc]
        enough.set()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        return outcomes


def put(number: int) -> Any:
    def write(execute: Execute) -> int:
        execute("INSERT INTO written VALUES (?)", (number,))
        return number

    return write


@pytest.fixture
def commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commits]:
    with klamm.open(tmp_path / "events") as store:
        yield Commits(core_of(store).catalog.database, monkeypatch)


def test_what_comes_during_a_commit_is_one_more_in_the_order_it_came(commits: Commits) -> None:
    assert commits.together(*[put(number) for number in range(20)]) == list(range(20))
    assert len(commits.durable) == 2
    assert commits.written() == list(range(20))


def test_one_that_raises_is_undone_and_the_others_are_not(commits: Commits) -> None:
    def refuse(execute: Execute) -> None:
        put(99)(execute)
        raise KlammError("no")

    first, refused, last = commits.together(put(1), refuse, put(2))
    assert (first, last) == (1, 2)
    assert isinstance(refused, KlammError) and refused.message == "no"
    assert commits.written() == [1, 2]


def test_what_keeps_sqlite_from_writing_fails_all_of_them(commits: Commits) -> None:
    def broken(execute: Execute) -> None:
        execute("INSERT INTO nowhere VALUES (1)")

    outcomes = commits.together(put(1), broken, put(2))
    assert all(isinstance(outcome, KlammError) for outcome in outcomes), outcomes
    assert commits.written() == []
    assert commits.group.run(put(3)) == 3
    assert commits.written() == [3]


def test_a_group_is_durable_if_one_of_it_has_to_be(commits: Commits) -> None:
    commits.group.run(put(1), durable=False)
    commits.group.run(put(2), durable=True)
    commits.together(put(3), put(4), durable=False)
    assert commits.durable == [False, True, True, False]
    mixed: list[threading.Thread] = []

    def first(execute: Execute) -> None:
        for durable in (False, True, False):
            mixed.append(threading.Thread(target=commits.group.run, args=(put(5),), kwargs={"durable": durable}))
            mixed[-1].start()
        until(lambda: len(commits.group._queue) == 4, "all are queued")

    commits.group.run(first, durable=False)
    for thread in mixed:
        thread.join(PATIENCE)
    assert commits.durable[-2:] == [False, True]


def test_more_than_fit_into_one_transaction_are_written_in_several(
    commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("klamm.store.group_commit._MAX_WRITES", 4)
    assert commits.together(*[put(number) for number in range(10)]) == list(range(10))
    assert commits.written() == list(range(10))
    assert len(commits.durable) == 1 + 3


def test_an_interrupt_is_for_the_thread_that_commits_and_each_write_of_the_others_is_committed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(execute: Execute) -> None:
        put(-1)(execute)
        raise KlammError("no")

    with memory_directory(tmp_path) as path, klamm.open(path / "events") as store:
        commits = Commits(core_of(store).catalog.database, monkeypatch)
        group, interrupted = commits.group, 0
        expected: list[int] = []
        for is_refused in (False, True):
            for point in itertools.count(1):
                writes = [_Write(put(number), True) for number in (len(expected), len(expected) + 1)]
                group._queue.extend([writes[0], *([_Write(refuse, True)] if is_refused else []), writes[1]])
                is_struck = False
                try:
                    with interrupt_at(point):
                        group.run(put(-2))
                except KeyboardInterrupt:
                    is_struck = True
                group.run(put(-3))  # as the next thread
                assert not group._queue
                for write in writes:
                    assert write.is_done and write.error is None
                    assert write.result == len(expected)
                    expected.append(write.result)
                interrupted += is_struck
                if not is_struck:
                    break
        written = commits.written()
        assert [number for number in written if number >= 0] == expected
        assert interrupted > 100
        assert -1 not in written and 0 < written.count(-2) < interrupted
