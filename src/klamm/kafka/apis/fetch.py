"""Fetch: records as they lie in the files, at once or when there are some.

A consumer may have a session (fetch_sessions.py): then requests name the partitions that it wants otherwise than
before, and responses those that have something new.

With read_committed, records end where the oldest open transaction begins, and the answer says which of the transactions
in it were aborted: the client leaves those out. With read_uncommitted there is everything.

Ordinary requests (_fetch.pyx) go past the codecs and need no Call: `_handle_ordinary`. A client without a session names
the same partitions again and again; what was looked up for them is kept for its next request.

The loop responds with what it finds in memory (`attempt`). If records have to be looked for on the disk, or in hundreds
of partitions, a thread makes the response (`attempt_in_thread`). Records that are not small are sent from their files
(response_writer.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from klamm.disk.page_cache import WouldBlock, read_cached
from klamm.errors import KlammError
from klamm.kafka import _fetch
from klamm.kafka.apis.fetch_lookup import is_unresolved, look_up, open_unresolved
from klamm.kafka.call import DISK, LARGE, LOOP, Call, SupportedApi
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.error_map import code_of
from klamm.kafka.fetch_sessions import FetchPartition, FetchSession, next_epoch
from klamm.kafka.large_requests import LARGE_FRAME, LARGE_RESPONSE
from klamm.kafka.repeats import merge_partitions
from klamm.kafka.request_meter import fetch_limits
from klamm.kafka.wire.frames import response_frame
from klamm.kafka.wire.messages import FETCH
from klamm.kafka.wire.structs import Struct

if TYPE_CHECKING:
    from klamm.kafka._fetch import OrdinaryFetch
    from klamm.kafka.broker import Broker
    from klamm.kafka.session import Session
    from klamm.log.ranges import Ranges

__all__ = ["HANDLERS"]

_SMALL = 32 * 1024  # read and sent together with the answer, not as a file
_SMALL_TOGETHER = 128 * 1024  # of all partitions: so much an answer holds while a client does not read it
_LOOP_PARTITIONS = 256  # that the loop looks at; of more a thread makes the response: it takes milliseconds
_FIRST, _LAST = 0, -1  # epochs of full requests: with a session to begin, and without
_NO_REPLICA = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH  # without a leader epoch, with one
_IDS = 13  # the first version that names topics by id

_response = FETCH.response
_Topic = _response.Topic
_Partition = _response.Partition
_Aborted = _response.AbortedTransaction
_PARTITIONS = attrgetter("partitions")

_NOTHING: Struct = _response()
"""The response to a poll of a fetch session in which nothing is new, whatever its id."""


class _FetchRequest:
    """A request, tried as often as need be, by one thread at a time."""

    __slots__ = (
        "available",
        "broker",
        "committed",
        "has_more",
        "is_follower",
        "is_full",
        "max_bytes",
        "min_bytes",
        "ranges_left",
        "responses",
        "session",
        "small_left",
    )

    def __init__(
        self, broker: Broker, request: Struct | OrdinaryFetch, session: FetchSession, *, is_full: bool
    ) -> None:
        """Prepare a fetch. `is_full`: respond with all partitions of the session, not only with changes."""
        self.broker = broker
        self.session = session
        self.is_full = is_full
        self.is_follower = False  # its client says that it is a replica
        self.responses: dict[FetchPartition, Struct] = {}  # of those that were looked at last; if it is full, of all
        self.committed = request.isolation_level == 1
        self.max_bytes: int = min(request.max_bytes, broker.settings.fetch_max_bytes)
        self.min_bytes: int = min(request.min_bytes, self.max_bytes)  # else it could never be enough
        self.small_left = self.ranges_left = 0
        self.available = 0  # as in Kafka: bytes that there are, up to what each partition and the request may have
        self.has_more = False  # it ends with a segment, or with the files that it may open: as in Kafka, it is sent

    def limit(self, max_bytes: int) -> None:
        """Bound the response: a quota does not let it have more."""
        self.max_bytes = min(self.max_bytes, max_bytes)
        self.min_bytes = min(self.min_bytes, self.max_bytes)

    def attempt(self, is_due: bool) -> Struct | None:
        """Return the response, if there is enough to send, or an error, or it is due. WouldBlock: only a thread can."""
        if self.broker.settings.fetch_flushed_only:
            self._flush()
        if len(self.session.partitions if self.is_full else self.session.pending) > _LOOP_PARTITIONS:
            raise WouldBlock
        return self._attempt(is_due, may_block=False)

    def attempt_in_thread(self, is_due: bool) -> Struct | None:
        """Like `attempt`, but wait for disks."""
        return self._attempt(is_due, may_block=True)

    def _flush(self) -> None:
        """Sync records that may not be sent before."""
        self.session.look()
        for requested in self.session.pending:
            if requested.partition is not None:
                try:
                    self.broker.flush_soon(requested.partition)
                except KlammError:
                    continue  # the response says what is wrong

    def _attempt(self, is_due: bool, *, may_block: bool) -> Struct | None:
        session = self.session
        if not session.look():
            if not is_due and self.min_bytes > 0:
                return None
            if not self.is_full:
                return _response(session_id=session.id)
        looked_at = session.in_turn()
        is_wrong = self._look_at(looked_at, may_block)
        is_sent = is_due or is_wrong or self.available >= self.min_bytes or self.has_more
        for requested in looked_at:
            if requested.rests and (is_sent or self.is_full or requested.sent == _known(self.responses[requested])):
                session.pending.discard(requested)
            elif not is_sent:
                del self.responses[requested]  # it is looked at again, and may hold a file open
        if not is_sent:
            return None
        if is_wrong:
            self._count(looked_at)
        return self._response(session.partitions.values() if self.is_full else self._changed(looked_at))

    def _count(self, looked_at: Iterable[FetchPartition]) -> None:
        for requested in looked_at:
            if code := self.responses[requested].error_code:
                self.broker.metrics.error(FETCH.name, code)

    def _look_at(self, looked_at: list[FetchPartition], may_block: bool) -> bool:
        """Make the answers of these partitions; return whether one has an error, or its client has diverged."""
        has_records = is_wrong = False
        left = self.max_bytes
        self.small_left = _SMALL_TOGETHER
        self.ranges_left = max(1, self.broker.max_open_ranges // 16)
        self.has_more = False
        self.available = 0
        for requested in looked_at:
            partition_response = self.responses[requested] = self._partition(
                requested, left, not has_records, may_block
            )
            if partition_response.error_code or partition_response.diverging_epoch is not None:
                is_wrong = True
            if size := len(partition_response.records):
                has_records = True
                left -= size
        return is_wrong

    def _changed(self, looked_at: list[FetchPartition]) -> list[FetchPartition]:
        """Return those of which the client does not know everything."""
        changed = []
        for requested in looked_at:
            partition_response = self.responses[requested]
            known = _known(partition_response)
            if known is None or known != requested.sent or len(partition_response.records):
                changed.append(requested)
        return changed

    def _response(self, partitions: Iterable[FetchPartition]) -> Struct:
        """Make the response of these partitions, which their client knows from then on."""
        session = self.session
        topics: list[Struct] = []
        key: str | bytes | None = None
        sent = []
        for requested in partitions:
            if requested.topic != key:
                key = requested.topic
                topics.append(_Topic(topic_id=key) if session.uses_ids else _Topic(topic=key))
            partition_response = self.responses[requested]
            topics[-1].partitions.append(partition_response)
            requested.sent = _known(partition_response)
            if len(partition_response.records) and not self.is_full:
                sent.append(requested)
        for requested in sent:
            requested.turn = session.next_turn()
        return _response(responses=topics, session_id=session.id)

    def _partition(self, requested: FetchPartition, left: int, first: bool, may_block: bool) -> Struct:
        partition, ranges = requested.partition, requested.ranges
        requested.rests = False
        if partition is None or ranges is None:
            return _refused(requested.index, requested.error)
        try:
            ends = partition.ends()
            if (requested.leader_epoch >= 0) and requested.leader_epoch != ends.leader_epoch:
                older = requested.leader_epoch < ends.leader_epoch
                return _refused(
                    requested.index, ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
                )
            if self.is_follower:  # there are none: as Kafka says to a broker without a replica of the partition
                return _refused(requested.index, _NO_REPLICA[requested.leader_epoch >= 0])
            visible = self.broker.visible(ends)
            partition_response = _Partition(
                partition_index=requested.index,
                high_watermark=visible.end,
                last_stable_offset=visible.stable,
                log_start_offset=ends.start,
                aborted_transactions=[] if self.committed else None,
                records=b"",
            )
            if requested.last_epoch >= 0 and not partition.knows_epochs:  # the leader has changed since they were read
                return _refused(requested.index, ErrorCode.FENCED_LEADER_EPOCH)
            is_past = 0 <= requested.last_epoch <= ends.leader_epoch and requested.offset >= ends.start
            if is_past and (end := partition.end_of_epoch(requested.last_epoch)) < requested.offset:
                known = max((each for each, _ in partition.epochs() if each <= requested.last_epoch), default=-1)
                partition_response.diverging_epoch = _response.EpochEnd(epoch=known, end_offset=end)
                return partition_response
            if not ends.start <= requested.offset <= ends.end or requested.last_epoch > ends.leader_epoch:
                partition_response.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                return partition_response
            limit = visible.stable if self.committed else visible.end
            if requested.offset >= limit:
                requested.rests = visible is ends  # else a sync is awaited, which moves no head
            elif not self.ranges_left:
                self.has_more = True
            elif left > 0 or first:
                size = min(left, requested.max_bytes)
                is_put = self._put_records(partition_response, requested, ranges, limit, size, first, may_block)
                if first and not is_put and self.broker.visible_ends(partition).end > visible.end:
                    # Compaction took all that was before `limit`: later records have the same keys.
                    return self._partition(requested, left, first, may_block)
            return partition_response
        except KlammError as error:
            code = code_of(error)
        except OSError:
            self.broker.log.warning("%r: cannot be read", partition, exc_info=True)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        return _refused(requested.index, code)

    def _put_records(
        self,
        partition_response: Struct,
        requested: FetchPartition,
        ranges: Ranges,
        limit: int,
        max_bytes: int,
        first: bool,
        may_block: bool,
    ) -> bool:
        """Put what there is before `limit` into the answer; whether there is anything."""
        find = ranges.find if may_block else ranges.find_now
        found = find(requested.offset, max_bytes, limit, at_least_one=first)
        if found is None:
            self.available += 0 if first else max_bytes  # the next batch does not fit
            return False
        is_cut = 0 <= found.next_offset < limit
        self.available += max(found.size, max_bytes) if is_cut else found.size
        if found.size < self.min_bytes and not self.has_more:
            self.has_more = ranges.is_followed(found, limit, may_block=may_block)
        if self.committed:
            aborted = ranges.aborted_in(requested.offset, found, may_block=may_block)
            partition_response.aborted_transactions = [
                _Aborted(producer_id=p, first_offset=begin) for p, begin in aborted
            ]
        if found.size <= min(_SMALL, self.small_left):
            partition_response.records = (
                found.read() if may_block else read_cached(found.file.fd, found.size, found.position)
            )
            self.small_left -= found.size
        else:
            partition_response.records = found
            self.ranges_left -= 1
        return True


def _refused(index: int, error: int) -> Struct:
    return _Partition(
        partition_index=index,
        error_code=error,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        aborted_transactions=None,
        records=b"",
    )


def _known(partition_response: Struct) -> tuple[int, int, int] | None:
    """Return what a client knows of a partition from this answer; None if it has to be told again."""
    if partition_response.error_code or partition_response.diverging_epoch is not None:
        return None
    return partition_response.high_watermark, partition_response.last_stable_offset, partition_response.log_start_offset


async def _handle(broker: Broker, call: Call) -> Struct:
    response = await _fetched(broker, call)
    if sum(map(len, map(_PARTITIONS, response.responses))) > LARGE_RESPONSE:
        call.is_large = True
    return response


async def _fetched(broker: Broker, call: Call) -> Struct:
    if call.done:
        (fetching,) = call.done
        return await _attempt_in_thread(broker, call, fetching)
    turn = broker.large_requests.turn(call)
    request, sessions, owner = call.request, broker.fetch_sessions, call.session
    epoch = request.session_epoch
    is_full = epoch in (_FIRST, _LAST)
    session = sessions.find(owner, request.session_id)
    if is_full:
        if session is not None:
            sessions.close(owner)
        session = FetchSession(uses_ids=call.version >= _IDS)
        await turn.run(session.update(request.topics, request.isolation_level))
    elif session is None:
        return _response(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    elif session.epoch != epoch:
        return _response(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    elif session.uses_ids != (call.version >= _IDS):
        return _response(error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
    else:
        await turn.run(session.update(request.topics, request.isolation_level))
        await turn.run(session.forget(request.forgotten_topics_data, broker.purgatory.remove))
        session.epoch = next_epoch(epoch)
        if not sessions.use(owner, session, now_ms=broker.now_ms()):
            session.id = 0
    await turn.run(look_up(broker, session, call))
    has_opened = await open_unresolved(broker, session, turn)
    fetching = _FetchRequest(broker, request, session, is_full=is_full)
    fetching.is_follower = (request.replica_state or request).replica_id >= 0  # a struct since version 15
    if broker.quotas.is_active:
        most = fetch_limits(broker, call)
        if most == 0:  # as in Kafka: without partitions, whatever the request names
            return _response(session_id=0 if is_full else session.id)
        if most is not None:
            fetching.limit(most)
    is_due = request.max_wait_ms <= 0 or not session.partitions
    try:
        response = fetching.attempt(is_due)
    except WouldBlock:
        response = await _attempt_in_thread(broker, call, fetching)
    if response is None:
        response = await _wait(broker, call, fetching, is_task=has_opened or turn.has_waited)
    if epoch == _FIRST and not call.is_gone:
        response.session_id = sessions.open(owner, session, now_ms=broker.now_ms())
    return response


async def _attempt_in_thread(broker: Broker, call: Call, fetching: _FetchRequest) -> Struct:
    """Respond with what a thread finds, at once or later."""
    is_due = call.request.max_wait_ms <= 0 or not fetching.session.partitions
    response = await broker.disk(fetching.attempt_in_thread, is_due)
    return await _wait(broker, call, fetching, is_task=True) if response is None else response


async def _wait(broker: Broker, call: Call, fetching: _FetchRequest, *, is_task: bool) -> Struct:
    broker.metrics.fetch_waits += 1
    wait_s = call.request.max_wait_ms / 1000
    subscription, purgatory = fetching.session.subscription, broker.purgatory
    if len(subscription.missing) > _LOOP_PARTITIONS:
        turn = broker.large_requests.turn(call)
        try:
            await turn.run(purgatory.join(subscription))
        except asyncio.CancelledError:  # the client is gone, or the server stops
            purgatory.end(subscription)
            raise
        is_task = is_task or turn.has_waited
    return await purgatory.delay(call, fetching, subscription, wait_s, is_task=is_task)


# ---- ordinary requests


class _IdlePoll:
    """A request for what is new in a fetch session in which nothing was: it becomes a fetch when something moves."""

    __slots__ = ("_broker", "_fetching", "_request", "_session")

    def __init__(self, broker: Broker, request: OrdinaryFetch, session: FetchSession) -> None:
        self._broker = broker
        self._request = request
        self._session = session
        self._fetching: _FetchRequest | None = None

    def attempt(self, is_due: bool) -> Struct | None:
        """Like _FetchRequest.attempt."""
        if self._fetching is None:
            if not self._session.look():
                return _NOTHING if is_due else None
            self._fetching = _FetchRequest(self._broker, self._request, self._session, is_full=False)
        return self._fetching.attempt(is_due)

    def attempt_in_thread(self, is_due: bool) -> Struct | None:
        """Like _FetchRequest.attempt_in_thread; after `attempt`."""
        assert self._fetching is not None
        return self._fetching.attempt_in_thread(is_due)


class _OrdinaryReply:
    """The callback for the response to an ordinary request that waits."""

    __slots__ = ("_correlation_id", "_session", "_session_id", "_started", "_version")

    def __init__(self, session: Session, request: OrdinaryFetch) -> None:
        self._session = session
        self._started = session.received_at
        self._version = request.version
        self._correlation_id = request.correlation_id
        self._session_id = request.session_id
        session.call = self

    def __str__(self) -> str:
        return f"{FETCH.name} v{self._version}"

    def __call__(self, response: Struct) -> None:
        if response is _NOTHING:
            frame = _fetch.encode_nothing(self._version, self._correlation_id, self._session_id)
        else:
            frame = _encode(self._version, self._correlation_id, response)
        self._session.resume(FETCH.name, self._started, frame)

    def fail(self, error: Exception) -> None:
        """Close the connection; `error` is being handled."""
        self._session.fail(self)

    def drop(self) -> None:
        """Do nothing: the client is gone."""


def _handle_ordinary(broker: Broker, session: Session, frame: memoryview) -> tuple[_FetchRequest, ...] | None:
    """Respond, now or when there are records. See SupportedApi.ordinary: if a thread has to look for them, an attempt
    has been made.
    """
    if broker.authorizer is not None or broker.quotas.is_active:  # the handler looks rights and quotas up
        return ()
    request = _fetch.read(frame) if len(frame) <= LARGE_FRAME else None
    if request is None or not broker.topics.is_fresh:
        return ()
    found = _polled(broker, session, request)
    if found is None:
        found = _ordinary_session(broker, session, request)
        if found is None:
            return ()
    elif not found.look():
        _delay(broker, session, request, _IdlePoll(broker, request, found), found)
        return None
    fetching = _FetchRequest(broker, request, found, is_full=request.session_epoch < 0)
    try:
        response = fetching.attempt(request.max_wait_ms <= 0)
    except WouldBlock:
        return (fetching,)
    if response is not None:
        parts = _encode(request.version, request.correlation_id, response)
        session.respond(FETCH.name, session.received_at, parts)
    else:
        _delay(broker, session, request, fetching, found)
    return None


def _delay(
    broker: Broker, owner: Session, request: OrdinaryFetch, fetching: _FetchRequest | _IdlePoll, session: FetchSession
) -> None:
    broker.metrics.fetch_waits += 1
    reply, wait_s = _OrdinaryReply(owner, request), request.max_wait_ms / 1000
    broker.purgatory.put(owner, reply, fetching, session.subscription, wait_s, was_tried=True)


def _polled(broker: Broker, owner: Session, request: OrdinaryFetch) -> FetchSession | None:
    """Return the fetch session of a request that waits for what is new in it, if nothing is known to be."""
    if len(request) or request.session_epoch <= 0:
        return None
    if request.min_bytes <= 0 or request.max_bytes <= 0 or request.max_wait_ms <= 0:
        return None
    return broker.fetch_sessions.poll(
        owner,
        request,
        uses_ids=request.version >= _IDS,
        catalog_version=broker.topics.version,
        now_ms=broker.now_ms(),
    )


def _ordinary_session(broker: Broker, owner: Session, request: OrdinaryFetch) -> FetchSession | None:
    """Return the session of an ordinary request, with what it wants now. None: the handler sees to it, and nothing was
    changed that it does not change in the same way.
    """
    sessions, epoch, uses_ids = broker.fetch_sessions, request.session_epoch, request.version >= _IDS
    names = b""
    if epoch > 0:
        session = sessions.find(owner, request.session_id)
        if session is None or session.epoch != epoch or session.uses_ids != uses_ids:
            return None
    elif epoch != _LAST or request.session_id:
        return None
    else:
        names = request.names
        session = sessions.kept(owner, names, uses_ids=uses_ids) or FetchSession(uses_ids=uses_ids)
    if session.catalog_version != broker.topics.version and len(session.partitions) > _LOOP_PARTITIONS:
        return None  # all are looked up again
    session.update_ordinary(request)
    for _ in look_up(broker, session):
        pass
    if not session.partitions or any(map(is_unresolved, session.pending)):
        sessions.drop(owner)
        return None
    if epoch > 0:
        session.epoch = next_epoch(epoch)
        if not sessions.use(owner, session, now_ms=broker.now_ms()):
            session.id = 0
    else:
        sessions.keep(owner, names, session)
    return session


def _encode(version: int, correlation_id: int, response: Struct) -> list[Any]:
    return _fetch.encode(version, correlation_id, response) or response_frame(FETCH, version, correlation_id, response)


def _merge(request: Struct) -> None:
    request.topics = merge_partitions(request.topics, "partitions", "partition")


HANDLERS = (
    SupportedApi(
        FETCH,
        FETCH.min_version,
        FETCH.max_version,
        _handle,
        merge=_merge,
        runs=(LOOP, DISK),
        rights=("Read Topic",),
        max_response_bytes=LARGE,
        ordinary=_handle_ordinary,
        notes="A fetch session belongs to its connection, which has one at a time.",
    ),
)
