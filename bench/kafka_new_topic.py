"""How long does a new topic keep other clients of the Kafka door waiting, in a store of thousands?

A producer sends one record after the other (acks=1) to a topic that is there; meanwhile another client creates topics,
one at a time, 50 ms apart. The figure is by how much the slowest of the producer's requests around each creation
exceeds the median of all, p50 over the creations; `most` is the worst of them. Beside it, an earlier commit (--before).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time

import _before
import _harness as harness
import _kafka as kafka
from _processes import together
from klamm.kafka.wire.messages import CREATE_TOPICS

AROUND_S = 0.04


def create(raw: kafka.Raw, names: list[str]) -> None:
    topics = [CREATE_TOPICS.request.Topic(name=name, num_partitions=1, replication_factor=1) for name in names]
    answer = raw.ask(CREATE_TOPICS, 5, topics=topics, timeout_ms=60_000, validate_only=False)
    assert not any(each.error_code for each in answer.topics), answer


def measure(start, address: str, topic: str, creations: int) -> list[float]:
    """Milliseconds by which requests are delayed, for each creation."""
    times: list[tuple[float, float]] = []
    over = threading.Event()

    def produce() -> None:
        frame = kafka.produce_frame(topic, bytes(100), "1")
        with kafka.Raw(address) as raw:
            while not over.is_set():
                began = time.perf_counter()
                raw.send_bytes(frame)
                raw.receive()
                times.append((began, time.perf_counter() - began))

    start()
    thread = threading.Thread(target=produce)
    thread.start()
    moments = []
    with kafka.Raw(address) as raw:
        for _ in range(creations):
            time.sleep(0.05)
            began = time.perf_counter()
            create(raw, [f"new-{secrets.token_hex(6)}"])
            moments.append((began, time.perf_counter()))
    time.sleep(0.05)
    over.set()
    thread.join()
    usual = harness.median([took for _, took in times])
    return [
        (max((took for at, took in times if began - 0.005 <= at <= ended + AROUND_S), default=usual) - usual) * 1000
        for began, ended in moments
    ]


def fill(server: kafka.Server, count: int) -> str:
    with kafka.Raw(server.address) as raw:
        for first in range(0, count, 250):
            create(raw, [f"old-{number}" for number in range(first, min(first + 250, count))])
    return server.topic()


def main() -> None:
    options = kafka.arguments(
        __doc__.splitlines()[0],
        topics=(3000, "that are there"),
        creations=(15, "a round"),
        before=("", "compare with the server of that commit"),
    )
    count, creations = (50, 2) if options.quick else (options.topics, options.creations)
    with harness.folder() as path, contextlib.ExitStack() as stack:
        servers = {}
        trees = {"here": _before.HERE} | ({"before": _before.build(options.before)} if options.before else {})
        for name, tree in trees.items():
            os.mkdir(f"{path}/{name}")
            server = kafka.start_klamm(f"{path}/{name}", tree)
            stack.callback(server.stop)
            server.wait()
            servers[name] = server, fill(server, count)
        sides = {
            name: lambda server=server, topic=topic: together([(measure, (server.address, topic, creations))])[0]
            for name, (server, topic) in servers.items()
        }
        found = harness.interleave(sides, options.rounds, warm=False)
        delays = {name: [harness.median(each) for each in runs] for name, runs in found.items()}
        harness.answer(
            f"a new topic among {count}: how long it delays others",
            delays["here"],
            trees["before"].name if options.before else None,
            delays.get("before"),
            harness.at_most(5, of="figure"),
            unit="ms",
            most=harness.digits(max(max(each) for each in found["here"])),
            count=creations,
        )


if __name__ == "__main__":
    main()
