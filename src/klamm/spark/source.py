"""The data source format("klamm"), and its batch reader.

Spark runs Python for each step in processes of its own: one makes the source and asks for its schema (at load), one
plans (when a job is about to start), then tasks read. Errors in options, store, topics or offsets are raised by the
first two, before a job exists.

Pushed filters. Spark asks a reader that overrides `pushFilters` to have spark.sql.python.filterPushdown.enabled set,
and raises otherwise; a reader cannot read that setting. So `pushFilters` here looks as if it were not overridden: with
the setting it is called, without it nothing changes.

Tables. CREATE TABLE orders USING klamm OPTIONS (…) gives its options when the table is made. When it is read or written
to, Spark hands out the schema that was kept, and no options; so each column of a table has them, as metadata. An INSERT
has them if Spark had to make its rows fit the table; rows that fit as they are have what their own columns have, which
may be another table's. The sink recognises those by an offset that is not null, or by columns that differ (sink.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

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
from klamm.spark.internals import arrow_schema, freeze_modules, hide_traceback, is_worker, not_overridden
from klamm.spark.option_names import is_table
from klamm.spark.options import ReadOptions
from klamm.spark.planner import Planner, Range
from klamm.spark.pushdown import EVERYTHING, PushedFilters, push
from klamm.spark.range_reader import Task, read
from klamm.spark.server.address import SERVER

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter

__all__ = [
    "BatchReader",
    "KlammSource",
    "RangePartition",
    "check_schema",
    "plain_errors",
    "register",
    "tasks_for",
]

_OLDEST = (4, 1)
_TABLE = "klamm.options"  # the metadata of a table's columns: JSON

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


@contextmanager
def plain_errors() -> Iterator[None]:
    """Report errors of ours by their sentence alone, without a traceback, in a process of Spark's.

    Such a process ends with its first error, so what is set here is set for that error only.
    """
    try:
        yield
    except KlammError:
        if is_worker():
            hide_traceback()
        raise
    finally:
        freeze_modules()


def check_spark_version(version: str = spark_version) -> None:
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < _OLDEST:
        raise KlammError(
            f"this is pyspark {version}; format klamm needs {_OLDEST[0]}.{_OLDEST[1]}",
            hint="pip install 'klamm[spark]'",
        )


class KlammSource(DataSource):
    """The data source of spark.read.format("klamm") and its siblings."""

    default_path: ClassVar[str | None] = None
    """The store of a query that names none."""

    @classmethod
    def name(cls) -> str:
        return "klamm"

    def schema(self) -> StructType:
        """Return the schema for reading. Store and topics are checked here already: it is Spark's first call."""
        with plain_errors():
            check_spark_version()
            pyarrow()
            given = self._given()
            options = ReadOptions.parse(given, streaming=None)
            with closing(Planner(options)) as planner:
                planner.tps(strict=True)
            kept = {_TABLE: json.dumps(dict(given))} if is_table(given) else None
            return StructType([StructField(name, _TYPES[name], metadata=kept) for name in options.columns])

    def _given(self, schema: StructType | None = None) -> Mapping[str, str]:
        """Return the options; those of a table, of which Spark keeps nothing but the schema, if there are none.

        A table names its store: with the session's in its place, an INSERT could go to another topic.
        """
        if not self.options and schema is not None:
            kept = {(field.metadata or {}).get(_TABLE) for field in schema.fields}
            found: dict[str, str] = json.loads(text) if len(kept) == 1 and (text := kept.pop()) else {}
            return found
        names_store = any(name.lower() in ("path", SERVER) for name in self.options)
        if self.default_path is None or is_table(self.options) or names_store:
            return self.options
        return {"path": self.default_path, **self.options}

    def reader(self, schema: StructType) -> DataSourceReader:
        with plain_errors():
            check_spark_version()
            return BatchReader(schema, ReadOptions.parse(self._given(schema), streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        with plain_errors():
            check_spark_version()
            from klamm.spark.stream import FailedStreamReader, StreamReader

            try:
                return StreamReader(schema, ReadOptions.parse(self._given(schema), streaming=True))
            except KlammError as error:
                if not is_worker():
                    raise
                return FailedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with plain_errors():
            check_spark_version()
            from klamm.spark.sink import BatchWriter

            return BatchWriter(schema, self._given(schema), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        with plain_errors():
            check_spark_version()
            from klamm.spark.sink import StreamWriter

            return StreamWriter(schema, self._given(schema), overwrite)


def register(spark: SparkSession, path: str) -> None:
    """Make format("klamm") of a session use the store at `path` where a query names none.

    A Python data source cannot read the settings of the session; so the session gets a source that has the path.
    """

    class SessionSource(KlammSource):
        default_path = path

    spark.dataSource.register(SessionSource)


class RangePartition(InputPartition):
    """One task's part."""

    def __init__(self, task: Task) -> None:
        self.task = task


def check_schema(schema: StructType, options: ReadOptions) -> None:
    """Check that a given schema names columns of ours, with their types."""
    if not schema.fields:
        raise InvalidSetting("the schema has no columns", hint=f"there are {', '.join(COLUMNS)}")
    for field in schema.fields:
        if field.name not in _TYPES:
            raise no_column(field.name)
        found, wanted = field.dataType.simpleString(), _TYPES[field.name].simpleString()  # without nullability
        if found != wanted:
            raise InvalidSetting(
                f"the schema's column {field.name} is {found}, not {wanted}",
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


def tasks_for(options: ReadOptions, store_id: str, ranges: list[Range]) -> list[InputPartition]:
    return [
        RangePartition(Task(options.path, store_id, each, options.isolation, options.fail_on_data_loss, options.server))
        for each in ranges
    ]


class _Pushdown:
    """`pushFilters` of one reader; passes for one that is not overridden."""

    __func__ = not_overridden(DataSourceReader, "pushFilters")

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Any]) -> list[Any]:
        self._reader.wanted, rest = push(filters)
        return rest


class BatchReader(DataSourceReader):
    """Plans on the driver, reads in tasks."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(schema, options)
        self.wanted: PushedFilters = EVERYTHING
        self._options = options
        self._schema = schema

    @property
    def pushFilters(self) -> _Pushdown:  # noqa: N802  # Spark's name
        return _Pushdown(self)

    def partitions(self) -> list[InputPartition]:
        with plain_errors(), closing(Planner(self._options)) as planner:
            return tasks_for(self._options, planner.store_id, planner.batch(self.wanted))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            if isinstance(partition, RangePartition):  # Spark makes up a task if there is none
                yield from read(partition.task, arrow_schema(self._schema))
