"""Topics come, grow, shrink and go: CreateTopics, CreatePartitions, DeleteRecords, DeleteTopics.

What is answered is done, and every process sees it. Topics of a request are done one after the other; those that are
not begun when its timeout has passed are not begun at all, and are answered REQUEST_TIMED_OUT. (Clients that send 0 do
not want to wait for other brokers. There are none.)

Replicas       There is one. A replication factor above 1 is taken, since programs written for clusters ask for it, and
               reported back as 1. An assignment by hand may name this broker alone, or with `foreign.replicas.enable`
               any: one written for a cluster of three then makes a topic, too.
Settings       See config_entries.py for those of Kafka's that Klamm does not have.
DeleteRecords  The timeout bounds nothing: there are no followers to wait for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from klamm.errors import InvalidSetting, KlammError, TopicExists
from klamm.kafka.api_error import NOT_HOSTED, ApiError, code_and_message
from klamm.kafka.call import ADMIN, CATALOG, DISK, LARGE, LOOP, SupportedApi
from klamm.kafka.config_entries import of_topic, supported
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.request_meter import mutate
from klamm.kafka.wire.messages import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_RECORDS, DELETE_TOPICS
from klamm.store.acl import CLUSTER_NAME, Operation, ResourceType
from klamm.store.catalog import MAX_PARTITIONS
from klamm.store.deletion import delete_topic
from klamm.store.names import validate

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.kafka.call import Call
    from klamm.kafka.wire.structs import Struct
    from klamm.store.directory import OpenTopic
    from klamm.store.settings import Settings

__all__ = ["HANDLERS"]

_NO_ID = bytes(16)
_DEFAULT = -1  # of a number in a request: "you choose"
_CREATION_THROTTLED_SINCE, _GROWTH_THROTTLED_SINCE, _DELETION_THROTTLED_SINCE = 6, 3, 5  # KIP-599
_END = -1  # of an offset in a request: "all there is"


def _check_time(broker: Broker, call: Call) -> None:
    timeout_ms = call.request.timeout_ms
    if 0 < timeout_ms < (broker.loop.time() - call.started) * 1000:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "not begun: the request's time is over")


def _once(topics: Iterable[Struct]) -> Iterator[tuple[Struct, int]]:
    """Yield each name's first topic, and how often the name is in the request: there is one response for it."""
    topics = list(topics)
    times = Counter(topic.name for topic in topics)
    for topic in topics:
        if topic.name in times:
            yield topic, times.pop(topic.name)


def _check_once(name: str, times: int) -> None:
    if times > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{name}: is in the request {times} times")


def _unknown() -> ApiError:
    """Return the error for an unknown topic of any name: here Kafka does not check whether the name is valid."""
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED)


# ---- CreateTopics


async def create_topics(broker: Broker, call: Call) -> Struct:
    response = CREATE_TOPICS.response
    response_data = response()
    turn = broker.large_requests.turn(call, to_the_end=True)
    for topic, times in _once(call.request.topics):
        if turn.is_over:
            await turn.next()
        try:
            _check_once(topic.name, times)
            if not call.may(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
                call.check(Operation.CREATE, ResourceType.TOPIC, topic.name)
            _check_time(broker, call)
            response_data.topics.append(await _create_topic(broker, call, topic))
        except (ApiError, KlammError) as error:
            code, message = code_and_message(error)
            response_data.topics.append(response.Topic(name=topic.name, error_code=code, error_message=message))
    return response_data


async def _create_topic(broker: Broker, call: Call, topic: Struct) -> Struct:
    validate(topic.name)
    if broker.topics.find(topic.name) is not None:  # before anything that may be wrong with it
        raise TopicExists(f"Topic {topic.name!r} already exists.")
    count = _count_of(broker, topic)
    wanted = supported(_values(topic.name, ((each.name, each.value) for each in topic.configs)))
    topic_id = _NO_ID
    if call.request.validate_only:
        settings: Settings = await broker.catalog(broker.core.catalog.check_new, topic.name, count, wanted)
    else:
        mutate(broker, call, count, is_strict=call.version >= _CREATION_THROTTLED_SINCE)
        made = await broker.topics.create(topic.name, count, wanted)
        topic_id, settings = broker.topics.uuid(made), made.topic.settings
    response = CREATE_TOPICS.response
    if not call.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name):
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return response.Topic(name=topic.name, topic_id=topic_id, error_message=None, topic_config_error_code=denied)
    return response.Topic(
        name=topic.name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=count,
        replication_factor=1,
        configs=[
            response.Config(name=each.name, value=each.value, read_only=each.read_only, config_source=each.source)
            for each in of_topic(settings)
        ],
    )


