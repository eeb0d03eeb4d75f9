"""The board of the game of life that examples/life plays in a topic: which cells live now.

A record's key is a cell, "17,204", and its value the generation and what happened there, "12 born" or "14 died". The
board reads what came since it was last asked, so that a page which asks every other second reads each record once. A
record that says something else is left out.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

from klamm.client.consume.range_reader import read_ranges
from klamm.client.subscription import open_partitions
from klamm.types import TopicPartition
from klamm.where import Where, range_in

if TYPE_CHECKING:
    from klamm.api import Store

__all__ = ["LIFE_TOPIC", "Board"]

LIFE_TOPIC = "life"
MOST_AT_ONCE = 500_000  # offsets; the rest is read the next time
_CELL = re.compile(rb"(\d{1,6}),(\d{1,6})")
_EVENT = re.compile(rb"(\d{1,9}) (born|died)")
_LATEST = Where("latest")


class Board:
    """The board of one store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mutex = threading.Lock()
        self._topic_id = ""
        self._next = 0
        self._alive: set[tuple[int, int]] = set()
        self.generation = -1
        self.width = self.height = 0
        self.is_behind = False
        """Whether there is more to read."""

    def look(self) -> frozenset[tuple[int, int]]:
        """Read what came, and return the cells that live, as (x, y). UnknownTopic if no life is played here."""
        with self._mutex:
            core = self._store._acquired()
            name = TopicPartition(LIFE_TOPIC, 0)
            log = open_partitions(core, [name])[name]
            topic_id = str(core.catalog.topic(LIFE_TOPIC).id)
            if topic_id != self._topic_id:
                self._topic_id, self._next, self.generation = topic_id, 0, -1
                self._alive.clear()
            offsets = range_in(log, Where(self._next), _LATEST, clamp=True)
            self.is_behind = len(offsets) > MOST_AT_ONCE
            offsets = offsets[:MOST_AT_ONCE]
            for batch in read_ranges(core, {name: offsets}) if offsets else ():
                for record in batch:
                    self._take(record.key or b"", record.value or b"")
            self._next = max(self._next, offsets.stop)
            return frozenset(self._alive)

    def _take(self, key: bytes, value: bytes) -> None:
        cell, event = _CELL.fullmatch(key), _EVENT.fullmatch(value)
        if cell is None or event is None:
            return
        x, y = int(cell[1]), int(cell[2])
        self.generation = max(self.generation, int(event[1]))
        self.width, self.height = max(self.width, x + 1), max(self.height, y + 1)
        if event[2] == b"born":
            self._alive.add((x, y))
        else:
            self._alive.discard((x, y))
