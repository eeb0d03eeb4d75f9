"""Responses into the socket of one connection.

Small responses go in one send. Records that lie in files go by `sendfile` (where the system has none, by a copy through
memory). If the socket is full, a piece is left to the transport, and the rest goes on when that is gone. So a slow
reader holds a piece, and a position in a file. What it holds is counted until it has read all (unread.py).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from klamm.disk import _os
from klamm.log.ranges import Range

if TYPE_CHECKING:
    from klamm.kafka.listener import Listener

__all__ = ["ResponseWriter"]

_PIECE = 16 * 1024  # of a file, when the socket is full: sent when there is space again, and the rest follows
_COPIED = 64 * 1024  # of a file, at a time, where the system has no sendfile
_MORE = getattr(socket, "MSG_MORE", 0)
_SHORTER = "connection closed: a file of the log is shorter than it was"


if hasattr(os, "sendfile"):

    def _send_file(to: socket.socket, part: Range) -> int:
        """Send as much of the range as the socket takes, and return how many bytes that were."""
        return os.sendfile(to.fileno(), part.file.fd, part.position, part.size)

else:

    def _send_file(to: socket.socket, part: Range) -> int:
        """Like os.sendfile, for systems without it (Windows): copy through memory. The bytes were read before."""
        return to.send(_os.pread(part.file.fd, min(_COPIED, part.size), part.position))


class ResponseWriter:
    """Of one channel. `close` is called with the reason when it cannot go on."""

    __slots__ = ("_close", "_is_stuck", "_listener", "_metrics", "_out", "_socket", "_transport", "is_closed")

    def __init__(
        self, transport: asyncio.Transport, given: socket.socket, listener: Listener, close: Callable[[str], None]
    ) -> None:
        self._transport = transport
        self._socket = socket.socket(given.family, given.type, given.proto, fileno=given.fileno())
        self._metrics = listener.metrics
        self._listener = listener
        self._close = close
        self._out: deque[bytes | Range] = deque()  # of a response: what is still to be sent
        self._is_stuck = False  # the transport has a piece that the socket did not take
        self.is_closed = False

    @property
    def is_busy(self) -> bool:
        """Whether a part of a response is still to be sent."""
        return self._is_stuck or bool(self._out)

    def close(self) -> None:
        self.is_closed = True
        self._socket.detach()  # the transport closes it
        self._out.clear()
        self._release()

    def pause(self) -> None:
        """The transport has bytes that the socket did not take."""
        self._is_stuck = True

    def resume(self) -> None:
        """The socket took them: send on."""
        self._is_stuck = False
        self._send_on()
        if not self.is_busy:
            self._release()

    def _release(self) -> None:
        self._listener.unread_bytes.release(self)
        self._listener.unread_ranges.release(self)

    def send(self, parts: list[Any], max_bytes: int) -> None:
        """Send a response of which up to `max_bytes` lie in memory. Bytes between files are sent together."""
        size, ranges = len(parts[0]), 0
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
            ranges = sum(type(part) is Range for part in parts)
            size = sum(len(part) for part in parts if type(part) is not Range)
        if size > max_bytes:
            self._close(f"connection closed: a response of {size} bytes, where {max_bytes} are sent")
            return
        self._out.extend(parts)
        self._send_on()
        if self.is_busy and not self.is_closed:
            self._listener.unread_bytes.hold(self, size + _PIECE, self._close)
            self._listener.unread_ranges.hold(self, ranges, self._close)

    def _send_on(self) -> None:
        out = self._out
        try:
            while out and not self._is_stuck and not self.is_closed:
                part = out[0]
                if isinstance(part, Range):
                    self._send_range(part)
                else:
                    out.popleft()
                    self._send_bytes(part, _MORE if out else 0)
        except OSError:
            self._close("")

    def _send_bytes(self, part: bytes, flags: int) -> None:
        try:
            sent = self._socket.send(part, flags)
        except BlockingIOError:
            sent = 0
        self._metrics.bytes_out += len(part)
        if sent < len(part):
            self._transport.write(memoryview(part)[sent:])

    def _send_range(self, part: Range) -> None:
        try:
            sent = _send_file(self._socket, part)
        except BlockingIOError:
            self._leave_piece(part)
            return
        if sent == 0:
            self._close(_SHORTER)
            return
        self._metrics.bytes_out += sent
        part.advance(sent)
        if part.size:
            self._leave_piece(part)
        else:
            self._out.popleft()

    def _leave_piece(self, part: Range) -> None:
        """The socket is full: the transport sends a piece when it can, and calls `resume` when it has."""
        piece = _os.pread(part.file.fd, min(_PIECE, part.size), part.position)
        if not piece:
            self._close(_SHORTER)
            return
        self._metrics.bytes_out += len(piece)
        part.advance(len(piece))
        if not part.size:
            self._out.popleft()
        self._transport.write(piece)