def _values(where: str, pairs: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in pairs:
        if value is None:
            raise InvalidSetting(f"{where}: {name}: has no value")
        if name in values:
            raise InvalidSetting(f"{where}: {name}: is set twice")
        values[name] = value
    return values


def _count_of(broker: Broker, topic: Struct) -> int:
    """Return how many partitions the topic is to have."""
    if not topic.assignments:
        if topic.replication_factor < 1 and topic.replication_factor != _DEFAULT:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if topic.num_partitions == _DEFAULT:
            return broker.settings.default_partitions
        _check_count(topic.name, topic.num_partitions)
        return int(topic.num_partitions)
    for what in ("num_partitions", "replication_factor"):
        if getattr(topic, what) != _DEFAULT:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"{topic.name}: {what} is said by the assignments, so it has to be -1"
            )
    numbers = sorted(each.partition_index for each in topic.assignments)
    if numbers != list(range(len(numbers))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{topic.name}: partitions are assigned once each, and numbered from 0; not {numbers[:10]}",
        )
    for each in topic.assignments:
        _check_brokers(broker, topic.name, each.broker_ids)
    _check_count(topic.name, len(numbers))
    return len(numbers)


def _check_count(name: str, count: int) -> None:
    if count < 1:
        message = "Number of partitions was set to an invalid non-positive value."
        raise ApiError(ErrorCode.INVALID_PARTITIONS, message)
    if count > MAX_PARTITIONS:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"{name}: {count} partitions; expected 1 to {MAX_PARTITIONS}")


def _check_brokers(broker: Broker, name: str, brokers: list[int]) -> None:
    if broker.settings.foreign_replicas_enable:
        if not brokers or len(set(brokers)) < len(brokers) or min(brokers) < 0:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{name}: a partition assigned to {brokers}; expected each broker once",
            )
    elif brokers != [broker.node_id]:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{name}: a partition assigned to {brokers}; there is one broker, {broker.node_id}",
        )


# ---- CreatePartitions


async def create_partitions(broker: Broker, call: Call) -> Struct:
    response = CREATE_PARTITIONS.response
    response_data = response()
    turn = broker.large_requests.turn(call, to_the_end=True)
    for topic, times in _once(call.request.topics):
        if turn.is_over:
            await turn.next()
        code, message = ErrorCode.NONE, None
        try:
            _check_once(topic.name, times)
            call.check(Operation.ALTER, ResourceType.TOPIC, topic.name)
            _check_time(broker, call)
            _check_growth(broker, topic)
            if not call.request.validate_only:
                core, opened = broker.core, broker.topics.find(topic.name)
                new = topic.count - (0 if opened is None else opened.count)
                mutate(broker, call, new, is_strict=call.version >= _GROWTH_THROTTLED_SINCE)
                await broker.administer(core.catalog.add_partitions, topic.name, topic.count, core.lay_out)
        except InvalidSetting as error:  # another process was faster, or the store is full
            code, message = ErrorCode.INVALID_PARTITIONS, str(error)
        except (ApiError, KlammError) as error:
            code, message = code_and_message(error)
        response_data.results.append(response.Topic(name=topic.name, error_code=code, error_message=message))
    await broker.topics.refresh()
    return response_data


def _check_growth(broker: Broker, topic: Struct) -> None:
    found = broker.topics.find(topic.name)
    if found is None:
        raise _unknown()
    _check_count(topic.name, topic.count)
    if topic.count <= found.count:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {found.count} partition(s); {topic.count} would not be an increase."
            if topic.count < found.count
            else f"Topic already has {found.count} partition(s).",
        )
    if topic.assignments is not None:
        if len(topic.assignments) != topic.count - found.count:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic.name}: {topic.count - found.count} new partitions, but {len(topic.assignments)} assignments",
            )
        for each in topic.assignments:
            _check_brokers(broker, topic.name, each.broker_ids)


# ---- DeleteTopics


