"""Dead letters: how many there are, and redrives that visitors start.

Each redrive has a thread of its own, and a dead-letter topic one redrive at a time. One at a rate may take longer than
a visitor waits; the topic's page shows how far it is. If the console ends before that, what was put back is
back, each letter once, and the others are still letters.
"""

from __future__ import annotations

import threading
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING, Any

from klamm.console.errors import RequestError
from klamm.errors import InvalidSetting, KlammError

if TYPE_CHECKING:
    from klamm.api import Store

__all__ = ["LetterCounts", "Redrive", "Redrives"]

_SUFFIX = ".dlq"
_WAIT_S = 2.0  # a redrive that takes no longer is over when the visitor sees the page again
_SHARE = 0.1  # of the time, at most, that letters are counted again


class _Stopped(Exception):
    """A visitor has stopped the redrive."""


class Redrive:
    """One that runs, or the last one of its topic."""

    def __init__(self, total: int, per_second: float | None) -> None:
        self.total, self.done = total, 0
        self.per_second = per_second
        self.error: Exception | None = None
        self.is_over = threading.Event()
        self.stop = threading.Event()

    def on_progress(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if self.stop.is_set() and done < total:
            raise _Stopped

    def describe(self) -> dict[str, Any]:
        return {
            "done": self.done,
            "total": self.total,
            "per_second": self.per_second,
            "is_over": self.is_over.is_set(),
            "is_stopped": self.stop.is_set(),
            "error": str(self.error) if self.error is not None else None,
        }


class Redrives:
    """The redrives of one store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mutex = threading.Lock()
        self._last: dict[str, Redrive] = {}

    def of(self, topic: str) -> Redrive | None:
        """Return the redrive of a dead-letter topic that runs, or ran last."""
        with self._mutex:
            return self._last.get(topic)

    def start(self, topic: str, to: str | None, total: int, *, per_second: float | None, **options: Any) -> None:
        """Put letters back; return when that is done, or runs on. Raise what it failed with, if it failed by then."""
        redrive = Redrive(total, per_second)
        with self._mutex:
            running = self._last.get(topic)
            if running is not None and not running.is_over.is_set():
                raise RequestError(409, f"{topic}: a redrive is running", "wait until it is over, or stop it")
            self._last[topic] = redrive

        def run() -> None:
            try:
                self._store.redrive(topic, to, per_second=per_second, progress=redrive.on_progress, **options)
            except _Stopped:
                pass
            except (KlammError, OSError) as error:
                redrive.error = error
            finally:
                redrive.is_over.set()

        threading.Thread(target=run, name="klamm-console-redrive", daemon=True).start()
        if redrive.is_over.wait(_WAIT_S) and redrive.error is not None:
            raise redrive.error


class LetterCounts:
    """The letters of each error in a topic, counted again when the topic has changed. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mutex = threading.Lock()
        self._counts: dict[str, tuple[object, float, Counter[str]]] = {}

    def find(self) -> dict[str, Counter[str] | KlammError]:
        """Return the letters that wait, by topic and error, or what keeps a topic from being read.

        Topics are those that are named as handlers name theirs, and whose records are letters.
        """
        found: dict[str, Counter[str] | KlammError] = {}
        for topic in self._store.topics:
            if topic.endswith(_SUFFIX):
                try:
                    found[topic] = self.count(topic)
                except InvalidSetting:  # others have written to it
                    continue
                except KlammError as error:  # damaged
                    found[topic] = error
        return found

    def count(self, topic: str) -> Counter[str]:
        """Return the letters that wait, by error; those of a large topic may be some seconds old."""
        with self._mutex:
            info = self._store.topics.describe(topic)
            version = (info.id, [(partition.start, partition.end) for partition in info.partitions])
            known = self._counts.get(topic)
            if known is None or (known[0] != version and monotonic() >= known[1]):
                began = monotonic()
                counts = Counter(letter.error for letter in self._store.dead_letters(topic))
                known = self._counts[topic] = (version, monotonic() + (monotonic() - began) / _SHARE, counts)
            return known[2]
