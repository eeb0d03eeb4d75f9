"""Directories of btrfs whose files are written in place, and not copied on write.

`heads`, tables of producers and SQLite's -shm are mapped and written to. Where files are copied on write, each store
into a clean page needs a free block, and if the disk has none, the kernel ends the process (SIGBUS). On btrfs a
directory can be marked so that its files are written in place (`chattr +C`, NOCOW); new files and directories in it
inherit the mark. A mark has no effect on existing files, so only an empty directory is marked.

A snapshot of the subvolume shares blocks again: after it, the first change of each is a copy, once.
"""

from __future__ import annotations

import os
import struct
import sys

if sys.platform == "linux":
    import fcntl

__all__ = ["is_avoided", "try_to_avoid"]

_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602  # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS
_NOCOW = 0x00800000
_FLAGS = struct.Struct("L")


def is_avoided(path: str) -> bool:
    """Return whether files made in this directory are written in place because it is marked so."""
    return bool(_flags(path) & _NOCOW)


def try_to_avoid(path: str) -> bool:
    """Mark an empty directory, if its file system supports that. Return whether it is marked."""
    flags = _flags(path)
    if flags & _NOCOW:
        return True
    try:
        if os.listdir(path):
            return False
        _ioctl(path, _SET_FLAGS, flags | _NOCOW)
    except OSError:  # not ours, or a file system without marks
        return False
    return is_avoided(path)


def _flags(path: str) -> int:
    try:
        return _ioctl(path, _GET_FLAGS, 0)
    except OSError:
        return 0


def _ioctl(path: str, request: int, flags: int) -> int:
    if sys.platform != "linux":
        return 0
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return int(_FLAGS.unpack(fcntl.ioctl(fd, request, _FLAGS.pack(flags)))[0])
    finally:
        os.close(fd)
