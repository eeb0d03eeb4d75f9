"""What librdkafka does wrong, with Apache Kafka and with Klamm: the chaos tests over the wire allow for it.

Each test brings it about on purpose. Both brokers answer the same, but for sequence numbers that are used again: Apache
Kafka acknowledges records that it does not have.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from klamm.kafka.wire.messages import HEARTBEAT, JOIN_GROUP, PRODUCE, SYNC_GROUP
from tests.interop.brokers import Broker, fresh
from tests.interop.proxy import Proxy
from tests.messages import value_of
from tests.procs import PATIENCE, until

QUICK = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 20, "log_level": 0}


@pytest.fixture(params=["klamm", "apache"])
def either(request: pytest.FixtureRequest) -> Broker:
    made: Broker = request.getfixturevalue(f"{request.param}_broker")
    return made


def insist(call: Callable[..., object], *given: Any) -> None:
    """Call again while librdkafka asks for that."""

    def done() -> bool:
        try:
            call(*given, 1.0)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            return False
        return True

    until(done, call.__name__)


def committed_values(broker: Broker, topic: str) -> list[bytes]:
    settings = {"bootstrap.servers": broker.address, "group.id": fresh("reader"), "isolation.level": "read_committed"}
    consumer = Consumer({**settings, **QUICK, "enable.partition.eof": True, "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values, deadline = [], time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            values.append(value_of(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            consumer.close()
            return values
        else:
            raise KafkaException(error)
    raise AssertionError("the topic has no end")


def cooperative(address: str, group: str, **more: Any) -> Consumer:
    """Return a member of the group that keeps its partitions while the group rebalances, and commits by hand."""
    settings = {
        "bootstrap.servers": address,
        "group.id": group,
        "partition.assignment.strategy": "cooperative-sticky",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "heartbeat.interval.ms": 100,
    }
    return Consumer({**settings, **QUICK, **more})


def test_an_abort_after_a_broken_connection_gives_sequence_numbers_out_again(either: Broker) -> None:
    """The broker has appended a batch when the connection breaks. librdkafka queues it again, and its abort takes it
    from the queue, and its numbers back. The next transaction's first batch has the same numbers. Apache Kafka takes it
    for that one sent again: it acknowledges it, and the transaction is committed without it. Klamm compares the records
    and refuses it: the producer fails, and the next one of its transactional id, of a new epoch, commits.
    """
    topic = either.topic()
    reports: dict[bytes, tuple[KafkaError | None, int | None]] = {}

    def report(error: KafkaError | None, message: Message) -> None:
        reports[value_of(message)] = error, message.offset()

    own = {"group.id": fresh("watcher"), "isolation.level": "read_uncommitted"}
    watcher = Consumer({"bootstrap.servers": either.address, **own, **QUICK})

    def end() -> int:
        return int(watcher.get_watermark_offsets(TopicPartition(topic, 0), 10.0)[1])

    with Proxy(either.address) as proxy:
        settings = {"bootstrap.servers": proxy.address, "transactional.id": fresh("producer"), "linger.ms": 0}
        producer = Producer({**settings, **QUICK})
        insist(producer.init_transactions)
        producer.begin_transaction()
        producer.produce(topic, b"first", partition=0, on_delivery=report)
        insist(producer.commit_transaction)
        until(lambda: end() == 2, "the record and its marker are there")

        producer.begin_transaction()
        proxy.muted.add(PRODUCE.key)
        producer.produce(topic, b"aborted", partition=0, on_delivery=report)
        until(lambda: end() == 3, "the broker has appended it")
        proxy.cut(refuse=True)

        def has_purged() -> bool:
            with pytest.raises(KafkaException) as raised:
                producer.abort_transaction(0.2)  # it cannot tell the broker yet
            assert raised.value.args[0].retriable()
            return b"aborted" in reports

        until(has_purged, "the batch is taken from the queue")
        proxy.muted.clear()
        proxy.refuses = False
        insist(producer.abort_transaction)
        error, _ = reports[b"aborted"]
        assert error is not None and error.code() == KafkaError._PURGE_QUEUE

        producer.begin_transaction()
        producer.produce(topic, b"second", partition=0, on_delivery=report)
        if either.kind == "klamm":
            with pytest.raises(KafkaException) as raised:
                insist(producer.commit_transaction)
            error = raised.value.args[0]
            assert error.fatal() and error.code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
            until(lambda: producer.poll(0.1) >= 0 and b"second" in reports, "the record has failed")
            assert reports[b"second"][0] is not None
            producer = Producer({**settings, **QUICK})
            insist(producer.init_transactions)
            producer.begin_transaction()
            producer.produce(topic, b"second", partition=0, on_delivery=report)
        insist(producer.commit_transaction)
    watcher.close()
    if either.kind == "klamm":
        assert committed_values(either, topic) == [b"first", b"second"]
    else:
        assert reports[b"second"] == (None, 2)  # the offset of the batch that was aborted
        assert committed_values(either, topic) == [b"first"]


# ---- cooperative-sticky


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_a_static_cooperative_member_that_was_forgotten_keeps_its_partitions(either: Broker, static: bool) -> None:
    """A member asks to join again, the connection breaks, and when it is back, the broker has removed it, and another
    member has committed more. Told that it is unknown, librdkafka joins anew. A dynamic member is then asked to use
    the id that it is given, and librdkafka takes its partitions as lost. A static one is let in at once, and librdkafka
    keeps them: it commits, as a member of the new generation, what it had read before, and the group goes back.
    """
    topic, group = either.topic(), fresh("group")
    sender = Producer({"bootstrap.servers": either.address, **QUICK})
    for number in range(10):
        sender.produce(topic, str(number).encode(), partition=0)
    assert sender.flush(PATIENCE) == 0
    told: list[str] = []

    def member(address: str, **more: Any) -> Consumer:
        return cooperative(address, group, **{"session.timeout.ms": 4000, **more})

    def read(consumer: Consumer, upto: int) -> Callable[[], bool]:
        """Read up to an offset, one record at a time."""

        def reads() -> bool:
            message = consumer.poll(0.1)
            return message is not None and message.error() is None and message.offset() == upto - 1

        return reads

    def committed() -> int:
        return int(other.committed([TopicPartition(topic, 0)], 10.0)[0].offset)

    with Proxy(either.address) as proxy:
        own = {"group.instance.id": fresh("instance")} if static else {}
        forgotten = member(proxy.address, **own)
        forgotten.subscribe([topic], on_lost=lambda _, parts: told.append("lost"))
        until(read(forgotten, 5), "the member has read five records")
        seen = len(proxy.of(JOIN_GROUP))
        other = member(either.address)
        other.subscribe([topic])

        def asks_to_join() -> bool:
            other.poll(0.05)
            forgotten.poll(0)
            return len(proxy.of(JOIN_GROUP)) > seen

        proxy.muted.add(JOIN_GROUP.key)
        until(asks_to_join, "the member asks to join again")
        proxy.cut(refuse=True)
        until(read(other, 10), "another member has the partition, and has read all")
        other.commit(offsets=[TopicPartition(topic, 0, 10)], asynchronous=False)
        assert committed() == 10 and not (static and told)  # a dynamic one may have lost them, on a busy machine
        proxy.muted.clear()
        proxy.refuses = False
        other.unsubscribe()

        since = time.monotonic()

        def is_member_again() -> bool:
            """It was given an assignment, and says that it lives."""
            forgotten.poll(0.05)
            synced = [request.at for request in proxy.of(SYNC_GROUP) if request.at > since]
            return bool(synced) and sum(request.at > synced[-1] for request in proxy.of(HEARTBEAT)) > 1

        until(is_member_again, "the member is one again")
        assert set(told) == (set() if static else {"lost"})  # again, where a busy machine kept it from a heartbeat
        if static:  # it still has what it read before, and may commit that
            forgotten.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        assert committed() == (5 if static else 10)
        other.close()
        forgotten.close()


def test_a_cooperative_member_that_keeps_a_partition_may_be_refused_a_commit(either: Broker) -> None:
    """A member has asked to join again, the next generation has begun, and it has not been told: what it commits now is
    of the generation before, and is refused. It keeps the partition and is not asked to read anything again, so it is
    for the application to commit once more. Apache Kafka's own consumer says so: RebalanceInProgressException.
    """
    topic, group = either.topic(), fresh("group")
    told: list[str] = []

    def member(address: str) -> Consumer:
        return cooperative(address, group)

    with Proxy(either.address) as proxy:
        keeper, other = member(proxy.address), member(either.address)
        on_lost, on_revoke = (lambda *_, each=each: told.append(each) for each in ("lost", "revoked"))
        keeper.subscribe([topic], on_assign=lambda *_: told.append("assigned"), on_lost=on_lost, on_revoke=on_revoke)
        until(lambda: keeper.poll(0.05) is None and told, "the member has the partition")
        proxy.held.add(JOIN_GROUP.key)
        other.subscribe([topic])

        def has_begun() -> bool:
            other.poll(0.02)
            keeper.poll(0.02)
            return proxy.holds > 0

        until(has_begun, "the next generation has begun")
        with pytest.raises(KafkaException) as raised:
            keeper.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
        assert raised.value.args[0].code() == KafkaError.ILLEGAL_GENERATION
        proxy.release()

        def has_joined() -> bool:
            other.poll(0.02)
            keeper.poll(0.02)
            return len(told) > 1

        until(has_joined, "the member is one of the next generation")
        assert told == ["assigned", "assigned"]
        keeper.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
        assert keeper.committed([TopicPartition(topic, 0)], 10.0)[0].offset == 0
        other.close()
        keeper.close()
