"""The filter of `deduplicate`, in tasks: it passes the first record of an id within a time. Spark keeps the state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessorHandle, TimerValues

__all__ = ["DuplicateFilter"]


class DuplicateFilter(StatefulProcessor):
    """The processor of one task: it passes a record if none of its id has passed within the time."""

    def __init__(self, within_ms: int) -> None:
        self._within_ms = within_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._passed = handle.getValueState("passed", "at long")

    def handleInputRows(  # noqa: N802  # Spark's names, here and below
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Any]:
        state = self._passed.get()
        before: int | None = None if state is None else state[0]
        last = before
        for row in sorted(rows, key=lambda row: (row["at"], row["partition"], row["offset"])):
            if last is None or row["at"] >= last + self._within_ms:
                last = row["at"]
                yield Row(key=row["key"], value=row["value"], headers=row["headers"], at=last)
        if last is not None and last != before:
            self._passed.update((last,))
            self._handle.registerTimer(last + self._within_ms)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        state = self._passed.get()
        # If a record of the id has passed since, a later timer is still to come.
        if state is not None and state[0] + self._within_ms <= expiredTimerInfo.getExpiryTimeInMs():
            self._passed.clear()
        return iter(())

    def close(self) -> None:
        pass
