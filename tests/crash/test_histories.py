"""Many processes on one store, killed and stopped at random: their histories show no anomaly. See checker.py.

A short run here; in `make soak` round after round, for KLAMM_SOAK_SECONDS. KLAMM_SEED repeats the dice, though not the
moments. Roles that do it wrong show that the checker would notice.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path

import pytest

import klamm
from tests.crash.cases import memory_directory, seed_of
from tests.crash.checker import COMMITTED, UNCOMMITTED, Anomaly, check
from tests.crash.jepsen_workload import (
    IN,
    OUT,
    TRANSFORMERS,
    WORKERS,
    Life,
    dirty_reader,
    joined,
    plain,
    process,
    reader,
    retrying,
    store_progress,
    transactional,
    transformer,
    worker,
)
from tests.crash.nemesis import Nemesis, Role, Roles
from tests.crash.rounds import soak

ROUND_SECONDS = 40.0

WRITERS: Roles = [(plain, 1), (retrying, 1), (transactional, 3)]
READERS: Roles = [(reader, 1), (dirty_reader, 1), (worker, 3), (transformer, 3)]


def judged(nemesis: Nemesis, seconds: float) -> list[Anomaly]:
    anomalies = check(nemesis.run(seconds))
    for anomaly in anomalies[:20]:
        print(anomaly)
    return anomalies


def test_tens_of_kills_leave_no_anomaly(tmp_path: Path) -> None:
    with memory_directory(tmp_path) as memory:
        nemesis = Nemesis(tmp_path, memory / "store", seed_of(), WRITERS, READERS, least_kills=21)
        assert judged(nemesis, 5) == []
        print(nemesis.kills, "kills")
        assert nemesis.kills > 20


@pytest.mark.soak
def test_thousands_of_kills_leave_no_anomaly(tmp_path: Path) -> None:
    soak(
        tmp_path,
        lambda directory, store, seed: Nemesis(directory, store, seed, WRITERS, READERS),
        lambda nemesis: judged(nemesis, ROUND_SECONDS),
    )


# ---- roles that do it wrong


def liar(life: Life) -> None:
    """Says that it reads committed, and does not."""
    life.record("started", role="reader", isolation=COMMITTED)
    with life.store.consumer(IN, isolation=UNCOMMITTED) as consumer:
        while life.reads_on():
            life.poll(consumer)


def jumper(life: Life) -> None:
    """Goes back, and ahead, without a word."""
    life.record("started", role="reader", isolation=COMMITTED)
    with life.store.consumer(IN) as consumer:
        while life.reads_on():
            batch = life.poll(consumer)
            if batch:
                elsewhere = (
                    batch.begin if life.dice.random() < 0.5 else min(batch.end + 3, life.end_of(batch.partition))
                )
                consumer.seek(batch.topic, batch.partition, elsewhere)


def boaster(life: Life) -> None:
    """Says that it has sent what it has not; and two records for one, of one place."""
    life.record("started", role="producer")
    while life.writes_on():
        sent, unsent = life.names(2)
        life.record("sending", topic=IN, ids=[sent, unsent], tx=None)
        place = [0, life.store.append(IN, sent.encode(), partition=0, acks=1)]
        life.record("sent", topic=IN, ids=[sent, unsent], places=[place, place])


def forgetful(life: Life) -> None:
    """Sends again, without the numbers by which that is noticed."""
    retrying(life, forgetful=True)


def halves(life: Life) -> None:
    """Its transactions are two appends, and what it aborts is there all the same."""
    life.record("started", role="producer")
    for number in itertools.count():
        if not life.writes_on():
            return
        names, tx = life.names(2), f"{life.name}:{number}"
        life.record("sending", topic=IN, ids=names, tx=tx)
        life.store.append(IN, names[0].encode(), partition=0, acks=1)
        life.record("committing", tx=tx)
        if life.dice.random() < 0.5:
            life.store.append(IN, names[1].encode(), partition=1, acks=1)


def hasty(life: Life) -> None:
    """Commits what it has not processed."""
    with joined(life, WORKERS, None) as consumer:
        while life.reads_on():
            batch = life.poll(consumer)
            if batch:
                store_progress(life, [batch], lambda batch=batch: consumer.commit(batch))  # type: ignore[misc]
                process(life, batch)


def loner(life: Life) -> None:
    """Says that it is a member, and that it has committed, and reads everything."""
    life.record("started", role="member", group="loners", topic=IN, output=None, patience_ms=10_000)
    with life.store.consumer(IN) as consumer:
        life.record("assigned", places=[[IN, n] for n in range(life.partitions)])
        while life.reads_on():
            batch = life.poll(consumer)
            if batch:
                where = {"topic": batch.topic, "partition": batch.partition}
                process(life, batch)
                for kind in "storing", "stored":
                    life.record(kind, **where, group="loners", end=batch.end, tx=None)


def copyist(life: Life) -> None:
    """Transforms, and commits its progress when there is nothing else to do."""
    with joined(life, TRANSFORMERS, OUT) as consumer:
        for number in itertools.count():
            if not life.reads_on():
                return
            batch = life.poll(consumer)
            if not batch:
                with suppress(klamm.NotOwner):
                    consumer.commit()
                continue
            names, tx = life.names(len(batch)), f"{life.name}:{number}"
            life.record("sending", topic=OUT, ids=names, tx=tx)
            with life.store.transaction() as transaction:
                for name, record in zip(names, batch, strict=True):
                    source = f"{IN}/{record.partition}/{record.offset}/{record.value.decode()}"
                    transaction.send(OUT, f"{name}<{source}".encode())
                life.record("committing", tx=tx)
            life.record("committed", tx=tx)


WRONG_WRITERS: list[tuple[Role, int, set[str]]] = [
    (boaster, 1, {"lost", "two values"}),
    (forgetful, 1, {"duplicated"}),
    (halves, 1, {"torn"}),
]
WRONG_READERS: list[tuple[Role, int, set[str]]] = [
    (liar, 1, {"aborted read", "early read"}),
    (jumper, 1, {"back", "skipped"}),
    (hasty, 2, {"unprocessed"}),
    (loner, 2, {"two owners", "lost progress"}),
    (copyist, 2, {"not once"}),
]


def test_roles_that_do_it_wrong_are_found_out(tmp_path: Path) -> None:
    """Some need to be killed at the right moment, so they may need a few runs."""
    writers = [(transactional, 1), *((role, count) for role, count, _ in WRONG_WRITERS)]
    readers = [(reader, 1), *((role, count) for role, count, _ in WRONG_READERS)]
    seed = seed_of()
    missing = {(role.__name__, kind) for role, _, kinds in WRONG_WRITERS + WRONG_READERS for kind in kinds}
    for number in range(20):
        directory = tmp_path / f"run-{number}"
        directory.mkdir()
        with memory_directory(directory) as memory:
            nemesis = Nemesis(directory, memory / "store", seed + number, writers, readers)
            found = {anomaly.kind for anomaly in check(nemesis.run(3 + number / 4))}
        missing = {each for each in missing if each[1] not in found}
        if not missing:
            break
    assert missing == set()
