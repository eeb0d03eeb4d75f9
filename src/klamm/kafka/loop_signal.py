"""A file descriptor that wakes an event loop: native threads write to it, without the GIL."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

__all__ = ["EventFd", "Pipe", "signal_to"]


class EventFd:
    """A descriptor to write to, from any thread, so that the loop calls `rung`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rung: Callable[[], None]) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop = loop
        self._rung = rung
        loop.add_reader(self.fd, self._read)

    def _read(self) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return
        self._rung()

    def close(self) -> None:
        """Close it, after the last write."""
        self._loop.remove_reader(self.fd)
        os.close(self.fd)


class Pipe:
    """Like `EventFd`, where there is none (macOS), and where loops cannot wait for a descriptor (Windows)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rung: Callable[[], None]) -> None:
        self._end, self.fd = os.pipe()
        self._loop = loop
        self._rung = rung
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, name="klamm-loop-pipe", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while os.read(self._end, 4096):
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        if not self._is_closed:
            self._rung()

    def close(self) -> None:
        """Close it, after the last write."""
        self._is_closed = True
        os.close(self.fd)
        self._thread.join()
        os.close(self._end)


def signal_to(loop: asyncio.AbstractEventLoop, rung: Callable[[], None]) -> EventFd | Pipe:
    """Return a descriptor for which the loop calls `rung`, once for all writes that it finds."""
    return (EventFd if hasattr(os, "eventfd") else Pipe)(loop, rung)
