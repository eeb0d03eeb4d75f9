"""What does acks=all cost the Kafka door, beside the disk alone and beside acks=1?

    one connection     a bare socket sends a request of one record (100 B) and waits for its response, over and over;
                       beside a loop of pwrite and fdatasync of as many bytes, on the same file system
    16 connections     the same from 16 sockets at once, to one partition and to 16; beside acks=1
    beside a commit    the same load on the server of an earlier commit (--before), which is built in build/before

The figures are the server's CPU a request (user and system, of all its threads), in microseconds, and in `rate` the
requests a second. Clients are a process of their own, whose CPU is not in it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Iterator
from dataclasses import dataclass

import _before
import _harness as harness
import _kafka as kafka
from _processes import together

SIZE = 100
CONNECTIONS = 16


@dataclass
class Cost:
    """What requests cost the server."""

    cpu_us: float
    rate: float


def send(start, address: str, pid: int, topic: str, partitions: int, connections: int, acks: str, count: int) -> Cost:
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        frames = [kafka.produce_frame(topic, bytes(SIZE), acks, n % partitions) for n in range(connections)]
        raws = [stack.enter_context(kafka.Raw(address)) for _ in range(connections)]
        for raw, frame in zip(raws, frames, strict=True):
            raw.send_bytes(frame)
            raw.receive()
            selector.register(raw._socket, selectors.EVENT_READ, (raw, frame))
        start()
        began, cpu = time.perf_counter(), kafka.cpu_of(pid)
        for raw, frame in zip(raws, frames, strict=True):
            raw.send_bytes(frame)
        sent = connections
        done = 0
        while done < count:
            for key, _ in selector.select(kafka.PATIENCE_S):
                raw, frame = key.data
                raw.receive()
                done += 1
                if sent < count:
                    raw.send_bytes(frame)
                    sent += 1
        return Cost((kafka.cpu_of(pid) - cpu) / done * 1e6, done / (time.perf_counter() - began))


def bare(start, path: str, count: int) -> Cost:
    """pwrite and fdatasync, and nothing else."""
    data = bytes(SIZE + 68)  # a batch of one record
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    start()
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        os.pwrite(file, data, number * len(data))
        os.fdatasync(file)
    cost = Cost((time.process_time() - cpu) / count * 1e6, count / (time.perf_counter() - began))
    os.close(file)
    return cost


def one_round(server: kafka.Server, partitions: int, connections: int, acks: str, count: int) -> Cost:
    topic = server.topic(partitions)
    (cost,) = together([(send, (server.address, server.pid, topic, partitions, connections, acks, count))])
    server.delete(topic)
    return cost


@contextlib.contextmanager
def klamm(path: str, tree: _before.Tree) -> Iterator[kafka.Server]:
    os.mkdir(path)
    server = kafka.start_klamm(path, tree)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def answer(question: str, ours: list[Cost], peer: str, theirs: list[Cost], most: float | None, count: int) -> None:
    harness.answer(
        question,
        [cost.cpu_us for cost in ours],
        peer,
        [cost.cpu_us for cost in theirs],
        None if most is None else harness.at_most(most),
        unit="µs of CPU a request",
        rate=harness.digits(harness.median([cost.rate for cost in ours])),
        peer_rate=harness.digits(harness.median([cost.rate for cost in theirs])),
        count=count,
    )


def main() -> None:
    options = kafka.arguments(
        __doc__.splitlines()[0],
        count=(6000, "requests a round"),
        before=("", "also compare with the server of that commit"),
    )
    count = 40 if options.quick else options.count
    with harness.folder() as path, contextlib.ExitStack() as stack:
        server = stack.enter_context(klamm(f"{path}/here", _before.HERE))
        before = _before.build(options.before) if options.before else None
        older = stack.enter_context(klamm(f"{path}/before", before)) if before is not None else None
        for partitions, connections in ((1, 1), (1, CONNECTIONS), (CONNECTIONS, CONNECTIONS)):
            plural = "s" if connections > 1 else ""
            question = f"acks=all, {connections} connection{plural}, {partitions} partition{'s' * (partitions > 1)}"
            if options.only not in question:
                continue
            load = partitions, connections
            sides = {
                "all": lambda load=load: one_round(server, *load, "all", count),
                "one": lambda load=load: one_round(server, *load, "1", count),
            }
            if connections == 1:
                sides["bare"] = lambda: together([(bare, (f"{path}/bare", count))])[0]
            if older is not None:
                sides["before"] = lambda load=load: one_round(older, *load, "all", count)
            found = harness.interleave(sides, options.rounds)
            if connections == 1:
                answer(question, found["all"], "pwrite and fdatasync alone", found["bare"], 2.5, count)
            answer(question, found["all"], "acks=1", found["one"], 3 if connections > 1 else None, count)
            if before is not None:
                answer(question, found["all"], before.name, found["before"], None, count)


if __name__ == "__main__":
    main()
