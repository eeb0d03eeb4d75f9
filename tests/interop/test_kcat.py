"""kcat: librdkafka as Debian ships it, an older one than confluent-kafka brings."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.brokers import Broker, fresh
from tests.interop.confluents import produce, producer
from tests.interop.java_tools import Tool
from tests.interop.records import CODECS, Written, plain
from tests.procs import until


@pytest.fixture
def kcat(broker: Broker) -> Iterator[Any]:
    """Starts kcats, and kills those that still run in the end."""
    found = shutil.which("kcat")
    if found is None:
        pytest.skip("there is no kcat on this machine: see `make tools`")
    started: list[Tool] = []

    def start(*arguments: str, given: str | None = None) -> Tool:
        settings = ["-X", "fetch.wait.max.ms=100", "-X", "heartbeat.interval.ms=100"]
        started.append(Tool("kcat", [found, "-b", broker.address, *settings, *arguments], given))
        return started[-1]

    yield start
    for tool in started:
        tool.close()


def lines(tool: Tool) -> list[Any]:
    return [json.loads(line) for line in tool.done().splitlines()]


@pytest.mark.parametrize("codec", CODECS)
def test_lines_written_with_any_acks_and_codec_come_back(broker: Broker, kcat: Any, codec: str) -> None:
    topic = broker.topic()
    words = [f"line {n} " * 20 for n in range(100)]
    for acks in ("1", "all", "0"):
        given = "".join(f"{word}\n" for word in words)
        kcat("-P", "-t", topic, "-z", codec, "-X", f"acks={acks}", given=given).done()
    # Without acks, the writer may be gone before all is written: so read by count.
    found = lines(kcat("-C", "-t", topic, "-J", "-o", "beginning", "-c", "300", "-u"))
    assert [each["payload"] for each in found] == words * 3
    assert [each["offset"] for each in found] == list(range(300))


def test_keys_nulls_headers_and_times(broker: Broker, kcat: Any) -> None:
    topic = broker.topic(message_timestamp_type="LogAppendTime")
    kcat(
        "-P",
        "-t",
        topic,
        "-K:",
        "-Z",
        "-H",
        "a=1",
        "-H",
        "a=2",
        "-H",
        "empty=",
        "-H",
        "null",
        given="key:value\nkey:\n",
    ).done()
    first, second = lines(kcat("-C", "-t", topic, "-J", "-e"))
    assert (first["key"], first["payload"], second["key"], second["payload"]) == ("key", "value", "key", None)
    assert first["headers"] == ["a", "1", "a", "2", "empty", "", "null", None]
    assert first["tstype"] == "logappend" and first["ts"] > 1_750_000_000_000


def test_offsets_are_found_by_time(broker: Broker, kcat: Any) -> None:
    topic = broker.topic()
    produce(producer(broker.address), topic, [Written(b"", b"", (), 1_700_000_000_000 + n) for n in range(10)])
    asked = [kcat("-Q", "-t", f"{topic}:0:{1_700_000_000_000 + n}") for n in (0, 5, 10)]
    asked += [
        kcat("-C", "-t", topic, "-o", f"s@{1_700_000_000_003}", "-o", f"e@{1_700_000_000_006}", "-f", "%o ", "-e")
    ]
    answers = [tool.done().strip() for tool in asked]
    assert answers[:2] == [f"{topic} [0] offset 0", f"{topic} [0] offset 5"]
    assert answers[2] in (f"{topic} [0] offset 10", f"{topic} [0] offset -1")
    assert answers[3] == "3 4 5"


def test_kcat_lists_the_broker_and_the_leader_of_each_partition(broker: Broker, kcat: Any) -> None:
    topic = broker.topic(3)
    told = json.loads(kcat("-L", "-J", "-t", topic).done())
    assert [(node["id"], node["name"]) for node in told["brokers"]] == [(1, broker.address)]
    (mine,) = told["topics"]
    assert [(part["partition"], part["leader"]) for part in mine["partitions"]] == [(0, 1), (1, 1), (2, 1)]


def test_an_idempotent_and_a_transactional_writer(broker: Broker, kcat: Any) -> None:
    topic = broker.topic()
    given = "".join(f"{n}\n" for n in range(500))
    kcat("-P", "-t", topic, "-X", "enable.idempotence=true", "-X", "batch.num.messages=20", given=given).done()
    kcat("-P", "-t", topic, "-X", f"transactional.id={fresh('txn')}", given=given).done()
    # kcat does not count the markers as messages, but its ends do.
    isolation = ["-X", "isolation.level=read_committed"]
    until(lambda: _end(broker, topic) >= 1001, "the marker is written")
    assert kcat("-C", "-t", topic, "-e", "-q", *isolation).done() == given * 2


def _end(broker: Broker, topic: str) -> int:
    from klamm.kafka.wire.messages import LIST_OFFSETS

    part = LIST_OFFSETS.request.Partition(partition_index=0, timestamp=-1)
    asked = [LIST_OFFSETS.request.Topic(name=topic, partitions=[part])]
    answer = broker.raw.ask(LIST_OFFSETS, 7, replica_id=-1, isolation_level=1, topics=asked)
    return int(answer.topics[0].partitions[0].offset)


def test_members_share_a_topic_and_one_is_killed(broker: Broker, kcat: Any) -> None:
    topic, group = broker.topic(4), fresh("group")
    quick = ["-X", "session.timeout.ms=2000", "-X", "auto.offset.reset=earliest", "-u", "-f", "%p:%s\n"]
    first, second = (kcat("-G", group, *quick, topic) for _ in range(2))

    def assigned(tool: Tool) -> int:
        """How many partitions it was given last."""
        told = [line for line in tool.err.splitlines() if "assigned:" in line]
        return told[-1].count(topic) if told else 0

    until(lambda: (assigned(first), assigned(second)) == (2, 2), "two share")
    made = producer(broker.address)
    for partition in range(4):
        produce(made, topic, plain(1), partition)
    until(lambda: len((first.out + second.out).splitlines()) == 4, "all is read")
    second.process.send_signal(signal.SIGKILL)
    until(lambda: assigned(first) == 4, "one has all")
