"""ACLs of Apache Kafka's StandardAuthorizer and ours: generated rules, requests of every API, the same codes and names.

Both brokers have the same topics, groups and transactional ids. A case is a set of rules, which are created on both by
CreateAcls; then users send every request of acl_requests.py to both.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.kafka.settings import STANDARD_AUTHORIZER
from klamm.kafka.wire.messages import (
    CREATE_ACLS,
    DECIDE_TRANSACTIONS,
    DELETE_ACLS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    METADATA,
)
from klamm.store.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from klamm.store.users import Users
from tests.crash.cases import seed_of, tell_seed
from tests.interop.brokers import Broker, coordinating, fresh
from tests.interop.java_tools import need_kafka
from tests.interop.kafka_broker import USERS, KafkaBroker
from tests.interop.raw import Raw
from tests.kafka.acl_requests import Request, World, ask, make_world, requests
from tests.kafka.connect import served
from tests.kafka.sasl_client import log_in
from tests.procs import until

pytestmark = pytest.mark.jvm

CASES = 3
BEHIND_S = 30.0  # how long Kafka's controller, which decides some requests, may be behind its broker
ON_PURPOSE: dict[str, str] = {}
"""Labels of requests, and why our response may differ."""


class Side:
    """One broker: a connection that may do everything, and one of each user."""

    def __init__(self, kind: str, address: str, guarded: str, stack: ExitStack) -> None:
        self.kind = kind
        self.admin = stack.enter_context(Raw(address))
        self.users: dict[str, Raw] = {}
        for name, password in USERS.items():
            self.users[name] = stack.enter_context(Raw(guarded))
            assert log_in(self.users[name], name, password, "PLAIN").error_code == 0

    def create(self, acls: list[Acl], version: int) -> list[int]:
        given = [CREATE_ACLS.request.Creation(**_named(acl, "resource_pattern_type")) for acl in acls]
        return [each.error_code for each in self.admin.ask(CREATE_ACLS, version, creations=given).results]

    def find(self, chosen: AclFilter, version: int) -> set[Acl]:
        response = self.admin.ask(DESCRIBE_ACLS, version, **_filter(chosen))
        assert response.error_code == 0, response.error_message
        return {
            _acl(each.resource_type, each.resource_name, each.pattern_type, acl)
            for each in response.resources
            for acl in each.acls
        }

    def delete(self, filters: list[AclFilter], version: int) -> list[set[Acl]]:
        asked = [DELETE_ACLS.request.Filter(**_filter(each)) for each in filters]
        results = self.admin.ask(DELETE_ACLS, version, filters=asked).filter_results
        assert not any(each.error_code for each in results)
        return [
            {_acl(acl.resource_type, acl.resource_name, acl.pattern_type, acl) for acl in each.matching_acls}
            for each in results
        ]


def _named(acl: Acl, pattern: str) -> dict[str, Any]:
    return {
        "resource_type": acl.resource_type,
        "resource_name": acl.resource_name,
        pattern: acl.pattern_type,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


def _filter(chosen: AclFilter) -> dict[str, Any]:
    names = ("resource_type_filter", "resource_name_filter", "pattern_type_filter", "principal_filter", "host_filter")
    return dict(zip((*names, "operation", "permission_type"), chosen, strict=True))


def _acl(kind: int, name: str, pattern: int, rest: Any) -> Acl:
    return Acl(
        ResourceType(kind),
        name,
        PatternType(pattern),
        rest.principal,
        rest.host,
        Operation(rest.operation),
        Permission(rest.permission_type),
    )


class Pair:
    """Both brokers, and what they have."""

    def __init__(self, kafka: Side, ours: Side, token: str) -> None:
        self.kafka, self.ours = kafka, ours
        self.worlds = make_world(kafka.admin, token), make_world(ours.admin, token)
        pairs = zip(*map(requests, self.worlds), strict=True)
        self.requests: list[tuple[Request, Request]] = [
            pair for pair in pairs if pair[0].api is not DECIDE_TRANSACTIONS
        ]

    @property
    def world(self) -> World:
        return self.worlds[0]

    def set_rules(self, acls: list[Acl], version: int) -> None:
        """Replace the rules of both; wait until Kafka's broker has them, which hears of them from its controller."""
        everything = AclFilter()
        for side in (self.kafka, self.ours):
            side.delete([everything], version)
        codes = [side.create(acls, version) for side in (self.kafka, self.ours)]
        assert codes[0] == codes[1], (codes, acls)
        until(lambda: self.kafka.find(everything, version) == set(acls), "Kafka has the rules")
        assert self.ours.find(everything, version) == set(acls)

    def compare(self, user: str) -> list[str]:
        """Return what differs between the responses to every request of a user."""
        wrong = []
        for theirs, request in self.requests:
            ours = ask(self.ours.users[user], request, self.worlds[1])
            kafkas = ask(self.kafka.users[user], theirs, self.worlds[0])
            differs_on_purpose = request.label.split(" x")[0] in ON_PURPOSE
            deadline = time.monotonic() + BEHIND_S
            while (kafkas != ours) != differs_on_purpose and time.monotonic() < deadline:
                time.sleep(0.05)
                kafkas = ask(self.kafka.users[user], theirs, self.worlds[0])
            if (kafkas != ours) != differs_on_purpose:
                wrong.append(f"{user}: {request.label}\n  Kafka {kafkas}\n  Klamm {ours}")
        return wrong


