"""The directory of a store, held open: its files are reached through it, and never through the path.

A process opens files of a store long after it opened the store: segments, after a roll or after idle files were closed,
indexes, snapshots. By then the path may lead to another store: an older copy was renamed into its place, or a new store
was made where this one was moved away. What is mapped (`heads`) is still of the old store, so a file that is opened by
the path would be read, cut or deleted by the offsets of another log.

`Root.files` is a path that leads to the very directory that was opened, wherever its name is now: the kernel's name of
an open descriptor, /proc/self/fd/<n>. disk/os.h makes it an argument of openat, renameat and so on. It is a path for
this process alone: `Root.path` is for users, for other processes, and for SQLite, which follows links.

Where there is no such name (not Linux, or /proc is not mounted), `files` is the path.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress

from klamm import errors

__all__ = ["Root"]


class _ReadablePaths(logging.Filter):
    """Call the directories in our log lines as users know them; errors.KlammError does the same for errors."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(errors.readable(each) if isinstance(each, str) else each for each in record.args)
        return True


logging.getLogger("klamm").addFilter(_ReadablePaths())


class Root:
    """A directory that is open as long as anything refers to this object: a store, its partitions, its tables."""

    def __init__(self, path: str) -> None:
        self.path = self.files = path
        self.fd = -1
        if sys.platform == "linux":
            self.fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            name = f"{errors.HELD}{self.fd}"
            with suppress(OSError):
                if os.path.samestat(os.stat(name), os.fstat(self.fd)):
                    self.files = name
                    errors.held[name] = path

    def close(self) -> None:
        """Close the directory of a store that could not be opened: nothing refers to its files."""
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            errors.held.pop(self.files, None)
            os.close(fd)

    def __del__(self) -> None:
        self.close()
