"""The Kafka door and the server it is measured beside: a warm Apache Kafka, on the same file system, at the same time.

    Klamm    `klamm serve`, a process of its own
    Kafka    one node, broker and controller, with the heap and the collector that its start script gives it; its jars
             are those of the tests (`make tools`)

Both run for the whole of a script, and rounds take turns. Warm: before anything is measured, each server takes and
gives out millions of records of the same kind, so that the JVM has compiled what it will. CPU is the server's own, user
and system, of all its threads; clients are other processes, so theirs is not in it.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _harness as harness
from _before import HERE, Tree
from _processes import together

sys.path.insert(0, str(harness.ROOT))

from klamm.batch import Builder
from klamm.kafka.wire.frames import request_frame
from klamm.kafka.wire.messages import API_VERSIONS, DELETE_TOPICS, METADATA, PRODUCE
from tests.interop.java_tools import JARS, TOOLS, java
from tests.interop.kafka_broker import PROPERTIES
from tests.interop.raw import ConnectionEnded, Raw

# As kafka-server-start.sh and kafka-run-class.sh have them.
SERVER_FLAGS = ["-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
SERVER_FLAGS += ["-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"]
QUICK_FLAGS = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
CLIENT_FLAGS = ["-Xmx512M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]

# Kafka's defaults where the tests have less, and deleted topics do not fill the disk.
MORE = """
num.network.threads=3
num.io.threads=8
log.segment.delete.delay.ms=1000
auto.create.topics.enable=false
socket.listen.backlog.size=1024
"""

PATIENCE_S = 60


def arguments(question: str, *, rounds: int = 5, **more: Any) -> argparse.Namespace:
    """Those of every script; one round is enough to see that a script works."""
    options = harness.arguments(question, rounds=rounds, **more)
    if options.quick:
        options.rounds = 1
    return options


def version() -> str:
    """Of the Apache Kafka whose jars are there."""
    found = [re.fullmatch(r"kafka-clients-(.+)\.jar", each.name) for each in JARS.glob("kafka-clients-*.jar")]
    if not found or shutil.which("java") is None:
        raise SystemExit("there is no Apache Kafka to compare with: see `make tools`")
    assert found[0]
    return found[0][1]


def jvm(flags: list[str], main: str, *arguments: str) -> list[str]:
    """The command that runs a class of Kafka's."""
    logs = [each for each in java(main) if each.startswith("-Dlog4j2")]
    return ["java", *flags, *logs, "-Dlevel=WARN", "-cp", f"{JARS}/*", main, *arguments]


def tool(name: str, *arguments: str) -> list[str]:
    """The command that runs a tool of Kafka's, as its script does."""
    return jvm(CLIENT_FLAGS, TOOLS[name], *arguments)


# ---- servers


