"""The audit log: what is in it, in which words; that nothing waits for it; that what is dropped is counted."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import klamm
from klamm.kafka import audit
from klamm.kafka.apis import TABLE
from klamm.kafka.audit_changes import CHANGING
from klamm.kafka.settings import STANDARD_AUTHORIZER
from klamm.kafka.wire.messages import (
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    API_VERSIONS,
    CREATE_ACLS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DELETE_GROUPS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    OFFSET_DELETE,
)
from klamm.store.users import Users
from tests.interop.raw import Raw
from tests.kafka.connect import Served, served
from tests.kafka.requests import produce, sealed
from tests.kafka.sasl_client import log_in
from tests.procs import until

TOPIC = "security"


@pytest.fixture
def server(store: klamm.Store) -> Iterator[Served]:
    Users(store._acquired().catalog).add("alice", "wonderland")
    settings: dict[str, Any] = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "connection.failed.authentication.delay.ms": 0,
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
    }
    with served(Path(store.path), audit_topic=TOPIC, **settings) as running:
        yield running


@pytest.fixture
def plain(server: Served) -> Iterator[Raw]:
    with Raw(f"127.0.0.1:{server.server.endpoints[1].port}") as raw:
        yield raw


def events(store: klamm.Store, count: int) -> list[dict[str, Any]]:
    """Return the events of the log, once there are so many."""

    def read() -> list[dict[str, Any]]:
        with store.consumer(TOPIC, start="earliest") as consumer:
            return [json.loads(record.value) for record in consumer.poll(max_records=10_000, timeout=0)]

    until(lambda: len(read()) >= count, f"there are {count} events")
    found = read()
    assert len(found) == count
    for event in found:
        assert event["type_uid"] == event["class_uid"] * 100 + event["activity_id"]
        assert event["category_uid"] == event["class_uid"] // 1000
        assert event["metadata"]["version"] == "1.3.0" and event["metadata"]["product"]["name"] == "Klamm"
        assert event["time"] > 1_700_000_000_000
    return found


def test_logins_are_recorded_with_who_from_where_and_how(store: klamm.Store, server: Served) -> None:
    with server.dial() as raw:
        port = raw._socket.getsockname()[1]
        log_in(raw, "alice", "wonderland")
    for mechanism in ("SCRAM-SHA-256", "PLAIN"):
        with server.dial() as raw:
            log_in(raw, "alice", "queen of hearts", mechanism)
    first, *failed = events(store, 3)
    assert (first["class_uid"], first["activity_id"], first["status_id"]) == (3002, 1, 1)
    assert first["user"] == {"name": "alice"} and first["auth_protocol"] == "SCRAM-SHA-256"
    assert first["src_endpoint"] == {"ip": "127.0.0.1", "port": port}
    assert first["dst_endpoint"] == {"ip": "127.0.0.1", "port": server.server.port}
    for event, mechanism in zip(failed, ("SCRAM-SHA-256", "PLAIN"), strict=True):
        assert (event["class_uid"], event["status_id"], event["user"]["name"]) == (3002, 2, "alice")
        assert event["auth_protocol"] == mechanism and "wrong password" in event["status_detail"]
        assert "queen" not in json.dumps(event)


def test_changes_are_recorded_and_records_and_reads_are_not(store: klamm.Store, plain: Raw) -> None:
    topic = CREATE_TOPICS.request.Topic
    made = [topic(name="new", num_partitions=1, replication_factor=1), topic(name="no way", num_partitions=1)]
    plain.ask(CREATE_TOPICS, 7, topics=made, timeout_ms=1000)
    plain.ask(CREATE_TOPICS, 7, topics=made, timeout_ms=1000, validate_only=True)
    plain.ask(METADATA, 12, topics=[METADATA.request.Topic(name="auto")], allow_auto_topic_creation=True)
    grown = [CREATE_PARTITIONS.request.Topic(name="new", count=2, assignments=None)]
    plain.ask(CREATE_PARTITIONS, 3, topics=grown, timeout_ms=1000)
    request = INCREMENTAL_ALTER_CONFIGS.request
    entries = [request.Config(name="retention.ms", config_operation=0, value="1000")]
    resource = request.Resource(resource_type=2, resource_name="new", configs=entries)
    plain.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
    produce(plain, "new", sealed(3))
    partition = DELETE_RECORDS.request.Partition(partition_index=0, offset=-1)
    records = DELETE_RECORDS.request.Topic(name="new", partitions=[partition])
    plain.ask(DELETE_RECORDS, 2, topics=[records], timeout_ms=1000)
    plain.ask(DELETE_GROUPS, 2, groups_names=["nobody"])
    quota = ALTER_CLIENT_QUOTAS.request
    entity = [quota.Entity(entity_type="user", entity_name=None)]
    operation = quota.Operation(key="producer_byte_rate", value=1e9)
    plain.ask(ALTER_CLIENT_QUOTAS, 1, entries=[quota.Entry(entity=entity, ops=[operation])])
    plain.ask(DELETE_TOPICS, 6, topics=[DELETE_TOPICS.request.Topic(name="new")], timeout_ms=1000)
    found = [
        (event["api"]["operation"], event["activity_id"], event["resources"][0]["type"], event["resources"][0]["name"],
         event.get("status_code", ""))
        for event in events(store, 9)
    ]  # fmt: skip
    assert found == [
        ("CreateTopics", 1, "Topic", "new", ""),
        ("CreateTopics", 1, "Topic", "no way", "INVALID_TOPIC_EXCEPTION"),
        ("Metadata", 1, "Topic", "auto", ""),
        ("CreatePartitions", 3, "Topic", "new", ""),
        ("IncrementalAlterConfigs", 3, "TopicConfig", "new", ""),
        ("DeleteRecords", 4, "Records", "new-0", ""),
        ("DeleteGroups", 4, "Group", "nobody", "GROUP_ID_NOT_FOUND"),
        ("AlterClientQuotas", 3, "ClientQuota", "user=<default>", ""),
        ("DeleteTopics", 4, "Topic", "new", ""),
    ]


def test_credentials_that_are_set_and_removed_are_changes_of_accounts(store: klamm.Store, plain: Raw) -> None:
    request = ALTER_USER_SCRAM_CREDENTIALS.request
    secret = b"\x7f" * 32
    upsertion = request.Upsertion(name="bob", mechanism=1, iterations=4096, salt=b"salt", salted_password=secret)
    plain.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, upsertions=[upsertion])
    for _ in range(2):
        plain.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[request.Deletion(name="bob", mechanism=1)])
    found = events(store, 3)
    assert [(each["class_uid"], each["activity_id"], each["status_id"]) for each in found] == [
        (3001, 3, 1),
        (3001, 6, 1),
        (3001, 6, 2),
    ]
    assert all(each["user"] == {"name": "bob"} and each["actor"]["user"]["name"] == "ANONYMOUS" for each in found)
    assert secret.hex() not in json.dumps(found)


def test_a_denied_request_is_recorded(store: klamm.Store) -> None:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin"}
    with served(Path(store.path), audit_topic=TOPIC, **settings) as server, server.dial() as raw:
        produce(raw, "orders", sealed(1))
        (event,) = events(store, 1)
    assert (event["class_uid"], event["activity_id"], event["status_id"]) == (6003, 3, 2)
    assert event["status_detail"] == "User:ANONYMOUS may not Write Topic:orders"
    assert event["resources"] == [{"type": "Topic", "name": "orders"}]
    assert audit._spell("TRANSACTIONAL_ID") == "TransactionalId"


def test_a_denied_change_is_one_event(store: klamm.Store) -> None:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin"}
    with served(Path(store.path), audit_topic=TOPIC, **settings) as server, server.dial() as raw:
        raw.ask(DELETE_GROUPS, 2, groups_names=["g"])
        raw.ask(CREATE_ACLS, 3, creations=[CREATE_ACLS.request.Creation(**ACL)])
        found = events(store, 2)
    assert [event["status_code"] for event in found] == ["DENIED"] * 2


def test_denials_beyond_a_rate_are_left_out_and_the_next_event_says_how_many(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = 1.0
    monkeypatch.setattr(audit, "REFUSALS_PER_S", 10)
    monkeypatch.setattr(audit, "time", SimpleNamespace(monotonic=lambda: second, time_ns=time.time_ns))
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin"}
    with served(Path(store.path), audit_topic=TOPIC, **settings) as server, server.dial() as raw:
        names = [METADATA.request.Topic(name=str(number)) for number in range(60)]
        raw.ask(METADATA, 12, topics=names, allow_auto_topic_creation=False)
        assert server.broker.metrics.denials == {("DESCRIBE", "TOPIC"): len(names)}
        second = 2.0
        produce(raw, "orders", sealed(1))
        *rest, last = events(store, 11)
    assert last["unmapped"] == {"left_out": 50} and last["api"]["operation"] == "Produce"
    assert not any("unmapped" in event for event in rest)


def test_failed_logins_of_an_address_beyond_a_rate_are_left_out(
    store: klamm.Store, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AUD3: a stranger must not fill the log, or the disk."""
    second = 1.0
    monkeypatch.setattr(audit, "REFUSALS_PER_S", 3)
    monkeypatch.setattr(audit, "time", SimpleNamespace(monotonic=lambda: second, time_ns=time.time_ns))
    for _ in range(5):
        with server.dial() as raw:
            log_in(raw, "alice", "x")
    with server.dial() as raw:
        log_in(raw, "alice", "wonderland")
    second = 2.0
    with server.dial() as raw:
        log_in(raw, "alice", "x")
    *rest, last = events(store, 5)
    assert [each["status_id"] for each in rest] == [2, 2, 2, 1], "who logs in is never left out"
    assert last["unmapped"] == {"left_out": 2} and not any("unmapped" in each for each in rest)


