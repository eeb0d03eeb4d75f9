"""APIs that look offsets up: ListOffsets (start, end, by time), OffsetForLeaderEpoch.

    -1 latest            where the log ends; for read_committed, where the oldest open transaction begins
    -2 earliest          where it begins
    -3 max timestamp     the first record with the largest timestamp                                  since version 7
    -4 earliest local    as earliest: all is local                                                    since version 8
    -5 latest tiered     none                                                                         since version 9
    -6 pending upload    none                                                                         since version 11
    a time               the first record that is at least as young

A look-up by time sees the log as it lies, markers and aborted records included, but nothing at or beyond "latest". What
is not found is offset -1. The timeout of version 10 is for logs in remote storage, of which there are none.

Beginning and end of an open partition are answered on the loop. For the rest a thread reads; a partition that has to be
opened first is opened by its executor, because that may wait for a process that appends.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from klamm.errors import KlammError
from klamm.kafka.api_error import NOT_HOSTED, ApiError, code_and_message
from klamm.kafka.broker import NotOpened
from klamm.kafka.call import DISK, LARGE, LOOP, SupportedApi
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.repeats import merge_partitions
from klamm.kafka.wire.messages import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from klamm.log import lookup
from klamm.store.acl import CLUSTER_NAME, Operation, ResourceType

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.kafka.call import Call
    from klamm.kafka.large_requests import Turn
    from klamm.kafka.wire.structs import Struct
    from klamm.log.lookup import TimestampLookup
    from klamm.log.partition import Partition

__all__ = ["HANDLERS"]

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED, _PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
_SINCE = {_LATEST: 1, _EARLIEST: 1, _MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9, _PENDING_UPLOAD: 11}
_COMMITTED = 1  # the isolation level


class _Slow(Exception):
    """The look-up may block: it is not for the loop."""


def _partition(broker: Broker, name: str, number: int) -> Partition:
    """Return the partition, on the loop. Raise _Slow if it must be opened first."""
    found = broker.topics.find(name)
    try:
        partition = None if found is None else broker.partition(found, number)
    except NotOpened:
        raise _Slow from None
    if partition is None:
        raise _unknown()
    return partition


def _unknown() -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED)


def _check_epoch(partition: Partition, epoch: int) -> None:
    """Raise if the client's leader epoch, if it sends one, is not the current one."""
    current = partition.ends().leader_epoch
    if 0 <= epoch < current:
        raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, f"epoch {epoch} is over; it is {current} now")
    if epoch > current:
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"epoch {epoch} is not known; it is {current} now")


# ---- ListOffsets


async def list_offsets(broker: Broker, call: Call) -> Struct:
    request, response = call.request, LIST_OFFSETS.response
    committed = request.isolation_level == _COMMITTED
    slow: list[tuple[str, Struct, Struct]] = []
    response_data = response()
    turn = broker.large_requests.turn(call)
    for topic in request.topics:
        if turn.is_over:
            await turn.next()
        denied = call.denied(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        times = Counter(each.partition_index for each in topic.partitions)
        partitions = []
        for requested in topic.partitions:
            if turn.is_over:
                await turn.next()
            partition_response = response.Partition(partition_index=requested.partition_index)
            partitions.append(partition_response)
            try:
                if denied is not None:
                    raise denied
                if times[requested.partition_index] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, f"{requested.partition_index}: listed more than once")
                if requested.timestamp < 0 and call.version < _SINCE.get(requested.timestamp, call.version + 1):
                    raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"time {requested.timestamp} is unknown")
                partition = _partition(broker, topic.name, requested.partition_index)
                _fill_at_once(broker, partition, requested, partition_response, committed)
            except (ApiError, KlammError) as error:
                partition_response.error_code, _ = code_and_message(error)
            except _Slow:
                slow.append((topic.name, requested, partition_response))
        response_data.topics.append(response.Topic(name=topic.name, partitions=partitions))
    return await _finish(broker, turn, response_data, slow, committed) if slow else response_data


