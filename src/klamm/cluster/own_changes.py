"""Changes of topics that a store has made itself, and that a server of the cluster may not have learned of yet.

Some server of a cluster responds to each question about topics, and servers learn of changes one after the other. A
response that is older than what this store has changed is asked for again, for at most SPREAD_S.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from klamm.types import TopicId

__all__ = ["SPREAD_S", "OwnChanges", "Seen"]

SPREAD_S = 10.0
"""How long the servers of a cluster may take to learn of a change."""


class Seen(NamedTuple):
    """A topic as some server has described it."""

    id: TopicId
    partitions: int
    settings: Mapping[str, str]
    """Those that were set."""


class _Change:
    """A change of a topic, which the next response about it has to show."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.is_created = False
        self.partitions = 0
        self.settings: dict[str, str | None] = {}  # None: it was put back to its default


class OwnChanges:
    """The changes of one store, for any thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._changes: dict[str, _Change] = {}
        self._deleted: set[TopicId] = set()
        self._gone: dict[str, float] = {}  # names of those, and until when a server may still list them

    def created(self, name: str, partitions: int) -> None:
        """Remember that a topic was created."""
        with self._mutex:
            change = self._changes[name] = _Change(time.monotonic() + SPREAD_S)
            change.is_created, change.partitions = True, partitions
            self._gone.pop(name, None)

    def found(self, name: str) -> None:
        """Remember that a topic is there, which others have created."""
        with self._mutex:
            self._extended(name).is_created = True
            self._gone.pop(name, None)

    def grown(self, name: str, partitions: int) -> None:
        """Remember that a topic has more partitions."""
        with self._mutex:
            self._extended(name).partitions = partitions

    def altered(self, name: str, changes: Mapping[str, str], resets: Iterable[str]) -> None:
        """Remember that settings of a topic were changed."""
        with self._mutex:
            self._extended(name).settings |= {**changes, **dict.fromkeys(resets)}

    def deleted(self, name: str, topic_id: TopicId) -> None:
        """Remember that a topic was deleted."""
        with self._mutex:
            self._changes.pop(name, None)
            self._deleted.add(topic_id)
            self._gone[name] = time.monotonic() + SPREAD_S

    def _extended(self, name: str) -> _Change:
        change = self._changes.setdefault(name, _Change(0))
        change.until = time.monotonic() + SPREAD_S
        return change

    def is_gone(self, name: str) -> bool:
        """Return whether this store has deleted a topic of that name so lately that servers may still list it."""
        return time.monotonic() < self._gone.get(name, 0)

    def was_deleted(self, seen: Seen) -> bool:
        """Return whether this store has deleted the topic that was described."""
        return seen.id in self._deleted

    def is_newer(self, name: str, seen: Seen | None) -> bool:
        """Return whether a change is newer than a response. `seen`: None if the server does not know the topic."""
        with self._mutex:
            change = self._changes.get(name)
            if change is None:
                return False
            if time.monotonic() > change.until:
                del self._changes[name]
                return False
            if seen is None:
                return change.is_created
            if seen.partitions < change.partitions:
                return True
            return any(seen.settings.get(key) != value for key, value in change.settings.items())
