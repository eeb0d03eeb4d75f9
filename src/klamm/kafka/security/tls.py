"""TLS of one connection: between the loop's transport and its channel, a transport to the one, a protocol to the other.

    loop ── ciphertext ──► TlsTransport ── requests ──► Channel
    loop ◄── ciphertext ── TlsTransport ◄── responses ── TlsResponseWriter

The channel is there from the beginning, so that connections in their handshake count as any other does. Ciphertext is
received into a buffer that all connections share. While the channel does not read, at most that much ciphertext waits
here; a response is encrypted in pieces of one TLS record, the next when the socket has taken the last. So a connection
holds, beside what OpenSSL has, about 100 KiB at most.

The handshake runs in a thread, step by step, for signing takes about a millisecond; the loop encrypts and decrypts. A
client has the loop for TURN_S at a time, however many records and requests it has sent, as one without TLS has. While
the socket does not take what is written, nothing is read: OpenSSL answers some messages by itself.

Promises
  TLS3  A connection that has not finished its handshake within connection.setup.timeout.ms is closed.
  TLS4  What comes before the handshake is done, or is not TLS, never reaches the channel.
  TLS5  A session that a client resumes lets it in no longer than its certificate is valid.
  TLS6  A client that sends records without requests has neither the loop nor memory for it.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import TYPE_CHECKING, Any

from klamm.kafka.response_writer import ResponseWriter
from klamm.kafka.security.principals import distinguished_name
from klamm.kafka.security.tls_records import TlsRecords

if TYPE_CHECKING:
    from klamm.kafka.channel import Channel
    from klamm.kafka.listener import Listener
    from klamm.kafka.security.certificates import Certificates
    from klamm.log.ranges import Range

__all__ = ["TlsResponseWriter", "TlsTransport"]

TURN_S = 0.001  # as in channel.py, for clients that send a request in each record

_RECORD = 16 * 1024
_BUFFER = memoryview(bytearray(2 * _RECORD))  # ciphertext, of all connections: it is copied before the loop goes on


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The TLS transport of one channel."""

    def __init__(self, channel: Channel, listener: Listener, certificates: Certificates) -> None:
        super().__init__()
        self._channel = channel
        self._listener = listener
        self._certificates = certificates
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = certificates.context(channel.endpoint.protocol)
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._records = TlsRecords()
        self._is_ready = False  # the handshake is done
        self._is_paused = False  # the channel does not read
        self._is_stuck = False  # the socket does not take what is written
        self._is_ended = False
        self._is_delivering = False
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None

    # ---- a protocol, to the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        limit_s = self._listener.broker.settings.connection_setup_timeout_ms / 1000
        self._timer = self._listener.broker.loop.call_later(limit_s, self._time_out)
        self._channel.connection_made(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._end()
        self._channel.connection_lost(error)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, count: int) -> None:
        if self._is_ended:
            return
        received = _BUFFER[:count]
        if not self._is_ready:
            self._incoming.write(self._records.take(received, count))
            self._shake_hands()
        elif self._is_stuck:
            self._records.keep(received)
            self._transport.pause_reading()
        else:
            self._incoming.write(self._records.take(received))
            self._deliver()

    def eof_received(self) -> bool:
        return self._channel.eof_received()

    def pause_writing(self) -> None:
        self._is_stuck = True
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        self._is_stuck = False
        self._channel.resume_writing()
        if not self._is_paused:
            self._read_on()

    # ---- the handshake

    def _shake_hands(self) -> None:
        """Continue the handshake, in a thread: signing takes about a millisecond. Nothing is read meanwhile."""
        self._transport.pause_reading()
        self._listener.broker.authenticate(self._step).add_done_callback(self._stepped)

    def _step(self) -> str | None:
        """Return what is wrong; None: more is needed; empty: the handshake is done. In a thread, which alone uses the
        SSL object until `_stepped`.
        """
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLError as error:
            return (error.reason or str(error)).lower().replace("_", " ")
        return ""

    def _stepped(self, done: asyncio.Future[str | None]) -> None:
        if self._is_ended or done.cancelled():
            return
        problem = done.result()
        if problem:
            self._fail(problem)
        elif problem is None:
            self._flush()
            self._transport.resume_reading()
        elif self._finish():
            self._transport.resume_reading()
            self._deliver()  # what came with the end of the handshake

    def _finish(self) -> bool:
        """Look at the certificate after the handshake; return whether the client may stay."""
        user = ""
        certificate, fields = self._ssl.getpeercert(binary_form=True), self._ssl.getpeercert()
        if certificate and fields:
            if ssl.cert_time_to_seconds(str(fields["notAfter"])) <= time.time():  # it was valid in an earlier session
                self._fail("the certificate of a resumed session has expired")
                return False
            name = distinguished_name(certificate)
            user = self._certificates.rules.apply(name) or ""
            if not user:
                self._fail(f"no rule of ssl.principal.mapping.rules fits {name[:200]!r}")
                return False
        self._is_ready = True
        self._stop_timer()
        self._listener.metrics.tls_handshake("success")
        self._flush()
        self._channel.session.certified(user)
        return True

    def _fail(self, why: str) -> None:
        """Send the client the alert, and close the connection."""
        self._listener.metrics.tls_handshake("failure")
        self._listener.broker.audit.authenticated(self._channel.session, "TLS", "", why)
        self._listener.log_connection_event(self._channel, f"connection closed: TLS handshake failed: {why}")
        self._flush()
        self._end()
        self._transport.close()

    def _time_out(self) -> None:
        self._listener.metrics.tls_handshake("timeout")
        self._channel.close("connection closed: no TLS handshake within connection.setup.timeout.ms")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._is_ended = True
        self._stop_timer()

    # ---- requests

    def _deliver(self) -> None:
        """Pass on to the channel what has come, as long as it reads, and for TURN_S."""
        if self._is_delivering:
            return
        self._is_delivering = True
        channel, now = self._channel, self._listener.now
        turn_ends = now() + TURN_S
        try:
            while not (self._is_paused or self._is_stuck or self._is_ended or channel.is_closed):
                buffer = channel.get_buffer(-1)
                try:
                    count: int = self._ssl.read(len(buffer), buffer)  # type: ignore[assignment]  # how many
                except ssl.SSLWantReadError:
                    self._flush()
                    if not self._records.has_more:
                        self._transport.resume_reading()
                        return
                    self._incoming.write(self._records.take())
                else:
                    if not count:
                        self._transport.close()
                        return
                    channel.buffer_updated(count)
                if now() >= turn_ends:
                    self._transport.pause_reading()
                    self._deliver_soon()
                    return
        except ssl.SSLZeroReturnError:
            self._transport.close()
        except ssl.SSLError as error:
            self._listener.metrics.malformed += 1
            channel.close(f"connection closed: TLS: {(error.reason or str(error)).lower().replace('_', ' ')}")
        finally:
            self._is_delivering = False

    def _read_on(self) -> None:
        """Pass on what is there, or receive more. Before the end of the handshake, `_stepped` does that: a thread may
        be using the SSL object.
        """
        if not self._is_ready:
            return
        if self._records.has_more or self._incoming.pending or self._ssl.pending():
            self._deliver_soon()
        else:
            self._transport.resume_reading()

    def _deliver_soon(self) -> None:
        """Deliver when other connections have had their turn."""
        self._listener.broker.loop.call_soon(self._deliver_later)

    def _deliver_later(self) -> None:
        if self._is_ready and not self._is_ended:
            self._deliver()

    def _flush(self) -> None:
        if self._outgoing.pending and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())

    # ---- a transport, to the channel

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def abort(self) -> None:
        self._end()
        self._transport.abort()

    def close(self) -> None:
        self._end()
        self._transport.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt, and leave it to the loop's transport, which calls `pause_writing` if the socket does not take it."""
        self._ssl.write(data)
        self._flush()

    def pause_reading(self) -> None:
        self._is_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        self._read_on()


class TlsResponseWriter(ResponseWriter):
    """Like ResponseWriter, but everything is encrypted: files are read in pieces, and no thread sends by itself."""

    __slots__ = ()

    @property
    def fd(self) -> int:
        return -1

    def _send_bytes(self, part: bytes | memoryview, flags: int) -> None:
        piece, rest = memoryview(part)[:_RECORD], memoryview(part)[_RECORD:]
        if rest:
            self._out.appendleft(rest)
        self._metrics.bytes_out += len(piece)
        self._transport.write(piece)

    def _send_range(self, part: Range) -> None:
        if part.position < self._cached_end or self._is_in_memory(part):
            self._leave_piece(part)
