"""Staged files: what tasks of Spark have written, not committed yet.

    staging/<store id>/<query>.<batch>.<task>.<attempt>-<random>.staged      of a stream; inside: staged_batches.py
    staging/<store id>/<job>/<job>.0.<task>.<attempt>-<random>.staged        of a batch write

The directory is named by the store's id, so that a task which finds it knows that it sees the files of that store. The
directory of a job is made before its tasks and goes with its end, so that a task which comes late can leave nothing.

A file is of no use but to the driver that waits for it. It is removed when its batch is committed or given up; whatever
is left by those who were killed goes with a later batch of the same query, or a day after the last task of its batch
wrote (store/scratch.py).
"""

from __future__ import annotations

import logging
import os
import shutil

from klamm.disk import files
from klamm.errors import InvalidSetting

__all__ = [
    "SUFFIX",
    "StagedName",
    "directory_of",
    "prepare",
    "remove_file",
    "remove_job",
    "remove_of",
]

SUFFIX = ".staged"
_ATTEMPTS = 5
_log = logging.getLogger("klamm.spark")


class StagedName:
    """The name of a staged file, and what it says."""

    __slots__ = ("attempt", "batch", "task", "writer")

    def __init__(self, writer: str, batch: int, task: int, attempt: int) -> None:
        if "." in writer or "/" in writer or not writer:
            raise InvalidSetting(f"{writer!r} cannot be in the name of a staged file")
        self.writer = writer
        self.batch = batch
        self.task = task
        self.attempt = attempt

    def new(self) -> str:
        """Return a unique name: attempts are numbered again by every driver."""
        return f"{self.writer}.{self.batch}.{self.task}.{self.attempt}-{os.urandom(8).hex()}{SUFFIX}"

    @staticmethod
    def parse(name: str) -> StagedName | None:
        parts = name.removesuffix(SUFFIX).split(".")
        if not name.endswith(SUFFIX) or len(parts) != 4:
            return None
        try:
            return StagedName(parts[0], int(parts[1]), int(parts[2]), int(parts[3].partition("-")[0]))
        except ValueError:
            return None


def directory_of(path: str, store_id: str) -> str:
    return f"{path}/staging/{store_id}"


def prepare(path: str, store_id: str) -> str:
    """Create the directory: on the driver, before there are tasks."""
    made = directory_of(path, store_id)
    if not os.path.isdir(made):
        files.make_directory(f"{path}/staging")
        files.make_directory(made)
    return made


def remove_job(directory: str) -> None:
    """Remove a job's directory. Several attempts: a late task may add a file while its directory is being emptied.

    The job is committed or aborted by now, so what cannot be removed must not fail it: it is left to maintenance.
    """
    for _ in range(_ATTEMPTS):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.isdir(directory):
            return
    _log.warning("%s: cannot be removed; maintenance tries again later", directory)


def remove_of(directory: str, writer: str, last_batch: int) -> None:
    """Remove what attempts of these batches have left, those that lost and those of killed drivers."""
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        found = StagedName.parse(name)
        if found is not None and found.writer == writer and found.batch <= last_batch:
            remove_file(f"{directory}/{name}")


def remove_file(path: str) -> None:
    """Remove a staged file. One that cannot be removed is left to maintenance: its batch is committed or aborted."""
    try:
        files.remove(path)
    except OSError as error:
        _log.warning("%s; maintenance tries again later", error)
