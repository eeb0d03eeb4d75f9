"""What users write for acks, times and choices, checked and made plain."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from klamm.errors import InvalidSetting

__all__ = ["ALL", "Acks", "acks_of", "check_count", "check_timeout", "choice", "seconds", "to_ms"]

Acks: TypeAlias = Literal["all", -1, 0, 1]
"""0: no answer. 1: committed, survives any process. "all" (or -1, as Kafka has it): on disk, survives the machine."""

ALL = -1


def acks_of(acks: object) -> int:
    """0, 1 or ALL."""
    if acks == "all":
        return ALL
    if isinstance(acks, int) and acks in (0, 1, ALL):
        return int(acks)
    raise InvalidSetting(f"acks: {acks!r} does not fit", hint='want 0, 1 or "all"')


def to_ms(when: object) -> int:
    """Milliseconds since 1970 of a time, or of a number that is them already."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError(f"{when} has no time zone; say datetime(…, tzinfo=timezone.utc), or when.astimezone()")
        return (when - _EPOCH) // _MILLISECOND
    if isinstance(when, int) and not isinstance(when, bool):
        return when
    raise TypeError(f"a time is a datetime or whole milliseconds since 1970, not {type(when).__name__}")


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MILLISECOND = timedelta(milliseconds=1)


def choice(name: str, value: object, known: Mapping[str, Any]) -> Any:
    if not isinstance(value, str) or value not in known:
        raise InvalidSetting(f"{name}: {value!r} does not fit", hint=f"want {' or '.join(map(repr, known))}")
    return known[value]


def check_count(max_records: Any) -> None:
    if not isinstance(max_records, int):
        raise TypeError(f"max_records is an int, not {type(max_records).__name__}")
    if max_records < 1:
        raise InvalidSetting(f"max_records: {max_records} does not fit", hint="want at least 1")


def check_timeout(name: str, ms: Any) -> int | None:
    """Return milliseconds: 0 or more, -1 for no limit, None for the default."""
    if ms is None:
        return None
    if type(ms) is not int:
        raise TypeError(f"{name} is a whole number of milliseconds or None, not {type(ms).__name__}")
    if ms < -1:
        raise InvalidSetting(f"{name}: {ms} is invalid", hint="expected 0 or more, or -1 for no limit")
    return ms


def seconds(name: str, ms: Any) -> float | None:
    if ms is None:
        return None
    if type(ms) is not int and type(ms) is not float:
        raise TypeError(f"{name} is a number of milliseconds or None, not {type(ms).__name__}")
    if not ms >= 0:
        raise InvalidSetting(f"{name}: {ms} does not fit", hint="want milliseconds, or None to wait for ever")
    return float(ms) / 1000
