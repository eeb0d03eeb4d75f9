"""Writers and readers of either door, each a process of its own that writes down what it was told.

    sent      value, partition, offset      acknowledged
    read      partition, offset, value      given to a reader

Values are `writer.number`, and numbers grow as the writer writes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

import klamm
from tests.crash.history import Recorder, read
from tests.messages import value_of
from tests.procs import Flag

__all__ = [
    "PASSING",
    "QUICK",
    "Record",
    "acknowledged",
    "embedded",
    "embedded_reader",
    "embedded_writer",
    "java_read",
    "java_sent",
    "seen",
    "wire_reader",
    "wire_writer",
]

QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0}  # servers come back soon here
PASSING = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}

PAUSE_S = 0.01  # between batches: what is written is read again and again


class Record(NamedTuple):
    partition: int
    offset: int
    value: str


# ---- processes


def embedded_writer(directory: Path, store: str, topic: str, name: str, over: Flag) -> None:
    """Appends by an idempotent producer, one batch after the other."""
    record = Recorder(directory, name)
    with klamm.open(store) as opened, opened.producer(acks=1, linger_ms=1, idempotent=True) as producer:
        partitions, number = len(opened.topics.describe(topic).partitions), 0
        while not over:
            sent = []
            for number in range(number, number + 5):  # noqa: B020  # counts on
                value = f"{name}.{number}"
                sent.append((value, producer.send(topic, value.encode(), partition=number % partitions)))
            number += 1
            producer.flush()
            for value, where in sent:
                record("sent", value=value, partition=where.partition, offset=where.offset)
            time.sleep(PAUSE_S)


def wire_writer(directory: Path, address: str, topic: str, partitions: int, name: str, over: Flag) -> None:
    """Idempotent, too: it sends again what it was not told of."""
    record = Recorder(directory, name)

    def report(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        value = value_of(message).decode()
        record("sent", value=value, partition=message.partition(), offset=message.offset())

    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 1, **QUICK})
    number = 0
    while not over:
        for _ in range(5):
            value = f"{name}.{number}"
            producer.produce(topic, value.encode(), partition=number % partitions, on_delivery=report)
            number += 1
        producer.poll(0)
        time.sleep(PAUSE_S)
    assert producer.flush(60) == 0


def embedded_reader(directory: Path, store: str, topic: str, name: str, over: Flag) -> None:
    record = Recorder(directory, name)
    with klamm.open(store) as opened, opened.consumer(topic, start="earliest") as consumer:
        while not over:
            for each in consumer.poll(timeout=0.02):
                record("read", partition=each.partition, offset=each.offset, value=each.value.decode())


def wire_reader(directory: Path, address: str, topic: str, partitions: int, name: str, over: Flag) -> None:
    record = Recorder(directory, name)
    settings = {"bootstrap.servers": address, "group.id": name, "auto.offset.reset": "error"}
    consumer = Consumer({**settings, **QUICK, "enable.auto.commit": False, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    while not over:
        for message in consumer.consume(500, 0.02):
            if (error := message.error()) is None:
                place = {"partition": message.partition(), "offset": message.offset()}
                record("read", **place, value=value_of(message).decode())
            elif error.code() not in PASSING:
                raise KafkaException(error)
    consumer.close()


# ---- what they wrote down, and what is there


def embedded(store: klamm.Store, topic: str, isolation: klamm.Isolation = "read_committed") -> list[Record]:
    """Everything that is there, by partition and offset."""
    with store.consumer(topic, start="earliest", wait=0, isolation=isolation) as reader:
        return sorted(Record(each.partition, each.offset, each.value.decode()) for each in reader)


def _told(directory: Path, kind: str, names: Callable[[str], bool]) -> Iterator[Record]:
    for path in sorted(directory.glob("*.history")):
        if names(path.stem):
            for event in read(path):
                if event.kind == kind:
                    yield Record(event["partition"], event["offset"], event["value"])


def acknowledged(directory: Path) -> list[Record]:
    return list(_told(directory, "sent", lambda _: True))


def seen(directory: Path, name: str) -> list[Record]:
    return list(_told(directory, "read", lambda each: each == name))


def _lines(said: str, name: str) -> Iterator[Record]:
    """What a tool printed, the line that it was killed in excepted."""
    for line in said.splitlines():
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if told["name"] == name:
            yield Record(told["partition"], told["offset"], told["value"])


def java_sent(said: str) -> list[Record]:
    """Of VerifiableProducer."""
    return list(_lines(said, "producer_send_success"))


def java_read(said: str) -> list[Record]:
    """Of VerifiableConsumer, with --verbose."""
    return list(_lines(said, "record_data"))
