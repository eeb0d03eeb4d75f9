"""A channel whose bytes come from a test, not from the loop: for frames by the hundred thousand."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from klamm.kafka.channel import Channel
from klamm.kafka.listener import Listener
from klamm.kafka.security.endpoints import Endpoint

__all__ = ["MemoryChannel"]


class _Transport(asyncio.Transport):
    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._channel = channel
        self._loop = loop
        with socket.create_server(("127.0.0.1", 0)) as door:  # a real pair: responses are sent by sendfile
            self.theirs = socket.create_connection(door.getsockname())
            self.ours, _ = door.accept()
        for each in (self.ours, self.theirs):
            each.setblocking(False)
        self.is_over = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self.ours, "peername": ("127.0.0.1", 7), "sockname": ("127.0.0.1", 9092)}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_over

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def write(self, data: Any) -> None:
        """The socket is full: nobody reads so much of it."""
        self.abort()

    def abort(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._loop.call_soon(self._lost)

    close = abort

    def _lost(self) -> None:
        self._channel.connection_lost(None)
        self.ours.close()
        self.theirs.close()


class MemoryChannel:
    """One connection. On the loop of the server."""

    def __init__(self, listener: Listener, endpoint: Endpoint) -> None:
        self.channel = Channel(listener, endpoint)
        self._transport = _Transport(self.channel, listener.broker.loop)
        self.channel.connection_made(self._transport)

    @property
    def is_closed(self) -> bool:
        return self.channel.is_closed or self._transport.is_over

    def log_in(self, user: str) -> None:
        """As if the client had sent its password."""
        login = self.channel.session.login
        assert login is not None
        login.choose("SCRAM-SHA-256")
        login._finish(user)
        self.channel.session.logged_in()

    def receive(self, data: bytes) -> None:
        """The client has sent that; what does not fit at once comes as soon as there is space."""
        view = memoryview(data)
        while view and not self.is_closed:
            buffer = self.channel.get_buffer(-1)
            count = min(len(buffer), len(view))
            if not count:
                self.close()
                return
            buffer[:count] = view[:count]
            self.channel.buffer_updated(count)
            view = view[count:]

    def drain(self) -> int:
        """Read what was sent to the client, and return how much."""
        count = 0
        try:
            while not self.is_closed and (data := self._transport.theirs.recv(1 << 16)):
                count += len(data)
        except OSError:
            pass
        return count

    def close(self) -> None:
        self._transport.abort()
