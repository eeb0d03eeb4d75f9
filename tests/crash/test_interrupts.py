"""An exception at any point leaves no lock held: Ctrl-C, a signal handler that raises, an exception of another thread.

Each action is interrupted at every point at which CPython may run a signal handler (tests/interrupts.py): at some of
them here, chosen at random, at all in `make soak`. Afterwards no process holds a byte that others wait for, and the
same action works. A lock that leaked shows as a byte that is held, or as a process that hangs.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import klamm
from klamm.disk import _os, locks
from klamm.log import head
from klamm.store.presence import IN_LOCK
from tests.crash.cases import memory_directory, run_cases, seed_of
from tests.interrupts import Interrupted, interrupt_at, points_of
from tests.procs import until

POINTS = 45  # of each action, in `make test`


class Scene:
    """A store with some records, and what is done to it again and again."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.store = klamm.open(self.path)
        self.store.create_topic("orders", partitions=2, exist_ok=True, settings={"segment.bytes": 4096})
        self.topics = 0

    def append(self) -> None:
        self.store.append("orders", b"x" * 100, partition=0)

    def append_many(self) -> None:
        self.store.append_many("orders", [(b"a", b"x"), (b"b", b"y")], acks=1)

    def produce(self) -> None:
        with self.store.producer() as producer:
            producer.send("orders", b"x", key=b"k")

    def consume(self) -> None:
        with self.store.consumer("orders", group="g", wait_ms=0) as consumer:
            batch = consumer.poll(max_records=1, timeout_ms=0)
            if batch:
                consumer.commit(batch)

    def transact(self) -> None:
        with self.store.transaction() as tx:
            tx.send("orders", b"x", key=b"k")

    def move(self) -> None:
        """Records and the progress of two groups in one transaction."""
        with (
            self.store.consumer("orders", group="g", wait_ms=0) as first,
            self.store.consumer("orders", group="h", member="m", wait_ms=0) as second,
            self.store.transaction() as tx,
        ):
            for consumer in (first, second):
                batch = consumer.poll(max_records=1, timeout_ms=0)
                if batch:
                    tx.send("orders", b"x", key=b"k")
                    tx.commit_offsets(batch)

    def transact_by_name(self) -> None:
        with klamm.open(self.path) as store, store.transaction("loader") as tx:
            tx.send("orders", b"x", key=b"k")

    def keep(self) -> None:
        """A store that a thread looks after."""
        with klamm.open(self.path, maintain_every_s=60) as store:
            store.append("orders", b"x")

    def create(self) -> None:
        self.topics += 1
        self.store.create_topic(f"topic-{self.topics}")

    def maintain(self) -> None:
        self.store.maintain()

    def reopen(self) -> None:
        with klamm.open(self.path) as store:
            store.append("orders", b"x")


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
]


def held_bytes(path: str) -> list[tuple[int, int]]:
    """Return the bytes of `lock` that are held, but for presence, those of members and their partitions, and the append
    locks, with the life number of their owner.
    """
    presence = [(IN_LOCK, 1)]
    held = [each for each in _held(f"{path}/lock", 0) if each not in presence]
    return held + _held(f"{path}/members", locks.group_region(0)) + head.Heads(f"{path}/heads", writable=False).owners()


def _held(path: str, first: int) -> list[tuple[int, int]]:
    fd = os.open(path, os.O_RDWR)
    try:
        return locks.held_by_others(fd, first, (1 << 62) - first)
    finally:
        os.close(fd)


def interrupted(scene: Scene, action: Callable[[Scene], None], point: int) -> bool:
    """Whether the point was reached."""
    try:
        with interrupt_at(point):
            action(scene)
    except Interrupted as error:
        where = str(error)
    else:
        return False
    # The store's own thread may hold one for a moment, for retention.
    until(lambda: is_all_free(scene.path), f"interrupted in {where}: locks are released", 10)
    action(scene)
    until(lambda: is_all_free(scene.path), f"interrupted in {where}, then not: locks are released", 10)
    return True


def is_all_free(path: str) -> bool:
    """Whether no byte is held; if one is, drop what nobody uses: a consumer that was not closed leaves then."""
    if not held_bytes(path):
        return True
    gc.collect()
    return False


def go_through(
    action: Callable[[Scene], None], directory: Path, choose: Callable[[int], list[int]], limit_s: int = 120
) -> None:
    def run(points: list[int], worker: int) -> None:
        scene = Scene(directory / f"store-{worker}")
        action(scene)
        for point in points:
            interrupted(scene, action, point)
        scene.store.close()

    count = points_of_child(action, directory)
    points = choose(count)
    run_cases([points[::2], points[1::2]], run, limit_s=limit_s)


def points_of_child(action: Callable[[Scene], None], directory: Path) -> int:
    scene = Scene(directory / "count")
    action(scene)
    count = points_of(lambda: action(scene))
    scene.store.close()
    assert count > 20
    return count


@pytest.mark.skipif(not _os.HAS_BYTE_LOCKS, reason="one process at a time")
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_an_interrupt_at_any_point_leaves_no_lock_held(action: Callable[[Scene], None], tmp_path: Path) -> None:
    dice = random.Random(seed_of())
    with memory_directory(tmp_path) as memory:
        go_through(action, memory, lambda count: sorted(dice.sample(range(1, count + 1), min(count, POINTS))))


@pytest.mark.soak
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_every_interrupt_leaves_no_lock_held(action: Callable[[Scene], None], tmp_path: Path) -> None:
    with memory_directory(tmp_path) as memory:
        go_through(action, memory, lambda count: list(range(1, count + 1)), limit_s=1200)
