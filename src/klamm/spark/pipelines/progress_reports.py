"""Spark's reports of the micro-batches of a query, each once and none left out, however quick they are.

Spark keeps the reports of the last hundred micro-batches of a query, or of as many as a session says; a listener
gets each of them. A listener belongs to a session and gets the reports of all its queries, in a thread of Spark's,
while the query goes on: so reports are chosen by the id of the run, and are complete when the end of the query is
reported.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ProgressReports"]

_LAST_S = 60.0  # after a query has ended, its last report is awaited for so long
_log = logging.getLogger("klamm.spark")


class ProgressReports:
    """The reports of the query that is started next in a session. To be closed."""

    def __init__(self, spark: SparkSession) -> None:
        from pyspark.sql.streaming.listener import StreamingQueryListener

        found: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        ended: set[str] = set()
        changed = threading.Condition()

        class Listener(StreamingQueryListener):
            def onQueryStarted(self, event: Any) -> None:  # noqa: N802  # Spark's names
                pass

            def onQueryProgress(self, event: Any) -> None:  # noqa: N802
                progress = event.progress
                found.put((str(progress.runId), json.loads(progress.json)))

            def onQueryIdle(self, event: Any) -> None:  # noqa: N802
                pass

            def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
                with changed:
                    ended.add(str(event.runId))
                    changed.notify_all()

        self._spark = spark
        self._found, self._ended, self._changed = found, ended, changed
        self._listener = Listener()
        self._run_id: str | None = None
        spark.streams.addListener(self._listener)

    def of(self, query: Any) -> None:
        """Set the query."""
        self._run_id = str(query.runId)

    def take(self) -> Iterator[dict[str, Any]]:
        """Return the new reports of micro-batches that had something to do."""
        while not self._found.empty():
            run_id, data = self._found.get()
            if run_id == self._run_id and "addBatch" in data["durationMs"]:
                yield data

    def take_rest(self) -> Iterator[dict[str, Any]]:
        """Return the remaining reports of a query that has ended."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._run_id in self._ended, _LAST_S):
                _log.warning("Spark has not reported the end of a query within %d s: counts may be too small", _LAST_S)
        yield from self.take()

    def close(self) -> None:
        self._spark.streams.removeListener(self._listener)
