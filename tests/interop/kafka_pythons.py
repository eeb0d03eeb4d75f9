"""kafka-python, as the tests use it."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from klamm.kafka.wire.messages import PRODUCE
from tests.batch.strategies import batch_of
from tests.interop.brokers import fresh
from tests.interop.raw import Raw
from tests.interop.records import NOW, Written
from tests.procs import until

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it reads its schemas by a deprecated function
    import kafka.admin
    import kafka.codec
    import kafka.errors
    import kafka.structs

    import kafka
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

__all__ = ["Member", "admin", "all_of", "consumer", "drive", "kafka", "produce", "producer", "read", "record"]

BOUND = 60.0


@contextlib.contextmanager
def producer(address: str, **config: Any) -> Iterator[KafkaProducer]:
    made = KafkaProducer(bootstrap_servers=address, max_block_ms=20_000, **config)
    try:
        yield made
    finally:
        made.close(timeout=20)


def produce(made: KafkaProducer, topic: str, records: Iterable[Written], partition: int = 0) -> list[Any]:
    """Write the records and wait; where each went, or the first error."""
    futures = [
        made.send(
            topic,
            value=each.value,
            key=each.key,
            headers=list(each.headers),
            partition=partition,
            timestamp_ms=each.timestamp,
        )
        for each in records
    ]
    made.flush(timeout=BOUND)
    return [future.get(timeout=BOUND) for future in futures]


@contextlib.contextmanager
def consumer(address: str, *topics: str, **config: Any) -> Iterator[KafkaConsumer]:
    settings = {
        "bootstrap_servers": address,
        "group_id": fresh("group"),
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "fetch_max_wait_ms": 100,
        "heartbeat_interval_ms": 100,
        "session_timeout_ms": 6000,
    }
    made = KafkaConsumer(*topics, **{**settings, **config})
    try:
        yield made
    finally:
        made.close()


def record(message: Any) -> Written:
    return Written(message.key, message.value, tuple(map(tuple, message.headers)), message.timestamp)


def read(made: KafkaConsumer, count: int) -> list[Any]:
    """The next `count` messages. For long polls see Member."""
    messages: list[Any] = []
    deadline = time.monotonic() + BOUND
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages in {BOUND} s"
        polled = made.poll(timeout_ms=10_000, max_records=count - len(messages))
        messages += [each for part in polled.values() for each in part]
    return messages


def all_of(address: str, topic: str, count: int, partition: int = 0, **config: Any) -> list[Any]:
    """The first `count` messages of a partition."""
    with consumer(address, **config) as made:
        here = TopicPartition(topic, partition)
        made.assign([here])
        made.seek_to_beginning(here)
        return read(made, count)


def drive(consumers: Iterable[KafkaConsumer], holds: Callable[[], bool], what: str) -> None:
    """Poll all, since that is how members take part in their group, until something holds."""
    consumers = list(consumers)
    deadline = time.monotonic() + BOUND
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {BOUND} s"
        for each in consumers:
            each.poll(timeout_ms=20)


class Member(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """A consumer that a thread of its own polls: in a rebalance, poll waits for the other members.

    It polls for long: this client may stop to take part, for good, when the time of a poll is up in the middle of a
    rebalance. So whoever wants a member to leave writes a record, for poll to come back.
    """

    def __init__(self, address: str, topic: str, group: str, **config: Any) -> None:
        self.parts: set[int] = set()
        self._address, self._topic = address, topic
        self._leaving = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=({"group_id": group, **config},))
        self._thread.start()

    def _run(self, config: dict[str, Any]) -> None:
        try:
            with consumer(self._address, **config) as made:
                # A leader that does not know the topic yet assigns nothing, and may then leave it at that.
                until(lambda: made.partitions_for_topic(self._topic), f"it knows {self._topic}")
                made.subscribe([self._topic], listener=self)
                while not self._leaving.is_set():
                    made.poll(timeout_ms=20_000)
        except BaseException as error:
            self._failed = error

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.parts = set()

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.parts = {part.partition for part in assigned}

    def leave(self) -> None:
        self._leaving.set()
        until(self._has_ended, "a member ends")
        if self._failed is not None:
            raise self._failed

    def _has_ended(self) -> bool:
        """In the middle of a rebalance it has no partition yet in which something could be written for it."""
        with Raw(self._address) as raw:
            for number in self.parts:
                part = PRODUCE.request.Partition(index=number, records=batch_of([(b"wake", b"up", (), NOW)]))
                data = [PRODUCE.request.Topic(name=self._topic, partition_data=[part])]
                raw.ask(PRODUCE, 9, acks=1, timeout_ms=20_000, topic_data=data)
        self._thread.join(0.5)
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


@contextlib.contextmanager
def admin(address: str) -> Iterator[KafkaAdminClient]:
    made = KafkaAdminClient(bootstrap_servers=address)
    try:
        yield made
    finally:
        made.close()
