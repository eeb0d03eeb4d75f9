"""Produce as clients mostly send it: its batches are appended as they are, and no Python object is made a field.

`_produce.pyx` reads the frame, checks the batches and encodes the response. What it does not take for ordinary, and
what cannot be appended at once, is left to the handler in produce.py, with the offsets of what was appended before.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from klamm.errors import KlammError
from klamm.kafka import _produce
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.error_map import code_of
from klamm.kafka.request_meter import throttle_ms
from klamm.kafka.wire.frames import SIZE_BYTES, read_response, response_frame
from klamm.kafka.wire.messages import PRODUCE
from klamm.store.acl import Operation, ResourceType

if TYPE_CHECKING:
    from klamm.kafka._produce import OrdinaryProduce
    from klamm.kafka.broker import Broker
    from klamm.kafka.session import Session
    from klamm.log.partition import Partition

    _Unsynced = tuple[Partition, int, int]  # with the end offset to be synced, and its number in the request

__all__ = ["handle_ordinary"]

_ID_SINCE = 13  # a topic is named by its id


def handle_ordinary(broker: Broker, session: Session, frame: memoryview) -> tuple[int, ...] | None:
    """Append what is in the request and respond, now or when it is on disk. See SupportedApi.ordinary."""
    request = _produce.read(frame)
    if request is None or not broker.topics.is_fresh:
        return ()
    is_guarded = broker.authorizer is not None
    find = broker.topics.by_id if request.version >= _ID_SINCE else broker.topics.find
    batches: list[tuple[Partition, memoryview, int]] = []
    for number in range(len(request)):
        topic, index, records, record_count = request.partition(number)
        opened = find(topic)  # type: ignore[arg-type]  # the version says which
        found = None if opened is None else opened.opened_one(index)
        if opened is None or found is None:
            return ()
        if is_guarded and not session.may(Operation.WRITE, ResourceType.TOPIC, opened.name):
            return ()
        batches.append((found, records, record_count))
    offsets: list[int] = []
    unsynced: list[_Unsynced] = []
    is_all = request.acks < 0
    for number, (partition, records, record_count) in enumerate(batches):
        offset = partition.append_plain(records)
        if offset is None:
            return tuple(offsets)
        log = partition.log
        request.appended(number, offset, partition.snapshot().log_start)
        offsets.append(offset)
        if is_all and log.flushed_offset < offset + record_count:
            unsynced.append((partition, offset + record_count, number))
    metrics = broker.metrics
    for _, _, record_count in batches:
        metrics.batches_in += 1
        metrics.records_in += record_count
    touched = [partition for partition, _, _ in batches]
    wait_s = session.charge(PRODUCE, request.client_id) if broker.quotas.is_active else 0.0
    if unsynced:
        _SyncWait(broker, session, request, touched, wait_s).wait(unsynced)
    else:
        response = request.response(throttle_ms(wait_s) if wait_s else 0) if request.acks else None
        session.respond(PRODUCE.name, session.received_at, None if response is None else [response], wait_s)
        for partition in touched:
            broker.purgatory.wake_soon(partition)
    return None


class _SyncWait:
    """A request whose batches are appended, until they are on disk."""

    __slots__ = ("_broker", "_failed", "_left", "_response", "_session", "_started", "_touched", "_version",
                 "_wait_s")  # fmt: skip

    def __init__(
        self,
        broker: Broker,
        session: Session,
        request: OrdinaryProduce,
        touched: list[Partition],
        wait_s: float,
    ) -> None:
        self._broker = broker
        self._session = session
        self._version = request.version
        self._response = request.response(throttle_ms(wait_s) if wait_s else 0)
        self._wait_s = wait_s  # of the client, by its quotas
        self._started = session.received_at
        self._touched = touched
        self._left = 0
        self._failed: dict[int, BaseException] = {}  # by the number of the partition in the request
        session.call = self

    def wait(self, unsynced: list[_Unsynced]) -> None:
        """Respond when these are on disk. A single one may be answered by the thread that syncs: the loop has nothing
        to do then. Fetches that wait for the records hear of them by the bell.
        """
        self._left = len(unsynced)
        may_reply = self._left == 1 and not self._wait_s  # else the loop has something to do
        reply = self._session.make_reply(self._response) if may_reply else None
        for partition, end_offset, number in unsynced:
            self._broker.sync_queue.wait(partition, end_offset, partial(self._synced, number), reply)

    def _synced(self, number: int, error: BaseException | None) -> None:
        if error is not None:
            self._failed[number] = error
        self._left -= 1
        if not self._left:
            response = self._with_errors() if self._failed else self._response
            self._session.respond_later(PRODUCE.name, self._started, response, self._wait_s)
            for partition in self._touched:
                self._broker.purgatory.wake_soon(partition)

    def _with_errors(self) -> bytes:
        """Return the response for failed syncs."""
        correlation_id, response = read_response(PRODUCE, self._version, self._response[SIZE_BYTES:])
        partitions = [partition for topic in response.responses for partition in topic.partition_responses]
        for number, error in self._failed.items():
            if isinstance(error, KlammError):
                code, message = code_of(error), error.message
            else:
                code, message = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
            self._broker.metrics.error(PRODUCE.name, code)
            partitions[number].base_offset = -1
            partitions[number].error_code = code
            partitions[number].error_message = message
        return b"".join(response_frame(PRODUCE, self._version, correlation_id, response))
