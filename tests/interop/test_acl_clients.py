"""Real clients of a server with an authorizer: ACLs made by Java's kafka-acls and by confluent-kafka, and what clients
say that may not do something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

import klamm
from klamm.kafka.settings import STANDARD_AUTHORIZER
from klamm.store.acls import Acls
from klamm.store.users import Users
from tests.interop.one_jvm import Ran
from tests.kafka.connect import Served, served

BOUND_S = 30
ANYTHING: Any = None


@pytest.fixture
def server(path: Path) -> Iterator[Served]:
    with klamm.open(path) as store:
        store.topics.create("orders")
        store.topics.create("secrets")
        Users(store._acquired().catalog).add("alice", "wonderland", ["SCRAM-SHA-256"])
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "authorizer_class_name": STANDARD_AUTHORIZER,
        "super_users": "User:ANONYMOUS",
    }
    with served(path, **settings) as running:
        yield running


def rules(server: Served) -> set[str]:
    return {str(acl) for acl in Acls(server.broker.core.catalog).all()}


def as_alice(server: Served, **more: Any) -> dict[str, Any]:
    endpoint = server.server.endpoints[1]
    return {
        "bootstrap.servers": f"{endpoint.host}:{endpoint.port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": "wonderland",
        "log_level": 0,
        **more,
    }


def binding(kind: Any, name: str, operation: Any) -> AclBinding:
    literal = ResourcePatternType.LITERAL
    return AclBinding(kind, name, literal, "User:alice", "*", operation, AclPermissionType.ALLOW)


def sent(server: Served, topic: str) -> str:
    """Return the error of a record that alice sends; empty if there is none."""
    errors: list[str] = []
    producer = Producer(as_alice(server, **{"message.timeout.ms": 10_000}))
    producer.produce(topic, b"hello", on_delivery=lambda error, _: errors.append("" if error is None else error.name()))
    assert producer.flush(BOUND_S) == 0
    (error,) = errors
    return error


def test_confluent_kafka_makes_acls_and_obeys_them(server: Served) -> None:
    admin = AdminClient({"bootstrap.servers": server.address})
    assert sent(server, "orders") == "TOPIC_AUTHORIZATION_FAILED"
    granted = [
        binding(ResourceType.TOPIC, "orders", AclOperation.WRITE),
        binding(ResourceType.TOPIC, "orders", AclOperation.READ),
        binding(ResourceType.GROUP, "billing", AclOperation.READ),
    ]
    for future in admin.create_acls(granted).values():
        future.result(BOUND_S)
    any_acl = AclBindingFilter(
        ResourceType.ANY, ANYTHING, ResourcePatternType.ANY, ANYTHING, ANYTHING, AclOperation.ANY, AclPermissionType.ANY
    )
    assert set(admin.describe_acls(any_acl).result(BOUND_S)) == set(granted)
    assert (sent(server, "orders"), sent(server, "secrets")) == ("", "TOPIC_AUTHORIZATION_FAILED")
    assert list(AdminClient(as_alice(server)).list_topics(timeout=BOUND_S).topics) == ["orders"]
    values = {}
    for group in ("billing", "others"):
        consumer = Consumer(as_alice(server, **{"group.id": group, "auto.offset.reset": "earliest"}))
        consumer.subscribe(["orders"])
        record = consumer.poll(BOUND_S)
        assert record is not None
        error = record.error()
        values[group] = record.value() if error is None else error.name()
        consumer.close()
    assert values == {"billing": b"hello", "others": "GROUP_AUTHORIZATION_FAILED"}
    (gone,) = admin.delete_acls([any_acl]).values()
    assert set(gone.result(BOUND_S)) == set(granted)
    assert rules(server) == set()


@pytest.mark.jvm
def test_kafka_acls_makes_lists_and_removes_acls(server: Served, run_tool: Callable[..., Ran]) -> None:
    command = ["--bootstrap-server", server.address]
    grant = [
        "--allow-principal",
        "User:alice",
        "--producer",
        "--topic",
        "orders",
        "--resource-pattern-type",
        "prefixed",
    ]
    run_tool("acls", *command, "--add", *grant).done()
    run_tool("acls", *command, "--add", "--deny-principal", "User:*", "--deny-host", "10.0.0.1", "--cluster").done()
    made = {f"ALLOW User:alice {each} on TOPIC PREFIXED orders from *" for each in ("WRITE", "DESCRIBE", "CREATE")}
    assert rules(server) == {*made, "DENY User:* ALL on CLUSTER LITERAL kafka-cluster from 10.0.0.1"}
    listed = run_tool("acls", *command, "--list", "--topic", "orders-2", "--resource-pattern-type", "match").done()
    assert "patternType=PREFIXED" in listed and listed.count("principal=User:alice") == 3
    run_tool("acls", *command, "--remove", "--force", *grant).done()
    assert rules(server) == {"DENY User:* ALL on CLUSTER LITERAL kafka-cluster from 10.0.0.1"}
