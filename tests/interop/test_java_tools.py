"""Kafka's own tools, and so the Java client: in one JVM, or in a process each where a test kills one."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.interop.brokers import Broker, fresh
from tests.interop.confluents import all_of, consumer, produce, producer, read, record
from tests.interop.java_tools import Tool
from tests.interop.one_jvm import Ran
from tests.interop.records import Written, plain
from tests.messages import offset_of, value_of
from tests.procs import until

RunTool = Callable[..., Ran]


def events(tool: Tool, name: str) -> list[dict[str, Any]]:
    """What a verifiable tool has said so far, by name."""
    found = [json.loads(line) for line in tool.out.splitlines() if line.startswith("{") and line.endswith("}")]
    return [each for each in found if each["name"] == name]


def table(text: str) -> list[dict[str, str]]:
    """Rows of a table whose columns are words."""
    rows = [line.split() for line in text.splitlines() if line.strip()]
    start = next(n for n, row in enumerate(rows) if "TOPIC" in row or "GROUP" in row)
    return [dict(zip(rows[start], row, strict=False)) for row in rows[start + 1 :]]


def test_the_java_tools_create_alter_and_describe_topics(broker: Broker, run_tool: RunTool) -> None:
    server, name = ["--bootstrap-server", broker.address], fresh("topic")
    config = ["--config", "retention.ms=1000000", "--config", "cleanup.policy=compact"]
    create = ["--create", "--topic", name, "--partitions", "2", "--replication-factor", "1", *config]
    assert f"Created topic {name}" in run_tool("topics", *server, *create).done()

    again = run_tool("topics", *server, "--create", "--topic", name)
    alter = run_tool("topics", *server, "--alter", "--topic", name, "--partitions", "4")
    entity = ["--entity-type", "topics", "--entity-name", name]
    change = ["--alter", "--add-config", "segment.bytes=2097152", "--delete-config", "retention.ms"]
    configs = run_tool("configs", *server, *entity, *change)
    brokers = run_tool("configs", *server, "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all")
    assert again.status != 0 and "TopicExistsException" in again.err
    alter.done()
    assert "Completed updating config" in configs.done()
    assert "num.partitions=1" in brokers.done()

    described = run_tool("topics", *server, "--describe", "--topic", name)
    settings = run_tool("configs", *server, *entity, "--describe")
    wrong = run_tool("configs", *server, *entity, "--alter", "--add-config", "segment.bytes=tiny")
    said = described.done()
    assert "PartitionCount: 4" in said and "ReplicationFactor: 1" in said
    assert len(re.findall(r"Partition: \d+\s+Leader: 1\s+Replicas: 1\s+Isr: 1", said)) == 4
    shown = settings.done()
    assert "segment.bytes=2097152" in shown and "cleanup.policy=compact" in shown and "retention.ms=" not in shown
    assert wrong.status != 0 and "InvalidConfiguration" in wrong.err + wrong.out

    deleted = run_tool("topics", *server, "--delete", "--topic", name)
    versions = run_tool("api-versions", *server)
    deleted.done()
    assert "Produce(0): " in versions.done()
    until(lambda: not broker.raw.leads(name, 4), "it is gone")


def test_features_are_described(klamm_broker: Broker, run_tool: RunTool) -> None:
    shown = run_tool("features", "--bootstrap-server", klamm_broker.address, "describe").done()
    levels = {
        name: (int(low), int(high), int(now))
        for name, low, high, now in re.findall(
            r"Feature: (\S+)\s+SupportedMinVersion: (\d+)\s+SupportedMaxVersion: (\d+)\s+FinalizedVersionLevel: (\d+)",
            shown,
        )
    }
    off = dict.fromkeys(["group.version", "share.version", "streams.version"], (0, 0, 0))
    assert levels == {**off, "transaction.version": (0, 2, 2)}, shown


def test_a_java_consumer_with_the_newer_protocol_fails_at_once(klamm_broker: Broker, run_tool: RunTool) -> None:
    where = ["--bootstrap-server", klamm_broker.address, "--topic", klamm_broker.topic()]
    ran = run_tool("console-consumer", *where, "--consumer-property", "group.protocol=consumer")
    assert "UnsupportedVersionException" in ran.err + ran.out


def test_console_producer_and_consumer(broker: Broker, run_tool: RunTool) -> None:
    topic = broker.topic()
    written = [Written(None, b"one"), Written(b"key", b"two", (("h", None), ("h", b"x"))), Written(b"key", b"three")]
    for codec, each in zip(("snappy", "lz4", "zstd"), written, strict=True):
        produce(producer(broker.address, compression_type=codec), topic, [each])
    given = "h1:v1,h2:v2\tkey\tvalue\nh1:v1\tkey\tnothing\n"
    properties = ["parse.key=true", "parse.headers=true", "null.marker=nothing"]
    reading = [word for each in properties for word in ("--reader-property", each)]
    how = ["--sync", "--request-required-acks", "all", "--compression-codec", "gzip"]
    where = ["--bootstrap-server", broker.address, "--topic", topic]
    run_tool("console-producer", *where, *reading, *how, given=given).done()
    shown = ["print.key=true", "print.headers=true", "print.timestamp=true", "print.offset=true", "null.literal=NULL"]
    formats = [word for each in shown for word in ("--formatter-property", each)]
    found = run_tool("console-consumer", *where, "--from-beginning", "--max-messages", "5", *formats).done()
    assert [re.sub(r"CreateTime:\d{13}", "CreateTime", line) for line in found.splitlines()] == [
        "CreateTime\tOffset:0\tNO_HEADERS\tNULL\tone",
        "CreateTime\tOffset:1\th:NULL,h:x\tkey\ttwo",
        "CreateTime\tOffset:2\tNO_HEADERS\tkey\tthree",
        "CreateTime\tOffset:3\th1:v1,h2:v2\tkey\tvalue",
        "CreateTime\tOffset:4\th1:v1\tkey\tNULL",
    ]
    last = record(all_of(broker.address, topic, 5)[-1])
    assert (last.key, last.value, last.headers) == (b"key", None, (("h1", b"v1"),))


def test_verifiable_producer_and_consumers_of_which_one_is_killed(broker: Broker, tools: Any, tmp_path: Path) -> None:
    topic, group = broker.topic(2), fresh("group")
    server = ["--bootstrap-server", broker.address, "--topic", topic]
    quick = tmp_path / "quick.properties"
    quick.write_text("heartbeat.interval.ms=100\nsession.timeout.ms=3000\nfetch.max.wait.ms=100\n")
    members = ["--group-id", group, "--reset-policy", "earliest", "--command-config", str(quick)]
    first, second = (tools("verifiable-consumer", *server, *members) for _ in range(2))
    writer = tools("verifiable-producer", *server, "--max-messages", "1000", "--acks", "-1", "--value-prefix", "7")
    writer.done()
    assert len(events(writer, "producer_send_success")) == 1000

    def has(tool: Tool) -> int:
        given = events(tool, "partitions_assigned")
        taken = events(tool, "partitions_revoked")
        return len(given[-1]["partitions"]) if given and len(given) > len(taken) else 0

    until(lambda: (has(first), has(second)) == (1, 1), "two share")

    def count(*tools: Tool) -> int:
        return sum(event["count"] for tool in tools for event in events(tool, "records_consumed"))

    until(lambda: count(first, second) >= 1000, "all is read")
    committed = [event for tool in (first, second) for event in events(tool, "offsets_committed")]
    assert all(event["success"] for event in committed)
    second.process.send_signal(signal.SIGKILL)
    until(lambda: has(first) == 2, "one has all")
    before = count(first)
    produce(producer(broker.address), topic, plain(5), 0)
    produce(producer(broker.address), topic, plain(5), 1)
    until(lambda: count(first) >= before + 10, "it reads all")
    first.process.send_signal(signal.SIGTERM)
    first.ended()
    assert events(first, "shutdown_complete")


def test_a_transactional_copier_copies_each_record_once(broker: Broker, run_tool: RunTool) -> None:
    source, target, group = broker.topic(word="source"), broker.topic(word="target"), fresh("group")
    produce(producer(broker.address, compression_type="lz4"), source, plain(200))
    copier = run_tool(
        "transactional-message-copier",
        *["--broker-list", broker.address, "--input-topic", source, "--input-partition", "0"],
        *["--output-topic", target, "--transactional-id", fresh("txn"), "--consumer-group", group],
        *["--transaction-size", "20", "--max-messages", "200", "--enable-random-aborts"],
    )
    copier.done()
    copied = all_of(broker.address, target, 200, isolation_level="read_committed")
    assert [message.value() for message in copied] == [each.value for each in plain(200)]
    with consumer(broker.address, isolation_level="read_committed", enable_partition_eof=True) as reader:
        from confluent_kafka import TopicPartition

        reader.assign([TopicPartition(target, 0, offset_of(copied[-1]) + 1)])
        ended = until(lambda: reader.poll(1), "the end")
        assert ended.error() is not None, "nothing is copied twice"


def test_groups_are_described_reset_and_deleted(broker: Broker, run_tool: RunTool) -> None:
    topic, group, idle = broker.topic(2), fresh("group"), fresh("group")
    produce(producer(broker.address), topic, plain(10))
    server = ["--bootstrap-server", broker.address]
    with consumer(broker.address, group_id=idle) as reader:
        reader.subscribe([topic])
        read(reader, 4)
        reader.commit(asynchronous=False)
    with consumer(broker.address, group_id=group, client_id="reads") as reader:
        reader.subscribe([topic])
        last = read(reader, 4)[-1]
        reader.commit(message=last, asynchronous=False)
        asked = [
            run_tool("consumer-groups", *server, "--describe", "--group", group, *more)
            for more in ([], ["--members", "--verbose"])
        ]
        busy = run_tool("consumer-groups", *server, "--delete", "--group", group)
        offsets, members = (tool.done() for tool in asked)
        rows = {row["PARTITION"]: row for row in table(offsets)}
        assert (rows["0"]["CURRENT-OFFSET"], rows["0"]["LOG-END-OFFSET"], rows["0"]["LAG"]) == ("4", "10", "6")
        assert rows["0"]["CLIENT-ID"] == "reads"
        assert f"{topic}" in members and "reads" in members
        assert "GroupNotEmptyException" in busy.out + busy.err

    def reset(*how: str) -> Ran:
        return run_tool("consumer-groups", *server, "--reset-offsets", "--group", idle, "--topic", topic, *how)

    dry = reset("--to-earliest", "--dry-run")
    listed = run_tool("consumer-groups", *server, "--list")
    assert [row["NEW-OFFSET"] for row in table(dry.done())] == ["0", "0"]
    assert {group, idle} <= set(listed.done().split())
    assert sorted(row["NEW-OFFSET"] for row in table(reset("--to-latest", "--execute").done())) == ["0", "10"]
    with consumer(broker.address, group_id=idle) as reader:
        from confluent_kafka import TopicPartition

        assert reader.committed([TopicPartition(topic, 0)], timeout=20)[0].offset == 10
    away = run_tool("consumer-groups", *server, "--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    deleted = run_tool("consumer-groups", *server, "--delete", "--group", idle)
    assert "Successful" in away.done()
    assert "successful" in deleted.done()


def test_the_java_performance_tools_run_against_the_server(broker: Broker, run_tool: RunTool) -> None:
    topics = {codec: broker.topic(2, word=codec) for codec in ("gzip", "zstd")}
    writers = []
    for codec, topic in topics.items():
        properties = [f"bootstrap.servers={broker.address}", f"compression.type={codec}", "acks=all"]
        if codec == "gzip":
            properties += [f"transactional.id={fresh('txn')}"]
        sizes = ["--num-records", "5000", "--record-size", "200", "--throughput", "-1"]
        writers.append(run_tool("producer-performance", "--topic", topic, *sizes, "--command-property", *properties))
    for writer in writers:
        assert "5000 records sent" in writer.done()
    where = ["--bootstrap-server", broker.address, "--topic", topics["gzip"], "--num-records", "5000"]
    reader = run_tool("consumer-performance", *where)
    with consumer(broker.address) as other:
        other.subscribe([topics["zstd"]])
        assert {len(value_of(message)) for message in read(other, 5000)} == {200}
    *_, row = reader.done().strip().splitlines()
    assert "5000" in row


def test_offsets_records_transactions_and_directories(broker: Broker, run_tool: RunTool, tmp_path: Path) -> None:
    topic, txn = broker.topic(2), fresh("txn")
    server = ["--bootstrap-server", broker.address]
    produce(producer(broker.address), topic, plain(10))
    open_one = producer(broker.address, transactional_id=txn, transaction_timeout_ms=600_000)  # five JVMs are to see it
    open_one.init_transactions(20)
    open_one.begin_transaction()
    produce(open_one, topic, plain(3), 1)
    wanted = tmp_path / "wanted.json"
    wanted.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 4}]}),
    )
    away = run_tool("delete-records", *server, "--offset-json-file", str(wanted))
    listed = run_tool("transactions", *server, "list")
    described = run_tool("transactions", *server, "describe", "--transactional-id", txn)
    writers = run_tool("transactions", *server, "describe-producers", "--topic", topic, "--partition", "1")
    directories = run_tool("log-dirs", *server, "--describe", "--topic-list", topic)
    assert "low_watermark: 4" in away.done()
    assert re.search(rf"^{txn}\s+1\s+\d+\s+Ongoing", listed.done(), re.MULTILINE)
    assert f"{topic}-1" in described.done()
    # producer, its epoch, the coordinator's, last sequence, last timestamp, start of the transaction
    assert re.search(r"^\d+\s+\d+\s+-?\d+\s+2\s+\d{13}\s+0\s*$", writers.done(), re.MULTILINE), writers.out
    assert f'"{topic}-0"' in directories.done()
    first = run_tool("get-offsets", *server, "--topic", topic, "--time", "earliest")
    last = run_tool("get-offsets", *server, "--topic", topic, "--time", "latest")
    assert sorted(first.done().split()) == [f"{topic}:0:4", f"{topic}:1:0"]
    assert sorted(last.done().split()) == [f"{topic}:0:10", f"{topic}:1:3"]
    open_one.abort_transaction(20)
