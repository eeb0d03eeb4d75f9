"""Filter pushdown: narrow what is read by partition and offset exactly, by time as far as the index knows.

Spark hands over filters that are all to hold. Those on topic, partition and offset become part of the plan, and Spark
need not look at them again. `timestamp >= …` lets the plan begin at the first record at or after that time, found by
the index; but later records may be older, so Spark still looks. Everything else is left to Spark.

A filter of Spark's is recognised by its name, so that nothing here needs Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from klamm.times import to_ms

__all__ = ["EVERYTHING", "PushedFilters", "push"]

_FIRST, _LAST = 0, (1 << 63) - 1


@dataclass(frozen=True)
class PushedFilters:
    """The part of a subscription that filters leave: topics, partitions in [low, high], offsets in [low, high]."""

    topics: frozenset[str] | None = None
    numbers: frozenset[int] | None = None
    partitions: tuple[int, int] = (_FIRST, _LAST)
    offsets: tuple[int, int] = (_FIRST, _LAST)
    since_ms: int | None = None

    def has(self, topic: str, partition: int) -> bool:
        return (
            (self.topics is None or topic in self.topics)
            and (self.numbers is None or partition in self.numbers)
            and self.partitions[0] <= partition <= self.partitions[1]
        )

    def within(self, start: int, end: int) -> tuple[int, int]:
        """Return the part of [start, end) that the filters leave."""
        return max(start, self.offsets[0]), min(end, self.offsets[1] + 1)


EVERYTHING = PushedFilters()


def push(filters: Iterable[Any]) -> tuple[PushedFilters, list[Any]]:
    """Return the pushed filters, and those that Spark has to apply itself."""
    wanted, rest = EVERYTHING, []
    for each in filters:
        narrowed, is_done = _narrowed(wanted, each)
        wanted = narrowed
        if not is_done:
            rest.append(each)
    return wanted, rest


def _narrowed(wanted: PushedFilters, each: Any) -> tuple[PushedFilters, bool]:
    kind = type(each).__name__
    column = getattr(each, "attribute", None)
    value: Any = getattr(each, "value", None)
    if kind == "IsNotNull":
        return wanted, column in (("topic",), ("partition",), ("offset",), ("timestamp",), ("timestampType",))
    if column == ("topic",):
        return _by_topic(wanted, kind, value)
    if column == ("partition",):
        if kind == "In" and _are_integers(value):
            known = frozenset(value) if wanted.numbers is None else wanted.numbers & frozenset(value)
            return replace(wanted, numbers=known), True
        partitions = _between(wanted.partitions, kind, value)
        return (wanted, False) if partitions is None else (replace(wanted, partitions=partitions), True)
    if column == ("offset",):
        if kind == "In" and _are_integers(value):
            low, high = max(wanted.offsets[0], min(value)), min(wanted.offsets[1], max(value))
            return replace(wanted, offsets=(low, high)), False  # what lies between them is Spark's to leave out
        offsets = _between(wanted.offsets, kind, value)
        return (wanted, False) if offsets is None else (replace(wanted, offsets=offsets), True)
    if column == ("timestamp",) and kind in ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"):
        return _by_time(wanted, value), False
    return wanted, False


def _by_topic(wanted: PushedFilters, kind: str, value: Any) -> tuple[PushedFilters, bool]:
    if kind in ("EqualTo", "EqualNullSafe") and isinstance(value, str):
        names = frozenset([value])
    elif kind == "In" and all(isinstance(name, str) for name in value):
        names = frozenset(value)
    else:
        return wanted, False
    return replace(wanted, topics=names if wanted.topics is None else wanted.topics & names), True


def _are_integers(values: Any) -> bool:
    return bool(values) and all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _between(known: tuple[int, int], kind: str, value: Any) -> tuple[int, int] | None:
    """Return the part of [low, high] for which the comparison holds; None for an unknown comparison."""
    if not _are_integers([value]):
        return None
    low, high = known
    if kind in ("EqualTo", "EqualNullSafe"):
        return max(low, value), min(high, value)
    if kind == "GreaterThan":
        return max(low, value + 1), high
    if kind == "GreaterThanOrEqual":
        return max(low, value), high
    if kind == "LessThan":
        return low, min(high, value - 1)
    if kind == "LessThanOrEqual":
        return low, min(high, value)
    return None


def _by_time(wanted: PushedFilters, value: Any) -> PushedFilters:
    if not isinstance(value, datetime):
        return wanted
    if value.tzinfo is None:  # the session's zone is not known here: nothing is left out that may be meant
        value = value.replace(tzinfo=UTC) - timedelta(days=1)
    since = to_ms(value)  # rounded down
    return replace(wanted, since_ms=since if wanted.since_ms is None else max(wanted.since_ms, since))
