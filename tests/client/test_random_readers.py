"""Threads close, commit, seek, pause and stop consumers at random moments, beside those that read: nothing strange is
read, nothing hangs, nothing stays open.

Every record says where it is, so a foreign one shows. In each partition the next record is the one after the last,
unless there is a reason: a `seek` of one of the disturbing threads, or the partition was assigned again, which starts
at the committed offset. What is committed was handed out, or was the target of a seek. Files that the program itself
opens meanwhile stay its own, and after all no descriptor and no thread is left.

Three seconds here; in `make soak` for KLAMM_SOAK_SECONDS. KLAMM_SEED repeats the dice, though not the threads.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm import aio
from tests.crash.cases import seed_of
from tests.descriptors import descriptors, opened_since
from tests.procs import PATIENCE, until

TOPICS = ("t", "u")
PARTITIONS = 3
END = 200_000  # records of a partition

Place = tuple[str, int]


class Attack:
    """Consumers in threads, each with two others that disturb it."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.store = klamm.open(path)
        self.dice = random.Random(seed)
        self.over = threading.Event()
        self.strange: list[object] = []
        self.reads = 0
        self.given: dict[Place, set[int]] = defaultdict(set)
        """Positions after records that were handed out."""
        self.targets: dict[Place, set[int]] = defaultdict(set)
        """Of all seeks."""
        self.committed: set[tuple[Place, int]] = set()
        for topic in TOPICS:
            self.store.topics.create(topic, PARTITIONS, settings={"segment.bytes": 1 << 14})
        self.ends = dict.fromkeys([(topic, number) for topic in TOPICS for number in range(PARTITIONS)], 0)

    def append(self) -> None:
        """Append records that say where they are."""
        while not self.over.is_set():
            for (topic, number), end in self.ends.items():
                if end < END:
                    values = [f"{topic}/{number}/{n}".encode() for n in range(end, end + 200)]
                    self.store.append_many(topic, values, partition=number, acks=1)
                    self.ends[topic, number] = end + 200
            time.sleep(0.001)

    def hold_files(self, directory: Path) -> None:
        """Open files, and see that they stay what they are: a descriptor that another closes too often is reused."""
        directory.mkdir()
        number = 0
        while not self.over.is_set():
            number += 1
            files = []
            for n in range(4):
                name = directory / str(n)
                name.write_text(f"{number} {n}")
                files.append((os.open(name, os.O_RDONLY), f"{number} {n}".encode()))
            time.sleep(0.0005)
            for descriptor, expected in files:
                try:
                    found = os.pread(descriptor, 100, 0)
                    os.close(descriptor)
                except OSError as error:
                    found = str(error).encode()
                if found != expected:
                    self.strange.append(f"a file of the program: {found!r}, expected {expected!r}")

    def read(self, topic: str, dice: random.Random) -> None:
        while not self.over.is_set():
            life = Life(self, topic, dice.choice([None, "g"]))
            with life.make(self.store) as consumer:
                others = [self.start(lambda life=life, c=consumer: life.disturb(c, dice)) for _ in range(2)]  # type: ignore[misc]
                try:
                    if dice.random() < 0.5:
                        for record in consumer:
                            life.look(record)
                    else:
                        while batch := consumer.poll(dice.choice([1, 50, 1000])):
                            for record in batch:
                                life.look(record)
                except klamm.Closed:
                    pass
                for other in others:
                    join(other)

    def read_in_loop(self, topic: str, dice: random.Random) -> None:
        """Like `read`, for asyncio: tasks that read are cancelled."""

        async def read_all(life: Life, consumer: aio.Consumer) -> None:
            with suppress(klamm.Closed):
                if dice.random() < 0.5:
                    async for record in consumer:
                        life.look(record)
                else:
                    while batch := await consumer.poll(dice.choice([1, 50, 1000])):
                        for record in batch:
                            life.look(record)

        async def main() -> None:
            async with aio.open(self.path, threads=2) as store:
                while not self.over.is_set():
                    life = Life(self, topic, dice.choice([None, "g"]))
                    async with store.consumer(topic, **life.options()) as consumer:
                        life.consumer = consumer._sync
                        other = self.start(lambda life=life: life.disturb(life.consumer, dice))  # type: ignore[misc]
                        for _ in range(dice.randint(1, 5)):
                            reading = asyncio.create_task(read_all(life, consumer))
                            await asyncio.sleep(dice.random() * 0.01)
                            reading.cancel()
                            with suppress(asyncio.CancelledError):
                                await reading
                        while other.is_alive():
                            await asyncio.sleep(0.001)

        asyncio.run(main())

    def start(self, action: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=self.guarded, args=(action,), daemon=True)
        thread.start()
        return thread

    def guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:
            self.strange.append(error)
            self.over.set()

    def run(self, seconds: float) -> None:
        threads = [self.start(self.append), self.start(lambda: self.hold_files(self.path.parent / "files"))]
        for topic in TOPICS:
            for read in (self.read, self.read, self.read_in_loop):
                dice = random.Random(self.dice.random())
                threads.append(self.start(lambda read=read, topic=topic, dice=dice: read(topic, dice)))  # type: ignore[misc]
        self.over.wait(seconds)
        self.over.set()
        for thread in threads:
            join(thread)
        self.store.close()
        for place, offset in self.committed:
            if offset not in self.given[place] | self.targets[place]:
                self.strange.append(f"{place}: offset {offset} was committed, and never handed out")


