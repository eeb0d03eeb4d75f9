"""What librdkafka does wrong, with Apache Kafka and with Klamm alike: the chaos tests over the wire allow for it.

Each test brings it about on purpose, and shows that both brokers answer the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from klamm.kafka.wire.messages import PRODUCE
from tests.interop.brokers import Broker, fresh
from tests.interop.proxy import Proxy
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
            values.append(message.value())
        elif error.code() == KafkaError._PARTITION_EOF:
            consumer.close()
            return values
        else:
            raise KafkaException(error)
    raise AssertionError("the topic has no end")


def test_an_abort_after_a_broken_connection_gives_sequence_numbers_out_again(either: Broker) -> None:
    """The broker has appended a batch when the connection breaks. librdkafka queues it again, and its abort takes it
    from the queue, and its numbers back. The next transaction's first batch has the same numbers, and a broker takes it
    for that one sent again: it acknowledges it, and the transaction is committed without it.
    """
    topic = either.topic()
    reports: dict[bytes, tuple[KafkaError | None, int]] = {}

    def report(error: KafkaError | None, message: Message) -> None:
        reports[message.value()] = error, message.offset()

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
        insist(producer.commit_transaction)
    watcher.close()
    assert reports[b"second"] == (None, 2)  # the offset of the batch that was aborted
    assert committed_values(either, topic) == [b"first"]
