"""What do ten thousand waiting consumers cost the Kafka door, beside Apache Kafka?

    parked, 30 s    10,000 connections, each with a Fetch that waits 30 s: the server's share of a core, for 30 s
    parked, 500 ms  the same with what clients ask for by default: 20,000 fetches a second come and go empty
    fan-out         one record to all of them: how long the answer to the producer takes, beside when none waits, and
                    how long it takes until the last one has it

The consumers are bare sockets in a process of their own, whose CPU is not counted. They wait for one partition.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import _harness as harness
import _kafka as kafka
from _waiters import Waiters

RECORDS = 5  # of a round of the fan-out


@contextlib.contextmanager
def waiters(server: kafka.Server, count: int, wait_ms: int) -> Iterator[tuple[Waiters, str]]:
    topic = server.topic()
    made = Waiters(server.address, topic, count, wait_ms, spread_s=min(wait_ms, count) / 1000)
    try:
        yield made, topic
    finally:
        made.close()
        time.sleep(1)  # the server sees them off
        server.delete(topic)


def share(server: kafka.Server, count: int, wait_ms: int, seconds: float) -> tuple[float, float, float]:
    """Of a core, in per cent; fetches a second; the server's memory in MB."""
    with waiters(server, count, wait_ms) as (made, _):
        time.sleep(min(2, seconds))
        answers, cpu, begin = made.answers(), server.cpu(), time.perf_counter()
        time.sleep(seconds)
        wall, cpu = time.perf_counter() - begin, server.cpu() - cpu
        return 100 * cpu / wall, (made.answers() - answers) / wall, server.memory()


def answer_times(raw: kafka.Raw, topic: str, count: int, pause: float) -> Iterator[tuple[int, float]]:
    """When each record was sent, and how many microseconds its answer took."""
    frame = kafka.produce_frame(topic, bytes(100), "1")
    for _ in range(count):
        time.sleep(pause)
        before = time.perf_counter_ns()
        raw.send_bytes(frame)
        raw.receive()
        yield before, (time.perf_counter_ns() - before) / 1000


def fan_out(server: kafka.Server, count: int, pause: float) -> tuple[float, float, float]:
    """Medians: µs of an answer while no client waits, while all do; ms until the last one has the record."""
    with kafka.Raw(server.address) as raw:
        topic = server.topic()
        alone = [took for _, took in answer_times(raw, topic, 2 * RECORDS, pause)]
        server.delete(topic)
        beside, last = [], []
        with waiters(server, count, 30_000) as (made, topic):
            for sent, took in answer_times(raw, topic, RECORDS, pause):
                beside.append(took)
                last.append((max(made.arrivals()) - sent) / 1e6)
    return harness.median(alone), harness.median(beside), harness.median(last)


def main() -> None:
    options = kafka.arguments(
        __doc__.splitlines()[0],
        rounds=3,
        count=(10_000, "connections"),
        seconds=(30.0, "of a round"),
        warm=(3_000_000, "records before the first round"),
    )
    count = 50 if options.quick else options.count
    peer = f"Apache Kafka {kafka.version()}, warm"
    with kafka.servers(quick=options.quick) as started:
        if not options.quick:
            kafka.warm(started, 100, options.warm)
            for wait_ms in (500, 30_000):  # the JVM has seen fetches that wait, too
                share(started["kafka"], count, wait_ms, 5)
        for how, wait_ms, want in (
            ("30 s", 30_000, harness.at_most(5, "figure")),
            ("500 ms", 500, harness.at_most(1)),
        ):
            question = f"{count} parked consumers, {how}"
            if options.only not in question:
                continue
            seconds = 0.5 if options.quick else options.seconds if wait_ms > 500 else options.seconds / 3
            found = harness.interleave(
                {
                    name: lambda server=server, wait_ms=wait_ms, seconds=seconds: share(server, count, wait_ms, seconds)
                    for name, server in started.items()
                },
                options.rounds,
                warm=False,
            )
            fetches, memory = (
                {name: harness.digits(harness.median([each[at] for each in found[name]])) for name in found}
                for at in (1, 2)
            )
            harness.answer(
                question,
                [each[0] for each in found["klamm"]],
                peer,
                [each[0] for each in found["kafka"]],
                want,
                unit="% of a core",
                fetches_s=fetches["klamm"],
                peer_fetches_s=fetches["kafka"],
                memory_mb=memory["klamm"],
                peer_memory_mb=memory["kafka"],
                count=count,
            )
        if options.only in "fan-out":
            pause = 0.05 if options.quick else 1.0
            found = harness.interleave(
                {name: lambda server=server: fan_out(server, count, pause) for name, server in started.items()},
                options.rounds,
                warm=not options.quick,
            )
            ours, theirs = ([list(each) for each in zip(*found[name], strict=True)] for name in ("klamm", "kafka"))
            question = f"fan-out to {count} consumers: the producer's answer"
            harness.answer(question, ours[1], "when nobody waits", ours[0], harness.at_most(2), unit="µs")
            harness.answer(question, ours[1], peer, theirs[1], harness.at_most(1), unit="µs")
            question = f"fan-out to {count} consumers: until the last one has it"
            harness.answer(question, ours[2], peer, theirs[2], harness.at_most(1), unit="ms")


if __name__ == "__main__":
    main()
