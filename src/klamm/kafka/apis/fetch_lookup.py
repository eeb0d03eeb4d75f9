"""Look up the partitions of a fetch session: in the catalog, and on the disk what is not open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from klamm.errors import KlammError
from klamm.kafka.broker import NotOpened
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.error_map import code_of
from klamm.store.acl import Operation, ResourceType

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.kafka.call import Call
    from klamm.kafka.fetch_sessions import FetchPartition, FetchSession
    from klamm.kafka.large_requests import Turn
    from klamm.log.partition import Partition
    from klamm.store.directory import OpenTopic

__all__ = ["is_unresolved", "look_up", "open_unresolved"]

_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def look_up(broker: Broker, session: FetchSession, call: Call | None = None) -> Iterator[None]:
    """Look up partitions that are new, or all if the catalog has changed (ACLs are part of it), one when this is
    advanced. Without `call` there are no ACLs.
    """
    if session.catalog_version != broker.topics.version:
        session.catalog_version = broker.topics.version
        session.new = dict.fromkeys(session.partitions.values())
    is_denied: dict[str | bytes, bool] = {}
    for requested in session.new:
        yield
        opened = _topic(broker, requested.topic)
        if requested.topic not in is_denied:
            name = opened.name if opened is not None else requested.topic  # an id that no topic has needs no right
            is_denied[requested.topic] = (
                call is not None
                and isinstance(name, str)
                and call.denied(Operation.READ, ResourceType.TOPIC, name) is not None
            )
        if is_denied[requested.topic]:
            _set_partition(broker, session, requested, None, _DENIED)
            continue
        try:
            partition = broker.partition(opened, requested.index) if opened is not None else None
            error = ErrorCode.UNKNOWN_TOPIC_ID if session.uses_ids and opened is None else _UNKNOWN
        except NotOpened:
            partition, error = None, ErrorCode.NONE
        _set_partition(broker, session, requested, partition, error)
    session.new = {}


def is_unresolved(requested: FetchPartition) -> bool:
    """Return whether a file has to be read first: the partition was never used, or its epochs are not known."""
    if requested.partition is None:
        return requested.error not in (_UNKNOWN, _DENIED, ErrorCode.UNKNOWN_TOPIC_ID)
    return requested.last_epoch >= 0 and not requested.partition.knows_epochs


def _topic(broker: Broker, key: str | bytes) -> OpenTopic | None:
    return broker.topics.find(key) if isinstance(key, str) else broker.topics.by_id(key)


def _set_partition(
    broker: Broker, session: FetchSession, requested: FetchPartition, partition: Partition | None, error: int
) -> None:
    """Set the requested partition, or why there is none."""
    requested.error = error
    if partition is None:
        session.pending.add(requested)
    ranges = broker.ranges(partition) if partition is not None else None
    session.set_partition(requested, partition, ranges, broker.purgatory.remove)


async def open_unresolved(broker: Broker, session: FetchSession, turn: Turn) -> bool:
    """Open partitions that were never used, and read epochs that are not known. Return whether there were any."""
    has_opened = False
    for requested in list(session.pending):
        if turn.is_over:
            await turn.next()
        if not is_unresolved(requested):
            continue
        has_opened = True
        opened = _topic(broker, requested.topic)
        partition, error = None, int(_UNKNOWN)
        try:
            if opened is not None and 0 <= requested.index < opened.count:
                partition = await broker.opened(opened, requested.index)
                if requested.last_epoch >= 0:
                    await broker.disk(partition.epochs)
        except KlammError as failure:
            partition, error = None, code_of(failure)
        _set_partition(broker, session, requested, partition, error)
    return has_opened
