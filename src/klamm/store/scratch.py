"""Scratch directories: files that wait for their commit, and are of no use after it. What is a day old goes.

    staging/        Spark's (spark/staged_files.py)

Whoever makes such files names the directory here, and removes them when their commit is done or given up. What killed
processes leave is swept by maintenance, in any process, whether or not it knows what the files are for.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from klamm.disk import _os

if TYPE_CHECKING:
    from klamm.store.directory import Core

__all__ = ["DIRECTORIES", "OLD_MS", "sweep"]

DIRECTORIES = ("staging",)
OLD_MS = 24 * 3_600_000


def sweep(core: Core, *, now_s: float | None = None) -> int:
    """Remove what is a day old, also what a copied store has of the one it was copied from. Return how many."""
    if core.read_only:
        return 0
    before_s = (time.time() if now_s is None else now_s) - OLD_MS / 1000
    roots = [f"{core.path}/{name}/{owner}" for name in DIRECTORIES for owner in _names(f"{core.path}/{name}")]
    return sum(_sweep(root, before_s) for root in roots)


def _sweep(directory: str, before_s: float) -> int:
    removed = 0
    for name in _names(directory):
        path = f"{directory}/{name}"
        if os.path.isdir(path):
            removed += _sweep(path, before_s)
        try:
            if os.stat(path).st_mtime < before_s:
                os.rmdir(path) if os.path.isdir(path) else _os.unlink(path)
                removed += 1
        except OSError:  # another process was faster, or there is something in it
            continue
    return removed


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
