"""Retention: remove whole segments by age and size, or everything before an offset.

`log_start` moves first, as a commit and in the file `recovery`; then files are removed. So a reader gets an offset out
of range, never a hole, and a crash in between leaves unreachable files that the next pass removes. The active segment
is never removed. A cleaning process holds the clean byte, and the append lock for no longer than a commit.

A segment is as old as its latest record. A timestamp in the future does not show the age, and one such record must not
keep a log forever: then the time when the file was last written counts. If that is in the future, too, the segment is
as old as the next one.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from klamm.disk import files
from klamm.log import aborted, head, index, point, producers, recovery, segment
from klamm.log.index import Index
from klamm.log.recovery import scan_segment

__all__ = ["age_of_active", "expired", "latest_in", "max_timestamp_of", "move_log_start", "remove_unreachable"]


_DAMAGED = (1 << 63) - 1
_SLACK_MS = 60_000  # still counts as now: records are appended after the clock was read, and clocks differ


def max_timestamp_of(
    directory: str,
    base: int,
    following: int,
    *,
    contiguous: bool = True,
    on_missing_index: Callable[[], object] = lambda: None,
) -> int:
    """Return the largest timestamp in a closed segment, from its index or by reading it. -1: no record has one.

    A damaged segment gets the largest possible time: retention must not remove it, and a search by time must report it.
    """
    with Index(directory, base) as found:
        entry = found.closing(os.stat(segment.path_of(directory, base)).st_size)
    if entry is not None and entry.offset == following:
        return entry.max_timestamp
    if not found.is_valid:
        on_missing_index()
    scanned = scan_segment(directory, base, contiguous=contiguous)
    whole = scanned.offset == following if contiguous else scanned.offset <= following
    return scanned.max_timestamp if scanned.fault is None and whole else _DAMAGED


def latest_in(directory: str, base: int, following: int, clock_ms: int, *, contiguous: bool = True) -> int | None:
    """Return when the latest record of a closed segment was appended; None if that lies in the future.

    That is its timestamp. If it has none (as in Kafka), or one in the future, the time when the file was last written.
    """
    max_timestamp = max_timestamp_of(directory, base, following, contiguous=contiguous)
    if 0 <= max_timestamp <= clock_ms + _SLACK_MS or max_timestamp == _DAMAGED:
        return max_timestamp
    return _written_ms(directory, base, clock_ms)


def age_of_active(directory: str, now: head.Snapshot, clock_ms: int) -> int:
    """Return when the latest record of the active segment was appended; `clock_ms` if its times lie in the future."""
    if 0 <= now.max_timestamp <= clock_ms + _SLACK_MS:
        return now.max_timestamp
    written_ms = _written_ms(directory, now.active_base, clock_ms) if now.position else None
    return clock_ms if written_ms is None else written_ms


def _written_ms(directory: str, base: int, clock_ms: int) -> int | None:
    written_ms = os.stat(segment.path_of(directory, base)).st_mtime_ns // 1_000_000
    return written_ms if written_ms <= clock_ms else None


def expired(
    directory: str,
    now: head.Snapshot,
    *,
    retention_ms: int,
    retention_bytes: int,
    clock_ms: int,
    contiguous: bool = True,
) -> int:
    """Return the log start offset that the limits (-1: none) call for at `clock_ms`."""
    closed = [base for base in segment.bases(directory) if base < now.active_base]
    sizes = {base: os.stat(segment.path_of(directory, base)).st_size for base in closed}
    total = sum(sizes.values()) + now.position
    start = now.log_start
    ends = [*closed, now.active_base][1:]
    ages: dict[int, int | None] = {}

    def latest(first: int) -> int:
        """Return when the latest record of the segment closed[first] was appended, or at most that of a later one."""
        for base, following in zip(closed[first:], ends[first:], strict=True):
            if base not in ages:
                ages[base] = latest_in(directory, base, following, clock_ms, contiguous=contiguous)
            if (age := ages[base]) is not None:
                return age
        return age_of_active(directory, now, clock_ms)

    for at, (base, following) in enumerate(zip(closed, ends, strict=True)):
        too_much = 0 <= retention_bytes <= total - sizes[base]
        too_old = retention_ms >= 0 and not too_much and latest(at) < clock_ms - retention_ms
        if not too_much and not too_old:
            break
        total -= sizes[base]
        start = max(start, following)
    return start


def move_log_start(log: head.Log, offset: int) -> None:
    """Move the log start to `offset`, durably."""
    directory = log.directory
    with log.point_lock():
        now = log.snapshot()
        if offset <= now.log_start:
            return
        known = recovery.last_point(log)
        if known.offset <= offset:  # the recovery point would lie in the removed part, or at its end
            head.sync(log, now.next_offset)
            index.sync(directory, known.base, now.active_base)
            known = known._replace(offset=now.next_offset, base=now.active_base, position=now.position)
        point.store(directory, known._replace(log_start=offset))
        log.set_recovery_point(known.base, known.position)
    with log.append_lock():
        log.make_up()
        log.publish(log_start=max(offset, log.snapshot().log_start))


def remove_unreachable(log: head.Log) -> list[int]:
    """Unlink segments that end at or before `log_start`, and return their base offsets."""
    directory = log.directory
    now = log.snapshot()
    closed = [base for base in segment.bases(directory) if base < now.active_base]
    ends = [*closed[1:], now.active_base]
    gone = [base for base, end in zip(closed, ends, strict=False) if end <= now.log_start]
    for base in gone:
        files.remove(segment.path_of(directory, base, ".index"))
        files.remove(segment.path_of(directory, base, aborted.SUFFIX))
        files.remove(segment.path_of(directory, base))
    if gone:
        for offset in segment.bases(directory, producers.SUFFIX)[:-1]:
            if offset < now.log_start:
                files.remove(segment.path_of(directory, offset, producers.SUFFIX))
        files.sync_directory(directory)
        log.bump_segments_version()
    return gone
