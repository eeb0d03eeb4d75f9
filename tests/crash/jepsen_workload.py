"""Processes that write and read a store while a nemesis kills and stops them; each writes down what it saw.

    plain-0-3.history          the fourth life of the first plain producer

A *slot* is a job that somebody always has: when its process dies, a new life of it is started. Roles are functions of a
Life (roles are here, the nemesis is in nemesis.py). They run until they are told to end, or until SIGKILL: from the
nemesis, at any moment, or at a step of their own that was chosen by dice. Whatever else ends them is a failure.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import klamm
from klamm.batch import Builder
from tests.crash.checker import COMMITTED, UNCOMMITTED
from tests.crash.client_errors import Action, Error, describe, rule_for
from tests.crash.history import ENDING, Event, Place, Recorder, now, read
from tests.crash.workload import log_of
from tests.procs import Flag

IN, OUT = "in", "out"
WORKERS, TRANSFORMERS = "workers", "transformers"  # groups
ACKS: tuple[Literal[1], Literal["all"]] = 1, "all"
NAP_S = 0.01  # the longest pause between two acts


class Life:
    """What a role is given: the store, its history, dice, and whether it is to go on."""

    def __init__(self, directory: Path, store: str, slot: str, life: int, seed: int, patience_ms: int) -> None:
        self.directory = directory
        self.patience_ms = patience_ms
        self.slot = slot
        self.role = slot.rpartition("-")[0]
        self.life = life
        self.name = f"{slot}-{life}"
        self.dice = random.Random(f"{seed} {self.name}")
        self.record = Recorder(directory, self.name)
        self.path = store
        self.left: Counter[Place] = Counter()  # how often a partition was given back
        self._numbers = itertools.count()
        self._written = Flag(directory / "written")  # producers end
        self._drained = Flag(directory / "drained")  # everybody ends

    @cached_property
    def store(self) -> klamm.Store:
        return klamm.open(self.path)

    @cached_property
    def partitions(self) -> int:
        return len(self.store.topics.describe(IN).partitions)

    def names(self, count: int) -> list[str]:
        return [f"{self.name}.{next(self._numbers)}" for _ in range(count)]

    def writes_on(self) -> bool:
        time.sleep(self.dice.random() * NAP_S)
        return not self._written

    def reads_on(self) -> bool:
        time.sleep(self.dice.random() * NAP_S)
        return not self._drained

    def dawdle(self) -> None:
        """Now and then take longer than a member may."""
        if self.dice.random() < 0.03:
            time.sleep(self.dice.choice([0.5, 1.5]) * self.patience_ms / 1000)

    def predecessor(self) -> list[Event]:
        """What the life before wrote down, or the last that wrote anything."""
        for life in range(self.life - 1, -1, -1):
            path = self.directory / f"{self.slot}-{life}{ENDING}"
            if path.exists() and (events := read(path)):
                return events
        return []

    def look_up(self, call: str, error: Error, *, only: Action | None = None) -> Action:
        """Return what the table of errors says, which is `only` if given, and write it down. An error without a rule
        fails the test.
        """
        action = rule_for(self.role, call, error).action
        self.record("met", call=call, error=describe(error), action=action.name)
        assert only in (None, action), f"{self.name}: {call} cannot {action.value}"
        return action

    def end_of(self, partition: int) -> int:
        return self.store.topics.describe(IN).partitions[partition].end

    def poll(self, consumer: klamm.Consumer) -> klamm.Batch:
        since = now()
        batch = consumer.poll(self.dice.choice([1, 10, 50, 500]), timeout=0.02)
        if batch:
            record_poll(self.record, since, batch)
        return batch


def record_poll(record: Recorder, since: int, batch: klamm.Batch) -> None:
    record(
        "polled",
        since=since,
        topic=batch.topic,
        partition=batch.partition,
        begin=batch.begin,
        end=batch.end,
        records=[[each.offset, each.value.decode()] for each in batch],
    )


# ---- producers


def plain(life: Life) -> None:
    """Every way to append."""
    life.record("started", role="producer")
    dice, store = life.dice, life.store
    with store.producer(acks=1, linger_ms=1, idempotent=True) as counting, store.producer(linger_ms=1) as producer:
        while life.writes_on():
            names = life.names(dice.choice([1, 1, 3, 20]))
            partition, acks = dice.randrange(life.partitions), ACKS[dice.random() < 0.2]
            way = dice.randrange(3)
            if way == 0:
                names = names[:1]
            life.record("sending", topic=IN, ids=names, tx=None)
            if way == 0:
                places: list[tuple[int, int | None]] = [
                    (partition, store.append(IN, names[0].encode(), partition=partition, acks=acks))
                ]
            elif way == 1:
                told = store.append_many(IN, [name.encode() for name in names], partition=partition, acks=acks)
                places = [(partition, offset) for each in told.ranges[partition] for offset in each]
            else:
                sender = counting if acks == 1 else producer
                sent = [sender.send(IN, name.encode(), partition=dice.randrange(life.partitions)) for name in names]
                sender.flush()
                places = [(each.partition, each.offset) for each in sent]
            life.record("sent", topic=IN, ids=names, places=places)


def retrying(life: Life, *, forgetful: bool = False) -> None:
    """An idempotent producer as it is on a bad network: it sends again what it was not told of, in its next life, too.

    Producer id and sequence numbers outlive the process, so everything is there once.
    """
    sequences = [0] * life.partitions
    pending: dict[str, Any] | None = None
    producer_id = None
    for event in life.predecessor():
        if event.kind == "started":
            producer_id, sequences, pending = event["producer_id"], event["sequences"], event["pending"]
        elif event.kind == "sending":
            pending = event.facts
            sequences[pending["partition"]] = pending["sequence"] + len(pending["ids"])
    if producer_id is None:
        producer_id = -1 if forgetful else life.store._acquired().catalog.allocate_producer_id()
    life.record("started", role="producer", producer_id=producer_id, sequences=sequences, pending=pending)
    if pending is not None:
        _send_once(life, producer_id, sequences, pending)
    while life.writes_on():
        partition = life.dice.randrange(life.partitions)
        names = life.names(life.dice.choice([1, 3, 10]))
        numbers = {"partition": partition, "sequence": sequences[partition]}
        pending = {"ids": names, **numbers, "time_ms": time.time_ns() // 1_000_000}
        for _ in range(life.dice.choice([1, 1, 2])):
            _send_once(life, producer_id, sequences, pending)


def _send_once(life: Life, producer_id: int, sequences: list[int], what: dict[str, Any]) -> None:
    names, partition, sequence, time_ms = what["ids"], what["partition"], what["sequence"], what["time_ms"]
    builder = Builder(1 << 20)
    builder.extend_values([name.encode() for name in names], 0, time_ms)
    numbers = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence} if producer_id >= 0 else {}
    batch = bytearray(builder.seal(**numbers))
    life.record("sending", topic=IN, ids=names, tx=None, partition=partition, sequence=sequence, time_ms=time_ms)
    log = log_of(life.store, f"{IN}/{partition}")
    first = log.append(batch)
    if life.dice.random() < 0.2:
        log.sync(first + len(names))
    life.record("sent", topic=IN, ids=names, places=[[partition, first + n] for n in range(len(names))])
    sequences[partition] = sequence + len(names)


def transactional(life: Life) -> None:
    """Transactions over several partitions, committed, aborted, given up by an error, or out of time.

    Slots with an even number have a transactional id: a new life fences the one before, should that live.
    """
    life.record("started", role="producer")
    dice = life.dice
    named = life.slot if int(life.slot.rpartition("-")[2]) % 2 == 0 else None
    for number in itertools.count():
        if not life.writes_on():
            return
        tx = f"{life.name}:{number}"
        timeout, batch_bytes = dice.choice([0.15, 60, 60]), dice.choice([100, 65_536])
        names = life.names(dice.choice([1, 2, 5, 20]))
        try:
            with life.store.transaction(named, timeout=timeout, batch_bytes=batch_bytes) as transaction:
                for name in names:
                    life.record("sending", topic=IN, ids=[name], tx=tx)
                    transaction.send(IN, name.encode(), partition=dice.randrange(life.partitions))
                    if dice.random() < 0.02:
                        time.sleep(0.2)
                end_by_dice(life, tx, transaction)
            life.record("committed", tx=tx)
        except Regret as error:
            life.record("aborted", tx=tx, why=repr(error))
        except klamm.KlammError as error:
            action = life.look_up("transaction" if named is None else "named transaction", error)
            life.record("aborted", tx=tx, why=repr(error))
            if action is Action.END:
                return


class Regret(Exception):
    """A role aborts its transaction."""


def end_by_dice(life: Life, tx: str, transaction: klamm.Transaction) -> None:
    """Commit, one way or the other, or raise Regret. Now and then so late that others may have ended it."""
    if life.dice.random() < 0.05:
        time.sleep(0.4)
    luck = life.dice.random()
    if luck < 0.2:
        life.record("aborting", tx=tx)
        if luck < 0.1:
            transaction.abort()
        raise Regret
    life.record("committing", tx=tx)
    if luck < 0.6:
        transaction.commit()


# ---- readers


def reader(life: Life, isolation: klamm.Isolation = COMMITTED, topics: tuple[str, ...] = (IN, OUT)) -> None:
    """Reads everything from the start, and what comes."""
    life.record("started", role="reader", isolation=isolation)
    with life.store.consumer(topics, start="earliest", isolation=isolation) as consumer:
        while life.reads_on():
            life.poll(consumer)


def dirty_reader(life: Life) -> None:
    reader(life, UNCOMMITTED)


# ---- members


@contextmanager
def joined(life: Life, group: str, output: str | None) -> Iterator[klamm.Consumer]:
    """A member that writes down what it is told. In slot 0 it is a named one, whose successor takes its place."""
    patience = life.dice.choice([life.patience_ms, 10_000])
    life.record("started", role="member", group=group, topic=IN, output=output, patience_ms=patience)

    def told(kind: str) -> Callable[[list[Place]], None]:
        def tell(places: list[Place]) -> None:
            life.record(kind, places=places)
            life.left.update(places if kind != "assigned" else ())

        return tell

    def join(name: str | None) -> klamm.Consumer:
        return life.store.consumer(
            IN,
            group=group,
            member=name,
            rejoin_timeout=0.5,
            max_poll_interval_ms=patience,
            on_assigned=told("assigned"),
            on_revoked=told("revoked"),
            on_lost=told("lost"),
        )

    try:
        member = join(life.slot if life.slot.endswith("-0") else None)
    except klamm.GroupBusy as error:
        life.look_up("join", error, only=Action.AGAIN)
        member = join(None)
    with member as consumer:
        try:
            yield consumer
            life.record("closing")
        except klamm.GroupBusy as error:
            life.look_up("poll", error, only=Action.END)


def worker(life: Life) -> None:
    """At least once: process, then commit, one by one or all together, now or while it reads on."""
    with joined(life, WORKERS, None) as consumer:
        under_way: list[tuple[list[klamm.Batch], Future[None]]] = []
        while life.reads_on():
            polled = []
            for _ in range(life.dice.choice([1, 1, 3])):
                if batch := life.poll(consumer):
                    process(life, batch)
                    polled.append((batch, life.left[batch.topic, batch.partition]))
            life.dawdle()
            way = life.dice.choice(["one by one", "all", "later"])
            if way == "one by one":
                for batch, _ in polled:
                    store_progress(life, [batch], lambda batch=batch: consumer.commit(batch))  # type: ignore[misc]
            elif way == "all":
                # Of partitions that were given back meanwhile nothing is committed, and of the others the last batch.
                last = {
                    (batch.topic, batch.partition): batch
                    for batch, left in polled
                    if left == life.left[batch.topic, batch.partition]
                }
                store_progress(life, list(last.values()), consumer.commit)
            else:
                for batch, _ in polled:
                    try:
                        record_progress(life, "storing", [batch])
                        under_way.append(([batch], consumer.commit_async(batch)))
                    except klamm.KlammError as error:
                        life.look_up("commit_async", error, only=Action.REFUSED)
                        record_progress(life, "refused", [batch])
            while under_way and (under_way[0][1].done() or len(under_way) > 5):
                batches, future = under_way.pop(0)
                record_outcome(life, batches, future.result)


def process(life: Life, batch: klamm.Batch) -> None:
    offsets = [record.offset for record in batch]
    life.record("processed", topic=batch.topic, partition=batch.partition, offsets=offsets)


def store_progress(life: Life, batches: list[klamm.Batch], commit: Callable[[], object]) -> None:
    """Commit, and write that down."""
    record_progress(life, "storing", batches)
    record_outcome(life, batches, commit)


def record_outcome(life: Life, batches: list[klamm.Batch], commit: Callable[[], object]) -> None:
    """Run `commit` and write down how it ends. NotOwner refuses all of it."""
    try:
        commit()
    except klamm.KlammError as error:
        life.look_up("commit", error, only=Action.REFUSED)
        record_progress(life, "refused", batches)
    else:
        record_progress(life, "stored", batches)


def record_progress(life: Life, kind: str, batches: list[klamm.Batch]) -> None:
    for batch in batches:
        place = {"topic": batch.topic, "partition": batch.partition}
        life.record(kind, group=WORKERS, **place, end=batch.end, tx=None)


def transformer(life: Life) -> None:
    """Exactly once: a record of `out` for each one of `in`, and the group's progress, in one transaction."""
    dice = life.dice
    with joined(life, TRANSFORMERS, OUT) as consumer:
        for number in itertools.count():
            if not life.reads_on():
                return
            batch = life.poll(consumer)
            if not batch:
                continue
            tx = f"{life.name}:{number}"
            where = {"topic": batch.topic, "partition": batch.partition}
            names = life.names(len(batch))
            life.record("sending", topic=OUT, ids=names, tx=tx)
            try:
                timeout, batch_bytes = dice.choice([0.15, 60]), dice.choice([100, 65_536])
                with consumer.transaction(timeout=timeout, batch_bytes=batch_bytes) as transaction:
                    for name, record in zip(names, batch, strict=True):
                        source = f"{IN}/{record.partition}/{record.offset}/{record.value.decode()}"
                        transaction.send(OUT, f"{name}<{source}".encode(), partition=dice.randrange(life.partitions))
                    life.dawdle()
                    life.record("storing", **where, group=TRANSFORMERS, end=batch.end, tx=tx)
                    transaction.commit_offsets(batch if dice.random() < 0.5 else consumer)
                    end_by_dice(life, tx, transaction)
                life.record("committed", tx=tx)
            except (Regret, klamm.KlammError) as error:
                if isinstance(error, klamm.KlammError):
                    life.look_up("transaction", error, only=Action.REFUSED)
                life.record("aborted", tx=tx, why=repr(error))
                life.record("moved", **where)


__all__ = [
    "IN",
    "OUT",
    "TRANSFORMERS",
    "WORKERS",
    "Life",
    "dirty_reader",
    "joined",
    "plain",
    "process",
    "reader",
    "record_poll",
    "retrying",
    "store_progress",
    "transactional",
    "transformer",
    "worker",
]
