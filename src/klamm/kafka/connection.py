"""One client: frames in, answers out.

A connection has one request at a time: the next one is looked at when the last one is answered and the answer is sent.
So answers are in the order of the requests, and a client that asks faster than it reads holds one answer, no more.

Reading. All connections share one receive buffer, so one that has nothing to say costs no memory. Requests that are
there whole are handled where they lie; the rest is kept: a large request in a buffer of its own, which grows as its
bytes arrive (never by what its first four bytes promise), from a budget that all connections share. While there is
something to do, nothing more is read. What was read behind it already counts in the budget; when that is used up,
little is read at a time.

Writing. Small answers go in one send. Records that lie in files go by `sendfile` (where the system has none, by a copy
through memory); if the socket is full, a piece is left to the transport, and the rest goes on when that is gone. So a
slow reader holds a piece, and a place in a file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from klamm.disk import _os
from klamm.kafka.addresses import plain
from klamm.kafka.answer_errors import errors_in
from klamm.kafka.call import LATER, Call, Put
from klamm.kafka.wire.errors import MalformedMessage, UnsupportedVersion
from klamm.kafka.wire.frames import SIZE_BYTES, RequestHeader, frame_size, read_request_header, response_frame
from klamm.kafka.wire.messages import API_VERSIONS
from klamm.kafka.wire.structs import Struct
from klamm.log.ranges import Range

if TYPE_CHECKING:
    from klamm.kafka.listener import Listener

__all__ = ["Connection"]

_FIRST_ROOM = 16 * 1024  # of a request that has come in part: little, for a size is only a promise
_GROWTH = 4  # then so many times what has come
_AHEAD = 16 * 1024  # read of the next requests, while there is something to do
_LITTLE = 1024  # read at a time, while there is no room for more
_TURN = 64  # requests in a row, then the loop sees to others
_PIECE = 16 * 1024  # of a file, when the socket is full: sent when there is room again, and the rest follows
_COPIED = 64 * 1024  # of a file, at a time, where the system has no sendfile
_MORE = getattr(socket, "MSG_MORE", 0)

_log = logging.getLogger("klamm.kafka")


if hasattr(os, "sendfile"):

    def _send_file(to: socket.socket, part: Range) -> int:
        """Send as much of the range as the socket takes, and return how many bytes that were."""
        return os.sendfile(to.fileno(), part.file.fd, part.position, part.size)

else:

    def _send_file(to: socket.socket, part: Range) -> int:
        """Like os.sendfile, for systems without it (Windows): copy through memory. The bytes were read before."""
        return to.send(_os.pread(part.file.fd, min(_COPIED, part.size), part.position))


class Connection(asyncio.BufferedProtocol):
    """Made by the listener for each client."""

    __slots__ = (
        "_call",
        "_filled",
        "_frame",
        "_frame_since",
        "_held",
        "_hushed",
        "_kept",
        "_listener",
        "_out",
        "_rest",
        "_size",
        "_socket",
        "_stuck",
        "_transport",
        "_yields",
        "active",
        "dialled",
        "is_closed",
        "peer_host",
        "peer_port",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport
        self._socket: socket.socket
        self._call: Call | None = None  # what is being handled
        self._rest: bytearray | None = None  # read, and not looked at yet
        self._frame: memoryview | None = None  # room for a request that has come in part
        self._filled = 0
        self._size = 0  # of the whole of it
        self._held = 0  # of the budget, for it
        self._kept = 0  # of the budget, for the call
        self._frame_since = 0.0
        self._hushed = False  # nothing is read
        self._out: deque[bytes | Range] = deque()  # of an answer: what is still to be sent
        self._stuck = False  # the transport has a piece that the socket did not take
        self._yields = False  # there is more to do, and others are let do theirs first
        self.is_closed = False
        self.active = 0.0
        """When something was last read or sent."""
        self.peer_host, self.peer_port = "", 0
        self.dialled = ("", 0)
        """The address of ours that the client dialled."""

    def __repr__(self) -> str:
        return f"{self.peer_host}:{self.peer_port}"

    # ---- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        given = transport.get_extra_info("socket")
        self.peer_host, self.peer_port = plain(transport.get_extra_info("peername"))
        self.dialled = plain(transport.get_extra_info("sockname"))
        self._socket = socket.socket(given.family, given.type, given.proto, fileno=given.fileno())
        self.active = self._listener.now()
        if not self._listener.admit(self):
            transport.abort()
            return
        given.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=0)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._socket.detach()  # the transport closes it
        frame, self._frame = self._frame, None
        self._drop_frame(frame)
        self._let_go()
        self._take_rest()
        self._out.clear()
        self._listener.gone(self)

    def close(self, why: str = "") -> None:
        """Now, whatever is under way."""
        if not self.is_closed:
            self.is_closed = True
            if why:
                self._listener.tell(self, why)
            self._transport.abort()

    def pause_writing(self) -> None:
        self._stuck = True

    def resume_writing(self) -> None:
        self._stuck = False
        self.active = self._listener.now()
        self._send_on()
        self._go_on()

    def eof_received(self) -> bool:
        return False

    # ---- in

    @property
    def is_busy(self) -> bool:
        """Whether a request is being handled, or its answer sent."""
        return self._call is not None or bool(self._out) or self._stuck or self._yields

    @property
    def is_parked(self) -> bool:
        """Whether it waits for its answer."""
        return self._call is not None

    def is_idle(self, since: float) -> bool:
        """Whether nothing has come or gone since then, and nothing is being done; or half a request is that old."""
        if self._frame is not None and self._frame_since < since:
            return True
        return self.active < since and self._call is None

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._filled :]
        buffer = self._listener.buffer
        if self._listener.budget.is_full:
            return buffer[:_LITTLE]
        return buffer[:_AHEAD] if self.is_busy else buffer

    def buffer_updated(self, count: int) -> None:
        listener = self._listener
        self.active = listener.now()
        listener.metrics.bytes_in += count
        if self._frame is not None:
            self._filled += count
            if self._filled == self._size:
                self._frame_is_there()
            elif self._filled == len(self._frame):
                self._make_room(self._frame)
            return
        data = listener.buffer[:count]
        if self._rest is not None or self.is_busy:
            self._put_rest(self._take_rest() + data)
            if self.is_busy:
                self._hush()
                return
            data = memoryview(self._take_rest())
        self._look_at(data)

    def _look_at(self, data: memoryview) -> None:
        """Handle the requests in there, one after the other, as long as each is answered at once."""
        position, end = 0, len(data)
        left = _TURN
        try:
            while end - position >= SIZE_BYTES:
                size = frame_size(data, position, limit=self._listener.max_request)
                start = position + SIZE_BYTES
                if end - start < size:
                    if not self.is_busy:
                        self._begin_frame(size, data[start:])
                        return
                    break
                self._handle(data[start : start + size])
                if self.is_closed:
                    return
                position = start + size
                if self.is_busy:
                    break
                left -= 1
                if not left:
                    self._yields = True
                    self._listener.broker.loop.call_soon(self._take_turn)
                    break
        except MalformedMessage as error:
            self._malformed(error)
            return
        if position < end:
            self._put_rest(bytearray(data[position:]))

    def _put_rest(self, rest: bytearray) -> None:
        self._rest = rest
        self._listener.budget.read_ahead(len(rest))

    def _take_rest(self) -> bytearray:
        rest, self._rest = self._rest, None
        if rest is None:
            return bytearray()
        self._listener.budget.read_ahead(-len(rest))
        return rest

    def _take_turn(self) -> None:
        self._yields = False
        self._go_on()

    def _begin_frame(self, size: int, data: memoryview) -> None:
        """A request that is not there yet gets a buffer of its own."""
        self._size = size
        self._filled = len(data)
        self._frame_since = self._listener.now()
        self._make_room(data)

    def _make_room(self, data: memoryview) -> None:
        """Have room for more than `data`, which has come so far; read nothing until there is."""
        listener = self._listener
        room = min(self._size, max(_FIRST_ROOM, _GROWTH * self._filled))
        if listener.budget.take(self, room - self._held, self._try_again):
            self._held = room
            before, self._frame = self._frame, listener.room(room)
            self._frame[: self._filled] = data[: self._filled]
            if before is not None:
                listener.reuse(before)
        else:
            if self._frame is None:
                self._frame = memoryview(bytearray(data))
            self._hush()

    def _try_again(self) -> None:
        if self._frame is not None and not self.is_closed:
            self._make_room(self._frame)
            if self._filled < len(self._frame):
                self._unhush()

    def _frame_is_there(self) -> None:
        frame = self._frame
        assert frame is not None
        self._frame = None
        try:
            self._handle(frame[: self._size])
        except MalformedMessage as error:
            self._malformed(error)
        finally:
            self._drop_frame(frame)

    def _drop_frame(self, frame: memoryview | None) -> None:
        if frame is not None:
            self._listener.reuse(frame)
            self._listener.budget.forget(self)
            held, self._held = self._held, 0
            self._listener.budget.give_back(self, held)

    def _hush(self) -> None:
        if not self._hushed:
            self._hushed = True
            self._transport.pause_reading()

    def _unhush(self) -> None:
        if self._hushed and not self.is_closed:
            self._hushed = False
            self._transport.resume_reading()

    def _go_on(self) -> None:
        """After an answer: the next request, which may be here already."""
        if self.is_busy or self.is_closed:
            return
        if self._rest is not None:
            self._look_at(memoryview(self._take_rest()))
        if not self.is_busy and not self.is_closed and (self._frame is None or self._filled < len(self._frame)):
            self._unhush()

    def _malformed(self, error: MalformedMessage) -> None:
        self._listener.metrics.malformed += 1
        self.close(f"closed, for it sent what is no request: {error.message}")

    # ---- requests

    def _handle(self, frame: memoryview) -> None:
        listener = self._listener
        if listener.is_closing:
            self.close()
            return
        try:
            header = read_request_header(frame)
            row = listener.table.get(header.api.key)
            if row is None or not row.min_version <= header.version <= row.max_version:
                key, version, correlation_id = header.api.key, header.version, header.correlation_id
                what = f"{header.api.name} v{version} is not honoured"
                raise UnsupportedVersion(what, key=key, version=version, correlation_id=correlation_id)
        except UnsupportedVersion as error:
            self._unsupported(error)
            return
        if not listener.broker.topics.is_fresh:
            self._call = self._called(header, self.keep(frame))
            self._begin_task(self._after_refresh(self._call))
            return
        self._call = self._called(header, frame)
        self._run(self._call)

    def _called(self, header: RequestHeader, frame: memoryview) -> Call:
        api, version, correlation_id, client_id, position = header
        request = api.request.decode(frame, version, position)
        return Call(self, api, version, correlation_id, client_id, request, self.active)

    def _unsupported(self, error: UnsupportedVersion) -> None:
        """Who asks for ApiVersions in a version of the future is told which ones there are; others know already."""
        if error.key == API_VERSIONS.key:
            response = self._listener.versions_refused()
            self._send(response_frame(API_VERSIONS, 0, error.correlation_id, response))
        else:
            self.close(f"closed, for {error.message}")

    def _run(self, call: Call) -> None:
        listener = self._listener
        try:
            answer = listener.table[call.api.key].handler(listener.broker, call)
            if answer is LATER:
                return
            if isinstance(answer, Coroutine):
                self._begin_task(self._finish(call, answer))
            else:
                self._answer(call, answer)
        except Exception:  # noqa: BLE001  # logged, and the connection closed: the others go on
            self.failed(call)

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._listener.keep(asyncio.ensure_future(work))

    async def _after_refresh(self, call: Call) -> None:
        """The catalog has changed: look first, then handle the request."""
        try:
            await self._listener.broker.topics.refresh()
        except Exception:  # noqa: BLE001  # as below
            self.failed(call)
            return
        self._run(call)
        self._go_on()

    async def _finish(self, call: Call, answer: Coroutine[Any, Any, Put]) -> None:
        try:
            response = await answer
            if response is not LATER:
                self.reply(call, response)
        except Exception:  # noqa: BLE001  # as above
            self.failed(call)

    def failed(self, call: Call) -> None:
        """See Call."""
        self._listener.metrics.failed += 1
        _log.exception("%r: %s v%d failed; the connection is closed", self, call.api.name, call.version)
        self._call = None
        self.close()

    def keep(self, view: memoryview) -> memoryview:
        """See Call."""
        moved = min(len(view), self._held)  # of a large request: what was for its buffer is for the copy
        self._held -= moved
        self._listener.budget.charge(len(view) - moved)
        self._kept += len(view)
        return memoryview(bytearray(view))

    # ---- out

    def reply(self, call: Call, response: Struct | None) -> None:
        """Answer what was put off."""
        if self.is_closed or self._call is not call:
            return
        self._answer(call, response)
        self._go_on()

    def _answer(self, call: Call, response: Struct | None) -> None:
        self._call = None
        if self._kept:
            self._let_go()
        now = self._listener.now()
        self._listener.metrics.observe(call.api.name, now - call.started)
        if response is not None:
            self.active = now
            for code in errors_in(call.api, response):
                self._listener.metrics.error(call.api.name, code)
            self._send(response_frame(call.api, call.version, call.correlation_id, response))

    def _let_go(self) -> None:
        kept, self._kept = self._kept, 0
        self._listener.budget.give_back(None, kept)

    def _send(self, parts: list[Any]) -> None:
        """Bytes between files are sent together."""
        if len(parts) > 1:
            joined: list[bytes | Range] = []
            run: list[Any] = []
            for part in parts:
                if type(part) is Range:
                    if run:
                        joined.append(b"".join(run))
                        run = []
                    joined.append(part)
                elif part:
                    run.append(part)
            if run:
                joined.append(b"".join(run))
            parts = joined
        self._out.extend(parts)
        self._send_on()

    def _send_on(self) -> None:
        out = self._out
        try:
            while out and not self._stuck and not self.is_closed:
                part = out[0]
                if isinstance(part, Range):
                    self._send_range(part)
                else:
                    out.popleft()
                    self._send_bytes(part, _MORE if out else 0)
        except OSError:
            self.close()

    def _send_bytes(self, part: bytes, flags: int) -> None:
        try:
            sent = self._socket.send(part, flags)
        except BlockingIOError:
            sent = 0
        self._listener.metrics.bytes_out += len(part)
        if sent < len(part):
            self._transport.write(memoryview(part)[sent:])

    def _send_range(self, part: Range) -> None:
        try:
            sent = _send_file(self._socket, part)
        except BlockingIOError:
            self._leave_piece(part)
            return
        if sent == 0:
            self.close("closed, for a file of the log is shorter than it was")
            return
        self._listener.metrics.bytes_out += sent
        part.advance(sent)
        if part.size:
            self._leave_piece(part)
        else:
            self._out.popleft()

    def _leave_piece(self, part: Range) -> None:
        """The socket is full: the transport sends a piece when it can, and tells when it has."""
        piece = _os.pread(part.file.fd, min(_PIECE, part.size), part.position)
        if not piece:
            self.close("closed, for a file of the log is shorter than it was")
            return
        self._listener.metrics.bytes_out += len(piece)
        part.advance(len(piece))
        if not part.size:
            self._out.popleft()
        self._transport.write(piece)
