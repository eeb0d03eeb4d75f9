"""Responses into the socket of one connection.

Small responses go in one send. Records that lie in files go by `sendfile` (where the system has none, by a copy through
memory). If the socket is full, a piece is left to the transport, which copies it, and the rest goes on when that is
gone. So a slow reader holds the response once, a piece, and positions in files. What it holds is counted until it has
read all (unread.py). A client that reads as fast as the server sends has the loop for TURN_S at a time.

Before a part of a file is sent, a few of its bytes are read if they are in memory. If not, a thread reads that part
first, so that the loop does not wait for the disk.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from klamm.disk import _os
from klamm.disk.page_cache import WouldBlock, is_cached, load, read_cached
from klamm.log.ranges import Range, SegmentFile

if TYPE_CHECKING:
    from klamm.kafka.listener import Listener

__all__ = ["ResponseWriter"]

TURN_S = 0.001  # as in channel.py, for responses of many pieces
_PIECE = 16 * 1024  # of a file or of bytes, when the socket is full: sent when there is space, and the rest follows
_WINDOW = 1024 * 1024  # of a file, that is looked at, and read by a thread if need be, before it is sent
_COPIED = 64 * 1024  # of a file, at a time, where the system has no sendfile
_LARGE_PART = 64 * 1024  # of a response in memory: is sent as it is, where smaller ones are copied together
_MORE = getattr(socket, "MSG_MORE", 0)
_SHORTER = "connection closed: a file of the log is shorter than it was"


if hasattr(os, "sendfile"):

    def _send_file(to: socket.socket, part: Range, size: int) -> int:
        """Send as much of `size` bytes of the range as the socket takes, and return how many bytes that were."""
        return os.sendfile(to.fileno(), part.file.fd, part.position, size)

else:

    def _send_file(to: socket.socket, part: Range, size: int) -> int:
        """Like os.sendfile, for systems without it (Windows): copy through memory. The bytes were read before."""
        return to.send(_os.pread(part.file.fd, min(_COPIED, size), part.position))


def _load(file: SegmentFile, size: int, position: int) -> None:
    """Read a part of a file, in a thread, which holds a reference to the file until it is done."""
    load(file.fd, size, position)


class ResponseWriter:
    """The writer of one channel's responses.

    `close` is called with the reason when it cannot go on, `on_turn` when it can: a thread has read, or other
    connections have had their turn.
    """

    __slots__ = ("_cached_end", "_close", "_is_full", "_is_waiting", "_listener", "_metrics", "_on_turn", "_out",
                 "_socket", "_transport", "is_busy", "is_closed")  # fmt: skip

    def __init__(
        self,
        transport: asyncio.Transport,
        given: socket.socket,
        listener: Listener,
        close: Callable[[str], None],
        on_turn: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._socket = socket.socket(given.family, given.type, given.proto, fileno=given.fileno())
        self._metrics = listener.metrics
        self._listener = listener
        self._close = close
        self._on_turn = on_turn
        self._out: deque[bytes | memoryview | Range] = deque()  # of a response: what is still to be sent
        self._is_full = False  # the transport has bytes that the socket did not take
        self._is_waiting = False  # a thread reads, or other connections have their turn
        self._cached_end = -1  # of the range that is being sent: what lies before is in memory
        self.is_busy = False
        """Whether a part of a response is still to be sent."""
        self.is_closed = False

    @property
    def fd(self) -> int:
        """The descriptor, for a response that another thread sends; -1 if there is none, or it is not a plain
        socket's.
        """
        return -1 if self.is_closed or os.name == "nt" else self._socket.fileno()

    def close(self) -> None:
        self.is_closed = True
        self._socket.detach()  # the transport closes it
        self._out.clear()
        self._release()

    def pause(self) -> None:
        """Pause: the transport has bytes that the socket did not take."""
        self._is_full = self.is_busy = True
        self._cached_end = -1  # the client may take long to read on, and the page cache forgets

    def resume(self) -> None:
        """Resume: the socket took them."""
        self._is_full = False

    def send_on(self) -> None:
        """Send the rest of the response, or as much as can be sent now."""
        self._send_on()
        if not self.is_busy:
            self._release()

    def _release(self) -> None:
        self._listener.unread_bytes.release(self)
        self._listener.unread_ranges.release(self)

    def send(self, parts: list[Any], max_bytes: int) -> None:
        """Send a response of which up to `max_bytes` lie in memory. Few bytes between files are sent together."""
        size, ranges = len(parts[0]), 0
        if len(parts) > 1:
            joined: list[bytes | Range] = []
            run: list[Any] = []
            for part in parts:
                if type(part) is Range or len(part) >= _LARGE_PART:
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
        out, turn_ends = self._out, 0.0
        try:
            while out and not (self._is_full or self._is_waiting or self.is_closed):
                part = out[0]
                if isinstance(part, Range):
                    self._send_range(part)
                else:
                    out.popleft()
                    self._send_bytes(part, _MORE if out else 0)
                if out and not self._is_waiting:
                    now = self._listener.now()
                    if not turn_ends:
                        turn_ends = now + TURN_S
                    elif now >= turn_ends:
                        self._is_waiting = True
                        self._listener.broker.loop.call_soon(self._take_turn)
        except OSError:
            self._close("")
        self.is_busy = self._is_full or self._is_waiting or bool(out)

    def _take_turn(self) -> None:
        self._is_waiting = False
        if not self.is_closed:
            self._on_turn()

    def _send_bytes(self, part: bytes | memoryview, flags: int) -> None:
        try:
            sent = self._socket.send(part, flags)
        except BlockingIOError:
            sent = 0
        if sent < len(part):
            piece, rest = memoryview(part)[sent : sent + _PIECE], memoryview(part)[sent + _PIECE :]
            sent += len(piece)
            if rest:
                self._out.appendleft(rest)
            self._transport.write(piece)
        self._metrics.bytes_out += sent

    def _send_range(self, part: Range) -> None:
        if part.position >= self._cached_end and not self._is_in_memory(part):
            return
        try:
            sent = _send_file(self._socket, part, min(part.size, self._cached_end - part.position))
        except BlockingIOError:
            self._leave_piece(part)
            return
        if sent == 0:
            self._close(_SHORTER)
            return
        self._metrics.bytes_out += sent
        part.advance(sent)
        if not part.size:
            self._end_range()
        elif part.position < self._cached_end:
            self._leave_piece(part)

    def _is_in_memory(self, part: Range) -> bool:
        """Return whether the next part of the range is in memory; if not, have a thread read it."""
        size = min(part.size, _WINDOW)
        if is_cached(part.file.fd, size, part.position):
            self._cached_end = part.position + size
            return True
        self._is_waiting = True
        reading = self._listener.broker.disk(_load, part.file, size, part.position)
        reading.add_done_callback(partial(self._on_loaded, part.position + size))
        return False

    def _on_loaded(self, end: int, reading: asyncio.Future[None]) -> None:
        if not self.is_closed and reading.exception() is not None:
            self._close("connection closed: a file of the log cannot be read")
        self._cached_end = end
        self._take_turn()

    def _end_range(self) -> None:
        self._out.popleft()
        self._cached_end = -1

    def _leave_piece(self, part: Range) -> None:
        """Leave a piece to the transport, because the socket is full. It calls `resume` when the piece is sent."""
        size = min(_PIECE, part.size, self._cached_end - part.position)
        try:
            piece = read_cached(part.file.fd, size, part.position)
        except WouldBlock:  # it was in memory a moment ago, or this system cannot tell
            piece = _os.pread(part.file.fd, size, part.position)
        if not piece:
            self._close(_SHORTER)
            return
        self._metrics.bytes_out += len(piece)
        part.advance(len(piece))
        if not part.size:
            self._end_range()
        self._transport.write(piece)
