"""A proxy that knows what passes through it: which requests, in which versions, and when.

Whatever tells a client where brokers are (Metadata, FindCoordinator) is rewritten, so that clients stay with the proxy.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from types import TracebackType
from typing import NamedTuple, Self

from klamm.kafka.wire.codec import Api
from klamm.kafka.wire.frames import read_response, response_frame
from klamm.kafka.wire.messages import APIS, DESCRIBE_CLUSTER, FIND_COORDINATOR, METADATA

__all__ = ["Proxy", "Seen"]


class Seen(NamedTuple):
    """A request that passed."""

    at: float
    key: int
    version: int


class Proxy:
    """Listens on `address` and passes everything on to the broker at `target`."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._door.getsockname()[1])
        self.address = f"127.0.0.1:{self.port}"
        self.seen: list[Seen] = []
        self.muted: set[int] = set()  # keys of APIs whose responses are dropped
        self.held: set[int] = set()  # keys of APIs whose responses wait for `release`, and are overtaken
        self._waiting: list[tuple[socket.socket, bytes]] = []
        self._lock = threading.Lock()  # of both
        self.refuses = False  # new connections are closed at once
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A thread in accept() or recv() wakes up when its socket is shut down, not when it is closed.
        for each in [self._door, *self._sockets]:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in list(self._threads):
            thread.join(30)
        for each in [self._door, *self._sockets]:
            each.close()

    def cut(self, *, refuse: bool = False) -> None:
        """Close all connections; `refuse` those that follow, until `refuses` is False again."""
        self.refuses = refuse
        for each in self._sockets:
            _end(each)

    @property
    def holds(self) -> int:
        """How many responses wait for `release`."""
        return len(self._waiting)

    def release(self) -> None:
        """Pass on the responses that were held, and hold none any more."""
        with self._lock:
            self.held.clear()
            waiting, self._waiting = self._waiting, []
        for client, frame in waiting:
            _send(client, frame)

    def of(self, api: Api) -> list[Seen]:
        """The requests for one API, oldest first."""
        return [each for each in self.seen if each.key == api.key]

    def count(self) -> Counter[str]:
        return Counter(APIS[each.key].name if each.key in APIS else str(each.key) for each in self.seen)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            if self.refuses:
                client.close()
                continue
            try:
                broker = socket.create_connection(self._target, timeout=30)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            for each in (client, broker):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, broker]
            pending: dict[int, tuple[int, int]] = {}
            for pump in (self._requests, self._responses):
                thread = threading.Thread(target=pump, args=(client, broker, pending), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _requests(self, client: socket.socket, broker: socket.socket, pending: dict[int, tuple[int, int]]) -> None:
        while (frame := _frame(client)) is not None:
            key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
            pending[int.from_bytes(frame[4:8], "big")] = (key, version)
            self.seen.append(Seen(time.monotonic(), key, version))
            if not _send(broker, frame):
                break
        _end(broker)

    def _responses(self, client: socket.socket, broker: socket.socket, pending: dict[int, tuple[int, int]]) -> None:
        while (frame := _frame(broker)) is not None:
            key, version = pending.pop(int.from_bytes(frame[:4], "big"), (-1, 0))
            if key in (METADATA.key, FIND_COORDINATOR.key, DESCRIBE_CLUSTER.key):
                frame = self._rewritten(APIS[key], version, frame)
            if key in self.muted:
                continue
            with self._lock:
                if key in self.held:
                    self._waiting.append((client, frame))
                    continue
            if not _send(client, frame):
                break
        _end(client)

    def _rewritten(self, api: Api, version: int, frame: bytes) -> bytes:
        number, response = read_response(api, version, frame)
        where = [response, *response.coordinators] if api is FIND_COORDINATOR else response.brokers
        for each in where:
            if each.port > 0:
                each.host, each.port = "127.0.0.1", self.port
        return b"".join(response_frame(api, version, number, response))[4:]


def _frame(source: socket.socket) -> bytes | None:
    size = _exactly(source, 4)
    return None if size is None else _exactly(source, int.from_bytes(size, "big"))


def _exactly(source: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            more = source.recv(min(size - len(data), 1 << 16))
        except OSError:
            return None
        if not more:
            return None
        data += more
    return bytes(data)


def _send(target: socket.socket, frame: bytes) -> bool:
    try:
        target.sendall(len(frame).to_bytes(4, "big") + frame)
    except OSError:
        return False
    return True


def _end(target: socket.socket) -> None:
    try:
        target.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
