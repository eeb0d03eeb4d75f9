"""Rebuild the missing indexes of a partition's closed segments (index.py, I3).

A segment is read without a lock, in the maintenance thread. The index is written under the clean lock, and only if the
segment is still the file that was read: a compaction may have replaced it, retention may have removed it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from klamm.errors import KlammError, StoreBusy
from klamm.log import cleaner_checkpoint, index, recovery, segment
from klamm.log.index import Entry, Index

if TYPE_CHECKING:
    from klamm.log.partition import Partition

__all__ = ["IndexRebuild", "Stopped"]

_log = logging.getLogger("klamm")


class Stopped(Exception):
    """A rebuild was interrupted because its store is being closed."""


class IndexRebuild:
    """Rebuilds indexes of one partition, for one process. If two threads run it, one of them works in vain."""

    def __init__(self) -> None:
        self._checked = -1  # segments_version at which every closed segment was checked
        self._unreadable: set[tuple[int, int]] = set()  # base and inode of segments that cannot be indexed

    def run(
        self,
        partition: Partition,
        hold: Callable[[], AbstractContextManager[None]],
        is_over: Callable[[], bool],
        *,
        is_missing: bool,
    ) -> list[int]:
        """Rebuild missing indexes and return the base offsets of their segments. Raise Stopped when `is_over`.

        `hold` returns the clean lock. With `is_missing` (a reader missed an index), check all segments; otherwise only
        if a segment was added, removed or replaced since the last check.
        """
        version = partition.log.segments_version
        if version == self._checked and not is_missing:
            return []
        active_base = partition.snapshot().active_base
        found = [base for base in segment.bases(partition.directory) if base < active_base]
        rebuilt = []
        is_complete = True
        for base, next_base in zip(found, [*found[1:], active_base], strict=False):
            try:
                if self._rebuild(partition, base, next_base, hold, is_over):
                    rebuilt.append(base)
            except FileNotFoundError:
                continue  # expired just now
            except StoreBusy:
                is_complete = False  # being cleaned: the next reader or the next maintenance does it
        if is_complete:
            self._checked = version
        return rebuilt

    def _rebuild(
        self,
        partition: Partition,
        base: int,
        next_base: int,
        hold: Callable[[], AbstractContextManager[None]],
        is_over: Callable[[], bool],
    ) -> bool:
        directory = partition.directory
        path = segment.path_of(directory, base)
        with Index(directory, base) as known:
            if known.is_valid:
                return False
        identity = _identity(path)
        if (base, identity[0]) in self._unreadable:
            return False

        def stop() -> None:
            if is_over():
                raise Stopped

        stop()
        gaps_below = cleaner_checkpoint.load(directory).gaps_below if cleaner_checkpoint.exists(directory) else 0
        scanned = recovery.scan_segment(
            directory,
            base,
            interval=partition.settings.index_interval_bytes,
            contiguous=base >= gaps_below,
            on_progress=stop,
        )
        end = scanned.offset if scanned.offset >= gaps_below else next_base
        if scanned.fault is not None or scanned.position != identity[1] or end != next_base:
            self._unreadable.add((base, identity[0]))  # a reader of the segment reports the damage
            return False
        with hold():
            if _identity(path) != identity:
                return False
            entries = [*scanned.entries, Entry(end, scanned.position, scanned.max_timestamp)]
            try:
                index.write(directory, base, entries, size=scanned.position)
            except (OSError, KlammError) as error:
                self._unreadable.add((base, identity[0]))
                _log.warning("%s: cannot be written: %s", known.path, error)
                return False
        _log.info("%s: index was missing or did not match its segment: rebuilt", known.path)
        return True


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_size
