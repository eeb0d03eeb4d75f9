"""Scratch directories: temporary files that are needed until a commit.

    staging/        Spark's (spark/staged_files.py)

A module that makes such files names the directory here, and removes them when their commit is done or given up. What
killed processes leave is swept by maintenance, in any process, whether or not it knows what the files are for:

  SCR1  Files with names that are equal up to the second dot belong to one commit, and are swept together: a day after
        the last of them was written, and never while a process holds byte 0 of one of them, as its writer does. So a
        job may take longer than a day.
  SCR2  An empty directory is swept when it is 30 days old: a job makes its own before the first of its tasks starts.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from klamm.disk import _os

if TYPE_CHECKING:
    from klamm.store.directory import Core

__all__ = ["DIRECTORIES", "OLD_DIRECTORY_MS", "OLD_MS", "hold", "sweep"]

DIRECTORIES = ("staging",)
OLD_MS = 24 * 3_600_000
OLD_DIRECTORY_MS = 30 * OLD_MS
_HELD = 0  # the byte of a file that its writer holds


def hold(fd: int) -> None:
    """Protect a file, and the others of its commit, from being swept as long as the descriptor is open."""
    if _os.HAS_BYTE_LOCKS:
        _os.lock_byte(fd, _HELD)


def sweep(core: Core, *, now_s: float | None = None) -> int:
    """Remove old files, including those that a copy has from its original. Return how many."""
    if core.read_only:
        return 0
    now_s = time.time() if now_s is None else now_s
    roots = [f"{core.files}/{name}/{owner}" for name in DIRECTORIES for owner in _names(f"{core.files}/{name}")]
    return sum(_sweep(root, now_s) for root in roots)


def _sweep(directory: str, now_s: float) -> int:
    removed = 0
    commits: dict[str, list[str]] = {}
    for name in _names(directory):
        path = f"{directory}/{name}"
        if os.path.isdir(path):
            removed += _sweep(path, now_s)
            removed += _is_older(path, now_s, OLD_DIRECTORY_MS) and _removed(path)
        else:
            commits.setdefault(".".join(name.split(".")[:2]), []).append(path)
    for paths in commits.values():
        if all(_is_older(path, now_s, OLD_MS) for path in paths) and not any(map(_is_held, paths)):
            removed += sum(map(_removed, paths))
    return removed


def _is_older(path: str, now_s: float, age_ms: int) -> bool:
    try:
        return os.stat(path).st_mtime < now_s - age_ms / 1000
    except OSError:  # another process was faster
        return True


def _is_held(path: str) -> bool:
    try:
        fd = _os.open_file(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return _os.HAS_BYTE_LOCKS and _os.find_lock(fd, _HELD, 1) is not None
    finally:
        os.close(fd)


def _removed(path: str) -> bool:
    try:
        os.rmdir(path) if os.path.isdir(path) else _os.unlink(path)
    except OSError:  # another process was faster, or there is something in it
        return False
    return True


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
