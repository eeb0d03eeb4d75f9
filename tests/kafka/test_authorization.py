"""What clients may do with a server that has an authorizer: every API, changes of ACLs, what is said of a denial."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.errors import InvalidSetting
from klamm.kafka.apis import TABLE
from klamm.kafka.call import Call
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.security.authorizer import MAX_DECISIONS, MAX_NAME, Authorizer
from klamm.kafka.settings import STANDARD_AUTHORIZER, ServerSettings
from klamm.kafka.wire.messages import (
    ALTER_CONFIGS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    METADATA,
    PRODUCE,
)
from klamm.store.acl import (
    CLUSTER_NAME,
    SUPPORTED,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from klamm.store.acls import Acls
from klamm.store.users import Users
from tests.interop.raw import ConnectionEnded, Raw
from tests.kafka.acl_requests import DENIALS, Request, World, ask, make_world, requests
from tests.kafka.connect import Served, served
from tests.kafka.requests import fetch, produce, producing, sealed
from tests.kafka.sasl_client import log_in
from tests.kafka.session_client import SessionClient

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,GUARDED://127.0.0.1:0",
    "listener_security_protocol_map": "GUARDED:SASL_PLAINTEXT",
    "sasl_enabled_mechanisms": "PLAIN",
    "authorizer_class_name": STANDARD_AUTHORIZER,
    "super_users": "User:ANONYMOUS",
}
"""Clients of the first listener may do everything."""
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER


def rule(operation: str, name: str = CLUSTER_NAME, kind: ResourceType = CLUSTER, **changes: Any) -> Acl:
    acl = Acl(kind, name, PatternType.LITERAL, "User:alice", "*", Operation[operation], Permission.ALLOW)
    return acl._replace(**changes)


@pytest.fixture
def acls(store: klamm.Store) -> Acls:
    catalog = store._acquired().catalog
    Users(catalog).add("alice", "wonderland")
    return Acls(catalog)


@pytest.fixture
def server(store: klamm.Store, acls: Acls) -> Iterator[Served]:
    with served(Path(store.path), **SETTINGS) as running:
        yield running


@pytest.fixture
def alice(server: Served) -> Iterator[Raw]:
    with dial_as_alice(server) as raw:
        yield raw


def dial_as_alice(server: Served) -> Raw:
    endpoint = server.server.endpoints[1]
    raw = Raw(f"{endpoint.host}:{endpoint.port}")
    assert log_in(raw, "alice", "wonderland", "PLAIN").error_code == 0
    return raw


def codes_in(answer: Any) -> set[str]:
    if isinstance(answer, dict):
        codes = {value for name, value in answer.items() if name.endswith("error_code")}
        return codes.union(*(codes_in(value) for value in answer.values()))
    return set().union(*map(codes_in, answer)) if isinstance(answer, list) else set()


# ---- every API

FILTERED = {"ListGroups", "ListTransactions", "DescribeCluster"}
"""Never denied: what the client may not see is left out."""


def is_filtered(request: Request) -> bool:
    return request.api.name in FILTERED or not request.fields.get("topics", True)


def test_a_client_without_rights_is_denied_by_every_api_and_a_super_user_by_none(server: Served, alice: Raw) -> None:
    with server.dial() as super_user:
        world = make_world(super_user, "x-")
        sent = list(requests(world))
        for request in sent:
            denied, allowed = ask(alice, request, world), ask(super_user, request, world)
            assert not codes_in(allowed) & DENIALS, (request.label, allowed)
            if is_filtered(request):
                assert "x-" not in str(denied), (request.label, denied)
            elif request.label != "Metadata v12":
                assert codes_in(denied) & DENIALS, (request.label, denied)
    asked = {request.api.key for request in sent}
    assert [row.api.name for key, row in TABLE.items() if row.rights and key not in asked] == []


def test_a_row_of_the_dispatch_table_names_the_rights_that_its_handler_checks(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no others: whatever a client has of those that the row names, the handler checks nothing else."""
    allowed, asked = set[str](), dict[int, set[str]]()
    current: list[int] = []

    def allows(self: Authorizer, principal: str, host: str, operation: Operation, kind: ResourceType, *_: str) -> bool:
        right = f"{operation.name} {kind.name}"
        if principal != "User:alice":
            return True
        asked.setdefault(current[0], set()).add(right)
        return right in allowed

    monkeypatch.setattr(Authorizer, "allows", allows)
    monkeypatch.setattr(Authorizer, "allows_some", allows)
    monkeypatch.setattr(Call, "operations", lambda *_: 0)  # what a client may do is told, not needed
    with server.dial() as super_user:
        world = make_world(super_user, "x-")
    with dial_as_alice(server) as alice:
        for request in (*requests(world), *changing(world)):
            current[:] = [request.api.key]
            rights = [spelled(right) for right in TABLE[request.api.key].rights]
            for count in range(len(rights) + 1):
                for some in combinations(rights, count):
                    allowed.clear()
                    allowed.update(some)
                    ask(alice, request, world)
    checked = {TABLE[key].api.name: rights for key, rights in asked.items()}
    for name, right in SHOWS.items():
        checked[name].remove(right)
    assert {name: rights for name, rights in checked.items() if rights} == {
        row.api.name: {spelled(right) for right in row.rights} for row in TABLE.values() if row.rights
    }


