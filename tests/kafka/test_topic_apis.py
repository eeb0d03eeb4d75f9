"""CreateTopics, CreatePartitions, DeleteTopics, DeleteRecords, in every version."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.kafka.error_codes import ErrorCode as E
from klamm.kafka.wire.messages import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    LIST_OFFSETS,
    METADATA,
)
from klamm.kafka.wire.structs import Struct
from tests.kafka.connect import Raw, Served, served

NO_ID = bytes(16)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[klamm.Store]:
    with klamm.open(tmp_path / "events") as store:
        yield store


@pytest.fixture
def server(store: klamm.Store) -> Iterator[Served]:
    with served(Path(store.path), default_partitions=3) as server:
        yield server


def new(
    name: str,
    partitions: int = -1,
    replicas: int = -1,
    assigned: dict[int, list[int]] | None = None,
    **configs: str | None,
) -> Struct:
    request = CREATE_TOPICS.request
    return request.Topic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[request.Assignment(partition_index=at, broker_ids=to) for at, to in (assigned or {}).items()],
        configs=[request.Config(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def create(raw: Raw, *topics: Struct, version: int = 7, **fields: Any) -> list[Struct]:
    answer: list[Struct] = raw.ask(CREATE_TOPICS, version, topics=list(topics), **fields).topics
    return answer


def codes(answers: list[Struct]) -> list[int]:
    return [each.error_code for each in answers]


# ---- CreateTopics


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_created_as_it_is_wanted(store: klamm.Store, raw: Raw, version: int) -> None:
    (made,) = create(raw, new("orders", 2, 1, retention_ms="1000"), version=version)
    info = store.topics.describe("orders")
    assert len(info.partitions) == 2 and info.settings == {"retention.ms": "1000"}
    assert (made.name, made.error_code, made.error_message) == ("orders", 0, None)
    assert made.topic_id == (bytes.fromhex(info.id) if version >= 7 else NO_ID)
    if version >= 5:
        assert (made.num_partitions, made.replication_factor, made.topic_config_error_code) == (2, 1, 0)
        shown = {each.name: (each.value, each.config_source, each.read_only) for each in made.configs}
        assert shown["retention.ms"] == ("1000", 1, False) and shown["segment.ms"] == ("604800000", 5, False)
        assert shown["min.insync.replicas"] == ("1", 5, True)
        assert not any(each.is_sensitive for each in made.configs)


@pytest.mark.parametrize("replicas", [-1, 1, 2, 3, 32767])
def test_there_is_one_replica_however_many_are_wanted(raw: Raw, replicas: int) -> None:
    (made,) = create(raw, new("orders", 1, replicas))
    assert (made.error_code, made.replication_factor) == (0, 1)


@pytest.mark.parametrize("version", range(2, 8))
def test_validating_tells_the_same_and_changes_nothing(store: klamm.Store, raw: Raw, version: int) -> None:
    store.topics.create("old")
    wanted = [new("good"), new("old"), new("bad", 0), new("worse", 1, retention_ms="x"), new("a/b")]
    answers = create(raw, *wanted, version=version, validate_only=True)
    assert codes(answers) == [
        0,
        E.TOPIC_ALREADY_EXISTS,
        E.INVALID_PARTITIONS,
        E.INVALID_CONFIG,
        E.INVALID_TOPIC_EXCEPTION,
    ]
    assert list(store.topics) == ["old"] and answers[0].topic_id == NO_ID
    assert answers[0].num_partitions == (3 if version >= 5 else -1)  # the server's default
    assert codes(create(raw, *wanted, version=version)) == codes(answers)
    assert list(store.topics) == ["good", "old"] and len(store.topics.describe("good").partitions) == 3


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (new("a", 0), E.INVALID_PARTITIONS),
        (new("a", -2), E.INVALID_PARTITIONS),
        (new("a", 10_001), E.INVALID_PARTITIONS),
        (new("a", 1, 0), E.INVALID_REPLICATION_FACTOR),
        (new("a", 1, -2), E.INVALID_REPLICATION_FACTOR),
        (new("", 1), E.INVALID_TOPIC_EXCEPTION),
        (new("..", 1), E.INVALID_TOPIC_EXCEPTION),
        (new("x" * 250, 1), E.INVALID_TOPIC_EXCEPTION),
        (new("or_ders", 1), E.INVALID_TOPIC_EXCEPTION),
        (new("or.ders", 1), E.TOPIC_ALREADY_EXISTS),
        (new("or.ders", 0, 0, no_such="1"), E.TOPIC_ALREADY_EXISTS),
        (new("a", 1, no_such="1"), E.INVALID_CONFIG),
        (new("a", 1, retention_ms="soon"), E.INVALID_CONFIG),
        (new("a", 1, retention_ms=None), E.INVALID_CONFIG),
        (new("a", 1, min_insync_replicas="0"), E.INVALID_CONFIG),
        (new("a", 1, assigned={0: [1]}), E.INVALID_REQUEST),
        (new("a", -1, 1, {0: [1]}), E.INVALID_REQUEST),
        (new("a", -1, -1, {0: [2]}), E.INVALID_REPLICA_ASSIGNMENT),
        (new("a", -1, -1, {0: []}), E.INVALID_REPLICA_ASSIGNMENT),
        (new("a", -1, -1, {0: [1, 1]}), E.INVALID_REPLICA_ASSIGNMENT),
        (new("a", -1, -1, {1: [1]}), E.INVALID_REPLICA_ASSIGNMENT),
        (new("a", -1, -1, {0: [1], 2: [1]}), E.INVALID_REPLICA_ASSIGNMENT),
    ],
    ids=str,
)
def test_what_cannot_be_is_told_with_a_reason(store: klamm.Store, raw: Raw, topic: Struct, code: int) -> None:
    store.topics.create("or.ders")
    refused, made = create(raw, topic, new("other"))
    assert (refused.name, refused.error_code, made.error_code) == (topic.name, code, 0)
    assert refused.error_message
    assert (refused.num_partitions, refused.replication_factor, refused.topic_id) == (-1, -1, NO_ID)
    assert list(store.topics) == ["or.ders", "other"]


def test_partitions_are_counted_from_an_assignment(store: klamm.Store, raw: Raw) -> None:
    (made,) = create(raw, new("a", assigned={1: [1], 0: [1], 2: [1]}))
    assert (made.error_code, made.num_partitions) == (0, 3) and len(store.topics.describe("a").partitions) == 3


def test_assignments_to_other_brokers_are_accepted_on_request(tmp_path: Path) -> None:
    with served(tmp_path / "events", foreign_replicas_enable=True) as server, server.dial() as raw:
        (made,) = create(raw, new("a", assigned={0: [0, 1, 2], 1: [2, 0, 1]}))
        assert (made.error_code, made.num_partitions, made.replication_factor) == (0, 2, 1)
        for brokers in ([], [1, 1]):
            (made,) = create(raw, new("b", assigned={0: brokers}))
            assert made.error_code == E.INVALID_REPLICA_ASSIGNMENT, brokers


def test_a_topic_that_is_in_a_request_twice_is_not_created(store: klamm.Store, raw: Raw) -> None:
    twice, once = create(raw, new("a"), new("b"), new("a", 5), new("a"))
    assert (twice.name, twice.error_code, once.name, once.error_code) == ("a", E.INVALID_REQUEST, "b", 0)
    assert list(store.topics) == ["b"]


def test_a_setting_of_kafkas_that_says_what_is_so_anyway_is_taken(store: klamm.Store, raw: Raw) -> None:
    (made,) = create(
        raw,
        new(
            "a",
            1,
            preallocate="false",
            min_insync_replicas=" 1 ",
            unclean_leader_election_enable="False",
            flush_ms=str(2**63 - 1),
            cleanup_policy="compact",
        ),
    )
    assert made.error_code == 0, made.error_message
    assert store.topics.describe("a").settings == {"cleanup.policy": "compact"}
    for name, value in (("compression_type", "brotli"), ("preallocate", "maybe"), ("min_insync_replicas", "one")):
        config: dict[str, Any] = {name: value}
        (refused,) = create(raw, new("b", 1, **config))
        assert refused.error_code == E.INVALID_CONFIG and value in refused.error_message
    assert list(store.topics) == ["a"]


def test_a_topic_is_there_for_every_process_when_its_creation_is_answered(server: Served, raw: Raw) -> None:
    create(raw, new("a", 2))
    with server.dial() as other:
        (seen,) = other.ask(METADATA, 12, topics=None).topics
        assert (seen.name, len(seen.partitions)) == ("a", 2)


def test_what_is_not_begun_in_time_is_not_begun(store: klamm.Store, raw: Raw) -> None:
    names = [f"topic-{number:02}" for number in range(50)]
    made = in_time(create(raw, *map(new, names), timeout_ms=1))
    assert list(store.topics) == names[:made]
    assert codes(create(raw, *map(new, names[made:]), timeout_ms=0)) == [0] * (50 - made)  # as some clients do
    grown = in_time(grow(raw, *((name, 5, None) for name in names), timeout_ms=1))
    assert [len(store.topics.describe(name).partitions) for name in names] == [5] * grown + [3] * (50 - grown)
    gone = in_time(raw.ask(DELETE_TOPICS, 5, topic_names=names, timeout_ms=1).responses)
    assert list(store.topics) == names[gone:]


def in_time(answers: list[Struct]) -> int:
    """How many were done; the others were not, for lack of time."""
    done = codes(answers).count(0)
    assert codes(answers) == [0] * done + [E.REQUEST_TIMED_OUT] * (50 - done) and done < 50
    return done


# ---- CreatePartitions


def grow(raw: Raw, *wanted: tuple[str, int, Any], version: int = 3, **fields: Any) -> list[Struct]:
    request = CREATE_PARTITIONS.request
    topics = [
        request.Topic(
            name=name,
            count=count,
            assignments=None if to is None else [request.Assignment(broker_ids=each) for each in to],
        )
        for name, count, to in wanted
    ]
    fields = {"timeout_ms": 30_000, **fields}
    answer: list[Struct] = raw.ask(CREATE_PARTITIONS, version, topics=topics, **fields).results
    return answer


@pytest.mark.parametrize("version", range(4))
def test_a_topic_gets_more_partitions(store: klamm.Store, raw: Raw, version: int) -> None:
    store.topics.create("a", 2)
    (checked,) = grow(raw, ("a", 4, None), version=version, validate_only=True)
    assert (checked.name, checked.error_code, checked.error_message) == ("a", 0, None)
    assert len(store.topics.describe("a").partitions) == 2
    assert codes(grow(raw, ("a", 4, None), version=version)) == [0] and len(store.topics.describe("a").partitions) == 4
    assert codes(grow(raw, ("a", 5, [[1]]), version=version)) == [0] and len(store.topics.describe("a").partitions) == 5
    (seen,) = raw.ask(METADATA, 12, topics=None).topics
    assert [each.partition_index for each in seen.partitions] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (("a", 2, None), E.INVALID_PARTITIONS),
        (("a", 1, None), E.INVALID_PARTITIONS),
        (("a", 0, None), E.INVALID_PARTITIONS),
        (("a", -1, None), E.INVALID_PARTITIONS),
        (("a", 10_001, None), E.INVALID_PARTITIONS),
        (("b", 2, None), E.UNKNOWN_TOPIC_OR_PARTITION),
        (("a/b", 2, None), E.UNKNOWN_TOPIC_OR_PARTITION),
        (("a", 4, [[1]]), E.INVALID_REPLICA_ASSIGNMENT),
        (("a", 3, []), E.INVALID_REPLICA_ASSIGNMENT),
        (("a", 3, [[2]]), E.INVALID_REPLICA_ASSIGNMENT),
        (("a", 3, [[]]), E.INVALID_REPLICA_ASSIGNMENT),
    ],
)
@pytest.mark.parametrize("validate_only", [True, False])
def test_what_does_not_grow_is_told_why(
    store: klamm.Store, raw: Raw, wanted: tuple[str, int, Any], code: int, validate_only: bool
) -> None:
    store.topics.create("a", 2)
    (refused,) = grow(raw, wanted, validate_only=validate_only)
    assert refused.error_code == code and refused.error_message
    assert len(store.topics.describe("a").partitions) == 2


def test_common_failures_are_reported_in_the_sentences_of_kafka(store: klamm.Store, raw: Raw) -> None:
    """Scripts look for them, in what a client prints."""
    store.topics.create("a", 2)
    refused = [
        *create(raw, new("a", 1), new("b", 0), new("c", 1, 0), new("d e", 1)),
        *grow(raw, ("a", 1, None)),
        *grow(raw, ("a", 2, None)),
        *grow(raw, ("b", 2, None)),
    ]
    assert [each.error_message for each in refused] == [
        "Topic 'a' already exists.",
        "Number of partitions was set to an invalid non-positive value.",
        "Replication factor must be larger than 0, or -1 to use the default value.",
        "Topic name is invalid: 'd e' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
        "The topic a currently has 2 partition(s); 1 would not be an increase.",
        "Topic already has 2 partition(s).",
        "This server does not host this topic-partition.",
    ]


def test_a_topic_that_is_to_grow_twice_does_not(store: klamm.Store, raw: Raw) -> None:
    store.topics.create("a")
    store.topics.create("b")
    assert codes(grow(raw, ("a", 2, None), ("b", 2, None), ("a", 3, None))) == [E.INVALID_REQUEST, 0]
    assert len(store.topics.describe("a").partitions) == 1 and len(store.topics.describe("b").partitions) == 2


# ---- DeleteTopics


@pytest.mark.parametrize("version", range(1, 7))
def test_topics_are_deleted_by_name(store: klamm.Store, raw: Raw, version: int) -> None:
    for name in ("a", "b"):
        store.topics.create(name)
        store.append(name, b"x")
    uuid = bytes.fromhex(store.topics.describe("a").id)
    names = ["a", "nobody", "a/b"]
    topics = [DELETE_TOPICS.request.Topic(name=name) for name in names]
    answers = raw.ask(DELETE_TOPICS, version, topic_names=names, topics=topics, timeout_ms=30_000).responses
    assert [each.name for each in answers] == names
    assert codes(answers) == [0, E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert [bool(each.error_message) for each in answers] == [False, version >= 5, version >= 5]
    assert [each.topic_id for each in answers] == [uuid if version >= 6 else NO_ID, NO_ID, NO_ID]
    assert list(store.topics) == ["b"] and len(os.listdir(f"{store.path}/topics")) == 1
    (seen,) = raw.ask(METADATA, 12, topics=None).topics
    assert seen.name == "b"


def test_topics_are_deleted_by_id(store: klamm.Store, raw: Raw) -> None:
    ids = [bytes.fromhex(store.topics.create(name).info().id) for name in ("a", "b", "c")]
    unknown = bytes(15) + b"\1"
    wanted = [
        DELETE_TOPICS.request.Topic(name=None, topic_id=ids[0]),
        DELETE_TOPICS.request.Topic(name=None, topic_id=unknown),
        DELETE_TOPICS.request.Topic(name="b", topic_id=ids[1]),
        DELETE_TOPICS.request.Topic(name=None),
        DELETE_TOPICS.request.Topic(name="c"),
        DELETE_TOPICS.request.Topic(name="c"),
    ]
    answers = raw.ask(DELETE_TOPICS, 6, topics=wanted, timeout_ms=30_000).responses
    assert [(each.name, each.topic_id, each.error_code) for each in answers] == [
        ("a", ids[0], 0),
        (None, unknown, E.UNKNOWN_TOPIC_ID),
        ("b", ids[1], E.INVALID_REQUEST),
        (None, NO_ID, E.INVALID_REQUEST),
        ("c", NO_ID, E.INVALID_REQUEST),
    ]
    assert list(store.topics) == ["b", "c"]


def test_a_topic_that_is_named_and_numbered_is_deleted_once(store: klamm.Store, raw: Raw) -> None:
    uuid = bytes.fromhex(store.topics.create("a").info().id)
    wanted = [DELETE_TOPICS.request.Topic(name="a"), DELETE_TOPICS.request.Topic(name=None, topic_id=uuid)]
    answers = raw.ask(DELETE_TOPICS, 6, topics=wanted, timeout_ms=30_000).responses
    assert codes(answers) == [0, E.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_topic_that_was_made_anew_is_not_deleted_by_the_id_of_the_old_one(store: klamm.Store, raw: Raw) -> None:
    uuid = bytes.fromhex(store.topics.create("a").info().id)
    store.topics.delete("a")
    store.topics.create("a")
    wanted = [DELETE_TOPICS.request.Topic(name=None, topic_id=uuid)]
    assert codes(raw.ask(DELETE_TOPICS, 6, topics=wanted).responses) == [E.UNKNOWN_TOPIC_ID]
    assert list(store.topics) == ["a"]


# ---- DeleteRecords


def forget(raw: Raw, topic: str, before: dict[int, int], version: int = 2) -> list[tuple[int, int, int]]:
    request = DELETE_RECORDS.request
    wanted = request.Topic(
        name=topic,
        partitions=[request.Partition(partition_index=number, offset=offset) for number, offset in before.items()],
    )
    (answer,) = raw.ask(DELETE_RECORDS, version, topics=[wanted], timeout_ms=30_000).topics
    assert answer.name == topic
    return [(each.partition_index, each.low_watermark, each.error_code) for each in answer.partitions]


def start_of(raw: Raw, topic: str, number: int) -> int:
    partition = LIST_OFFSETS.request.Partition(partition_index=number, timestamp=-2)
    wanted = LIST_OFFSETS.request.Topic(name=topic, partitions=[partition])
    return int(raw.ask(LIST_OFFSETS, 5, replica_id=-1, topics=[wanted]).topics[0].partitions[0].offset)


@pytest.mark.parametrize("version", range(3))
def test_records_before_an_offset_go(store: klamm.Store, raw: Raw, version: int) -> None:
    store.topics.create("a", 3)
    for number in range(3):
        for _ in range(5):
            store.append("a", b"x", partition=number)
    assert forget(raw, "a", {0: 3, 1: -1, 2: 6, 3: 0}, version) == [
        (0, 3, 0),
        (1, 5, 0),
        (2, -1, E.OFFSET_OUT_OF_RANGE),
        (3, -1, E.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert [start_of(raw, "a", number) for number in range(3)] == [3, 5, 0]
    assert forget(raw, "a", {0: 1, 1: -2, -1: 0}, version) == [
        (0, 3, 0),  # it is gone already
        (1, -1, E.OFFSET_OUT_OF_RANGE),
        (-1, -1, E.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert forget(raw, "nobody", {0: 1}, version) == [(0, -1, E.UNKNOWN_TOPIC_OR_PARTITION)]


@pytest.mark.parametrize(("policy", "code"), [("compact", E.POLICY_VIOLATION), ("compact,delete", 0), ("delete", 0)])
def test_records_of_a_topic_that_is_only_compacted_stay(store: klamm.Store, raw: Raw, policy: str, code: int) -> None:
    store.topics.create("a", settings={"cleanup.policy": policy})
    store.append("a", b"x", key=b"k")
    assert forget(raw, "a", {0: 1}) == [(0, -1 if code else 1, code)]
    assert start_of(raw, "a", 0) == (0 if code else 1)
