"""An archive as an Iceberg table: metadata beside the files, and a catalog, by the package pyiceberg, without a JVM.

    metadata/<version>-<uuid>.metadata.json    the table: schemas, snapshots, and where their files are
    metadata/version-hint.text                 the newest of these, for readers without the catalog
    _klamm/iceberg.db                          the catalog, in SQLite, unless another one is given

A change of the journal (archive_table.py, TBL1 to TBL3) is a snapshot, whose properties have the number of the change,
the micro-batch and its offsets: `klamm.archive`, `klamm.sequence`, `klamm.batch`, `klamm.ends`. The number is in the
table's properties, too, for a table whose older snapshots were expired. Small files are merged by the journal: the
snapshot of that change puts the new ones in the place of the old, which stay for readers of older snapshots.

The partition column `date` is in the files, too: pyiceberg cannot filter by a column that is in folders' names alone.
Iceberg's paths are absolute, so a folder that is moved, or copied, is refused. In an object store the catalog is
another one: SQLite needs files.

Promises
  ICE1  A file of metadata is on disk, name and bytes, before the catalog names it (iceberg_io.py).
"""

from __future__ import annotations

import json
import os
import struct
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any

from klamm.disk import files
from klamm.errors import InvalidSetting, KlammError, NotAStore, NotInstalled
from klamm.spark.pipelines.archive_table import ArchiveTable, FileStatistics, TableFile, empty_schema, statistics_of

if TYPE_CHECKING:
    from klamm.spark.pipelines.folder_files import FolderFiles

__all__ = ["CATALOG", "METADATA", "IcebergTable"]

