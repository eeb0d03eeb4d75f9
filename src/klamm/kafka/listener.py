"""What the connections of a server share, and the connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from klamm.disk import files
from klamm.kafka.budget import Budget
from klamm.kafka.call import Honoured
from klamm.kafka.connection import Connection
from klamm.kafka.wire.structs import Struct

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker

__all__ = ["Listener"]

_BUFFER = 256 * 1024
_ROOM_STEP = 256 * 1024
_MOST_SPARE = 4
_LARGEST_SPARE = 2 * 1024 * 1024
_MOST_KEPT = 4096  # descriptors that connections leave to the store: half of them, but no more than that
_TOLD_PER_S = 20  # lines of the log about connections

_log = logging.getLogger("klamm.kafka")


class Listener:
    """Of one server, on its loop."""

    def __init__(self, broker: Broker, table: dict[int, Honoured], versions_refused: Callable[[], Struct]) -> None:
        self.broker = broker
        self.table = table
        self.versions_refused = versions_refused
        self.metrics = broker.metrics
        self.max_request = broker.settings.socket_request_max_bytes
        self.budget = Budget(broker.settings.queued_max_request_bytes)
        self.buffer = memoryview(bytearray(_BUFFER))
        """Where everybody receives. What has to stay is copied before the loop goes on."""
        self.connections: set[Connection] = set()
        self._most = broker.settings.max_connections
        self._why = "max.connections is that"
        open_files = files.most_open()
        if (most := open_files - min(open_files // 2, _MOST_KEPT)) < self._most:
            self._most = most
            self._why = f"of {open_files} open files (ulimit -n) the store needs the others"
        self.now = broker.loop.time
        self._spare: list[bytearray] = []
        self._tasks: set[asyncio.Future[Any]] = set()
        self._told = 0
        self._told_second = 0
        self._closing = False

    # ---- connections

    def admit(self, connection: Connection) -> bool:
        """A client has come; False if there are too many."""
        if self._closing or len(self.connections) >= self._most:
            self.metrics.refused += 1
            if not self._closing:
                self.tell(connection, f"refused: there are {self._most} connections, and {self._why}")
            return False
        self.connections.add(connection)
        self.metrics.connections_total += 1
        self.metrics.connections = len(self.connections)
        return True

    def gone(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.metrics.connections = len(self.connections)
        self.broker.parking.forget(connection)
        self.broker.coordinator.disconnected(connection, now_ms=self.broker.now_ms())

    def close_idle(self, since: float) -> None:
        """Those on which nothing has happened since then."""
        for connection in [each for each in self.connections if each.is_idle(since)]:
            self.metrics.closed_idle += 1
            connection.close()

    def tell(self, connection: Connection, what: str) -> None:
        """One line of the log; a flood of them is cut off."""
        second = int(self.now())
        if second != self._told_second:
            if self._told > _TOLD_PER_S:
                _log.warning("%d more lines about connections were left out", self._told - _TOLD_PER_S)
            self._told, self._told_second = 0, second
        self._told += 1
        if self._told <= _TOLD_PER_S:
            _log.warning("%r: %s", connection, what)

    # ---- what is under way

    def keep(self, task: asyncio.Future[Any]) -> None:
        """The loop itself only knows tasks weakly."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def begin_to_close(self) -> None:
        """Take no one else, and no further request."""
        self._closing = True

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def is_quiet(self) -> bool:
        """Whether no request is being handled or answered."""
        return not any(connection.is_busy for connection in self.connections)

    def close(self) -> None:
        for connection in list(self.connections):
            connection.close()
        for task in list(self._tasks):
            task.cancel()

    # ---- room for large requests

    def room(self, size: int) -> memoryview:
        if size < _ROOM_STEP // 2:
            return memoryview(bytearray(size))
        for at, spare in enumerate(self._spare):
            if len(spare) >= size:
                del self._spare[at]
                return memoryview(spare)[:size]
        return memoryview(bytearray(-(-size // _ROOM_STEP) * _ROOM_STEP))[:size]

    def reuse(self, room: memoryview) -> None:
        buffer = room.obj
        assert isinstance(buffer, bytearray)
        if len(self._spare) < _MOST_SPARE and _ROOM_STEP <= len(buffer) <= _LARGEST_SPARE:
            self._spare.append(buffer)
