"""Threads close, commit, seek, pause and stop consumers at random moments: nothing strange is read, nothing hangs.

Two seconds here; in `make soak` for KLAMM_SOAK_SECONDS. KLAMM_SEED repeats the dice, though not the threads.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import klamm
from tests.crash.cases import seed_of
from tests.procs import PATIENCE

TOPICS = ("t", "u")
PARTITIONS = 3


class Attack:
    """Consumers in threads, each with two others that disturb it."""

    def __init__(self, path: Path, seed: int) -> None:
        self.store = klamm.open(path)
        self.dice = random.Random(seed)
        self.over = threading.Event()
        self.strange: list[object] = []
        self.reads = 0
        for topic in TOPICS:
            self.store.topics.create(topic, PARTITIONS, settings={"segment.bytes": 1 << 14})

    def append(self) -> None:
        """Values say where they are, so that a foreign record, or one in the wrong place, shows."""
        ends = dict.fromkeys([(topic, number) for topic in TOPICS for number in range(PARTITIONS)], 0)
        while not self.over.is_set():
            for (topic, number), end in ends.items():
                if end < 200_000:
                    values = [f"{topic}/{number}/{n}".encode() for n in range(end, end + 200)]
                    self.store.append_many(topic, values, partition=number, acks=1)
                    ends[topic, number] = end + 200
            time.sleep(0.001)

    def read(self, topic: str, dice: random.Random) -> None:
        while not self.over.is_set():
            group = dice.choice([None, "g"])
            consumer = self.store.consumer(topic, group=group, wait=0.02, max_bytes=1 << 13)
            others = [
                threading.Thread(target=self.guarded, args=(lambda c=consumer: self.disturb(c, dice),), daemon=True)
                for _ in range(2)
            ]
            for other in others:
                other.start()
            try:
                if dice.random() < 0.5:
                    for record in consumer:
                        self.look(topic, record)
                else:
                    while batch := consumer.poll(dice.choice([1, 50, 1000])):
                        for record in batch:
                            self.look(topic, record)
            except klamm.StoreError as error:
                if "closed" not in str(error):
                    raise
            for other in others:
                other.join(PATIENCE)
                assert not other.is_alive(), "a thread hangs"
            consumer.close()

    def look(self, topic: str, record: klamm.Record) -> None:
        self.reads += 1
        expected = f"{topic}/{record.partition}/{record.offset}".encode()
        if record.topic != topic or record.value != expected:
            self.strange.append((record, expected))

    def disturb(self, consumer: klamm.Consumer, dice: random.Random) -> None:
        for _ in range(dice.randint(1, 8)):
            time.sleep(dice.random() * 0.005)
            place = dice.choice(consumer.assignment() or [None])
            try:
                match dice.choice(["commit", "seek", "pause", "resume", "positions", "stop", "close"]):
                    case "seek" if place is not None:
                        consumer.seek(*place, dice.randint(0, 200))
                    case "pause":
                        consumer.pause()
                    case "resume":
                        consumer.resume()
                    case "positions":
                        consumer.positions()
                    case "commit":
                        consumer.commit()
                    case "stop":
                        consumer.stop()
                    case "close":
                        consumer.close()
            except (klamm.GroupError, klamm.StoreError, klamm.UnknownTopic):
                pass  # without a group, closed, or not assigned any more
            except klamm.NotOwner:
                pass

    def guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:
            self.strange.append(error)

    def run(self, seconds: float) -> None:
        actions: list[Callable[[], object]] = [self.append]
        for topic in TOPICS:
            for _ in range(2):
                dice = random.Random(self.dice.random())
                actions.append(lambda topic=topic, dice=dice: self.read(topic, dice))  # type: ignore[misc]
        threads = [threading.Thread(target=self.guarded, args=(action,), daemon=True) for action in actions]
        for thread in threads:
            thread.start()
        self.over.wait(seconds)
        self.over.set()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a thread hangs"
        self.store.close()


def test_threads_disturb_consumers_for_a_moment(path: Path) -> None:
    attack = Attack(path, seed_of())
    attack.run(2)
    assert attack.strange == [] and attack.reads > 0


@pytest.mark.soak
def test_threads_disturb_consumers_for_minutes(path: Path) -> None:
    attack = Attack(path, seed_of())
    attack.run(float(os.environ.get("KLAMM_SOAK_SECONDS", "300")))
    assert attack.strange == [] and attack.reads > 0
