"""The set of connections, and what they share: receive buffer, memory budget, limits."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from klamm.disk import files
from klamm.kafka.admission import Admission
from klamm.kafka.budget import Budget
from klamm.kafka.channel import Channel
from klamm.kafka.limited_log import LimitedLog
from klamm.kafka.quotas import BURST_S
from klamm.kafka.unread import Unread
from klamm.store.quotas import CONNECTION_CREATION_RATE

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker

__all__ = ["Listener"]

_BUFFER = 256 * 1024
_ROOM_STEP = 256 * 1024
_MOST_SPARE = 4
_LARGEST_SPARE = 2 * 1024 * 1024
_MAX_RESERVED = 4096  # descriptors that connections leave to the store: half of them, but no more than that

_log = logging.getLogger("klamm.kafka")


class Listener:
    """The connections of one server, on its loop."""

    def __init__(self, broker: Broker, admission: Admission) -> None:
        self.broker = broker
        self.admission = admission
        self.metrics = broker.metrics
        self.request_log = broker.request_log
        self.max_request = broker.settings.socket_request_max_bytes
        self.max_control_request = broker.settings.control_request_max_bytes
        self.max_response = broker.settings.socket_response_max_bytes
        self.unread_bytes = Unread(broker.settings.queued_max_response_bytes, "queued.max.response.bytes")
        self.unread_ranges = Unread(broker.max_open_ranges, "max.open.ranges")
        self.budget = Budget(broker.settings.queued_max_request_bytes)
        self.buffer = memoryview(bytearray(_BUFFER))
        """Where everybody receives. What has to stay is copied before the loop goes on."""
        self.connections: set[Channel] = set()
        self._delayed: set[Channel] = set()  # not admitted, and closed late
        self._most = broker.settings.max_connections
        self._why = "max.connections"
        open_files = files.most_open()
        if (most := open_files - min(open_files // 2, _MAX_RESERVED)) < self._most:
            self._most = most
            self._why = f"of {open_files} open files (ulimit -n) the store needs the others"
        self.now = broker.loop.time
        self._spare: list[bytearray] = []
        self._log = LimitedLog(_log, "connections", self.now)
        self.failures = LimitedLog(_log, "requests that failed", self.now)
        """For what is an error of ours, and could be had by the same request again."""
        self._per_ip: Counter[str] = Counter()
        self._most_per_ip = broker.settings.max_connections_per_ip
        self.is_closing = False

    # ---- connections

    def admit(self, connection: Channel) -> float | None:
        """Admit a client. If it is one too many, return after how many seconds to close the connection."""
        if self.is_closing or len(self.connections) + len(self._delayed) >= self._most:
            self.metrics.refused += 1
            if not self.is_closing:
                self.log_connection_event(
                    connection, f"connection rejected: limit of {self._most} connections reached ({self._why})"
                )
            return 0.0
        host = connection.session.peer_host
        if self._per_ip[host] >= self._most_per_ip:
            self.metrics.refused += 1
            self.log_connection_event(
                connection, f"connection rejected: limit of {self._most_per_ip} connections of an address reached"
            )
            return 0.0
        quotas = self.broker.quotas
        wait_s = quotas.connect(host, self.now()) if quotas.limits_connections else 0.0
        if wait_s:
            self.metrics.refused += 1
            self.metrics.throttle(CONNECTION_CREATION_RATE, wait_s)
            self.log_connection_event(connection, f"connection rejected: quota {CONNECTION_CREATION_RATE} exceeded")
            if len(self._delayed) >= self._most // 10:  # they take the place of others
                return 0.0
            self._delayed.add(connection)
            return min(wait_s, BURST_S)
        self._per_ip[host] += 1
        self.connections.add(connection)
        self.metrics.connections_total += 1
        self.metrics.connections = len(self.connections)
        return None

    def on_disconnect(self, connection: Channel) -> None:
        self._delayed.discard(connection)
        if connection in self.connections:
            self.connections.discard(connection)
            host = connection.session.peer_host
            self._per_ip[host] -= 1
            if not self._per_ip[host]:
                del self._per_ip[host]
        self.metrics.connections = len(self.connections)
        if self.request_log is not None:
            self.request_log.forget(connection.session)
        self.broker.purgatory.forget(connection.session)
        self.broker.fetch_sessions.close(connection.session)
        self.broker.group_coordinator.disconnected(connection.session, now_ms=self.broker.now_ms())

    def close_idle(self, since: float) -> None:
        """Close the connections on which nothing has happened since then."""
        for connection in [each for each in self.connections if each.is_idle(since)]:
            self.metrics.closed_idle += 1
            connection.close()

    def log_connection_event(self, connection: Channel, what: str) -> None:
        """Write one line to the log; a flood of them is cut off."""
        self._log.warning("%r: %s", connection, what)

    # ---- what is under way

    def begin_to_close(self) -> None:
        """Take no one else, and no further request."""
        self.is_closing = True

    @property
    def is_quiet(self) -> bool:
        """Whether no request is being handled or answered."""
        self.broker.sync_queue.look()
        return not any(connection.has_request for connection in self.connections)

    def close(self) -> None:
        for connection in [*self.connections, *self._delayed]:
            connection.close()
        self.broker.tasks.cancel_all()

    # ---- room for large requests

    def receive_buffer(self, size: int) -> memoryview:
        if size < _ROOM_STEP // 2:
            return memoryview(bytearray(size))
        for at, spare in enumerate(self._spare):
            if len(spare) >= size:
                del self._spare[at]
                return memoryview(spare)[:size]
        return memoryview(bytearray(-(-size // _ROOM_STEP) * _ROOM_STEP))[:size]

    def reuse(self, room: memoryview) -> None:
        buffer = room.obj
        if (
            isinstance(buffer, bytearray)
            and len(self._spare) < _MOST_SPARE
            and _ROOM_STEP <= len(buffer) <= _LARGEST_SPARE
        ):
            self._spare.append(buffer)