CATALOG = "_klamm/iceberg.db"
METADATA = "metadata"
_DATE = "date="
_EPOCH = date(1970, 1, 1)
_OURS, _SEQUENCE = "klamm.archive", "klamm.sequence"
_NAME_MAPPING = "schema.name-mapping.default"
_PROPERTIES = {
    "format-version": "2",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
_OPTIONS = {
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "token": "s3.session-token",
    "region": "s3.region",
    "default_region": "s3.region",
    "endpoint": "s3.endpoint",
    "endpoint_url": "s3.endpoint",
}
_RETRIES = "commit.retry.num-retries"
_TRIES = 5
_PACKED = {"partition": "<i", "offset": "<q", "timestamp": "<q"}


class IcebergTable(ArchiveTable):
    """The table in a folder, of one archive; one process at a time."""

    has_dates = True

    def __init__(
        self, files: FolderFiles, app_id: str, topic: str, *, catalog: str | None = None, name: str | None = None
    ) -> None:
        """Prepare. `catalog` is a name that pyiceberg's settings know; None: the one in the folder.

        Raise NotInstalled without the package.
        """
        super().__init__(files, app_id)
        directory = files.root
        try:
            from pyiceberg.catalog.sql import SqlCatalog
            from pyiceberg.exceptions import CommitFailedException

            from klamm.spark.pipelines.iceberg_io import PROPERTY
        except ImportError:
            raise NotInstalled.package("pyiceberg", "'klamm[iceberg]'") from None
        self._sql_catalog: Any = SqlCatalog
        self._commit_failed = CommitFailedException
        self._io = PROPERTY
        for character in "#?":
            if character in directory:
                raise InvalidSetting(
                    f"{directory}: a path of an Iceberg table cannot contain {character!r}", hint="use another folder"
                )
        self._catalog_name = catalog
        self._name = ("klamm", topic.replace(".", "_")) if name is None else tuple(name.split("."))
        self._location = f"file://{directory}" if files.is_local else directory
        self._known_catalog: Any = None
        self._table: Any = None

    def _last_sequence(self) -> int | None:
        self._table = self._load()
        return None if self._table is None else self._sequence_of(self._table)

    def _sequence_of(self, table: Any) -> int | None:
        """Return the number of our last change among the current snapshot and those before it.

        The table's property says it if our snapshots were expired. If the table was rolled back they are still there.
        """
        ours = {
            snapshot.snapshot_id: int(snapshot.summary.additional_properties[_SEQUENCE])
            for snapshot in table.snapshots()
            if snapshot.summary and snapshot.summary.additional_properties.get(_OURS) == self._app_id
        }
        snapshot = table.current_snapshot()
        while snapshot is not None:
            if snapshot.snapshot_id in ours:
                return ours[snapshot.snapshot_id]
            above = snapshot.parent_snapshot_id
            snapshot = None if above is None else table.snapshot_by_id(above)
        kept = table.properties.get(self._app_id)
        return None if ours or kept is None else int(kept)

    def _change(self, sequence: int, adds: Sequence[str], removes: Sequence[str], summary: Mapping[str, Any]) -> None:
        statistics = [statistics_of(self._files.source(self._files.path(name))) for name in adds]
        self._table = self._table or self._create(statistics)
        properties = {_OURS: self._app_id, _SEQUENCE: str(sequence)}
        properties |= {name: json.dumps(value) for name, value in summary.items()}
        for attempt in range(1, _TRIES + 1):
            gone = self._replaced(removes)
            coming = zip(adds, statistics, strict=True) if gone is not None else ()
            try:
                self._commit(sequence, properties, coming, gone or [])
                return
            except self._commit_failed:  # others have changed the table, or, in an object store, another run has
                self._table = self._load()
                if self._sequence_of(self._table) == sequence:
                    return
                if attempt == _TRIES or self._sequence_of(self._table) not in (sequence - 1, None):
                    raise

    def _sync(self, *, is_repeated: bool) -> None:
        """Tell readers without the catalog which file is the newest. All files were synced when they were written."""
        stem = os.path.basename(self._table.metadata_location).removesuffix(".metadata.json")
        if not self._files.is_local:
            self._files.record(f"{METADATA}/version-hint.text", stem.encode())
            return
        hint = f"{self._directory}/{METADATA}/version-hint.text"
        if not os.path.exists(hint) or files.read(hint).decode() != stem:
            files.replace(hint, stem.encode())
        files.sync_directory(self._directory)

    def files(self) -> list[TableFile]:
        """Return the files of the table as it is now."""
        with self._errors():
            table = self._load()
            tasks = [] if table is None else table.scan().plan_files()
            return sorted(self._table_file(task) for task in tasks)

    def _table_file(self, task: Any) -> TableFile:
        """Return a file. Those that archive has written lie in the folder of their day, and others elsewhere."""
        path = str(task.file.file_path).removeprefix("file://")
        folder = os.path.relpath(os.path.dirname(path), self._directory)
        day = folder.removeprefix(_DATE) if folder.startswith(_DATE) else None
        return TableFile(path, task.file.file_size_in_bytes, day, bool(task.delete_files))

    def optimize(self, many: int, file_bytes: int) -> None:
        """Do nothing: the journal merges files."""

    def folders(self) -> list[str]:
        """Return the names of folders: the metadata's, and what other programs write."""
        return [METADATA, "data"]

    def drop(self) -> None:
        """Remove the table from a catalog that is not in the archive's folder; no file is removed."""
        if self._catalog_name is None:
            return
        from pyiceberg.exceptions import NoSuchTableError

        with self._errors():
            try:
                if self._load() is not None:
                    self._catalog().drop_table(self._name)
            except NoSuchTableError:
                return

    # ---- the package

    def _catalog(self) -> Any:
        if self._known_catalog is None:
            from pyiceberg.catalog import load_catalog

            if self._catalog_name is None:
                uri = f"sqlite:///{self._directory}/{CATALOG}"
                self._known_catalog = self._sql_catalog("klamm", uri=uri, warehouse=self._location, **self._io)
            else:
                self._known_catalog = load_catalog(self._catalog_name, **self._io, **_properties(self._files.options))
        return self._known_catalog

    def _load(self) -> Any:
        """Return the table as the catalog has it now; None if it has none."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            table = self._catalog().load_table(self._name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except FileNotFoundError as error:
            raise NotAStore(
                f"{self._directory}: the catalog names a file of metadata that is missing: {error}",
                hint="put the folder back where it was, and as it was, or archive to a new folder",
            ) from None
        if table.location() != self._location:
            raise NotAStore(
                f"{self._directory}: the table {'.'.join(self._name)} lies at {table.location()}",
                hint="paths of an Iceberg table are absolute: put the folder back, or archive to a new folder or table",
            )
        return table

    def _create(self, statistics: Sequence[FileStatistics]) -> Any:
        import pyarrow as pa
        from pyiceberg.transforms import IdentityTransform

        empty = empty_schema().append(pa.field("date", pa.date32()))
        columns = statistics[0].schema.remove_metadata() if statistics else empty
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(self._name[:-1])
        properties = {**_PROPERTIES, "klamm.version": "1"}
        creation = catalog.create_table_transaction(self._name, columns, location=self._location, properties=properties)
        with creation as transaction:
            with transaction.update_spec() as spec:
                spec.add_field("date", IdentityTransform(), "date")
            _map_names(transaction)
        return catalog.load_table(self._name)

    def _commit(self, sequence: int, properties: Mapping[str, str], adds: Any, removes: Sequence[Any]) -> None:
        """Commit a snapshot: files that come, and files that go. Without any, it has the properties alone."""
        adds = list(adds)
        self._table.metadata.properties[_RETRIES] = "0"  # of this copy: pyiceberg would commit the change once more
        with self._table.transaction() as transaction:
            self._add_columns(transaction, [statistics for _, statistics in adds])
            update = transaction.update_snapshot(snapshot_properties=dict(properties))
            with update.overwrite() if removes else update.merge_append() as snapshot:
                for file in removes:
                    snapshot.delete_data_file(file)
                for name, statistics in adds:
                    snapshot.append_data_file(self._data_file(transaction.table_metadata, name, statistics))
            transaction.set_properties({self._app_id: str(sequence)})

    def _add_columns(self, transaction: Any, statistics: Sequence[FileStatistics]) -> None:
        """Add the columns, and fields of structs, that files have and the table lacks."""
        distinct = {each.schema.remove_metadata().to_string(): each.schema for each in statistics}
        before = transaction.table_metadata.schema()
        for columns in distinct.values():
            with transaction.update_schema() as schema:
                schema.union_by_name(columns.remove_metadata())
        if transaction.table_metadata.schema() != before:
            _map_names(transaction)

    def _replaced(self, removes: Sequence[str]) -> list[Any] | None:
        """Return the files of the table that go.

        None: others have rewritten some of them, or deleted rows of them; so what they were merged to is of no use.
        """
        if not removes:
            return []
        names = {f"{self._location}/{name}" for name in removes}
        tasks = [task for task in self._table.scan().plan_files() if task.file.file_path in names]
        found = [task.file for task in tasks if not task.delete_files]
        return found if len(found) == len(names) else None

    def _data_file(self, metadata: Any, name: str, statistics: FileStatistics) -> Any:
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        schema = metadata.schema()
        ids = {column: schema.find_field(column).field_id for column in _PACKED}
        day = name.partition("/")[0].removeprefix(_DATE)
        # A date of Python's ends with the year 9999, and so does what pyiceberg takes.
        partition = Record(None if day.startswith("+") else (date.fromisoformat(day) - _EPOCH).days)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self._location}/{name}",
            file_format=FileFormat.PARQUET,
            partition=partition,
            record_count=statistics.rows,
            file_size_in_bytes=self._files.status(name).size,
            spec_id=metadata.default_spec_id,
            value_counts={ids[column]: statistics.rows for column in statistics.least},
            null_value_counts={ids[column]: 0 for column in statistics.least},
            lower_bounds=_bounds(statistics.least, ids),
            upper_bounds=_bounds(statistics.greatest, ids),
            column_sizes=None,
            nan_value_counts=None,
            split_offsets=None,
            equality_ids=None,
            sort_order_id=None,
            key_metadata=None,
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", module="pyiceberg")
                yield
        except (KlammError, AssertionError):
            raise
        except Exception as error:  # noqa: BLE001  # pyiceberg's errors, its catalogs' and its files' have no base of their own
            reason = f"{type(error).__name__}: {error}"
            text = self._files.without_options(f"the Iceberg table {'.'.join(self._name)}: {reason}")
            raise KlammError(f"{self._directory}: {text}") from None if self._files.options else error
        finally:
            if self._known_catalog is not None and hasattr(self._known_catalog, "engine"):
                self._known_catalog.engine.dispose()  # its connections; it makes others when it needs them


def _properties(options: Mapping[str, str]) -> dict[str, str]:
    """Return storage options as pyiceberg names them."""
    names = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    return {ours: names[name] for name, ours in _OPTIONS.items() if name in names}


def _map_names(transaction: Any) -> None:
    """Let readers find columns by name: files that Klamm and Spark write do not have Iceberg's ids."""
    mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
    transaction.set_properties({_NAME_MAPPING: mapping})


def _bounds(values: Mapping[str, int], ids: Mapping[str, int]) -> dict[int, bytes]:
    return {ids[column]: struct.pack(_PACKED[column], value) for column, value in values.items()}
