"""What does `klamm.open("kafka://…")` cost beside a bare confluent-kafka, which it stands on?

--count records of --size bytes with a key, into a topic of four partitions and out of it. Both sides have librdkafka in
this process, and are configured alike: acks=all and idempotence, linger.ms=5, no compression, librdkafka's own
batch.size, 32 MiB that may wait to be sent, and the same options of a consumer (SENDING and READING below). Both look
at each record: in, at what became of it, by `on_delivery`; out, a thousand messages at a time, at its value, or at all
that a Record has. A bare consumer asks each message for an error first: else its value may be one. What differs is what
Klamm does: it chooses partitions as Java does, returns a Delivery for each record, listens in a thread of its own, and
makes a Record of each message.

The server is `klamm serve`, a process of its own, so that cpu_ratio is that of the clients alone; or the brokers of
--address. Each round has a topic of its own, which both kinds of reading read when it was written a moment before.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import _harness as harness
import klamm
from _kafka import start_klamm

PARTITIONS = 4
KEYS = [b"user-%d" % n for n in range(1000)]
SENDING = {  # what a producer of a kafka:// store has
    "linger.ms": 5,
    "enable.idempotence": True,
    "queue.buffering.max.messages": 10_000_000,
    "queue.buffering.max.kbytes": 32 << 10,
}
READING = {  # what a consumer of one has
    "enable.auto.commit": False,
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 5,
    "queued.max.messages.kbytes": 16 << 10,
}


@contextlib.contextmanager
def brokers(address: str) -> Iterator[str]:
    if address:
        yield address.removeprefix("kafka://")
        return
    with harness.folder() as path:
        server = start_klamm(path)
        try:
            server.wait()
            yield server.address
        finally:
            server.stop()


class Sides:
    """Both ways, each of which puts records into a topic of its own and gets them out again."""

    def __init__(self, address: str, count: int, size: int) -> None:
        self._address = address
        self._count = count
        self._value = bytes(size)
        self._numbers = itertools.count()
        self.store = klamm.open(f"kafka://{address}")

    def _topic(self) -> str:
        return self.store.topics.create(f"bench-{next(self._numbers)}", PARTITIONS).name

    def klamm(self) -> tuple[harness.Sample, ...]:
        topic, value = self._topic(), self._value
        with harness.clock(self._count) as put, self.store.producer() as producer:
            sent = [producer.send(topic, value, key=KEYS[n % 1000]) for n in range(self._count)]
            producer.flush()
            assert sum(each.error is None for each in sent) == self._count
        with harness.clock(self._count) as got, self.store.consumer(topic, start="earliest", wait=0) as consumer:
            assert sum(len(record.value) for record in consumer) == self._count * len(value)
        with harness.clock(self._count) as whole, self.store.consumer(topic, start="earliest", wait=0) as consumer:
            size = 0
            for each in consumer:
                _ = each.topic, each.partition, each.offset, each.timestamp, each.key, each.headers, each.leader_epoch
                size += len(each.value)
            assert size == self._count * len(value)
        self.store.topics.delete(topic)
        return put, got, whole

    def bare(self) -> tuple[harness.Sample, ...]:
        from confluent_kafka import Producer

        topic, value, delivered = self._topic(), self._value, 0

        def on_delivery(error: Any, message: Any) -> None:
            nonlocal delivered
            delivered += error is None

        with harness.clock(self._count) as put:
            producer = Producer({"bootstrap.servers": self._address, **SENDING})
            for n in range(self._count):
                while True:
                    try:
                        producer.produce(topic, value, KEYS[n % 1000], on_delivery=on_delivery)
                    except BufferError:
                        producer.poll(0.1)
                    else:
                        break
                if n % 1000 == 0:
                    producer.poll(0)
            producer.flush()
            assert delivered == self._count
        size = 0
        with harness.clock(self._count) as got:
            for messages in self._messages(topic):
                for each in messages:
                    assert each.error() is None
                    size += len(each.value())
        with harness.clock(self._count) as whole:
            for messages in self._messages(topic):
                for each in messages:
                    assert each.error() is None
                    _ = each.topic(), each.partition(), each.offset(), each.timestamp(), each.key(), each.headers()
                    _ = each.leader_epoch()
                    size += len(each.value())
        assert size == 2 * self._count * len(value)
        self.store.topics.delete(topic)
        return put, got, whole

    def _messages(self, topic: str) -> Iterator[list[Any]]:
        """Yield the messages of a topic, a thousand at a time."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._address, "group.id": "bare", **READING})
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        left = self._count
        while left:
            messages = consumer.consume(min(left, 1000), 1.0)
            left -= len(messages)
            yield messages
        consumer.close()


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0],
        count=(200_000, "records a round"),
        size=(100, "bytes of a value"),
        address=("", "of brokers, instead of klamm serve"),
    )
    with brokers(options.address) as address:
        sides = Sides(address, 2_000 if options.quick else options.count, options.size)
        found = harness.interleave({"klamm": sides.klamm, "bare": sides.bare}, options.rounds)
        sides.store.close()
    where = "brokers" if options.address else "klamm serve"
    for number, what in enumerate(("send to", "read from", "read all fields from")):
        ours, theirs = ([each[number] for each in found[name]] for name in ("klamm", "bare"))
        harness.compare(f"{what} kafka://, {where}", ours, "confluent-kafka", theirs, harness.at_least(0.9))


if __name__ == "__main__":
    main()
