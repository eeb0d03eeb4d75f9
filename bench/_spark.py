"""The Spark door and what it is measured beside: Spark's own Kafka connector on a warm Apache Kafka, in one session.

    Klamm    format("klamm") on the store's files
    Kafka    format("kafka"), the connector of `make tools`, on the Apache Kafka of `_kafka.py`

Both run in the same JVM, in turns, with a heap of 1 GiB; topics have two partitions, as the session has two cores. CPU
is that of Spark, the JVM and all of its Python processes, user and system; a broker's is counted for those who use one.
A warm round goes before, for the JVM to compile.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import _harness as harness
import _kafka as kafka
import _peers as peers
import klamm

CONNECTOR = harness.ROOT / ".tools" / "spark-kafka"
PARTITIONS = 2
TICKS = os.sysconf("SC_CLK_TCK")
EVERY_S = 0.01
PARTS = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets")
"""Where the time of a micro-batch goes, as Spark names it."""

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.klamm.classArchive": "false",  # a JVM that writes one is busy after its session; `spark_start` measures it
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@contextlib.contextmanager
def session(*, quick: bool, cores: int = 2, **settings: str) -> Iterator[Any]:
    """One with Spark's Kafka connector. Another one after it has the same JVM, which stays warm."""
    if not any(CONNECTOR.glob("spark-sql-kafka*.jar")):
        raise SystemExit("there is no Kafka connector of Spark's to compare with: see `make tools`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark's own
        import klamm.spark

        # By `kafka=`, each session would load the connector again, and the JVM compile it again.
        path = {"spark.driver.extraClassPath": f"{CONNECTOR}/*"}
        made = klamm.spark.session(master=f"local[{cores}]", **path, **SETTINGS, **(QUICK if quick else {}), **settings)
        made.sparkContext.setLogLevel("OFF")
        try:
            yield made
        finally:
            made.stop()


@contextlib.contextmanager
def broker(*, quick: bool) -> Iterator[kafka.Server]:
    """An Apache Kafka, listening. Warm it is when it has been filled."""
    kafka.version()
    with harness.folder() as path:
        server = kafka.start_kafka(kafka.format_kafka(path), quick=quick)
        try:
            server.wait()
            yield server
        finally:
            server.stop()


def peer() -> str:
    return f"Spark's Kafka connector, Apache Kafka {kafka.version()}"


def topic(server: kafka.Server) -> str:
    """A new one."""
    with kafka.Raw(server.address) as raw:
        return raw.create(f"bench-{secrets.token_hex(4)}", PARTITIONS)


def part_of(count: int, size: int) -> tuple[peers.Records, int]:
    """Records of so many bytes, and how often they make `count`."""
    part = peers.records(min(count, 100_000), size)
    return part, count // len(part)


def fill_store(path: str, part: peers.Records, times: int) -> None:
    """A store with a topic `bench`: the records, so often, in turn to the partitions."""
    with klamm.open(path) as store:
        store.topics.create("bench", PARTITIONS)
        for _ in range(times):
            for number in range(PARTITIONS):
                store.append_many("bench", part[number::PARTITIONS], partition=number, acks=1)


def fill(server: kafka.Server, name: str, part: list[tuple[bytes, bytes]], times: int) -> None:
    """The records, so often, in turn to the partitions; batches are as large as the client makes them."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": server.address, "queue.buffering.max.messages": 500_000})
    for _ in range(times):
        for number, (key, value) in enumerate(part):
            while True:
                try:
                    producer.produce(name, value, key, number % PARTITIONS)
                    break
                except BufferError:  # the client has as many as it will hold
                    producer.poll(0.005)
    if producer.flush(kafka.PATIENCE_S):
        raise RuntimeError("records were not taken")


# ---- Spark's processes


def processes(server: kafka.Server | None = None) -> dict[int, str]:
    """Those that this one started, and theirs, with their names; without a broker."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for each in os.listdir("/proc"):
        if each.isdigit():
            with contextlib.suppress(OSError):
                name, rest = Path(f"/proc/{each}/stat").read_text().split("(", 1)[1].rsplit(")", 1)
                parents[int(each)], names[int(each)] = int(rest.split()[1]), name
    found: dict[int, str] = {}
    below = {os.getpid()}
    while below:
        below = {pid for pid, parent in parents.items() if parent in below and not (server and pid == server.pid)}
        found |= {pid: names[pid] for pid in below}
    return found


def cpu(server: kafka.Server | None = None) -> float:
    """Seconds that Spark's processes have used so far, those that ended included."""
    ticks = 0
    for pid in processes(server):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS


@contextlib.contextmanager
def clock(count: float, server: kafka.Server | None = None, *, brokered: bool = False) -> Iterator[harness.Sample]:
    """Times its block: wall, and CPU of Spark, with that of the broker if its block uses it."""
    sample = harness.Sample(count, 0.0, 0.0)

    def spent() -> float:
        return cpu(server) + (server.cpu() if server and brokered else 0.0)

    before, begin = spent(), time.perf_counter()
    yield sample
    sample.wall = time.perf_counter() - begin
    sample.cpu = spent() - before


def compare(
    question: str,
    ours: list[harness.Sample],
    name: str,
    theirs: list[harness.Sample],
    want: harness.Want | None = None,
    **more: Any,
) -> None:
    """Rows a second, with seconds of CPU beside."""
    seconds = [harness.digits(harness.median([each.cpu for each in side])) for side in (ours, theirs)]
    harness.compare(question, ours, name, theirs, want, cpu_s=seconds[0], peer_cpu_s=seconds[1], **more)


def middle(values: list[float]) -> float:
    return harness.digits(harness.median(values))


# ---- streaming queries


@dataclass
class QueryRun:
    """One query: milliseconds of each micro-batch and of its parts, CPU milliseconds of one."""

    whole: list[float]
    parts: dict[str, float]
    cpu: float
    rows: float


class Figures(NamedTuple):
    """What micro-batches took in several runs, in milliseconds."""

    p50: list[float]
    """Of each run."""
    p99: float
    parts: dict[str, float]
    cpu: float

    @classmethod
    def of(cls, runs: list[QueryRun]) -> Figures:
        return cls(
            [harness.percentile(each.whole, 50) for each in runs],
            middle([harness.percentile(each.whole, 99) for each in runs]),
            {name: middle([each.parts[name] for each in runs]) for name in PARTS},
            middle([each.cpu for each in runs]),
        )


class Feeder:
    """Puts records there until it is told to stop."""

    def __init__(self, put: Callable[[], object]) -> None:
        self._stop = threading.Event()
        self._put = put
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            self._put()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def run_query(query: Any, first: int, batches: int, used: Callable[[], float]) -> QueryRun:
    """The query until it has done so many after the first ones."""
    try:
        before = (0, 0.0)
        while True:
            time.sleep(0.1)
            if not query.isActive:
                raise RuntimeError(query.exception())
            last = query.lastProgress
            done = last["batchId"] if last else 0
            if done >= first and not before[0]:
                before = done, used()
            if done >= first + batches:
                spent = (used() - before[1]) / (done - before[0])
                break
        counted = [each for each in query.recentProgress if each["numInputRows"] and each["batchId"] >= first]
    finally:
        query.stop()
    times = [each["durationMs"] for each in counted]
    return QueryRun(
        [float(each["triggerExecution"]) for each in times],
        {name: harness.median([float(each.get(name, 0)) for each in times]) for name in PARTS},
        spent * 1000,
        harness.median([each["numInputRows"] for each in counted]),
    )
