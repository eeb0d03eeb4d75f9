"""Presence: tells whether other processes have a store open, and whether its lock files are the ones they use.

Each process that has the store open holds a shared lock in three files: `lock`, `members` and `heads`. A process that
has to recover the store, or to create one of these files again, first takes all three exclusively. So a file that was
removed or replaced while another process has the store open is noticed: the new file is free, the other two are not.
`heads` also has the inodes of the two lock files, to tell a new file from the one in use.
"""

from __future__ import annotations

import logging
import os

from klamm.disk.locks import PRESENCE, LockFile
from klamm.errors import StoreBusy
from klamm.log import head

__all__ = ["IN_LOCK", "Presence"]

_log = logging.getLogger("klamm")
IN_LOCK = 3  # bytes 0 to 2 of `lock` have other uses
_IN_HEADS = 1 << 40  # beyond the end of the file


class Presence:
    """The presence of this process in one store."""

    def __init__(self, path: str, lock: LockFile, members: LockFile) -> None:
        self._path = path
        self._lock = lock
        self._members = members
        self._heads: LockFile | None = None
        self.is_alone = False

    def enter_heads(self) -> None:
        """Take the lock in `heads`, once that file exists."""
        if self._heads is None:
            self._heads = LockFile(f"{self._path}/heads", create=False)
            if self.is_alone and not self._heads.try_hold(_IN_HEADS):
                raise self._busy("`heads` is new")

    @property
    def heads_file(self) -> LockFile:
        """The open file of `heads` that locks are held through; it is never mapped."""
        assert self._heads is not None
        return self._heads

    def _bytes(self) -> list[tuple[LockFile, int]]:
        found = [(self._members, PRESENCE), (self._lock, IN_LOCK)]
        return found if self._heads is None else [*found, (self._heads, _IN_HEADS)]

    def be_alone(self, why: str) -> None:
        """Take all three exclusively. Raise StoreBusy if another process has the store open."""
        if self.is_alone:
            return
        taken: list[tuple[LockFile, int]] = []
        for file, byte in self._bytes():
            if not file.try_hold(byte):
                for each in taken:
                    self._share(*each)
                raise self._busy(why)
            taken.append((file, byte))
        self.is_alone = True

    def _busy(self, why: str) -> StoreBusy:
        return StoreBusy(
            f"{self._path}: {why}, but another process has the store open",
            hint="close the store in every process, then open it again; "
            "the volume may be mounted by another machine, or a file of a store in use was removed or replaced",
        )

    def _share(self, file: LockFile, byte: int) -> None:
        if not file.try_hold(byte, shared=True):
            raise StoreBusy(f"{self._path}: another process recovers or repairs it", hint="try again when it is done")

    def check_lock_files(self, heads: head.Heads) -> None:
        """Raise if the lock files are not the ones that other processes use; record ours as the ones in use."""
        ours = os.fstat(self._lock.fd).st_ino, os.fstat(self._members.fd).st_ino
        known = heads.lock_files
        if known == ours:
            return
        names = [name for name, a, b in zip(("lock", "members"), known, ours, strict=True) if a != b]
        why = f"`{'` and `'.join(names)}` or `heads` was removed or replaced: they do not belong together"
        self.be_alone(why if any(known) else "`heads` is new")
        if any(known):
            _log.warning("%s: %s: replaced since it was last used", self._path, ", ".join(names))
        heads.lock_files = ours

    def join(self) -> None:
        """Share the locks with other processes from now on."""
        for file, byte in self._bytes():
            self._share(file, byte)
        self.is_alone = False

    def close(self) -> None:
        if self._heads is not None:
            self._heads.close()
