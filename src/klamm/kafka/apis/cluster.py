"""APIs that describe the server: ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions, DescribeLogDirs.

The cluster is one broker, which leads every partition and is the only replica of it. Nothing here opens a partition:
leader epochs are read from heads, and a log that must be recovered first has the epoch -1, "unknown", until then.

ApiVersions    The finalized feature `transaction.version` 2 tells clients that a transaction's epoch rises with its end
               (KIP-890). Of the other features of Kafka 4.3 that clients use there is level 0, which is to say that
               they are off: groups are those of JoinGroup. Those of its own brokers and controllers (metadata.version,
               kraft.version, eligible.leader.replicas.version) are not here. Features that begin with level 0 are left
               out of `supported_features` before version 4, as older clients stumble over them, and those that are off
               out of `finalized_features`, as in Kafka.
Metadata       A topic that is not there and may be created is there in the same answer.
Rights         Of topics that a client may not describe, it is not told whether they are there: they are left out of
               "all topics", and denied if they are named. Topic ids are no secret, as in Kafka.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from klamm.errors import KlammError, TopicExists
from klamm.kafka.api_error import ApiError, code_and_message, unknown_topic
from klamm.kafka.call import ADMIN, CATALOG, DISK, LARGE, LOOP, SupportedApi
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.request_meter import mutate
from klamm.kafka.wire.messages import (
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_TOPIC_PARTITIONS,
    METADATA,
)
from klamm.log import head, segment
from klamm.store.acl import CLUSTER_NAME, Operation, ResourceType
from klamm.store.names import RESERVED

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.kafka.call import Call
    from klamm.kafka.large_requests import Turn
    from klamm.kafka.wire.structs import Struct
    from klamm.store.directory import OpenTopic

__all__ = ["HANDLERS", "api_versions_unsupported"]

NO_ID = bytes(16)
MAX_PARTITIONS = 2000  # in one answer to DescribeTopicPartitions

_NOT_REQUESTED = -(2**31)  # in place of what a client may do
_TOPIC, _CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FEATURES = {"group.version": (0, 0), "share.version": (0, 0), "streams.version": (0, 0), "transaction.version": (0, 2)}
"""Lowest and highest level; the highest is the one that counts."""
_FEATURES_EPOCH = 1


# ---- ApiVersions


async def api_versions(broker: Broker, call: Call) -> Struct:
    request = call.request
    if call.version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return API_VERSIONS.response(error_code=ErrorCode.INVALID_REQUEST)
    response = API_VERSIONS.response
    return response(
        api_keys=_supported_versions(),
        supported_features=[
            response.SupportedFeature(name=name, min_version=low, max_version=high)
            for name, (low, high) in _FEATURES.items()
            if low > 0 or call.version >= 4
        ],
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=[
            response.FinalizedFeature(name=name, max_version_level=high, min_version_level=high)
            for name, (_, high) in _FEATURES.items()
            if high > 0
        ],
    )


def api_versions_unsupported() -> Struct:
    """Answer a version that we do not know with the list of versions all the same; the client asks again."""
    return API_VERSIONS.response(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_supported_versions())


def _supported_versions() -> list[Struct]:
    from klamm.kafka.apis import TABLE  # which names us

    return [
        API_VERSIONS.response.ApiVersion(api_key=key, min_version=row.min_version, max_version=row.max_version)
        for key, row in TABLE.items()
    ]


# ---- Metadata


async def metadata(broker: Broker, call: Call) -> Struct:
    request = call.request
    topics = []
    turn = broker.large_requests.turn(call)
    if request.topics is None or (call.version == 0 and not request.topics):
        for opened in broker.topics.all():
            if turn.is_over:
                await turn.next()
            if call.may(Operation.DESCRIBE, _TOPIC, opened.name):
                topics.append(_topic(broker, call, opened))
        return _metadata(broker, call, topics)
    if call.version < 12 and any(topic.topic_id != NO_ID or topic.name is None for topic in request.topics):
        return await _metadata_refused(call, turn)
    wanted = list(dict.fromkeys((topic.topic_id, topic.name) for topic in request.topics))
    if request.allow_auto_topic_creation and broker.settings.auto_create_topics_enable:
        for uuid, name in wanted:
            if turn.is_over:
                await turn.next()
            if _is_new(broker, call, uuid, name):
                return await _metadata_with_new(broker, call, wanted)
    for uuid, name in wanted:
        if turn.is_over:
            await turn.next()
        topics.append(_wanted(broker, call, uuid, name))
    return _metadata(broker, call, topics)


async def _described_names(broker: Broker, call: Call, turn: Turn) -> list[str]:
    """Return the names of the topics that the client may know of, in order."""
    names = []
    for opened in broker.topics.all():
        if turn.is_over:
            await turn.next()
        if call.may(Operation.DESCRIBE, _TOPIC, opened.name):
            names.append(opened.name)
    return names


def _is_new(broker: Broker, call: Call, uuid: bytes, name: str | None) -> bool:
    """Return whether a topic is not there, as far as the client may know."""
    return uuid == NO_ID and broker.topics.find(name or "") is None and call.may(Operation.DESCRIBE, _TOPIC, name or "")


def _may_create(call: Call, name: str) -> bool:
    if call.may(Operation.CREATE, _CLUSTER, CLUSTER_NAME):
        return True
    return call.denied(Operation.CREATE, _TOPIC, name) is None


def _count_partitions(broker: Broker, version: int, request: Struct) -> int:
    """Return how many partitions the response lists."""
    topics = broker.topics
    if request.topics is None or (version == 0 and not request.topics):
        return topics.partition_count
    named = (
        topics.by_id(topic.topic_id) if topic.name is None else topics.find(topic.name) for topic in request.topics
    )
    return sum(opened.count for opened in named if opened is not None)


async def _metadata_with_new(broker: Broker, call: Call, wanted: list[tuple[bytes, str | None]]) -> Struct:
    topics = []
    left = broker.settings.auto_create_topics_max
    turn = broker.large_requests.turn(call, to_the_end=True)
    for uuid, name in wanted:
        if turn.is_over:
            await turn.next()
        if _is_new(broker, call, uuid, name) and left and not call.is_gone:
            if not _may_create(call, name or ""):
                topics.append(_denied(name))
                continue
            left -= 1
            try:
                mutate(broker, call, broker.settings.default_partitions, is_strict=True)
                await broker.topics.create(name or "")
                broker.audit.changed(call.session, call.api.name, "create", "Topic", name or "")
            except ApiError:  # too many by its quota: the client asks again
                pass
            except TopicExists:
                await broker.topics.refresh()  # another process was faster
            except KlammError as error:
                topics.append(METADATA.response.Topic(error_code=code_and_message(error)[0], name=name))
                continue
        topics.append(_wanted(broker, call, uuid, name))
    return _metadata(broker, call, topics)


def _wanted(broker: Broker, call: Call, uuid: bytes, name: str | None) -> Struct:
    if uuid != NO_ID:
        found = broker.topics.by_id(uuid)
        if found is None:
            return METADATA.response.Topic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=uuid)
        if call.denied(Operation.DESCRIBE, _TOPIC, found.name):
            return METADATA.response.Topic(error_code=_DENIED, name=None, topic_id=uuid)
    else:
        if call.denied(Operation.DESCRIBE, _TOPIC, name or ""):
            return _denied(name)
        found = broker.topics.find(name or "")
        if found is None:
            operations = _topic_operations(call, name or "")
            code = unknown_topic(name or "").code
            return METADATA.response.Topic(error_code=code, name=name, topic_authorized_operations=operations)
    return _topic(broker, call, found)


def _denied(name: str | None) -> Struct:
    return METADATA.response.Topic(error_code=_DENIED, name=name, is_internal=(name or "").startswith(RESERVED))


def _topic(broker: Broker, call: Call, opened: OpenTopic) -> Struct:
    return METADATA.response.Topic(
        name=opened.name,
        topic_id=broker.topics.uuid(opened),
        is_internal=opened.name.startswith(RESERVED),
        partitions=_partitions(broker, opened),
        topic_authorized_operations=_topic_operations(call, opened.name),
    )


def _topic_operations(call: Call, name: str) -> int:
    is_requested = call.version >= 8 and call.request.include_topic_authorized_operations
    return call.operations(_TOPIC, name) if is_requested else _NOT_REQUESTED


_known: WeakKeyDictionary[OpenTopic, tuple[int, list[int], list[Struct]]] = WeakKeyDictionary()


def _partitions(broker: Broker, opened: OpenTopic) -> list[Struct]:
    """Return the partitions of a topic, made once: with 10,000 partitions that costs more than all the rest."""
    epochs = head.leader_epochs(broker.core.heads, opened.topic.partitions)
    known = _known.get(opened)
    if known is not None and known[0] == broker.node_id and known[1] == epochs:
        return known[2]
    nodes = [broker.node_id]
    partition = METADATA.response.Partition
    made = [
        partition(partition_index=number, leader_id=nodes[0], leader_epoch=epoch, replica_nodes=nodes, isr_nodes=nodes)
        for number, epoch in enumerate(epochs)
    ]
    _known[opened] = nodes[0], epochs, made
    return made


def _metadata(broker: Broker, call: Call, topics: list[Struct]) -> Struct:
    host, port = broker.address(call)
    is_requested = 8 <= call.version <= 10 and call.request.include_cluster_authorized_operations
    return METADATA.response(
        brokers=[METADATA.response.Broker(node_id=broker.node_id, host=host, port=port)],
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        topics=topics,
        cluster_authorized_operations=_cluster_operations(call) if is_requested else _NOT_REQUESTED,
    )


def _cluster_operations(call: Call) -> int:
    if call.denied(Operation.DESCRIBE, _CLUSTER, CLUSTER_NAME):
        return 0
    return call.operations(_CLUSTER, CLUSTER_NAME)


async def _metadata_refused(call: Call, turn: Turn) -> Struct:
    """Reject what a version cannot ask for: before version 12 a request names topics by name, though 10 and 11 have a
    field for an id.
    """
    code = ErrorCode.INVALID_REQUEST
    topics = []
    for topic in call.request.topics:
        if turn.is_over:
            await turn.next()
        topics.append(METADATA.response.Topic(error_code=code, name=topic.name or ""))
    return METADATA.response(topics=topics)


# ---- DescribeCluster

_BROKERS, _CONTROLLERS = 1, 2  # types of endpoints


async def describe_cluster(broker: Broker, call: Call) -> Struct:
    request = call.request
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        return DESCRIBE_CLUSTER.response(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"endpoint type {request.endpoint_type}: there are brokers here, which is type {_BROKERS}",
        )
    host, port = broker.address(call)
    is_requested = request.include_cluster_authorized_operations
    return DESCRIBE_CLUSTER.response(
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        brokers=[DESCRIBE_CLUSTER.response.Broker(broker_id=broker.node_id, host=host, port=port)],
        cluster_authorized_operations=_cluster_operations(call) if is_requested else _NOT_REQUESTED,
    )


# ---- DescribeTopicPartitions


async def describe_topic_partitions(broker: Broker, call: Call) -> Struct:
    """Describe topics by name, from the cursor on, until the limit is reached; the next cursor says where to go on."""
    request, response = call.request, DESCRIBE_TOPIC_PARTITIONS.response
    cursor = request.cursor
    all_topics = not request.topics
    turn = broker.large_requests.turn(call)
    if all_topics:
        names = await _described_names(broker, call, turn)
    else:
        names = sorted({topic.name for topic in request.topics})
    if cursor is not None:
        if cursor.partition_index < 0 or (not all_topics and cursor.topic_name not in names):
            refused = ErrorCode.INVALID_REQUEST
            topics = []
            for topic in request.topics:
                if turn.is_over:
                    await turn.next()
                topics.append(response.Topic(error_code=refused, name=topic.name))
            return response(topics=topics)
        names = [name for name in names if name >= cursor.topic_name]
    left = max(1, min(request.response_partition_limit, MAX_PARTITIONS))
    response_data = response()
    denied: dict[str, None] = {}
    for name in names if not all_topics else ():
        if turn.is_over:
            await turn.next()
        if call.denied(Operation.DESCRIBE, _TOPIC, name):
            denied[name] = None
    for name in names:
        if turn.is_over:
            await turn.next()
        if name in denied:
            continue
        if left == 0:
            response_data.next_cursor = response.Cursor(topic_name=name, partition_index=0)
            break
        found = broker.topics.find(name)
        if found is None:
            code = unknown_topic(name).code
            response_data.topics.append(
                response.Topic(error_code=code, name=name, topic_authorized_operations=call.operations(_TOPIC, name))
            )
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        shown = _partitions(broker, found)[first : first + left]
        left -= len(shown)
        response_data.topics.append(_described(broker, call, found, shown))
        if first + len(shown) < found.count:
            response_data.next_cursor = response.Cursor(topic_name=name, partition_index=first + len(shown))
            break
    for name in denied:
        if turn.is_over:
            await turn.next()
        response_data.topics.append(
            response.Topic(error_code=_DENIED, name=name, topic_authorized_operations=_NOT_REQUESTED)
        )
    return response_data


def _described(broker: Broker, call: Call, opened: OpenTopic, shown: Iterable[Struct]) -> Struct:
    response = DESCRIBE_TOPIC_PARTITIONS.response
    return response.Topic(
        name=opened.name,
        topic_id=broker.topics.uuid(opened),
        is_internal=opened.name.startswith(RESERVED),
        partitions=[
            response.Partition(
                partition_index=each.partition_index,
                leader_id=each.leader_id,
                leader_epoch=each.leader_epoch,
                replica_nodes=each.replica_nodes,
                isr_nodes=each.isr_nodes,
                eligible_leader_replicas=[],
                last_known_elr=[],
            )
            for each in shown
        ],
        topic_authorized_operations=call.operations(_TOPIC, opened.name),
    )


# ---- DescribeLogDirs


async def describe_log_dirs(broker: Broker, call: Call) -> Struct:
    """Describe the one directory: the store's."""
    error = call.denied(Operation.DESCRIBE, _CLUSTER, CLUSTER_NAME)
    if error is not None:
        return DESCRIBE_LOG_DIRS.response(error_code=error.code)
    wanted = call.request.topics
    chosen: dict[str, tuple[OpenTopic, Iterable[int]]] = {}
    if wanted is None:
        chosen = {each.name: (each, range(each.count)) for each in broker.topics.all()}
    else:
        turn = broker.large_requests.turn(call)
        for topic in wanted:
            if turn.is_over:
                await turn.next()
            found = broker.topics.find(topic.topic)
            if found is not None:
                numbers = set(topic.partitions).intersection(range(found.count))
                chosen[found.name] = found, sorted(numbers.union(chosen.get(found.name, (found, ()))[1]))
    return await broker.disk(_sized, broker.core.path, list(chosen.values()))


