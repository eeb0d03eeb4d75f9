"""The counters of a server: plain numbers that the loop increments, at the cost of an addition.

Only the loop writes here. Who scrapes reads from a thread of its own, without a lock: each number is right, two of them
may be a moment apart.
"""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["BOUNDS", "Metrics", "Timings"]

# Upper bounds of the buckets, in seconds: from an answer out of memory to a fetch that waits as long as clients do.
BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Timings:
    """The durations of the requests of one API, waiting included."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)  # each counts what is not in one before it
        self.seconds = 0.0

    @property
    def count(self) -> int:
        return sum(self.buckets)


class Metrics:
    """The counters of one server. They only grow, but for those that say "now"."""

    __slots__ = (
        "audit_dropped",
        "audit_events",
        "batches_in",
        "bytes_in",
        "bytes_out",
        "closed_idle",
        "connections",
        "connections_total",
        "delayed_fetches",
        "denials",
        "errors",
        "failed",
        "fetch_waits",
        "login_timeouts",
        "logins",
        "malformed",
        "queued_bytes",
        "records_in",
        "refused",
        "requests",
        "throttle_seconds",
        "throttled",
        "tls_handshakes",
        "unauthenticated_requests",
    )

    def __init__(self) -> None:
        self.connections = 0  # now
        self.connections_total = 0
        self.refused = 0  # beyond max.connections
        self.closed_idle = 0  # after connections.max.idle.ms
        self.malformed = 0  # what was no request
        self.failed = 0  # requests whose handler raised
        self.logins: dict[tuple[str, str], int] = {}  # by SASL mechanism and outcome
        self.tls_handshakes: dict[str, int] = {}  # by outcome
        self.login_timeouts = 0  # connections that did not log in in time
        self.unauthenticated_requests = 0  # before a login, or after it has expired
        self.denials: dict[tuple[str, str], int] = {}  # by operation and type of resource
        self.throttled: dict[tuple[str], int] = {}  # responses and connections, by the quota
        self.throttle_seconds: dict[tuple[str], float] = {}  # that clients were told to wait, by the quota
        self.audit_events = 0  # in the audit log
        self.audit_dropped = 0  # that are not in it
        self.bytes_in = 0
        self.bytes_out = 0
        self.batches_in = 0  # appended
        self.records_in = 0
        self.fetch_waits = 0  # fetches that had to wait for records
        self.delayed_fetches = 0  # fetches that wait for records, now
        self.queued_bytes = 0  # of requests that are being read or wait for their turn, now
        self.requests: dict[str, Timings] = {}  # by the name of the API
        self.errors: dict[tuple[str, int], int] = {}  # by the name of the API and Kafka's code

    def observe(self, api: str, seconds: float) -> None:
        """Count a request that was answered, or needed no answer, after so many seconds."""
        timings = self.requests.get(api)
        if timings is None:
            timings = self.requests[api] = Timings()
        timings.seconds += seconds
        timings.buckets[bisect_left(BOUNDS, seconds)] += 1

    def login(self, mechanism: str, outcome: str) -> None:
        """Count a login: "success" or "failure"."""
        key = mechanism, outcome
        self.logins[key] = self.logins.get(key, 0) + 1

    def tls_handshake(self, outcome: str) -> None:
        """Count a TLS handshake: "success", "failure" or "timeout"."""
        self.tls_handshakes[outcome] = self.tls_handshakes.get(outcome, 0) + 1

    def denial(self, operation: str, resource_type: str) -> None:
        """Count something that a client was not allowed to do."""
        key = operation, resource_type
        self.denials[key] = self.denials.get(key, 0) + 1

    def throttle(self, quota: str, seconds: float) -> None:
        """Count a client that has to wait so long."""
        key = (quota,)
        self.throttled[key] = self.throttled.get(key, 0) + 1
        self.throttle_seconds[key] = self.throttle_seconds.get(key, 0.0) + seconds

    def error(self, api: str, code: int) -> None:
        """Count an error in a response: of the whole request, or of a part of it."""
        key = api, code
        self.errors[key] = self.errors.get(key, 0) + 1
