"""Times and durations: how users write them, and the whole milliseconds in which the store has them.

a time        an aware datetime, or milliseconds since 1970 (UTC)
              as text ISO 8601: 2026-11-15, 2026-11-15T10:00:00Z; without a zone it is local time
a duration    a number of seconds, or a timedelta
              as text numbers with units, one or more: 90s, 1h30m, 1.5d, 2w; units are ms, s, m, h, d, w
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from klamm.errors import InvalidSetting

__all__ = [
    "EPOCH",
    "FOREVER_S",
    "MILLISECOND",
    "Duration",
    "format_duration",
    "format_time",
    "from_ms",
    "parse_duration",
    "parse_time",
    "to_ms",
    "to_seconds",
    "to_timeout",
]

Duration: TypeAlias = float | timedelta
"""A number of seconds, or a timedelta."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

FOREVER_S = 1e9
"""A duration that is longer, `math.inf` among them, is treated as this: about 30 years."""

_UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_PART = r"(\d{1,15}(?:\.\d{1,9})?)\s*(ms|s|m|h|d|w)"
_DURATION = re.compile(rf"{_PART}(?:\s*{_PART})*", re.ASCII)
_PARTS = re.compile(_PART, re.ASCII)


# ---- times


def to_ms(when: object) -> int:
    """Return milliseconds since 1970 of a datetime, or of a number that is that already."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError(f"{when} has no time zone; say datetime(…, tzinfo=timezone.utc), or when.astimezone()")
        return (when - EPOCH) // MILLISECOND
    if isinstance(when, int) and not isinstance(when, bool):
        return when
    raise TypeError(f"a time is a datetime or whole milliseconds since 1970, not {type(when).__name__}")


def from_ms(time_ms: int) -> datetime:
    """Return the datetime, in UTC. OverflowError outside of the years 1 to 9999."""
    return EPOCH + timedelta(milliseconds=time_ms)


def parse_time(text: str) -> int | None:
    """Return milliseconds since 1970 of a text in ISO 8601; None if it is something else."""
    try:
        return to_ms(datetime.fromisoformat(text).astimezone(UTC))
    except (ValueError, OverflowError):
        return None


def format_time(time_ms: int) -> str:
    """Return a time as `parse_time` reads it, in UTC. OverflowError outside of the years 1 to 9999."""
    return from_ms(time_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# ---- durations


def parse_duration(text: str) -> int | None:
    """Return milliseconds of a text such as 90s or 1h30m; None if it is something else."""
    if _DURATION.fullmatch(text) is None:
        return None
    return sum(
        round(float(number) * _UNITS_MS[unit]) if "." in number else int(number) * _UNITS_MS[unit]
        for number, unit in _PARTS.findall(text)
    )


def format_duration(milliseconds: int) -> str:
    """Return a duration as `parse_duration` reads it, with the largest units that fit: 1h30m."""
    text = ""
    for unit, unit_ms in _UNITS_MS.items():
        count, milliseconds = divmod(milliseconds, unit_ms)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def to_seconds(name: str, duration: object, *, at_least: float = 0) -> float:
    """Return a duration in seconds, at most FOREVER_S. Raise TypeError or InvalidSetting, with `name`."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        seconds = float(duration)
    else:
        raise TypeError(f"{name} is a number of seconds or a timedelta, not {type(duration).__name__}")
    if math.isnan(seconds) or seconds < at_least:
        raise InvalidSetting(f"{duration!r} is invalid", setting=name, hint=f"expected at least {at_least:g} seconds")
    return min(seconds, FOREVER_S)


def to_timeout(name: str, duration: object) -> float | None:
    """Return how long to wait, in seconds; None, as given or for FOREVER_S, is without limit."""
    seconds = FOREVER_S if duration is None else to_seconds(name, duration)
    return None if seconds == FOREVER_S else seconds
