"""An exception at any point leaves no lock held: Ctrl-C, a signal handler that raises, an exception of another thread.

Each action is interrupted at every point at which CPython may run a signal handler, and by signals at every step of its
native code (tests/interrupts.py); or a step fails with an error of the disk. At some of them here, chosen at random, at
all in `make soak`. Afterwards no process holds a byte that others wait for, no sync looks as if its process had died,
the same action works, and what was acknowledged is there. A lock that leaked shows as a byte that is held, or as a
process that hangs.
"""

from __future__ import annotations

import errno
import gc
import os
import random
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.disk import _os, locks
from klamm.errors import KlammError
from klamm.log import head, segment
from klamm.store.presence import IN_LOCK
from tests.crash.cases import memory_directory, run_cases, seed_of
from tests.interrupts import HOWS, Injected, interrupt_at, points_of, steps_of, struck_at
from tests.procs import until

POINTS = 45  # of each action, in `make test`; of those that few programs do, a third
STEPS = 8  # of each action, for each way to strike
FAILING = _os.ALL & ~(_os.STORE | _os.WAKE | _os.LOCK)  # steps that a disk can refuse

Strike = Callable[[], AbstractContextManager[object]]

pytestmark = pytest.mark.skipif(not _os.HAS_BYTE_LOCKS, reason="one process at a time")


class Scene:
    """A store with some records, and what is done to it again and again."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.store = klamm.open(self.path)
        self.store.topics.create("orders", partitions=2, exist_ok=True, settings={"segment.bytes": 4096})
        self.topics = self.copies = 0
        self.acknowledged = 0  # records in the topic "orders", at least

    def append(self) -> None:
        self.store.append("orders", b"x" * 100, partition=0)
        self.acknowledged += 1

    def append_many(self) -> None:
        self.store.append_many("orders", [(b"a", b"x"), (b"b", b"y")], acks=1)
        self.acknowledged += 2

    def produce(self) -> None:
        with self.store.producer() as producer:
            producer.send("orders", b"x", key=b"k")
        self.acknowledged += 1

    def consume(self) -> None:
        with self.store.consumer("orders", group="g", wait=0) as consumer:
            batch = consumer.poll(max_records=1, timeout=0)
            if batch:
                consumer.commit(batch)

    def transact(self) -> None:
        with self.store.transaction() as tx:
            tx.send("orders", b"x", key=b"k")
        self.acknowledged += 1

    def move(self) -> None:
        """Records and the progress of two groups in one transaction."""
        with (
            self.store.consumer("orders", group="g", wait=0) as first,
            self.store.consumer("orders", group="h", member="m", wait=0) as second,
            self.store.transaction(consumers=(first, second)) as tx,
        ):
            for consumer in (first, second):
                batch = consumer.poll(max_records=1, timeout=0)
                if batch:
                    tx.send("orders", b"x", key=b"k")
                    tx.commit_offsets(batch)

    def transact_by_name(self) -> None:
        with klamm.open(self.path) as store, store.transaction("loader") as tx:
            tx.send("orders", b"x", key=b"k")

    def keep(self) -> None:
        """A store that a thread looks after."""
        with klamm.open(self.path, maintain_every=60) as store:
            store.append("orders", b"x")

    def create(self) -> None:
        self.topics += 1
        self.store.topics.create(f"topic-{self.topics}")

    def maintain(self) -> None:
        self.store.maintain()

    def work(self) -> None:
        """Records handled by threads."""
        self.append()
        with self.store.consumer("orders", group="w", wait=0) as consumer:
            consumer.run(lambda record: None, workers=2)

    def compact(self) -> None:
        settings: dict[str, str | int] = {"cleanup.policy": "compact", "segment.bytes": 4096}
        self.store.topics.create("keyed", exist_ok=True, settings=settings)
        self.store.append_many("keyed", [(b"k", b"%d" % number) for number in range(5)], acks=1)
        self.store["keyed"].compact(force=True)

    def repair(self) -> None:
        """Bytes behind the end of a log are cut off; the process must be alone for that, and is not afterwards."""
        self.store.topics.create("damaged", exist_ok=True)
        self.store.append("damaged", b"x", acks=1)
        partition = self.store._acquired().topic("damaged").partition(0)
        now = partition.snapshot()
        with open(segment.path_of(partition.directory, now.active_base), "r+b") as file:
            file.seek(now.position)
            file.write(b"stray")
        assert self.store.check(repair=True).ok

    def back_up(self) -> None:
        self.copies += 1
        self.store.backup(f"{self.path}-{self.copies}")

    def redrive(self) -> None:
        def refuse(record: klamm.Record) -> None:
            raise KeyError

        self.store.topics.create("refused", exist_ok=True)
        self.store.append("refused", b"x", acks=1)
        with self.store.consumer("refused", group="g", wait=0, auto_offset_reset="earliest") as consumer:
            consumer.run(refuse, on_error="dead-letter", retries=0)
        self.store.redrive("refused.dlq", "orders")

    def save(self) -> None:
        """Progress in a database of the user's."""
        with closing(sqlite3.connect(f"{self.path}-results", isolation_level=None)) as connection:
            offsets = klamm.SqlOffsets(connection, "billing")
            with self.store.consumer("orders", offsets=offsets, wait=0) as consumer:
                batch = consumer.poll(max_records=1, timeout=0)
                if batch:
                    connection.execute("BEGIN IMMEDIATE")
                    consumer.commit(batch)
                    connection.execute("COMMIT")

    def pipe(self) -> None:
        self.store.topics.create("piped", exist_ok=True)
        self.append()
        with self.store.pipe("orders", lambda record: record.value, to="piped") as pipe:
            pipe.run(wait=0)

    def look_up(self) -> None:
        self.store.append("orders", b"x", key=b"k", acks=1)
        with self.store.table("orders") as table:
            assert table[b"k"] == b"x"

    def _has_acknowledged(self) -> bool:
        gc.collect()
        self.store.maintain()
        with self.store.consumer("orders", wait=0, form="values") as consumer:
            return len(list(consumer)) >= self.acknowledged

    def logs(self) -> list[head.Log]:
        return [partition.log for partition in self.store._acquired().topic("orders").partitions()]

    def close(self) -> None:
        """After all of it: what was acknowledged is there, once transactions that were interrupted are resolved."""
        until(self._has_acknowledged, "what was acknowledged can be read", 20)
        assert self.store.check().ok
        self.store.close()


