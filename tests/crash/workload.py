"""A life of a store, up to its end: the program that test_power_cut.py records. Run as a script under powercut.c.

    workload.py ROOT LIFE SEED

It notes in the trace what it is about to do and what it was told, since that is what must hold after a power cut:

    opening · opened (store id)                creating, created (topic, partitions, settings) · altering, altered
    dropping, dropped (topic)
    found (log, start, end)                    what a log held when it was first opened in this life
    appending (log, values, producer)          appended (log, base) · acked (log, end_offset): on disk
    stored (log, position, epoch)              a consumer has read up to there, and keeps that somewhere safe
    deleting (log, offset)                     start (log, start): where it starts now
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
from collections.abc import Callable

import klamm
from klamm.batch import RECORDS, Builder, decode
from klamm.errors import OffsetOutOfRange
from klamm.log.partition import Partition

STORE = "deep/store"  # below the root
PRODUCER = 7
SMALL = {"segment.bytes": "1500", "index.interval.bytes": "200"}
TOPICS = {
    "orders": (2, SMALL),
    "events": (1, SMALL | {"retention.bytes": "3000"}),
    "ids": (1, SMALL),
}


def note(**facts: object) -> None:
    ctypes.CDLL(None).powercut_note(json.dumps(facts).encode())


def sealed(values: list[str], *, epoch: int = -1, sequence: int = -1, time_ms: int = -1) -> bytearray:
    """A batch; of the idempotent producer if it has a sequence number. Its time is now, unless it is told."""
    builder = Builder(1 << 20)
    builder.extend_values([value.encode() for value in values], 0, time_ms)
    return bytearray(
        builder.seal(producer_id=PRODUCER if sequence >= 0 else -1, producer_epoch=epoch, base_sequence=sequence)
    )


def log_of(store: klamm.Store, name: str) -> Partition:
    """The log behind topic/partition: what tests of the log itself look at."""
    topic, _, number = name.partition("/")
    return store._acquired().topic(topic).partition(int(number))


class Life:
    def __init__(self, root: str, life: int, seed: int) -> None:
        self.path = f"{root}/{STORE}"
        self.life = life
        self.dice = random.Random(seed)
        self.count = 0
        self.sequence = 0
        self.readers: dict[str, tuple[int, int]] = {}

    def run(self) -> None:
        self.open()
        for name in self.store.topics:
            for number in range(len(self.store.topics.describe(name).partitions)):
                ends = self.log(f"{name}/{number}").ends()
                note(found=f"{name}/{number}", start=ends.start, end=ends.end)
        for name, (partitions, settings) in {
            **TOPICS,
            f"late{self.life}": (1, {}),
            f"brief{self.life}": (1, {}),
        }.items():
            if name not in self.store.topics:
                self.create(name, partitions, settings)
        acts: list[Callable[[], None]] = [
            *[lambda: self.append("orders/0", sync=False)] * 6,
            *[lambda: self.append("orders/0", sync=True)] * 3,
            *[lambda: self.append("orders/1", sync=False)] * 3,
            *[lambda: self.append("orders/1", sync=True)],
            *[lambda: self.append("events/0", sync=True)] * 3,
            *[lambda: self.append("events/0", sync=False)] * 3,
            *[lambda: self.append(f"late{self.life}/0", sync=False)] * 2,
            self.drop,
            *[self.produce] * 6,
            *[lambda: self.consume("orders/0")] * 3,
            *[lambda: self.consume("orders/1"), lambda: self.consume("ids/0"), lambda: self.consume("events/0")],
            lambda: self.consume(f"late{self.life}/0"),
            lambda: self.latest("orders/1"),
            lambda: self.delete("orders/0"),
            lambda: self.log("orders/0").checkpoint(),
            self.expire,
            self.alter,
        ]
        self.dice.shuffle(acts)
        acts.insert(len(acts) * 2 // 3, self.reopen)
        for act in acts:
            act()
        self.consume("orders/0")
        self.close()

    def open(self) -> None:
        note(opening=STORE)
        self.store = klamm.open(self.path)
        note(opened=self.store.store_id)

    def close(self) -> None:
        self.store.close()

    def reopen(self) -> None:
        self.close()
        self.open()

    def log(self, name: str) -> Partition:
        return log_of(self.store, name)

    def create(self, name: str, partitions: int, settings: dict[str, str]) -> None:
        note(creating=name, partitions=partitions, settings=settings)
        self.store.topics.create(name, partitions, settings)
        note(created=name)

    def drop(self) -> None:
        name = f"brief{self.life}"
        self.append(f"{name}/0", sync=True)
        note(dropping=name)
        self.store.topics.delete(name)
        note(dropped=name)

    def alter(self) -> None:
        changes = {"retention.ms": str(10**9 + self.life)}
        note(altering="orders", settings=SMALL | changes)
        self.store.topics.alter("orders", changes)
        note(altered="orders")

    def values(self, name: str) -> list[str]:
        values = []
        for _ in range(self.dice.choice([1, 1, 2, 5])):
            self.count += 1
            values.append(f"{name} {self.life}.{self.count} " + "." * self.dice.choice([5, 40, 40, 700]))
        return values

    def append(self, name: str, *, sync: bool) -> None:
        values = self.values(name)
        batch = sealed(values)
        note(appending=name, values=values, size=len(batch))
        self._append(name, batch, len(values), sync)

    def produce(self) -> None:
        """The idempotent producer; a new life is a new epoch."""
        values = self.values("ids/0")
        batch = sealed(values, epoch=self.life, sequence=self.sequence)
        note(appending="ids/0", values=values, size=len(batch), epoch=self.life, sequence=self.sequence)
        self._append("ids/0", batch, len(values), self.dice.random() < 0.5)
        self.sequence += len(values)

    def _append(self, name: str, batch: bytearray, count: int, sync: bool) -> None:
        log = self.log(name)
        base = log.append(batch)
        note(appended=name, base=base)
        if sync:
            log.sync(base + count)
            note(acked=name, end_offset=base + count)

    def consume(self, name: str) -> None:
        """Read what is new, synced or not, and keep how far; the epoch is that of the last record read."""
        log = self.log(name)
        position, epoch = self.readers.get(name, (0, -1))
        while True:
            position = max(position, log.ends().start)
            try:
                with log.reader(position) as reader:
                    while data := reader.read():
                        for record in decode(data, form=RECORDS, from_offset=position):
                            position, epoch = record.offset + 1, record.leader_epoch
                break
            except OffsetOutOfRange:
                if position >= log.ends().start:  # else the store's own retention took the segment in the meantime
                    raise
        if epoch >= 0:
            self.readers[name] = position, epoch
            note(stored=name, position=position, epoch=epoch)

    def latest(self, name: str) -> None:
        """A consumer that has read nothing and waits at the end."""
        ends = self.log(name).ends()
        note(stored=name, position=ends.end, epoch=ends.leader_epoch)

    def delete(self, name: str) -> None:
        ends = self.log(name).ends()
        offset = self.dice.randint(ends.start, ends.end)
        note(deleting=name, offset=offset)
        note(start=name, offset=self.log(name).cleanup.delete_before(offset))

    def expire(self) -> None:
        self.log("events/0").cleanup.expire()
        note(start="events/0", offset=self.log("events/0").ends().start)


if __name__ == "__main__":
    Life(os.path.abspath(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])).run()
