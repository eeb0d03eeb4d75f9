"""Rows of an archive's Parquet files for Spark, and from Spark into such files, where Spark itself has no access.

Files of a folder are Spark's own work. Objects of a store (object_files.py) are read and written by tasks, with pyarrow
and obstore: no package of Hadoop's for that store has to be there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from klamm.spark.pipelines.parquet_files import COLUMNS, DayFile, write_fitting
from klamm.spark.pipelines.query_runner import collected

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from klamm.spark.pipelines.folder_files import FolderFiles, Output

__all__ = ["rows_of", "write_values"]

_SCHEMA = (
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, partition INT, offset BIGINT, "
    "timestamp TIMESTAMP, timestampType INT"
)
_WRITTEN = "day STRING, path STRING, rows BIGINT, fits BOOLEAN"


def rows_of(spark: SparkSession, files: FolderFiles, paths: Sequence[str]) -> DataFrame:
    """Return the rows of files: COLUMNS, and maybe others."""
    if files.is_local:
        return spark.read.parquet(*paths)
    from klamm.spark.pipelines.object_files import ObjectFiles

    assert isinstance(files, ObjectFiles)
    parts = min(len(paths), 4 * spark.sparkContext.defaultParallelism)
    read = partial(_read, files.root, files.options, tuple(paths))
    return spark.range(0, len(paths), 1, parts).mapInArrow(read, _SCHEMA)


def _read(
    root: str, options: Mapping[str, str], paths: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read the files whose numbers come, in a task."""
    import pyarrow.parquet as pq

    from klamm.spark.pipelines.object_files import ObjectFiles
    from klamm.spark.source import plain_errors

    with plain_errors():
        files = ObjectFiles(root, options)
        for batch in batches:
            numbers: Any = batch.column("id").to_pylist()
            for number in numbers:
                for rows in pq.ParquetFile(files.content(paths[number])).iter_batches(columns=list(COLUMNS)):
                    yield rows.select(list(COLUMNS))


def write_values(rows: DataFrame, output: Output, *, has_dates: bool) -> tuple[list[DayFile], list[DayFile]]:
    """Let tasks write rows, which say in the column `fits` whether they fit the schema. Return files of either kind."""
    found = collected(rows.mapInArrow(partial(_write, output, has_dates=has_dates), _WRITTEN))
    written = [(DayFile(*row[:3]), row[3]) for row in found]
    return [file for file, fits in written if fits], [file for file, fits in written if not fits]


def _write(output: Output, batches: Iterator[pa.RecordBatch], *, has_dates: bool) -> Iterator[pa.RecordBatch]:
    """Write the rows that come, in a task."""
    import pyarrow as pa

    from klamm.spark.source import plain_errors

    with plain_errors():
        for files, fits in zip(write_fitting(batches, output, has_dates=has_dates), (True, False), strict=True):
            if files:
                columns: list[Any] = [list(each) for each in zip(*files, strict=True)]
                arrays = [pa.array(each) for each in (*columns, [fits] * len(files))]
                yield pa.RecordBatch.from_arrays(arrays, [*DayFile._fields, "fits"])
