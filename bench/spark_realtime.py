"""How long does a record take through Spark's real-time mode, by `klamm serve` and Spark's Kafka connector?

A query copies a topic of two partitions to another, with `trigger(realTime=…)`; one record at a time is sent, and
awaited in the other topic by a consumer that polls without a pause (confluent-kafka, acks=1, linger 0, on both sides).
Milliseconds from `produce` until the consumer has it; p50, with p99 beside, in turn through `klamm serve` and through
Apache Kafka, in one JVM. A round is a query of its own, its first records not counted.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import _harness as harness
import _kafka as kafka
import _spark as spark

FIRST = 30  # records of a query, not counted
PATIENCE_S = 120.0


class Client:
    """Sends a record, and waits until it comes out at the other end."""

    def __init__(self, server: kafka.Server, source: str, sink: str) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition

        place = {"bootstrap.servers": server.address}
        self._producer = Producer({**place, "acks": 1, "linger.ms": 0})
        self._consumer = Consumer({**place, "group.id": secrets.token_hex(4), "fetch.wait.max.ms": 100})
        self._consumer.assign([TopicPartition(sink, number, 0) for number in range(spark.PARTITIONS)])
        self._source = source
        self._sent = 0

    def round_trip(self, timeout_s: float) -> float | None:
        """Return the milliseconds that a record takes; None if it takes longer."""
        self._sent += 1
        value = b"%d" % self._sent
        begin = time.perf_counter()
        self._producer.produce(self._source, value, partition=self._sent % spark.PARTITIONS)
        self._producer.poll(0)
        while time.perf_counter() - begin < timeout_s:
            message = self._consumer.poll(0.01)
            self._producer.poll(0)
            if message is not None and message.error() is None and message.value() == value:
                return (time.perf_counter() - begin) * 1000
        return None

    def close(self) -> None:
        self._producer.flush(kafka.PATIENCE_S)
        self._consumer.close()


def run(session: Any, server: kafka.Server, checkpoint: str, records: int, first: int) -> list[float]:
    """Start a query, wait until it takes records, and measure so many."""
    source, sink = spark.topic(server), spark.topic(server)
    place = {"kafka.bootstrap.servers": server.address}
    rows = session.readStream.format("kafka").options(**place, subscribe=source, startingOffsets="latest").load()
    writer = rows.select("key", "value").writeStream.format("kafka").options(**place, topic=sink)
    writer = writer.option("checkpointLocation", checkpoint).outputMode("update").trigger(realTime="5 minutes")
    query = writer.start()
    client = Client(server, source, sink)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while client.round_trip(0.5) is None:  # Spark does not report when it begins to read
            if not query.isActive or time.monotonic() > deadline:
                raise RuntimeError(f"no record came through: {query.exception()}")
        times = [client.round_trip(PATIENCE_S) for _ in range(first + records)]
        if None in times:
            raise RuntimeError("a record did not come through")
        return [each for each in times[first:] if each is not None]
    finally:
        client.close()
        query.stop()
        for topic in (source, sink):
            server.delete(topic)


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], records=(500, "a round"))
    quick = options.quick
    first, records = (2, 5) if quick else (FIRST, options.records)
    with (
        harness.folder() as path,
        harness.folder() as store,
        spark.broker(quick=quick) as broker,
        spark.session(quick=quick) as session,
    ):
        served = kafka.start_klamm(store)
        try:
            served.wait()
            servers = {"klamm": served, "kafka": broker}
            numbers = iter(range(1_000_000))
            found = harness.interleave(
                {
                    name: lambda server=server: run(session, server, f"{path}/{next(numbers)}", records, first)
                    for name, server in servers.items()
                },
                1 if quick else options.rounds,
            )
        finally:
            served.stop()
    p50 = {name: [harness.percentile(times, 50) for times in rounds] for name, rounds in found.items()}
    p99 = {name: [harness.percentile(times, 99) for times in rounds] for name, rounds in found.items()}
    for name, values, want in (("p50", p50, harness.at_most(1)), ("p99", p99, None)):
        harness.answer(
            "one record through Spark's real-time mode, klamm serve"
            if name == "p50"
            else "one record through Spark's real-time mode, klamm serve: p99",
            values["klamm"],
            spark.peer(),
            values["kafka"],
            want,
            unit=f"ms {name}",
            count=records,
        )


if __name__ == "__main__":
    main()
