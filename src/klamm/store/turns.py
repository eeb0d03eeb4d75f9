"""Turns: one thread at a time for each transactional id; threads for other ids do not wait."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable
from contextlib import AbstractContextManager

from klamm.disk._os import TimedLock

__all__ = ["Turns"]


class Turns:
    """Turns by key. A thread that has a turn may take it again. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._locks: weakref.WeakValueDictionary[Hashable, threading.RLock] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        """Return for how many keys a thread has the turn."""
        return len(self._locks)

    def wait(self, key: Hashable) -> AbstractContextManager[bool]:
        """Take the turn, waiting for it. Not with another key's turn: two threads could wait for each other."""
        return TimedLock(self._lock_of(key))

    def attempt(self, key: Hashable) -> AbstractContextManager[bool]:
        """Take the turn if no other thread has it. The `with` block gets whether this one does."""
        return TimedLock(self._lock_of(key), 0)

    def _lock_of(self, key: Hashable) -> threading.RLock:
        with self._mutex:
            lock = self._locks.get(key)
            if lock is None:
                lock = self._locks[key] = threading.RLock()
            return lock
