"""The roles of jepsen_workload.py as clients of a server: librdkafka's, which sends again by itself.

What a client is not told may have happened or not, and here more often than with a store that is open in the process:
the server may be killed between deed and answer. So an error is written down only where it is certain. A commit of
offsets that failed, say, may have been stored by a server that died before it said so: there is neither `stored` nor
`refused`.

Names, dice and the end are as there; groups and the topic that is written to are others, so that the roles of both
doors can run on one store. KLAMM_WIRE_DEBUG=eos,cgrp,protocol lets librdkafka say what it does.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.crash.checker import COMMITTED, UNCOMMITTED
from tests.crash.history import Recorder, now
from tests.crash.jepsen_workload import IN, OUT, Life
from tests.procs import until

WIRED = "wired"  # a topic
WIRE_WORKERS, WIRE_TRANSFORMERS = "wire-workers", "wire-transformers"  # groups
GROUPS = {"wire_worker": WIRE_WORKERS, "hasty": WIRE_WORKERS, "wire_transformer": WIRE_TRANSFORMERS}  # of roles
PATIENCE_S = 60.0
SESSION_MS = 600
FENCED = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
}
# Not cooperative-sticky. A member whose JoinGroup meets a server that does not know it keeps its partitions in
# librdkafka, is given a new generation, and commits with that what it had read before, though others have come further.
STRATEGIES = ["range", "roundrobin"]
HANGS_S = 6.0

# What an unlucky moment of the server brings about; anything else that a client reports is a failure.
PASSING = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._WAIT_COORD,
    KafkaError._RESOLVE,
    KafkaError.REQUEST_TIMED_OUT,
}
# ... and what members are told that others have replaced, or that a new server does not know.
NO_MEMBER = {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError._ASSIGNMENT_LOST,
    KafkaError._MAX_POLL_EXCEEDED,
    KafkaError._NO_OFFSET,
    KafkaError._STATE,
}


class WireLife(Life):
    """What a role is given that talks to a server. It has the store as well, for those that open it."""

    def __init__(self, directory: Path, store: str, slot: str, life: int, seed: int, patience_ms: int, port: int):
        super().__init__(directory, store, slot, life, seed, patience_ms)
        self.address = f"127.0.0.1:{port}"
        self.strategy = random.Random(seed).choice(STRATEGIES)  # of whole groups
        self.membership = b""  # of the last assignment: group, member and generation, as librdkafka spells them
        self.positions: dict[tuple[str, int], int] = {}  # where to go on, as far as that is known
        self._polled: list[Message] = []  # not written down yet
        self._since = 0

    @property
    def number(self) -> int:
        return int(self.slot.rpartition("-")[2])

    def wire_partitions(self) -> int:
        """As the server says it."""
        producer = self.producer()
        return until(lambda: _partitions(producer, IN), f"{self.name} sees the topic", PATIENCE_S)

    # ---- clients

    def settings(self, **more: Any) -> dict[str, Any]:
        """Names with _ for dots. Servers come back soon, so clients look soon."""
        usual = {
            "bootstrap.servers": self.address,
            "client.id": self.name,
            "log_level": 0,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "topic.metadata.refresh.fast.interval.ms": 20,
        }
        if debug := os.environ.get("KLAMM_WIRE_DEBUG"):
            usual |= {"log_level": 7, "debug": debug}
        named = {name if name.startswith("on_") else name.replace("_", "."): value for name, value in more.items()}
        return usual | named

    def producer(self, **settings: Any) -> Producer:
        return Producer(self.settings(linger_ms=self.dice.choice([0, 1, 5]), **settings))

    def consumer(self, **settings: Any) -> Consumer:
        return Consumer(self.settings(enable_auto_commit=False, fetch_wait_max_ms=100, **settings))

    # ---- polls

    def wire_poll(self, consumer: Consumer) -> list[Message]:
        """The next records. Without those of partitions that were given back meanwhile, as the callbacks say it."""
        self._since = now()
        most, wait_s = self.dice.choice([1, 10, 50, 500]), 0.02
        polled: list[tuple[Message, int]] = []
        while len(polled) < most and (message := consumer.poll(wait_s)) is not None:
            error = message.error()
            if error is None:
                self._step(message)
                polled.append((message, self.left[_place(message)]))
                self._polled.append(message)
                wait_s = 0.0
            else:
                pass_over(error)
        self.tell_polls()
        return [each for each, left in polled if left == self.left[_place(each)]]

    def _step(self, message: Message) -> None:
        """Now and then librdkafka begins anew where it once began, though it knows better, and is told nothing else: so
        its own slip is not written down as ours. It is not allowed to begin elsewhere than at a committed offset: then
        the server would have said that there is none, or that it is out of range, and that is an error here.
        """
        place = _place(message)
        if message.offset() < self.positions.get(place, 0):
            print(f"{self.name} goes back in {place} from {self.positions[place]} to {message.offset()} by itself")
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        self.positions[place] = message.offset() + 1

    def tell_polls(self) -> None:
        """Write down what was polled: before anything else happens to its partitions."""
        polled, self._polled = self._polled, []
        record_messages(self.record, self._since, polled)


class Replaced(Exception):
    """Somebody else has the name of this member, or of this producer."""


def pass_over(error: KafkaError) -> None:
    """Of a consumer: what happens to one while servers and members die."""
    if error.code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL):
        raise Replaced
    if error.code() not in PASSING | NO_MEMBER:
        raise KafkaException(error)


def record_messages(record: Recorder, since: int, messages: list[Message]) -> None:
    """A poll of each partition: from its first record to its last."""
    for (topic, partition), each in by_place(messages).items():
        record(
            "polled",
            since=since,
            topic=topic,
            partition=partition,
            begin=each[0].offset(),
            end=each[-1].offset() + 1,
            records=[[message.offset(), message.value().decode()] for message in each],
        )


def _partitions(producer: Producer, topic: str) -> int:
    try:
        return len(producer.list_topics(topic, 1.0).topics[topic].partitions)
    except KafkaException as error:
        if error.args[0].code() in PASSING:
            return 0
        raise


def _place(message: Message) -> tuple[str, int]:
    return message.topic(), message.partition()


def by_place(messages: list[Message]) -> dict[tuple[str, int], list[Message]]:
    found: dict[tuple[str, int], list[Message]] = {}
    for message in messages:
        found.setdefault(_place(message), []).append(message)
    return found


# ---- producers


def acknowledging(life: WireLife) -> Callable[[KafkaError | None, Message], None]:
    """Writes down what was acknowledged; what may have been lost on its way is not."""

    def report(error: KafkaError | None, message: Message) -> None:
        if error is None:
            where = [message.partition(), message.offset()]
            life.record("sent", topic=message.topic(), ids=[message.value().decode()], places=[where])
        elif error.code() not in PASSING:
            raise KafkaException(error)

    return report


def wire_plain(life: Life) -> None:
    """Sends everything once, whatever becomes of it; with acks 1 or all."""
    assert isinstance(life, WireLife)
    life.record("started", role="producer")
    dice, partitions, report = life.dice, life.wire_partitions(), acknowledging(life)
    producers = [life.producer(acks=acks, retries=0, enable_idempotence=False) for acks in (1, -1)]
    while life.writes_on():
        producer, names = dice.choice(producers), life.names(dice.choice([1, 1, 3, 20]))
        life.record("sending", topic=IN, ids=names, tx=None)
        for name in names:
            producer.produce(IN, name.encode(), partition=dice.randrange(partitions), on_delivery=report)
        assert producer.flush(PATIENCE_S) == 0  # of one producer after the other: they have two connections


def wire_idempotent(life: Life) -> None:
    """Sends again until it is told, and does not wait for that before it sends more."""
    assert isinstance(life, WireLife)
    life.record("started", role="producer")
    dice, partitions, report = life.dice, life.wire_partitions(), acknowledging(life)
    producer = life.producer(enable_idempotence=True, message_timeout_ms=120_000)
    while life.writes_on():
        names = life.names(dice.choice([1, 3, 20]))
        life.record("sending", topic=IN, ids=names, tx=None)
        for name in names:
            producer.produce(IN, name.encode(), partition=dice.randrange(partitions), on_delivery=report)
        producer.poll(0)
        if len(producer) > 200:
            producer.flush(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0


# ---- readers


def wire_reader(life: Life, isolation: str = COMMITTED) -> None:
    """Reads everything from the start, and what comes."""
    assert isinstance(life, WireLife)
    life.record("started", role="reader", isolation=isolation)
    partitions = life.wire_partitions()
    consumer = life.consumer(group_id=life.name, isolation_level=isolation, auto_offset_reset="error")
    consumer.assign([TopicPartition(topic, n, 0) for topic in (IN, OUT, WIRED) for n in range(partitions)])
    while life.reads_on():
        life.wire_poll(consumer)


def dirty_wire_reader(life: Life) -> None:
    wire_reader(life, UNCOMMITTED)


def read_everything_by_wire(directory: Path, port: int, ends: dict[str, list[int]]) -> list[str]:
    """One more final reader, up to `ends`: before those, there is nothing open. Where it ended elsewhere."""
    elsewhere = []
    life = WireLife(directory, "", "final", 0, 0, 0, port)
    life.record("started", role="final", isolation=COMMITTED)
    settings = {"auto_offset_reset": "error", "enable_partition_eof": True}
    for topic, numbers in ends.items():
        consumer = life.consumer(group_id="final", isolation_level=COMMITTED, **settings)
        consumer.assign([TopicPartition(topic, n, 0) for n in range(len(numbers))])
        left, deadline = set(range(len(numbers))), time.monotonic() + PATIENCE_S
        while left:
            assert time.monotonic() < deadline, f"{topic}: {left} not read to the end"
            since, messages = now(), consumer.consume(500, 0.1)
            record_messages(life.record, since, [each for each in messages if each.error() is None])
            for each in messages:
                if each.error() is not None and each.error().code() == KafkaError._PARTITION_EOF:
                    if each.offset() != numbers[each.partition()]:
                        elsewhere.append(f"{topic}/{each.partition()} ends at {each.offset()}, not {numbers}")
                    left.discard(each.partition())
        consumer.close()
    return elsewhere


# ---- members


@contextmanager
def bound() -> Iterator[None]:
    """librdkafka may wait for ever for the coordinator of a group, if that goes away in the right moment, whatever
    time-out it was given. Such a process is killed as any other.
    """
    killer = threading.Timer(HANGS_S, os.kill, (os.getpid(), signal.SIGKILL))
    killer.daemon = True
    killer.start()
    try:
        yield
    finally:
        killer.cancel()


@contextmanager
def wire_joined(life: WireLife, group: str, output: str | None) -> Iterator[Consumer]:
    """A member that writes down what it is told. In slot 0 it is a named one, whose successor takes its place."""
    dice = life.dice
    patience = dice.choice([SESSION_MS, 10_000])
    life.record("started", role="member", group=group, topic=IN, output=output, patience_ms=patience, door="kafka")
    life.wire_partitions()

    def told(kind: str) -> Callable[[Consumer, list[TopicPartition]], None]:
        def tell(consumer: Consumer, parts: list[TopicPartition]) -> None:
            life.tell_polls()
            places = [(part.topic, part.partition) for part in parts]
            life.record(kind, places=places)
            if kind == "assigned":
                life.membership = consumer.consumer_group_metadata()
                life.positions |= committed(consumer, parts)
            else:
                life.left.update(places)
                for place in places:
                    life.positions.pop(place, None)

        return tell

    consumer = life.consumer(
        group_id=group,
        isolation_level=COMMITTED,
        auto_offset_reset="error",  # WireNemesis lets groups stand at 0 in the beginning
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=100,
        max_poll_interval_ms=patience,
        partition_assignment_strategy=life.strategy,
        on_commit=lambda error, parts: record_outcome(life, error, parts),
        **({"group_instance_id": life.slot} if life.number == 0 else {}),
    )
    consumer.subscribe([IN], on_assign=told("assigned"), on_revoke=told("revoked"), on_lost=told("lost"))
    with suppress(Replaced):
        yield consumer
        life.record("closing")
        with bound():
            consumer.close()


def committed(consumer: Consumer, parts: list[TopicPartition]) -> dict[tuple[str, int], int]:
    """Where the group stands; nothing, if there is nobody to say so."""
    try:
        found = consumer.committed(parts, 1.0) if parts else []
    except KafkaException:
        return {}
    return {(part.topic, part.partition): part.offset for part in found if part.error is None}


def wire_worker(life: Life, *, hasty: bool = False) -> None:
    """At least once: process, then commit, and wait for that or not. One that is `hasty` commits first."""
    assert isinstance(life, WireLife)
    with wire_joined(life, WIRE_WORKERS, None) as consumer:
        while life.reads_on():
            polled = by_place(life.wire_poll(consumer))
            if not hasty:
                process(life, polled)
            life.dawdle()
            ends = [TopicPartition(*place, each[-1].offset() + 1) for place, each in polled.items()]
            for part in ends:
                record_progress(life, "storing", part)
            try:
                if ends and life.dice.random() < 0.3:
                    consumer.commit(offsets=ends, asynchronous=True)
                elif ends:
                    with bound():
                        parts = consumer.commit(offsets=ends, asynchronous=False)
                    record_outcome(life, None, parts)
            except KafkaException as error:
                pass_over(error.args[0])
            if hasty:
                process(life, polled)


def process(life: WireLife, polled: dict[tuple[str, int], list[Message]]) -> None:
    for (topic, partition), each in polled.items():
        offsets = [message.offset() for message in each]
        life.record("processed", topic=topic, partition=partition, offsets=offsets)


def record_outcome(life: WireLife, error: KafkaError | None, parts: list[TopicPartition]) -> None:
    """Of a commit: what is certain. librdkafka may tell it twice."""
    for part in parts if error is None else ():
        if part.error is None and part.offset >= 0:
            record_progress(life, "stored", part)


def record_progress(life: WireLife, kind: str, part: TopicPartition) -> None:
    place = {"topic": part.topic, "partition": part.partition}
    life.record(kind, group=WIRE_WORKERS, **place, end=part.offset, tx=None)


# ---- transactions


def insist(call: Callable[..., object], *given: Any) -> None:
    """Again while that is what librdkafka asks for."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with bound():
                call(*given, 2.0)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


