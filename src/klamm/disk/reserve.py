"""The reserve: blocks that are freed on a full disk, so that a store can still be opened and purged.

    reserve     1 MiB of allocated blocks that are never read

Opening a store after a boot writes: it counts the boot and recovers logs. So does deleting records: the new log start
is on disk before a file is removed. On a full disk neither would work. Before either, a process calls `lend`, which
empties the file when there is little space; the maintenance thread and maintain() call `refill` when there is space
again.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress

from klamm.disk import _os

__all__ = ["NAME", "SIZE", "lend", "refill"]

NAME = "reserve"
SIZE = 1 << 20
_LITTLE = SIZE // 2  # with less space than this, the reserve is freed


def lend(store: str) -> bool:
    """Free the reserve of the store at this path if its disk is full. Return whether there was one to free."""
    path = f"{store}/{NAME}"
    try:
        if os.stat(path).st_size == 0 or shutil.disk_usage(store).free >= _LITTLE:
            return False
        os.truncate(path, 0)
    except OSError:  # there is none, or this user may not change it: the write that needs space reports that
        return False
    return True


def refill(store: str) -> bool:
    """Allocate the reserve if it is missing and four times its size is free. Return whether it exists."""
    path = f"{store}/{NAME}"
    with suppress(OSError):
        if os.path.exists(path) and os.stat(path).st_size == SIZE:
            return True
        if shutil.disk_usage(store).free < 4 * SIZE:
            return False
        return _allocate(path)
    return False


def _allocate(path: str) -> bool:
    fd = _os.open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, SIZE)
        else:
            os.write(fd, bytes(SIZE))
    except OSError:
        os.ftruncate(fd, 0)
        return False
    finally:
        os.close(fd)
    return True
