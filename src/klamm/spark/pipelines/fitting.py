"""JSON values and a schema: which records fit, their fields, and for those that do not, a dead letter that says why.

A record fits when its value is one JSON object in UTF-8, and each field that the schema names is of its type, null, or
not there; fields that the schema does not name are passed over. A tombstone fits: it has no fields. Types are read as
Spark reads JSON: a number or an object where text is wanted is kept as its text, a time without a zone is one of the
session's, and a decimal is rounded to its scale. NOT NULL means that a record without that field does not fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.errors import InvalidSetting
from klamm.spark.pipelines.dead_letters import letters

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Fitting", "infer", "parse_schema"]

_UNFIT = "_klamm_unfit"
_OPTIONS = {"columnNameOfCorruptRecord": _UNFIT, "allowSingleQuotes": "false"}
_REASON_CHARACTERS = 1000


def parse_schema(given: str | StructType) -> StructType:
    """A schema that was given as DDL, or as it is; InvalidSetting if it is none."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    schema: Any = given
    if isinstance(given, str):
        try:
            schema = StructType.fromDDL(given)
        except PySparkException as error:
            said = str(error).strip().splitlines()[0]
            raise InvalidSetting(
                f"schema: {given!r} cannot be parsed: {said}", hint="want columns and types: id BIGINT, name STRING"
            ) from None
    if not isinstance(schema, StructType):
        raise InvalidSetting(f"schema: {given!r} is no struct", hint="want columns and types: id BIGINT, name STRING")
    if not schema.fields:
        raise InvalidSetting("schema: it has no fields", hint="leave it out to archive values as they are")
    _check(schema, "")
    return schema


def _check(kind: Any, where: str) -> None:
    """What Spark would find out in the middle of a job, or not at all."""
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    if isinstance(kind, StructType):
        seen: set[str] = set()
        for each in kind.fields:
            if each.name.lower() in seen:
                raise InvalidSetting(
                    f"schema: there are two fields {where}{each.name}",
                    hint="give a schema in which names differ by more than case",
                )
            seen.add(each.name.lower())
            _check(each.dataType, f"{where}{each.name}.")
    elif isinstance(kind, ArrayType | MapType):
        inner = kind.elementType if isinstance(kind, ArrayType) else kind.valueType
        required = not (kind.containsNull if isinstance(kind, ArrayType) else kind.valueContainsNull)
        if required or _has_required(inner):
            raise InvalidSetting(
                f"schema: {where[:-1]} has something that may not be null inside of an array or a map",
                hint="leave NOT NULL out there",
            )
        if isinstance(kind, MapType) and not isinstance(kind.keyType, StringType):
            raise InvalidSetting(
                f"schema: {where[:-1]} has keys of {kind.keyType.simpleString()}; names in JSON are text",
                hint="want MAP<STRING, …>",
            )
        _check(inner, where)
    if _is_none_of_json(kind):
        raise InvalidSetting(
            f"schema: {where[:-1]} is {kind.simpleString()}, which Spark does not read from JSON into Parquet",
            hint="want STRING, or a type of numbers, times, arrays, maps or structs",
        )


def _is_none_of_json(kind: Any) -> bool:
    """CHAR and VARCHAR are among them, and a struct without fields."""
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        return not kind.fields
    return not isinstance(
        kind,
        types.StringType
        | types.BooleanType
        | types.NumericType
        | types.DateType
        | types.TimestampType
        | types.TimestampNTZType
        | types.BinaryType
        | types.DayTimeIntervalType
        | types.YearMonthIntervalType
        | types.VariantType
        | types.ArrayType
        | types.MapType,
    )


def _has_required(kind: Any) -> bool:
    from pyspark.sql.types import StructType

    return isinstance(kind, StructType) and any(
        not each.nullable or _has_required(each.dataType) for each in kind.fields
    )


def infer(spark: SparkSession, values: DataFrame) -> StructType | None:
    """The schema of the JSON objects among `values`, a column of text; None if there are none."""
    from pyspark.sql.types import StructType

    found = spark.read.options(**_OPTIONS).json(values).schema
    fields = [each for each in found.fields if each.name != _UNFIT]
    return StructType(fields) if fields else None