def initialised(life: WireLife) -> Producer:
    """A transactional producer. In slots with an even number its id is the slot's: a new life fences the one before."""
    name = life.slot if life.number % 2 == 0 else life.name
    timeout_ms = life.dice.choice([1_000, 3_000])  # nobody else ends what a killed client has left
    producer = life.producer(transactional_id=name, transaction_timeout_ms=timeout_ms)
    with replaceable():
        insist(producer.init_transactions)
    return producer


@contextmanager
def replaceable() -> Iterator[None]:
    """A producer that was fenced ends: by its successor, or because its transaction was out of time. One that aborted
    what a server had taken, and could not tell it any more, begins anew with the same sequences: it ends, too.
    """
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() in FENCED:
            raise Replaced from error
        raise


def transact(life: WireLife, producer: Producer, tx: str, fill: Callable[[], None]) -> bool:
    """Run a transaction: whether it was committed; if not, it was certainly aborted. Replaced, if nobody knows."""
    dice = life.dice
    with replaceable():
        try:
            producer.begin_transaction()
            fill()
            if dice.random() < 0.05:
                time.sleep(0.4)
            if dice.random() < 0.2:
                life.record("aborting", tx=tx)
                abort(producer)
                life.record("aborted", tx=tx, why="asked to")
                return False
            life.record("committing", tx=tx)
            insist(producer.commit_transaction)
            life.record("committed", tx=tx)
            return True
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            abort(producer)
            life.record("aborted", tx=tx, why=str(error))
            return False


