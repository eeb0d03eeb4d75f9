"""ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions, DescribeLogDirs: what there is, in every version."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.kafka.apis import TABLE
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.frames import read_response
from klamm.kafka.wire.messages import (
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_TOPIC_PARTITIONS,
    METADATA,
)
from klamm.kafka.wire.structs import Struct
from klamm.log import head
from tests.kafka.connect import Raw, Served, served

NOBODY_ASKED = -(2**31)
NO_ID = bytes(16)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[klamm.Store]:
    with klamm.open(tmp_path / "events") as store:
        yield store


@pytest.fixture
def server(store: klamm.Store) -> Iterator[Served]:
    with served(Path(store.path), node_id=7) as server:
        yield server


# ---- ApiVersions


@pytest.mark.parametrize("version", range(5))
def test_what_is_advertised_is_what_the_table_dispatches(raw: Raw, version: int) -> None:
    software = {"client_software_name": "a-test", "client_software_version": "1.0"}
    answer = raw.ask(API_VERSIONS, version, **software)
    assert answer.error_code == 0
    assert {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys} == {
        key: (row.min_version, row.max_version) for key, row in TABLE.items()
    }
    if version >= 3:
        (feature,) = answer.finalized_features
        assert (feature.name, feature.min_version_level, feature.max_version_level) == ("transaction.version", 2, 2)
        assert answer.finalized_features_epoch >= 0
    supported = [(each.name, each.min_version, each.max_version) for each in answer.supported_features]
    off = [(f"{kind}.version", 0, 0) for kind in ("group", "share", "streams")]
    assert supported == ([*off, ("transaction.version", 0, 2)] if version >= 4 else [])


@pytest.mark.parametrize(
    ("name", "version"), [("", "1"), ("a b", "1"), ("a", ""), ("-a", "1"), ("a", "1-"), ("a", "1\n"), ("ä", "1")]
)
def test_a_client_whose_name_or_version_kafka_would_not_take_is_told(raw: Raw, name: str, version: str) -> None:
    answer = raw.ask(API_VERSIONS, 4, client_software_name=name, client_software_version=version)
    assert answer.error_code == ErrorCode.INVALID_REQUEST and answer.api_keys == []
    assert raw.ask(API_VERSIONS, 0).error_code == 0  # the connection goes on


def test_a_version_of_the_future_is_answered_in_version_0_with_the_list(raw: Raw) -> None:
    raw.send_bytes(bytes.fromhex("0000000f 0012 0063 0000002a 0000 00 0261 00 00".replace(" ", "")))
    number, answer = read_response(API_VERSIONS, 0, raw.receive())
    assert (number, answer.error_code) == (42, ErrorCode.UNSUPPORTED_VERSION)
    assert [each.api_key for each in answer.api_keys] == list(TABLE)
    assert raw.ask(API_VERSIONS, 2).error_code == 0


# ---- Metadata


def metadata(raw: Raw, version: int, *names: str, create: bool = False, **fields: Any) -> Struct:
    topics = [METADATA.request.Topic(name=name) for name in names]
    return raw.ask(METADATA, version, topics=topics, allow_auto_topic_creation=create, **fields)


@pytest.mark.parametrize("version", range(14))
def test_metadata_tells_topics_partitions_and_the_one_broker(
    store: klamm.Store, server: Served, raw: Raw, version: int
) -> None:
    info = store.topics.create("orders", partitions=2).info()
    store.topics.create("other")
    answer = metadata(raw, version, "orders")
    (broker,) = answer.brokers
    host, port = server.address.split(":")
    assert (broker.node_id, broker.host, broker.port, broker.rack) == (7, host, int(port), None)
    (topic,) = answer.topics
    assert (topic.error_code, topic.name, topic.is_internal) == (0, "orders", False)
    assert [
        (each.error_code, each.partition_index, each.leader_id, each.replica_nodes, each.isr_nodes)
        for each in topic.partitions
    ] == [(0, 0, 7, [7], [7]), (0, 1, 7, [7], [7])]
    assert [each.offline_replicas for each in topic.partitions] == [[], []]
    assert [each.leader_epoch for each in topic.partitions] == [0 if version >= 7 else -1] * 2
    assert topic.topic_id == (bytes.fromhex(info.id) if version >= 10 else NO_ID)
    assert answer.controller_id == (7 if version >= 1 else -1)
    assert answer.cluster_id == (store.store_id if version >= 2 else None)
    assert topic.topic_authorized_operations == answer.cluster_authorized_operations == NOBODY_ASKED
    assert answer.error_code == 0


@pytest.mark.parametrize("version", range(14))
def test_null_asks_for_all_topics_and_an_empty_list_for_none_but_in_version_0(
    store: klamm.Store, raw: Raw, version: int
) -> None:
    for name in ("b", "a", "c"):
        store.topics.create(name)
    if version >= 1:
        everything = raw.ask(METADATA, version, topics=None)
        assert metadata(raw, version).topics == []
    else:
        everything = metadata(raw, version)
    assert [topic.name for topic in everything.topics] == ["a", "b", "c"]


def test_topics_are_found_by_id_since_version_12(store: klamm.Store, raw: Raw) -> None:
    uuid = bytes.fromhex(store.topics.create("orders").info().id)
    unknown = bytes(15) + b"\1"
    wanted = [METADATA.request.Topic(topic_id=each, name=None) for each in (unknown, uuid, uuid)]
    for version in (12, 13):
        missing, found = raw.ask(METADATA, version, topics=wanted).topics
        assert (missing.error_code, missing.name, missing.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, unknown)
        assert (found.error_code, found.name, found.topic_id) == (0, "orders", uuid)
    for version in (10, 11):
        (refused,) = raw.ask(METADATA, version, topics=wanted[1:2]).topics
        assert (refused.error_code, refused.name) == (ErrorCode.INVALID_REQUEST, "")
    assert list(store.topics) == ["orders"]


@pytest.mark.parametrize("version", [0, 1, 3, 4, 8, 9, 12, 13])
def test_a_topic_that_is_not_there_is_created_and_told_at_once(store: klamm.Store, raw: Raw, version: int) -> None:
    first, again = metadata(raw, version, "a", "b", create=True).topics
    assert (first.name, first.error_code, len(first.partitions)) == ("a", 0, 1)
    assert (again.name, again.error_code, len(again.partitions)) == ("b", 0, 1)
    assert list(store.topics) == ["a", "b"]


def test_a_topic_is_not_created_when_the_client_or_the_server_does_not_want_it(
    store: klamm.Store, raw: Raw, tmp_path: Path
) -> None:
    (topic,) = metadata(raw, 12, "a", create=False).topics
    assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "a", NO_ID)
    assert topic.partitions == []
    with served(tmp_path / "strict", auto_create_topics_enable=False) as server, server.dial() as strict:
        for version in range(14):
            (topic,) = metadata(strict, version, "a", create=True).topics
            assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert strict.ask(METADATA, 12, topics=None).topics == []
    assert list(store.topics) == []


def test_new_topics_get_as_many_partitions_as_the_server_says(tmp_path: Path) -> None:
    with served(tmp_path / "events", default_partitions=5) as server, server.dial() as raw:
        (topic,) = metadata(raw, 13, "a", create=True).topics
        assert [each.partition_index for each in topic.partitions] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("name", ["", ".", "a/b", "ä", "x" * 250])
def test_a_name_that_kafka_would_not_take_is_invalid(store: klamm.Store, raw: Raw, name: str, create: bool) -> None:
    (topic,) = metadata(raw, 9, name, create=create).topics
    assert (topic.error_code, topic.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, name)
    assert list(store.topics) == []


def test_names_that_collide_are_not_both_created(raw: Raw) -> None:
    made, refused, same = metadata(raw, 9, "a.b", "a_b", "a.b", "c", create=True).topics
    assert [each.error_code for each in (made, refused, same)] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION, 0]
    assert same.name == "c"  # a topic asked for twice is answered once


@pytest.mark.parametrize("version", range(8, 14))
def test_everybody_may_do_everything_when_a_client_asks(store: klamm.Store, raw: Raw, version: int) -> None:
    store.topics.create("orders")
    asked = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    answer = metadata(raw, version, "orders", **asked)
    assert answer.topics[0].topic_authorized_operations == 3576  # as Kafka without an authorizer answers
    assert answer.cluster_authorized_operations == (8096 if version <= 10 else NOBODY_ASKED)


def test_what_is_advertised_is_told_to_whomever_dials(tmp_path: Path) -> None:
    with served(tmp_path / "events", advertise="kafka.example:1234") as server, server.dial() as raw:
        (broker,) = metadata(raw, 12).brokers
        assert (broker.host, broker.port) == ("kafka.example", 1234)
        (broker,) = raw.ask(DESCRIBE_CLUSTER, 2).brokers
        assert (broker.host, broker.port) == ("kafka.example", 1234)


def test_a_recovery_starts_an_epoch_and_until_then_it_is_unknown(store: klamm.Store, server: Served, raw: Raw) -> None:
    store.topics.create("orders", partitions=3)
    store.append("orders", b"1", partition=1)
    assert epochs(raw) == [0, 0, 0]
    opened = server.broker.core.topic("orders")
    opened.partition(1)._boot_count = 0  # epochs are counted from 1 then, and not by the clock
    opened.partition(1).log.set_flags(head.NEEDS_RECOVERY)
    assert epochs(raw) == [0, -1, 0]
    store.append("orders", b"2", partition=1)
    assert epochs(raw) == [0, 1, 0]


def epochs(raw: Raw) -> list[int]:
    (topic,) = metadata(raw, 12, "orders").topics
    return [each.leader_epoch for each in topic.partitions]


def test_metadata_of_ten_thousand_partitions_opens_none(server: Served, raw: Raw) -> None:
    server.broker.core.create_topic("wide", 5000, {})
    for number in range(50):
        server.broker.core.create_topic(f"topic-{number}", 100, {})
    answer = raw.ask(METADATA, 12, topics=None)
    assert sum(len(topic.partitions) for topic in answer.topics) == 10_000
    assert [each.name for each in server.broker.topics.all() if each.opened()] == []


# ---- DescribeCluster


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_one_broker(store: klamm.Store, server: Served, raw: Raw, version: int) -> None:
    host, port = server.address.split(":")
    for asked, operations in ((False, NOBODY_ASKED), (True, 8096)):
        answer = raw.ask(DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=asked)
        assert (answer.error_code, answer.error_message) == (0, None)
        assert (answer.cluster_id, answer.controller_id, answer.endpoint_type) == (store.store_id, 7, 1)
        (broker,) = answer.brokers
        assert (broker.broker_id, broker.host, broker.port) == (7, host, int(port))
        assert (broker.rack, broker.is_fenced) == (None, False)
        assert answer.cluster_authorized_operations == operations


@pytest.mark.parametrize("version", [1, 2])
def test_controllers_are_not_here(raw: Raw, version: int) -> None:
    for kind, code in ((2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)):
        answer = raw.ask(DESCRIBE_CLUSTER, version, endpoint_type=kind)
        assert (answer.error_code, answer.brokers) == (code, []) and answer.error_message


# ---- DescribeTopicPartitions


def described(raw: Raw, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Struct:
    request = DESCRIBE_TOPIC_PARTITIONS.request
    return raw.ask(
        DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[request.Topic(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else request.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )


def shown(answer: Struct) -> list[tuple[str, list[int]]]:
    return [(topic.name, [each.partition_index for each in topic.partitions]) for topic in answer.topics]


def test_partitions_are_described_by_name(store: klamm.Store, raw: Raw) -> None:
    uuid = bytes.fromhex(store.topics.create("b", partitions=2).info().id)
    store.topics.create("a")
    answer = described(raw, "nobody", "b", "a", "x/y")
    assert shown(answer) == [("a", [0]), ("b", [0, 1]), ("nobody", []), ("x/y", [])]
    assert [topic.error_code for topic in answer.topics] == [0, 0, 3, 17] and answer.next_cursor is None
    topic = answer.topics[1]
    assert (topic.topic_id, topic.is_internal, topic.topic_authorized_operations) == (uuid, False, 3576)
    (first, _) = topic.partitions
    assert (first.leader_id, first.leader_epoch, first.replica_nodes, first.isr_nodes) == (7, 0, [7], [7])
    assert (first.eligible_leader_replicas, first.last_known_elr, first.offline_replicas) == ([], [], [])


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6, 7, 100])
def test_a_cursor_leads_through_all_partitions_whatever_the_limit(store: klamm.Store, raw: Raw, limit: int) -> None:
    for name, count in (("a", 3), ("b", 1), ("c", 3)):
        store.topics.create(name, count)
    found: list[tuple[str, int]] = []
    cursor: tuple[str, int] | None = None
    for _ in range(10):
        answer = described(raw, limit=limit, cursor=cursor)
        page = [(name, number) for name, numbers in shown(answer) for number in numbers]
        assert all(numbers for _, numbers in shown(answer))
        assert len(page) <= limit
        found += page
        if answer.next_cursor is None:
            break
        assert len(page) == limit
        cursor = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
    assert found == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1), ("c", 2)]


def test_a_cursor_that_cannot_be_is_refused(store: klamm.Store, raw: Raw) -> None:
    store.topics.create("a")
    assert [each.error_code for each in described(raw, "a", cursor=("b", 0)).topics] == [ErrorCode.INVALID_REQUEST]
    assert [each.error_code for each in described(raw, "a", cursor=("a", -1)).topics] == [ErrorCode.INVALID_REQUEST]
    assert shown(described(raw, cursor=("a", 5))) == [("a", [])]
    assert shown(described(raw, cursor=("b", 0))) == []
    assert shown(described(raw, "a", limit=-1)) == [("a", [0])]


# ---- DescribeLogDirs


@pytest.mark.parametrize("version", range(1, 6))
def test_the_directory_of_the_store_and_the_sizes_in_it(store: klamm.Store, raw: Raw, version: int) -> None:
    store.topics.create("a", partitions=2)
    store.topics.create("b", settings={"segment.bytes": 200})
    for _ in range(5):
        store.append("a", b"x" * 100, partition=1)
        store.append("b", b"x" * 100)
    answer = raw.ask(DESCRIBE_LOG_DIRS, version, topics=None)
    (found,) = answer.results
    assert (answer.error_code, found.error_code, found.log_dir) == (0, 0, store.path)
    sizes = {topic.name: [each.partition_size for each in topic.partitions] for topic in found.topics}
    assert sizes == {name: [each.size for each in store.topics.describe(name).partitions] for name in ("a", "b")}
    assert sizes["a"][0] == 0 and sizes["a"][1] > 500 and sizes["b"][0] > 500
    everything = [each for topic in found.topics for each in topic.partitions]
    assert {(each.offset_lag, each.is_future_key) for each in everything} == {(0, False)}
    if version >= 4:
        disk = shutil.disk_usage(store.path)
        assert found.total_bytes == disk.total and 0 < found.usable_bytes < disk.total
    else:
        assert (found.total_bytes, found.usable_bytes) == (-1, -1)
    assert found.is_cordoned is False
    wanted = [DESCRIBE_LOG_DIRS.request.Topic(topic=name, partitions=[1, 9]) for name in ("a", "nobody")]
    (found,) = raw.ask(DESCRIBE_LOG_DIRS, version, topics=wanted).results
    assert [(topic.name, [each.partition_index for each in topic.partitions]) for topic in found.topics] == [("a", [1])]
