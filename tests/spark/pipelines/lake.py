"""Tables of archives as other programs read them: Delta by deltalake, Iceberg by pyiceberg, both counted by DuckDB."""

from __future__ import annotations

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


def table_rows(folder: Path, kind: str, version: int = -1) -> list[Row]:
    """Return what readers of the table have, as `topic_rows` has it; the partition column is the day."""
    import duckdb

    rows = read(folder, kind, version)
    found = []
    for row in rows.to_pylist():
        timestamp = int(row["timestamp"].timestamp() * 1000)
        assert row["date"] == row["timestamp"].date()
        headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
        found.append(
            (row["partition"], row["offset"], timestamp, row["key"], row["value"], headers, row["timestampType"])
        )
    query = 'SELECT count(*), count(DISTINCT (partition, "offset")) FROM rows'
    assert duckdb.connect().register("rows", rows).execute(query).fetchall() == [(len(found), len(found))]
    return sorted(found)
