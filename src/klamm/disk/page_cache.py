"""Reads for event loops: they fail rather than wait for a disk.

They need Linux and a C library with preadv2 (RWF_NOWAIT). Elsewhere (macOS, Windows) no call tells whether a part of a
file is in memory: then nothing counts as in memory, and threads do all reads. On a file system that does not support
the flag, everything counts as in memory.
"""

from __future__ import annotations

import os

from klamm.disk import _os

__all__ = ["CAN_TELL", "WouldBlock", "is_cached", "load", "read_cached"]

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
CAN_TELL = _NOWAIT is not None
"""Whether reads can fail rather than wait."""
_CHUNK = 256 * 1024
_STEP = 128 * 1024  # the kernel reads ahead in steps of this size


class WouldBlock(Exception):
    """The data is not in memory: read it in a thread."""


def read_cached(fd: int, size: int, position: int) -> bytes:
    """Return `size` bytes of a file. Raise WouldBlock if a byte is not in memory, or beyond the end."""
    if _NOWAIT is None:
        raise WouldBlock
    data = bytearray(size)
    try:
        if os.preadv(fd, [data], position, _NOWAIT) == size:
            return bytes(data)
    except BlockingIOError:
        pass
    except OSError:
        return _os.pread(fd, size, position)
    raise WouldBlock


def is_cached(fd: int, size: int, position: int) -> bool:
    """Return whether a range of a file is in memory. Probes the first and last byte, and one in each 128 KiB."""
    if _NOWAIT is None:
        return False
    last = position + size - 1
    probe = [bytearray(1)]
    try:
        for at in (*range(position, last, _STEP), last):
            if not os.preadv(fd, probe, at, _NOWAIT):
                return True  # the end of the file: there is nothing to wait for
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def load(fd: int, size: int, position: int) -> None:
    """Read a range, to bring it into memory."""
    end = position + size
    while position < end and (data := _os.pread(fd, min(_CHUNK, end - position), position)):
        position += len(data)