class Fitting:
    """Records of one topic, and the schema they have to fit."""

    def __init__(self, topic: str, schema: StructType) -> None:
        self._topic = topic
        self.schema = schema

    def parsed(self, rows: DataFrame) -> DataFrame:
        """The rows, with `data` and `fits`."""
        from pyspark.sql import functions as sql

        data = sql.get("_parsed.v", sql.lit(0))
        fits = (
            sql.is_valid_utf8(_text())
            & sql.col(f"_parsed.{_UNFIT}").isNull()
            & sql.col("_parsed.end")
            & (sql.size("_parsed.v") == 1)
            & data.isNotNull()
        )
        for path in _required(self.schema, ()):
            value = data
            holds = sql.lit(True)
            for name in path[:-1]:
                value = value.getField(name)
                holds = holds & value.isNotNull()
            fits = fits & (~holds | value.getField(path[-1]).isNotNull())
        return (
            rows.withColumn("_parsed", _read(self.schema))
            .withColumn("data", data)
            .withColumn("fits", sql.col("value").isNull() | sql.coalesce(fits, sql.lit(False)))
            .drop("_parsed")
        )

    def letters(self, rows: DataFrame) -> DataFrame:
        """Rows that do not fit, as dead letters: key, value and headers."""
        from pyspark.sql import functions as sql

        reason = sql.substring(self._reason(), 1, _REASON_CHARACTERS)
        return letters(rows.withColumn("topic", sql.lit(self._topic)), "klamm.errors.InvalidRecord", reason)

    def _reason(self) -> Column:
        from pyspark.sql import functions as sql
        from pyspark.sql.types import StringType, StructField, StructType

        wrong = []
        for each in self.schema.fields:
            kind = _nullable(StructType([each])).fields[0]
            alone = sql.from_json(_text(), StructType([kind, StructField(_UNFIT, StringType())]), _OPTIONS)
            needed = sql.lit(not each.nullable) & alone.getField(each.name).isNull()
            said = f"{each.name} does not fit {each.dataType.simpleString()}"
            wrong.append(
                sql.when(alone[_UNFIT].isNotNull(), sql.lit(said)).when(needed, sql.lit(f"{each.name} may not be null"))
            )
        listed = sql.concat_ws("; ", *wrong)
        return (
            sql.when(~sql.is_valid_utf8(_text()), sql.lit("the value is no UTF-8"))
            .when(sql.try_parse_json(_text()).isNull(), sql.lit("the value is no JSON"))
            .when(~sql.ltrim(_text()).startswith("{"), sql.lit("the value is no JSON object"))
            .when(listed != "", listed)
            .otherwise(sql.lit("the value is not one JSON object that fits the schema"))
        )


def _text() -> Column:
    from pyspark.sql import functions as sql

    return sql.col("value").cast("string")


def _read(schema: StructType) -> Column:
    """The value, put into an array and that before a last field: so text behind the object is seen, too."""
    from pyspark.sql import functions as sql
    from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

    wrapped = StructType(
        [
            StructField("v", ArrayType(_nullable(schema))),
            StructField("end", BooleanType()),
            StructField(_UNFIT, StringType()),
        ]
    )
    return sql.from_json(sql.concat(sql.lit('{"v":['), _text(), sql.lit('],"end":true}')), wrapped, _OPTIONS)


def _nullable(schema: StructType) -> StructType:
    """Spark would take NOT NULL for granted."""
    from pyspark.sql.types import StructField, StructType

    def kind_of(kind: Any) -> Any:
        return _nullable(kind) if isinstance(kind, StructType) else kind

    return StructType([StructField(each.name, kind_of(each.dataType)) for each in schema.fields])


def _required(schema: StructType, above: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Fields that may not be null."""
    from pyspark.sql.types import StructType

    found = []
    for each in schema.fields:
        path = (*above, each.name)
        if not each.nullable:
            found.append(path)
        if isinstance(each.dataType, StructType):
            found += _required(each.dataType, path)
    return found
