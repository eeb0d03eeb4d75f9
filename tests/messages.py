"""Fields of a librdkafka message that was read or acknowledged: its class allows None in each of them."""

from __future__ import annotations

from confluent_kafka import Message

__all__ = ["offset_of", "place_of", "value_of"]


def value_of(message: Message) -> bytes:
    value = message.value()
    assert value is not None
    return value


def offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def place_of(message: Message) -> tuple[str, int]:
    """Return its topic and partition."""
    topic, partition = message.topic(), message.partition()
    assert topic is not None and partition is not None
    return topic, partition
