"""confluent-kafka (librdkafka), as the tests use it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.interop.brokers import fresh
from tests.interop.records import Written

__all__ = ["WAITS_LONG", "all_of", "consumer", "drive", "group_consumer", "produce", "producer", "read", "record"]

BOUND = 60.0
WAITS_LONG = {"fetch_wait_max_ms": 200_000, "socket_timeout_ms": 300_000}  # longer than `read` waits for messages


def producer(address: str, **config: Any) -> Producer:
    settings = {"bootstrap.servers": address, "linger.ms": 2, "message.timeout.ms": 20_000}
    return Producer({**settings, **_dotted(config)})


def _dotted(config: dict[str, Any]) -> dict[str, Any]:
    kept = ("on_", "throttle_cb")
    return {name if name.startswith(kept) else name.replace("_", "."): value for name, value in config.items()}


def produce(made: Producer, topic: str, records: Iterable[Written], partition: int = 0) -> list[Message]:
    """Write the records and wait; the reports, in their order, or the first error."""
    reports: list[Message] = []

    def report(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        reports.append(message)

    for each in records:
        headers: Any = list(each.headers) or None
        made.produce(
            topic, each.value, each.key, partition, on_delivery=report, timestamp=each.timestamp, headers=headers
        )
    assert made.flush(BOUND) == 0, "records were left in the queue"
    return reports


@contextlib.contextmanager
def consumer(address: str, **config: Any) -> Iterator[Consumer]:
    settings = {
        "bootstrap.servers": address,
        "group.id": fresh("group"),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 100,
    }
    made = Consumer({**settings, **_dotted(config)})
    try:
        yield made
    finally:
        made.close()


def group_consumer(address: str, group: str, **config: Any) -> contextlib.AbstractContextManager[Consumer]:
    """A member with short sessions and quick heartbeats."""
    quick = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 100, "group_id": group}
    return consumer(address, **{**quick, **config})


def record(message: Message) -> Written:
    headers: Any = tuple(message.headers() or ())
    return Written(message.key(), message.value(), headers, message.timestamp()[1])


def read(made: Consumer, count: int, bound: float = BOUND) -> list[Message]:
    """The next `count` messages."""
    messages: list[Message] = []
    deadline = time.monotonic() + bound
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages in {bound} s"
        for message in made.consume(count - len(messages), 0.2):
            if message.error():
                raise KafkaException(message.error())
            messages.append(message)
    return messages


def all_of(address: str, topic: str, count: int, partition: int = 0, **config: Any) -> list[Message]:
    """The first `count` messages of a partition."""
    with consumer(address, **config) as made:
        made.assign([TopicPartition(topic, partition, 0)])
        return read(made, count)


def drive(consumers: Iterable[Consumer], until: Callable[[], bool], what: str, bound: float = BOUND) -> None:
    """Poll all, since that is how members take part in their group, until something holds."""
    consumers = list(consumers)
    deadline = time.monotonic() + bound
    while not until():
        assert time.monotonic() < deadline, f"{what}: not within {bound} s"
        for each in consumers:
            message = each.poll(0.01)
            if message is not None and message.error():
                raise KafkaException(message.error())
