"""The roles of jepsen_workload.py as clients of a server: librdkafka's, which sends again by itself.

What a client is not told may have happened or not, and here more often than with a store that is open in the process:
the server may be killed between deed and answer. So an error is written down only where it is certain. A commit of
offsets that failed, say, may have been stored by a server that died before it said so: there is neither `stored` nor
`refused`.

Names, dice and the end are as there; groups and the topic that is written to are others, so that the roles of both
doors can run on one store. What a role does with an error is in client_errors.py. KLAMM_WIRE_DEBUG=eos,cgrp,protocol
lets librdkafka say what it does.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.crash.checker import COMMITTED, UNCOMMITTED
from tests.crash.client_errors import Action
from tests.crash.history import now
from tests.crash.jepsen_workload import IN, OUT, Life
from tests.crash.wire_life import API_S, PATIENCE_S, MustAbort, MustAsk, MustEnd, WireLife, by_place, record_messages
from tests.messages import offset_of, place_of, value_of

WIRED = "wired"  # a topic
WIRE_WORKERS, WIRE_TRANSFORMERS = "wire-workers", "wire-transformers"  # groups
GROUPS = {"wire_worker": WIRE_WORKERS, "hasty": WIRE_WORKERS, "wire_transformer": WIRE_TRANSFORMERS}  # of roles
SESSION_MS = 600


# ---- producers


def acknowledging(life: WireLife) -> Callable[[KafkaError | None, Message], None]:
    """Return a delivery callback. It writes down what was acknowledged; what may have been lost on its way is not."""

    def report(error: KafkaError | None, message: Message) -> None:
        if error is None:
            where = [message.partition(), message.offset()]
            life.record("sent", topic=message.topic(), ids=[value_of(message).decode()], places=[where])
        else:
            life.look_up("delivery", error, only=Action.GO_ON)

    return report


def wire_plain(life: Life) -> None:
    """Send everything once, whatever becomes of it; with acks 1 or all."""
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
    """Send again until it is told, and do not wait for that before it sends more."""
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
    """Read everything from the start, and what comes."""
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
    """Read up to `ends`, as one more final reader: before those, nothing is open. Return where it ended elsewhere."""
    elsewhere = []
    life = WireLife(directory, "", "final-0", 0, 0, 0, port)
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
                error = each.error()
                if error is None:
                    continue
                if error.code() != KafkaError._PARTITION_EOF:
                    life.follow(life.look_up("poll", error))
                    continue
                partition = place_of(each)[1]
                if each.offset() != numbers[partition]:
                    elsewhere.append(f"{topic}/{partition} ends at {each.offset()}, not {numbers}")
                left.discard(partition)
        consumer.close()
    return elsewhere


# ---- members


@contextmanager
def wire_joined(life: WireLife, group: str, output: str | None) -> Iterator[Consumer]:
    """A member that writes down what it is told. In slot 0 it is a static one, whose successor takes its place; but not
    with cooperative-sticky: tests/interop/test_librdkafka_flaws.py.
    """
    dice = life.dice
    static = life.number == 0 and life.strategy != "cooperative-sticky"
    patience = dice.choice([SESSION_MS, 10_000])
    life.record("started", role="member", group=group, topic=IN, output=output, patience_ms=patience, door="kafka")
    life.wire_partitions()

    def told(kind: str) -> Callable[[Consumer, list[TopicPartition]], None]:
        def tell(consumer: Consumer, parts: list[TopicPartition]) -> None:
            life.tell_polls()
            places = [(part.topic, part.partition) for part in parts]
            life.record(kind, places=places)
            for place in places:
                life.begun.pop(place, None)
                life.failed.discard(place)
            if kind == "assigned":
                life.membership = consumer.consumer_group_metadata()
                life.positions |= committed(life, consumer, parts)
            else:
                life.left.update(places)
                for place in places:
                    life.positions.pop(place, None)

        return tell

    def on_commit(error: KafkaError | None, parts: list[TopicPartition]) -> None:
        if error is None:
            record_outcome(life, parts)
        else:
            record_unsettled(life, parts)
            life.follow(life.look_up("async commit", error))

    consumer = life.consumer(
        group_id=group,
        isolation_level=COMMITTED,
        auto_offset_reset="error",  # WireNemesis lets groups stand at 0 in the beginning
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=100,
        max_poll_interval_ms=patience,
        partition_assignment_strategy=life.strategy,
        on_commit=on_commit,
        **({"group_instance_id": life.slot} if static else {}),
    )
    consumer.subscribe([IN], on_assign=told("assigned"), on_revoke=told("revoked"), on_lost=told("lost"))
    with suppress(MustEnd):
        yield consumer
        life.record("closing")
        life.call("close", consumer.close)


def committed(life: WireLife, consumer: Consumer, parts: list[TopicPartition]) -> dict[tuple[str, int], int]:
    """Return where the group stands, as far as the server says so."""
    found = life.call("committed", consumer.committed, parts, 1.0) if parts else []
    for part in found or ():
        if part.error is not None:
            life.follow(life.look_up("committed", part.error))
    return {(part.topic, part.partition): part.offset for part in found or () if part.error is None}


def wire_worker(life: Life, *, hasty: bool = False) -> None:
    """At least once: process, then commit, and wait for that or not. One that is `hasty` commits first.

    What it could not commit it commits again, as long as the partition is its own: nobody else reads those records. A
    commit fails for a member that keeps its partitions, if it is sent before the answer to JoinGroup and arrives after
    it (ILLEGAL_GENERATION). librdkafka then waits for the new generation and tells the application, and Apache Kafka's
    consumer asks its application to poll and to commit again, too (RebalanceInProgressException).
    """
    assert isinstance(life, WireLife)
    with wire_joined(life, WIRE_WORKERS, None) as consumer:
        while life.reads_on():
            polled = by_place(life.wire_poll(consumer))
            if not hasty:
                process(life, polled)
            life.dawdle()
            ends = [TopicPartition(*place, offset_of(each[-1]) + 1) for place, each in polled.items()]
            again = [TopicPartition(*place, life.begun[place]) for place in life.failed - polled.keys()]
            ends += again
            for part in ends:
                record_progress(life, "storing", part)
            if ends and not again and life.dice.random() < 0.3:
                life.call("async commit", lambda ends=ends: consumer.commit(offsets=ends, asynchronous=True))
            elif ends:
                parts = life.call("commit", lambda ends=ends: consumer.commit(offsets=ends, asynchronous=False))
                record_outcome(life, parts or [])
                if parts is None:
                    record_unsettled(life, ends)
            if hasty:
                process(life, polled)


def process(life: WireLife, polled: dict[tuple[str, int], list[Message]]) -> None:
    for (topic, partition), each in polled.items():
        offsets = [message.offset() for message in each]
        life.record("processed", topic=topic, partition=partition, offsets=offsets)


def record_outcome(life: WireLife, parts: list[TopicPartition]) -> None:
    """Write down of a commit what is certain. librdkafka may tell it twice."""
    for part in parts:
        if part.error is not None:
            record_unsettled(life, [part])
            life.follow(life.look_up("commit of a partition", part.error))
        elif part.offset >= 0:
            record_progress(life, "stored", part)


def record_unsettled(life: WireLife, parts: list[TopicPartition]) -> None:
    for part in parts:
        if part.offset >= 0:
            record_progress(life, "unsettled", part)


def record_progress(life: WireLife, kind: str, part: TopicPartition) -> None:
    place, end = (part.topic, part.partition), part.offset
    life.record(kind, group=WIRE_WORKERS, topic=part.topic, partition=part.partition, end=end, tx=None)
    if kind == "storing":
        life.begun[place] = end
        life.failed.discard(place)
    elif life.begun.get(place) != end:
        return  # another commit was begun since, or the partition went to another member
    elif kind == "stored":
        del life.begun[place]
        life.failed.discard(place)
    else:
        life.failed.add(place)


# ---- transactions


class Transactions:
    """A transactional producer, one transaction after the other.

    In slots with an even number its id is the slot's: a new life fences the one before.

    librdkafka (seen at 2.12 and 2.16) gives out sequence numbers twice: a batch that was sent, and not answered when
    the connection broke, is queued again; abort_transaction takes it from the queue and its numbers back
    (rd_kafka_toppar_purge_queues, epoch_base_msgid), and asks for no new epoch. If the server had appended that batch,
    it refuses the first batch of the next transaction, where Apache Kafka takes it for the same one. So the role makes
    a new producer, which has a new epoch, after an abort that took records from the queue if the server was another one
    when the transaction began: then records that a server acknowledges and forgets are found out as ever. See
    tests/interop/test_librdkafka_flaws.py.
    """

    def __init__(self, life: WireLife, **settings: Any) -> None:
        self._life = life
        self._settings = {
            "transactional_id": life.slot if life.number % 2 == 0 else life.name,
            "transaction_timeout_ms": life.dice.choice(
                [1_000, 3_000]
            ),  # nobody else ends what a killed client has left
            **settings,
        }
        self._purged = False
        self._producer = self._initialised()

    def _initialised(self) -> Producer:
        producer = self._life.producer(**self._settings)
        self._life.call("init_transactions", producer.init_transactions, API_S)
        return producer

    def run(self, tx: str, fill: Callable[[], None]) -> bool:
        """Run a transaction: whether it was committed; if not, it was certainly aborted. MustEnd, if nobody knows."""
        life, dice = self._life, self._life.dice
        self._purged, servers = False, life.server_lives()
        try:
            life.call("begin_transaction", self._producer.begin_transaction)
            fill()
            if dice.random() < 0.05:
                time.sleep(0.4)
            if dice.random() >= 0.2:
                life.record("committing", tx=tx)
                life.call("commit_transaction", self._producer.commit_transaction, API_S)
                life.record("committed", tx=tx)
                return True
            life.record("aborting", tx=tx)
            why = "asked to"
        except MustAbort as error:
            why = repr(error.__context__)
        life.call("abort_transaction", self._producer.abort_transaction, API_S)
        life.record("aborted", tx=tx, why=why)
        if self._purged and servers != life.server_lives():
            life.record("renewed")
            self._producer = self._initialised()
        return False

    def produce(self, topic: str, value: bytes, partition: int) -> None:
        with self._asking():
            try:
                self._producer.produce(topic, value, partition=partition, on_delivery=self._report)
            except KafkaException as error:
                self._life.follow(self._life.look_up("produce", error.args[0]))

    def send_offsets(self, ends: list[TopicPartition]) -> None:
        life, send = self._life, self._producer.send_offsets_to_transaction
        with self._asking():
            life.call("send_offsets_to_transaction", send, ends, life.membership, API_S)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Do what the table says of the state that the producer is in: see client_errors.py."""
        try:
            yield
        except MustAsk as error:
            self._life.call("state", self._producer.begin_transaction)
            raise AssertionError("a transaction began within another") from error

    def _report(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._life.look_up("delivery", error, only=Action.GO_ON)
            self._purged |= error.code() == KafkaError._PURGE_QUEUE


def wire_transactional(life: Life) -> None:
    """Transactions over several partitions, committed, aborted, or out of time."""
    assert isinstance(life, WireLife)
    life.record("started", role="producer")
    dice, partitions = life.dice, life.wire_partitions()
    with suppress(MustEnd):
        transactions = Transactions(life)
        for number in itertools.count():
            if not life.writes_on():
                return
            tx, names = f"{life.name}:{number}", life.names(dice.choice([1, 2, 5, 20]))

            def fill(names: list[str] = names, tx: str = tx) -> None:
                for name in names:
                    life.record("sending", topic=IN, ids=[name], tx=tx)
                    transactions.produce(IN, name.encode(), dice.randrange(partitions))
                    if dice.random() < 0.02:
                        time.sleep(0.2)

            transactions.run(tx, fill)


def wire_transformer(life: Life) -> None:
    """Exactly once: a record of `wired` for each one of `in`, and the group's progress, in one transaction."""
    assert isinstance(life, WireLife)
    dice = life.dice
    with wire_joined(life, WIRE_TRANSFORMERS, WIRED) as consumer:
        partitions, transactions = life.wire_partitions(), Transactions(life)
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
                    source = f"{IN}/{message.partition()}/{message.offset()}/{value_of(message).decode()}"
                    transactions.produce(WIRED, f"{name}<{source}".encode(), dice.randrange(partitions))
                life.dawdle()
                ends = [TopicPartition(*place, offset_of(each[-1]) + 1) for place, each in polled.items()]
                for part in ends:
                    where = {"topic": part.topic, "partition": part.partition}
                    life.record("storing", **where, group=WIRE_TRANSFORMERS, end=part.offset, tx=tx)
                transactions.send_offsets(ends)

            if not transactions.run(tx, fill):
                rewind(life, consumer, polled)


def rewind(life: WireLife, consumer: Consumer, polled: dict[tuple[str, int], list[Message]]) -> None:
    """Read again what was read for nothing. What is no longer its own, others read."""
    for (topic, partition), each in polled.items():
        life.record("moved", topic=topic, partition=partition, begin=each[0].offset())
        life.positions[topic, partition] = offset_of(each[0])
        life.call("seek", consumer.seek, TopicPartition(topic, partition, offset_of(each[0])))
