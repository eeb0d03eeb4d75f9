"""The memory and the open files of responses that clients have not read yet. Both are bounded for all connections
together. Beyond the bound, the connection is closed whose client has had its response for longest.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Unread"]


class Unread:
    """An amount that is held by connections, up to `limit`."""

    def __init__(self, limit: int, setting: str) -> None:
        self._limit = limit
        self._why = f"connection closed: its response was not read, and {setting} is reached"
        self._held: dict[object, tuple[int, Callable[[str], None]]] = {}  # the oldest first
        self.used = 0

    def __len__(self) -> int:
        """Return how many connections hold something."""
        return len(self._held)

    def hold(self, holder: object, amount: int, close: Callable[[str], None]) -> None:
        """Record that `holder` holds `amount`, which may be too much. `close` makes it release that."""
        self._held[holder] = amount, close
        self.used += amount
        while self.used > self._limit:
            oldest = next(iter(self._held))
            _, close_oldest = self._held[oldest]
            self.release(oldest)
            close_oldest(self._why)

    def release(self, holder: object) -> None:
        amount, _ = self._held.pop(holder, (0, None))
        self.used -= amount