@pytest.fixture
def pair(apache_broker: Broker, tmp_path: Path) -> Iterator[Pair]:
    with paired(apache_broker, tmp_path / "events") as made:
        yield made


@contextmanager
def paired(apache_broker: Broker, path: Path, **more: str) -> Iterator[Pair]:
    """Both brokers, ours with `more` settings."""
    with klamm.open(path) as store:
        users = Users(store._acquired().catalog)
        for name, password in USERS.items():
            users.add(name, password, ["SCRAM-SHA-256"])
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,GUARDED://127.0.0.1:0",
        "listener_security_protocol_map": "GUARDED:SASL_PLAINTEXT",
        "sasl_enabled_mechanisms": "PLAIN",
        "authorizer_class_name": STANDARD_AUTHORIZER,
        "super_users": "User:ANONYMOUS",
        **more,
    }
    with served(path, **settings) as server, ExitStack() as stack:
        endpoint = server.server.endpoints[1]
        ours = Side("klamm", server.address, f"{endpoint.host}:{endpoint.port}", stack)
        theirs = Side("apache", apache_broker.address, apache_broker.guarded, stack)
        made = Pair(theirs, ours, fresh("x") + "-")
        yield made
        made.kafka.delete([AclFilter()], 3)


# ---- rules

_KINDS = [
    ResourceType.TOPIC,
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
]
_PRINCIPALS = ["User:alice", "User:alice", "User:bob", "User:*", "User:carol"]
_HOSTS = ["*", "*", "*", "127.0.0.1", "10.1.2.3"]


def some_rule(world: World, chance: random.Random) -> Acl:
    kind = chance.choice(_KINDS)
    names = {
        ResourceType.TOPIC: world.topics,
        ResourceType.GROUP: world.groups,
        ResourceType.TRANSACTIONAL_ID: world.transactional_ids,
    }
    pattern = PatternType.LITERAL
    if kind is ResourceType.CLUSTER:
        name = "kafka-cluster"
    else:
        name = chance.choice([*names[kind], world.missing, "*", f"{world.missing}-new"])
        if name != "*" and chance.random() < 0.4:
            pattern, name = PatternType.PREFIXED, name[: chance.choice([1, len(world.token) + 1, len(name)])]
    return Acl(
        kind,
        name,
        pattern,
        chance.choice(_PRINCIPALS),
        chance.choice(_HOSTS),
        chance.choice([each for each in Operation if each > Operation.ANY]),
        Permission.DENY if chance.random() < 0.25 else Permission.ALLOW,
    )


def some_filter(acls: list[Acl], chance: random.Random) -> AclFilter:
    """Return a filter that has something to do with the rules."""
    near = chance.choice(acls)
    fields: list[Any] = [each if chance.random() < 0.4 else None for each in near]
    kind, name, pattern, principal, host, operation, permission = fields
    if name is not None and chance.random() < 0.5:
        name += chance.choice(["", "b-topic", "x"])
    pattern = pattern or chance.choice([PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED])
    return AclFilter(
        kind or ResourceType.ANY,
        name,
        pattern,
        principal,
        host,
        operation or Operation.ANY,
        permission or Permission.ANY,
    )


