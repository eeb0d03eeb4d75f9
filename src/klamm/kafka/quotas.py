"""Quotas of clients: how much each may send, fetch, compute and change, and how long it has to wait beyond that.

A quota is a token bucket: it fills with the rate of the quota, up to what comes in BURST_S (of changes of topics: in
MUTATION_BURST_S, as in Kafka), and may go into debt. What a request takes is taken when its response is made; the
response says how long the debt lasts (throttle_time_ms), and nothing more is read of the connection for that time
(KIP-219). So the rate holds over time, however large a request is and however many connections share a bucket.

    producer_byte_rate          bytes of Produce requests. One that arrives while there is debt waits, unless its
                                connection has waited for what it took itself.
    consumer_byte_rate          bytes of Fetch responses. A fetch that arrives while there is debt is answered without
                                records, as in Kafka, and a response has no more records than come in BURST_S.
    request_percentage          time of the loop, in percent; a wait is MAX_REQUEST_WAIT_S at most, as in Kafka
    controller_mutation_rate    partitions that are created or deleted (KIP-599): while there is debt, they are refused
                                with THROTTLING_QUOTA_EXCEEDED; versions that do not know that error wait instead
    connection_creation_rate    connections of an address: further ones are closed, late

Which quota counts, of each kind by itself, is Kafka's order: user and client id, each by name before the default, then
the user alone, then the client id alone. Clients share a bucket if they are the same to the quota that counts.

Promise
  QUO1  Over time a client gets no more than the rate of its quota, and what it takes is not taken from others, unless
        they share its bucket. Of bytes that holds however it connects. Where a quota is the wait after a response
        alone (request_percentage, changes of topics by old versions), each connection is slowed down, no more.

The time is an argument (seconds of any clock that does not jump). No quota, no cost: see `is_active`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from klamm.store.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    MAX_NAME_BYTES,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Entity,
)

__all__ = ["BURST_S", "MAX_BUCKETS", "Bucket", "ClientBuckets", "ClientQuotas"]

BURST_S = 1.0
MUTATION_BURST_S = 11.0
MAX_REQUEST_WAIT_S = 1.0
MAX_BUCKETS = 10_000
"""Buckets that are remembered; clients choose their ids, and further ones share a bucket."""

_BURSTS = {CONTROLLER_MUTATION_RATE: MUTATION_BURST_S}
_OTHERS = "\0others"  # no client is called that

Key = tuple[str, str | None, str | None]  # name of the quota, user, client id or address


class Bucket:
    """The token bucket of one quota of one client, or of all clients that share it."""

    __slots__ = ("_at", "_tokens", "burst", "rate")

    def __init__(self, rate: float, burst_s: float, now: float) -> None:
        self.rate = rate
        self.burst = rate * burst_s
        self._tokens = self.burst
        self._at = now

    def set_rate(self, rate: float, burst_s: float, now: float) -> None:
        """Change the rate; what was taken before is not forgotten."""
        self._fill(now)
        self.rate = rate
        self.burst = rate * burst_s
        self._tokens = min(self._tokens, self.burst)

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
            self._at = now

    def wait(self, now: float) -> float:
        """Return how many seconds the debt lasts; 0.0 if there is none."""
        self._fill(now)
        return -self._tokens / self.rate if self._tokens < 0 else 0.0

    def take(self, amount: float, now: float) -> float:
        """Take so much, and return how many seconds the debt lasts."""
        self._fill(now)
        self._tokens -= amount
        return -self._tokens / self.rate if self._tokens < 0 else 0.0

    def try_take(self, amount: float, now: float) -> float:
        """Like `take`, but if there is debt, or there would be, take nothing and return how long to wait."""
        self._fill(now)
        if self._tokens < amount:
            return (amount - self._tokens) / self.rate
        self._tokens -= amount
        return 0.0

    def is_full(self, now: float) -> bool:
        """Return whether it is as a new one."""
        self._fill(now)
        return self._tokens >= self.burst


class ClientBuckets(NamedTuple):
    """The buckets that count for one user with one client id; None: there is no such quota."""

    produce: Bucket | None
    fetch: Bucket | None
    request: Bucket | None
    mutation: Bucket | None


class ClientQuotas:
    """The quotas of one server's clients, on its loop."""

    def __init__(self, default_mutation_rate: float = 0) -> None:
        """Begin without quotas but `default_mutation_rate`, of users that have no other; 0: none."""
        self._default_mutation_rate = default_mutation_rate
        self._quotas: Mapping[Entity, Mapping[str, float]] = {}
        self._buckets: dict[Key, Bucket] = {}
        self._clients: dict[tuple[str, str], ClientBuckets] = {}
        self._swept_at = float("-inf")
        self.is_active = default_mutation_rate > 0
        """Whether there is any quota at all."""
        self.limits_connections = False

    def set(self, quotas: Mapping[Entity, Mapping[str, float]], now: float) -> None:
        """Replace the quotas. Debts stay, as far as their quota does."""
        self._quotas = quotas
        self._clients.clear()
        self.limits_connections = any(CONNECTION_CREATION_RATE in values for values in quotas.values())
        self.is_active = self._default_mutation_rate > 0 or bool(quotas)
        self._sweep(now)

    # ---- which counts

    def of_client(self, user: str, client_id: str, now: float) -> ClientBuckets:
        """Return the buckets of a user with a client id."""
        client_id = client_id[: MAX_NAME_BYTES + 1]  # no quota is of a longer one, and clients may send long ones
        found = self._clients.get((user, client_id))
        if found is None:
            if len(self._clients) >= MAX_BUCKETS:
                self._clients.clear()
            self._make_space(now)
            found = self._clients[user, client_id] = ClientBuckets(
                self._find(PRODUCER_BYTE_RATE, user, client_id, now),
                self._find(CONSUMER_BYTE_RATE, user, client_id, now),
                self._find(REQUEST_PERCENTAGE, user, client_id, now),
                self._find(CONTROLLER_MUTATION_RATE, user, client_id, now),
            )
        return found

    def connect(self, address: str, now: float) -> float:
        """Take a connection of that address. Return 0.0 if there may be one, else after how many seconds."""
        self._make_space(now)
        for name in (address, None):
            rate = self._quotas.get(((IP, name),), {}).get(CONNECTION_CREATION_RATE)
            if rate is not None:
                key = (CONNECTION_CREATION_RATE, None, address)
                return self._bucket(key, rate, now).try_take(1, now)
        return 0.0

    def _find(self, name: str, user: str, client_id: str, now: float) -> Bucket | None:
        """Return the bucket of the quota of that name that counts."""
        both = ((user, client_id), (user, None))
        defaults = ((None, client_id), (None, None))
        candidates: list[tuple[Entity, Key]] = []
        for names, one in ((both, user), (defaults, None)):
            candidates += [(((CLIENT_ID, c), (USER, u)), (name, user, client_id)) for u, c in names]
            candidates.append((((USER, one),), (name, user, None)))
        candidates += [(((CLIENT_ID, one),), (name, None, client_id)) for one in (client_id, None)]
        for entity, key in candidates:
            rate = self._quotas.get(entity, {}).get(name)
            if rate is not None:
                return self._bucket(key, rate / 100 if name == REQUEST_PERCENTAGE else rate, now)
        if name == CONTROLLER_MUTATION_RATE and self._default_mutation_rate:
            return self._bucket((name, user, None), self._default_mutation_rate, now)
        return None

    def _bucket(self, key: Key, rate: float, now: float) -> Bucket:
        if len(self._buckets) >= MAX_BUCKETS and key not in self._buckets:
            key = (key[0], None, _OTHERS)
        burst_s = _BURSTS.get(key[0], BURST_S)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(rate, burst_s, now)
        elif bucket.rate != rate:
            bucket.set_rate(rate, burst_s, now)
        return bucket

    def _make_space(self, now: float) -> None:
        """Forget buckets that are as new ones, if there are many; not more often than once a second."""
        if len(self._buckets) >= MAX_BUCKETS and now >= self._swept_at + 1:
            self._sweep(now)

    def _sweep(self, now: float) -> None:
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if not bucket.is_full(now)}
        self._clients.clear()
        self._swept_at = now