def _count_all_partitions(broker: Broker, version: int, request: Struct) -> int:
    """Return how many partitions the response lists that the request does not name."""
    return broker.topics.partition_count if request.topics is None else 0


def _sized(path: str, chosen: list[tuple[OpenTopic, Iterable[int]]]) -> Struct:
    response = DESCRIBE_LOG_DIRS.response
    topics = [
        response.Topic(
            name=opened.name,
            partitions=[
                response.Partition(
                    partition_index=number, partition_size=segment.bytes_in(f"{opened.directory}/{number}")
                )
                for number in numbers
            ],
        )
        for opened, numbers in chosen
    ]
    disk = shutil.disk_usage(path)
    return response(
        results=[response.LogDir(log_dir=path, topics=topics, total_bytes=disk.total, usable_bytes=disk.free)]
    )


HANDLERS = (
    SupportedApi(API_VERSIONS, 0, 4, api_versions, needs_catalog=False),
    SupportedApi(
        METADATA,
        0,
        13,
        metadata,
        runs=(LOOP, CATALOG, ADMIN),
        rights=("Describe Topic", "Create Topic", "Create Cluster"),
        max_response_bytes=LARGE,
        cost=_count_partitions,
    ),
    SupportedApi(DESCRIBE_CLUSTER, 0, 2, describe_cluster, needs_catalog=False),
    SupportedApi(
        DESCRIBE_TOPIC_PARTITIONS,
        0,
        0,
        describe_topic_partitions,
        rights=("Describe Topic",),
        max_response_bytes=LARGE,
        cost=_count_partitions,
    ),
    SupportedApi(
        DESCRIBE_LOG_DIRS,
        1,
        5,
        describe_log_dirs,
        runs=(DISK,),
        rights=("Describe Cluster",),
        max_response_bytes=LARGE,
        cost=_count_all_partitions,
    ),
)
