"""Tables of archives as others read them: Delta by deltalake and by Spark, Iceberg by pyiceberg, both by DuckDB."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.spark.pipelines.test_archive import Row

FORMATS = ("delta", "iceberg")


def read(folder: Path, kind: str, version: int = -1) -> Any:
    """Return the rows of a version of a table, in Arrow; as it is now, by default."""
    if kind == "delta":
        import deltalake

        return deltalake.DeltaTable(folder, version=None if version < 0 else version).to_pyarrow_table()
    table = iceberg(folder)
    return table.scan(snapshot_id=table.metadata.snapshots[version].snapshot_id).to_arrow()


def iceberg(folder: Path) -> Any:
    """Return an Iceberg table as its catalog has it."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("klamm", uri=f"sqlite:///{folder}/_klamm/iceberg.db")
    try:
        return catalog.load_table(("klamm", "orders"))
    finally:
        catalog.engine.dispose()


def versions(folder: Path, kind: str) -> int:
    """Return how many versions a table has; 0 if it is not there."""
    if kind == "delta":
        return len(list((folder / "_delta_log").glob("*.json")))
    return len(list((folder / "metadata").glob("*.metadata.json")))


def read_by_duckdb(folder: Path, kind: str, version: int = -1) -> list[Row]:
    """Return what DuckDB finds in a version of a table."""
    import duckdb

    if kind == "delta":
        import deltalake

        connection = duckdb.connect()
        table = deltalake.DeltaTable(folder, version=None if version < 0 else version)
        connection.register("rows", table.to_pyarrow_dataset())
    else:
        table = iceberg(folder)
        connection = table.scan(snapshot_id=table.metadata.snapshots[version].snapshot_id).to_duckdb("rows")
    with connection:
        return _rows(connection.execute(f"SELECT {_COLUMNS.format('epoch_ms')} FROM rows").fetchall())


def read_by_spark(session: Any, folder: Path, version: int = -1) -> list[Row]:
    """Return what Delta Lake for Spark finds in a version of a table; `session`: see `delta_session`."""
    options = {} if version < 0 else {"versionAsOf": version}
    frame = session.read.format("delta").options(**options).load(str(folder))
    columns = _COLUMNS.format("unix_millis").replace('"', "`")
    return _rows(frame.selectExpr(*columns.split(", ")).collect())


_COLUMNS = 'partition, "offset", {}(timestamp), key, value, headers, "timestampType"'


def _rows(found: Iterable[Any]) -> list[Row]:
    rows = []
    for partition, offset, timestamp, key, value, headers, kind in found:
        pairs = tuple((each["key"], _bytes(each["value"])) for each in headers or ())
        rows.append((partition, offset, timestamp, _bytes(key), _bytes(value), pairs, kind))
    return sorted(rows)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def delta_session(spark: Any) -> Any:
    """Return a session of the same Spark that can read Delta: with its extension, which the other one lacks."""
    from pyspark.sql import SparkSession

    context, jvm = spark.sparkContext, spark.sparkContext._jvm
    conf = context._jsc.sc().conf()
    conf.set("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    try:
        options = {
            **{name: value for name, value in spark.conf.getAll.items() if spark.conf.isModifiable(name)},
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "1",
        }
        session = jvm.org.apache.spark.sql.classic.SparkSession(context._jsc.sc(), options)
    finally:
        conf.remove("spark.sql.extensions")
    return SparkSession(context, jsparkSession=session)


def table_rows(folder: Path, kind: str, version: int = -1) -> list[Row]:
    """Return what readers of the table have, as `topic_rows` has it; the partition column is the day."""
    rows = read(folder, kind, version)
    found = []
    for row in rows.to_pylist():
        timestamp = int(row["timestamp"].timestamp() * 1000)
        assert row["date"] == row["timestamp"].date()
        headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
        found.append(
            (row["partition"], row["offset"], timestamp, row["key"], row["value"], headers, row["timestampType"])
        )
    found.sort()
    assert read_by_duckdb(folder, kind, version) == found
    return found


def delete_rows(folder: Path, path: str, positions: list[int]) -> None:
    """Delete rows of a file of an Iceberg table by a file of their positions, as engines do that merge on reading."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestFile,
        ManifestWriterV2,
    )
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update.snapshot import _FastAppendFiles

    table = iceberg(folder)
    victim = next(task.file for task in table.scan().plan_files() if task.file.file_path.endswith(path))
    deleted = folder / "deleted.parquet"
    fields: list[Any] = [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
    columns = {"file_path": [victim.file_path] * len(positions), "pos": positions}
    pq.write_table(pa.table(columns, pa.schema(fields)), deleted)
    unknown = dict.fromkeys(
        (
            "column_sizes",
            "value_counts",
            "null_value_counts",
            "nan_value_counts",
            "key_metadata",
            "split_offsets",
            "equality_ids",
            "sort_order_id",
        )
    )
    describe: Any = DataFile.from_args
    file = describe(
        content=DataFileContent.POSITION_DELETES,
        file_path=f"file://{deleted}",
        file_format=FileFormat.PARQUET,
        partition=victim.partition,
        record_count=len(positions),
        file_size_in_bytes=deleted.stat().st_size,
        spec_id=victim.spec_id,
        lower_bounds={2147483546: victim.file_path.encode()},  # of no other file
        upper_bounds={2147483546: victim.file_path.encode()},
        **unknown,
    )

    class Writer(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    class Append(_FastAppendFiles):
        def _manifests(self) -> list[ManifestFile]:
            output, spec = self.new_manifest_output(), self._transaction.table_metadata.spec()
            with Writer(spec, self.schema(), output, self.snapshot_id, self._compression) as writer:
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self.snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=file,
                )
                writer.add(entry)
            return [writer.to_manifest_file(), *self._existing_manifests()]

    with table.transaction() as transaction, Append(Operation.APPEND, transaction, table.io) as _:
        pass