ACTIONS: list[Callable[[Scene], None]] = [
    Scene.append,
    Scene.append_many,
    Scene.produce,
    Scene.consume,
    Scene.transact,
    Scene.transact_by_name,
    Scene.move,
    Scene.keep,
    Scene.create,
    Scene.maintain,
    Scene.work,
]
UPKEEP: list[Callable[[Scene], None]] = [
    Scene.compact,
    Scene.repair,
    Scene.back_up,
    Scene.redrive,
    Scene.save,
    Scene.pipe,
    Scene.look_up,
]


def held_bytes(path: str) -> list[tuple[int, int]]:
    """Return the bytes of `lock` that are held, but for presence that is shared, those of members and their partitions,
    and the append locks, with the life number of their owner.
    """
    probe = locks.LockFile(f"{path}/lock")
    presence = [(IN_LOCK, 1)] if probe.try_hold(IN_LOCK, shared=True) else []
    probe.close()
    held = [each for each in _held(f"{path}/lock", 0) if each not in presence]
    return (
        held + _held(f"{path}/members", locks.group_lock_base(0)) + head.Heads(f"{path}/heads", writable=False).owners()
    )


def _held(path: str, first: int) -> list[tuple[int, int]]:
    fd = os.open(path, os.O_RDWR)
    try:
        return locks.held_by_others(fd, first, (1 << 62) - first)
    finally:
        os.close(fd)


