"""The index of a segment: sparse, by offset and by time.

    header    magic, base offset, size, position of the last batch, CRC-32C of the first batch's header and of the last
              one's, 0, version, CRC-32C of the 60 bytes before                          64 bytes, little-endian
    entry     offset, position, max_timestamp, unused, CRC-32C of the 28 bytes before    32 bytes

An entry means: a batch with base offset `offset` starts at byte `position`, and no record before it in this segment has
a timestamp above `max_timestamp`. The entry written at a roll has the segment's end as its position. An entry is
written after the commit of its batch, about every `index.interval.bytes`.

The header identifies the segment by its content. So an index stays valid beside any copy of its segment, and is not
valid beside another segment. Its fields prove:

    base, first     that it is this log: not another topic's, another store's, or one that was re-created
    size            that nothing was cut off, added or compacted since
    last            that it is not from another copy of the store, which got other records
    its own CRC     that the header is intact; each entry has a CRC, too

While a segment is active, size, position and last are 0, or from a roll that was not committed. Its index is valid for
the committed bytes: an active segment only grows, and only closed ones are compacted. A closed segment whose index has
no size, because the process that rolled it was killed, has no valid index. An empty segment, which compaction may
leave, needs none.

Promises
  I1  An index may miss entries, or be missing; it never lies. An invalid index counts as missing.
  I2  A reader that jumps to an entry's position still checks that the batch there is whole and has that offset.
  I3  A closed segment without a valid index gets one in the background, once a process searches the segment or
      maintains the store (index_rebuild.py).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Self

from klamm.batch import crc32c
from klamm.batch.header import HEADER_SIZE as BATCH_HEADER_SIZE
from klamm.disk import _os, files
from klamm.log import _head, segment

__all__ = ["ENTRY_SIZE", "HEADER_SIZE", "Entry", "Index", "pack_header", "sync", "write"]

_HEADER = struct.Struct("<8sqqqII16xII")
_ENTRY = struct.Struct("<qqqII")
_BATCH_START = struct.Struct(">qi")
HEADER_SIZE, ENTRY_SIZE = 64, 32
assert _HEADER.size == HEADER_SIZE
assert _ENTRY.size == ENTRY_SIZE


class Entry(NamedTuple):
    offset: int
    position: int
    max_timestamp: int


def _parse(data: bytes) -> Entry | None:
    offset, position, max_timestamp, _, crc = _ENTRY.unpack(data)
    return Entry(offset, position, max_timestamp) if crc == crc32c(data[:-4]) else None


def _header_crc(fd: int, position: int) -> int | None:
    """Return the CRC-32C of the header of the batch at a byte of a segment."""
    data = _os.pread(fd, BATCH_HEADER_SIZE, position)
    return crc32c(data) if len(data) == BATCH_HEADER_SIZE else None


class Index:
    """The index of one segment, opened for a look-up. It has no entries if it is not valid."""

    def __init__(self, directory: str, base: int, *, end_position: int | None = None, log_fd: int = -1) -> None:
        """Open an index. `end_position`: where the committed part of the active segment ends; None: it is closed.

        `log_fd`: the segment, if it is open already.
        """
        self.base = base
        self.path = segment.path_of(directory, base, ".index")
        self.fd = -1
        self._end = 0  # entries with a position beyond it do not count
        self.count = 0
        self.is_valid = False
        own_fd = -1
        try:
            if log_fd < 0:
                log_fd = own_fd = _os.open_file(segment.path_of(directory, base), os.O_RDONLY)
            if os.fstat(log_fd).st_size == 0:
                self.is_valid = True
                return
            self.fd = _os.open_file(self.path, os.O_RDONLY)
            self.is_valid = self._is_of(log_fd, end_position)
        except FileNotFoundError:
            return
        finally:
            if own_fd >= 0:
                os.close(own_fd)
        if self.is_valid:
            self.count = (os.fstat(self.fd).st_size - HEADER_SIZE) // ENTRY_SIZE

    def _is_of(self, log_fd: int, end_position: int | None) -> bool:
        data = _os.pread(self.fd, HEADER_SIZE, 0)
        if len(data) < HEADER_SIZE or data[-4:] != crc32c(data[:-4]).to_bytes(4, "little"):
            return False
        magic, base, size, last_position, first, last, version, _ = _HEADER.unpack(data)
        if magic != _head.INDEX_MAGIC or version != _head.INDEX_VERSION or base != self.base:
            return False
        if first != _header_crc(log_fd, 0):
            return False
        self._end = size if end_position is None else end_position
        return end_position is not None or (
            os.fstat(log_fd).st_size == size > last_position >= 0 and _header_crc(log_fd, last_position) == last
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def entry(self, number: int) -> Entry | None:
        """Return the entry, or None if its checksum is wrong."""
        data = _os.pread(self.fd, ENTRY_SIZE, HEADER_SIZE + number * ENTRY_SIZE)
        return _parse(data) if len(data) == ENTRY_SIZE else None

    def _last(self, holds: Callable[[Entry], bool]) -> tuple[Entry, int]:
        """Return the last entry for which `holds` is true, and the number of entries up to it; by default the segment's
        start.

        `holds` is true up to some entry and false after it. The search ends at a broken entry, and at one with a
        position beyond the segment.
        """
        best = Entry(self.base, 0, -1)
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is not None and entry.position <= self._end and holds(entry):
                best, low = entry, middle + 1
            else:
                high = middle
        return best, low

    def before_offset(self, offset: int) -> Entry:
        """Return the last entry at or before `offset`."""
        return self._last(lambda entry: entry.offset <= offset)[0]

    def before_position(self, position: int) -> tuple[Entry, int]:
        """Return the last entry at or before a byte of the segment, and the number of entries up to it."""
        return self._last(lambda entry: entry.position <= position)

    def before_time(self, timestamp: int) -> Entry:
        """Return where to start the search for the first record at or after a time: all records before are older."""
        return self._last(lambda entry: entry.max_timestamp < timestamp)[0]

    def closing(self, size: int) -> Entry | None:
        """Return the entry made when the segment was closed, which has the max timestamp of all of it."""
        entry = self.entry(self.count - 1) if self.count else None
        return entry if entry is not None and entry.position == size else None


def sync(directory: str, first: int, last: int) -> None:
    """Make the indexes of these segments durable, for a recovery point: recovery does not rebuild indexes below it."""
    for base in segment.bases(directory, ".index"):
        if first <= base <= last:
            with suppress(OSError):  # removed just now, or it cannot be synced: at worst it is missing later
                files.sync_file(segment.path_of(directory, base, ".index"))


def pack_header(directory: str, base: int, *, size: int | None = None, near: int = 0) -> bytes | None:
    """Return the header for the index of a segment, closed with `size` bytes or active; None if it has no batch.

    `near`: where a batch starts, at or before the last one.
    """
    fd = _os.open_file(segment.path_of(directory, base), os.O_RDONLY)
    try:
        first = _header_crc(fd, 0)
        if first is None or size is None:
            return None if first is None else _head.index_header(base, first)
        position = following = near
        while following < size:
            position = following
            data = _os.pread(fd, _BATCH_START.size, position)
            if len(data) < _BATCH_START.size:
                return None
            following = position + _BATCH_START.size + max(_BATCH_START.unpack(data)[1], 0)
        last = _header_crc(fd, position)
        return None if last is None or following != size else _head.index_header(base, first, size, position, last)
    finally:
        os.close(fd)


def write(directory: str, base: int, entries: list[Entry], *, keep: int = 0, size: int | None = None) -> None:
    """Replace all but the first `keep` entries by these, and sync the index; remove it if the segment has no batch.

    `size`: of a closed segment.
    """
    path = segment.path_of(directory, base, ".index")
    data = b"".join(_head.index_entry(*entry) for entry in entries)
    before = [entry.position for entry in entries if size is not None and entry.position < size]
    if not keep:
        header = pack_header(directory, base, size=size, near=before[-1] if before else 0)
        if header is None:
            files.remove(path)
        else:
            files.replace(path, header + data)
        return
    fd = _os.open_file(path, os.O_RDWR)
    try:
        for number in range(keep - 1, -1, -1) if size is not None and not before else ():
            known = _parse(_os.pread(fd, ENTRY_SIZE, HEADER_SIZE + number * ENTRY_SIZE))
            if known is not None and known.position < (size or 0):
                before = [known.position]
                break
        header = pack_header(directory, base, size=size, near=before[-1] if before else 0) or bytes(HEADER_SIZE)
        end = HEADER_SIZE + keep * ENTRY_SIZE
        if os.fstat(fd).st_size != end or data or _os.pread(fd, HEADER_SIZE, 0) != header:
            _os.truncate(fd, end)
            _os.pwrite(fd, data, end)
            _os.pwrite(fd, header, 0)
            _os.fsync(fd)
    finally:
        os.close(fd)
