"""One request of each API that a client may be denied, and what of the response depends on rights: codes and names.

The same requests are sent to Klamm and to Apache Kafka. They change nothing, whoever sends them: topics are only tried,
and what is to be deleted is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.codec import Api
from klamm.kafka.wire.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    ALTER_CLIENT_QUOTAS,
    ALTER_CONFIGS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DECIDE_TRANSACTIONS,
    DELETE_ACLS,
    DELETE_GROUPS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TOPIC_PARTITIONS,
    DESCRIBE_TRANSACTIONS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    HEARTBEAT,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SYNC_GROUP,
    TXN_OFFSET_COMMIT,
)
from klamm.kafka.wire.structs import Struct
from tests.interop.raw import ConnectionEnded, Raw
from tests.kafka.requests import sealed

__all__ = ["DENIALS", "Request", "World", "ask", "make_world", "requests"]

DENIALS = {
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
}


class World(NamedTuple):
    """What a broker has: the names that begin with `token` are those that are compared."""

    token: str
    topics: tuple[str, ...]
    groups: tuple[str, ...]
    """Those that have offsets."""
    transactional_ids: tuple[str, ...]
    ids: Mapping[str, bytes]
    """Of the topics."""

    @property
    def missing(self) -> str:
        """A name that nothing has."""
        return f"{self.token}b-missing"


def make_world(raw: Raw, token: str) -> World:
    """Make it, as someone who may do everything."""
    topics, groups, names = ([f"{token}{word}-{kind}" for word in "ab"] for kind in ("topic", "group", "txn"))
    for topic in topics:
        raw.create(topic)
    for group in groups:
        parts = [OFFSET_COMMIT.request.Partition(partition_index=0, committed_offset=0) for _ in topics[:1]]
        committed = [OFFSET_COMMIT.request.Topic(name=topic, partitions=parts) for topic in topics]
        response = raw.ask(OFFSET_COMMIT, 8, group_id=group, topics=committed)
        assert not any(each.error_code for topic in response.topics for each in topic.partitions)
    for name in names:
        assert raw.ask(INIT_PRODUCER_ID, 4, transactional_id=name, transaction_timeout_ms=60_000).error_code == 0
    seen = raw.ask(METADATA, 12, topics=[METADATA.request.Topic(name=topic) for topic in topics]).topics
    return World(token, tuple(topics), tuple(groups), tuple(names), {each.name: each.topic_id for each in seen})


class Request(NamedTuple):
    label: str
    api: Api
    version: int
    fields: dict[str, Any]


def requests(world: World) -> Iterator[Request]:
    """Yield requests of every API, for each of the names."""
    names = (*world.topics, world.missing)
    for api, versions, fields_of in _OF_ALL:
        for version in versions:
            yield Request(f"{api.name} v{version}", api, version, fields_of(world))
    for each in names:
        for api, versions, fields_of_topic in _OF_TOPICS:
            for version in versions:
                if version >= _IDS_SINCE.get(api, 99) and each not in world.ids:
                    continue
                yield Request(f"{api.name} v{version} {each}", api, version, fields_of_topic(world, each, version))
    for each in (*world.groups, world.missing):
        for api, versions, fields_of_group in _OF_GROUPS:
            for version in versions:
                yield Request(f"{api.name} v{version} {each}", api, version, fields_of_group(world, each, version))
    for each in (*world.transactional_ids, world.missing):
        for api, versions, fields_of_id in _OF_TRANSACTIONS:
            for version in versions:
                yield Request(f"{api.name} v{version} {each}", api, version, fields_of_id(world, each, version))


_IDS_SINCE = {PRODUCE: 13, FETCH: 13}


def _resource(api: Api, kind: int, name: str) -> Struct:
    return api.request.Resource(resource_type=kind, resource_name=name)


def _nameless() -> Struct:
    kinds = {"resource_type": 2, "resource_pattern_type": 3, "operation": 3, "permission_type": 3}
    return CREATE_ACLS.request.Creation(resource_name="", principal="User:x", host="*", **kinds)


def _quota() -> Struct:
    request = ALTER_CLIENT_QUOTAS.request
    operation = request.Operation(key="producer_byte_rate", value=1e6, remove=False)
    return request.Entry(entity=[request.Entity(entity_type="user", entity_name="x")], ops=[operation])


def _filter_all() -> dict[str, Any]:
    return {"resource_type_filter": 7, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}


_OF_ALL: list[tuple[Api, tuple[int, ...], Callable[[World], dict[str, Any]]]] = [
    (METADATA, (0,), lambda _: {"topics": []}),
    (METADATA, (9,), lambda _: {"topics": None, "include_topic_authorized_operations": True}),
    (
        METADATA,
        (8, 10),
        lambda world: {
            "topics": [METADATA.request.Topic(name=name) for name in (*world.topics, world.missing)],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": True,
        },
    ),
    (
        METADATA,
        (12,),
        lambda world: {
            "topics": [METADATA.request.Topic(name=None, topic_id=each) for each in (*world.ids.values(), b"\1" * 16)],
            "allow_auto_topic_creation": False,
        },
    ),
    (DESCRIBE_CLUSTER, (0, 2), lambda _: {"include_cluster_authorized_operations": True}),
    (DESCRIBE_TOPIC_PARTITIONS, (0,), lambda _: {"topics": []}),
    (
        DESCRIBE_TOPIC_PARTITIONS,
        (0,),
        lambda world: {
            "topics": [DESCRIBE_TOPIC_PARTITIONS.request.Topic(name=name) for name in (*world.topics, world.missing)]
        },
    ),
    (DESCRIBE_LOG_DIRS, (1, 4), lambda world: {"topics": []}),
    (LIST_GROUPS, (0, 5), lambda _: {}),
    (
        DESCRIBE_GROUPS,
        (0, 5, 6),
        lambda world: {"groups": [*world.groups, world.missing], "include_authorized_operations": True},
    ),
    (LIST_TRANSACTIONS, (0,), lambda _: {}),
    (DESCRIBE_CONFIGS, (4,), lambda _: {"resources": [_resource(DESCRIBE_CONFIGS, 4, "1")]}),
    (DESCRIBE_CONFIGS, (4,), lambda _: {"resources": [_resource(DESCRIBE_CONFIGS, 4, "")]}),
    (
        INCREMENTAL_ALTER_CONFIGS,
        (1,),
        lambda _: {"resources": [_resource(INCREMENTAL_ALTER_CONFIGS, 4, "")], "validate_only": True},
    ),
    (DESCRIBE_ACLS, (1, 3), lambda _: _filter_all()),
    (CREATE_ACLS, (2, 3), lambda _: {"creations": [_nameless()]}),
    (DELETE_ACLS, (2, 3), lambda _: {"filters": [DELETE_ACLS.request.Filter(**_filter_all())]}),
    (DESCRIBE_CLIENT_QUOTAS, (0, 1), lambda _: {"components": [], "strict": True}),
    (ALTER_CLIENT_QUOTAS, (0, 1), lambda _: {"entries": [_quota()], "validate_only": True}),
    (INIT_PRODUCER_ID, (0, 4), lambda _: {"transactional_id": None, "transaction_timeout_ms": 60_000}),
    (DESCRIBE_USER_SCRAM_CREDENTIALS, (0,), lambda world: {"users": [_user(DESCRIBE_USER_SCRAM_CREDENTIALS, world)]}),
    (
        ALTER_USER_SCRAM_CREDENTIALS,
        (0,),
        lambda world: {
            "deletions": [ALTER_USER_SCRAM_CREDENTIALS.request.Deletion(name=world.missing, mechanism=1)],
            "upsertions": [],
        },
    ),
]


def _user(api: Api, world: World) -> Struct:
    return api.request.User(name=world.missing)


def _producing(world: World, topic: str, version: int) -> dict[str, Any]:
    part = PRODUCE.request.Partition(index=0, records=bytes(sealed(1)))
    data = PRODUCE.request.Topic(name=topic, topic_id=world.ids.get(topic, bytes(16)), partition_data=[part])
    return {"acks": 1, "timeout_ms": 30_000, "topic_data": [data]}


def _fetching(world: World, topic: str, version: int) -> dict[str, Any]:
    part = FETCH.request.Partition(partition=0, fetch_offset=0, partition_max_bytes=1)
    topics = [FETCH.request.Topic(topic=topic, topic_id=world.ids.get(topic, bytes(16)), partitions=[part])]
    return {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1, "topics": topics}


def _new(world: World, topic: str, version: int) -> dict[str, Any]:
    made = CREATE_TOPICS.request.Topic(name=f"{topic}-new", num_partitions=1, replication_factor=1)
    return {"topics": [made], "validate_only": True}


def _listing(world: World, topic: str, version: int) -> dict[str, Any]:
    part = LIST_OFFSETS.request.Partition(partition_index=0, timestamp=-2)
    return {"replica_id": -1, "topics": [LIST_OFFSETS.request.Topic(name=topic, partitions=[part])]}


def _epochs(world: World, topic: str, version: int) -> dict[str, Any]:
    part = OFFSET_FOR_LEADER_EPOCH.request.Partition(partition=0, leader_epoch=0)
    return {"topics": [OFFSET_FOR_LEADER_EPOCH.request.Topic(topic=topic, partitions=[part])]}


def _purging(world: World, topic: str, version: int) -> dict[str, Any]:
    part = DELETE_RECORDS.request.Partition(partition_index=0, offset=0)
    topics = [DELETE_RECORDS.request.Topic(name=topic, partitions=[part])]
    return {"topics": topics, "timeout_ms": 30_000}


def _gone(world: World, topic: str, version: int) -> dict[str, Any]:
    if version < 6:
        return {"topic_names": [f"{topic}-gone"], "timeout_ms": 30_000}
    return {"topics": [DELETE_TOPICS.request.Topic(name=f"{topic}-gone")], "timeout_ms": 30_000}


def _configs(api: Api) -> Callable[[World, str, int], dict[str, Any]]:
    def fields(world: World, topic: str, version: int) -> dict[str, Any]:
        more = {} if api is DESCRIBE_CONFIGS else {"validate_only": True}
        return {"resources": [_resource(api, 2, topic)]} | more

    return fields


def _growing(world: World, topic: str, version: int) -> dict[str, Any]:
    grown = CREATE_PARTITIONS.request.Topic(name=topic, count=2, assignments=None)
    return {"topics": [grown], "timeout_ms": 30_000, "validate_only": True}


def _producers(world: World, topic: str, version: int) -> dict[str, Any]:
    return {"topics": [DESCRIBE_PRODUCERS.request.Topic(name=topic, partition_indexes=[0])]}


_Fields = Callable[[World, str, int], dict[str, Any]]
_OF_TOPICS: list[tuple[Api, tuple[int, ...], _Fields]] = [
    (PRODUCE, (3, 12, 13), _producing),
    (FETCH, (4, 12, 13), _fetching),
    (LIST_OFFSETS, (1, 8), _listing),
    (OFFSET_FOR_LEADER_EPOCH, (2, 4), _epochs),
    (CREATE_TOPICS, (2, 7), _new),
    (DELETE_TOPICS, (1, 6), _gone),
    (DELETE_RECORDS, (0, 2), _purging),
    (CREATE_PARTITIONS, (0, 3), _growing),
    (DESCRIBE_CONFIGS, (1, 4), _configs(DESCRIBE_CONFIGS)),
    (ALTER_CONFIGS, (0, 2), _configs(ALTER_CONFIGS)),
    (INCREMENTAL_ALTER_CONFIGS, (0, 1), _configs(INCREMENTAL_ALTER_CONFIGS)),
    (DESCRIBE_PRODUCERS, (0,), _producers),
]


def _committing(world: World, group: str, version: int) -> dict[str, Any]:
    part = OFFSET_COMMIT.request.Partition(partition_index=0, committed_offset=0)
    names = (*world.topics, world.missing) if version < 10 else world.topics
    topics = [
        OFFSET_COMMIT.request.Topic(name=name, topic_id=world.ids.get(name, bytes(16)), partitions=[part])
        for name in names
    ]
    return {"group_id": group, "topics": topics}


def _offsets(world: World, group: str, version: int) -> dict[str, Any]:
    if version < 8:
        asked = [OFFSET_FETCH.request.Topic(name=name, partition_indexes=[0]) for name in world.topics]
        return {"group_id": group, "topics": asked}
    make = OFFSET_FETCH.request.GroupTopic
    by_name = [make(name=name, topic_id=world.ids[name], partition_indexes=[0]) for name in world.topics]
    return {"groups": [OFFSET_FETCH.request.Group(group_id=group, topics=by_name if version != 9 else None)]}


def _forgetting(world: World, group: str, version: int) -> dict[str, Any]:
    part = OFFSET_DELETE.request.Partition(partition_index=99)
    topics = [OFFSET_DELETE.request.Topic(name=name, partitions=[part]) for name in world.topics]
    return {"group_id": f"{group}-gone", "topics": topics}


def _finding(kind: int) -> _Fields:
    return lambda world, name, version: {"key": name, "key_type": kind, "coordinator_keys": [name]}


def _joining(world: World, group: str, version: int) -> dict[str, Any]:
    protocols = [JOIN_GROUP.request.Protocol(name="range", metadata=b"")]
    return {
        "group_id": group,
        "member_id": "stranger",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": protocols,
    }


_OF_GROUPS: list[tuple[Api, tuple[int, ...], _Fields]] = [
    (FIND_COORDINATOR, (0, 3, 6), _finding(0)),
    (JOIN_GROUP, (0, 9), _joining),
    (SYNC_GROUP, (0, 4), lambda world, group, _: {"group_id": group, "generation_id": 1, "member_id": "stranger"}),
    (HEARTBEAT, (0, 4), lambda world, group, _: {"group_id": group, "generation_id": 1, "member_id": "stranger"}),
    (LEAVE_GROUP, (0, 2), lambda world, group, _: {"group_id": group, "member_id": "stranger"}),
    (OFFSET_COMMIT, (2, 9, 10), _committing),
    (OFFSET_FETCH, (1, 5, 8, 9, 10), _offsets),
    (OFFSET_DELETE, (0,), _forgetting),
    (DELETE_GROUPS, (0, 2), lambda world, group, _: {"groups_names": [f"{group}-gone"]}),
]


def _adding(world: World, name: str, version: int) -> dict[str, Any]:
    request = ADD_PARTITIONS_TO_TXN.request
    topics = [request.Topic(name=topic, partitions=[0]) for topic in (*world.topics, world.missing)]
    if version >= 4:
        one = request.Transaction(transactional_id=name, producer_id=9, producer_epoch=0, topics=topics)
        return {"transactions": [one]}
    who = {"v3_and_below_transactional_id": name, "v3_and_below_producer_id": 999_999}
    return {**who, "v3_and_below_producer_epoch": 0, "v3_and_below_topics": topics}


def _txn_committing(world: World, name: str, version: int) -> dict[str, Any]:
    request = TXN_OFFSET_COMMIT.request
    part = request.Partition(partition_index=99, committed_offset=0)
    topics = [request.Topic(name=topic, partitions=[part]) for topic in world.topics]
    who = {"transactional_id": name, "producer_id": 999_999, "producer_epoch": 0}
    return {**who, "group_id": world.groups[0], "topics": topics}


_TRANSACTIONAL = 0x10


def _transactional(world: World, name: str, version: int) -> dict[str, Any]:
    batch = bytes(sealed(1, producer_id=999_999, producer_epoch=0, base_sequence=0, attributes=_TRANSACTIONAL))
    part = PRODUCE.request.Partition(index=99, records=batch)
    topics = [PRODUCE.request.Topic(name=topic, partition_data=[part]) for topic in world.topics]
    return {"transactional_id": name, "acks": 1, "timeout_ms": 30_000, "topic_data": topics}


_OF_TRANSACTIONS: list[tuple[Api, tuple[int, ...], _Fields]] = [
    (FIND_COORDINATOR, (1, 5), _finding(1)),
    (
        INIT_PRODUCER_ID,
        (1, 4),
        lambda world, name, _: {"transactional_id": name, "transaction_timeout_ms": 2**31 - 1},
    ),
    (ADD_PARTITIONS_TO_TXN, (0, 3, 4), _adding),
    (
        ADD_OFFSETS_TO_TXN,
        (0, 3),
        lambda world, name, _: {
            "transactional_id": name,
            "producer_id": 999_999,
            "producer_epoch": 0,
            "group_id": world.groups[1],
        },
    ),
    (
        END_TXN,
        (0, 4),
        lambda world, name, _: {
            "transactional_id": name,
            "producer_id": 999_999,
            "producer_epoch": 0,
            "committed": False,
        },
    ),
    (TXN_OFFSET_COMMIT, (0, 3), _txn_committing),
    (PRODUCE, (12,), _transactional),
    (
        DECIDE_TRANSACTIONS,
        (0,),
        lambda world, name, _: {"writer": name, "scope": f"{name}/t/", "committed": False},
    ),
    (DESCRIBE_TRANSACTIONS, (0,), lambda world, name, _: {"transactional_ids": [name]}),
]


# ---- responses

_NAMES = ("name", "topic", "group_id", "transactional_id", "user", "key", "resource_name")
_KEPT = {"resource_type", "partition_index", "index", "partition"}


def ask(raw: Raw, request: Request, world: World) -> Any:
    """Return the codes and names of the response; of names, those of this world."""
    try:
        response = raw.ask(request.api, request.version, **request.fields)
    except ConnectionEnded:
        return "closed"
    return _plain(response, world)


def _plain(struct: Struct, world: World) -> Any:
    kept: dict[str, Any] = {}
    for field in struct.__slots__:
        if field in _LEFT_OUT:
            continue
        value = getattr(struct, field)
        is_name = field in _NAMES and (value is None or isinstance(value, str))
        if field.endswith("error_code"):
            kept[field] = ErrorCode(value).name
        elif is_name or field in _KEPT or field.endswith("authorized_operations"):
            kept[field] = value
        elif field == "topic_id":
            known = {id_: name for name, id_ in world.ids.items()}
            kept[field] = known.get(value, "none of ours")
        elif isinstance(value, list) and value and isinstance(value[0], Struct):
            ours = sorted((_plain(each, world) for each in value if _is_ours(each, world)), key=repr)
            if ours:  # as an empty list: a broker may show others, as Kafka does its internal topics
                kept[field] = ours
    return kept


_LEFT_OUT = {"brokers", "configs", "members", "active_producers", "acls"}
"""What else a broker has to say."""


def _is_ours(struct: Struct, world: World) -> bool:
    for field in ("name", "topic", "group_id", "transactional_id"):
        name = getattr(struct, field, None)
        if isinstance(name, str) and name and not name.startswith(world.token):
            return False
    return True
