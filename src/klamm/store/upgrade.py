"""Upgrade a store from one format to the next, when it is opened for writing.

The upgrading process must be alone. It works in this order, so that the next process finishes what a killed one began:

  1  klamm.db, in one SQLite transaction, its format last: from now on an older Klamm refuses the store
  2  files of partitions: renamed; indexes of an older version are removed and rebuilt in the background
     (log/index_rebuild.py)
  3  NEEDS_RECOVERY and no owner in every slot of `heads`: what is not in klamm.db is rebuilt from the logs, at their
     first use
  4  the format of `heads`, in one store

What has changed between formats is in docs/internals/format.md. A newer format, or a feature that this Klamm does not
know (features.py), is NewerFormat, never damage.
"""

from __future__ import annotations

import glob
import os
import struct
from contextlib import closing, nullcontext, suppress
from typing import NamedTuple

from klamm.batch import crc32c
from klamm.disk import _os, files
from klamm.errors import NewerFormat, StoreError
from klamm.log import head
from klamm.store import database, features
from klamm.store.catalog import Catalog
from klamm.store.features import Features

__all__ = ["WHY", "Formats", "check_not_newer", "check_not_older", "finish", "formats_of"]

_OLD_INDEX = struct.Struct("<8sQqII")  # magic, inode, base, version, CRC
_RENAMED = {"cleaned": "cleaner-checkpoint", ".healing": ".unsynced"}  # a whole name, or the end of one
WHY = "it has an older format and has to be upgraded"


class Formats(NamedTuple):
    """The formats of klamm.db and `heads`."""

    database: int
    heads: int


TODAY = Formats(database.FORMAT_VERSION, head.FORMAT)


def formats_of(path: str, *, read_only: bool = True) -> Formats:
    """Return the formats of a store, without changing anything.

    NewerFormat if it has a newer one, or features without which it cannot be opened (`read_only`: for reading).
    """
    number = TODAY.heads
    with suppress(FileNotFoundError):  # then it is re-created
        heads = head.Heads(f"{path}/heads", writable=False)
        if heads.is_sane():
            check_not_newer(heads, read_only=read_only)
            number = heads.format
    where = f"{path}/klamm.db"
    with closing(database.Database(where, nullcontext, read_only=True)) as file:
        version = int(file.read("PRAGMA user_version")[0][0])
    if version == database.FORMAT_VERSION:
        with closing(Catalog(where, nullcontext, read_only=True)) as catalog:  # which checks its features
            catalog.features().check_known(where, read_only=read_only)
    return Formats(version, number)


def check_not_newer(heads: head.Heads, *, read_only: bool) -> None:
    """Raise NewerFormat if a newer Klamm wrote `heads` in a format that this one may not change."""
    if heads.format > head.FORMAT:
        raise NewerFormat(
            f"{heads.path}: has format {heads.format}, this Klamm knows formats up to {head.FORMAT}",
            hint="open it with a newer Klamm",
        )
    if heads.format == head.FORMAT:
        Features(*heads.features).check_known(heads.path, read_only=read_only)


def check_not_older(heads: head.Heads) -> None:
    """Raise if the store has an older format, for a process that may not write."""
    if heads.format < head.FORMAT:
        raise StoreError(
            f"{heads.path}: has format {heads.format}, which an older Klamm wrote",
            hint="open it for writing once, or run `klamm upgrade`, which brings it up to date",
        )


def finish(heads: head.Heads) -> None:
    """Carry out steps 2 to 4, unless they are done."""
    if heads.format < head.FORMAT:
        for directory in glob.iglob(f"{glob.escape(os.path.dirname(heads.path))}/topics/*/*/"):
            _upgrade_files(directory.rstrip("/"))
        heads.mark_all(head.NEEDS_RECOVERY)
        heads.forget_lives()
        heads.sync()
        heads.set_format(head.FORMAT, features.KNOWN)


def _upgrade_files(directory: str) -> None:
    """Carry out step 2 for one partition."""
    is_changed = False
    for name in os.listdir(directory):
        path, suffix = f"{directory}/{name}", os.path.splitext(name)[1]
        if suffix == ".index" and _is_old_index(path):
            files.remove(path)
        elif (suffix or name) in _RENAMED:
            old = suffix or name
            _os.rename(path, path.removesuffix(old) + _RENAMED[old])
        else:
            continue
        is_changed = True
    if is_changed:
        files.sync_directory(directory)


def _is_old_index(path: str) -> bool:
    """Return whether an index is of `heads` format 1, which named the inode of its segment."""
    with open(path, "rb") as file:
        header = file.read(_OLD_INDEX.size)
    if len(header) < _OLD_INDEX.size:
        return False
    *_, version, crc = _OLD_INDEX.unpack(header)
    return bool(version == 1 and crc == crc32c(header[:-4]))
