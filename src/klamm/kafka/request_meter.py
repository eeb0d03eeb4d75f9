"""Charge the requests of one connection to its client's quotas (quotas.py). There is none while there is no quota.

The time that counts is the loop's, until the handler first waits. What threads do for a request does not count.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from klamm.kafka.api_error import ApiError
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.quotas import MAX_REQUEST_WAIT_S
from klamm.kafka.wire.errors import UnsupportedVersion
from klamm.kafka.wire.frames import read_request_header
from klamm.kafka.wire.messages import FETCH, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE
from klamm.store.quotas import CONSUMER_BYTE_RATE, CONTROLLER_MUTATION_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.kafka.call import Call
    from klamm.kafka.quotas import Bucket, ClientBuckets
    from klamm.kafka.session import Session
    from klamm.kafka.wire.codec import Api

__all__ = ["RequestMeter", "fetch_limits", "mutate", "throttle_ms"]

_FREE = {SASL_HANDSHAKE.key, SASL_AUTHENTICATE.key}
_MAX_MS = 2**31 - 1
_PREFIX = "User:"


class RequestMeter:
    """The meter of one session."""

    __slots__ = ("_broker", "_is_running", "_since", "_size", "_unpaid_s", "_waited")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._size = 0
        self._since = 0.0
        self._unpaid_s = 0.0  # of the loop's time
        self._is_running = False
        self._waited: Bucket | None = None  # whose debt the connection was last muted for

    def debt(self, session: Session, frame: memoryview) -> float:
        """Return how many seconds a Produce request has to wait before it is handled: as long as the debt lasts, unless
        this connection has waited for what it took itself. Else a client could connect again for each request.
        """
        if int.from_bytes(frame[:2], "big") != PRODUCE.key:
            return 0.0
        try:
            client_id = read_request_header(frame).client_id
        except UnsupportedVersion:
            return 0.0  # it is refused
        now = self._broker.loop.time()
        bucket = _buckets(self._broker, session, client_id or "", now).produce
        if bucket is None or bucket is self._waited:
            return 0.0
        debt_s = bucket.wait(now)
        if debt_s:
            self._broker.metrics.throttle(PRODUCER_BYTE_RATE, debt_s)
        return debt_s

    def begin(self, size: int) -> None:
        """Begin with a request of so many bytes."""
        self._size = size
        self._since = self._broker.loop.time()
        self._is_running = True

    def stop(self) -> None:
        """Stop the clock: the loop goes on to something else. Time after the response is paid with the next request."""
        if self._is_running:
            self._unpaid_s += self._broker.loop.time() - self._since
            self._is_running = False

    def charge(self, session: Session, api: Api, client_id: str, sent: int) -> float:
        """Take from the client's quotas what a request has taken, whose response has `sent` bytes. Return how many
        seconds the client has to wait.
        """
        if api.key in _FREE:
            return 0.0
        now = self._broker.loop.time()
        used_s, self._unpaid_s = self._unpaid_s, 0.0
        if self._is_running:
            used_s += now - self._since
            self._since = now
        buckets = _buckets(self._broker, session, client_id, now)
        wait_s, quota = 0.0, ""
        if api is PRODUCE and buckets.produce is not None:
            wait_s, quota = buckets.produce.take(self._size, now), PRODUCER_BYTE_RATE
            self._waited = buckets.produce
        elif api is FETCH and buckets.fetch is not None:
            wait_s, quota = buckets.fetch.take(sent, now), CONSUMER_BYTE_RATE
        if buckets.request is not None:
            request_s = min(buckets.request.take(used_s, now), MAX_REQUEST_WAIT_S)
            if request_s > wait_s:
                wait_s, quota = request_s, REQUEST_PERCENTAGE
        if wait_s:
            self._broker.metrics.throttle(quota, wait_s)
        return wait_s


def throttle_ms(wait_s: float) -> int:
    """Return what a response says."""
    return min(math.ceil(wait_s * 1000), _MAX_MS)


def fetch_limits(broker: Broker, call: Call) -> int | None:
    """Return how many bytes of records a fetch may have at most; None: any. If the client is in debt, note that in the
    call and return 0: it gets none.
    """
    now = broker.loop.time()
    bucket = _buckets(broker, call.session, call.client_id or "", now).fetch
    if bucket is None:
        return None
    wait_s = bucket.wait(now)
    if wait_s:
        call.wait_s = wait_s
        broker.metrics.throttle(CONSUMER_BYTE_RATE, wait_s)
        return 0
    return max(1, int(bucket.burst))


def mutate(broker: Broker, call: Call, count: int, *, is_strict: bool) -> None:
    """Take `count` partitions, which are created or deleted, from the client's quota. If it is in debt: raise ApiError,
    or, if not `is_strict`, have it wait.
    """
    if not broker.quotas.is_active:
        return
    now = broker.loop.time()
    bucket = _buckets(broker, call.session, call.client_id or "", now).mutation
    if bucket is None:
        return
    debt_s = bucket.wait(now) if is_strict else 0.0
    wait_s = debt_s or bucket.take(count, now)
    if wait_s and (debt_s or not is_strict):
        call.wait_s = max(call.wait_s, wait_s)
        broker.metrics.throttle(CONTROLLER_MUTATION_RATE, wait_s)
    if debt_s:
        raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")


def _buckets(broker: Broker, session: Session, client_id: str, now: float) -> ClientBuckets:
    return broker.quotas.of_client(session.principal.removeprefix(_PREFIX), client_id, now)
