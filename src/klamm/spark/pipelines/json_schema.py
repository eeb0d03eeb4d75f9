"""JSON values and a schema: which records fit, their fields, and for those that do not, a dead letter that says why.

A record fits when its value is one JSON object in UTF-8, and each field that the schema names is of its type, null, or
not there; fields that the schema does not name are passed over. A tombstone fits: it has no fields. Types are read as
Spark reads JSON: a number or an object where text is wanted is kept as its text, a time without a zone is one of the
session's, and a decimal is rounded to its scale. NOT NULL means that a record without that field does not fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.errors import InvalidSetting
from klamm.spark.functions import F, T
from klamm.spark.pipelines.dead_letters import letters

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType
__all__ = ["JsonSchema", "infer", "parse_schema"]

_UNFIT = "_klamm_unfit"
_OPTIONS = {"columnNameOfCorruptRecord": _UNFIT, "allowSingleQuotes": "false"}
_REASON_CHARACTERS = 1000


def parse_schema(given: str | StructType) -> StructType:
    """Parse a schema given as DDL, or as it is. Raise InvalidSetting if it is not a schema."""
    from pyspark.errors import PySparkException

    schema: Any = given
    if isinstance(given, str):
        try:
            schema = T.StructType.fromDDL(given)
        except PySparkException as error:
            reason = str(error).strip().splitlines()[0]
            raise InvalidSetting(
                f"schema: {given!r} cannot be parsed: {reason}",
                hint="expected columns and types: id BIGINT, name STRING",
            ) from None
    if not isinstance(schema, T.StructType):
        raise InvalidSetting(
            f"schema: {given!r} is not a struct", hint="expected columns and types: id BIGINT, name STRING"
        )
    if not schema.fields:
        raise InvalidSetting("schema: it has no fields", hint="leave it out to archive values as they are")
    _check(schema, "")
    return schema


def _check(kind: Any, where: str) -> None:
    """Raise for what Spark would find out in the middle of a job, or not at all."""
    if isinstance(kind, T.StructType):
        seen: set[str] = set()
        for each in kind.fields:
            if each.name.lower() in seen:
                raise InvalidSetting(
                    f"schema: there are two fields {where}{each.name}",
                    hint="give a schema in which names differ by more than case",
                )
            seen.add(each.name.lower())
            _check(each.dataType, f"{where}{each.name}.")
    elif isinstance(kind, T.ArrayType | T.MapType):
        inner = kind.elementType if isinstance(kind, T.ArrayType) else kind.valueType
        required = not (kind.containsNull if isinstance(kind, T.ArrayType) else kind.valueContainsNull)
        if required or _has_required(inner):
            raise InvalidSetting(
                f"schema: {where[:-1]} has something that may not be null inside of an array or a map",
                hint="leave NOT NULL out there",
            )
        if isinstance(kind, T.MapType) and not isinstance(kind.keyType, T.StringType):
            raise InvalidSetting(
                f"schema: {where[:-1]} has keys of {kind.keyType.simpleString()}; names in JSON are text",
                hint="expected MAP<STRING, …>",
            )
        _check(inner, where)
    if _is_none_of_json(kind):
        raise InvalidSetting(
            f"schema: {where[:-1]} is {kind.simpleString()}, which Spark does not read from JSON into Parquet",
            hint="expected STRING, or a type of numbers, times, arrays, maps or structs",
        )


def _is_none_of_json(kind: Any) -> bool:
    """Return whether a type cannot come from JSON: CHAR and VARCHAR are among them, and a struct without fields."""
    if isinstance(kind, T.StructType):
        return not kind.fields
    return not isinstance(
        kind,
        T.StringType
        | T.BooleanType
        | T.NumericType
        | T.DateType
        | T.TimestampType
        | T.TimestampNTZType
        | T.BinaryType
        | T.DayTimeIntervalType
        | T.YearMonthIntervalType
        | T.VariantType
        | T.ArrayType
        | T.MapType,
    )


def _has_required(kind: Any) -> bool:
    return isinstance(kind, T.StructType) and any(
        not each.nullable or _has_required(each.dataType) for each in kind.fields
    )


def infer(spark: SparkSession, values: DataFrame, *, with_empty: bool = True) -> StructType | None:
    """Return the schema of the JSON objects among `values`, a column of text; None if there are none.

    Without `with_empty`, a field that is null in all of them is left out: it has no type yet.
    """
    options = _OPTIONS | ({} if with_empty else {"dropFieldIfAllNull": "true"})
    found = spark.read.options(**options).json(values).schema
    fields = [each for each in found.fields if each.name != _UNFIT]
    return T.StructType(fields) if fields else None


class JsonSchema:
    """Records of one topic, and the schema they have to fit."""

    def __init__(self, topic: str, schema: StructType) -> None:
        self._topic = topic
        self.schema = schema

    def parsed(self, rows: DataFrame) -> DataFrame:
        """Return the rows, with `data` and `fits`."""
        data = F.get("_parsed.v", F.lit(0))
        fits = (
            F.is_valid_utf8(_text())
            & F.col(f"_parsed.{_UNFIT}").isNull()
            & F.col("_parsed.end")
            & (F.size("_parsed.v") == 1)
            & data.isNotNull()
        )
        for path in _required(self.schema, ()):
            value = data
            holds = F.lit(True)
            for name in path[:-1]:
                value = value.getField(name)
                holds = holds & value.isNotNull()
            fits = fits & (~holds | value.getField(path[-1]).isNotNull())
        return (
            rows.withColumn("_parsed", _parsed_value(self.schema))
            .withColumn("data", data)
            .withColumn("fits", F.col("value").isNull() | F.coalesce(fits, F.lit(False)))
            .drop("_parsed")
        )

    def letters(self, rows: DataFrame) -> DataFrame:
        """Return the rows that do not fit, as dead letters: key, value and headers."""
        reason = F.substring(self._reason(), 1, _REASON_CHARACTERS)
        return letters(rows.withColumn("topic", F.lit(self._topic)), reason)

    def _reason(self) -> Column:
        wrong = []
        for each in self.schema.fields:
            kind = _nullable(T.StructType([each])).fields[0]
            alone = F.from_json(_text(), T.StructType([kind, T.StructField(_UNFIT, T.StringType())]), _OPTIONS)
            needed = F.lit(not each.nullable) & alone.getField(each.name).isNull()
            reason = f"{each.name} does not fit {each.dataType.simpleString()}"
            wrong.append(
                F.when(alone[_UNFIT].isNotNull(), F.lit(reason)).when(needed, F.lit(f"{each.name} may not be null"))
            )
        listed = F.concat_ws("; ", *wrong)
        return (
            F.when(~F.is_valid_utf8(_text()), F.lit("the value is not UTF-8"))
            .when(F.try_parse_json(_text()).isNull(), F.lit("the value is not JSON"))
            .when(~F.ltrim(_text()).startswith("{"), F.lit("the value is not a JSON object"))
            .when(listed != "", listed)
            .otherwise(F.lit("the value is not one JSON object that fits the schema"))
        )


def _text() -> Column:
    return F.col("value").cast("string")


def _parsed_value(schema: StructType) -> Column:
    """Return the parsed value. It is put into an array, and that before a last field: so text behind the object is
    seen, too.
    """
    wrapped = T.StructType(
        [
            T.StructField("v", T.ArrayType(_nullable(schema))),
            T.StructField("end", T.BooleanType()),
            T.StructField(_UNFIT, T.StringType()),
        ]
    )
    return F.from_json(F.concat(F.lit('{"v":['), _text(), F.lit('],"end":true}')), wrapped, _OPTIONS)


def _nullable(schema: StructType) -> StructType:
    """Return the schema with nullable fields: Spark would take NOT NULL for granted."""

    def kind_of(kind: Any) -> Any:
        return _nullable(kind) if isinstance(kind, T.StructType) else kind

    return T.StructType([T.StructField(each.name, kind_of(each.dataType)) for each in schema.fields])


def _required(schema: StructType, above: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the fields that may not be null."""
    found = []
    for each in schema.fields:
        path = (*above, each.name)
        if not each.nullable:
            found.append(path)
        if isinstance(each.dataType, T.StructType):
            found += _required(each.dataType, path)
    return found
