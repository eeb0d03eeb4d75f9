"""Clients that are told to use the consumer group protocol of KIP-848, which is not there."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError

from tests.interop.brokers import Broker, fresh
from tests.procs import until


def test_librdkafka_with_the_newer_protocol_fails_at_once(klamm_broker: Broker) -> None:
    settings = {"bootstrap.servers": klamm_broker.address, "group.id": fresh("group"), "group.protocol": "consumer"}
    consumer = Consumer({**settings, "log_level": 0})
    errors: list[KafkaError] = []

    def polled() -> bool:
        message = consumer.poll(0.1)
        if message is not None and (error := message.error()) is not None:
            errors.append(error)
        return any(each.code() == KafkaError._FATAL for each in errors)

    try:
        consumer.subscribe([fresh("topic")])
        until(polled, "a fatal error")
        assert "API version not supported" in str(errors[-1])
    finally:
        consumer.close()
