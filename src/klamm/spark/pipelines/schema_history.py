"""The schema of an archive's values as it grows: which one each micro-batch has.

    _klamm/schema.json      [{"batch": 0, "schema": {…}}, {"batch": 7, "schema": {…}}]

A folder of Parquet files has one schema. A table takes more: fields are added, by a later run that names them, or, with
"infer", when records have them. A field keeps its type: what does not fit it is a dead letter. A micro-batch that is
done again has the schema that it had, because its dead letters may have been sent.

Promises
  SCH1  The schema of a micro-batch is on disk before anything of it is committed, and does not change.
  SCH2  A schema has all fields of the one before, with their types.
"""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

from klamm.disk.files import number_in_name
from klamm.errors import InvalidSetting, NotAStore
from klamm.spark.functions import T
from klamm.spark.pipelines.folder_files import OURS, FolderFiles
from klamm.spark.pipelines.json_schema import infer, parse_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from klamm.spark.pipelines.pipeline_directory import PipelineDirectory

__all__ = ["INFER", "MAX_FIELDS", "SchemaHistory", "check_grows", "grown"]

INFER = "infer"
_FILE = f"{OURS}/schema.json"
MAX_FIELDS = 1000
"""That are inferred; others are left in the value, as fields that a schema does not name."""
_log = logging.getLogger("klamm.spark")


class SchemaHistory:
    """The schemas of one archive."""

    def __init__(self, folder: PipelineDirectory, topic: str, *, grows: bool) -> None:
        self._files = folder.files
        self._checkpoint = folder.checkpoint
        self._topic = topic
        self._grows = grows
        self._infers = folder.options["schema"] == INFER
        self._versions: list[tuple[int, StructType]] = []
        if not self._infers:
            self._versions.append((0, parse_schema(folder.options["schema"])))
        self._versions += _read_versions(self._files)

    @property
    def is_known(self) -> bool:
        """Whether there is one; False: it is still to be inferred."""
        return bool(self._versions)

    def at(self, batch: int) -> StructType:
        """Return the schema of a micro-batch."""
        return next(schema for first, schema in reversed(self._versions) if first <= batch)

    def begin(self, spark: SparkSession, values: DataFrame) -> None:
        """Infer the first one from `values`, a column of text. InvalidSetting if they have no fields."""
        found = infer(spark, values, with_empty=False) if self._grows else None
        found = found or infer(spark, values)
        if found is not None:
            self._add(0, parse_schema(found))
        elif not values.isEmpty():
            raise InvalidSetting(
                f"schema: nothing can be inferred: no value of {self._topic} is a JSON object with fields",
                hint="give a schema, or none, and a new folder",
            )

    def extend(self, schema: StructType, done: int) -> None:
        """Let micro-batches after those that were planned have `schema`. `done` is the last that is done."""
        latest = self._versions[-1][1]
        if schema == latest:
            return
        check_grows(latest, schema)
        numbers = [number_in_name(name) for name in _names(f"{self._checkpoint}/offsets")]
        self._add(max(done, *(number for number in numbers if number is not None), -1) + 1, schema)

    def infer_more(self, spark: SparkSession, values: DataFrame, batch: int) -> None:
        """Add the fields that records of a micro-batch have, `values` being a column of text, before it is archived."""
        if not (self._infers and self._grows) or any(first == batch for first, _ in self._versions):
            return
        found = infer(spark, values, with_empty=False)
        before = self.at(batch)
        after = before if found is None else grown(before, found)
        if after != before:
            _log.info("%s: the schema of values grows: %s", self._files.path(_FILE), after.simpleString())
            self._add(batch, after)

    def _add(self, batch: int, schema: StructType) -> None:
        self._versions.append((batch, schema))
        stored = self._versions if self._infers else self._versions[1:]
        content = [{"batch": first, "schema": each.jsonValue()} for first, each in stored]
        self._files.replace(_FILE, json.dumps(content, indent=1).encode() + b"\n")


def _read_versions(files: FolderFiles) -> list[tuple[int, StructType]]:
    try:
        content = json.loads(files.read(_FILE))
        versions: list[dict[str, Any]] = [{"batch": 0, "schema": content}] if isinstance(content, dict) else content
        return [(int(each["batch"]), T.StructType.fromJson(each["schema"])) for each in versions]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotAStore(
            f"{files.path(_FILE)}: cannot be read: {error}",
            hint="put _klamm/ back as it was, or archive to a new folder",
        ) from None


def _names(path: str) -> list[str]:
    return os.listdir(path) if os.path.isdir(path) else []


def check_grows(old: StructType, new: StructType) -> None:
    """Raise InvalidSetting unless `new` has all fields of `old`, with their types."""
    if (wrong := _lost(old, new, "")) is not None:
        raise InvalidSetting(
            f"schema: {wrong}", hint="fields can be added, not removed or changed; archive to a new folder for others"
        )


def _lost(old: Any, new: Any, where: str) -> str | None:
    """Return what of a type is missing in another, or is not as it was."""
    if type(old) is not type(new):
        return f"{where[:-1]} was {old.simpleString()}, and is {new.simpleString()}"
    if isinstance(old, T.StructType):
        fields = {field.name: field for field in new.fields}
        for field in old.fields:
            if field.name not in fields:
                return f"{where}{field.name} is missing"
            if (wrong := _lost(field.dataType, fields[field.name].dataType, f"{where}{field.name}.")) is not None:
                return wrong
        return None
    if isinstance(old, T.ArrayType):
        return _lost(old.elementType, new.elementType, where)
    if isinstance(old, T.MapType):
        return _lost(old.valueType, new.valueType, where)
    return None if old == new else f"{where[:-1]} was {old.simpleString()}, and is {new.simpleString()}"


def grown(old: StructType, more: StructType) -> StructType:
    """Return `old` with the fields that only `more` has, at the end; nothing of `old` changes.

    A field whose name differs from another by case alone is left out: Spark takes the two for one.
    """
    merged = _merged(old, more, _Room(MAX_FIELDS - _count(old)))
    assert isinstance(merged, T.StructType)
    return merged


class _Room:
    """The number of fields that may still come."""

    def __init__(self, count: int) -> None:
        self._count = count

    def take(self, kind: Any) -> bool:
        wanted = max(1, _count(kind))
        if wanted > self._count:
            _log.warning("more than %d fields: a field is left in the value", MAX_FIELDS)
            return False
        self._count -= wanted
        return True


def _count(kind: Any) -> int:
    """Return how many fields a type has, at any depth."""
    if isinstance(kind, T.StructType):
        return sum(max(1, _count(field.dataType)) for field in kind.fields)
    return _count(kind.elementType) if isinstance(kind, T.ArrayType) else 0


def _merged(old: Any, more: Any, room: _Room) -> Any:
    if isinstance(old, T.StructType) and isinstance(more, T.StructType):
        new = {field.name: field for field in more.fields}
        fields = []
        for field in old.fields:
            kind = field.dataType if field.name not in new else _merged(field.dataType, new[field.name].dataType, room)
            fields.append(T.StructField(field.name, kind, field.nullable))
        seen = {field.name.lower() for field in old.fields}
        for field in more.fields:
            if field.name.lower() not in seen and room.take(field.dataType):
                seen.add(field.name.lower())
                fields.append(field)
        return T.StructType(fields)
    if isinstance(old, T.ArrayType) and isinstance(more, T.ArrayType):
        return T.ArrayType(_merged(old.elementType, more.elementType, room), old.containsNull)
    return old
