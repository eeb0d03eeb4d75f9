"""An archive as a Delta table: the log of the table beside the files, by the package deltalake, without a JVM.

    _delta_log/<version>.json    a commit: the files of a micro-batch, and (txnAppId, txnVersion) of the change

A change of the archive's journal (journal.py) is decided there and carried out here: when its files have their names,
one commit adds all of them to the table, with the number of the change as txnVersion. A reader of the table sees a
micro-batch whole or not at all. Small files are merged by Delta's own OPTIMIZE, which leaves the old ones for readers
of older versions; VACUUM removes them.

Promises
  DLT1  A change is in the table once, wherever a run is killed: its number is compared with the table's last txnVersion
        before it is committed, and is committed with the files.
  DLT2  A commit is on disk before the journal decides the next change.
  DLT3  A table whose txnVersion is neither the number of the last change nor the one before is an error: the table, or
        the journal, was replaced by an older copy.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from klamm.disk import files
from klamm.errors import KlammError, NotAStore, NotInstalled

if TYPE_CHECKING:
    import pyarrow as pa

    from klamm.spark.pipelines.pipeline_directory import PipelineDirectory

__all__ = ["CHECKPOINT_EVERY", "LOG", "DeltaTable", "table_of"]

LOG = "_delta_log"
CHECKPOINT_EVERY = 100
"""Versions, so that readers need not read all of the log."""
_DATE = "date="
_COMMIT = re.compile(r"\d{20}\.json")
_log = logging.getLogger("klamm.spark")
_APART = "put the folder back as it was, table and _klamm/ together, or archive to a new folder"


def table_of(claim: PipelineDirectory) -> DeltaTable | None:
    """Return the table of an archive; None: the archive is a folder of Parquet files."""
    if claim.options.get("format") != "delta":
        return None
    identity = type(claim).read(claim.directory)
    assert identity is not None
    (topic_id,) = identity["identity"]["topics"].values()
    return DeltaTable(claim.directory, f"klamm.archive.{topic_id}")


class DeltaTable:
    """The table in a folder, of one archive; one process at a time."""

    def __init__(self, directory: str, app_id: str) -> None:
        """Prepare. Raise NotInstalled without the package."""
        try:
            import deltalake
        except ImportError:
            raise NotInstalled.package("deltalake", "'klamm[delta]'") from None
        self._deltalake: Any = deltalake
        self._directory = directory
        self._app_id = app_id

    def publish(self, sequence: int, names: Sequence[str], told: Mapping[str, Any]) -> None:
        """Add the files of a change of the journal to the table, if it does not have them. `told` is for people."""
        if not sequence:
            return
        with self._errors():
            self._remove_torn()
            table = self._open()
            last = None if table is None else table.transaction_version(self._app_id)
            if last != sequence:
                if last not in (sequence - 1, None) or (last is None and sequence > 1):
                    raise NotAStore(
                        f"{self._directory}: the table has change {last} of the archive, its journal {sequence}",
                        hint=_APART,
                    )
                table = table or self._create(names)
                self._commit(table, sequence, names, told)
                table.update_incremental()
                if table.version() % CHECKPOINT_EVERY == 0:
                    table.create_checkpoint()
            self._sync(all_of_it=last == sequence, version=table.version())

    def _sync(self, *, all_of_it: bool, version: int) -> None:
        """Sync what was written; all of it, if that was begun by a run that was killed. The package syncs nothing."""
        log = f"{self._directory}/{LOG}"
        for name in os.listdir(log):
            if all_of_it or name == "_last_checkpoint" or name.startswith(f"{version:020}"):
                files.sync_file(f"{log}/{name}")
        files.sync_directory(log)
        files.sync_directory(self._directory)

    def _remove_torn(self) -> None:
        """Remove a last commit that a power cut has left without its end: its change is committed again."""
        log = f"{self._directory}/{LOG}"
        commits = [name for name in os.listdir(log) if _COMMIT.fullmatch(name)] if os.path.isdir(log) else []
        path = f"{log}/{max(commits, default='')}"
        try:
            lines = files.read(path).splitlines() if commits else [b"{}"]
            if lines and all(isinstance(json.loads(each), dict) for each in lines):
                return
        except ValueError:
            pass
        _log.warning("%s: not whole, after a power cut: removed", path)
        files.remove(path)

    def paths(self) -> list[str]:
        """Return the files of the table as it is now."""
        with self._errors():
            table = self._open()
            return [] if table is None else [path for path, _, _ in _files_of(table, self._directory)]

    def compact(self, many: int, file_bytes: int) -> int:
        """Merge the small files of days that have `many`, to about `file_bytes`. Return how many went."""
        with self._errors():
            table = self._open()
            if table is None:
                return 0
            small: dict[str, int] = {}
            for _, size, day in _files_of(table, self._directory):
                if day is not None and size < file_bytes // 2:
                    small[day] = small.get(day, 0) + 1
            merged = 0
            for day in [day for day, count in small.items() if count >= many]:
                found = table.optimize.compact(partition_filters=[("date", "=", day)], target_size=file_bytes)
                merged += int(found["numFilesRemoved"])
            return merged

    # ---- the package

    def _open(self) -> Any:
        if not self._deltalake.DeltaTable.is_deltatable(self._directory):
            return None
        return self._deltalake.DeltaTable(self._directory)

    def _create(self, names: Sequence[str]) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        found = pq.read_schema(f"{self._directory}/{names[0]}") if names else _empty()
        schema = pa.schema([*(pa.field(each.name, each.type) for each in found), pa.field("date", pa.date32())])
        return self._deltalake.DeltaTable.create(self._directory, schema, partition_by=["date"])

    def _commit(self, table: Any, sequence: int, names: Iterable[str], told: Mapping[str, Any]) -> None:
        from deltalake.transaction import AddAction, CommitProperties, PostCommitHookProperties, Transaction

        actions = []
        for name in names:
            path = f"{self._directory}/{name}"
            status, day = os.stat(path), name.partition("/")[0].removeprefix(_DATE)
            values = {"date": None if day.startswith("+") else day}  # Delta's dates end with the year 9999
            modified_ms = status.st_mtime_ns // 1_000_000
            actions.append(AddAction(name, status.st_size, values, modified_ms, True, json.dumps(_statistics(path))))
        properties = CommitProperties(
            custom_metadata={name: json.dumps(value) for name, value in told.items()},
            app_transactions=[Transaction(self._app_id, sequence)],
        )
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_by=["date"],
            commit_properties=properties,
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._deltalake.exceptions.DeltaError as error:
            raise KlammError(f"{self._directory}/{LOG}: {error}") from error


def _empty() -> pa.Schema:
    from klamm.spark.pipelines.parquet_files import COLUMNS
    from klamm.spark.range_reader import schema_for

    return schema_for(COLUMNS)


def _files_of(table: Any, directory: str) -> Iterator[tuple[str, int, str | None]]:
    """Yield the path, the size and the day of each file."""
    import pyarrow as pa

    for each in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        day = each["partition.date"]
        yield f"{directory}/{each['path']}", each["size_bytes"], None if day is None else str(day)


def _statistics(path: str) -> dict[str, Any]:
    """Return how many rows a file has, and of which offsets and partitions: readers choose files by that."""
    import pyarrow.parquet as pq

    about = pq.read_metadata(path)
    least: dict[str, int] = {}
    greatest: dict[str, int] = {}
    for group in map(about.row_group, range(about.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name = column.path_in_schema
            known: Any = column.statistics
            if name in ("partition", "offset") and known is not None and known.has_min_max:
                least[name] = min(known.min, least.get(name, known.min))
                greatest[name] = max(known.max, greatest.get(name, known.max))
    return {"numRecords": about.num_rows, "minValues": least, "maxValues": greatest}
