"""Clients of every make side by side: in one topic, in one group, and doing nothing."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest

import klamm
from klamm.kafka.wire.messages import FETCH
from tests.interop import aiokafkas, confluents, kafka_pythons
from tests.interop.brokers import Broker, fresh
from tests.interop.java_tools import Tool
from tests.interop.kafka_pythons import kafka
from tests.interop.proxy import Proxy
from tests.interop.records import CODECS, Written
from tests.procs import until

# kafka-python's tasks may end with an error that nobody asks for, when its objects are collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

EACH = 20  # records of a writer


@pytest.fixture
def kcat() -> Iterator[Callable[..., Tool]]:
    found = shutil.which("kcat")
    if found is None:
        pytest.skip("there is no kcat on this machine: see `make tools`")
    with ExitStack() as stack:

        def start(*arguments: str, given: str | None = None) -> Tool:
            made = Tool("kcat", [found, *arguments], given)
            stack.callback(made.close)
            return made

        yield start


def records(writer: str, codec: str) -> list[Written]:
    return [Written(writer.encode(), f"{writer} {codec} {n} ".encode() * 10) for n in range(EACH)]


def lines(writer: str, codec: str) -> str:
    return "".join(f"{each.value.decode()}\n" for each in records(writer, codec) if each.value)


async def _aiokafka_writes(address: str, topic: str, codec: str) -> None:
    async with aiokafkas.producer(address, compression_type=None if codec == "none" else codec) as made:
        await aiokafkas.produce(made, topic, records("aiokafka", codec))


def test_what_one_client_writes_in_any_codec_all_others_read(broker: Broker, run_tool: Any, kcat: Any) -> None:
    address, word = broker.address, fresh("cross")
    topics = {codec: broker.topic(word=f"{word}-{codec}") for codec in CODECS}
    expected: dict[str, set[str]] = {codec: set() for codec in CODECS}

    def written(writer: str, codec: str) -> None:
        expected[codec] |= {each.value.decode().strip() for each in records(writer, codec) if each.value}

    started = []
    for codec, topic in topics.items():
        where = ["--bootstrap-server", address, "--topic", topic, "--compression-codec", codec]
        run_tool("console-producer", *where, given=lines("java", codec)).done()
        started.append(kcat("-P", "-b", address, "-t", topic, "-z", codec, given=lines("kcat", codec)))
        confluents.produce(confluents.producer(address, compression_type=codec), topic, records("confluent", codec))
        asyncio.run(_aiokafka_writes(address, topic, codec))
        writers = ["java", "kcat", "confluent", "aiokafka"]
        if codec != "snappy" or kafka.codec.has_snappy():
            with kafka_pythons.producer(address, compression_type=None if codec == "none" else codec) as made:
                kafka_pythons.produce(made, topic, records("kafka-python", codec))
            writers.append("kafka-python")
        if broker.store:
            with klamm.open(broker.store) as store, store.producer(compression=cast(klamm.Compression, codec)) as ours:
                for each in records("klamm", codec):
                    ours.send(topic, each.value, key=each.key)
            writers.append("klamm")
        for writer in writers:
            written(writer, codec)
    for tool in started:
        tool.done()
    count = sum(map(len, expected.values()))

    where = ["--bootstrap-server", address, "--include", f"{word}-.*", "--group", fresh("group"), "--from-beginning"]
    java = run_tool("console-consumer", *where, "--max-messages", str(count))
    kcats = {codec: kcat("-C", "-b", address, "-t", topic, "-e", "-q") for codec, topic in topics.items()}
    for codec, topic in topics.items():
        wanted, number = expected[codec], len(expected[codec])
        messages = confluents.all_of(address, topic, number)
        found: dict[str, list[Any]] = {"confluent": [message.value() for message in messages]}
        read = asyncio.run(aiokafkas.all_of(address, topic, number))
        found["aiokafka"] = [message.value for message in read]
        if codec != "snappy" or kafka.codec.has_snappy():
            found["kafka-python"] = [message.value for message in kafka_pythons.all_of(address, topic, number)]
        found["kcat"] = [line.encode() for line in kcats[codec].done().splitlines()]
        if broker.store:
            with klamm.open(broker.store) as store, store.consumer(topic, start="earliest", wait=0) as reader:
                found["klamm"] = [each.value for each in reader]
        for reader_name, values in found.items():
            assert len(values) == number, f"{reader_name} reads {codec}"
            assert {value.decode().strip() for value in values} == wanted, f"{reader_name} reads {codec}"
        assert len({tuple(value.strip() for value in values) for values in found.values()}) == 1, "all in one order"
    assert sorted(line.strip() for line in java.done().splitlines()) == sorted(
        line for wanted in expected.values() for line in wanted
    )


# One group


class Loop:
    """An aiokafka consumer with a loop and a thread of its own."""

    def __init__(self, address: str, topic: str, **config: Any) -> None:
        self.parts: set[int] = set()
        self.read = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(address, topic, config)))
        self._thread.start()

    async def _run(self, address: str, topic: str, config: dict[str, Any]) -> None:
        async with aiokafkas.consumer(address, topic, **config) as made:
            while not self._over.is_set():
                polled = await made.getmany(timeout_ms=50)
                self.read += sum(map(len, polled.values()))
                self.parts = {part.partition for part in made.assignment()}

    def close(self) -> None:
        self._over.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_members_of_every_make_share_one_group(broker: Broker, tools: Any, kcat: Any, tmp_path: Any) -> None:
    address, topic, group = broker.address, broker.topic(10), fresh("group")
    quick = tmp_path / "quick.properties"
    assignor = "partition.assignment.strategy=org.apache.kafka.clients.consumer.RangeAssignor"
    quick.write_text(f"heartbeat.interval.ms=100\nsession.timeout.ms=6000\n{assignor}\n")
    with ExitStack() as stack:
        where = ["--bootstrap-server", address, "--topic", topic, "--group-id", group]
        java = tools("verifiable-consumer", *where, "--command-config", str(quick))
        settings = ["-X", "heartbeat.interval.ms=100", "-X", "partition.assignment.strategy=range"]
        cat = kcat("-b", address, *settings, "-G", group, topic)
        ranges = [kafka.coordinator.assignors.range.RangePartitionAssignor]
        snake = kafka_pythons.Member(address, topic, group, partition_assignment_strategy=ranges)
        stack.callback(snake.leave)
        strategy = aiokafkas.RangePartitionAssignor
        loop = Loop(address, topic, group_id=group, partition_assignment_strategy=[strategy])
        stack.callback(loop.close)
        member = stack.enter_context(confluents.group_consumer(address, group, partition_assignment_strategy="range"))
        member.subscribe([topic])

        def held() -> list[int]:
            events = [json.loads(line) for line in java.out.splitlines() if line.startswith("{") and line.endswith("}")]
            given = [each["partitions"] for each in events if each["name"] == "partitions_assigned"]
            told = re.findall(r"assigned: (.*)", cat.err)
            return [
                len(given[-1]) if given else 0,
                told[-1].count(topic) if told else 0,
                len(snake.parts),
                len(loop.parts),
                len(member.assignment()),
            ]

        confluents.drive([member], lambda: held() == [2, 2, 2, 2, 2], "five share ten partitions", 60)
        cat.process.terminate()
        confluents.drive([member], lambda: sorted(held()[:1] + held()[2:]) == [2, 2, 3, 3], "four share them")


# Doing nothing


def test_an_idle_consumer_makes_about_ten_requests_in_five_seconds(broker: Broker, tools: Any, kcat: Any) -> None:
    """By default a fetch waits for half a second. One that is answered at once is asked again at once, for ever."""
    makes = ["confluent", "kafka-python", "aiokafka", "kcat", "java"]
    with ExitStack() as stack:
        proxies = {make: stack.enter_context(Proxy(broker.address)) for make in makes}
        topic = broker.topic()
        confluents.produce(confluents.producer(broker.address), topic, [Written(b"key", b"value")])

        def address(make: str) -> str:
            return proxies[make].address

        default = {"fetch_wait_max_ms": 500}
        member = stack.enter_context(confluents.group_consumer(address("confluent"), fresh("group"), **default))
        member.subscribe([topic])
        snake = kafka_pythons.Member(address("kafka-python"), topic, fresh("group"), fetch_max_wait_ms=500)
        stack.callback(snake.leave)
        loop = Loop(address("aiokafka"), topic, group_id=fresh("group"), fetch_max_wait_ms=500)
        stack.callback(loop.close)
        cat = kcat("-C", "-b", address("kcat"), "-t", topic, "-u")
        java = tools("console-consumer", "--bootstrap-server", address("java"), "--topic", topic, "--from-beginning")
        confluents.read(member, 1)
        until(lambda: "value" in cat.out and "value" in java.out and loop.read and snake.parts, "all have read", 60)
        seven = {make: len(proxies[make].of(FETCH)) + 8 for make in makes}
        confluents.drive(
            [member], lambda: all(len(proxies[make].of(FETCH)) >= seven[make] for make in makes), "they fetch on"
        )
        for make in makes:
            times = [each.at for each in proxies[make].of(FETCH)][seven[make] - 7 : seven[make]]
            took = times[-1] - times[0]
            # Six waits of half a second; a machine that is busy makes them longer, never shorter.
            assert took > 2.4, f"{make}: six fetches in {took:.2f} s: {proxies[make].count()}"
