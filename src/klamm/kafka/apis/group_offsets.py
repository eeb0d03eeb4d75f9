"""Offsets of groups: OffsetCommit, OffsetFetch, OffsetDelete. The same rows that members with the store open use.

OffsetCommit      The coordinator checks who commits, the store writes it, in that order and in batches: how that holds
                  when a group rebalances in between is in group_store.py. There is no step of the loop between check
                  and hand-over. What is wrong with one partition (no such topic, too long a text, an offset below 0)
                  keeps no other from being stored. What is wrong is said in Kafka's order: with topics and
                  partitions, with the member, with the offset. A group without partitions to store is not looked at.
                  A client that is not a member may not commit to a group whose members are embedded
                  (UNKNOWN_MEMBER_ID, as if they were members here).
OffsetFetch       What is stored, also where the log has lost its end since: the leader epoch beside it lets the client
                  find out (OffsetForLeaderEpoch). With `require_stable`, a partition in which a transaction is about to
                  move the group has no offset yet. That is looked at behind every commit that was checked before, and
                  before the store is read: a transaction that ends in between must not hide behind what was read.
OffsetDelete      Not where members consume; not at all while processes with the store open are members.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.errors import GroupBusy, KlammError
from klamm.kafka.call import CATALOG, LARGE, LOOP, WRITE, Call, SupportedApi
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.error_map import code_of
from klamm.kafka.group_store import is_group_id
from klamm.kafka.large_requests import Turn
from klamm.kafka.repeats import distinct, merge_partitions
from klamm.kafka.wire.messages import OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH, TXN_OFFSET_COMMIT
from klamm.kafka.wire.structs import Struct
from klamm.store.acl import Operation, ResourceType
from klamm.store.groups import OffsetRow
from klamm.store.wire_groups import Offsets, WireCommit
from klamm.types import PartitionKey, TopicId

if TYPE_CHECKING:
    from klamm.kafka.api_error import ApiError
    from klamm.kafka.broker import Broker
    from klamm.store.directory import OpenTopic
    from klamm.store.server_rows import PendingKey

__all__ = ["HANDLERS", "checked_commit"]


# ---- committing


class Commit(NamedTuple):
    """Offsets that a request commits, and what is said of each."""

    topics: list[Struct]
    """Of the response."""
    checked: list[Struct]
    """Partitions of the response that exist: what is wrong with the member is wrong with them."""
    rows: list[OffsetRow]
    responses: list[Struct]
    """Partitions of the response, to the rows."""

    async def refuse(self, turn: Turn, error: ErrorCode) -> None:
        """Have the response say that nothing was committed."""
        for partition in self.checked:
            if turn.is_over:
                await turn.next()
            partition.error_code = error


async def checked_commit(
    broker: Broker, call: Call, denied: ApiError | None, generation_id: int, missing: ErrorCode
) -> tuple[Commit, Turn]:
    """Look up what a request commits, and check who commits; without rows if nothing of it may be stored.

    `denied`: which right the client lacks. `missing`: there is no such group. When rows are returned, no step of the
    loop has come since the check.
    """
    request = call.request
    error = ErrorCode.NONE
    if denied is not None:
        error = denied.code
    elif not is_group_id(request.group_id):
        error = ErrorCode.INVALID_GROUP_ID
    turn = broker.large_requests.turn(call, to_the_end=True)
    commit = await _read_commit(broker, call, turn, error)
    if not commit.checked:
        return commit, turn
    error = broker.group_coordinator.check_commit(
        request.group_id,
        request.member_id,
        generation_id,
        request.group_instance_id,
        now_ms=broker.now_ms(),
        transactional=call.api is TXN_OFFSET_COMMIT,
    )
    if error:
        await commit.refuse(turn, await _refused_member(broker, request.group_id, error, missing))
        return commit._replace(rows=[]), turn
    return commit, turn


async def _read_commit(broker: Broker, call: Call, turn: Turn, error: ErrorCode) -> Commit:
    """Look up what a request commits. `error`: what is wrong with all of it, if anything is."""
    request, response = call.request, call.api.response
    by_id = call.api is OFFSET_COMMIT and call.version >= 10
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    commit = Commit([], [], [], [])
    for topic in request.topics:
        if turn.is_over:
            await turn.next()
        opened = broker.topics.by_id(topic.topic_id) if by_id else broker.topics.find(topic.name)
        refusal = error or _refused_topic(call, topic, opened, by_id) or (unknown if opened is None else error)
        partitions = []
        for requested in topic.partitions:
            if turn.is_over:
                await turn.next()
            number = requested.partition_index
            partition = response.Partition(partition_index=number, error_code=refusal)
            partitions.append(partition)
            if refusal or opened is None:
                continue
            if not 0 <= number < opened.count:
                partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            commit.checked.append(partition)
            partition.error_code = _refused(broker, requested)
            if not partition.error_code:
                commit.rows.append(_offset_row(opened, requested))
                commit.responses.append(partition)
        answer = response.Topic(name=topic.name, partitions=partitions)
        if by_id:
            answer.topic_id = topic.topic_id
        commit.topics.append(answer)
    return commit


async def offset_commit(broker: Broker, call: Call) -> Struct:
    request = call.request
    denied = call.denied(Operation.READ, ResourceType.GROUP, request.group_id)
    missing = ErrorCode.GROUP_ID_NOT_FOUND if call.version >= 9 else ErrorCode.ILLEGAL_GENERATION
    commit, turn = await checked_commit(broker, call, denied, request.generation_id_or_member_epoch, missing)
    if commit.rows:  # no `await` since the check
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if call.version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        errors = await _store(broker, WireCommit(request.group_id, commit.rows), unknown)
        for partition, code in zip(commit.responses, errors, strict=True):
            if turn.is_over:
                await turn.next()
            partition.error_code = code
    return OFFSET_COMMIT.response(topics=commit.topics)


def _refused_topic(call: Call, topic: Struct, opened: OpenTopic | None, by_id: bool) -> ErrorCode:
    """Return why offsets of a topic may not be committed."""
    if not by_id:
        denied = call.denied(Operation.READ, ResourceType.TOPIC, topic.name)
    else:  # an id that no topic has needs no right
        denied = None if opened is None else call.denied(Operation.READ, ResourceType.TOPIC, opened.name)
    return ErrorCode.NONE if denied is None else denied.code


async def _refused_member(broker: Broker, group_id: str, error: ErrorCode, missing: ErrorCode) -> ErrorCode:
    """Return why a member may not commit, as Kafka says it: of a group that the coordinator does not have, which may be
    in the store, with offsets and without members. `missing`: it is not there, either.
    """
    if error is not ErrorCode.GROUP_ID_NOT_FOUND:
        return error
    try:
        found = await broker.catalog(broker.group_store.groups.find, [group_id])
    except KlammError as failure:
        return code_of(failure)
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id in found else missing


def _refused(broker: Broker, requested: Struct) -> ErrorCode:
    """Return what is wrong with an offset to commit."""
    metadata = requested.committed_metadata
    if metadata and len(metadata.encode()) > broker.settings.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.INVALID_REQUEST if requested.committed_offset < 0 else ErrorCode.NONE


def _offset_row(opened: OpenTopic, requested: Struct) -> OffsetRow:
    """Return the offset as the store has it."""
    epoch = max(requested.committed_leader_epoch, -1)
    return OffsetRow(
        opened.topic.id,
        requested.partition_index,
        requested.committed_offset,
        epoch,
        requested.committed_metadata or "",
    )


async def _store(broker: Broker, commit: WireCommit, deleted: ErrorCode) -> list[ErrorCode]:
    """Store offsets and return the code of each row; `deleted`: its topic is gone since the request was checked."""
    outcome = await broker.group_store.commit(commit)
    if isinstance(outcome, KlammError):
        error = ErrorCode.UNKNOWN_MEMBER_ID if isinstance(outcome, GroupBusy) else code_of(outcome)
        return [error] * len(commit.rows)
    return [ErrorCode.NONE if stored else deleted for stored in outcome]


# ---- fetching


class _Topic(NamedTuple):
    """A requested topic, by name or (since version 10) by id."""

    name: str
    uuid: bytes
    id: TopicId | None  # in the store; None: there is no such topic
    numbers: list[int]
    denied: bool = False  # the client may not describe it


class _OffsetRequest(NamedTuple):
    group_id: str
    topics: list[_Topic] | None  # None: all in which the group has offsets

    @property
    def topic_ids(self) -> list[TopicId] | None:
        return None if self.topics is None else [each.id for each in self.topics if each.id is not None]


_OFFSET_BYTES = 16  # of a partition in a response, at least
_NOTHING: frozenset[PendingKey] = frozenset()


async def offset_fetch(broker: Broker, call: Call) -> Struct:
    request, response = call.request, OFFSET_FETCH.response
    requested = request.groups if call.version >= 8 else [request]
    denied: dict[str, ApiError | None] = {}
    wanted: list[_OffsetRequest] = []
    turn = broker.large_requests.turn(call)
    for each in requested:
        if turn.is_over:
            await turn.next()
        name = each.group_id
        denied[name] = call.denied(Operation.DESCRIBE, ResourceType.GROUP, name)
        wanted.append(_OffsetRequest(name, await _topics(broker, call, turn, [] if denied[name] else each.topics)))
    committed, pending = await _offsets(broker, wanted)
    unstable = pending if request.require_stable else _NOTHING
    responses: list[tuple[_OffsetRequest, ErrorCode, list[Struct]]] = []
    for group, offsets in zip(wanted, committed, strict=True):
        if turn.is_over:
            await turn.next()
        refusal = denied[group.group_id]
        if refusal is not None:
            responses.append((group, refusal.code, []))
        elif isinstance(offsets, ErrorCode):
            responses.append((group, offsets, []))
        else:
            topics = await _committed_offsets(broker, call, turn, group, offsets, unstable)
            responses.append((group, ErrorCode.NONE, topics))
    if call.version >= 8:
        return response(
            groups=[
                response.Group(group_id=group.group_id, error_code=error, topics=topics)
                for group, error, topics in responses
            ]
        )
    _, error, topics = responses[0]
    if error and call.version < 2:  # errors were said of partitions alone
        topics = []
        for topic in await _topics(broker, call, turn, request.topics) or ():
            partitions = []
            for number in topic.numbers:
                if turn.is_over:
                    await turn.next()
                partitions.append(response.Partition(**_failed(number, error)))
            topics.append(response.Topic(name=topic.name, partitions=partitions))
    return response(error_code=error, topics=topics)


async def _topics(broker: Broker, call: Call, turn: Turn, requested: list[Struct] | None) -> list[_Topic] | None:
    if requested is None:
        return None
    found = []
    for topic in requested:
        if turn.is_over:
            await turn.next()
        name, uuid = ("", topic.topic_id) if call.version >= 10 else (topic.name, b"")
        opened = broker.topics.by_id(uuid) if call.version >= 10 else broker.topics.find(name)
        resolved = name if opened is None else opened.name  # an id that no topic has needs no right
        denied = bool(resolved) and call.denied(Operation.DESCRIBE, ResourceType.TOPIC, resolved) is not None
        topic_id = None if opened is None else opened.topic.id
        found.append(_Topic(name, uuid, topic_id, topic.partition_indexes, denied))
    return found


async def _offsets(
    broker: Broker, wanted: list[_OffsetRequest]
) -> tuple[list[Offsets | ErrorCode], Container[PendingKey]]:
    """Return the committed offsets, or why they are unknown; and what transactions may move."""
    named = [each for each in wanted if is_group_id(each.group_id)]
    try:
        offsets = await broker.group_store.offsets((each.group_id, each.topic_ids) for each in named)
    except KlammError as failure:
        return [code_of(failure)] * len(wanted), _NOTHING
    found = iter(offsets.committed)
    outcomes: list[Offsets | ErrorCode] = []
    for each in wanted:
        outcome = next(found) if is_group_id(each.group_id) else ErrorCode.INVALID_GROUP_ID
        outcomes.append(code_of(outcome) if isinstance(outcome, KlammError) else outcome)
    return outcomes, offsets.pending


async def _committed_offsets(
    broker: Broker, call: Call, turn: Turn, wanted: _OffsetRequest, offsets: Offsets, unstable: Container[PendingKey]
) -> list[Struct]:
    """Return the topics of a group's response."""
    topics = await _stored(broker, call, turn, offsets) if wanted.topics is None else wanted.topics
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if call.version >= 10 else ErrorCode.NONE
    response, batched = OFFSET_FETCH.response, call.version >= 8
    make_partition = response.GroupPartition if batched else response.Partition
    responses = []
    for topic in topics:
        if turn.is_over:
            await turn.next()
        partitions = []
        for number in topic.numbers:
            if turn.is_over:
                await turn.next()
            row = None if topic.id is None else offsets.get((topic.id, number))
            if topic.denied:
                partition = _failed(number, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            elif topic.id is None:
                partition = _failed(number, unknown)
            elif (wanted.group_id, topic.id, number) in unstable:
                partition = _failed(number, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            elif row is None:
                partition = _failed(number, ErrorCode.NONE)
            else:
                partition = {
                    "partition_index": number,
                    "committed_offset": row.offset,
                    "committed_leader_epoch": row.leader_epoch,
                    "metadata": row.metadata,
                    "error_code": ErrorCode.NONE,
                }
            call.expect(_OFFSET_BYTES + len(partition["metadata"]))
            partitions.append(make_partition(**partition))
        encoded = (response.GroupTopic if batched else response.Topic)(name=topic.name, partitions=partitions)
        if batched:
            encoded.topic_id = topic.uuid
        responses.append(encoded)
    return responses


def _failed(number: int, error: ErrorCode) -> dict[str, Any]:
    """Return the fields of a partition of which there is no offset."""
    return {
        "partition_index": number,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": error,
    }


async def _stored(broker: Broker, call: Call, turn: Turn, offsets: Offsets) -> list[_Topic]:
    """Return the topics of these offsets that still exist, and that the client may know of."""
    numbers: dict[TopicId, list[int]] = {}
    for topic_id, number in sorted(offsets):
        if turn.is_over:
            await turn.next()
        numbers.setdefault(topic_id, []).append(number)
    found = []
    for topic_id, each in numbers.items():
        opened = broker.topics.by_id(bytes.fromhex(topic_id))
        if opened is not None and call.may(Operation.DESCRIBE, ResourceType.TOPIC, opened.name):
            found.append(_Topic(opened.name, broker.topics.uuid(opened), topic_id, each))
    return sorted(found)


# ---- deleting


async def offset_delete(broker: Broker, call: Call) -> Struct:
    request, response = call.request, OFFSET_DELETE.response
    denied = call.denied(Operation.DELETE, ResourceType.GROUP, request.group_id)
    if denied is not None:
        return response(error_code=denied.code)
    if not is_group_id(request.group_id):
        return response(error_code=ErrorCode.INVALID_GROUP_ID)
    error, consumed = broker.group_coordinator.check_offset_delete(
        request.group_id, [each.name for each in request.topics]
    )
    if error:
        return response(error_code=error)
    keys: list[PartitionKey] = []
    topics = []
    turn = broker.large_requests.turn(call, to_the_end=True)
    for topic in request.topics:
        if turn.is_over:
            await turn.next()
        opened = broker.topics.find(topic.name)
        refusal = call.denied(Operation.READ, ResourceType.TOPIC, topic.name)
        partitions = []
        for requested in topic.partitions:
            if turn.is_over:
                await turn.next()
            number, code = requested.partition_index, ErrorCode.NONE
            if refusal is not None:
                code = refusal.code
            elif opened is None or not 0 <= number < opened.count:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif topic.name in consumed:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                keys.append((opened.topic.id, number))
            partitions.append(response.Partition(partition_index=number, error_code=code))
        topics.append(response.Topic(name=topic.name, partitions=partitions))
    try:
        await broker.group_store.write(broker.group_store.groups.forget, request.group_id, keys)
    except KlammError as failure:
        return response(error_code=code_of(failure))
    return response(topics=topics)


def _merge(request: Struct) -> None:
    request.topics = merge_partitions(request.topics, "partition_indexes")
    request.groups = distinct(request.groups, "group_id")
    for group in request.groups or ():
        group.topics = merge_partitions(group.topics, "partition_indexes")


HANDLERS = (
    SupportedApi(
        OFFSET_COMMIT,
        2,
        10,
        offset_commit,
        runs=(LOOP, CATALOG, WRITE),
        rights=("Read Group", "Read Topic"),
        max_response_bytes=LARGE,
        notes="offsets do not expire, whatever the retention time asked for",
    ),
    SupportedApi(
        OFFSET_FETCH,
        1,
        10,
        offset_fetch,
        merge=_merge,
        runs=(CATALOG, WRITE),
        rights=("Describe Group", "Describe Topic"),
        max_response_bytes=LARGE,
    ),
    SupportedApi(
        OFFSET_DELETE,
        0,
        0,
        offset_delete,
        runs=(WRITE,),
        rights=("Delete Group", "Read Topic"),
        max_response_bytes=LARGE,
    ),
)