async def delete_topics(broker: Broker, call: Call) -> Struct:
    """Delete topics by name, or since version 6 by id."""
    request, response = call.request, DELETE_TOPICS.response
    if call.version >= 6:
        wanted = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        wanted = [(name, _NO_ID) for name in request.topic_names]
    times = Counter(wanted)
    response_data = response()
    turn = broker.large_requests.turn(call, to_the_end=True)
    for name, uuid in dict.fromkeys(wanted):
        if turn.is_over:
            await turn.next()
        code, message = ErrorCode.NONE, None
        try:
            if not broker.settings.delete_topic_enable:  # what it is called was unknown to clients before version 3
                code = ErrorCode.INVALID_REQUEST if call.version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
                raise ApiError(code, "topics may not be deleted: delete.topic.enable is false")
            _check_once(name or uuid.hex(), times[name, uuid])
            found = _to_delete(broker, call, name, uuid)
            name, uuid = found.name, broker.topics.uuid(found)
            _check_time(broker, call)
            mutate(broker, call, found.count, is_strict=call.version >= _DELETION_THROTTLED_SINCE)
            await broker.delete(found.topic.id, delete_topic, broker.core, name, found.topic.id)
        except _NotToDelete as error:
            (code, message), name = code_and_message(error), error.name
        except (ApiError, KlammError) as error:
            code, message = code_and_message(error)
        response_data.responses.append(response.Topic(name=name, topic_id=uuid, error_code=code, error_message=message))
    await broker.topics.refresh()
    return response_data


class _NotToDelete(ApiError):
    """The client may not delete a topic that it has named by its id; `name`, if it may know that."""

    def __init__(self, error: ApiError, name: str | None) -> None:
        super().__init__(error.code, error.message if name is not None else "not allowed to delete this topic")
        self.name = name


def _to_delete(broker: Broker, call: Call, name: str | None, uuid: bytes) -> OpenTopic:
    if (name is None) == (uuid == _NO_ID):
        raise ApiError(ErrorCode.INVALID_REQUEST, "a topic is deleted by its name or by its id: expected one of them")
    may_all = call.may(Operation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME)
    if name is not None:
        if not may_all:
            call.check(Operation.DESCRIBE, ResourceType.TOPIC, name)
        found = broker.topics.find(name)
        if found is None:
            raise _unknown()
        if not may_all:
            call.check(Operation.DELETE, ResourceType.TOPIC, name)
        return found
    found = broker.topics.by_id(uuid)
    if found is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {uuid.hex()}")
    for operation, known_name in ((Operation.DESCRIBE, None), (Operation.DELETE, found.name)):
        denied = None if may_all else call.denied(operation, ResourceType.TOPIC, found.name)
        if denied is not None:
            raise _NotToDelete(denied, known_name)
    return found


# ---- DeleteRecords


async def delete_records(broker: Broker, call: Call) -> Struct:
    response = DELETE_RECORDS.response
    response_data = response()
    turn = broker.large_requests.turn(call, to_the_end=True)
    for topic in call.request.topics:
        if turn.is_over:
            await turn.next()
        partitions = []
        for wanted in topic.partitions:
            if turn.is_over:
                await turn.next()
            code, low = ErrorCode.NONE, -1
            try:
                call.check(Operation.DELETE, ResourceType.TOPIC, topic.name)
                low = await _delete_records(broker, topic.name, wanted.partition_index, wanted.offset)
            except (ApiError, KlammError) as error:
                code, _ = code_and_message(error)
            partitions.append(
                response.Partition(partition_index=wanted.partition_index, low_watermark=low, error_code=code)
            )
        response_data.topics.append(response.Topic(name=topic.name, partitions=partitions))
    return response_data


async def _delete_records(broker: Broker, name: str, number: int, offset: int) -> int:
    found = broker.topics.find(name)
    if found is None:
        raise _unknown()
    partition = await broker.opened(found, number)
    if "delete" not in found.topic.settings.cleanup_policy:
        raise ApiError(ErrorCode.POLICY_VIOLATION, f"{name}: its cleanup.policy does not let records be deleted")
    if offset == _END:
        offset = partition.ends().end
    return await broker.delete(partition, partition.cleanup.delete_before, offset)


HANDLERS = (
    SupportedApi(
        CREATE_TOPICS,
        2,
        7,
        create_topics,
        runs=(LOOP, CATALOG, ADMIN),
        rights=("Create Topic", "Create Cluster"),
        max_response_bytes=LARGE,
        notes="one replica, whatever is asked for",
    ),
    SupportedApi(
        DELETE_TOPICS,
        1,
        6,
        delete_topics,
        runs=(CATALOG, DISK),
        rights=("Describe Topic", "Delete Topic", "Delete Cluster"),
        max_response_bytes=LARGE,
    ),
    SupportedApi(
        CREATE_PARTITIONS,
        0,
        3,
        create_partitions,
        runs=(LOOP, CATALOG, ADMIN),
        rights=("Alter Topic",),
        max_response_bytes=LARGE,
    ),
    SupportedApi(
        DELETE_RECORDS, 0, 2, delete_records, runs=(DISK,), rights=("Delete Topic",), max_response_bytes=LARGE
    ),
)
