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
  JRN4  In an object store, of two runs that are at work the first decides a change, and the other one ends with
        StoreBusy: the journal takes the place of the one that its run has read, or of none (object_files.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from klamm.errors import KlammError, NotAStore, StoreBusy
from klamm.spark.pipelines.archive_table import table_of
from klamm.spark.pipelines.folder_files import OURS, FolderFiles
from klamm.spark.pipelines.pipeline_directory import PipelineDirectory

__all__ = ["JOURNAL", "Journal", "State", "rows_in"]

JOURNAL = f"{OURS}/journal.json"
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
    run: str | None = None
    """The run that decided it, in an object store."""

    @staticmethod
    def read(files: FolderFiles) -> State:
        """Read the journal of a pipeline's folder; without one, nothing was done yet."""
        path = files.path(JOURNAL)
        try:
            content = json.loads(files.read(JOURNAL))
            return State(
                content["sequence"],
                content["batch"],
                {int(number): end for number, end in content["ends"].items()},
                tuple((staged, name) for staged, name in content["adds"]),
                tuple(content["removes"]),
                content.get("run"),
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
        if self.run is not None:
            content["run"] = self.run
        return json.dumps(content, indent=1).encode() + b"\n"


class Journal:
    """The journal of one pipeline's folder; for one process at a time."""

    def __init__(self, folder: PipelineDirectory) -> None:
        self.files = folder.files
        self.table = table_of(folder)
        self.state = State.read(self.files)

    def recover(self, *, is_first: bool = False) -> None:
        """Finish what was decided, and forget what was not. `is_first`: this run has decided it a moment ago."""
        state = self.state
        self.files.publish(state.adds, state.removes if self.table is None else (), is_first=is_first)
        if self.table is not None:
            summary = {"klamm.batch": state.batch, "klamm.ends": state.ends}
            try:
                self.table.publish(state.sequence, [name for _, name in state.adds], state.removes, summary)
            except KlammError:
                self.files.check_first(JOURNAL)  # another run has carried it out, and a later change
                raise
        self.files.clear(state.sequence)

    def stage(self, name: str) -> str:
        """Return the path of a new folder to write into."""
        return self.files.stage(name, self.state.sequence + 1)

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
                adds.append((self.files.name(path), f"{folder}/{sequence:08d}-{len(adds):04d}.parquet"))
        self.files.secure([staged_name for staged_name, _ in adds])
        decided = replace(self.state, sequence=sequence, adds=tuple(adds), removes=tuple(removes), run=self.files.run)
        if batch is not None:
            decided = replace(decided, batch=batch, ends={**self.state.ends, **(ends or {})})
        try:
            self.files.replace(JOURNAL, decided.pack())
        except StoreBusy:
            self.files.give_up(sequence)
            raise
        self.state = decided
        self.recover(is_first=True)
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
            return {day: self.files.sizes(day) for day in (self.files.days() if days is None else days)}
        sizes: dict[str, dict[str, int]] = {}
        for file in self.table.files():
            if file.day is not None and not file.has_deletes and (days is None or f"date={file.day}" in days):
                sizes.setdefault(f"date={file.day}", {})[file.path] = file.size
        return sizes

    def merge(self, day: str, paths: Sequence[str], write: Callable[[str], Sequence[str]]) -> None:
        """Replace files of a day by those that `write` makes of them in the staged folder that it is given."""
        merged = write(self.stage("merged"))
        if sum(self._rows_in(path) for path in merged) != sum(self._rows_in(path) for path in paths):
            raise KlammError(f"{self.files.path(day)}: merged files have other rows than those they are made of")
        self.commit({day: merged}, [self.files.name(path) for path in paths])

    def _rows_in(self, path: str) -> int:
        return rows_in(self.files.source(path))

    def paths(self) -> list[str]:
        """Return the files that have the rows, in order."""
        if self.table is not None:
            return self.table.paths()
        return [path for day in self.files.days() for path in self.files.paths(day)]


def rows_in(source: Any) -> int:
    """Return how many rows a Parquet file has."""
    import pyarrow.parquet as pq

    return int(pq.read_metadata(source).num_rows)