def abort(producer: Producer) -> None:
    """Replaced, if the server died before it heard of the transaction: librdkafka asks it to end that all the same, is
    told that there is none, and goes no further. With Apache Kafka it fares alike.
    """
    try:
        insist(producer.abort_transaction)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.INVALID_TXN_STATE:
            raise Replaced from error
        raise


def wire_transactional(life: Life) -> None:
    """Transactions over several partitions, committed, aborted, or out of time."""
    assert isinstance(life, WireLife)
    life.record("started", role="producer")
    dice, partitions = life.dice, life.wire_partitions()
    with suppress(Replaced):
        producer = initialised(life)
        for number in itertools.count():
            if not life.writes_on():
                return
            tx, names = f"{life.name}:{number}", life.names(dice.choice([1, 2, 5, 20]))

            def fill(names: list[str] = names, tx: str = tx) -> None:
                for name in names:
                    life.record("sending", topic=IN, ids=[name], tx=tx)
                    producer.produce(IN, name.encode(), partition=dice.randrange(partitions))
                    if dice.random() < 0.02:
                        time.sleep(0.2)

            transact(life, producer, tx, fill)


def wire_transformer(life: Life) -> None:
    """Exactly once: a record of `wired` for each one of `in`, and the group's progress, in one transaction."""
    assert isinstance(life, WireLife)
    dice = life.dice
    with wire_joined(life, WIRE_TRANSFORMERS, WIRED) as consumer:
        partitions, producer = life.wire_partitions(), initialised(life)
        for number in itertools.count():
            if not life.reads_on():
                return
            messages = life.wire_poll(consumer)
            if not messages:
                continue
            tx, names, polled = f"{life.name}:{number}", life.names(len(messages)), by_place(messages)
            life.record("sending", topic=WIRED, ids=names, tx=tx)

            def fill(
                messages: list[Message] = messages,
                names: list[str] = names,
                tx: str = tx,
                polled: dict[tuple[str, int], list[Message]] = polled,
            ) -> None:
                for name, message in zip(names, messages, strict=True):
                    source = f"{IN}/{message.partition()}/{message.offset()}/{message.value().decode()}"
                    value = f"{name}<{source}".encode()
                    producer.produce(WIRED, value, partition=dice.randrange(partitions))
                life.dawdle()
                ends = [TopicPartition(*place, each[-1].offset() + 1) for place, each in polled.items()]
                for part in ends:
                    where = {"topic": part.topic, "partition": part.partition}
                    life.record("storing", **where, group=WIRE_TRANSFORMERS, end=part.offset, tx=tx)
                insist(producer.send_offsets_to_transaction, ends, life.membership)

            if not transact(life, producer, tx, fill):
                rewind(life, consumer, polled)


def rewind(life: WireLife, consumer: Consumer, polled: dict[tuple[str, int], list[Message]]) -> None:
    """Read again what was read for nothing. What is no longer its own, others read."""
    for (topic, partition), each in polled.items():
        life.record("moved", topic=topic, partition=partition)
        life.positions[topic, partition] = each[0].offset()
        try:
            consumer.seek(TopicPartition(topic, partition, each[0].offset()))
        except KafkaException as error:
            pass_over(error.args[0])
