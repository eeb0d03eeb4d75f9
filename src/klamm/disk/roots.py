"""The root: the directory of a store, held open. Files are opened through it, and never by the store's path.

A process opens files of a store long after it opened the store: indexes, snapshots, and segments after a roll or after
idle files were closed. By then the path may lead to another store: an older copy that was renamed into its place, or a
new store where this one was moved away. The mapping of `heads` still belongs to the old store, so a file opened by the
path would be read, cut or deleted by the offsets of another log.

`Root.files` is a path to the directory that was opened, wherever it is now: the kernel's name of an open descriptor,
/proc/self/fd/<n>. disk/os.h turns it into an argument of openat, renameat and so on. It is valid in this process only:
`Root.path` is for users, for other processes, and for SQLite, which follows links.

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
    """Replace `Root.files` by `Root.path` in log lines; errors.KlammError does so in errors."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(errors.readable(each) if isinstance(each, str) else each for each in record.args)
        return True


logging.getLogger("klamm").addFilter(_ReadablePaths())


class Root:
    """A directory that stays open as long as an object refers to this one: a store, its partitions, its tables."""

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
        """Close the directory of a store that could not be opened: no object refers to its files."""
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            errors.held.pop(self.files, None)
            os.close(fd)

    def __del__(self) -> None:
        self.close()
