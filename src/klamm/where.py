"""Positions to start or end at in the partitions of a topic: one vocabulary for consumers, scans, tail, resets of
groups and the command line.

    what                              as text                         which offset of each partition
    "earliest"                        earliest                        the first that is there
    "latest"                          latest                          one past the last
    4711                              @4711, 4711                     that offset
    datetime, ("timestamp", ms)       2026-11-15, 2026-11-15T10:00Z   the first record at or after that time
    timedelta                         90s, 1h30m, 7d                  the first record of that long ago, or later
    last(10), ("last", 10)            last 10                         the last ten offsets
    {0: 4711, 1: (815, 3)}            0@4711,1@815:3                  one for each partition that is named, with the
    {("orders", 0): Position(4711)}   orders/0@4711                   leader epoch stored beside it, if there is one

`str` of a Where is its text, which makes an equal Where again. A datetime has a time zone; text without one is local
time. A number of more than 11 digits is refused as text: it might be an offset or milliseconds. The moment that a
timedelta means is `fixed` when a door is opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from klamm.errors import InvalidSetting, OffsetOutOfRange
from klamm.times import MILLISECOND, format_duration, format_time, from_ms, parse_duration, parse_time, to_ms
from klamm.types import Position, TopicPartition

if TYPE_CHECKING:
    from klamm.log.partition import Ends, Partition

__all__ = [
    "Where",
    "WhereLike",
    "checked_position",
    "fixed",
    "is_named",
    "is_positions",
    "last",
    "offset_between",
    "offset_in",
    "position_in",
    "range_in",
    "resume_at",
    "time_of",
    "topics_of",
]

_EXPECTED = (
    "expected 'earliest', 'latest', an offset, a time ('2026-11-15T10:00Z'), how long ago ('1h30m'), 'last 10' or "
    "positions ('0@4711,1@815')"
)
_OFFSET = re.compile(r"(@?)(\d{1,19})", re.ASCII)
_LAST = re.compile(r"last\s+(\d{1,19})", re.ASCII)
_POSITION = re.compile(r"(?:([A-Za-z0-9._-]+)/)?(\d{1,10})@(\d{1,19})(?::(\d{1,10}))?", re.ASCII)
_NO_POSITIONS = "{}"
_LONGEST_OFFSET = 11  # digits; from 12 on, a bare number may as well be milliseconds since 1970
_YEAR_1_MS, _YEAR_9999_MS = -62_135_596_800_000, 253_402_300_799_999
_INT64 = 2**63 - 1


class Where:
    """A position in every partition, in any of the forms at the top of this module; made from each of them."""

    __slots__ = ("_kind", "_number", "_positions")

    def __init__(self, where: WhereLike, *, name: str = "where") -> None:
        """Parse a start. `name` begins the message of InvalidSetting or TypeError."""
        self._kind = ""
        self._number = 0
        self._positions: dict[int | tuple[str, int], Position] = {}
        if isinstance(where, str | Where):
            self._parse(str(where).strip(), name)
        elif isinstance(where, datetime):
            self._set_time(to_ms(where), where, name)
        elif isinstance(where, timedelta):
            self._set_ago(where // MILLISECOND, where, name)
        elif isinstance(where, Mapping):
            self._kind = "positions"
            self._positions = {
                _checked_key(key, name): checked_position(value, f"{name}: an offset") for key, value in where.items()
            }
        elif isinstance(where, tuple):
            if len(where) != 2 or where[0] not in ("last", "timestamp"):
                raise InvalidSetting(f"{where!r} is invalid", setting=name, hint=_EXPECTED)
            if where[0] == "last":
                self._kind, self._number = "last", _checked_number(where[1], f"{name}: last")
            else:
                self._set_time(_checked_number(where[1], f"{name}: timestamp"), where, name)
        elif isinstance(where, int) and not isinstance(where, bool):
            self._kind, self._number = "offset", _checked_number(where, name)
        else:
            raise TypeError(f"{name}: {where!r} is invalid ({_EXPECTED})")

    def _parse(self, text: str, name: str) -> None:
        if text in ("earliest", "latest"):
            self._kind = text
        elif match := _OFFSET.fullmatch(text):
            self._kind, self._number = "offset", _checked_number(int(match[2]), name)
            if not match[1] and len(match[2]) > _LONGEST_OFFSET:
                raise _ambiguous(self._number, name)
        elif match := _LAST.fullmatch(text):
            self._kind, self._number = "last", _checked_number(int(match[1]), f"{name}: last")
        elif (ago_ms := parse_duration(text)) is not None:
            self._set_ago(ago_ms, text, name)
        elif "@" in text or text == _NO_POSITIONS:
            self._kind = "positions"
            for part in text.split(",") if text != _NO_POSITIONS else ():
                match = _POSITION.fullmatch(part.strip())
                if match is None:
                    raise InvalidSetting(f"{text!r} is invalid", setting=name, hint=_EXPECTED)
                key = int(match[2]) if match[1] is None else (match[1], int(match[2]))
                epoch = -1 if match[4] is None else int(match[4])
                self._positions[key] = checked_position((int(match[3]), epoch), f"{name}: an offset")
        elif (time_ms := parse_time(text)) is not None:
            self._kind, self._number = "time", time_ms
        else:
            raise InvalidSetting(f"{text!r} is invalid", setting=name, hint=_EXPECTED)

    def _set_time(self, time_ms: int, where: object, name: str) -> None:
        if not _YEAR_1_MS <= time_ms <= _YEAR_9999_MS:
            raise InvalidSetting(f"{where!r} is invalid", setting=name, hint="expected a time of the years 1 to 9999")
        self._kind, self._number = "time", time_ms

    def _set_ago(self, ago_ms: int, where: object, name: str) -> None:
        if not 0 <= ago_ms <= _YEAR_9999_MS:
            raise InvalidSetting(f"{where!r} is invalid", setting=name, hint="expected how long ago, in the past")
        self._kind, self._number = "ago", ago_ms

    # ---- as a value

    def __str__(self) -> str:
        match self._kind:
            case "offset":
                return f"@{self._number}"
            case "time":
                return format_time(self._number)
            case "ago":
                return format_duration(self._number)
            case "last":
                return f"last {self._number}"
            case "positions":
                return ",".join(_position_text(*each) for each in self._positions.items()) or _NO_POSITIONS
            case _:
                return self._kind

    def __repr__(self) -> str:
        return f"Where({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Where):
            return NotImplemented
        return (self._kind, self._number, self._positions) == (other._kind, other._number, other._positions)

    def __hash__(self) -> int:
        return hash((self._kind, self._number, frozenset(self._positions.items())))


WhereLike: TypeAlias = (
    Where
    | str
    | int
    | datetime
    | timedelta
    | tuple[str, int]
    | Mapping[int, int | tuple[int, int]]
    | Mapping[tuple[str, int], int | tuple[int, int]]
    | Mapping[TopicPartition, int | tuple[int, int]]
)
"""What every `start`, `end` and `to` takes; see the top of this module."""


def last(n: int) -> Where:
    """Return where the last `n` offsets of each partition begin."""
    return Where(("last", n))


# ---- in a partition: functions, so that an editor shows no more of a Where than its users need


def is_positions(where: Where) -> bool:
    """Return whether it is a position for each partition that it names, and says nothing of others."""
    return where._kind == "positions"


def is_named(where: Where, topic: str, partition: int) -> bool:
    """Return whether it is positions, and the partition is among them."""
    return _named(where, topic, partition) is not None


def topics_of(where: Where) -> dict[str, list[int]] | None:
    """Return the partitions of each topic that positions name; None if it does not name topics."""
    named: dict[str, list[int]] = {}
    for key in where._positions:
        if isinstance(key, int):
            return None
        named.setdefault(key[0], []).append(key[1])
    return named or None


def fixed(where: Where, now_ms: int) -> Where:
    """Return the same with the moment fixed that a duration means: that long before `now_ms`."""
    if where._kind != "ago":
        return where
    return Where(from_ms(max(_YEAR_1_MS, now_ms - where._number)))


def time_of(where: Where) -> int | None:
    """Return its time, in milliseconds since 1970; None if it is not a time."""
    return where._number if where._kind == "time" else None


def offset_in(where: Where, partition: Partition, *, end: int, default: int) -> int:
    """Return its offset in `partition`, in the log or not.

    `end` is where the log ends for the caller; `default` is for a partition that positions do not name.
    """
    match where._kind:
        case "positions":
            stored = _named(where, partition.topic, partition.number)
            return default if stored is None else resume_at(partition, stored).offset
        case "offset":
            return where._number
        case "latest":
            return end
        case "last":
            return max(partition.ends().start, end - where._number)
        case "earliest":
            return partition.ends().start
        case _:
            time_ms = time_of(fixed(where, partition.now_ms()))
            assert time_ms is not None
            found = partition.offset_at(time_ms)
            return end if found is None else found


def position_in(where: Where, partition: Partition, *, is_new: bool = False) -> Position:
    """Return where a consumer starts in `partition`; with positions, the earliest where they do not name it.

    `is_new`: the partition was added after the consumer was made. It is read from its first record on, unless a time or
    a position says otherwise: nothing that was appended since is left out.
    """
    stored = _named(where, partition.topic, partition.number)
    if stored is not None:
        return resume_at(partition, stored)
    ends = partition.ends()
    if is_new and where._kind not in ("time", "ago"):
        return _position(ends.start, ends)
    offset = offset_in(where, partition, end=ends.end, default=ends.start)
    return Position(offset) if where._kind == "offset" else _position(offset, ends)


def offset_between(where: Where, name: TopicPartition, start: int, end: int) -> int:
    """Return its offset in a log elsewhere, of which only the ends are known. Not for a time."""
    stored = _named(where, *name)
    if stored is not None:
        return stored.offset
    match where._kind:
        case "offset":
            return where._number
        case "latest":
            return end
        case "last":
            return max(start, end - where._number)
        case _:
            assert time_of(where) is None
            return start


def _named(where: Where, topic: str, partition: int) -> Position | None:
    return where._positions.get((topic, partition), where._positions.get(partition))


def range_in(partition: Partition, start: Where, end: Where, *, committed: bool = True, clamp: bool = False) -> range:
    """Return the offsets of `partition` from `start` up to, but not including, `end`, as they are now.

    Those of open transactions are left out, unless `committed` is False. OffsetOutOfRange if `start` is not in the log;
    with `clamp` it becomes the nearest offset that is.
    """
    ends = partition.ends()
    readable = ends.stable if committed else ends.end
    first = offset_in(start, partition, end=readable, default=ends.start)
    stop = offset_in(end, partition, end=readable, default=readable)
    if clamp:
        first = min(max(first, ends.start), ends.end)
    if not ends.start <= first <= ends.end:
        raise OffsetOutOfRange(
            f"{partition.topic}/{partition.number}: offset {first} is not in [{ends.start}, {ends.end})",
            offset=first,
            start=ends.start,
            end=ends.end,
            hint="expected an offset in that range, or 'earliest' for the first",
        )
    return range(first, max(first, min(stop, readable)))


def resume_at(partition: Partition, position: Position) -> Position:
    """Return a stored position as it is to be read now: the end of its leader epoch, if that ended before it.

    After a power cut records that were not synced are gone, and others may have their offsets; an offset that outran
    the log must not skip those.
    """
    if position.leader_epoch >= 0:
        end = partition.end_of_epoch(position.leader_epoch)
        if end < position.offset:
            return Position(end, position.leader_epoch)
    return position


def checked_position(value: object, name: str = "offset") -> Position:
    """Return the Position of an offset, an (offset, leader epoch) or a Position."""
    if isinstance(value, tuple) and len(value) == 2:
        epoch = -1 if value[1] is None else value[1]
        if not isinstance(epoch, int):
            raise TypeError(f"a leader epoch is an int, not {type(epoch).__name__}")
        return Position(_checked_number(value[0], name), max(-1, epoch))
    return Position(_checked_number(value, name))


def _checked_key(key: object, name: str) -> int | tuple[str, int]:
    topic, partition = key if isinstance(key, tuple) and len(key) == 2 else ("", key)
    if isinstance(topic, str) and isinstance(partition, int) and not isinstance(partition, bool) and partition >= 0:
        return (topic, partition) if isinstance(key, tuple) else partition
    raise TypeError(f"{name}: {key!r} is not a partition, nor (topic, partition)")


def _checked_number(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is a whole number, not {type(value).__name__}")
    if value < 0:
        raise InvalidSetting(f"{value} is negative", setting=name, hint="for the last n, say klamm.last(n) or 'last n'")
    if value > _INT64:
        raise InvalidSetting(f"{value} is invalid", setting=name, hint=f"expected at most {_INT64}")
    return value


def _position(offset: int, ends: Ends) -> Position:
    return Position(offset, ends.leader_epoch if offset == ends.end else -1)


def _position_text(key: int | tuple[str, int], position: Position) -> str:
    name = str(key) if isinstance(key, int) else f"{key[0]}/{key[1]}"
    epoch = "" if position.leader_epoch < 0 else f":{position.leader_epoch}"
    return f"{name}@{position.offset}{epoch}"


def _ambiguous(number: int, name: str) -> InvalidSetting:
    hint = f"write @{number} for the offset"
    if number <= _YEAR_9999_MS:
        hint += f", or {format_time(number)} for the milliseconds since 1970"
    return InvalidSetting(f"'{number}' may be an offset or a time", setting=name, hint=hint)
