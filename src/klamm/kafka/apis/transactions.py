"""Transactional and idempotent producers: who they are, what is part of a transaction, how it ends, who has one open.

The coordinator (transaction_coordinator.py) knows the rules, and works in threads. Here is what the loop does: topics
by name, who may commit offsets, and the codes that older versions know. Offsets of a group that wait for the end go
through the same queue as other commits of groups (group_store.py), so that none overtakes another. With the end they
become the group's in one SQLite transaction; a client that reads them before gets UNSTABLE_OFFSET_COMMIT.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from klamm.errors import KlammError
from klamm.kafka.api_error import ApiError
from klamm.kafka.apis.group_offsets import checked_commit
from klamm.kafka.call import CATALOG, DISK, LARGE, LOOP, TRANSACT, WRITE, Call, SupportedApi
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.error_map import code_of
from klamm.kafka.group_store import is_group_id
from klamm.kafka.large_requests import LARGE_RESPONSE
from klamm.kafka.repeats import distinct, merge_partitions
from klamm.kafka.transaction_coordinator import STATES, Identified
from klamm.kafka.wire.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    TXN_OFFSET_COMMIT,
)
from klamm.kafka.wire.structs import Struct
from klamm.store.acl import CLUSTER_NAME, Operation, ResourceType
from klamm.store.groups import OffsetRow
from klamm.store.markers import can_append
from klamm.store.transaction_state import Add, End
from klamm.types import PartitionKey

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.log.partition import Partition
    from klamm.store.transaction_state import Row

__all__ = ["HANDLERS"]

_FENCED_SINCE = {INIT_PRODUCER_ID: 4, ADD_PARTITIONS_TO_TXN: 2, ADD_OFFSETS_TO_TXN: 2, END_TXN: 2}
"""The first versions that know PRODUCER_FENCED."""

_OF_BROKERS_SINCE = 4  # versions of AddPartitionsToTxn that clients do not send
_ABORTABLE_SINCE = 5  # of AddPartitionsToTxn
_PRODUCER_BYTES = 36  # of one in a response, at least
_BUMPS_SINCE = 5  # of EndTxn and TxnOffsetCommit: KIP-890
_KAFKAS_STATES = {*STATES.values(), "Dead", "PrepareEpochFence"}


def _error_code(call: Call, code: ErrorCode) -> ErrorCode:
    """Return the code as this version of the request has it."""
    if code is ErrorCode.PRODUCER_FENCED and call.version < _FENCED_SINCE[call.api]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


# ---- who they are


async def init_producer_id(broker: Broker, call: Call) -> Struct:
    request = call.request
    denied = _denied_producer(call)
    if denied is not None:
        return INIT_PRODUCER_ID.response(error_code=denied.code, producer_id=-1, producer_epoch=-1)
    if (request.producer_id == -1) != (request.producer_epoch == -1):  # half of an identity
        return INIT_PRODUCER_ID.response(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    try:
        found = await broker.transact(
            request.transactional_id,
            broker.transaction_coordinator.init_producer_id,
            request.transactional_id,
            request.transaction_timeout_ms,
            request.producer_id,
            request.producer_epoch,
        )
    except KlammError as error:
        found = Identified(code_of(error))
    if found.error is ErrorCode.POLICY_VIOLATION:
        broker.transaction_log.warning(
            "InitProducerId of transactional id %r rejected: max.transactional.ids is reached",
            request.transactional_id[:200],
        )
    return INIT_PRODUCER_ID.response(
        error_code=_error_code(call, found.error), producer_id=found.producer_id, producer_epoch=found.epoch
    )


def _denied_producer(call: Call) -> ApiError | None:
    """Return why the client may have no producer id. One that may write somewhere may have one, as in Kafka."""
    name = call.request.transactional_id
    if name is not None:
        return call.denied(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
    if call.may(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME) or call.session.may_some(
        Operation.WRITE, ResourceType.TOPIC
    ):
        return None
    return call.denied(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)


# ---- what is part of a transaction


async def _add_partitions(
    broker: Broker, call: Call, name: str, producer_id: int, epoch: int, topics: Iterable[Any], *, verify_only: bool
) -> list[Struct]:
    """Return the response for each topic of one transaction."""
    response = ADD_PARTITIONS_TO_TXN.response
    turn = broker.large_requests.turn(call, to_the_end=True)
    is_client = call.version < _OF_BROKERS_SINCE
    denied = call.denied(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name) if is_client else None
    responses: dict[str, Struct] = {}
    refusals: dict[str, ApiError | None] = {}
    added: list[Struct] = []  # partitions of the response that exist, and that the client may write to
    keys: list[PartitionKey] = []  # theirs
    is_refused = False
    for topic in topics:
        if turn.is_over:
            await turn.next()
        opened = broker.topics.find(topic.name)
        if is_client and denied is None and topic.partitions and topic.name not in refusals:
            refusals[topic.name] = call.denied(Operation.WRITE, ResourceType.TOPIC, topic.name)
        refusal = denied or refusals.get(topic.name)
        for number in topic.partitions:
            if turn.is_over:
                await turn.next()
            if topic.name not in responses:
                responses[topic.name] = response.Topic(name=topic.name, results_by_partition=[])
            partition = response.Partition(partition_index=number)
            responses[topic.name].results_by_partition.append(partition)
            if refusal is None and opened is not None and 0 <= number < opened.count:
                added.append(partition)
                keys.append((opened.topic.id, number))
                continue
            is_refused = True
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if refusal is None else refusal.code
            partition.partition_error_code = code
    missing: Collection[PartitionKey] = ()
    if is_refused:
        code = ErrorCode.OPERATION_NOT_ATTEMPTED
    elif not name:
        code = ErrorCode.INVALID_REQUEST
    elif verify_only:
        found = broker.transaction_coordinator.verify(name, producer_id, epoch, keys)
        if isinstance(found, ErrorCode):
            code = found
        else:
            code, missing = ErrorCode.NONE, set(keys).difference(found)
    else:
        try:
            code = (await broker.apply(name, Add((producer_id, epoch), frozenset(keys)))).error
        except KlammError as error:
            code = code_of(error)
        code = _error_code(call, code)
    is_abortable = call.version >= _ABORTABLE_SINCE
    not_in_it = ErrorCode.TRANSACTION_ABORTABLE if is_abortable else ErrorCode.INVALID_TXN_STATE
    for partition, key in zip(added, keys, strict=True):
        if turn.is_over:
            await turn.next()
        partition.partition_error_code = not_in_it if key in missing else code
    return list(responses.values())


async def add_partitions_to_txn(broker: Broker, call: Call) -> Struct:
    request, response = call.request, ADD_PARTITIONS_TO_TXN.response
    if call.version < 4:
        topics = await _add_partitions(
            broker,
            call,
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            request.v3_and_below_topics,
            verify_only=False,
        )
        return response(results_by_topic_v3_and_below=topics)
    denied = call.denied(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    if denied is not None:  # requests of these versions are for brokers
        return response(error_code=denied.code)
    results = []
    turn = broker.large_requests.turn(call, to_the_end=True)
    for each in request.transactions:
        if turn.is_over:
            await turn.next()
        topics = await _add_partitions(
            broker,
            call,
            each.transactional_id,
            each.producer_id,
            each.producer_epoch,
            each.topics,
            verify_only=each.verify_only,
        )
        results.append(response.Transaction(transactional_id=each.transactional_id, topic_results=topics))
    return response(results_by_transaction=results)


async def add_offsets_to_txn(broker: Broker, call: Call) -> Struct:
    request = call.request
    denied = call.denied(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id) or call.denied(
        Operation.READ, ResourceType.GROUP, request.group_id
    )
    if denied is not None:
        code = denied.code
    elif not request.transactional_id:
        code = ErrorCode.INVALID_REQUEST
    elif not is_group_id(request.group_id):
        code = ErrorCode.INVALID_GROUP_ID
    else:
        try:
            event = Add((request.producer_id, request.producer_epoch), frozenset(), frozenset({request.group_id}))
            code = (await broker.apply(request.transactional_id, event)).error
        except KlammError as error:
            code = code_of(error)
    return ADD_OFFSETS_TO_TXN.response(error_code=_error_code(call, code))


async def txn_offset_commit(broker: Broker, call: Call) -> Struct:
    request = call.request
    denied = call.denied(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id) or call.denied(
        Operation.READ, ResourceType.GROUP, request.group_id
    )
    missing = ErrorCode.ILLEGAL_GENERATION
    wanted, turn = await checked_commit(broker, call, denied, request.generation_id, missing)
    if wanted.rows:  # no `await` since the check
        code = await _commit_offsets(broker, call, wanted.rows)
        for partition in wanted.responses if code else ():
            if turn.is_over:
                await turn.next()
            partition.error_code = code
    return TXN_OFFSET_COMMIT.response(topics=wanted.topics)


async def _commit_offsets(broker: Broker, call: Call, rows: list[OffsetRow]) -> ErrorCode:
    request = call.request

    def commit() -> ErrorCode:
        return broker.transaction_coordinator.commit_offsets(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.group_id,
            rows,
            implicit=call.version >= _BUMPS_SINCE,
        )

    try:
        return await broker.group_store.write(commit)
    except KlammError as failed:
        return code_of(failed)


# ---- how it ends


async def end_txn(broker: Broker, call: Call) -> Struct:
    request = call.request
    denied = call.denied(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    if denied is not None:
        return END_TXN.response(error_code=denied.code)
    if not request.transactional_id:
        return END_TXN.response(error_code=ErrorCode.INVALID_REQUEST)
    try:
        event = End((request.producer_id, request.producer_epoch), request.committed, call.version >= _BUMPS_SINCE)
        found = await broker.apply(request.transactional_id, event)
    except KlammError as error:
        found = Identified(code_of(error))
    if found.error:
        return END_TXN.response(error_code=_error_code(call, found.error))
    return END_TXN.response(producer_id=found.producer_id, producer_epoch=found.epoch)


# ---- for people


async def describe_transactions(broker: Broker, call: Call) -> Struct:
    response = DESCRIBE_TRANSACTIONS.response
    states = []
    turn = broker.large_requests.turn(call)
    for name in call.request.transactional_ids:
        if turn.is_over:
            await turn.next()
        denied = call.denied(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)
        if denied is not None:
            states.append(response.Transaction(error_code=denied.code, transactional_id=name))
            continue
        row = broker.transaction_coordinator.row(name) if name else None
        if row is not None:
            states.append(_described(broker, call, row))
        else:
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if name else ErrorCode.INVALID_REQUEST
            states.append(response.Transaction(error_code=code, transactional_id=name))
    return response(transaction_states=states)


def _described(broker: Broker, call: Call, row: Row) -> Struct:
    response = DESCRIBE_TRANSACTIONS.response
    numbers: dict[str, list[int]] = {}
    for topic_id, number in sorted(row.partitions):
        opened = broker.topics.by_id(bytes.fromhex(topic_id))
        if opened is not None and call.may(Operation.DESCRIBE, ResourceType.TOPIC, opened.name):
            numbers.setdefault(opened.name, []).append(number)
    return response.Transaction(
        transactional_id=row.name,
        transaction_state=STATES[row.state],
        transaction_timeout_ms=row.timeout_ms,
        transaction_start_time_ms=row.started_ms,
        producer_id=row.producer_id,
        producer_epoch=row.next_epoch,
        topics=[response.Topic(topic=name, partitions=found) for name, found in sorted(numbers.items())],
    )


async def list_transactions(broker: Broker, call: Call) -> Struct:
    request, response = call.request, LIST_TRANSACTIONS.response
    now_ms = broker.core.heads.wall_ms()
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
    found = []
    turn = broker.large_requests.turn(call)
    for row in broker.transaction_coordinator.rows():
        if turn.is_over:
            await turn.next()
        state = STATES[row.state]
        if not call.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, row.name or ""):
            continue
        if states and state not in states:
            continue
        if producer_ids and row.producer_id not in producer_ids:
            continue
        if request.duration_filter >= 0 and (row.is_over or now_ms - row.started_ms <= request.duration_filter):
            continue
        found.append(
            response.Transaction(transactional_id=row.name, producer_id=row.producer_id, transaction_state=state)
        )
    unknown = [state for state in request.state_filters if state not in _KAFKAS_STATES]
    return response(unknown_state_filters=unknown, transaction_states=found)


async def describe_producers(broker: Broker, call: Call) -> Struct:
    response = DESCRIBE_PRODUCERS.response
    topics = []
    turn = broker.large_requests.turn(call)
    for topic in call.request.topics:
        if turn.is_over:
            await turn.next()
        opened = broker.topics.find(topic.name)
        denied = call.denied(Operation.READ, ResourceType.TOPIC, topic.name)
        partitions = []
        for number in topic.partition_indexes:
            if turn.is_over:
                await turn.next()
            answer = response.Partition(partition_index=number)
            partitions.append(answer)
            if denied is not None:
                answer.error_code, answer.error_message = denied.code, denied.message
                continue
            if opened is None or not 0 <= number < opened.count:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            try:
                partition = await broker.opened(opened, number)
                expiration_ms = opened.topic.settings.producer_id_expiration_ms
                answer.active_producers = await broker.disk(_producers, partition, expiration_ms)
                call.expect(_PRODUCER_BYTES * len(answer.active_producers))
                call.is_large = call.is_large or len(answer.active_producers) > LARGE_RESPONSE
            except KlammError as error:
                answer.error_code = code_of(error)
                answer.error_message = error.message
        topics.append(response.Topic(name=topic.name, partitions=partitions))
    return response(topics=topics)


def _producers(partition: Partition, expiration_ms: int) -> list[Struct]:
    """Return the producers that are remembered. Runs in a thread."""
    if not can_append(partition):
        return []  # a stopped process holds the log: unknown
    found = []
    expired_ms = partition.heads.clock_ms() - expiration_ms
    for producer_id, first_open, seen_ms, batches in partition.producers():
        if first_open < 0 and seen_ms < expired_ms:  # its place goes to the next one that needs it
            continue
        _, first, last, epoch = batches[-1]
        found.append(
            DESCRIBE_PRODUCERS.response.Producer(
                producer_id=producer_id,
                producer_epoch=epoch,
                last_sequence=-1 if first < 0 and last == _NO_SEQUENCE else last,
                last_timestamp=seen_ms,
                coordinator_epoch=0,
                current_txn_start_offset=first_open,
            )
        )
    return found


_NO_SEQUENCE = 2**31 - 1  # of a marker that begins a new epoch: the next sequence is 0


def _merge_partitions(request: Struct) -> None:
    request.topics = merge_partitions(request.topics, "partition_indexes")


def _merge_ids(request: Struct) -> None:
    request.transactional_ids = distinct(request.transactional_ids)


HANDLERS = (
    SupportedApi(
        INIT_PRODUCER_ID,
        0,
        5,
        init_producer_id,
        runs=(TRANSACT,),
        rights=("Write TransactionalId", "IdempotentWrite Cluster", "Write Topic"),
        needs_catalog=False,
        notes="POLICY_VIOLATION beyond max.transactional.ids, a bound that Kafka has not",
    ),
    SupportedApi(
        ADD_PARTITIONS_TO_TXN,
        0,
        5,
        add_partitions_to_txn,
        runs=(LOOP, TRANSACT),
        rights=("Write TransactionalId", "Write Topic", "ClusterAction Cluster"),
        max_response_bytes=LARGE,
    ),
    SupportedApi(
        ADD_OFFSETS_TO_TXN,
        0,
        4,
        add_offsets_to_txn,
        runs=(TRANSACT,),
        rights=("Write TransactionalId", "Read Group"),
        needs_catalog=False,
    ),
    SupportedApi(
        END_TXN,
        0,
        5,
        end_txn,
        runs=(TRANSACT,),
        rights=("Write TransactionalId",),
        needs_catalog=False,
        notes="Answers when the end is on disk in every partition; from version 5 on with the next epoch.",
    ),
    SupportedApi(
        TXN_OFFSET_COMMIT,
        0,
        5,
        txn_offset_commit,
        runs=(LOOP, CATALOG, WRITE),
        rights=("Write TransactionalId", "Read Group", "Read Topic"),
        max_response_bytes=LARGE,
    ),
    SupportedApi(
        DESCRIBE_PRODUCERS,
        0,
        0,
        describe_producers,
        merge=_merge_partitions,
        runs=(DISK,),
        rights=("Read Topic",),
        max_response_bytes=LARGE,
    ),
    SupportedApi(
        DESCRIBE_TRANSACTIONS,
        0,
        0,
        describe_transactions,
        merge=_merge_ids,
        rights=("Describe TransactionalId",),
        max_response_bytes=LARGE,
        notes="Of clients of this server, not of programs.",
    ),
    SupportedApi(
        LIST_TRANSACTIONS,
        0,
        1,
        list_transactions,
        rights=("Describe TransactionalId",),
        max_response_bytes=LARGE,
        notes="No patterns (version 2): matching what a stranger sends could take forever.",
    ),
)
