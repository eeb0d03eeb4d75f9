"""The table that an archive's files make, in a format of its own: what Delta (delta_table.py) and Iceberg share.

A change of the archive's journal (journal.py) is decided there and carried out here: when its files have their names,
one commit puts them into the table, together with the number of the change. A reader of the table sees a micro-batch
whole or not at all. A file that was merged into another leaves the table and stays in the folder, for readers of older
versions.

Columns that a file has and the table lacks are added to the table before the file: the schema of an archive grows and
does nothing else (schema_history.py).

Promises
  TBL1  A change is in the table once, wherever a run is killed: its number is compared with the last one that the table
        has before it is committed, and is committed with the files.
  TBL2  A commit is on disk before the journal decides the next change.
  TBL3  A table whose last change is neither the journal's last nor the one before is an error: the table, or the
        journal, was replaced by an older copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from klamm.errors import KlammError, NotAStore

if TYPE_CHECKING:
    import pyarrow as pa

    from klamm.spark.pipelines.folder_files import FolderFiles
    from klamm.spark.pipelines.pipeline_directory import PipelineDirectory

__all__ = ["FORMATS", "ArchiveTable", "FileStatistics", "TableFile", "empty_schema", "statistics_of", "table_of"]

FORMATS = ("parquet", "delta", "iceberg")
_APART = "put the folder back as it was, table and _klamm/ together, or archive to a new folder"
_MEASURED = ("partition", "offset", "timestamp")


class TableFile(NamedTuple):
    """A file of the table as it is now."""

    path: str
    size: int
    day: str | None
    """As in the name of its folder: 2025-01-31; None if it lies elsewhere, or has no date."""
    has_deletes: bool = False
    """Whether others have deleted rows of it, in files of their own."""


class FileStatistics(NamedTuple):
    """Statistics of a Parquet file, from its footer: readers choose files by that."""

    rows: int
    least: dict[str, int]
    greatest: dict[str, int]
    """By column: partition, offset, timestamp (microseconds)."""
    schema: pa.Schema


class ArchiveTable(ABC):
    """The table in a folder, of one archive; one process at a time."""

    has_dates: ClassVar[bool] = False
    """Whether its files have the column `date`, too, and not only their folder."""

    def __init__(self, files: FolderFiles, app_id: str) -> None:
        self._files = files
        self._directory = files.root
        self._app_id = app_id

    def publish(self, sequence: int, adds: Sequence[str], removes: Sequence[str], summary: Mapping[str, Any]) -> None:
        """Carry out a change of the journal, if the table does not have it; 0 is none. `summary` is for people."""
        with self._errors():
            last = self._last_sequence()
            if (last != sequence and last not in (sequence - 1, None)) or (last is None and sequence > 1):
                raise NotAStore(
                    f"{self._directory}: the table has change {last} of the archive, its journal {sequence}",
                    hint=_APART,
                )
            if not sequence:
                return
            if last != sequence:
                self._change(sequence, adds, removes, summary)
            self._sync(is_repeated=last == sequence)

    def paths(self) -> list[str]:
        """Return the files of the table as it is now. KlammError if others have deleted single rows of one."""
        known = self.files()
        for file in known:
            if file.has_deletes:
                raise KlammError(
                    f"{file.path}: rows of it were deleted, in files of their own",
                    hint="have the table's files rewritten (in Spark by rewrite_data_files), and try again",
                )
        return [file.path for file in known]

    @abstractmethod
    def files(self) -> list[TableFile]:
        """Return the files of the table as it is now."""

    @abstractmethod
    def optimize(self, many: int, file_bytes: int) -> int | None:
        """Merge the small files of days that have `many`, to about `file_bytes`. Return how many went.

        None: it cannot; the journal merges them.
        """

    @abstractmethod
    def folders(self) -> list[str]:
        """Return the names, in the archive's folder, of what is the table's alone."""

    @abstractmethod
    def drop(self) -> None:
        """Remove the table from a catalog that is not in the archive's folder, if there is one."""

    @abstractmethod
    def _last_sequence(self) -> int | None:
        """Open the table, and return the number of the last change that it has; None if it is new, or not there."""

    @abstractmethod
    def _change(self, sequence: int, adds: Sequence[str], removes: Sequence[str], summary: Mapping[str, Any]) -> None:
        """Commit a change to the table, which is made if it is not there."""

    @abstractmethod
    def _sync(self, *, is_repeated: bool) -> None:
        """Sync what was written; all of it, if that was begun by a run that was killed."""

    @abstractmethod
    def _errors(self) -> AbstractContextManager[None]:
        """Raise errors of the package as KlammError."""


def table_of(folder: PipelineDirectory) -> ArchiveTable | None:
    """Return the table of an archive; None: the archive is a folder of Parquet files."""
    kind = folder.options.get("format")
    if kind not in ("delta", "iceberg"):
        return None
    identity = type(folder).read(folder.files)
    assert identity is not None
    ((topic, topic_id),) = identity["identity"]["topics"].items()
    app_id = f"klamm.archive.{topic_id}"
    if kind == "delta":
        from klamm.spark.pipelines.delta_table import DeltaTable

        return DeltaTable(folder.files, app_id)
    from klamm.spark.pipelines.iceberg_table import IcebergTable

    catalog, name = folder.options.get("catalog"), folder.options.get("table_name")
    return IcebergTable(folder.files, app_id, topic, catalog=catalog, name=name)


def empty_schema() -> pa.Schema:
    """Return the columns of an archive's files without a schema of values."""
    from klamm.spark.pipelines.parquet_files import COLUMNS
    from klamm.spark.range_reader import schema_for

    return schema_for(COLUMNS)


def statistics_of(source: Any) -> FileStatistics:
    """Return how many rows a file has, of which offsets, partitions and times, and its columns."""
    import pyarrow.parquet as pq

    about = pq.read_metadata(source)
    least: dict[str, int] = {}
    greatest: dict[str, int] = {}
    for group in map(about.row_group, range(about.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name = column.path_in_schema
            known: Any = column.statistics
            if name in _MEASURED and known is not None and known.has_min_max:
                least[name] = min(known.min_raw, least.get(name, known.min_raw))
                greatest[name] = max(known.max_raw, greatest.get(name, known.max_raw))
    schema: pa.Schema = about.schema.to_arrow_schema()
    return FileStatistics(about.num_rows, least, greatest, schema)
