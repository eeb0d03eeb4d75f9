"""Lock files: bytes that processes hold, for moments or for long.

    lock       byte 0: the gate to klamm.db; bytes 4n, 4n + 1, 4n + 2: append, flush, clean of the partition in slot n
    members    byte 0: presence, shared by everybody who has the store open; exclusive for recovery

The bytes are never written; only their locks matter. A lock is an open-file-description lock: it belongs to the
descriptor, not to the process, so a stray `close` elsewhere does not drop it, and the kernel frees it when the last
copy of the descriptor is gone, however the process ended. Liveness is a lock that is free, never a pid.

Such a lock excludes neither threads that share the descriptor nor forked children. Hence a mutex in front of each
byte, and `in_child` closes the descriptor.

Where the system has no such locks (macOS), the first opener takes the whole `members` file for itself, and a second
process gets StoreBusy: one process at a time, rather than a weaker protocol.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from klamm.disk import _os, fork
from klamm.errors import StoreBusy

__all__ = ["GATE", "PRESENCE", "LockFile"]

GATE = 0
PRESENCE = 0


class LockFile:
    """One file of lock bytes, opened once a process."""

    def __init__(self, path: str, *, create: bool = True) -> None:
        self.path = path
        self._mutexes: dict[int, threading.Lock] = {}
        with fork.guard:
            self.fd = _os.open_file(path, os.O_RDWR | (os.O_CREAT if create else 0))
            fork.register(self)

    def _mutex(self, byte: int) -> threading.Lock:
        return self._mutexes.setdefault(byte, threading.Lock())

    @contextmanager
    def hold(self, byte: int, *, timeout_ms: int | None = None) -> Iterator[None]:
        """Hold `byte` alone, waiting for it; StoreBusy when `timeout_ms` passes first."""
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        mutex = self._mutex(byte)
        if not mutex.acquire(timeout=-1 if timeout_ms is None else timeout_ms / 1000):
            raise self._busy(byte)
        try:
            if deadline is None:
                _os.lock_byte(self.fd, byte)
            else:
                while not _os.lock_byte(self.fd, byte, wait=False):
                    if time.monotonic() >= deadline:
                        raise self._busy(byte)
                    time.sleep(0.001)
            fd = self.fd
            try:
                yield
            finally:
                if fd == self.fd:  # else: a forked child has closed it
                    _os.unlock_byte(fd, byte)
        finally:
            mutex.release()

    def _busy(self, byte: int) -> StoreBusy:
        return StoreBusy(f"{self.path}: byte {byte} is held by another process or thread")

    def try_hold(self, byte: int, *, shared: bool = False) -> bool:
        """Take `byte` for long, or say that it is taken. For callers that keep threads apart themselves."""
        return _os.lock_byte(self.fd, byte, shared=shared, wait=False)

    def try_hold_whole(self) -> bool:
        """Take the whole file for as long as it is open: for systems without byte locks."""
        import fcntl

        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self, byte: int) -> None:
        _os.unlock_byte(self.fd, byte)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def before_fork(self) -> None:
        """Nothing: the child only closes."""

    def after_fork(self) -> None:
        """Nothing: the parent goes on."""

    def in_child(self) -> None:
        self.close()
        self._mutexes = {}
