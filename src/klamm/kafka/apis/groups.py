"""Groups: who coordinates them, membership, and what people see of them and do with them.

FindCoordinator   this server, for groups and for transactions; there is no other
JoinGroup SyncGroup Heartbeat LeaveGroup   the coordinator's (group_coordinator.py)
DescribeGroups ListGroups DeleteGroups     the coordinator's groups, and those of the store that it does not know: such
                  a group is Empty. If processes that have the store open are its members, it is Stable: they are shown
                  with the partitions they have, as consumers without an address

**A group whose members sit at the other door** cannot be joined here. Its client is told INCONSISTENT_GROUP_PROTOCOL,
which clients explain with "incompatible with those of existing members": that is what it is. Consumers raise it, or
report it and try again, so a person sees it, and a program that polls on gets in once the others have gone. A code that
is retried without a word would look like a server that hangs; one that speaks of rights, like missing rights. The log
of the server says which group it is, once.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from klamm.errors import GroupBusy, KlammError
from klamm.kafka.api_error import ApiError
from klamm.kafka.call import CATALOG, LARGE, LOOP, WRITE, Call, Reply, SupportedApi
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.error_map import code_of
from klamm.kafka.group_store import is_group_id
from klamm.kafka.group_values import (
    GroupDescription,
    GroupListing,
    JoinRequest,
    JoinResponse,
    LeavingMember,
    MemberDescription,
    SyncRequest,
    SyncResponse,
)
from klamm.kafka.large_requests import Turn, pieces
from klamm.kafka.repeats import distinct
from klamm.kafka.wire.messages import (
    CONSUMER_GROUP_HEARTBEAT,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    SYNC_GROUP,
)
from klamm.kafka.wire.structs import Struct
from klamm.store.acl import CLUSTER_NAME, Operation, ResourceType
from klamm.store.wire_groups import Embedded

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker

__all__ = ["HANDLERS"]

_GROUP, _TRANSACTION = 0, 1  # types of keys; 2 are share groups, which there are none of here
_RESOURCES = {_GROUP: ResourceType.GROUP, _TRANSACTION: ResourceType.TRANSACTIONAL_ID}
_CONSUMER = "consumer"
_NOT_REQUESTED = -(2**31)  # in place of what a client may do


# ---- who coordinates


async def find_coordinator(broker: Broker, call: Call) -> Struct:
    request, response = call.request, FIND_COORDINATOR.response
    if call.version < 4:
        return response(**_coordinator(broker, call, request.key))
    coordinators = []
    turn = broker.large_requests.turn(call)
    for key in request.coordinator_keys:
        if turn.is_over:
            await turn.next()
        coordinators.append(response.Coordinator(key=key, **_coordinator(broker, call, key)))
    return response(coordinators=coordinators)


def _coordinator(broker: Broker, call: Call, key: str) -> dict[str, Any]:
    """Return what is said of the coordinator of one group or transactional id."""
    kind = call.request.key_type
    resource = _RESOURCES.get(kind)
    if resource is None:
        error = ApiError(ErrorCode.INVALID_REQUEST, f"there are no coordinators of type {kind} here")
    else:
        denied = call.denied(Operation.DESCRIBE, resource, key)
        if denied is None:
            host, port = broker.address(call)
            return {"error_code": 0, "error_message": None, "node_id": broker.node_id, "host": host, "port": port}
        error = denied
    return {"error_code": error.code, "error_message": error.message, "node_id": -1, "host": "", "port": -1}


# ---- membership


async def join_group(broker: Broker, call: Call) -> Struct:
    request = call.request
    denied = call.denied(Operation.READ, ResourceType.GROUP, request.group_id)
    if denied is not None:
        return _joined(call, JoinResponse(denied.code, ""))
    if not is_group_id(request.group_id):
        return _joined(call, JoinResponse(ErrorCode.INVALID_GROUP_ID, request.member_id))
    if request.member_id:  # not new: it was let in before, or is unknown
        reply = _join(broker, call)
    else:
        with broker.group_store.coming(request.group_id):
            try:
                permit = await broker.group_store.admit(request.group_id)
            except GroupBusy as error:
                broker.group_store.refused(request.group_id, error)
                return _joined(call, JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ""))
            except (KlammError, OSError) as error:
                return _joined(call, JoinResponse(code_of(error), ""))
            if call.is_gone:
                return _joined(call, JoinResponse(ErrorCode.UNKNOWN_MEMBER_ID, ""))
            broker.group_store.admitted(request.group_id, permit)
            reply = _join(broker, call)
    result = await reply
    if result.full:
        broker.group_log.warning("JoinGroup to group %s rejected: %s is reached", request.group_id, result.full)
    return _joined(call, result)


def _join(broker: Broker, call: Call) -> Reply[JoinResponse]:
    request = call.request
    join_request = JoinRequest(
        request.group_id,
        request.member_id,
        request.protocol_type,
        tuple((each.name, each.metadata) for each in request.protocols),
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.group_instance_id,
        call.client_id or "",
        f"/{call.host}",
        member_id_required=call.version >= 4,
        can_skip_assignment=call.version >= 9,
    )
    reply: Reply[JoinResponse] = call.reply()

    def on_joined(result: JoinResponse) -> None:
        if result.generation > 0:
            broker.group_store.has_begun(result.generation)
        reply(result)

    broker.group_coordinator.join(join_request, on_joined, now_ms=broker.now_ms(), connection=call.session)
    return reply


def _joined(call: Call, result: JoinResponse) -> Struct:
    response = JOIN_GROUP.response
    protocol = result.protocol
    return response(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name="" if protocol is None and call.version < 7 else protocol,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            response.Member(member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata)
            for each in result.members
        ],
    )


async def sync_group(broker: Broker, call: Call) -> Struct:
    request = call.request
    denied = call.denied(Operation.READ, ResourceType.GROUP, request.group_id)
    if denied is not None:
        return _synced(SyncResponse(denied.code))
    if not is_group_id(request.group_id):
        return _synced(SyncResponse(ErrorCode.INVALID_GROUP_ID))
    if call.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return _synced(SyncResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    join_request = SyncRequest(
        request.group_id,
        request.member_id,
        request.generation_id,
        {each.member_id: each.assignment for each in request.assignments},
        request.group_instance_id,
        request.protocol_type,
        request.protocol_name,
    )
    reply: Reply[SyncResponse] = call.reply()
    broker.group_coordinator.sync(join_request, reply, now_ms=broker.now_ms(), connection=call.session)
    return _synced(await reply)


def _synced(result: SyncResponse) -> Struct:
    return SYNC_GROUP.response(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )


async def heartbeat(broker: Broker, call: Call) -> Struct:
    request = call.request
    denied = call.denied(Operation.READ, ResourceType.GROUP, request.group_id)
    if denied is not None:
        return HEARTBEAT.response(error_code=denied.code)
    if not is_group_id(request.group_id):
        return HEARTBEAT.response(error_code=ErrorCode.INVALID_GROUP_ID)
    error = broker.group_coordinator.heartbeat(
        request.group_id,
        request.member_id,
        request.generation_id,
        request.group_instance_id,
        now_ms=broker.now_ms(),
    )
    return HEARTBEAT.response(error_code=error)


async def leave_group(broker: Broker, call: Call) -> Struct:
    request, response = call.request, LEAVE_GROUP.response
    denied = call.denied(Operation.READ, ResourceType.GROUP, request.group_id)
    if denied is not None:
        return response(error_code=denied.code)
    if not is_group_id(request.group_id):
        return response(error_code=ErrorCode.INVALID_GROUP_ID)
    coordinator, now_ms = broker.group_coordinator, broker.now_ms()
    if call.version < 3:
        result = coordinator.leave(request.group_id, [LeavingMember(request.member_id)], now_ms=now_ms)
        return response(error_code=result.error or result.members[0].error)
    members = []
    turn = broker.large_requests.turn(call, to_the_end=True)
    for some in pieces(request.members) if request.members else [()]:
        if turn.is_over:
            await turn.next()
        leaving = [LeavingMember(each.member_id, each.group_instance_id) for each in some]
        result = coordinator.leave(request.group_id, leaving, now_ms=now_ms)
        if result.error:
            return response(error_code=result.error)
        for each in result.members:
            if turn.is_over:
                await turn.next()
            members.append(
                response.Member(member_id=each.member_id, group_instance_id=each.instance_id, error_code=each.error)
            )
    return response(members=members)


async def consumer_group_heartbeat(broker: Broker, call: Call) -> Struct:
    """Tell clients with group.protocol=consumer at once that there are classic groups only, as a Kafka broker does
    whose feature group.version is 0. If the API were not advertised, some of them would wait forever.
    """
    return CONSUMER_GROUP_HEARTBEAT.response(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message="this server has classic groups only (set group.protocol=classic)",
    )


# ---- for people


async def describe_groups(broker: Broker, call: Call) -> Struct:
    denied: dict[str, ApiError | None] = {}
    described: dict[str, GroupDescription | None] = {}
    turn = broker.large_requests.turn(call)
    for name in call.request.groups:
        if turn.is_over:
            await turn.next()
        denied[name] = call.denied(Operation.DESCRIBE, ResourceType.GROUP, name)
        if denied[name] is None:
            described[name] = broker.group_coordinator.describe(name)
    others = []
    for name, description in described.items():
        if turn.is_over:
            await turn.next()
        if description is None and is_group_id(name):
            others.append(name)
    error = ErrorCode.NONE
    stored: dict[str, Embedded] = {}
    try:
        for names in pieces(others):
            stored |= await broker.catalog(broker.group_store.groups.find, names)
    except KlammError as failure:
        error = code_of(failure)
    groups = []
    for name in call.request.groups:
        if turn.is_over:
            await turn.next()
        if (refusal := denied[name]) is not None:
            groups.append(
                DESCRIBE_GROUPS.response.Group(group_id=name, error_code=refusal.code, error_message=refusal.message)
            )
            continue
        description = described[name]
        if description is None and name in stored:
            description = _of_embedded(stored[name])
        groups.append(_described(call, name, description, error))
    return DESCRIBE_GROUPS.response(groups=groups)


def _described(call: Call, name: str, description: GroupDescription | None, error: ErrorCode) -> Struct:
    response = DESCRIBE_GROUPS.response
    is_requested = call.version >= 3 and call.request.include_authorized_operations
    operations = call.operations(ResourceType.GROUP, name) if is_requested else _NOT_REQUESTED
    if description is not None:
        return response.Group(
            group_id=name,
            group_state=description.state,
            protocol_type=description.protocol_type,
            protocol_data=description.protocol,
            members=[_described_member(member) for member in description.members],
            authorized_operations=operations,
        )
    message = None
    if not is_group_id(name):
        error = ErrorCode.INVALID_GROUP_ID
    elif not error and call.version >= 6:  # to older clients, a group that is not there is Dead
        error, message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} not found."
    return response.Group(
        group_id=name,
        group_state="Dead",
        error_code=error,
        error_message=message,
        authorized_operations=_NOT_REQUESTED if error else operations,
    )


def _described_member(member: MemberDescription) -> Struct:
    return DESCRIBE_GROUPS.response.Member(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata,
        member_assignment=member.assignment,
    )


def _of_embedded(embedded: Embedded) -> GroupDescription:
    members = tuple(
        MemberDescription(row.id, row.name, "klamm", "embedded", b"", _assignment(row.owned))
        for row in embedded.members
    )
    if not members:
        return GroupDescription(embedded.group.name, "Empty", "", "", ())
    return GroupDescription(embedded.group.name, "Stable", _CONSUMER, "klamm", members)


def _assignment(owned: Iterable[tuple[str, int]]) -> bytes:
    """Encode what a member has, as leaders of consumers do: version, topics with their partitions, no data."""
    numbers: dict[bytes, list[int]] = {}
    for topic, number in owned:
        numbers.setdefault(topic.encode(), []).append(number)
    parts = [struct.pack(">hi", 0, len(numbers))]
    for name, each in sorted(numbers.items()):
        parts.append(struct.pack(f">h{len(name)}si{len(each)}i", len(name), name, len(each), *sorted(each)))
    return b"".join(parts) + struct.pack(">i", -1)


async def list_groups(broker: Broker, call: Call) -> Struct:
    request, response = call.request, LIST_GROUPS.response
    states = {state.lower() for state in request.states_filter}
    types = {each.lower() for each in request.types_filter}
    here = {each.group_id: each for each in broker.group_coordinator.list_groups()}
    stored = broker.group_store.groups
    found: dict[str, GroupListing] = {}
    try:
        for names in pieces(await broker.catalog(stored.names)):
            for name, embedded in (await broker.catalog(stored.are_embedded, names)).items():
                found[name] = GroupListing(name, *((_CONSUMER, "Stable") if embedded else ("", "Empty")))
    except KlammError as failure:
        return response(error_code=code_of(failure))
    found.update(here)
    sees_all = call.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    groups = []
    turn = broker.large_requests.turn(call)
    for name in sorted(found):
        if turn.is_over:
            await turn.next()
        each = found[name]
        if (
            (not states or each.state.lower() in states)
            and (not types or each.type in types)
            and (sees_all or call.may(Operation.DESCRIBE, ResourceType.GROUP, name))
        ):
            groups.append(
                response.Group(
                    group_id=name, protocol_type=each.protocol_type, group_state=each.state, group_type=each.type
                )
            )
    return response(groups=groups)


async def delete_groups(broker: Broker, call: Call) -> Struct:
    """Delete groups, at the coordinator first: no client can join or commit until the store has done it or failed."""
    coordinator, response = broker.group_coordinator, DELETE_GROUPS.response
    results: list[Struct] = []
    turn = broker.large_requests.turn(call, to_the_end=True)
    for names in pieces(call.request.groups_names):
        doomed: list[Struct] = []
        for name in names:
            if turn.is_over:
                await turn.next()
            denied = call.denied(Operation.DELETE, ResourceType.GROUP, name)
            if denied is not None:
                error = denied.code
            else:
                error = coordinator.delete(name) if is_group_id(name) else ErrorCode.INVALID_GROUP_ID
            results.append(response.Group(group_id=name, error_code=error))
            if not error:
                doomed.append(results[-1])
        if doomed:
            await _delete(broker, turn, doomed)
    return response(results=results)


async def _delete(broker: Broker, turn: Turn, results: list[Struct]) -> None:
    """Delete the groups of these results, which tell what became of each."""
    names = [result.group_id for result in results]
    deleted = broker.group_store.write(broker.group_store.groups.delete, names)
    deleted.add_done_callback(partial(_forget_deleted, broker, names))
    try:
        outcomes: list[KlammError | None] = await asyncio.shield(deleted)
    except KlammError as failure:
        outcomes = [failure] * len(names)
    for result, outcome in zip(results, outcomes, strict=True):
        if turn.is_over:
            await turn.next()
        result.error_code = ErrorCode.NONE if outcome is None else code_of(outcome)


def _forget_deleted(broker: Broker, names: list[str], _: object) -> None:
    for name in names:
        broker.group_coordinator.deleted(name)


def _merge_groups(request: Struct) -> None:
    request.groups = distinct(request.groups)


def _merge_keys(request: Struct) -> None:
    request.coordinator_keys = distinct(request.coordinator_keys)


HANDLERS = (
    SupportedApi(
        FIND_COORDINATOR,
        0,
        6,
        find_coordinator,
        merge=_merge_keys,
        rights=("Describe Group", "Describe TransactionalId"),
        max_response_bytes=LARGE,
        needs_catalog=False,
        notes="groups and transactions; there are no share groups",
    ),
    SupportedApi(
        JOIN_GROUP,
        0,
        9,
        join_group,
        runs=(LOOP, CATALOG, WRITE),
        rights=("Read Group",),
        max_response_bytes=LARGE,
        needs_catalog=False,
    ),
    SupportedApi(
        CONSUMER_GROUP_HEARTBEAT,
        0,
        1,
        consumer_group_heartbeat,
        needs_catalog=False,
        notes="UNSUPPORTED_VERSION at once: groups are classic ones",
    ),
    SupportedApi(HEARTBEAT, 0, 4, heartbeat, rights=("Read Group",), needs_catalog=False),
    SupportedApi(LEAVE_GROUP, 0, 5, leave_group, rights=("Read Group",), max_response_bytes=LARGE, needs_catalog=False),
    SupportedApi(SYNC_GROUP, 0, 5, sync_group, rights=("Read Group",), max_response_bytes=LARGE, needs_catalog=False),
    SupportedApi(
        DESCRIBE_GROUPS,
        0,
        6,
        describe_groups,
        merge=_merge_groups,
        runs=(LOOP, CATALOG),
        rights=("Describe Group",),
        max_response_bytes=LARGE,
        needs_catalog=False,
    ),
    SupportedApi(
        LIST_GROUPS,
        0,
        5,
        list_groups,
        runs=(LOOP, CATALOG),
        rights=("Describe Group", "Describe Cluster"),
        max_response_bytes=LARGE,
        needs_catalog=False,
        notes="groups are classic ones",
    ),
    SupportedApi(
        DELETE_GROUPS,
        0,
        2,
        delete_groups,
        runs=(LOOP, WRITE),
        rights=("Delete Group",),
        max_response_bytes=LARGE,
        needs_catalog=False,
    ),
)
