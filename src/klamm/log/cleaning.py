"""Removing old records: whole segments by age and size, or everything before an offset.

`log_start` moves first, as a commit and in the file `recovery`; then files go. So a reader finds its offset out of
range, never a hole, and a crash in between leaves files that nobody can reach and the next cleaning removes. The active
segment is never removed. Cleaners hold the clean byte, never an append byte for longer than a commit.
"""

from __future__ import annotations

import os

from klamm.disk import files
from klamm.log import aborted, head, index, point, producers, recovery, segment
from klamm.log.index import Index
from klamm.log.recovery import scan_segment

__all__ = ["expired", "max_timestamp_of", "move_log_start", "remove_unreachable"]


_DAMAGED = (1 << 63) - 1


def max_timestamp_of(directory: str, base: int, following: int, *, contiguous: bool = True) -> int:
    """The youngest timestamp in a closed segment, from its index or else by reading it. -1: none has one.

    A damaged segment is as young as can be: retention must not take it away, and who looks for a time must meet it.
    """
    with Index(directory, base) as found:
        entry = found.closing(os.stat(segment.path_of(directory, base)).st_size)
    if entry is not None and entry.offset == following:
        return entry.max_timestamp
    scanned = scan_segment(directory, base, contiguous=contiguous)
    whole = scanned.offset == following if contiguous else scanned.offset <= following
    return scanned.max_timestamp if scanned.fault is None and whole else _DAMAGED


def _age_of(directory: str, base: int, following: int, contiguous: bool) -> int:
    """The same, or when the file was last written if its records have no timestamps, as Kafka does."""
    youngest = max_timestamp_of(directory, base, following, contiguous=contiguous)
    return youngest if youngest >= 0 else os.stat(segment.path_of(directory, base)).st_mtime_ns // 1_000_000


def expired(
    directory: str,
    now: head.Snapshot,
    *,
    retention_ms: int,
    retention_bytes: int,
    clock_ms: int,
    contiguous: bool = True,
) -> int:
    """The offset before which segments are too old, or too much. -1 keeps for ever."""
    closed = [base for base in segment.bases(directory) if base < now.active_base]
    sizes = {base: os.stat(segment.path_of(directory, base)).st_size for base in closed}
    total = sum(sizes.values()) + now.position
    start = now.log_start
    for base, following in zip(closed, [*closed[1:], now.active_base], strict=False):
        too_much = 0 <= retention_bytes <= total - sizes[base]
        youngest = _age_of(directory, base, following, contiguous) if retention_ms >= 0 and not too_much else 0
        too_old = retention_ms >= 0 and youngest < clock_ms - retention_ms
        if not too_much and not too_old:
            break
        total -= sizes[base]
        start = max(start, following)
    return start


def move_log_start(log: head.Log, offset: int) -> None:
    """From now on the log starts at `offset`, durably."""
    directory = log.directory
    with log.flush_lock():
        now = log.snapshot()
        if offset <= now.log_start:
            return
        known = recovery.last_point(log)
        if known.offset <= offset:  # the recovery point would lie in what goes away, or at its end
            now = head.flush(log)
            index.sync(directory, known.base, now.active_base)
            known = known._replace(offset=now.next_offset, base=now.active_base, position=now.position)
        point.store(directory, known._replace(log_start=offset))
        log.set_recovery_point(known.base, known.position)
    with log.append_lock():
        log.make_up()
        log.publish(log_start=max(offset, log.snapshot().log_start))


def remove_unreachable(log: head.Log) -> list[int]:
    """Unlink segments that end at or before `log_start`; their base offsets."""
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
