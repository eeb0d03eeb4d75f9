"""The bytes of Kafka consumers within a group: what a member subscribes to, and the partitions that it is assigned.

    subscription    version int16, topics: array of string, …
    assignment      version int16, topics: array of (string, partitions: array of int32), …

Arrays begin with an int32, strings with an int16. Later versions add fields at the end, which are not read. Other
protocols (Kafka Connect's) have bytes of their own: these are None.
"""

from __future__ import annotations

import struct

__all__ = ["assigned_partitions", "subscribed_topics"]

_VERSION = 2  # bytes


class _Reader:
    """Reads fields; ValueError where the bytes end before a field does."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = _VERSION

    def _take(self, size: int) -> bytes:
        begin, self._position = self._position, self._position + size
        if size < 0 or self._position > len(self._data):
            raise ValueError("cut short")
        return self._data[begin : self._position]

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big", signed=True)

    def count(self, least_size: int) -> int:
        """Return how many elements an array has, each of which takes so many bytes or more."""
        count = self._number(4)
        if count > len(self._data) // least_size:
            raise ValueError("more elements than there are bytes")
        return max(0, count)

    def text(self) -> str:
        return self._take(self._number(2)).decode()

    def numbers(self) -> tuple[int, ...]:
        count = self.count(4)
        return struct.unpack(f">{count}i", self._take(4 * count))


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a subscription; None if the bytes are not one."""
    reader = _Reader(metadata)
    try:
        return frozenset(reader.text() for _ in range(reader.count(2)))
    except ValueError:
        return None


def assigned_partitions(assignment: bytes) -> tuple[tuple[str, int], ...] | None:
    """Return the (topic, partition)s of an assignment, sorted; None if the bytes are not one."""
    if not assignment:  # of a member that is assigned nothing
        return ()
    reader = _Reader(assignment)
    try:
        topics = [(reader.text(), reader.numbers()) for _ in range(reader.count(6))]
    except ValueError:
        return None
    return tuple(sorted((topic, number) for topic, numbers in topics for number in numbers))
