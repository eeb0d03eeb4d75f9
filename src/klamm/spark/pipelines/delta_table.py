"""An archive as a Delta table: the log of the table beside the files, by the package deltalake, without a JVM.

    _delta_log/<version>.json    a commit: the files of a micro-batch, and (txnAppId, txnVersion) of the change

A commit has the number of the change (archive_table.py, TBL1 to TBL3) as txnVersion. Small files are merged by Delta's
own OPTIMIZE, which leaves the old ones for readers of older versions; VACUUM removes them. The package syncs nothing,
so a power cut may leave the commit of an OPTIMIZE and not its files: such a last commit is removed, and the old files
are the table's again. Of a torn checkpoint: delta_checkpoint.py. In an object store a commit is one PUT with a
condition, and whole: nothing is synced or removed.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from klamm.disk import files
from klamm.errors import KlammError, NotInstalled
from klamm.spark.pipelines.archive_table import ArchiveTable, FileStatistics, TableFile, empty_schema, statistics_of
from klamm.spark.pipelines.delta_checkpoint import remove_torn

if TYPE_CHECKING:
    from klamm.spark.pipelines.folder_files import FolderFiles

__all__ = ["CHECKPOINT_EVERY", "LOG", "DeltaTable"]

LOG = "_delta_log"
CHECKPOINT_EVERY = 100
"""Versions, so that readers need not read all of the log."""
_DATE = "date="
_COMMIT = re.compile(r"\d{20}\.json")
_log = logging.getLogger("klamm.spark")


class DeltaTable(ArchiveTable):
    """The table in a folder, of one archive; one process at a time."""

    def __init__(self, files: FolderFiles, app_id: str) -> None:
        """Prepare. Raise NotInstalled without the package."""
        super().__init__(files, app_id)
        try:
            import deltalake
        except ImportError:
            raise NotInstalled.package("deltalake", "'klamm[delta]'") from None
        self._deltalake: Any = deltalake
        self._table: Any = None
        self._versions: range = range(0)  # that this process has written and not synced

    def _last_sequence(self) -> int | None:
        if self._files.is_local:
            self._remove_torn()
            remove_torn(f"{self._directory}/{LOG}")
        self._table = self._open()
        return None if self._table is None else self._table.transaction_version(self._app_id)

    def _change(self, sequence: int, adds: Sequence[str], removes: Sequence[str], summary: Mapping[str, Any]) -> None:
        assert not removes
        statistics = [statistics_of(self._files.source(self._files.path(name))) for name in adds]
        first = 0 if self._table is None else self._table.version() + 1
        self._table = table = self._table or self._create(statistics)
        self._add_columns(table, statistics)
        self._commit(table, sequence, zip(adds, statistics, strict=True), summary)
        table.update_incremental()
        self._versions = range(first, table.version() + 1)
        if any(version and version % CHECKPOINT_EVERY == 0 for version in self._versions):
            table.create_checkpoint()

    def _sync(self, *, is_repeated: bool) -> None:
        """Sync what was written; all of it, if that was begun by a run that was killed. The package syncs nothing."""
        if not self._files.is_local:
            return
        log = f"{self._directory}/{LOG}"
        written = {f"{version:020}" for version in self._versions}
        for name in os.listdir(log):
            if is_repeated or name == "_last_checkpoint" or name[:20] in written:
                files.sync_file(f"{log}/{name}")
        files.sync_directory(log)
        files.sync_directory(self._directory)

    def _remove_torn(self) -> None:
        """Remove a last commit that a power cut has left without its end, or an OPTIMIZE without its files.

        A change is committed again, and small files are merged again.
        """
        log = f"{self._directory}/{LOG}"
        commits = [name for name in os.listdir(log) if _COMMIT.fullmatch(name)] if os.path.isdir(log) else []
        path = f"{log}/{max(commits, default='')}"
        try:
            lines = [json.loads(each) for each in files.read(path).splitlines()] if commits else [{}]
            if lines and all(isinstance(each, dict) for each in lines) and self._has_files(lines):
                return
        except ValueError:
            pass
        _log.warning("%s: not whole, after a power cut: removed", path)
        files.remove(path)

    def _has_files(self, actions: Sequence[Mapping[str, Any]]) -> bool:
        """Return False if it is an OPTIMIZE whose files are not whole. Those of a change are synced before it."""
        if not any(each.get("commitInfo", {}).get("operation") == "OPTIMIZE" for each in actions):
            return True
        added = [each["add"] for each in actions if "add" in each]
        return all(_is_whole(f"{self._directory}/{unquote(each['path'])}", each["size"]) for each in added)

    def files(self) -> list[TableFile]:
        """Return the files of the table as it is now."""
        with self._errors():
            table = self._open()
            return [] if table is None else list(_files_of(table, self._directory))

    def optimize(self, many: int, file_bytes: int) -> int:
        """Merge the small files of days that have `many`, to about `file_bytes`. Return how many went."""
        with self._errors():
            table = self._open()
            if table is None:
                return 0
            small: dict[str, int] = {}
            for file in _files_of(table, self._directory):
                if file.day is not None and file.size < file_bytes // 2:
                    small[file.day] = small.get(file.day, 0) + 1
            merged = 0
            for day in [day for day, count in small.items() if count >= many]:
                metrics = table.optimize.compact(
                    partition_filters=[("date", "=", day)],
                    target_size=file_bytes,
                    post_commithook_properties=self._no_hooks(),  # a checkpoint would have what is not synced yet
                )
                merged += int(metrics["numFilesRemoved"])
                self._sync_new(table, day)
            return merged

    def _sync_new(self, table: Any, day: str) -> None:
        """Sync what OPTIMIZE has written: files of a day, and its commits."""
        if not self._files.is_local:
            return
        for file in _files_of(table, self._directory):
            if file.day == day:
                files.sync_file(file.path)
        files.sync_directory(f"{self._directory}/{_DATE}{day}")
        self._sync(is_repeated=True)

    def folders(self) -> list[str]:
        """Return the name of the table's log."""
        return [LOG]

    def drop(self) -> None:
        """Do nothing: there is no catalog."""

    # ---- the package

    def _open(self) -> Any:
        options = self._files.options or None
        if not self._deltalake.DeltaTable.is_deltatable(self._directory, storage_options=options):
            return None
        return self._deltalake.DeltaTable(self._directory, storage_options=options)

    def _create(self, statistics: Sequence[FileStatistics]) -> Any:
        schema = self._schema(statistics[0].schema if statistics else empty_schema())
        return self._deltalake.DeltaTable.create(
            self._directory, schema, partition_by=["date"], storage_options=self._files.options or None
        )

    def _schema(self, columns: Any) -> Any:
        import pyarrow as pa

        fields = [pa.field(each.name, each.type) for each in columns]
        return self._deltalake.Schema.from_arrow(pa.schema([*fields, pa.field("date", pa.date32())]))

    def _add_columns(self, table: Any, statistics: Sequence[FileStatistics]) -> None:
        """Add the columns, and fields of structs, that files have and the table lacks: a commit of its own."""
        distinct = {each.schema.remove_metadata().to_string(): each.schema for each in statistics}
        for columns in distinct.values():
            known = {field.name: field.to_json() for field in table.schema().fields}
            new = [field for field in self._schema(columns).fields if known.get(field.name) != field.to_json()]
            if new:
                table.alter.add_columns(new, post_commithook_properties=self._no_hooks())
                table.update_incremental()

    def _commit(
        self, table: Any, sequence: int, adds: Iterable[tuple[str, FileStatistics]], summary: Mapping[str, Any]
    ) -> None:
        from deltalake.transaction import AddAction, CommitProperties, Transaction

        actions = []
        for name, statistics in adds:
            status, day = self._files.status(name), name.partition("/")[0].removeprefix(_DATE)
            values = {"date": None if day.startswith("+") else day}  # Delta's dates end with the year 9999
            described = json.dumps(_as_json(statistics))
            actions.append(AddAction(name, status.size, values, status.modified_ms, True, described))
        properties = CommitProperties(
            custom_metadata={name: json.dumps(value) for name, value in summary.items()},
            app_transactions=[Transaction(self._app_id, sequence)],
        )
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_by=["date"],
            commit_properties=properties,
            post_commithook_properties=self._no_hooks(),
        )

    def _no_hooks(self) -> Any:
        from deltalake.transaction import PostCommitHookProperties

        return PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._deltalake.exceptions.DeltaError as error:
            text = self._files.without_options(str(error))
            raise KlammError(f"{self._directory}/{LOG}: {text}") from None if self._files.options else error


def _is_whole(path: str, size: int) -> bool:
    """Return whether a Parquet file has its size and its end."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.read_metadata(path)
    except (FileNotFoundError, pa.ArrowInvalid):
        return False
    return os.path.getsize(path) == size


def _files_of(table: Any, directory: str) -> Iterator[TableFile]:
    import pyarrow as pa

    for each in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        day = each["partition.date"]
        yield TableFile(f"{directory}/{each['path']}", each["size_bytes"], None if day is None else str(day))


def _as_json(statistics: FileStatistics) -> dict[str, Any]:
    """Return statistics as Delta spells them."""
    columns = ("partition", "offset")
    least = {name: statistics.least[name] for name in columns if name in statistics.least}
    greatest = {name: statistics.greatest[name] for name in columns if name in statistics.greatest}
    return {"numRecords": statistics.rows, "minValues": least, "maxValues": greatest}
