"""The bytes of one connection, in and out, and back-pressure.

A channel hands whole requests to its session (session.py) and sends responses. It hands over one request at a time: the
next when the response to the last one is sent. So responses are in the order of the requests, and a client that asks
faster than it reads holds one response, no more. While a request is handled, no more than a little is received.

A client that sends many requests at once has the loop for TURN_S at a time; then other connections have their turn.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from klamm.kafka.addresses import plain
from klamm.kafka.frame_reader import FrameReader
from klamm.kafka.response_writer import ResponseWriter
from klamm.kafka.security.tls import TlsResponseWriter
from klamm.kafka.session import Session
from klamm.kafka.wire.errors import MalformedMessage

if TYPE_CHECKING:
    from klamm.kafka.listener import Listener
    from klamm.kafka.security.endpoints import Endpoint

__all__ = ["Channel"]

TURN_S = 0.001


class Channel(asyncio.BufferedProtocol):
    """Made by the listener for each connection."""

    __slots__ = ("_is_paused", "_is_serving", "_listener", "_transport", "_yields", "active", "endpoint", "is_closed",
                 "reader", "session", "writer")  # fmt: skip

    writer: ResponseWriter
    session: Session
    _transport: asyncio.Transport

    def __init__(self, listener: Listener, endpoint: Endpoint) -> None:
        self._listener = listener
        self.endpoint = endpoint
        """Where the client has connected to, and what it has to bring."""
        self.reader = FrameReader(listener, self._resume_reading)
        self._is_paused = False  # nothing is received
        self._is_serving = False  # in `_serve`
        self._yields = False  # more requests were received; other connections have their turn first
        self.is_closed = False
        self.active = 0.0
        """When something was last received or sent."""

    def __repr__(self) -> str:
        return repr(self.session)

    # ---- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        listener = self._listener
        self._transport = transport
        given = transport.get_extra_info("socket")
        make_writer = TlsResponseWriter if self.endpoint.uses_tls else ResponseWriter
        self.writer = make_writer(transport, given, listener, self.close, self.resume_writing)
        peer, local_address = (plain(transport.get_extra_info(name)) for name in ("peername", "sockname"))
        self.session = Session(self, listener, peer, local_address)
        self.active = listener.now()
        if not listener.admit(self):
            transport.abort()
            return
        given.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        given.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        transport.set_write_buffer_limits(high=0)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self.writer.close()
        self.reader.close()
        self.session.close()
        self._listener.gone(self)

    def close(self, why: str = "") -> None:
        """Close the connection at once; log `why`."""
        if not self.is_closed:
            self.is_closed = self.writer.is_closed = True
            if why:
                self._listener.log_connection_event(self, why)
            self._transport.abort()

    def pause_writing(self) -> None:
        self.writer.pause()

    def resume_writing(self) -> None:
        self.active = self._listener.now()
        self.writer.resume()
        self.go_on()

    def eof_received(self) -> bool:
        return False

    # ---- in

    @property
    def is_busy(self) -> bool:
        """Whether a request is being handled, or its response sent."""
        return self.session.call is not None or self._yields or self.writer.is_busy

    def is_idle(self, since: float) -> bool:
        """Return whether nothing was received or sent since then, or a partial request is older than that. As in Kafka
        (tests/interop/test_idle_connections.py), a request that waits does not count: its client may be dead.
        """
        return self.active < since or (self.reader.has_partial and self.reader.partial_since < since)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self.session.reply is not None:
            self.session.want_reply()
        return self.reader.buffer(self.is_busy)

    def buffer_updated(self, count: int) -> None:
        listener = self._listener
        self.active = now = listener.now()
        listener.metrics.bytes_in += count
        is_busy = self.is_busy
        self.reader.received(count, is_busy)
        if is_busy:
            self._pause_reading()
        else:
            self._serve(now + TURN_S)

    def _serve(self, turn_ends: float) -> None:
        """Hand complete requests to the session, in order; stop at the first whose response is not sent at once."""
        reader, session = self.reader, self.session
        self._is_serving = True
        try:
            while (frame := reader.next_frame()) is not None:
                session.handle(frame)
                if self.is_closed:
                    return
                reader.release()
                if reader.is_empty or self.is_busy:
                    break
                if self._listener.now() >= turn_ends:
                    self._yields = True
                    self._listener.broker.loop.call_soon(self._take_turn)
                    break
        except MalformedMessage as error:
            self.reject(error)
        finally:
            self._is_serving = False
            reader.stash()
        if reader.is_blocked:
            self._pause_reading()

    def reject(self, error: MalformedMessage) -> None:
        """Close the connection: the bytes are not a request."""
        self._listener.metrics.malformed += 1
        self.close(f"connection closed: malformed request: {error.message}")

    def _take_turn(self) -> None:
        self._yields = False
        self.go_on()

    def go_on(self) -> None:
        """After a response: handle the next request, which may be here already, or receive it."""
        if self._is_serving or self.is_busy or self.is_closed:
            return
        if not self.reader.is_empty:
            self._serve(self._listener.now() + TURN_S)
            if self.is_busy or self.reader.is_blocked:
                return
        self._resume_reading()

    def _pause_reading(self) -> None:
        if not self._is_paused and not self.is_closed:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_paused and not self.is_closed:
            self._is_paused = False
            self._transport.resume_reading()

    # ---- out

    @property
    def fd(self) -> int:
        """The descriptor to which a thread may send the next response, while the channel is open; -1: none."""
        return self.writer.fd

    def sent(self, count: int) -> None:
        """A thread has sent so many bytes of a response."""
        self._listener.metrics.bytes_out += count

    def send(self, parts: list[Any], max_bytes: int) -> None:
        """Send the parts of a response of which up to `max_bytes` may lie in memory."""
        self.active = self._listener.now()
        self.writer.send(parts, max_bytes)