class Server:
    """A process that listens."""

    def __init__(
        self, name: str, command: list[str], port: int, log: Path, environment: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self.address = f"127.0.0.1:{port}"
        self.log = log
        bound = ["setpriv", "--pdeathsig=KILL"] if shutil.which("setpriv") else []
        with log.open("ab") as out:
            self.started = time.perf_counter()
            self.process = subprocess.Popen(
                [*bound, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment
            )
        self.pid = self.process.pid
        self.answered_after = 0.0
        """Seconds until its first answer, after `wait`."""

    def wait(self) -> None:
        """Until it has answered what every client asks first."""
        end = time.monotonic() + PATIENCE_S
        while True:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.name} does not answer: {self.log.read_text(errors='replace')[-4000:]}")
            with contextlib.suppress(OSError, ConnectionEnded), Raw(self.address, patience=5) as raw:
                raw.ask(API_VERSIONS, 3, client_software_name="bench", client_software_version="1")
                if raw.ask(METADATA, 9, topics=[], allow_auto_topic_creation=False).brokers:
                    break
            time.sleep(0.002)
        self.answered_after = time.perf_counter() - self.started

    def cpu(self) -> float:
        """Seconds it has used so far."""
        return cpu_of(self.pid)

    def memory(self) -> float:
        """MB that it holds now: its resident set."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found
        return int(found[1]) * 1024 / 1e6

    def topic(self, partitions: int = 1, **configs: str) -> str:
        """A new one; settings with _ for the dots."""
        with Raw(self.address) as raw:
            return raw.create(f"bench-{secrets.token_hex(4)}", partitions, **configs)

    def delete(self, topic: str) -> None:
        with Raw(self.address) as raw:
            raw.ask(DELETE_TOPICS, 5, topic_names=[topic], timeout_ms=30_000)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def cpu_of(pid: int) -> float:
    """Seconds of CPU, user and system, of all threads of a process, by its CPU clock."""
    return time.clock_gettime((~pid << 3) | 2)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_klamm(directory: str, tree: Tree = HERE) -> Server:
    """On the store of that directory, which is made if need be."""
    port = free_port()
    command = [sys.executable, "-m", "klamm", "serve", f"{directory}/store", f"--kafka={port}"]
    command += ["--set", "max.connections=20000"]
    return Server("Klamm", command, port, Path(directory, "klamm.log"), tree.environment)


def format_kafka(directory: str) -> str:
    """Its properties, after its storage has been made."""
    file = Path(directory, "server.properties")
    port, controller = free_port(), free_port()
    file.write_text(PROPERTIES.format(port=port, controller=controller, directory=directory) + MORE)
    name = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")
    made = java("kafka.tools.StorageTool", "format", "--standalone", "-t", name, "-c", str(file))
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    return str(file)


def start_kafka(file: str, *, quick: bool = False) -> Server:
    port = re.search(r"listeners=PLAINTEXT://127.0.0.1:(\d+)", Path(file).read_text())
    assert port
    command = jvm(QUICK_FLAGS if quick else SERVER_FLAGS, "kafka.Kafka", file)
    return Server("Apache Kafka", command, int(port[1]), Path(file).parent / "kafka.log")


@contextlib.contextmanager
def servers(*, quick: bool) -> Iterator[dict[str, Server]]:
    """Both, listening: "klamm" and "kafka"."""
    version()
    with harness.folder() as path, contextlib.ExitStack() as stack:
        started = {}
        for name in ("kafka", "klamm"):
            os.mkdir(f"{path}/{name}")
            directory = f"{path}/{name}"
            started[name] = (
                start_klamm(directory) if name == "klamm" else start_kafka(format_kafka(directory), quick=quick)
            )
            stack.callback(started[name].stop)
        for server in started.values():
            server.wait()
        yield started


# ---- records through confluent-kafka, which is librdkafka


@dataclass
class Load:
    """What a client did, and what it cost the server."""

    count: int
    wall: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.count / self.wall

    @property
    def cpu_per_million(self) -> float:
        return self.cpu / self.count * 1e6


def produce(
    start, address: str, pid: int, topic: str, size: int, count: int, security: dict[str, str] | None = None
) -> Load:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": address,
            "acks": 1,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 256 * 1024,
            **(security or {}),
        }
    )
    value = bytes(size)
    producer.produce(topic, value)  # connects, and learns where the topic is
    producer.flush()
    start()
    put, poll = producer.produce, producer.poll
    before, cpu = time.perf_counter(), cpu_of(pid)
    left = count
    while left:
        try:
            while left:
                put(topic, value)
                left -= 1
        except BufferError:  # the client has as many as it will hold
            poll(0.005)
    left = producer.flush(PATIENCE_S)
    load = Load(count, time.perf_counter() - before, cpu_of(pid) - cpu)
    if left:
        raise RuntimeError(f"{left} of {count} records were not taken")
    return load


def consume(start, address: str, pid: int, topic: str, count: int, security: dict[str, str] | None = None) -> Load:
    """Reads what `produce` has put there."""
    from confluent_kafka import Consumer, TopicPartition

    config = {"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**config, **(security or {})})
    start()
    before, cpu = time.perf_counter(), cpu_of(pid)
    consumer.assign([TopicPartition(topic, 0, 1)])  # after the one that connected the producer
    left, end = count, before + PATIENCE_S
    while left and time.perf_counter() < end:
        batch = consumer.consume(min(left, 10_000), 1.0)
        if batch and batch[0].error() is not None:
            raise RuntimeError(batch[0].error())
        left -= len(batch)
    load = Load(count, time.perf_counter() - before, cpu_of(pid) - cpu)
    consumer.close()
    if left:
        raise RuntimeError(f"{left} of {count} records did not come")
    return load


def pass_through(server: Server, size: int, count: int) -> tuple[Load, Load]:
    """So many records in, and out again."""
    topic = server.topic()
    (put,) = together([(produce, (server.address, server.pid, topic, size, count))])
    (got,) = together([(consume, (server.address, server.pid, topic, count))])
    server.delete(topic)
    return put, got


def warm(started: dict[str, Server], size: int, count: int) -> None:
    for server in started.values():
        pass_through(server, size, count)


def produce_frame(topic: str, value: bytes, acks: str, partition: int = 0) -> bytes:
    """A request that puts one record there."""
    batch = Builder(1 << 20)
    batch.add(None, value, None, int(time.time() * 1000))
    request = PRODUCE.request
    one = request.Partition(index=partition, records=bytes(batch.seal(0)))
    data = [request.Topic(name=topic, partition_data=[one])]
    whole = request(acks=-1 if acks == "all" else int(acks), timeout_ms=30_000, topic_data=data)
    return b"".join(request_frame(PRODUCE, 9, 1, "bench", whole))


# ---- answers


def compare(
    options: argparse.Namespace,
    client: str,
    through: Callable[[Server, int, int], tuple[Load, Load]] = pass_through,
    *,
    part: int = 4,
    few: int = 1000,
) -> None:
    """Records in and out, of 100 B, and a `part` of as many of 1 KiB; `few` when it has to be quick."""
    peer = f"Apache Kafka {version()}, warm"
    with servers(quick=options.quick) as started:
        for size, share in ((100, 1), (1024, part)):
            if options.only not in f"{size} B":
                continue
            count = few if options.quick else options.count // share
            for server in started.values():
                through(server, size, few if options.quick else options.warm // share)
            found = harness.interleave(
                {
                    name: lambda server=server, size=size, count=count: through(server, size, count)
                    for name, server in started.items()
                },
                options.rounds,
                warm=False,
            )
            for at, way in ((0, "produce"), (1, "consume")):
                ours, theirs = ([each[at] for each in found[name]] for name in ("klamm", "kafka"))
                answer_rate(f"{way} {size} B with {client}", ours, peer, theirs)
                answer_cpu(f"{way} {size} B with {client}, the server's CPU", ours, peer, theirs, 0.5)


def answer_rate(question: str, ours: list[Load], peer: str, theirs: list[Load]) -> None:
    rates = [[each.rate for each in side] for side in (ours, theirs)]
    harness.answer(question, rates[0], peer, rates[1], harness.at_least(1), unit="records/s", count=ours[0].count)


def answer_cpu(question: str, ours: list[Load], peer: str, theirs: list[Load], most: float) -> None:
    costs = [[each.cpu_per_million for each in side] for side in (ours, theirs)]
    want = harness.at_most(most)
    harness.answer(question, costs[0], peer, costs[1], want, unit="s per million records", count=ours[0].count)
