"""format("klamm"): the data source, and how a batch query reads.

Spark runs Python for each step in processes of its own: one makes the source and asks for its schema (at load), one
plans (when a job is about to start), then tasks read. Whatever is wrong with options, store, topics or offsets is told
in the first two, before a job exists.

Pushed filters. Spark asks a reader that overrides `pushFilters` to have spark.sql.python.filterPushdown.enabled set,
and raises otherwise; it tells a reader nothing about that setting. So `pushFilters` here looks as if it were not
overridden: with the setting it is called, without it nobody minds.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark import __version__ as spark_version
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from klamm.arrow.schema import COLUMNS, no_column, pyarrow
from klamm.errors import InvalidSetting, KlammError
from klamm.spark.options import ReadOptions
from klamm.spark.planning import Planner, Range
from klamm.spark.pushdown import EVERYTHING, Wanted, push
from klamm.spark.reading import Task, read

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter

__all__ = [
    "BatchReader",
    "KlammSource",
    "RangePartition",
    "arrow_schema",
    "check_schema",
    "clearly",
    "is_sparks",
    "tasks_for",
]

_OLDEST = (4, 2)

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
_MAYBE_NULL = ("key", "value", "headers")


# What Spark tells its processes: how to dial it by TCP, or by a Unix socket.
_TOLD = {f"PYTHON_WORKER_FACTORY_{name}" for name in ("SECRET", "SOCK_PATH", "SOCK_DIR")}
_settled = 0  # modules that there were


@contextmanager
def clearly() -> Iterator[None]:
    """In a process of Spark's: let an error of ours be told by its sentence alone, without where it was raised.

    Such a process ends with its first error, so what is set here is set for that error only.
    """
    try:
        yield
    except KlammError:
        if is_sparks():
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
    finally:
        _settle()


def is_sparks() -> bool:
    """Whether Spark has started this process."""
    return not _TOLD.isdisjoint(os.environ)


def _settle() -> None:
    """Let the garbage collector pass over what a process of Spark's has imported.

    Spark has it collect after every task: tens of milliseconds with all that Arrow and Spark are made of, twice for
    each partition of a micro-batch. Modules never become garbage; so it is done again only when there are new ones.
    """
    global _settled
    if _settled != len(sys.modules) and is_sparks():
        _settled = len(sys.modules)
        gc.collect()
        gc.freeze()


def refuse_old_spark(version: str = spark_version) -> None:
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < _OLDEST:
        raise KlammError(
            f"this is pyspark {version}; format klamm needs {_OLDEST[0]}.{_OLDEST[1]}",
            hint="pip install 'klamm[spark]'",
        )


class KlammSource(DataSource):
    """What spark.read.format("klamm") and its siblings use."""

    @classmethod
    def name(cls) -> str:
        return "klamm"

    def schema(self) -> StructType:
        """Of reading. Store and topics are looked at here already: it is the first that Spark asks."""
        with clearly():
            refuse_old_spark()
            pyarrow()
            options = ReadOptions.parse(self.options, streaming=None)
            planner = Planner(options)
            try:
                planner.places(strict=True)
            finally:
                planner.close()
            return StructType([StructField(name, _TYPES[name]) for name in options.columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        with clearly():
            refuse_old_spark()
            return BatchReader(schema, ReadOptions.parse(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        with clearly():
            refuse_old_spark()
            from klamm.spark.stream import Refused, StreamReader

            try:
                return StreamReader(schema, ReadOptions.parse(self.options, streaming=True))
            except KlammError as error:
                if not is_sparks():
                    raise
                return Refused(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with clearly():
            refuse_old_spark()
            from klamm.spark.sink import BatchWriter

            return BatchWriter(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        with clearly():
            refuse_old_spark()
            from klamm.spark.sink import StreamWriter

            return StreamWriter(schema, self.options, overwrite)


class RangePartition(InputPartition):
    """One task's part."""

    def __init__(self, task: Task) -> None:
        self.task = task


def check_schema(schema: StructType, options: ReadOptions) -> None:
    """That a schema which somebody gave names columns of ours, with their types."""
    if not schema.fields:
        raise InvalidSetting("the schema has no columns", hint=f"there are {', '.join(COLUMNS)}")
    for field in schema.fields:
        if field.name not in _TYPES:
            raise no_column(field.name)
        wanted = _TYPES[field.name]
        if _bare(field.dataType) != _bare(wanted):
            raise InvalidSetting(
                f"the schema's column {field.name} is {field.dataType.simpleString()}, not {wanted.simpleString()}",
                hint="give no schema, and cast what is read",
            )
        if field.name in _MAYBE_NULL and not field.nullable:
            raise InvalidSetting(f"the schema's column {field.name} cannot be null, but records may have none")
    names = schema.fieldNames()
    if len(set(names)) < len(names):
        raise InvalidSetting("the schema has a column twice")
    if "headers" in options.columns and "headers" not in names:
        raise InvalidSetting("the schema has no column headers, but includeHeaders asks for it", hint="give no schema")
    if options.columns_given and set(names) != set(options.columns):
        raise InvalidSetting(
            f"the schema has {', '.join(names)}, but the option columns says {', '.join(options.columns)}",
            hint="give one of the two",
        )


def _bare(kind: DataType) -> str:
    return kind.simpleString()  # without nullability


def arrow_schema(schema: StructType) -> pa.Schema:
    """As Spark wants it from a Python source, to the letter."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def tasks_for(options: ReadOptions, store_id: str, ranges: list[Range]) -> list[InputPartition]:
    return [
        RangePartition(Task(options.path, store_id, each, options.isolation, options.fail_on_data_loss))
        for each in ranges
    ]


class _Pushdown:
    """`pushFilters` of one reader; passes for one that is not overridden."""

    __func__ = staticmethod(DataSourceReader.__dict__.get("pushFilters", lambda *_: None))

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Any]) -> list[Any]:
        self._reader.wanted, rest = push(filters)
        return rest


class BatchReader(DataSourceReader):
    """Plans on the driver, reads in tasks."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(schema, options)
        self.wanted: Wanted = EVERYTHING
        self._options = options
        self._schema = schema

    @property
    def pushFilters(self) -> _Pushdown:  # noqa: N802  # Spark's name
        return _Pushdown(self)

    def partitions(self) -> list[InputPartition]:
        with clearly():
            planner = Planner(self._options)
            try:
                return tasks_for(self._options, planner.store_id, planner.batch(self.wanted))
            finally:
                planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with clearly():
            if isinstance(partition, RangePartition):  # Spark makes up a task if there is none
                yield from read(partition.task, arrow_schema(self._schema))
