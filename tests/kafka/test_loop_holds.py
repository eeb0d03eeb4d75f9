"""Requests that name hundreds of things: between two rounds of the loop there is the work of a turn, and no more.

Work is counted, not timed: calls of functions on the loop's thread, one of which is a tick of the clock by which turns
end. So the test does not depend on the machine, and a handler that looks at its turn too seldom fails.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.kafka import admission, large_requests
from klamm.kafka.settings import STANDARD_AUTHORIZER
from klamm.kafka.wire.codec import Api
from klamm.kafka.wire.messages import (
    ADD_PARTITIONS_TO_TXN,
    ALTER_CLIENT_QUOTAS,
    ALTER_CONFIGS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DELETE_GROUPS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TOPIC_PARTITIONS,
    DESCRIBE_TRANSACTIONS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    FETCH,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    LEAVE_GROUP,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from tests.kafka.connect import Raw, Served, served
from tests.kafka.requests import FetchFrom, fetching, producing

COUNT = 400
NAMES = [f"name-{number}" for number in range(COUNT)]
TURN = 150
"""Calls, after which a turn is over."""
MOST = TURN + COUNT + 200
"""One more thing, a call for each (names are counted), and what is done for a request once."""


class Holds:
    """The largest number of calls between two rounds of a loop, and its clock."""

    def __init__(self) -> None:
        self.calls = self.most = 0
        self._begun = 0

    def count(self, frame: object, event: str, arg: object) -> None:
        if event in ("call", "c_call"):
            self.calls += 1

    def now(self) -> float:
        return self.calls / TURN * large_requests.TURN_S

    def begin(self) -> None:
        self._begun = self.calls

    def end(self) -> None:
        self.most = max(self.most, self.calls - self._begun)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path: Path = tmp_path_factory.mktemp("holds") / "events"
    with klamm.open(path) as store:
        store.topics.create("wide", COUNT)
    settings = {
        "authorizer_class_name": STANDARD_AUTHORIZER,
        "allow_everyone_if_no_acl_found": True,
        "super_users": "User:ANONYMOUS",
        "audit_topic": "audit",
    }
    with served(path, **settings) as running:
        with running.dial() as raw:
            raw.ask(CREATE_ACLS, 3, **acls())
            raw.ask(ALTER_CLIENT_QUOTAS, 1, **quotas(), validate_only=False)
            raw.ask(OFFSET_COMMIT, 9, **commit(OFFSET_COMMIT, wide=True))
        yield running


@pytest.fixture
def holds(server: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holds]:
    counted = Holds()
    run = asyncio.Handle._run
    monkeypatch.setattr(admission, "LOOP_ELEMENTS", 64)
    monkeypatch.setattr(large_requests, "PIECE", 50)
    monkeypatch.setattr(server.broker.large_requests, "now", counted.now)

    def watched(self: asyncio.Handle) -> None:
        counted.begin()
        run(self)
        counted.end()

    monkeypatch.setattr(asyncio.Handle, "_run", watched)
    gc.disable()  # what other tests have left would be finalized on this loop, call by call
    yield counted
    gc.enable()
    server.call(lambda: sys.setprofile(None))


# ---- requests, by what they name


def commit(api: Api, *, wide: bool = False) -> dict[str, Any]:
    make = api.request
    if wide:
        partitions = [make.Partition(partition_index=number, committed_offset=1) for number in range(COUNT)]
        topics = [make.Topic(name="wide", partitions=partitions)]
    else:
        topics = [
            make.Topic(name=name, partitions=[make.Partition(partition_index=0, committed_offset=1)]) for name in NAMES
        ]
    if api is TXN_OFFSET_COMMIT:
        return {"group_id": "g", "transactional_id": "tx", "generation_id": -1, "topics": topics}
    return {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": topics}


def refused_commit() -> dict[str, Any]:
    return commit(OFFSET_COMMIT, wide=True) | {"member_id": "m", "generation_id_or_member_epoch": 7}


def adding(*, wide: bool = False) -> dict[str, Any]:
    make = ADD_PARTITIONS_TO_TXN.request.Topic
    topics = (
        [make(name="wide", partitions=list(range(COUNT)))] if wide else [make(name=n, partitions=[0]) for n in NAMES]
    )
    return {"v3_and_below_transactional_id": "tx", "v3_and_below_topics": topics}


def acls() -> dict[str, Any]:
    make = CREATE_ACLS.request.Creation
    rest = {"resource_type": 2, "resource_pattern_type": 3, "host": "*", "operation": 3, "permission_type": 3}
    return {"creations": [make(resource_name=name, principal="User:x", **rest) for name in NAMES]}


def acl_filters() -> dict[str, Any]:
    make = DELETE_ACLS.request.Filter
    rest: dict[str, Any] = {"resource_type_filter": 2, "pattern_type_filter": 3, "operation": 1, "permission_type": 1}
    rest |= {"principal_filter": None, "host_filter": None}
    return {"filters": [make(resource_name_filter=f"{name}!", **rest) for name in NAMES]}


def acls_described() -> dict[str, Any]:
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }


def quotas() -> dict[str, Any]:
    make = ALTER_CLIENT_QUOTAS.request
    operations = [make.Operation(key="producer_byte_rate", value=1e12)]
    entities = [[make.Entity(entity_type="user", entity_name=name)] for name in NAMES]
    return {"entries": [make.Entry(entity=entity, ops=operations) for entity in entities]}


def creating(name: str) -> dict[str, Any]:
    make = CREATE_TOPICS.request.Topic
    topics = [make(name=name % number, num_partitions=1, replication_factor=1) for number in range(COUNT)]
    return {"topics": topics, "timeout_ms": 60_000}


def growing() -> dict[str, Any]:
    make = CREATE_PARTITIONS.request.Topic
    return {"topics": [make(name=name, count=2, assignments=None) for name in NAMES], "timeout_ms": 60_000}


def deleting_records() -> dict[str, Any]:
    make = DELETE_RECORDS.request
    partitions = [make.Partition(partition_index=0, offset=1)]
    return {"topics": [make.Topic(name=name, partitions=partitions) for name in NAMES], "timeout_ms": 60_000}


def configs(api: Api) -> dict[str, Any]:
    make = api.request.Resource
    rest: dict[str, Any] = {"configuration_keys": None} if api is DESCRIBE_CONFIGS else {"configs": []}
    return {"resources": [make(resource_type=2, resource_name=name, **rest) for name in NAMES]}


def metadata(**rest: Any) -> dict[str, Any]:
    return {"topics": [METADATA.request.Topic(name=f"{name}?") for name in NAMES], **rest}


def offsets_listed() -> dict[str, Any]:
    make = LIST_OFFSETS.request
    partitions = [make.Partition(partition_index=0, timestamp=-1)]
    return {"replica_id": -1, "topics": [make.Topic(name=name, partitions=partitions) for name in NAMES]}


def epochs() -> dict[str, Any]:
    make = OFFSET_FOR_LEADER_EPOCH.request
    return {"topics": [make.Topic(topic=name, partitions=[make.Partition(partition=0)]) for name in NAMES]}


def offsets_fetched() -> dict[str, Any]:
    make = OFFSET_FETCH.request.Topic
    return {"group_id": "g", "topics": [make(name=name, partition_indexes=[0]) for name in NAMES]}


def offsets_deleted() -> dict[str, Any]:
    make = OFFSET_DELETE.request
    return {
        "group_id": "g",
        "topics": [make.Topic(name=name, partitions=[make.Partition(partition_index=0)]) for name in NAMES],
    }


def described_topics() -> dict[str, Any]:
    make = DESCRIBE_TOPIC_PARTITIONS.request.Topic
    return {"topics": [make(name=name) for name in NAMES], "response_partition_limit": 2000}


def users_altered() -> dict[str, Any]:
    make = ALTER_USER_SCRAM_CREDENTIALS.request.Deletion
    return {"deletions": [make(name=name, mechanism=1) for name in NAMES]}


def users_described() -> dict[str, Any]:
    return {"users": [DESCRIBE_USER_SCRAM_CREDENTIALS.request.User(name=name) for name in NAMES]}


def producers() -> dict[str, Any]:
    make = DESCRIBE_PRODUCERS.request.Topic
    return {"topics": [make(name=name, partition_indexes=[0]) for name in NAMES]}


REQUESTS: list[tuple[str, Api, int, dict[str, Any]]] = [
    ("of topics that are not there", OFFSET_COMMIT, 9, commit(OFFSET_COMMIT)),
    ("of many partitions", OFFSET_COMMIT, 9, commit(OFFSET_COMMIT, wide=True)),
    ("refused", OFFSET_COMMIT, 9, refused_commit()),
    ("of topics that are not there", TXN_OFFSET_COMMIT, 4, commit(TXN_OFFSET_COMMIT)),
    ("of many partitions", TXN_OFFSET_COMMIT, 4, commit(TXN_OFFSET_COMMIT, wide=True)),
    ("of topics that are not there", ADD_PARTITIONS_TO_TXN, 3, adding()),
    ("of many partitions", ADD_PARTITIONS_TO_TXN, 3, adding(wide=True)),
    ("of topics that are not there", OFFSET_FETCH, 7, offsets_fetched()),
    ("of a group", OFFSET_FETCH, 7, {"group_id": "g", "topics": None}),
    ("", OFFSET_DELETE, 0, offsets_deleted()),
    ("", CREATE_ACLS, 3, acls()),
    ("", DESCRIBE_ACLS, 3, acls_described()),
    ("", DELETE_ACLS, 3, acl_filters()),
    ("", ALTER_CLIENT_QUOTAS, 1, quotas() | {"validate_only": True}),
    ("", DESCRIBE_CLIENT_QUOTAS, 1, {"components": [], "strict": False}),
    ("with names that cannot be", CREATE_TOPICS, 5, creating("name/%d")),
    ("", CREATE_PARTITIONS, 3, growing()),
    ("", DELETE_TOPICS, 5, {"topic_names": NAMES, "timeout_ms": 60_000}),
    ("", DELETE_RECORDS, 2, deleting_records()),
    ("", ALTER_CONFIGS, 2, configs(ALTER_CONFIGS)),
    ("", INCREMENTAL_ALTER_CONFIGS, 1, configs(INCREMENTAL_ALTER_CONFIGS)),
    ("", DESCRIBE_CONFIGS, 4, configs(DESCRIBE_CONFIGS)),
    ("of topics that are not there", METADATA, 12, metadata(allow_auto_topic_creation=False)),
    ("of topics that cannot be created", METADATA, 12, metadata(allow_auto_topic_creation=True)),
    ("of topics by wrong ids", METADATA, 10, {"topics": [METADATA.request.Topic(name="", topic_id=b"x" * 16)] * COUNT}),
    ("", DESCRIBE_TOPIC_PARTITIONS, 0, described_topics()),
    ("", LIST_OFFSETS, 7, offsets_listed()),
    ("of topics that are not there", PRODUCE, 9, producing({(name, 0): None for name in NAMES})),
    ("of topics that are not there", FETCH, 12, fetching({(name, 0): FetchFrom(0) for name in NAMES})),
    ("of many partitions", FETCH, 12, fetching({("wide", number): FetchFrom(0) for number in range(COUNT)})),
    ("that waits", FETCH, 12, fetching({("wide", number): FetchFrom(0) for number in range(COUNT)}, wait_ms=1)),
    ("", OFFSET_FOR_LEADER_EPOCH, 4, epochs()),
    ("", FIND_COORDINATOR, 6, {"key_type": 0, "coordinator_keys": NAMES}),
    ("", DESCRIBE_GROUPS, 5, {"groups": NAMES}),
    ("", DELETE_GROUPS, 2, {"groups_names": NAMES}),
    ("", LEAVE_GROUP, 4, {"group_id": "g", "members": [LEAVE_GROUP.request.Member(member_id=name) for name in NAMES]}),
    ("", DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": NAMES}),
    ("", DESCRIBE_PRODUCERS, 0, producers()),
    ("", ALTER_USER_SCRAM_CREDENTIALS, 0, users_altered()),
    ("", DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users_described()),
]


def fields_for(raw: Raw, api: Api, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields, with a producer's id where there is one."""
    if api not in (ADD_PARTITIONS_TO_TXN, TXN_OFFSET_COMMIT):
        return fields
    made = raw.ask(INIT_PRODUCER_ID, 4, transactional_id="tx", transaction_timeout_ms=60_000, producer_id=-1,
                   producer_epoch=-1)  # fmt: skip
    prefix = "v3_and_below_" if api is ADD_PARTITIONS_TO_TXN else ""
    return fields | {f"{prefix}producer_id": made.producer_id, f"{prefix}producer_epoch": made.producer_epoch}


@pytest.mark.parametrize(
    ("api", "version", "fields"),
    [pytest.param(*rest, id=f"{rest[0].name} {label}".strip()) for label, *rest in map(list[Any], REQUESTS)],
)
def test_a_request_that_names_hundreds_of_things_has_the_loop_for_a_turn_at_a_time(
    server: Served, holds: Holds, api: Api, version: int, fields: dict[str, Any]
) -> None:
    """LRQ4: see large_requests.py."""
    with server.dial() as raw:
        fields = fields_for(raw, api, fields)
        raw.ask(api, version, **fields)  # functions that encode and decode are compiled
        server.call(lambda: sys.setprofile(holds.count))
        holds.most = 0
        raw.ask(api, version, **fields)
        assert holds.calls > 10 * COUNT, "its things were looked at here"
        assert holds.most <= MOST, f"{holds.calls} in all"