@pytest.mark.parametrize("way", ["ids", "settings", "users"])
def test_failed_changes_beyond_a_rate_are_left_out_so_they_displace_no_other_event(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """AUD3: an id that no topic has, a resource that is named twice, a user who is not there: rights may not count."""
    second = 1.0
    monkeypatch.setattr(audit, "REFUSALS_PER_S", 3)
    monkeypatch.setattr(audit, "MAX_QUEUED", 100)
    monkeypatch.setattr(audit, "time", SimpleNamespace(monotonic=lambda: second, time_ns=time.time_ns))
    admins = "User:ANONYMOUS" if way == "users" else "User:admin"
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": admins}
    count = 1000
    with served(Path(store.path), audit_topic=TOPIC, **settings) as server, server.dial() as raw:
        for _ in range(2):
            if way == "ids":
                wanted = [
                    DELETE_TOPICS.request.Topic(name=None, topic_id=number.to_bytes(16, "big"))
                    for number in range(1, count + 1)
                ]
                responses = raw.ask(DELETE_TOPICS, 6, topics=wanted, timeout_ms=1000).responses
            elif way == "settings":
                resource = INCREMENTAL_ALTER_CONFIGS.request.Resource(resource_type=2, resource_name="x", configs=[])
                responses = raw.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource] * count).responses
            else:
                nobody = [ALTER_USER_SCRAM_CREDENTIALS.request.Deletion(name=f"{n}", mechanism=1) for n in range(count)]
                responses = raw.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=nobody).results
            assert len(responses) == count
            second += 1
        found = events(store, 6)
        assert server.broker.metrics.audit_dropped == 0
    assert [event.get("unmapped") for event in found] == [None] * 3 + [{"left_out": count - 3}] + [None] * 2
    assert all(event["status_id"] == 2 and event["status_code"] != "DENIED" for event in found)