def run_case(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    acls = list({some_rule(pair.world, chance) for _ in range(chance.choice([3, 8, 16, 30]))})
    version = chance.choice([1, 2, 3])
    pair.set_rules(acls, version)
    wrong = [difference for user in USERS for difference in pair.compare(user)]
    for _ in range(5):
        chosen = some_filter(acls, chance)
        kafkas, ours = pair.kafka.find(chosen, version), pair.ours.find(chosen, version)
        if kafkas != ours:
            wrong.append(f"{chosen}\n  Kafka {kafkas}\n  Klamm {ours}")
    filters = [some_filter(acls, chance) for _ in range(2)]
    gone = [side.delete(filters, version) for side in (pair.kafka, pair.ours)]
    if gone[0] != gone[1]:
        wrong.append(f"deleted {filters}\n  Kafka {gone[0]}\n  Klamm {gone[1]}")
    rules = "\n".join(map(str, acls))
    assert not wrong, f"seed {seed}: {len(wrong)} differences\n{rules}\n" + "\n".join(wrong)


def test_rules_and_requests_of_every_api_get_the_same_codes_and_names(pair: Pair) -> None:
    seed = seed_of()
    for number in range(CASES):
        run_case(pair, seed + number)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_rules_and_requests_for_long(pair: Pair) -> None:
    run_cases(pair, float(os.environ.get("KLAMM_SOAK_SECONDS", "1800")))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_rules_and_requests_where_everyone_may_do_what_no_rule_is_about(tmp_path: Path) -> None:
    """allow.everyone.if.no.acl.found: Kafka reads it when it starts, so this one is a broker of its own."""
    need_kafka()
    everyone = {"allow_everyone_if_no_acl_found": "true"}
    kafka = KafkaBroker(is_guarded=True, **everyone)
    try:
        with closing(coordinating(kafka)) as broker, paired(broker, tmp_path / "events", **everyone) as pair:
            run_cases(pair, float(os.environ.get("KLAMM_SOAK_SECONDS", "1800")) / 3)
    finally:
        kafka.stop()


def run_cases(pair: Pair, seconds: float) -> None:
    seed = seed_of()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        tell_seed(seed)
        run_case(pair, seed)
        seed += 1


def test_topics_named_by_id_are_deleted_by_those_who_may_and_made_by_those_who_may(pair: Pair) -> None:
    """What the generated requests leave out, because it changes something."""
    answers = []
    for side, world in zip((pair.kafka, pair.ours), pair.worlds, strict=True):
        notes: list[Any] = []
        topic = world.topics[0]
        alice = side.users["alice"]

        def allow(*acls: Acl, side: Side = side) -> None:
            side.create(list(acls), 3)
            until(lambda: side.find(AclFilter(), 3) >= set(acls), "the rules are there")
            time.sleep(0.2 if side.kind == "apache" else 0)  # its controller hears of them beside

        def rule(operation: Operation, name: str) -> Acl:
            return Acl(ResourceType.TOPIC, name, PatternType.LITERAL, "User:alice", "*", operation, Permission.ALLOW)

        asked = [DELETE_TOPICS.request.Topic(name=None, topic_id=world.ids[topic])]
        for operation in (Operation.DESCRIBE, Operation.DELETE):
            delete = Request("delete", DELETE_TOPICS, 6, {"topics": asked, "timeout_ms": 10_000})
            notes.append(ask(alice, delete, world))
            allow(rule(operation, topic))
        notes.append(ask(alice, delete, world))
        new = [METADATA.request.Topic(name=f"{world.token}new-{n}") for n in range(2)]
        create = Request("create", METADATA, 9, {"topics": new})
        notes.append(ask(alice, create, world))
        allow(rule(Operation.DESCRIBE, new[0].name), rule(Operation.DESCRIBE, new[1].name))
        allow(rule(Operation.CREATE, new[1].name))
        create_first = Request("create", METADATA, 9, {"topics": new[:1]})
        notes.append(ask(alice, create_first, world))
        answers.append(notes)
    assert answers[0] == answers[1]