def interrupted(scene: Scene, action: Callable[[Scene], None], strike: AbstractContextManager[object]) -> bool:
    """Whether the action was hit by what `strike` does to it; if so, it works the next time."""
    try:
        with strike:
            action(scene)
    except (KeyboardInterrupt, Injected, KlammError, OSError) as error:
        where = "".join(traceback.format_exception(error))
    else:
        return False
    finally:
        _os.trap(0)
    # The store's own thread may hold one for a moment, for retention.
    until(lambda: is_all_free(scene.path), f"{where}\nlocks are released")
    until(lambda: not any(log.flushing for log in scene.logs()), f"{where}\nno sync looks abandoned")
    action(scene)
    until(lambda: is_all_free(scene.path), f"{where}\nthen not interrupted: locks are released")
    return True


@contextmanager
def failing_at(step: int) -> Iterator[None]:
    """Let the disk fail at a step."""
    _os.trap(step, kinds=FAILING, error=errno.EIO)
    yield
    _os.trap(0)


def is_all_free(path: str) -> bool:
    """Whether no byte is held; if one is, drop what nobody uses: a consumer that was not closed leaves then."""
    if not held_bytes(path):
        return True
    gc.collect()
    return False


def go_through(
    action: Callable[[Scene], None],
    directory: Path,
    strikes: Callable[[Scene], list[Strike]],
    limit_s: int = 60,
) -> None:
    """Strike the action in each of these ways, in two children that each have a store."""

    def run(number: int, worker: int) -> None:
        scene = Scene(directory / f"store-{worker}")
        action(scene)
        hits = sum(interrupted(scene, action, strike()) for strike in strikes(scene)[number::2])
        assert hits, "nothing was interrupted"
        scene.close()

    run_cases([0, 1], run, limit_s=limit_s)


def sample(dice: random.Random, count: int, most: int | None) -> list[int]:
    return list(range(1, count + 1)) if most is None else sorted(dice.sample(range(1, count + 1), min(count, most)))


def at_points(action: Callable[[Scene], None], seed: int, most: int | None) -> Callable[[Scene], list[Strike]]:
    def strikes(scene: Scene) -> list[Strike]:
        count = points_of(lambda: action(scene))
        assert count > 20
        return [partial(interrupt_at, point) for point in sample(random.Random(seed), count, most)]

    return strikes


def at_steps(action: Callable[[Scene], None], seed: int, most: int | None) -> Callable[[Scene], list[Strike]]:
    def strikes(scene: Scene) -> list[Strike]:
        count, failing = (steps_of(lambda: action(scene), kinds) for kinds in (_os.ALL, FAILING))
        dice = random.Random(seed)
        found: list[Strike] = [partial(struck_at, step, how) for how in HOWS for step in sample(dice, count, most)]
        return found + [partial(failing_at, step) for step in sample(dice, failing, most)]

    return strikes


@pytest.mark.parametrize("action", [*ACTIONS, *UPKEEP], ids=lambda action: action.__name__)
def test_an_interrupt_at_any_point_leaves_no_lock_held(action: Callable[[Scene], None], tmp_path: Path) -> None:
    with memory_directory(tmp_path) as memory:
        go_through(action, memory, at_points(action, seed_of(), POINTS if action in ACTIONS else POINTS // 3))


@pytest.mark.parametrize("action", [*ACTIONS, *UPKEEP], ids=lambda action: action.__name__)
def test_an_exception_at_any_step_leaves_no_lock_held(action: Callable[[Scene], None], tmp_path: Path) -> None:
    with memory_directory(tmp_path) as memory:
        go_through(action, memory, at_steps(action, seed_of(), STEPS if action in ACTIONS else STEPS // 3))


@pytest.mark.soak
@pytest.mark.parametrize("at", [at_points, at_steps], ids=["points", "steps"])
@pytest.mark.parametrize("action", [*ACTIONS, *UPKEEP], ids=lambda action: action.__name__)
def test_every_interrupt_leaves_no_lock_held(action: Callable[[Scene], None], at: Any, tmp_path: Path) -> None:
    with memory_directory(tmp_path) as memory:
        go_through(action, memory, at(action, 0, None), limit_s=1200)