ACL: dict[str, Any] = {
    "resource_type": 2,
    "resource_name": "orders",
    "resource_pattern_type": 4,
    "principal": "User:bob",
    "host": "10.0.0.1",
    "operation": 2,
    "permission_type": 3,
}


def test_of_acls_and_settings_the_log_says_what_they_are(store: klamm.Store) -> None:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with served(Path(store.path), audit_topic=TOPIC, **settings) as server, server.dial() as raw:
        rules = [CREATE_ACLS.request.Creation(**{**ACL, **each}) for each in ({}, {"operation": 99})]
        raw.ask(CREATE_ACLS, 3, creations=rules)
        wanted = DELETE_ACLS.request.Filter(
            resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1,
            resource_name_filter=None, principal_filter=None, host_filter=None,
        )  # fmt: skip
        raw.ask(DELETE_ACLS, 3, filters=[wanted])
        request = INCREMENTAL_ALTER_CONFIGS.request
        entries = [
            request.Config(name=name, config_operation=0, value="1000") for name in ("retention.ms", "retention.bytes")
        ]
        resource = request.Resource(resource_type=2, resource_name="orders", configs=entries)
        raw.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
        raw.ask(OFFSET_DELETE, 0, group_id="g", topics=[])
        found = [(each["activity_id"], each["status_id"], each["resources"][0]) for each in events(store, 5)]
    acl = {"type": "Acl", "name": "User:bob orders", "data": "ALLOW ALL on PREFIXED TOPIC from 10.0.0.1"}
    assert found == [
        (1, 1, acl),
        (1, 2, {**acl, "data": "ALLOW 99 on PREFIXED TOPIC from 10.0.0.1"}),
        (4, 1, acl),
        (3, 1, {"type": "TopicConfig", "name": "orders", "data": "retention.ms,retention.bytes"}),
        (4, 2, {"type": "Offsets", "name": "g"}),
    ]


