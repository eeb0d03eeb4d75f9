"""Both doors at once: processes that have the store open, and clients of its server, on the same topics.

Whoever writes, everybody reads the same records in the same order; and whoever is killed, the server too, nothing that
was acknowledged is lost and nothing is there twice.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import klamm
from tests.interop.both_doors import (
    QUICK,
    Record,
    acknowledged,
    embedded,
    embedded_reader,
    embedded_writer,
    java_read,
    java_sent,
    seen,
    wire_reader,
    wire_writer,
)
from tests.interop.confluents import WAITS_LONG, consumer, produce, producer, read
from tests.interop.java_tools import Tool
from tests.interop.records import Written
from tests.messages import offset_of
from tests.procs import Child, Flag, children, until
from tests.serving import Serving

PARTITIONS = 3


@pytest.fixture
def store(server: Serving) -> Iterator[klamm.Store]:
    with klamm.open(server.store) as opened:
        yield opened


# ---- kills


class Crowd:
    """Writers and readers of both doors. A writer that is killed has a successor, with a name of its own."""

    def __init__(self, server: Serving, directory: Path, fork: Callable[[Any], Child], tools: Any) -> None:
        self.server = server
        self.directory = directory
        self.written, self.over = Flag(directory / "written"), Flag(directory / "over")
        self._fork, self._tools = fork, tools
        self._lives = 0
        self.javas: list[Tool] = []
        self.writers: dict[str, tuple[str, Child | Tool]] = {}
        self.readers: list[Child] = []

    def start_writer(self, kind: str) -> None:
        """`kind`: embedded, wire, java."""
        self._lives += 1
        name, directory, topic = str(self._lives), self.directory, "shared"
        started: Child | Tool
        if kind == "java":
            config = directory / "producer.properties"
            config.write_text("enable.idempotence=true\nretries=1000000\nreconnect.backoff.max.ms=200\n")
            where = ["--topic", topic, "--bootstrap-server", self.server.address, "--command-config", str(config)]
            java = self._tools("verifiable-producer", *where, "--throughput", "200", "--value-prefix", name)
            self.javas.append(java)
            started = java
        elif kind == "wire":
            address = self.server.address
            started = self._fork(lambda: wire_writer(directory, address, topic, PARTITIONS, name, self.written))
        else:
            path = str(self.server.store)
            started = self._fork(lambda: embedded_writer(directory, path, topic, name, self.written))
        self.writers[kind] = name, started

    def start_readers(self) -> Tool:
        directory, topic, path, address = self.directory, "shared", str(self.server.store), self.server.address
        self.readers = [
            self._fork(lambda: embedded_reader(directory, path, topic, "embedded-reader", self.over)),
            self._fork(lambda: wire_reader(directory, address, topic, PARTITIONS, "wire-reader", self.over)),
        ]
        config = directory / "consumer.properties"
        config.write_text("isolation.level=read_committed\nreconnect.backoff.max.ms=200\nheartbeat.interval.ms=300\n")
        where = ["--topic", topic, "--bootstrap-server", address, "--command-config", str(config)]
        java: Tool = self._tools("verifiable-consumer", *where, "--group-id", "java", "--verbose")
        return java

    def acknowledged(self) -> list[Record]:
        return acknowledged(self.directory) + [record for java in self.javas for record in java_sent(java.out)]

    def everybody_goes_on(self) -> None:
        """Each writer that lives now is told of more records than before."""

        def told(name: str, writer: Child | Tool) -> int:
            if isinstance(writer, Tool):
                return writer.out.count("producer_send_success")
            history = self.directory / f"{name}.history"
            return history.stat().st_size if history.exists() else 0

        before = {name: told(name, writer) for name, writer in self.writers.values()}

        def went_on(name: str, writer: Child | Tool) -> bool:
            return told(name, writer) > before[name]

        for name, writer in self.writers.values():
            until(partial(went_on, name, writer), f"{name} goes on", 60)

    def kill(self, kind: str) -> None:
        _, victim = self.writers[kind]
        if isinstance(victim, Tool):
            victim.process.kill()
            victim.process.wait(30)
        else:
            victim.kill()

    def end_writers(self) -> None:
        self.written.up()
        for _, writer in self.writers.values():
            if isinstance(writer, Tool):
                writer.process.terminate()
                writer.ended()
            else:
                writer.answer(60)


def test_whoever_is_killed_all_have_the_same_records_once_and_in_order(
    server: Serving, store: klamm.Store, tools: Any, tmp_path: Path
) -> None:
    store.topics.create("shared", PARTITIONS, {"segment.bytes": "60000", "index.interval.bytes": "1000"})
    with children() as fork:
        crowd = Crowd(server, tmp_path, fork, tools)
        java = crowd.start_readers()
        for kind in "java", "embedded", "wire":
            crowd.start_writer(kind)
        for victims in ["kill"], ["embedded"], ["wire", "kill"], ["java", "stop"], ["embedded", "wire", "kill"]:
            crowd.everybody_goes_on()
            for victim in victims:
                if victim in crowd.writers:
                    crowd.kill(victim)
                else:
                    server.restart(victim)
            for victim in victims:
                if victim in crowd.writers:
                    crowd.start_writer(victim)
        crowd.everybody_goes_on()
        crowd.end_writers()
        told, there = crowd.acknowledged(), embedded(store, "shared")

        def java_saw() -> list[Record]:
            return sorted(set(java_read(java.out)))  # at least once: what was not committed comes again

        until(lambda: len(seen(tmp_path, "embedded-reader")) >= len(there), "the embedded reader is at the end")
        until(lambda: len(seen(tmp_path, "wire-reader")) >= len(there), "the reader of the wire is at the end")
        until(lambda: len(java_saw()) >= len(there), "Java's reader is at the end")
        crowd.over.up()
        for reader in crowd.readers:
            reader.answer()
    assert set(told) <= set(there), f"lost: {sorted(set(told) - set(there))[:10]}"
    values = [record.value for record in there]
    assert len(set(values)) == len(values), "something is there twice"
    last: dict[tuple[int, str], int] = defaultdict(lambda: -1)
    for partition, _, value in there:
        writer, number = value.split(".")
        assert last[partition, writer] < int(number), f"{value} is out of order"
        last[partition, writer] = int(number)
    for name in "embedded-reader", "wire-reader":
        saw = seen(tmp_path, name)
        assert sorted(saw, key=lambda record: record.partition) == there, f"{name} saw something else"  # in its order
    assert java_saw() == there
    assert store.check().ok


# ---- waking


def test_an_embedded_append_wakes_a_consumer_of_the_wire(server: Serving, store: klamm.Store, tmp_path: Path) -> None:
    """Its fetches would wait for longer than this test. Another process appends, each time that it is asked to."""
    store.topics.create("bell")
    asked = [Flag(tmp_path / f"asked-{n}") for n in range(15)]

    def append() -> None:
        with klamm.open(server.store) as opened:
            for flag in asked:
                flag.wait()
                opened.append("bell", flag.path.encode(), acks=1)

    with children() as fork:
        fork(append)
        with consumer(server.address, **WAITS_LONG) as reader:
            reader.assign([TopicPartition("bell", 0, 0)])
            for flag in asked:
                flag.up()
                (message,) = read(reader, 1)
                assert message.value() == flag.path.encode()


def test_what_comes_over_the_wire_wakes_an_embedded_consumer(
    server: Serving, store: klamm.Store, tmp_path: Path
) -> None:
    store.topics.create("bell")
    with store.consumer("bell", start="earliest") as reader, children() as fork:
        reads = Flag(tmp_path / "reads")

        def follow() -> list[int]:
            with klamm.open(server.store) as opened, opened.consumer("bell", start="earliest") as other:
                reads.up()
                found: list[int] = []
                while len(found) < 15:
                    found += [int(each.value) for each in other.poll()]
                return found

        child = fork(follow)
        reads.wait()
        made = producer(server.address, linger_ms=0)
        for number in range(15):
            produce(made, "bell", [Written(None, b"%d" % number, (), 0)])
            assert len(reader.poll()) == 1  # it comes before the next is sent
        assert child.answer() == list(range(15))


# ---- restarts


def numbers(begin: int, end: int) -> list[Written]:
    return [Written(None, b"%d" % n, (), 0) for n in range(begin, end)]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_an_idempotent_producer_goes_on_over_a_restart(server: Serving, store: klamm.Store, how: str) -> None:
    """It knows its producer id and numbers, and so does the new server."""
    store.topics.create("numbers")
    made = Producer({"bootstrap.servers": server.address, "enable.idempotence": True, "linger.ms": 1, **QUICK})
    first = produce(made, "numbers", numbers(0, 20))
    server.restart(how)
    second = produce(made, "numbers", numbers(20, 40))
    assert [message.offset() for message in first + second] == list(range(40))
    assert [record.value for record in embedded(store, "numbers")] == [str(n) for n in range(40)]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_consumer_goes_on_over_a_restart_and_over_one_of_its_own(
    server: Serving, store: klamm.Store, how: str
) -> None:
    store.topics.create("numbers")
    store.append_many("numbers", [b"%d" % n for n in range(20)], partition=0)
    settings: dict[str, Any] = {"bootstrap.servers": server.address, "group.id": "g", "auto.offset.reset": "earliest"}
    settings |= {"enable.auto.commit": False, "session.timeout.ms": 2000, "heartbeat.interval.ms": 100, **QUICK}
    member = Consumer(settings)
    try:
        member.subscribe(["numbers"])
        assert [message.offset() for message in read(member, 5)] == list(range(5))
        member.commit(asynchronous=False)
        server.restart(how)
        store.append_many("numbers", [b"%d" % n for n in range(20, 25)], partition=0)
        assert sorted(set(_through(member, 24))) == list(range(5, 25))  # from what it has committed, maybe twice
    finally:
        member.close()
    server.restart(how)
    member = Consumer(settings)
    try:
        member.subscribe(["numbers"])
        assert _through(member, 24)[0] == 5  # what was committed, before two servers
    finally:
        member.close()


def _through(member: Consumer, last: int) -> list[int]:
    """The offsets that a consumer is given until `last`, whatever happens to its connections."""
    found: list[int] = []
    deadline = time.monotonic() + 30
    while not found or found[-1] < last:
        assert time.monotonic() < deadline, found
        message = member.poll(0.1)
        if message is not None and message.error() is None:
            found.append(offset_of(message))
    return found
