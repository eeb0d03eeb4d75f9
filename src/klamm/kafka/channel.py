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

    __slots__ = ("_is_at_end", "_is_paused", "_is_serving", "_listener", "_muted", "_transport", "_yields", "active",
                 "endpoint", "is_closed", "reader", "session", "writer")  # fmt: skip

    writer: ResponseWriter
    session: Session
    _transport: asyncio.Transport

    def __init__(self, listener: Listener, endpoint: Endpoint) -> None:
        self._listener = listener
        self.endpoint = endpoint
        """Where the client has connected to, and what it has to bring."""
        self.reader = FrameReader(listener, self._resume_reading)
        self._is_at_end = False  # the client sends no more, and gets the rest of a response
        self._is_paused = False  # nothing is received
        self._is_serving = False  # in `_serve`
        self._muted: asyncio.TimerHandle | None = None  # the client is throttled until then
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
        self.writer = make_writer(transport, given, listener, self.close, self._send_on)
        peer, local_address = (plain(transport.get_extra_info(name)) for name in ("peername", "sockname"))
        self.session = Session(self, listener, peer, local_address)
        self.active = listener.now()
        delay_s = listener.admit(self)
        if delay_s is not None:
            self._refuse(delay_s)
            return
        given.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        given.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        transport.set_write_buffer_limits(high=0)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._stop_waiting()
        self.writer.close()
        self.reader.close()
        self.session.close()
        self._listener.on_disconnect(self)

    def close(self, why: str = "") -> None:
        """Close the connection at once; log `why`."""
        if not self.is_closed:
            self.is_closed = self.writer.is_closed = True
            if why:
                self._listener.log_connection_event(self, why)
            self._transport.abort()

    def _refuse(self, delay_s: float) -> None:
        """Close the connection, which is not admitted, so much later. Nothing is read of it."""
        if delay_s:
            self._pause_reading()
            self._muted = self._listener.broker.loop.call_later(delay_s, self._transport.abort)
        else:
            self._transport.abort()

    def pause_writing(self) -> None:
        self.writer.pause()

    def resume_writing(self) -> None:
        self.writer.resume()
        self._send_on()

    def _send_on(self) -> None:
        """Send the rest of a response; then handle the next request."""
        self.active = self._listener.now()
        self.writer.send_on()
        self.go_on()
        if self._is_at_end and not self.writer.is_busy:
            self._transport.close()

    def eof_received(self) -> bool:
        """Return whether to keep the connection open, though the client sends no more: for the rest of a response.

        A transport that is closed takes no more bytes (asyncio, from Python 3.12 on).
        """
        self._is_at_end = self.writer.is_busy
        return self._is_at_end

    # ---- in

    @property
    def is_busy(self) -> bool:
        """Whether the next request has to wait: one is being handled, its response sent, or the client throttled."""
        return self.session.call is not None or self._yields or self._muted is not None or self.writer.is_busy

    @property
    def has_request(self) -> bool:
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
        if not is_busy and not listener.broker.quotas.is_active:
            frame = self.reader.only_frame(count)
            if frame is not None:
                self._serve_only(frame)
                return
        self.reader.received(count, is_busy)
        if is_busy:
            self._pause_reading()
        else:
            self._serve(now + TURN_S)

    def _serve_only(self, frame: memoryview) -> None:
        """Hand a request to the session with which nothing else was received."""
        self._is_serving = True
        try:
            self.session.handle(frame)
        except MalformedMessage as error:
            self.reject(error)
        finally:
            self._is_serving = False

    def _serve(self, turn_ends: float) -> None:
        """Hand complete requests to the session, in order; stop at the first whose response is not sent at once."""
        reader, session, quotas = self.reader, self.session, self._listener.broker.quotas
        self._is_serving = True
        try:
            while (frame := reader.next_frame()) is not None:
                if quotas.is_active:
                    if wait_s := session.debt(frame):
                        reader.put_back(frame)
                        self._hold(wait_s)
                        break
                    session.handle_metered(frame)
                else:
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
        """Handle the next request after a response: it may be here already, or must be received."""
        if self._is_serving or self.is_busy or self.is_closed:
            return
        if not self.reader.is_empty:
            self._serve(self._listener.now() + TURN_S)
            if self.is_busy or self.reader.is_blocked:
                return
        if self._is_paused:
            self._resume_reading()

    def mute(self, wait_s: float) -> None:
        """Read nothing for so long: the client is throttled (KIP-219)."""
        if not self.is_closed:
            self._stop_waiting()
            self._muted = self._listener.broker.loop.call_later(wait_s, self._unmute)
            self._pause_reading()

    def _hold(self, wait_s: float) -> None:
        """Handle nothing for so long. A little is received, so that a client that leaves meanwhile is seen to: what it
        has sent is forgotten then, and it may send it again elsewhere.
        """
        self._muted = self._listener.broker.loop.call_later(wait_s, self._unmute)

    def _unmute(self) -> None:
        self._muted = None
        self.go_on()

    def _stop_waiting(self) -> None:
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None

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
        """The descriptor to which a thread may send the response to the request that is being handled, while the
        channel is open; -1: none. The loop is not woken then, and finds out when the client sends more. So nothing may
        be left of what was received, and what comes next has to be received.
        """
        return -1 if self._is_paused or self.reader.has_more else self.writer.fd

    def sent(self, count: int) -> None:
        """Count bytes of a response that a thread has sent."""
        self._listener.metrics.bytes_out += count

    def send(self, parts: list[Any], max_bytes: int) -> None:
        """Send the parts of a response of which up to `max_bytes` may lie in memory."""
        self.active = self._listener.now()
        self.writer.send(parts, max_bytes)
