"""Turns: one thread at a time for each transactional id; threads for other ids do not wait."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

__all__ = ["Turns"]


class _Turn:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.users = 0


class Turns:
    """Turns by key. A thread that has a turn may take it again. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._turns: dict[Hashable, _Turn] = {}

    def __len__(self) -> int:
        """Return for how many keys a thread has the turn."""
        return len(self._turns)

    @contextmanager
    def wait(self, key: Hashable) -> Iterator[None]:
        """Take the turn, waiting for it. Not with another key's turn: two threads could wait for each other."""
        turn = self._join(key)
        try:
            with turn.lock:
                yield
        finally:
            self._leave(key, turn)

    @contextmanager
    def attempt(self, key: Hashable) -> Iterator[bool]:
        """Take the turn if no other thread has it. Yield whether this one does."""
        turn = self._join(key)
        try:
            has = turn.lock.acquire(blocking=False)
            try:
                yield has
            finally:
                if has:
                    turn.lock.release()
        finally:
            self._leave(key, turn)

    def _join(self, key: Hashable) -> _Turn:
        with self._mutex:
            turn = self._turns.get(key)
            if turn is None:
                turn = self._turns[key] = _Turn()
            turn.users += 1
            return turn

    def _leave(self, key: Hashable, turn: _Turn) -> None:
        with self._mutex:
            turn.users -= 1
            if not turn.users:
                del self._turns[key]
