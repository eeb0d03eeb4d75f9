"""The aborted transactions that a reader needs: those of its current segment and of all later ones.

Entries of `.aborted` files (aborted.py) are read once each: a file only grows, so after an abort a reader loads what
was appended since. A file that was replaced (recovery and repair do that) is loaded again, and one that was removed is
rebuilt from the log (producer_recovery.py). Both questions are answered by bisection, so that reading a log takes
time linear in its aborted transactions:

  covers        is this producer's batch part of an aborted transaction? The producer's last transaction that began at
                or before the batch decides: transactions of one producer do not overlap.
  within        which transactions have records in a range of offsets? Entries are in the order of their markers. Each
                has the least first offset of itself and all later entries, so a walk from the first marker in the range
                stops where no later transaction reaches back into the range.

Not thread-safe.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from klamm.disk import _os, files
from klamm.log import aborted, segment
from klamm.log.producer_recovery import restore_lost_aborted, unlisted

if TYPE_CHECKING:
    from klamm.log.partition import Partition

__all__ = ["AbortedSpans"]


class AbortedSpans:
    """The aborted transactions of a partition, as far as `refresh` has read."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._version = -1  # of the segments, when it was last refreshed
        self._clear(-1)

    def _clear(self, base: int) -> None:
        self._base = base  # everything from this segment on is known
        self._files: dict[int, tuple[int, int]] = {}  # by base offset of their segment: inode, bytes read
        self._good: dict[int, int] = {}  # whole entries
        self._compared: set[int] = set()  # closed segments whose file has an entry for every abort
        self._by_producer: dict[int, tuple[array[int], array[int]]] = {}  # first and last offsets, ascending
        self._ends: array[int] = array("q")  # in the order of markers: last offset, first offset, producer id,
        self._begins: array[int] = array("q")
        self._producers: array[int] = array("q")
        self._earliest: array[int] = array("q")  # and the least first offset of this entry and all later ones

    def __bool__(self) -> bool:
        return bool(self._ends)

    def is_fresh(self, base: int) -> bool:
        """Return whether `refresh` would read nothing."""
        return self._partition.log.segments_version == self._version and 0 <= self._base <= base

    def refresh(self, base: int) -> None:
        """Load what was aborted in the segment `base` and later ones, as of now or later."""
        partition = self._partition
        version = partition.log.segments_version
        if self.is_fresh(base):
            return
        if not 0 <= self._base <= base:
            self._clear(base)
        if partition.recovered is not None:  # in memory, for a read-only store; it does not change
            if not self:
                self._add(partition.recovered)
        elif not self._files or not self._read_new() or self._lacks_entries():
            restore_lost_aborted(partition, base)
            self._clear(base)
            self._read_new()
        self._version = version

    def _lacks_entries(self) -> bool:
        """Return whether the latest file has fewer entries than were written to it, or one of a closed segment fewer
        than its markers call for.
        """
        partition = self._partition
        base, count = partition.log.aborted_file
        if base >= self._base and self._good.get(base, 0) < count:
            return True
        for base, offsets in unlisted(partition).items():
            if base >= self._base and base not in self._compared:
                if not all(map(self._has_end, offsets)) and os.path.exists(segment.path_of(partition.directory, base)):
                    return True
                self._compared.add(base)
        return False

    def _has_end(self, offset: int) -> bool:
        at = bisect_left(self._ends, offset)
        return at < len(self._ends) and self._ends[at] == offset

    def _read_new(self) -> bool:
        """Read what was appended to the files. Return False if one of them was replaced."""
        directory = self._partition.directory
        for base in segment.bases(directory, aborted.SUFFIX):
            if base < self._base:
                continue
            try:
                fd = _os.open_file(segment.path_of(directory, base, aborted.SUFFIX), os.O_RDONLY)
            except FileNotFoundError:
                continue  # expired in between
            try:
                status = os.fstat(fd)
                inode, done = self._files.get(base, (status.st_ino, 0))
                if inode != status.st_ino or status.st_size < done:
                    return False
                self._files[base] = inode, done
                while data := _os.pread(fd, min(files.PIECE, max(0, status.st_size - done)), done):
                    whole = len(data) - len(data) % aborted.ENTRY_SIZE
                    if not whole:
                        break  # a torn entry has no marker yet
                    entries = aborted.parse(data[:whole])
                    self._add(entries)
                    done += whole
                    self._good[base] = self._good.get(base, 0) + len(entries)
                    self._files[base] = inode, done
            finally:
                os.close(fd)
        return True

    def _add(self, entries: list[aborted.Aborted]) -> None:
        ends, begins, producers, earliest = self._ends, self._begins, self._producers, self._earliest
        for producer_id, first, last in entries:
            at = bisect_right(ends, last)  # at the end, except for what a killed writer left
            ends.insert(at, last)
            begins.insert(at, first)
            producers.insert(at, producer_id)
            earliest.insert(at, first if at == len(earliest) else min(first, earliest[at]))
            while at and earliest[at - 1] > first:
                at -= 1
                earliest[at] = first
            firsts, lasts = self._by_producer.setdefault(producer_id, (array("q"), array("q")))
            at = bisect_left(firsts, first)
            if at < len(firsts) and firsts[at] == first:  # its marker was begun twice (A2): the later one counts
                lasts[at] = max(lasts[at], last)
            else:
                firsts.insert(at, first)
                lasts.insert(at, last)

    def covers(self, producer_id: int, offset: int) -> bool:
        """Return whether the batch of this producer at `offset` was aborted."""
        known = self._by_producer.get(producer_id)
        if known is None:
            return False
        at = bisect_right(known[0], offset) - 1
        return at >= 0 and offset <= known[1][at]

    def within(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return producer id and first offset of each aborted transaction with records in [first, end), by first
        offset.

        Each is returned once, although a writer that was killed before its marker leaves an extra entry (A2 of
        aborted.py): a client removes one entry at each marker, and would leave out committed records because of an
        entry that remains.
        """
        found: set[tuple[int, int]] = set()
        for at in range(bisect_left(self._ends, first), len(self._ends)):
            if self._earliest[at] >= end:
                break
            if self._begins[at] < end:
                found.add((self._producers[at], self._begins[at]))
        return sorted(found, key=lambda span: (span[1], span[0]))