def test_a_change_of_a_client_that_has_left_is_recorded(
    store: klamm.Store, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, administer = threading.Event(), server.broker.administer

    def held(function: Any, *args: Any) -> Any:
        assert gate.wait(30)
        return function(*args)

    monkeypatch.setattr(server.broker, "administer", lambda function, *args: administer(held, function, *args))
    quota = ALTER_CLIENT_QUOTAS.request
    entity = [quota.Entity(entity_type="user", entity_name="bob")]
    entry = quota.Entry(entity=entity, ops=[quota.Operation(key="producer_byte_rate", value=1e9)])
    listener = server.server.listener
    with Raw(f"127.0.0.1:{server.server.endpoints[1].port}") as raw:
        raw.send(ALTER_CLIENT_QUOTAS, 1, entries=[entry])
        until(lambda: server.call(lambda: any(each.has_request for each in listener.connections)), "it is handled")
    until(lambda: not listener.connections, "the client is gone")
    gate.set()
    (event,) = events(store, 1)
    assert event["resources"] == [{"type": "ClientQuota", "name": "user=bob"}]


def test_every_api_that_changes_something_is_looked_into() -> None:
    changing = {19, 20, 21, 30, 31, 33, 37, 42, 44, 47, 49, 51}
    assert set(CHANGING) == changing
    verbs = ("Create", "Delete", "Alter", "IncrementalAlter")
    assert {key for key, row in TABLE.items() if row.api.name.startswith(verbs)} <= changing


def test_events_beyond_the_queue_are_dropped_and_counted_and_said(
    store: klamm.Store, server: Served, plain: Raw, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the log cannot be appended to, nothing else waits."""
    log, gate, is_held = server.broker.audit, threading.Event(), threading.Event()
    append = log._append

    def held(events: Any) -> None:
        is_held.set()
        assert gate.wait(30)
        append(events)

    monkeypatch.setattr(log, "_append", held)
    monkeypatch.setattr(audit, "MAX_QUEUED", 3)
    for number in range(6):
        plain.ask(DELETE_GROUPS, 2, groups_names=[f"g{number}"])
        assert is_held.wait(30)
    assert plain.ask(API_VERSIONS, 0).error_code == 0
    assert server.broker.metrics.audit_dropped == 2
    assert "audit: 1 events dropped: the queue is full" in caplog.text
    gate.set()
    said, *rest = events(store, 5)
    assert [event["resources"][0]["name"] for event in rest] == ["g0", "g1", "g2", "g3"]
    assert (
        said["class_uid"] == 0
        and said["unmapped"] == {"dropped": 2}
        and said["status_detail"] == "2 events were dropped"
    )
    until(lambda: server.broker.metrics.audit_events == 5, "they are counted")


def test_a_topic_that_is_deleted_costs_events_and_nothing_else(store: klamm.Store, server: Served, plain: Raw) -> None:
    plain.ask(DELETE_TOPICS, 6, topics=[DELETE_TOPICS.request.Topic(name=TOPIC)], timeout_ms=1000)
    until(lambda: server.broker.metrics.audit_dropped + server.broker.metrics.audit_events == 1, "one or the other")
    plain.ask(DELETE_GROUPS, 2, groups_names=["g"])
    until(lambda: server.broker.metrics.audit_dropped >= 1, "it is counted")
    assert plain.ask(API_VERSIONS, 0).error_code == 0


def test_a_topic_that_is_made_again_gets_events_again(store: klamm.Store, server: Served, plain: Raw) -> None:
    store.topics.delete(TOPIC)
    store.topics.create(TOPIC, partitions=1)
    plain.ask(DELETE_GROUPS, 2, groups_names=["lost"])
    until(lambda: server.broker.metrics.audit_dropped == 1, "it is counted")
    plain.ask(DELETE_GROUPS, 2, groups_names=["found"])
    said, event = events(store, 2)
    assert said["unmapped"] == {"dropped": 1} and event["resources"][0]["name"] == "found"


def test_without_the_setting_there_is_no_log(store: klamm.Store) -> None:
    with served(Path(store.path)) as server, server.dial() as raw:
        raw.ask(DELETE_GROUPS, 2, groups_names=["g"])
        assert server.broker.metrics.audit_events == 0
    assert list(store.topics) == ["orders"]
