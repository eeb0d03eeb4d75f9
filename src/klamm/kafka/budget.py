"""The memory budget for requests of all connections together.

A connection asks before it makes room for more of a large request. If there is none it stops reading, and is told when
to go on. One connection at a time may take more than there is, and only while no more than the limit is used: else
connections that hold half a request each could wait for each other forever. So it never is more than the limit and one
request, but for what is charged: small requests that came whole, and have to stay.

What was read behind a request that is still being handled is counted beside that (`ahead`). It leaves less to take, but
blocks no other client: a client may wait for its answer for minutes. While there is no room left (`is_full`),
connections read little at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

__all__ = ["Budget"]


class Budget:
    """Bytes, shared by the connections of a server."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._overdrawn: object | None = None
        self._waiting: deque[tuple[object, Callable[[], None]]] = deque()
        self.used = 0
        self.ahead = 0
        self.most = 0
        """The most that was ever used at a time."""

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return self.used + self.ahead >= self._limit

    def take(self, holder: object, size: int, on_available: Callable[[], None]) -> bool:
        """Reserve `size` bytes for `holder`. Return False over the limit; then `on_available` is called for a retry."""
        if self.used + self.ahead + size > self._limit and self._overdrawn is not holder:
            if self._overdrawn is not None or self.used > self._limit:
                self._waiting.append((holder, on_available))
                return False
            self._overdrawn = holder
        self.used += size
        self.most = max(self.most, self.used)
        return True

    def charge(self, size: int) -> None:
        """Count bytes that are here already, and stay for a while."""
        self.used += size
        self.most = max(self.most, self.used)

    def give_back(self, holder: object | None, size: int) -> None:
        """Release all that `holder` has, or what has no holder."""
        self.used -= size
        if holder is not None and self._overdrawn is holder:
            self._overdrawn = None
        self._notify()

    def read_ahead(self, size: int) -> None:
        """Count bytes that wait for their turn; less than 0: their turn has come."""
        self.ahead += size
        if size < 0:
            self._notify()

    def _notify(self) -> None:
        for _ in range(len(self._waiting)):
            if self.used > self._limit or (self._overdrawn is not None and self.is_full):
                break
            self._waiting.popleft()[1]()

    def forget(self, holder: object) -> None:
        """Forget a holder that waits no more."""
        if self._waiting:
            self._waiting = deque(each for each in self._waiting if each[0] is not holder)
