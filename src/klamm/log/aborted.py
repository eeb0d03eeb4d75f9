"""The aborted transactions of a segment, which readers of committed records leave out.

    00000000000000004711.aborted    producer id, first offset, last offset, unused, CRC-32C of the 28 bytes before
                                    32 bytes an entry, little-endian; made at the segment's first abort

An entry means: the records of this producer from the first offset up to the marker at the last offset are aborted. It
lies beside the segment of the marker and is written before the marker is committed, so a reader that may read beyond
the marker finds it.

Promises
  A1  The file is complete, not sparse: every abort marker below the commit that ended a transaction has an entry.
  A2  A writer that is killed between entry and marker leaves an entry that no marker belongs to. The transaction is
      still open then, and the process that ends it writes a second entry, with its marker. Both entries cover the same
      records, for the producer cannot write others before the marker. Clients of the Kafka server count the entries
      that they get, so ranges.py returns one of the two.
  A3  Entries below the latest snapshot of producers are on disk; recovery re-creates the later ones from the log.
  A4  A file that was removed, damaged or replaced by an older one is noticed before records are read, compacted or
      copied, and before a recovery point lists the files: it is rebuilt from the log (producer_recovery.py).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from klamm.batch import crc32c
from klamm.disk import files
from klamm.log import segment

__all__ = [
    "ENTRY_SIZE",
    "SUFFIX",
    "Aborted",
    "Listed",
    "Spans",
    "count_below",
    "find_lost",
    "holds",
    "is_complete",
    "is_whole",
    "load",
    "load_from",
    "parse",
    "sync",
    "write",
]

SUFFIX = ".aborted"
_ENTRY = struct.Struct("<qqqII")
ENTRY_SIZE = 32
assert (_ENTRY.size, files.PIECE % ENTRY_SIZE) == (ENTRY_SIZE, 0)

Listed = tuple[int, int, int]
"""What must be in a file, according to the recovery point or the head, as (base, count, below): the file of the segment
with base offset `base` has at least `count` entries whose last offset is less than `below`."""

Spans = dict[int, list[tuple[int, int]]]
"""By producer id: first and last offsets."""


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int


def load(directory: str, base: int) -> list[Aborted]:
    """Return the entries of one segment's file; none if it is missing. A torn entry has no marker yet."""
    entries: list[Aborted] = []
    with suppress(FileNotFoundError):
        for piece in files.pieces(segment.path_of(directory, base, SUFFIX)):
            entries += parse(piece)
    return entries


def parse(data: bytes) -> list[Aborted]:
    """Return the whole entries of a file, or of a part of one."""
    entries = [data[at : at + ENTRY_SIZE] for at in range(0, len(data) - ENTRY_SIZE + 1, ENTRY_SIZE)]
    return [Aborted(*_ENTRY.unpack(entry)[:3]) for entry in entries if _is_good(entry)]


def _is_good(entry: bytes) -> bool:
    return bool(_ENTRY.unpack(entry)[4] == crc32c(entry[:-4]))


def is_whole(directory: str, base: int) -> bool:
    """Return whether every entry of a segment's file is as it was written, or the file is missing."""
    with suppress(FileNotFoundError):
        return all(
            len(piece) % ENTRY_SIZE == 0
            and all(_is_good(piece[at : at + ENTRY_SIZE]) for at in range(0, len(piece), ENTRY_SIZE))
            for piece in files.pieces(segment.path_of(directory, base, SUFFIX))
        )
    return True


def is_complete(directory: str, base: int, count: int) -> bool:
    """Return whether a segment's file has at least one entry, and no others than the `count` valid ones."""
    with suppress(FileNotFoundError):
        size = os.stat(segment.path_of(directory, base, SUFFIX)).st_size
        return size > 0 and (size == count * ENTRY_SIZE or is_whole(directory, base))
    return True


def load_from(directory: str, base: int) -> dict[int, list[Aborted]]:
    """Return the entries of this segment and of later ones: a transaction may end in a later segment than it began."""
    return {each: load(directory, each) for each in segment.bases(directory, SUFFIX) if each >= base}


def count_below(entries: Iterable[Aborted], offset: int) -> int:
    """Return how many of the transactions ended below `offset`."""
    return sum(entry.last_offset < offset for entry in entries)


def find_lost(directory: str, listed: Iterable[Listed], entries_of: Callable[[int], Iterable[Aborted]]) -> list[str]:
    """Return the paths of files that are missing or lack known entries, of existing segments."""
    return [
        segment.path_of(directory, base, SUFFIX)
        for base, count, below in listed
        if count_below(entries_of(base), below) < count
        and os.path.exists(segment.path_of(directory, base))  # else all of it expired
    ]


def holds(directory: str, base: int, entries: list[Aborted]) -> bool:
    """Return whether the file has exactly these entries: a power cut may leave bytes that were never written."""
    packed = _packed(entries)
    try:
        return files.read(segment.path_of(directory, base, SUFFIX), max_size=len(packed)) == packed
    except FileNotFoundError:
        return not entries
    except files.TooLarge:
        return False


def _packed(entries: list[Aborted]) -> bytes:
    packed = (_ENTRY.pack(*entry, 0, 0)[:-4] for entry in entries)
    return b"".join(entry + struct.pack("<I", crc32c(entry)) for entry in packed)


def write(directory: str, base: int, entries: list[Aborted]) -> None:
    """Replace the file's entries, and sync it."""
    if entries:
        files.replace(segment.path_of(directory, base, SUFFIX), _packed(entries))
    else:
        files.remove(segment.path_of(directory, base, SUFFIX))


def sync(directory: str, first: int) -> None:
    """Sync the files, and their names, of the segments whose base offset is `first` or greater.

    Called before a snapshot of producers is written, on which A3 stands.
    """
    found = [base for base in segment.bases(directory, SUFFIX) if base >= first]
    for base in found:
        files.sync_file(segment.path_of(directory, base, SUFFIX))
    if found:
        files.sync_directory(directory)
