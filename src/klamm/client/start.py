"""Where a consumer starts to read.

    "earliest"                 the first record that is there; the default
    "latest"                   what is appended from now on
    4711                       an offset, in every partition
    {0: 4711, 1: 815}          an offset for each partition, or a Position with its leader epoch; with several topics
                               the keys are (topic, partition). Partitions that are not named start at the earliest
    datetime, timedelta        the first record that is as young as that time, or as now minus the timedelta
    ("timestamp", ms)          the same in milliseconds since 1970
    ("last", 10)               the last 10 offsets of each partition

A partition that is added while the consumer reads starts at its earliest record, unless a time is asked for: nothing
that was appended since the consumer was made is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from klamm.client.options import to_ms
from klamm.errors import InvalidSetting
from klamm.types import Position

if TYPE_CHECKING:
    from klamm.log.partition import Partition

__all__ = ["Start", "Starting", "checked_position", "resume_at"]

Start: TypeAlias = str | int | datetime | timedelta | tuple[str, int] | Mapping[Any, Any]


class Starting:
    """A `start`, found to be one."""

    def __init__(self, start: Start) -> None:
        self._offsets: Mapping[Any, Position] = {}
        self._number = 0
        if isinstance(start, str):
            if start not in ("earliest", "latest"):
                raise InvalidSetting(
                    f"start: {start!r} does not fit", hint="want 'earliest', 'latest', an offset or a time"
                )
            self._kind = start
        elif isinstance(start, timedelta):
            self._kind = "ago"
            self._number = start // timedelta(milliseconds=1)
        elif isinstance(start, datetime):
            self._kind = "timestamp"
            self._number = to_ms(start)
        elif isinstance(start, Mapping):
            self._kind = "earliest"
            self._offsets = {_checked_key(key): checked_position(value) for key, value in start.items()}
        elif isinstance(start, tuple):
            if len(tuple(start)) != 2 or start[0] not in ("last", "timestamp", "offset"):
                raise InvalidSetting(f"start: {start!r} does not fit", hint="want ('last', n) or ('timestamp', ms)")
            self._kind = start[0]
            self._number = _checked_number(start[1], f"start: {start[0]}")
        else:
            self._kind = "offset"
            self._number = _checked_number(start, "start")

    def names(self, topic: str, number: int) -> bool:
        """Whether the partition was named."""
        return (topic, number) in self._offsets or number in self._offsets

    def position_in(self, partition: Partition, *, new: bool) -> Position:
        """Where to start in `partition`. `new`: it was not there when the consumer was made."""
        known = self._offsets.get((partition.topic, partition.number), self._offsets.get(partition.number))
        if known is not None:
            return resume_at(partition, known)
        ends = partition.ends()
        offset = ends.start
        if self._kind == "ago":  # than the store has it now
            self._kind, self._number = "timestamp", partition.now_ms() - self._number
        if self._kind == "timestamp":
            found = partition.offset_at(self._number)
            offset = ends.end if found is None else found
        elif not new:
            if self._kind == "latest":
                offset = ends.end
            elif self._kind == "last":
                offset = max(ends.start, ends.end - self._number)
            elif self._kind == "offset":
                return Position(self._number)
        return Position(offset, ends.leader_epoch if offset == ends.end else -1)


def resume_at(partition: Partition, position: Position) -> Position:
    """A stored position as it is to be read now: where its leader epoch ended before it, that end.

    After a power cut records that were not synced are gone, and others may have their offsets; an offset that outran
    the log must not skip those.
    """
    if position.leader_epoch >= 0:
        end = partition.end_of_epoch(position.leader_epoch)
        if end < position.offset:
            return Position(end, position.leader_epoch)
    return position


def checked_position(value: object) -> Position:
    """An offset, a (offset, leader epoch) or a Position."""
    if isinstance(value, tuple) and len(value) == 2:
        epoch = -1 if value[1] is None else value[1]
        if not isinstance(epoch, int):
            raise TypeError(f"a leader epoch is an int, not {type(epoch).__name__}")
        return Position(_checked_number(value[0], "offset"), epoch)
    return Position(_checked_number(value, "offset"))


def _checked_key(key: object) -> object:
    if isinstance(key, int) or (isinstance(key, tuple) and len(key) == 2):
        return key
    raise TypeError(f"start: {key!r} is not a partition, nor (topic, partition)")


def _checked_number(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} is a whole number, not {type(value).__name__}")
    if value < 0:
        raise InvalidSetting(f"{what}: {value} is negative", hint="for the last n, say start=('last', n)")
    return value
