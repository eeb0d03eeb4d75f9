"""Settings of a server and of its store that decide what clients may do, and how long something is remembered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_PRODUCERS,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
)
from tests.kafka.connect import Raw, served
from tests.kafka.requests import produce, sealed
from tests.procs import until

E = ErrorCode


def create(raw: Raw, name: str, assigned: dict[int, list[int]]) -> Any:
    request = CREATE_TOPICS.request
    assignments = [request.Assignment(partition_index=at, broker_ids=to) for at, to in assigned.items()]
    topic = request.Topic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)
    (answer,) = raw.ask(CREATE_TOPICS, 7, topics=[topic], timeout_ms=30_000).topics
    return answer


def grow(raw: Raw, name: str, count: int, *assigned: list[int]) -> int:
    request = CREATE_PARTITIONS.request
    topic = request.Topic(name=name, count=count, assignments=[request.Assignment(broker_ids=to) for to in assigned])
    (answer,) = raw.ask(CREATE_PARTITIONS, 3, topics=[topic], timeout_ms=30_000).results
    return int(answer.error_code)


# ---- replicas


def test_assignments_written_for_three_nodes_make_a_topic_where_that_is_set(tmp_path: Path) -> None:
    with served(tmp_path / "events", foreign_replicas_enable=True) as server, server.dial() as raw:
        made = create(raw, "orders", {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]})
        assert (made.error_code, made.num_partitions, made.replication_factor) == (0, 3, 1)
        assert grow(raw, "orders", 5, [2, 3], [3, 2]) == 0
        assert raw.leads("orders", 5), "by the one broker"
        assert produce(raw, "orders", sealed(1), 4).error_code == 0
        for wrong in ([], [2, 2], [-1]):
            assert create(raw, "other", {0: wrong}).error_code == E.INVALID_REPLICA_ASSIGNMENT
            assert grow(raw, "orders", 6, wrong) == E.INVALID_REPLICA_ASSIGNMENT


def test_and_do_not_where_it_is_not(tmp_path: Path) -> None:
    with served(tmp_path / "events") as server, server.dial() as raw:
        assert create(raw, "orders", {0: [1, 2, 3]}).error_code == E.INVALID_REPLICA_ASSIGNMENT
        assert create(raw, "orders", {0: [1]}).error_code == 0
        assert grow(raw, "orders", 2, [2]) == E.INVALID_REPLICA_ASSIGNMENT


# ---- deletion


@pytest.mark.parametrize("version", range(1, 7))
def test_topics_are_not_deleted_where_that_is_forbidden(tmp_path: Path, version: int) -> None:
    with served(tmp_path / "events", delete_topic_enable=False) as server, server.dial() as raw:
        raw.create("orders")
        wanted = (
            {"topics": [DELETE_TOPICS.request.Topic(name="orders")]} if version >= 6 else {"topic_names": ["orders"]}
        )
        (answer,) = raw.ask(DELETE_TOPICS, version, timeout_ms=30_000, **wanted).responses
        assert answer.error_code == (E.TOPIC_DELETION_DISABLED if version >= 3 else E.INVALID_REQUEST)
        assert raw.leads("orders", 1)


# ---- what is forgotten


def test_transactional_ids_are_forgotten_as_often_as_is_set(tmp_path: Path) -> None:
    settings = {
        "transactional_id_expiration_ms": 1,
        "transaction_remove_expired_transaction_cleanup_interval_ms": 1,
        "transaction_abort_timed_out_transaction_cleanup_interval_ms": 20,
    }
    with served(tmp_path / "events", **settings) as server, server.dial() as raw:
        answer = raw.ask(INIT_PRODUCER_ID, 4, transactional_id="billing", transaction_timeout_ms=60_000)
        assert answer.error_code == 0
        until(lambda: not raw.ask(LIST_TRANSACTIONS, 1).transaction_states, "it is forgotten")


def producers(raw: Raw, topic: str) -> list[int]:
    wanted = [DESCRIBE_PRODUCERS.request.Topic(name=topic, partition_indexes=[0])]
    (found,) = raw.ask(DESCRIBE_PRODUCERS, 0, topics=wanted).topics
    return [each.producer_id for each in found.partitions[0].active_producers]


def test_the_store_says_how_long_producers_are_remembered_unless_the_topic_does(tmp_path: Path) -> None:
    def send(raw: Raw, topic: str) -> None:
        batch = sealed(1, producer_id=7, producer_epoch=0, base_sequence=0)
        assert produce(raw, topic, batch).error_code == 0

    name = "producer.id.expiration.ms"
    with klamm.open(tmp_path / "events") as store, served(tmp_path / "events") as server, server.dial() as raw:
        store.alter({name: "50"})
        for topic, settings in (("short", {}), ("long", {"producer_id_expiration_ms": "86400000"})):
            raw.create(topic, 1, **settings)
            send(raw, topic)
        core = store._acquired()
        assert core.catalog.topic("short").settings.producer_id_expiration_ms == 50
        assert core.catalog.topic("long").settings.producer_id_expiration_ms == 86_400_000
        assert store.topics.describe("short").settings == {}, "it is not the topic's own"
        until(lambda: producers(raw, "short") == [], "it has expired")
        assert producers(raw, "long") == [7]
        store.alter(reset=[name])
        assert core.catalog.topic("short").settings.producer_id_expiration_ms == 86_400_000
        until(lambda: producers(raw, "short") == [7], "the server has heard of it, and its entry was still there")
        store.topics.alter("short", {name: "9"})
        store.topics.alter("short", reset=[name])
        store.alter({name: "77"})
        assert {topic.settings.producer_id_expiration_ms for topic in core.catalog.topics()} == {77, 86_400_000}