def _fill_at_once(
    broker: Broker, partition: Partition, requested: Struct, partition_response: Struct, committed: bool
) -> None:
    _check_epoch(partition, requested.current_leader_epoch)
    if requested.timestamp == _LATEST:
        ends = broker.visible_ends(partition)
        partition_response.offset, partition_response.leader_epoch = (
            ends.stable if committed else ends.end,
            ends.leader_epoch,
        )
    elif requested.timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        if not partition.knows_epochs:
            raise _Slow
        start = partition.ends().start
        partition_response.offset, partition_response.leader_epoch = start, partition.epoch_at(start)
    elif requested.timestamp not in (_LATEST_TIERED, _PENDING_UPLOAD):
        raise _Slow


async def _finish(
    broker: Broker, turn: Turn, response_data: Struct, slow: list[tuple[str, Struct, Struct]], committed: bool
) -> Struct:
    for name, requested, partition_response in slow:
        if turn.is_over:
            await turn.next()
        found = broker.topics.find(name)
        try:
            if found is None:
                raise _unknown()
            partition = await broker.opened(found, requested.partition_index)
            await broker.disk(_fill, broker, partition, requested, partition_response, committed)
        except (ApiError, KlammError) as error:
            partition_response.error_code, _ = code_and_message(error)
    return response_data


def _fill(broker: Broker, partition: Partition, requested: Struct, partition_response: Struct, committed: bool) -> None:
    """Fill in the response, in a thread."""
    partition.epochs()  # from now on they are known
    try:
        _fill_at_once(broker, partition, requested, partition_response, committed)
    except _Slow:
        ends = broker.visible_ends(partition)
        found = _look_up(partition, requested.timestamp)
        if found is not None and found.offset < (ends.stable if committed else ends.end):
            partition_response.offset, partition_response.timestamp, partition_response.leader_epoch = found


def _look_up(partition: Partition, timestamp: int) -> TimestampLookup | None:
    if timestamp == _MAX_TIMESTAMP:
        return lookup.find_max_timestamp(partition)
    return lookup.first_since(partition, timestamp)


# ---- OffsetForLeaderEpoch


async def offset_for_leader_epoch(broker: Broker, call: Call) -> Struct:
    response = OFFSET_FOR_LEADER_EPOCH.response
    response_data = response()
    turn = broker.large_requests.turn(call)
    for topic in call.request.topics:
        if turn.is_over:
            await turn.next()
        denied = None
        if not call.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
            denied = call.denied(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic)
        partitions = []
        for requested in topic.partitions:
            if turn.is_over:
                await turn.next()
            partition_response = response.Partition(partition=requested.partition)
            partitions.append(partition_response)
            if denied is not None:
                partition_response.error_code = denied.code
                continue
            found = broker.topics.find(topic.topic)
            if found is None or not 0 <= requested.partition < found.count:
                partition_response.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            try:
                partition = await broker.opened(found, requested.partition)
                partition_response.leader_epoch, partition_response.end_offset = await broker.disk(
                    _end_of_epoch, partition, requested
                )
            except (ApiError, KlammError) as error:
                partition_response.error_code, _ = code_and_message(error)
        response_data.topics.append(response.Topic(topic=topic.topic, partitions=partitions))
    return response_data


def _end_of_epoch(partition: Partition, requested: Struct) -> tuple[int, int]:
    """Return the largest epoch up to the requested one, and where it ended; -1 and -1 if unknown. Runs in a thread."""
    _check_epoch(partition, requested.current_leader_epoch)
    ends = partition.ends()
    if not 0 <= requested.leader_epoch <= ends.leader_epoch:
        return -1, -1
    known = [epoch for epoch, _ in partition.epochs() if epoch <= requested.leader_epoch]
    return max(known, default=requested.leader_epoch), partition.end_of_epoch(requested.leader_epoch)


def _merge(request: Struct) -> None:
    request.topics = merge_partitions(request.topics, "partitions", "partition")


HANDLERS = (
    SupportedApi(
        LIST_OFFSETS, 1, 11, list_offsets, runs=(LOOP, DISK), rights=("Describe Topic",), max_response_bytes=LARGE
    ),
    SupportedApi(
        OFFSET_FOR_LEADER_EPOCH,
        2,
        4,
        offset_for_leader_epoch,
        merge=_merge,
        runs=(DISK,),
        rights=("Describe Topic", "ClusterAction Cluster"),
        max_response_bytes=LARGE,
    ),
)
