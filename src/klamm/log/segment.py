"""One segment: a run of batches in a file named by its first offset.

    00000000000000004711.log       batches, back to back
    00000000000000004711.index     see index.py

Promises
  S1  batches lie end to end; the byte after a batch starts the next.
  S2  each batch starts at the previous batch's next_offset; only cleaning leaves gaps.
  S3  a segment that is not active never changes size; the active one ends at the commit's position, and its file may be
      longer: blocks that were allocated ahead, which read as zeros (_ahead.pxi).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from contextlib import suppress

from klamm.disk import _os, files

__all__ = ["CLEANED", "LOG", "bases", "bytes_in", "cleaned_temp_paths", "holding", "is_zero", "path_of", "sync_names"]

LOG = ".log"
CLEANED = ".cleaned"
_DIGITS = 20
_CHUNK = 1 << 20


def path_of(directory: str, base: int, suffix: str = LOG) -> str:
    return f"{directory}/{base:0{_DIGITS}}{suffix}"


def bases(directory: str, suffix: str = LOG) -> list[int]:
    """Return the base offsets of the files with this suffix, in order; none if the directory is missing."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    numbers = (files.number_in_name(name.removesuffix(suffix), _DIGITS) for name in names if name.endswith(suffix))
    return sorted(base for base in numbers if base is not None)


def cleaned_temp_paths(directory: str) -> list[str]:
    """Return the files that compactions wrote beside segments and have not renamed yet: <base>.log[.…].cleaned."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return [
        f"{directory}/{name}"
        for name in names
        if name.endswith(CLEANED)
        and name[_DIGITS:].startswith(LOG)
        and files.number_in_name(name[:_DIGITS], _DIGITS) is not None
    ]


def is_zero(fd: int, start: int, end: int) -> bool:
    """Return whether the bytes [start, end) of a file are zeros, as far as the file has them."""
    while start < end and (data := _os.pread(fd, min(_CHUNK, end - start), start)):
        if data.strip(b"\0"):
            return False
        start += len(data)
    return True


def bytes_in(directory: str) -> int:
    """Return the size in bytes of the segments in a directory, by their files: for a log that need not be open."""
    total = 0
    for base in bases(directory):
        with suppress(FileNotFoundError):  # expired just now
            total += os.stat(path_of(directory, base)).st_size
    return total


def sync_names(directory: str) -> None:
    """Make the names of a partition's files durable, and those of the directories above it that may be new, too."""
    topic = os.path.dirname(directory)
    for each in (directory, topic, os.path.dirname(topic)):
        files.sync_directory(each)


def holding(found: list[int], offset: int) -> int | None:
    """Return the base of the segment that would hold `offset`."""
    at = bisect_right(found, offset)
    return found[at - 1] if at else None