class Life:
    """One consumer, from its first record to its close: which record comes next in each partition."""

    def __init__(self, attack: Attack, topic: str, group: str | None) -> None:
        self.attack = attack
        self.topic = topic
        self.group = group
        self.consumer: Any = None
        self.next: dict[Place, int] = {} if group else {(topic, number): 0 for number in range(PARTITIONS)}
        self.sought: dict[Place, Counter[int]] = defaultdict(Counter)
        """Targets of seeks that have not been seen to take effect."""

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"wait": 0.02, "max_bytes": 1 << 13}
        if self.group:
            # It has to wait for the others, who are slow to notice: they read as fast as they can.
            options |= {"group": self.group, "on_assigned": self.assigned, "wait": 0.5}
        return options

    def make(self, store: klamm.Store) -> klamm.Consumer:
        self.consumer = store.consumer(self.topic, **self.options())
        assert isinstance(self.consumer, klamm.Consumer)
        return self.consumer

    def assigned(self, places: Iterable[Place]) -> None:
        """Others cannot commit from now on: this is where it starts."""
        for place in places:
            committed = self.consumer.committed(*place)
            self.next[place] = 0 if committed is None else committed.offset
            if committed is not None:
                self.attack.committed.add((place, committed.offset))

    def look(self, record: klamm.Record) -> None:
        attack, place = self.attack, (record.topic, record.partition)
        attack.reads += 1
        attack.given[place].add(record.offset + 1)
        expected = f"{self.topic}/{record.partition}/{record.offset}".encode()
        if record.topic != self.topic or record.value != expected:
            attack.strange.append((record, expected))
        if record.offset != self.next[place]:
            if not self.sought[place][record.offset]:
                attack.strange.append(f"{place}: offset {record.offset}, expected {self.next[place]}, without a reason")
            self.sought[place][record.offset] -= 1
        self.next[place] = record.offset + 1

    def disturb(self, consumer: klamm.Consumer, dice: random.Random) -> None:
        deadline_s = time.monotonic() + dice.choice([0, 0.5])
        while not self.next and time.monotonic() < deadline_s:  # no partition is assigned: little can be disturbed
            time.sleep(0.001)
        for _ in range(dice.randint(1, 8)):
            time.sleep(dice.random() * 0.005)
            with suppress(klamm.GroupError, klamm.StoreError, klamm.UnknownTopic):  # no group, closed, not assigned
                self.act(consumer, dice)

    def act(self, consumer: klamm.Consumer, dice: random.Random) -> None:
        place = dice.choice(consumer.assignment() or [None])
        match dice.choice(["commit", "commit_async", "seek", "pause", "resume", "positions", "stop", "close"]):
            case "seek" if place is not None:
                target = dice.randint(0, min(200, self.attack.ends[place]))
                self.attack.targets[place].add(target)
                self.sought[place][target] += 1
                consumer.seek(*place, target)
            case "pause":
                consumer.pause(*(place or ()))
            case "resume":
                consumer.resume()
            case "positions":
                consumer.positions()
            case "commit":
                consumer.commit()
            case "commit_async":
                with suppress(klamm.NotOwner):
                    consumer.commit_async().result(PATIENCE)
            case "stop":
                consumer.stop()
            case "close":
                consumer.close()


def join(thread: threading.Thread) -> None:
    thread.join(PATIENCE)
    assert not thread.is_alive(), "a thread hangs"


def attack_for(seconds: float, path: Path) -> None:
    before, threads = descriptors(), threads_of_system()
    attack = Attack(path, seed_of())
    attack.run(seconds)
    assert attack.strange == [] and attack.reads > 0 and attack.committed
    until(lambda: not opened_since(before), "no descriptor is left")
    until(lambda: threads_of_system() <= threads, "no thread is left")


def threads_of_system() -> int:
    return len(os.listdir("/proc/self/task"))


def test_threads_disturb_consumers_for_a_moment(path: Path) -> None:
    attack_for(3, path)


@pytest.mark.soak
def test_threads_disturb_consumers_for_minutes(path: Path) -> None:
    attack_for(float(os.environ.get("KLAMM_SOAK_SECONDS", "300")), path)
