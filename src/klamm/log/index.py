"""The index of a segment: sparse, by offset and by time.

    header    magic, inode of the .log, base offset, version, CRC-32C                    32 bytes, little-endian
    entry     offset, position, max_timestamp, unused, CRC-32C of the 28 bytes before    32 bytes

An entry says: a batch with base offset `offset` starts at byte `position`, and no record before it in this segment is
younger than `max_timestamp`. The entry written at a roll has the segment's end as its position. Entries are written
after the commit they speak of, about every `index.interval.bytes`.

Promises
  I1  An index may miss entries, or be missing; it never lies. A wrong CRC, or another inode, is a missing one.
  I2  Whoever jumps to an entry's position still checks that the batch there is whole and has that offset.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Self

from klamm.batch import crc32c
from klamm.disk import _os, files
from klamm.log import _head, segment

__all__ = ["ENTRY_SIZE", "HEADER_SIZE", "Entry", "Index", "sync", "write"]

_HEADER = struct.Struct("<8sQqII")
_ENTRY = struct.Struct("<qqqII")
HEADER_SIZE = ENTRY_SIZE = 32
assert _HEADER.size == HEADER_SIZE
assert _ENTRY.size == ENTRY_SIZE


class Entry(NamedTuple):
    offset: int
    position: int
    max_timestamp: int


def _parse(data: bytes) -> Entry | None:
    offset, position, max_timestamp, _, crc = _ENTRY.unpack(data)
    return Entry(offset, position, max_timestamp) if crc == crc32c(data[:-4]) else None


class Index:
    """The index of one segment, opened for a look-up. Empty when it cannot be believed."""

    def __init__(self, directory: str, base: int) -> None:
        self.base = base
        self.path = segment.path_of(directory, base, ".index")
        self._fd = -1
        self.count = 0
        try:
            inode = os.stat(segment.path_of(directory, base)).st_ino
            self._fd = _os.open_file(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return
        header = _os.pread(self._fd, HEADER_SIZE, 0)
        if len(header) == HEADER_SIZE:
            magic, log_inode, log_base, version, crc = _HEADER.unpack(header)
            good = crc == crc32c(header[:-4]) and magic == _head.INDEX_MAGIC and version == _head.INDEX_VERSION
            if good and log_inode == inode and log_base == base:
                self.count = (os.fstat(self._fd).st_size - HEADER_SIZE) // ENTRY_SIZE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def entry(self, number: int) -> Entry | None:
        """The entry, or None if its checksum is wrong."""
        data = _os.pread(self._fd, ENTRY_SIZE, HEADER_SIZE + number * ENTRY_SIZE)
        return _parse(data) if len(data) == ENTRY_SIZE else None

    def _last(self, holds: Callable[[Entry], bool]) -> tuple[Entry, int]:
        """The last entry for which `holds`, and how many there are up to it; where none does, the segment's start.

        `holds` is true up to some entry and false from there on. A broken entry ends the part that is looked at.
        """
        best = Entry(self.base, 0, -1)
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is not None and holds(entry):
                best, low = entry, middle + 1
            else:
                high = middle
        return best, low

    def before_offset(self, offset: int) -> Entry:
        """Where to start looking for `offset`."""
        return self._last(lambda entry: entry.offset <= offset)[0]

    def before_position(self, position: int) -> tuple[Entry, int]:
        """The last entry at or before a byte of the segment, and how many there are up to it."""
        return self._last(lambda entry: entry.position <= position)

    def before_time(self, timestamp: int) -> Entry:
        """Where to start looking for the first record that is at least as young: all before is older."""
        return self._last(lambda entry: entry.max_timestamp < timestamp)[0]

    def closing(self, size: int) -> Entry | None:
        """The entry made when the segment was closed, which tells the max timestamp of all of it."""
        entry = self.entry(self.count - 1) if self.count else None
        return entry if entry is not None and entry.position == size else None


def sync(directory: str, first: int, last: int) -> None:
    """Make the indexes of these segments durable, with a recovery point: those below it are not made anew."""
    for base in segment.bases(directory, ".index"):
        if first <= base <= last:
            with suppress(OSError):  # removed just now, or not to be synced: then it is missing, no more
                files.sync_file(segment.path_of(directory, base, ".index"))


def write(directory: str, base: int, entries: list[Entry], *, keep: int = 0) -> None:
    """Let the index have its first `keep` entries and then these, durably."""
    path = segment.path_of(directory, base, ".index")
    data = b"".join(_head.index_entry(*entry) for entry in entries)
    if not keep:
        inode = os.stat(segment.path_of(directory, base)).st_ino
        files.replace(path, _head.index_header(inode, base) + data)
        return
    fd = _os.open_file(path, os.O_RDWR)
    try:
        size = HEADER_SIZE + keep * ENTRY_SIZE
        if os.fstat(fd).st_size != size or data:
            _os.truncate(fd, size)
            _os.pwrite(fd, data, size)
            _os.fsync(fd)
    finally:
        os.close(fd)
