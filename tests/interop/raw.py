"""Kafka's protocol by hand: one connection, one request after the other, in any version, with any bytes."""

from __future__ import annotations

import itertools
import socket
from types import TracebackType
from typing import Any, Self

from klamm.kafka.wire.codec import Api
from klamm.kafka.wire.frames import read_response, request_frame
from klamm.kafka.wire.messages import CREATE_TOPICS, LIST_OFFSETS, METADATA
from klamm.kafka.wire.structs import Struct
from tests.procs import until

__all__ = ["ConnectionEnded", "Raw"]


class ConnectionEnded(Exception):
    """The broker has closed the connection instead of answering."""


class Raw:
    """A connection to `host:port`."""

    def __init__(self, address: str, client_id: str | None = "raw", patience: float = 30) -> None:
        host, port = address.rsplit(":", 1)
        self.address = address
        self.client_id = client_id
        self._socket = socket.create_connection((host, int(port)), timeout=patience)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(self, api: Api, version: int, **fields: Any) -> Struct:
        """Send a request and wait for its answer."""
        number = self.send(api, version, **fields)
        answered, response = read_response(api, version, self.receive())
        assert answered == number, f"request {number} was answered by {answered}"
        return response

    def send(self, api: Api, version: int, **fields: Any) -> int:
        """Send a request, and do not wait."""
        number = next(self._numbers)
        self.send_bytes(b"".join(request_frame(api, version, number, self.client_id, api.request(**fields))))
        return number

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> bytes:
        """The next frame, without its size."""
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                more = self._socket.recv(size - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                raise ConnectionEnded
            data += more
        return data

    def create(self, topic: str, partitions: int = 1, **configs: str) -> str:
        """A topic that all can see when this returns; settings with _ for the dots."""
        new = CREATE_TOPICS.request.Topic(
            name=topic,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                CREATE_TOPICS.request.Config(name=name.replace("_", "."), value=value)
                for name, value in configs.items()
            ],
        )
        (made,) = self.ask(CREATE_TOPICS, 7, topics=[new], timeout_ms=30_000, validate_only=False).topics
        assert made.error_code == 0, made
        until(lambda: self.leads(topic, partitions), f"{topic} is there")
        return topic

    def leads(self, topic: str, partitions: int) -> bool:
        asked = [METADATA.request.Topic(name=topic)]
        (seen,) = self.ask(METADATA, 12, topics=asked, allow_auto_topic_creation=False).topics
        if seen.error_code or sum(each.leader_id >= 0 for each in seen.partitions) != partitions:
            return False
        # A broker may know of a topic before it serves it.
        parts = [LIST_OFFSETS.request.Partition(partition_index=n, timestamp=-1) for n in range(partitions)]
        listed = [LIST_OFFSETS.request.Topic(name=topic, partitions=parts)]
        (found,) = self.ask(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=listed).topics
        return all(each.error_code == 0 for each in found.partitions)