SHOWS = {
    "Produce": "DESCRIBE TOPIC",
    "Metadata": "DESCRIBE CLUSTER",
    "CreateTopics": "DESCRIBE_CONFIGS TOPIC",
    "DescribeCluster": "DESCRIBE CLUSTER",
}
"""Rights on which depends what a response tells, and not whether the request is denied."""


def changing(world: World) -> Iterator[Request]:
    """Yield requests that change something, if they may."""
    resource = ALTER_CONFIGS.request.Resource(resource_type=4, resource_name="")
    missing = [METADATA.request.Topic(name=world.missing)]
    for api, version, fields in (
        (METADATA, 9, {"topics": missing, "allow_auto_topic_creation": True}),
        (DELETE_TOPICS, 5, {"topic_names": [world.topics[0]], "timeout_ms": 1000}),
        (ALTER_CONFIGS, 0, {"resources": [resource], "validate_only": True}),
    ):
        yield Request(api.name, api, version, fields)


def spelled(right: str) -> str:
    """Return a right of a row as ACLs spell it: DESCRIBE_CONFIGS TRANSACTIONAL_ID."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", right).upper()


def test_topics_are_deleted_and_made_by_those_who_may(server: Served, alice: Raw, acls: Acls) -> None:
    with server.dial() as super_user:
        world = make_world(super_user, "x-")
    topic, other = world.topics
    by_id = [DELETE_TOPICS.request.Topic(name=None, topic_id=world.ids[topic])]

    def delete() -> tuple[str | None, int]:
        (response,) = alice.ask(DELETE_TOPICS, 6, topics=by_id, timeout_ms=1000).responses
        assert response.topic_id == world.ids[topic]
        return response.name, response.error_code

    assert delete() == (None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    acls.add([rule("DESCRIBE", topic, TOPIC)])
    assert delete() == (topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    acls.add([rule("DELETE", topic, TOPIC)])
    assert delete() == (topic, 0)
    wanted = [METADATA.request.Topic(name=name) for name in (topic, "x-new")]

    def create() -> list[int]:
        return [each.error_code for each in alice.ask(METADATA, 9, topics=wanted).topics]

    assert create() == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
    acls.add([rule("CREATE", topic, TOPIC), rule("DESCRIBE", "x-new", TOPIC)])
    assert create() == [0, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    acls.add([rule("CREATE")])
    assert create() == [0, 0]
    assert [each.name for each in alice.ask(METADATA, 9, topics=None).topics] == ["x-a-topic", "x-new"]
    assert other not in str(alice.ask(METADATA, 9, topics=None))


def test_a_client_that_writes_by_the_id_of_a_topic_learns_its_name_if_it_may_describe_it(
    server: Served, alice: Raw, acls: Acls
) -> None:
    with server.dial() as super_user:
        world = make_world(super_user, "x-")
    topic = world.topics[0]

    def write() -> str:
        fields = producing({("", 0): sealed(1)}, ids={"": world.ids[topic]})
        (partition,) = alice.ask(PRODUCE, 13, **fields).responses[0].partition_responses
        assert partition.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return str(partition.error_message)

    assert write() == "not allowed to write to this topic"
    acls.add([rule("DESCRIBE", topic, TOPIC)])
    assert topic in write()


def test_topics_of_a_transaction_that_a_client_may_not_describe_are_left_out(
    server: Served, alice: Raw, acls: Acls
) -> None:
    from klamm.kafka.wire.messages import ADD_PARTITIONS_TO_TXN, INIT_PRODUCER_ID

    with server.dial() as super_user:
        world = make_world(super_user, "x-")
        name = world.transactional_ids[0]
        who = super_user.ask(INIT_PRODUCER_ID, 4, transactional_id=name, transaction_timeout_ms=60_000)
        topics = [ADD_PARTITIONS_TO_TXN.request.Topic(name=topic, partitions=[0]) for topic in world.topics]
        super_user.ask(
            ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=who.producer_id,
            v3_and_below_producer_epoch=who.producer_epoch,
            v3_and_below_topics=topics,
        )
    acls.add([rule("DESCRIBE", name, ResourceType.TRANSACTIONAL_ID), rule("READ", world.topics[1], TOPIC)])
    (state,) = alice.ask(DESCRIBE_TRANSACTIONS, 0, transactional_ids=[name]).transaction_states
    assert (state.error_code, [each.topic for each in state.topics]) == (0, [world.topics[1]])


# ---- ordinary requests, sessions: where decisions are remembered


def test_a_right_that_is_given_or_taken_counts_with_the_next_request(server: Served, alice: Raw, acls: Acls) -> None:
    """ACL1, AUT1: made by another handle on the store, as by `klamm acl`."""
    write, read = rule("WRITE", "orders", TOPIC), rule("READ", "orders", TOPIC)
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def codes() -> tuple[int, int]:
        """Ask twice: the second request finds the ACLs read, and may be an ordinary one."""
        asked = [(produce(alice, "orders", sealed(1)).error_code, fetch(alice, "orders", 0).error_code) for _ in "12"]
        assert asked[0] == asked[1]
        return asked[0]

    for _ in range(3):
        assert codes() == (denied, denied)
        acls.add([write])
        assert codes() == (0, denied)
        acls.add([read])
        assert fetch(alice, "orders", 0).error_code == 0
        acls.add([rule("WRITE", "ord", TOPIC, pattern_type=PatternType.PREFIXED, permission=Permission.DENY)])
        assert codes() == (denied, 0)
        acls.remove([AclFilter()])


def test_a_fetch_session_gives_no_more_records_when_the_right_is_taken(server: Served, alice: Raw, acls: Acls) -> None:
    with server.dial() as super_user:
        produce(super_user, "orders", sealed(3))
    acls.add([rule("READ", "orders", TOPIC)])
    consumer = SessionClient(alice, {("orders", 0): 0}, wait_ms=0)
    assert consumer.read() and not consumer.is_full
    acls.remove([AclFilter()])
    with server.dial() as super_user:
        produce(super_user, "orders", sealed(3))
    assert consumer.poll()["orders", 0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    acls.add([rule("READ", "orders", TOPIC)])
    assert consumer.read()


def test_a_denied_batch_is_not_appended_and_without_acks_the_connection_is_closed(server: Served, alice: Raw) -> None:
    end = server.broker.core.topic("orders").partition(0).ends().end
    assert produce(alice, "orders", sealed(1)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    alice.send(PRODUCE, 9, **producing({("orders", 0): sealed(1)}, acks=0))
    with pytest.raises(ConnectionEnded):
        alice.receive()
    assert server.broker.core.topic("orders").partition(0).ends().end == end


def test_a_client_at_another_address_has_other_rights(server: Served, alice: Raw, acls: Acls) -> None:
    acls.add([rule("READ", "orders", TOPIC, host="10.1.2.3")])
    assert fetch(alice, "orders", 0).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    acls.add([rule("READ", "orders", TOPIC, host="127.0.0.1")])
    assert fetch(alice, "orders", 0).error_code == 0


# ---- DescribeAcls, CreateAcls, DeleteAcls

FIELDS = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission_type")


def creation(acl: Acl, **wrong: Any) -> Any:
    given = dict(zip(FIELDS, acl, strict=True)) | wrong
    given["resource_pattern_type"] = given.pop("pattern_type")
    return CREATE_ACLS.request.Creation(**given)


def filter_fields(**chosen: Any) -> dict[str, Any]:
    names = ("resource_type_filter", "resource_name_filter", "pattern_type_filter", "principal_filter", "host_filter")
    fields = dict(zip((*names, "operation", "permission_type"), AclFilter(), strict=True))
    return fields | chosen


def described(raw: Raw, version: int = 3, **chosen: Any) -> list[Acl]:
    response = raw.ask(DESCRIBE_ACLS, version, **filter_fields(**chosen))
    assert response.error_code == 0, response
    return [
        Acl(
            ResourceType(each.resource_type),
            each.resource_name,
            PatternType(each.pattern_type),
            acl.principal,
            acl.host,
            Operation(acl.operation),
            Permission(acl.permission_type),
        )
        for each in response.resources
        for acl in each.acls
    ]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_made_listed_and_deleted_by_clients(server: Served, acls: Acls, version: int) -> None:
    one, other = rule("READ", "orders", TOPIC), rule("ALTER")
    with server.dial() as raw:
        wrong: list[dict[str, Any]] = [
            {"resource_name": ""},
            {"operation": 1},
            {"operation": 99},
            {"principal": "alice"},
            {"resource_type": 0},
        ]
        given = [creation(one), creation(one), creation(other), *(creation(one, **each) for each in wrong)]
        results = raw.ask(CREATE_ACLS, version, creations=given).results
        assert [each.error_code for each in results] == [0] * 3 + [ErrorCode.INVALID_REQUEST] * len(wrong)
        assert all(each.error_message for each in results[3:])
        assert sorted(acls.all()) == sorted([one, other]) == sorted(described(raw, version))
        assert described(raw, version, principal_filter="User:bob") == []
        assert described(raw, version, resource_type_filter=2) == [one]
        assert raw.ask(DESCRIBE_ACLS, version, **filter_fields(operation=99)).error_code == ErrorCode.INVALID_REQUEST
        filters = [filter_fields(resource_type_filter=4), filter_fields(permission_type=77), filter_fields()]
        asked = [DELETE_ACLS.request.Filter(**each) for each in filters]
        results = raw.ask(DELETE_ACLS, version, filters=asked).filter_results
        assert [each.error_code for each in results] == [0, ErrorCode.INVALID_REQUEST, 0]
        assert [[acl.operation for acl in each.matching_acls] for each in results] == [
            [Operation.ALTER],
            [],
            [Operation.ALTER, Operation.READ],
        ]
        assert acls.all() == described(raw, version) == []


def test_acls_are_changed_by_those_alone_who_may_alter_the_cluster(server: Served, alice: Raw, acls: Acls) -> None:
    all_rights = creation(rule("ALL"))
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert [each.error_code for each in alice.ask(CREATE_ACLS, 3, creations=[all_rights]).results] == [denied]
    asked = [DELETE_ACLS.request.Filter(**filter_fields())]
    assert [each.error_code for each in alice.ask(DELETE_ACLS, 3, filters=asked).filter_results] == [denied]
    removal = ALTER_USER_SCRAM_CREDENTIALS.request.Deletion(name="alice", mechanism=1)
    fields = {"deletions": [removal], "upsertions": []}
    assert [each.error_code for each in alice.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, **fields).results] == [denied]
    acls.add([rule("ALTER")])
    assert [each.error_code for each in alice.ask(CREATE_ACLS, 3, creations=[all_rights]).results] == [0]
    assert rule("ALL") in acls.all()


def test_without_an_authorizer_everything_is_allowed_and_acls_are_off(store: klamm.Store, acls: Acls) -> None:
    acls.add([rule("READ", "*", TOPIC, principal="User:*", permission=Permission.DENY)])
    with served(Path(store.path)) as server, server.dial() as raw:
        assert fetch(raw, "orders", 0).error_code == 0
        off = ErrorCode.SECURITY_DISABLED
        assert raw.ask(DESCRIBE_ACLS, 3, **filter_fields()).error_code == off
        assert [each.error_code for each in raw.ask(CREATE_ACLS, 3, creations=[creation(rule("ALL"))]).results] == [off]
        asked = [DELETE_ACLS.request.Filter(**filter_fields())]
        assert [each.error_code for each in raw.ask(DELETE_ACLS, 3, filters=asked).filter_results] == [off]
    assert len(acls.all()) == 1


# ---- what is said


LEFT_OUT = " (4 more denials of this principal were left out)"


def test_a_denial_names_operation_resource_and_principal_and_is_one_line_a_second(
    server: Served, alice: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    """AUT3"""
    authorizer = server.broker.authorizer
    assert authorizer is not None
    authorizer._now = lambda: now
    now = 1.0
    with caplog.at_level(logging.WARNING, "klamm.kafka"):
        for _ in range(5):
            asked = [DESCRIBE_PRODUCERS.request.Topic(name="orders", partition_indexes=[0])]
            (partition,) = alice.ask(DESCRIBE_PRODUCERS, 0, topics=asked).topics[0].partitions
            assert partition.error_message == "User:alice is not allowed READ on TOPIC 'orders'"
        now = 2.5
        made = [CREATE_TOPICS.request.Topic(name="new", num_partitions=1, replication_factor=1)]
        (topic,) = alice.ask(CREATE_TOPICS, 7, topics=made).topics
        assert topic.error_message == "User:alice is not allowed CREATE on TOPIC 'new'"
    lines = [each.getMessage() for each in caplog.records if "denied" in each.getMessage()]
    assert lines == [
        "User:alice at 127.0.0.1: denied READ on TOPIC 'orders' (DescribeProducers)",
        f"User:alice at 127.0.0.1: denied CREATE on TOPIC 'new' (CreateTopics){LEFT_OUT}",
    ]
    assert server.broker.metrics.denials == {("READ", "TOPIC"): 5, ("CREATE", "TOPIC"): 1}


def test_a_damaged_acl_leaves_rights_to_super_users_alone(server: Served, alice: Raw, acls: Acls) -> None:
    """ACL2"""
    acls.add([rule("READ", "orders", TOPIC)])
    assert fetch(alice, "orders", 0).error_code == 0
    catalog = server.broker.core.catalog
    with catalog.database.db_lock(), catalog.database.transaction() as execute:
        execute("UPDATE acls SET resource_name = '*'")
        catalog.set_meta(execute, "acls", 10**6)
    server.broker.core.changed()
    assert fetch(alice, "orders", 0).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with server.dial() as super_user:
        assert fetch(super_user, "orders", 0).error_code == 0


def test_decisions_that_are_remembered_are_bounded(store: klamm.Store) -> None:
    """AUT2"""
    from klamm.kafka.metrics import Metrics

    authorizer = Authorizer(store._acquired().catalog, ServerSettings(), Metrics(), lambda: 0.0)
    for number in range(MAX_DECISIONS + 10):
        authorizer.allows("User:alice", "h", Operation.READ, TOPIC, str(number))
    assert len(authorizer._decisions) <= MAX_DECISIONS
    authorizer.allows("User:alice", "h", Operation.READ, TOPIC, "x" * 30_000)
    assert max(len(name) for *_, name in authorizer._decisions) <= MAX_NAME
    for number in range(3000):
        authorizer.deny(f"User:{number}", "h", "Fetch", Operation.READ, TOPIC, "t")
    assert len(authorizer._logged) <= 1000


def test_authorized_operations_are_those_that_the_client_has(server: Served, alice: Raw, acls: Acls) -> None:
    wanted = [METADATA.request.Topic(name="orders")]
    fields = {"topics": wanted, "include_topic_authorized_operations": True}

    def operations(raw: Raw) -> int:
        response = raw.ask(METADATA, 10, **fields, include_cluster_authorized_operations=True)
        (topic,) = response.topics
        return int(topic.topic_authorized_operations)

    acls.add([rule("READ", "orders", TOPIC), rule("ALTER_CONFIGS", "orders", TOPIC)])
    expected = (Operation.READ, Operation.DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS)
    assert operations(alice) == sum(1 << each for each in expected)
    with server.dial() as super_user:
        assert operations(super_user) == sum(1 << each for each in SUPPORTED[TOPIC])


@pytest.mark.parametrize(
    ("name", "value"), [("super.users", "alice"), ("super.users", "User:a;b"), ("authorizer.class.name", "Mine")]
)
def test_settings_that_are_not_what_they_should_be_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=name):
        ServerSettings.of({name: value})
