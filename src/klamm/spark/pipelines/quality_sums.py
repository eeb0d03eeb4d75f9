"""The partial sums of a topic (quality_scan.py), and its keys, for quality_report.py: in Spark, or in DuckDB here.

Both answer the same SQL, in which {sums} stands for the table of the sums. It keeps to what the two have in common.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

from klamm.arrow.schema import pyarrow
from klamm.errors import NotInstalled
from klamm.spark.functions import F
from klamm.spark.options import ReadOptions
from klamm.spark.pipelines.quality_scan import SCHEMA, count, none
from klamm.spark.pipelines.query_runner import collected
from klamm.spark.planner import Planner
from klamm.spark.range_reader import Task, forget_store, read, schema_for
from klamm.spark.remote import read as read_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from klamm.spark.pipelines.store_location import StoreLocation

__all__ = ["Sums", "SumsHere", "SumsOfSpark"]

_COLUMNS = "key,value,partition,offset,timestamp"


class Sums(Protocol):
    """The sums that were counted in a topic. To be closed."""

    engine: str

    def query(self, sql: str) -> list[dict[str, Any]]: ...

    def keys(self, most: int) -> tuple[int, int, list[tuple[bytes, int]]]:
        """Return the number of keys, how many of them repeat, and the `most` most frequent of those, with counts."""

    def close(self) -> None: ...


def _options(topic: str, since_ms: int | None, columns: str) -> dict[str, str]:
    found = {"subscribe": topic, "columns": columns}
    if since_ms is not None:
        found |= {"startingTimestamp": str(since_ms), "startingOffsetsByTimestampStrategy": "latest"}
    return found


class SumsOfSpark:
    """Counted by tasks, and kept by Spark on its disks."""

    engine = "spark"

    def __init__(self, spark: SparkSession, store: StoreLocation, topic: str, since_ms: int | None) -> None:
        from pyspark import StorageLevel

        self._spark, self._store, self._topic, self._since_ms = spark, store, topic, since_ms
        self._view = f"klamm_sums_{uuid.uuid4().hex}"
        self._sums = self._read(_COLUMNS).mapInArrow(count, SCHEMA).persist(StorageLevel.MEMORY_AND_DISK)
        self._sums.createOrReplaceTempView(self._view)

    def _read(self, columns: str) -> DataFrame:
        tasks = self._spark.conf.get("spark.sql.shuffle.partitions")
        options = {**self._store.login, **_options(self._topic, self._since_ms, columns)}
        rows = read_rows(self._spark, self._store.path, minPartitions=tasks, **options)
        if self._since_ms is None:
            return rows
        return rows.where(F.col("timestamp") >= F.timestamp_millis(F.lit(self._since_ms)))

    def query(self, sql: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in collected(self._spark.sql(sql.format(sums=self._view)))]

    def keys(self, most: int) -> tuple[int, int, list[tuple[bytes, int]]]:
        from pyspark.sql import Observation

        seen = Observation()
        rows = self._read("key,timestamp").where("key IS NOT NULL")
        keys = rows.groupBy("key").agg(F.count("*").alias("records"))
        repeated = F.count_if(F.col("records") > 1).alias("repeated")
        keys = keys.observe(seen, F.count("*").alias("distinct"), repeated).where("records > 1")
        found = collected(keys.orderBy(F.col("records").desc(), "key").limit(most))
        return (
            seen.get["distinct"],
            seen.get["repeated"],
            [(bytes(row["key"]), row["records"]) for row in found],
        )

    def close(self) -> None:
        self._spark.catalog.dropTempView(self._view)
        self._sums.unpersist()


class SumsHere:
    """Counted in this process."""

    engine = "local"

    def __init__(self, store: StoreLocation, topic: str, since_ms: int | None) -> None:
        try:
            import duckdb
        except ImportError:
            raise NotInstalled.package("duckdb", "'klamm[sql]'") from None
        pa: Any = pyarrow()
        self._store, self._topic, self._since_ms = store, topic, since_ms
        self._database: Any = duckdb.connect(":memory:")
        self._database.register("sums", pa.Table.from_batches([none(), *count(self._batches(_COLUMNS))]))

    def _batches(self, columns: str) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyarrow import compute

        schema = schema_for(columns.split(","))
        given = {**self._store.options, **_options(self._topic, self._since_ms, columns)}
        options = ReadOptions.parse(given, streaming=False)
        functions: Any = compute
        with closing(Planner(options)) as planner:
            for each in planner.batch():
                task = Task(options.path, planner.store_id, each, options.isolation, True, options.server)
                for batch in read(task, schema):
                    if self._since_ms is None:
                        yield batch
                    else:
                        since = pa.scalar(self._since_ms * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
                        yield batch.filter(functions.greater_equal(batch.column("timestamp"), since))

    def query(self, sql: str) -> list[dict[str, Any]]:
        found: Any = self._database.execute(sql.format(sums="sums"))
        names = [each[0] for each in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def keys(self, most: int) -> tuple[int, int, list[tuple[bytes, int]]]:
        import pyarrow as pa

        keys = (each.select(["key"]) for each in self._batches("key,offset,timestamp"))
        self._database.register("found_keys", pa.RecordBatchReader.from_batches(schema_for(["key"]), keys))
        self._database.execute(
            "CREATE TEMP TABLE keys AS "
            "SELECT key, count(*) AS records FROM found_keys WHERE key IS NOT NULL GROUP BY key"
        )
        (counts,) = self.query("SELECT count(*) AS keys, count(*) FILTER (records > 1) AS repeated FROM keys")
        rows = self.query(f"SELECT key, records FROM keys WHERE records > 1 ORDER BY records DESC, key LIMIT {most}")
        return counts["keys"], counts["repeated"], [(bytes(row["key"]), row["records"]) for row in rows]

    def close(self) -> None:
        self._database.close()
        forget_store()
