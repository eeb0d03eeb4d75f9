"""Results in the user's database, from consumers that are killed at every step: each record exactly once.

A consumer process saves what it reads in a transaction of a SQLite or PostgreSQL database and commits its progress in
the same one. It gets SIGKILL at each step of its loop, at system calls of the store, and at any instant; another one
starts, until all is read. Then the table holds each record once. The same with two of them at a time, without a group.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.disk import _os
from tests.crash.cases import seed_of
from tests.databases import Database, all_of, run
from tests.procs import Child, Flag, children

SEED = seed_of()
Step = Callable[[str], None]
STEPS = ("offsets", "consumer", "polled", "half saved", "saved", "noted", "committed")


@pytest.fixture
def filled(path: Path) -> Path:
    """The path of a store whose topic has 60 records in 2 partitions."""
    with klamm.open(path) as store:
        store.topics.create("users", partitions=2)
        for n in range(60):
            store.append("users", b"%d" % n, partition=n % 2, acks=1)
    return path


@pytest.fixture
def results(database: Database) -> Database:
    with closing(database.connect()) as connection:
        run(connection, 'CREATE TABLE results (name TEXT, "partition" INTEGER, "offset" INTEGER)')
    return database


def consume(path: Path, database: Database, name: str, step: Step, *, batch_records: int = 8) -> None:
    """Read everything that is there; `step` is told where it is."""
    with klamm.open(path) as store, closing(database.connect()) as connection:
        offsets = klamm.SqlOffsets(connection, name)
        step("offsets")
        with store.consumer("users", offsets=offsets, wait=0) as users:
            step("consumer")
            for batch in users.batches(batch_records):
                step("polled")
                try:
                    with database.transaction(connection):
                        for number, record in enumerate(batch):
                            values = (name, record.partition, record.offset)
                            run(connection, "INSERT INTO results VALUES (?, ?, ?)", values)
                            if number == len(batch) // 2:
                                step("half saved")
                        step("saved")
                        users.commit(batch)
                        step("noted")
                except klamm.CommitGap:
                    continue  # somebody else has done it
                step("committed")


def saved(database: Database, name: str) -> list[tuple[int, int]]:
    rows = all_of(database, 'SELECT name, "partition", "offset" FROM results ORDER BY 2, 3')
    return [(partition, offset) for each, partition, offset in rows if each == name]


def each_once(count: int) -> list[tuple[int, int]]:
    return [(number, offset) for number in range(2) for offset in range(count // 2)]


def dying(at: int, seen: list[str] | None = None) -> Step:
    """Steps of a process that gets SIGKILL at the n-th one."""
    steps = itertools.count(1)

    def step(name: str) -> None:
        if seen is not None:
            seen.append(name)
        if next(steps) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return step


def died(child: Child) -> bool:
    status = child.ended()
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert status == 0, f"a consumer failed: {status:#x}"
    return False


@pytest.mark.timeout(100)
def test_a_consumer_killed_at_any_step_of_its_loop_leaves_each_record_once(filled: Path, results: Database) -> None:
    seen: list[str] = []
    consume(filled, results, "not killed", dying(0, seen))
    assert set(seen) == set(STEPS)
    assert saved(results, "not killed") == each_once(60)
    with children() as start:
        for at in range(1, len(seen) + 1):
            name = f"killed at {at}"
            first = start(lambda at=at, name=name: consume(filled, results, name, dying(at)))  # type: ignore[misc]
            assert died(first), f"there is no step {at}"
            before = saved(results, name)
            assert before == sorted(set(before))
            second = start(lambda name=name: consume(filled, results, name, dying(0)))  # type: ignore[misc]
            assert not died(second)
            assert saved(results, name) == each_once(60), f"killed at step {at}, {seen[at - 1]!r}"


def test_consumers_that_are_killed_again_and_again_come_to_the_end(filled: Path, results: Database) -> None:
    with children() as start:
        for at in itertools.count(3):
            if not died(start(lambda at=at: consume(filled, results, "billing", dying(at)))):  # type: ignore[misc]
                break
            known = saved(results, "billing")
            assert known == sorted(set(known))
    assert saved(results, "billing") == each_once(60)


@pytest.mark.timeout(100)
@pytest.mark.parametrize("many", [1, 2], ids=["one process", "two at once"])
def test_consumers_killed_at_any_instant_leave_each_record_once(
    filled: Path, results: Database, tmp_path: Path, many: int
) -> None:
    print(f"KLAMM_SEED={SEED}")
    dice = random.Random(SEED)
    many_records = 8000 if results.kind == "sqlite" else 3000
    count, kills = 60, 0

    def fill() -> None:
        nonlocal count
        with klamm.open(filled) as store:
            for number in range(2):
                store.append_many("users", [b"x"] * (many_records // 2), partition=number, acks=1)
        count += many_records

    fill()
    with children() as start:

        def begin() -> tuple[Child, Flag]:
            begun = Flag(tmp_path / f"begun-{dice.random()}")
            trap = dice.randrange(1, 120) if dice.random() < 0.3 else 0  # at a system call of the store

            def act() -> None:
                if trap:
                    _os.trap(trap, signal=signal.SIGKILL)
                consume(filled, results, "billing", lambda name: begun.up() if name == "consumer" else None)
                _os.trap(0)

            return start(act), begun

        alive = [begin() for _ in range(many)]
        while alive:
            child, begun = alive.pop(0)
            while not begun and child.running:
                time.sleep(0.0002)
            time.sleep(dice.random() * 0.015)
            if child.running and kills < 25:
                child.signal(signal.SIGKILL)
            if died(child):
                kills += 1
                alive.append(begin())
                known = saved(results, "billing")
                assert known == sorted(set(known))
            elif not alive and kills < 2:  # on a busy machine some are done before they are shot at
                fill()
                alive.append(begin())
    assert kills >= 2
    assert saved(results, "billing") == each_once(count)


def test_two_at_once_never_both_go_on(filled: Path, results: Database, tmp_path: Path) -> None:
    # Both hold a batch from the same place in their hands before either commits.
    ready = [Flag(tmp_path / "first"), Flag(tmp_path / "second")]

    def act(me: int) -> int:
        outcome: list[str] = []

        def step(name: str) -> None:
            outcome.append(name)
            if outcome.count("polled") == 1 and name == "polled":
                ready[me].up()
                ready[1 - me].wait()

        consume(filled, results, "billing", step)
        return outcome.count("committed")

    with children() as start:
        first, second = start(lambda: act(0)), start(lambda: act(1))
        committed = first.answer() + second.answer()
    known = saved(results, "billing")
    assert known == each_once(60)
    rows: list[Any] = all_of(results, 'SELECT "partition", "offset" FROM klamm_offsets ORDER BY 1')
    assert rows == [(0, 30), (1, 30)]
    assert committed == 8  # batches of 8 out of 30, twice: whoever did them
