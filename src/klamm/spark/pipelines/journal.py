"""Files that come into a folder, or go, all at once: if a process is killed in between, the next run finishes it.

    _klamm/staging/<name>/      files that are being written
    _klamm/journal.json         the last change that was decided
    date=2025-01-31/<sequence>-<k>.parquet

If the files make a table (archive_table.py), a file that goes leaves the table, and stays in the folder.

A change is a list of staged files with the names they get, and of files that go. It is decided when the journal, which
lists it, has taken the place of the one before; from then on it is carried out, if need be by the next run.

Promises
  JRN1  A file is on disk, name and bytes, before a journal speaks of it.
  JRN2  A change is carried out, and on disk, before the next one is decided. To carry it out again does nothing.
  JRN3  A sequence number is used by one change only: no file ever gets the name of another.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from klamm.disk import _os, files
from klamm.errors import KlammError, NotAStore
from klamm.spark.pipelines.archive_table import table_of
from klamm.spark.pipelines.pipeline_directory import PipelineDirectory

__all__ = ["Journal", "State", "days_of", "files_in", "rows_in"]

_VERSION = 1


@dataclass(frozen=True)
class State:
    """The state that the journal records."""

    sequence: int = 0
    """Changes so far."""
    batch: int = -1
    """The last micro-batch that is done."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """By partition: the offset after the last one that is done."""
    adds: tuple[tuple[str, str], ...] = ()
    """Of the last change: a staged file, and its name; both from the folder on."""
    removes: tuple[str, ...] = ()

    @staticmethod
    def read(directory: str) -> State:
        """Read the journal of a pipeline's folder; without one, nothing was done yet."""
        path = f"{directory}/journal.json"
        try:
            content = json.loads(files.read(path))
            return State(
                content["sequence"],
                content["batch"],
                {int(number): end for number, end in content["ends"].items()},
                tuple((staged, name) for staged, name in content["adds"]),
                tuple(content["removes"]),
            )
        except FileNotFoundError:
            return State()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NotAStore(
                f"{path}: cannot be read: {error}", hint="it may have been edited by hand; archive to a new folder"
            ) from None

    def pack(self) -> bytes:
        content: dict[str, Any] = {
            "version": _VERSION,
            "sequence": self.sequence,
            "batch": self.batch,
            "ends": {str(number): end for number, end in sorted(self.ends.items())},
            "adds": [list(pair) for pair in self.adds],
            "removes": list(self.removes),
        }
        return json.dumps(content, indent=1).encode() + b"\n"


class Journal:
    """The journal of one pipeline's folder; for one process at a time."""

    def __init__(self, folder: PipelineDirectory) -> None:
        self._folder = folder.directory
        self._ours = os.path.dirname(folder.inside(""))
        self._staging = folder.inside("staging")
        self.table = table_of(folder)
        self.state = State.read(self._ours)

    def recover(self) -> None:
        """Finish what was decided, and forget what was not."""
        self._carry_out()
        shutil.rmtree(self._staging, ignore_errors=True)

    def stage(self, name: str) -> str:
        """Return a new folder to write into."""
        path = f"{self._staging}/{name}"
        shutil.rmtree(path, ignore_errors=True)
        return path

    def commit(
        self,
        staged: Mapping[str, Iterable[str]],
        removes: Iterable[str] = (),
        *,
        batch: int | None = None,
        ends: Mapping[int, int] | None = None,
    ) -> list[str]:
        """Move staged files to their sub-folders, and remove others, at once. Return the new files' names."""
        sequence = self.state.sequence + 1
        adds: list[tuple[str, str]] = []
        for folder, paths in staged.items():
            for path in paths:
                files.sync_file(path)
                adds.append((os.path.relpath(path, self._folder), f"{folder}/{sequence:08d}-{len(adds):04d}.parquet"))
        for above in {os.path.dirname(f"{self._folder}/{path}") for path, _ in adds}:
            while len(above) >= len(self._ours):
                files.sync_directory(above)
                above = os.path.dirname(above)
        decided = replace(self.state, sequence=sequence, adds=tuple(adds), removes=tuple(removes))
        if batch is not None:
            decided = replace(decided, batch=batch, ends={**self.state.ends, **(ends or {})})
        files.replace(f"{self._ours}/journal.json", decided.pack())
        self.state = decided
        self.recover()
        return [name for _, name in adds]

    def small_files(
        self, many: int, file_bytes: int, days: Collection[str] | None = None
    ) -> Iterator[tuple[str, dict[str, int]]]:
        """Return the days that have `many` files worth a merge into files of about `file_bytes`; sizes by path."""
        for day, sizes in self._sizes(days).items():
            small = {path: size for path, size in sizes.items() if size < file_bytes // 2}
            if len(small) >= many and math.ceil(sum(small.values()) / file_bytes) < len(small):
                yield day, small

    def _sizes(self, days: Collection[str] | None) -> dict[str, dict[str, int]]:
        """Return the sizes of files by path, by day."""
        if self.table is None:
            chosen = days_of(self._folder) if days is None else days
            return {day: {path: os.path.getsize(path) for path in files_in(f"{self._folder}/{day}")} for day in chosen}
        sizes: dict[str, dict[str, int]] = {}
        for file in self.table.files():
            if file.day is not None and not file.has_deletes and (days is None or f"date={file.day}" in days):
                sizes.setdefault(f"date={file.day}", {})[file.path] = file.size
        return sizes

    def merge(self, day: str, paths: Sequence[str], write: Callable[[str], object]) -> None:
        """Replace files of a day by those that `write` makes of them, in the folder that it is given."""
        staged = self.stage("merged")
        write(staged)
        merged = files_in(staged)
        if sum(map(rows_in, merged)) != sum(map(rows_in, paths)):
            raise KlammError(f"{self._folder}/{day}: merged files have other rows than those they are made of")
        self.commit({day: merged}, [os.path.relpath(path, self._folder) for path in paths])

    def _carry_out(self) -> None:
        folders = {os.path.dirname(name) for name in (*(name for _, name in self.state.adds), *self.state.removes)}
        for folder in folders:
            files.make_directory(f"{self._folder}/{folder}")
        files.sync_directory(self._folder)  # a new sub-folder is on disk before a file is moved into it
        for path, name in self.state.adds:
            with suppress(FileNotFoundError):  # it was renamed already
                _os.rename(f"{self._folder}/{path}", f"{self._folder}/{name}")
        for name in self.state.removes if self.table is None else ():
            files.remove(f"{self._folder}/{name}")
        for folder in folders:
            files.sync_directory(f"{self._folder}/{folder}")
        if self.table is not None:
            summary = {"klamm.batch": self.state.batch, "klamm.ends": self.state.ends}
            names = [name for _, name in self.state.adds]
            self.table.publish(self.state.sequence, names, self.state.removes, summary)

    def paths(self) -> list[str]:
        """Return the files that have the rows, in order."""
        if self.table is not None:
            return self.table.paths()
        return [path for day in days_of(self._folder) for path in files_in(f"{self._folder}/{day}")]


def files_in(path: str) -> list[str]:
    """Return the Parquet files of a folder, in order."""
    try:
        return sorted(
            f"{path}/{name}" for name in os.listdir(path) if name.endswith(".parquet") and name[0] not in "._"
        )
    except FileNotFoundError:
        return []


def days_of(path: str, prefix: str = "date=") -> list[str]:
    """Return the names of the folders of days, in order."""
    return sorted(name for name in os.listdir(path) if name.startswith(prefix)) if os.path.isdir(path) else []


def rows_in(path: str) -> int:
    """Return how many rows a Parquet file has."""
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)
