"""How long is one record under way through the Kafka door, until acknowledged and until read, beside Apache Kafka?

    sync         confluent-kafka produces one record at a time (linger.ms=0) and waits for its acknowledgement
    bare sync    the same by a bare socket: a request, its answer, and no client in between
    end to end   one process produces a record that holds the time, every 2 ms; another, in poll(), notes how old it is

acks=1 is the same on both sides. `acks=all` means on disk here, so Kafka's topic is told to flush every message
(flush.messages=1). Kafka shows a record to consumers after that, Klamm as soon as it is committed: so with acks=all the
way to a consumer is only shown beside. p50 of each round, in microseconds; p99 with it.
"""

from __future__ import annotations

import struct
import time

import _harness as harness
import _kafka as kafka
from _processes import together

STAMP = struct.Struct("<q")
END = -1
INTERVAL_S = 0.002
SIZE = 100
FIRST = 50  # not counted


def producer_of(address: str, acks: str):
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": address, "acks": acks, "linger.ms": 0})


def sync(start, address: str, topic: str, acks: str, count: int) -> list[float]:
    producer = producer_of(address, acks)
    value = bytes(SIZE)
    done: list[bool] = []
    times = []

    def delivered(error, _message) -> None:
        if error is not None:
            raise RuntimeError(error)
        done.append(True)

    start()
    for _ in range(count + FIRST):
        before = time.perf_counter_ns()
        producer.produce(topic, value, on_delivery=delivered)
        while not done:
            producer.poll(1.0)
        times.append((time.perf_counter_ns() - before) / 1000)
        done.clear()
    return times[FIRST:]


def bare_sync(start, address: str, topic: str, acks: str, count: int) -> list[float]:
    times = []
    with kafka.Raw(address) as raw:
        frame = kafka.produce_frame(topic, bytes(SIZE), acks)
        start()
        for _ in range(count + FIRST):
            before = time.perf_counter_ns()
            raw.send_bytes(frame)
            raw.receive()
            times.append((time.perf_counter_ns() - before) / 1000)
    return times[FIRST:]


def write_stamps(start, address: str, topic: str, acks: str, count: int) -> None:
    producer = producer_of(address, acks)
    start()
    for _ in range(count + FIRST):
        time.sleep(INTERVAL_S)
        producer.poll(0)
        producer.produce(topic, STAMP.pack(time.perf_counter_ns()).ljust(SIZE))
    time.sleep(0.05)
    producer.produce(topic, STAMP.pack(END).ljust(SIZE))
    producer.flush(kafka.PATIENCE_S)


def read_stamps(start, address: str, topic: str) -> list[float]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(0.5)
    start()
    ages: list[float] = []
    while True:
        message = consumer.poll(kafka.PATIENCE_S)
        now = time.perf_counter_ns()
        if message is None or message.error() is not None:
            raise RuntimeError(message and message.error())
        (stamp,) = STAMP.unpack(message.value()[: STAMP.size])
        if stamp == END:
            consumer.close()
            return ages[FIRST:]
        ages.append((now - stamp) / 1000)


def one_round(server: kafka.Server, how: str, acks: str, count: int) -> list[float]:
    settings = {"flush_messages": "1"} if acks == "all" and server.name != "Klamm" else {}
    topic = server.topic(**settings)
    if how == "end to end":
        jobs = [
            (read_stamps, (server.address, topic)),
            (write_stamps, (server.address, topic, acks, count)),
        ]
    else:
        jobs = [(sync if how == "sync" else bare_sync, (server.address, topic, acks, count))]
    times = together(jobs)[0]
    server.delete(topic)
    return times


def main() -> None:
    options = kafka.arguments(
        __doc__.splitlines()[0],
        count=(2000, "records a round"),
        warm=(3_000_000, "records before the first round"),
        warm_rounds=(10, "rounds of each kind before the first that counts"),
    )
    count = 20 if options.quick else options.count
    with kafka.servers(quick=options.quick) as started:
        kafka.warm(started, SIZE, 1000 if options.quick else options.warm)
        for acks in ("1", "all"):
            for how in ("sync", "bare sync", "end to end"):
                question = f"{how}, acks={acks}"
                if options.only not in question:
                    continue
                sides = {
                    name: lambda server=server, how=how, acks=acks: one_round(server, how, acks, count)
                    for name, server in started.items()
                }
                for _ in range(0 if options.quick else options.warm_rounds):
                    sides["kafka"]()
                found = harness.interleave(sides, options.rounds, warm=False)
                p50 = {side: [harness.percentile(each, 50) for each in runs] for side, runs in found.items()}
                p99 = {
                    side: harness.digits(harness.median([harness.percentile(each, 99) for each in runs]))
                    for side, runs in found.items()
                }
                harness.answer(
                    f"one record, {question}",
                    p50["klamm"],
                    f"Apache Kafka {kafka.version()}, warm" + (", flush.messages=1" if acks == "all" else ""),
                    p50["kafka"],
                    harness.at_most(0.6) if how == "sync" or question == "end to end, acks=1" else None,
                    unit="µs p50",
                    p99=p99["klamm"],
                    peer_p99=p99["kafka"],
                    count=count,
                )


if __name__ == "__main__":
    main()
