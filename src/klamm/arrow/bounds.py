"""Where a scan starts and ends in each partition.

    "earliest"  "latest"       where the log starts; where it ends when the stream is begun
    4711                       an offset, in every partition
    {0: 4711, 1: 815}          an offset for each partition; a partition that is not named has no bound
    datetime                   the first record that is as young as that time
    since: "90s", "1h30m", "7d", timedelta     from that long ago

A range is half-open: the record at the end is not in it. Only what is committed and stable is read, however large the
end. A start that is not in the log is OffsetOutOfRange: the records asked for are gone, or never were.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from klamm.errors import InvalidSetting, OffsetOutOfRange
from klamm.types import UNITS_MS

if TYPE_CHECKING:
    from klamm.log.partition import Partition

__all__ = ["Bound", "checked", "length_of", "range_in"]

Bound: TypeAlias = int | str | datetime | Mapping[int, int] | None

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MILLISECOND = timedelta(milliseconds=1)
_PART = re.compile(r"(\d+)(ms|s|m|h|d|w)")


def length_of(since: object) -> timedelta:
    """A length of time."""
    if isinstance(since, timedelta):
        length = since
    elif isinstance(since, str):
        text = since.replace(" ", "")
        if not re.fullmatch(f"({_PART.pattern})+", text):
            raise InvalidSetting(f"since: {since!r} is no length of time", hint="want as '90s', '1h30m' or '7d'")
        length = sum((int(number) * UNITS_MS[unit] * _MILLISECOND for number, unit in _PART.findall(text)), timedelta())
    else:
        raise TypeError(f"since is a timedelta or a text as '1h', not {type(since).__name__}")
    if length < timedelta():
        raise InvalidSetting(f"since: {since!r} is in the future")
    return length


def checked(bound: Bound, what: str) -> Bound:
    """The bound, if it is one."""
    if isinstance(bound, str):
        if bound not in ("earliest", "latest"):
            raise InvalidSetting(
                f"{what}: {bound!r} does not fit", hint="want 'earliest', 'latest', an offset or a time"
            )
    elif isinstance(bound, datetime):
        if bound.tzinfo is None:
            raise ValueError(f"{what}: {bound} has no time zone; say datetime(…, tzinfo=timezone.utc)")
    elif isinstance(bound, Mapping):
        for number, offset in bound.items():
            _check_offset(number, f"{what}: a partition")
            _check_offset(offset, f"{what}: an offset")
    elif bound is not None:
        _check_offset(bound, what)
    return bound


def _check_offset(value: object, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} is a whole number, not {type(value).__name__}")
    if value < 0:
        raise InvalidSetting(f"{what} is negative: {value}")


def range_in(partition: Partition, start: Bound, end: Bound, *, committed: bool = True) -> range:
    """The offsets of one partition that the bounds name, as of now; those of open transactions only if asked for."""
    ends = partition.ends()
    readable = ends.stable if committed else ends.end
    first = _offset_in(partition, start, ends.start, readable)
    last = _offset_in(partition, end, readable, readable)
    if not ends.start <= first <= ends.end:
        raise OffsetOutOfRange(
            f"{partition.topic}/{partition.number}: offset {first} is not in [{ends.start}, {ends.end})",
            offset=first,
            start=ends.start,
            end=ends.end,
            hint="start='earliest' reads what is there",
        )
    return range(first, max(first, min(last, readable)))


def _offset_in(partition: Partition, bound: Bound, default: int, readable: int) -> int:
    if isinstance(bound, Mapping):
        return bound.get(partition.number, default)
    if isinstance(bound, datetime):
        found = partition.offset_at((bound - _EPOCH) // _MILLISECOND)
        return readable if found is None else found
    if isinstance(bound, int):
        return bound
    if bound == "earliest":
        return partition.ends().start
    return readable if bound == "latest" else default
