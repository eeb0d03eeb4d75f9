"""Avro and Protobuf values of a DataFrame, decoded in Python: no jar, and a schema registry by HTTP if there is one.

    orders = klamm.spark.read(spark, "events/", subscribe="orders")
    klamm.spark.decode_avro(orders, schema="order.avsc")
    klamm.spark.decode_avro(orders, registry="http://host:8081", subject="orders-value")
    klamm.spark.decode_protobuf(orders, schema="shop.desc", message="shop.Order")
    klamm.spark.decode_protobuf(orders, registry="http://host:8081", subject="orders-value")

Two columns are added: `data`, a struct of the value's fields, and `error`, why a value could not be decoded. Of a null
value both are null.

With a registry, values are in Confluent's wire format: a zero byte, the id of the schema that the value was written
with in four bytes, for Protobuf the place of its message in the file, then the value. Each task asks the registry once
for each id. `data` has the fields of the subject's latest schema, as of now; values that were written with others
are resolved to it, by Avro's rules, or by Protobuf's field numbers.

Types: Avro's records, arrays, maps, enums (text), fixed (binary), decimals, dates, times (as microseconds), timestamps
and unions of null and one other; other unions are text in JSON, and so is what contains itself. Protobuf's messages,
repeated fields, maps, enums (text); unsigned 64-bit numbers are decimals, Timestamp is a timestamp, and a message that
contains itself is text in JSON.
"""

from __future__ import annotations

import base64
import importlib
import io
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from klamm.errors import InvalidRecord, InvalidSetting, KlammError, NotInstalled
from klamm.spark.functions import T
from klamm.spark.internals import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["Registry", "decode_avro", "decode_protobuf"]

_MAGIC = 0
_TIMEOUT_S = 30
_LONGEST = 500
_DECIMAL_PRECISION = 38  # Spark's largest
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


def decode_avro(
    df: DataFrame,
    column: str = "value",
    *,
    schema: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    registry: str | None = None,
    subject: str | None = None,
    data: str = "data",
    error: str = "error",
) -> DataFrame:
    """Return `df` with the fields of the Avro values in `column`, and why a value could not be decoded.

    `schema`: a file (.avsc), its JSON as text, or as a mapping; values are plain Avro then. `registry` and `subject`:
    the address of a schema registry, and whose latest schema `data` has; values are in Confluent's wire format then.
    InvalidSetting and NotInstalled are raised here, before a job starts.
    """
    _fastavro()
    asked = _registry("decode_avro", schema, registry, subject)
    text = _avro_text(schema) if asked is None else asked.latest(subject)["schema"]
    return _decoded(df, column, _Avro(text, asked), data, error)


def decode_protobuf(
    df: DataFrame,
    column: str = "value",
    *,
    schema: str | os.PathLike[str] | bytes | None = None,
    message: str | None = None,
    registry: str | None = None,
    subject: str | None = None,
    data: str = "data",
    error: str = "error",
) -> DataFrame:
    """Return `df` with the fields of the Protobuf values in `column`, and why a value could not be decoded.

    `schema`: a file that `protoc --include_imports --descriptor_set_out=…` wrote, or its bytes; values are plain
    Protobuf then. `registry` and `subject`: see `decode_avro`. `message` is the full name of the message; without it,
    the schema must have only one, and with a registry it is the first of the file.
    """
    _package("google.protobuf", "protobuf")
    asked = _registry("decode_protobuf", schema, registry, subject)
    if asked is not None:
        latest = asked.latest(subject)
        files, names = asked.proto_files(latest, latest["id"])
    else:
        files, names = _descriptor_set(schema if isinstance(schema, bytes) else _file(schema, "decode_protobuf"))
        if message is None and len(names) != 1:
            raise InvalidSetting(
                f"decode_protobuf: the schema has {len(names)} messages: {', '.join(names[:5])}",
                hint="name one: message=",
            )
    return _decoded(df, column, _Protobuf(files, message or names[0], asked), data, error)


# ---- where schemas come from


class Registry:
    """A schema registry, asked by HTTP: each schema once."""

    def __init__(self, address: str) -> None:
        if not address.startswith(("http://", "https://")):
            raise InvalidSetting(f"registry: {address!r} is not an address", hint="expected http://host:8081")
        self.address = address.rstrip("/")
        self._known: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address, "_known": {}}

    def get(self, path: str) -> Any:
        """Return what the registry answers; KlammError if it does not."""
        if path not in self._known:
            parts = urllib.parse.urlsplit(self.address)
            bare = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
            request = urllib.request.Request(bare + path, headers={"Accept": _CONTENT_TYPE})
            if parts.username is not None:
                user = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
                request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                    self._known[path] = json.load(answer)
            except urllib.error.HTTPError as error:
                reason = error.read()[:_LONGEST].decode("utf-8", "replace")
                raise InvalidSetting(
                    f"registry: {path}: {error.code}: {reason}",
                    hint="check that the subject, or the id, belongs to this registry",
                ) from None
            except (OSError, ValueError) as error:
                raise KlammError(
                    f"registry: {bare}: cannot be reached: {error}",
                    hint="check that it is up, and reachable from the workers",
                ) from None
        return self._known[path]

    def schema(self, number: int) -> Any:
        """Return the schema of that id."""
        return self.get(f"/schemas/ids/{number}")

    def latest(self, subject: str | None) -> Any:
        """Return the latest schema of a subject, and its id."""
        return self.get(f"/subjects/{urllib.parse.quote(subject or '', safe='')}/versions/latest")

    def proto_files(self, schema: Mapping[str, Any], number: int) -> tuple[list[bytes], list[str]]:
        """Return the descriptors of a Protobuf schema and of what it imports, and the names of its own messages."""
        from google.protobuf import descriptor_pb2

        if schema.get("schemaType") != "PROTOBUF":
            raise InvalidSetting(
                f"registry: the schema is {schema.get('schemaType', 'AVRO')}, not PROTOBUF", hint="use decode_avro"
            )
        files: list[bytes] = []
        for each in schema.get("references") or ():
            name = urllib.parse.quote(each["subject"], safe="")
            inner = self.get(f"/subjects/{name}/versions/{each['version']}")
            *imported, last = self.proto_files(inner, inner["id"])[0]
            own = descriptor_pb2.FileDescriptorProto.FromString(last)
            own.name = each["name"]  # a file is known by the name that others import it by
            files += [*imported, own.SerializeToString()]
        own = self._proto_file(number)
        return [*files, own.SerializeToString()], [_full_name(own, each) for each in own.message_type]

    def message_name(self, number: int, indexes: tuple[int, ...]) -> str:
        """Return the full name of a message of the schema of that id, which is at those places in its file."""
        found = own = self._proto_file(number)
        names = []
        for index in indexes or (0,):
            messages = own.message_type if found is own else found.nested_type
            if not 0 <= index < len(messages):
                raise InvalidRecord(f"schema {number} has no message {list(indexes)}")
            found = messages[index]
            names.append(found.name)
        return ".".join(filter(None, (own.package, *names)))

    def _proto_file(self, number: int) -> Any:
        from google.protobuf import descriptor_pb2

        encoded = self.get(f"/schemas/ids/{number}?format=serialized")["schema"]
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(encoded))


def _registry(call: str, schema: Any, registry: str | None, subject: str | None) -> Registry | None:
    """Return the registry; None if there is a schema. InvalidSetting if it is not one of the two."""
    if (schema is None) == (registry is None):
        raise InvalidSetting(f"{call}: expected a schema or a registry, and not both", hint="name one of them")
    if registry is None:
        if subject is not None:
            raise InvalidSetting(f"{call}: subject is for a registry", hint="leave it out")
        return None
    if subject is None:
        raise InvalidSetting(f"{call}: subject is missing", hint="name it, such as orders-value")
    return Registry(registry)


def _full_name(file: Any, message: Any) -> str:
    return f"{file.package}.{message.name}" if file.package else str(message.name)


def _file(path: Any, call: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidSetting(f"{call}: {path}: cannot be read: {error.strerror}") from None


def _avro_text(schema: Any) -> str:
    if isinstance(schema, Mapping):
        return json.dumps(schema)
    text = os.fspath(schema)
    return text if text.lstrip().startswith(("{", "[")) else _file(text, "decode_avro").decode()


def _package(name: str, package: str) -> Any:
    """Import what klamm[decoding] brings; NotInstalled if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise NotInstalled.package(package, "'klamm[decoding]'") from None


def _fastavro() -> Any:
    return _package("fastavro", "fastavro")


# ---- in tasks


def _decoded(df: DataFrame, column: str, decoder: Any, data: str, error: str) -> DataFrame:
    if column not in df.columns or not isinstance(df.schema[column].dataType, T.BinaryType):
        raise InvalidSetting(f"there is no column {column!r} of bytes", hint=f"there are {', '.join(df.columns)}")
    for name in (data, error):
        if name in df.columns:
            raise InvalidSetting(f"there is a column {name!r} already", hint="choose another: data=, error=")
    kept = [T.StructField(each.name, each.dataType) for each in df.schema.fields]  # metadata is of the source's columns
    schema = T.StructType([*kept, T.StructField(data, decoder.kind()), T.StructField(error, T.StringType())])
    kinds = arrow_schema(schema)

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        decode = decoder.prepared()
        for batch in batches:
            found, errors = [], []
            for value in batch.column(column).to_pylist():
                row, reason = None, None
                if value is not None:
                    try:
                        row = decode(value)
                    except KlammError as problem:
                        if not isinstance(problem, InvalidRecord):
                            raise
                        reason = problem.message
                    except Exception as problem:  # noqa: BLE001  # whatever a library says of bytes that do not fit
                        reason = f"{type(problem).__name__}: {problem}"[:_LONGEST]
                found.append(row)
                errors.append(reason)
            columns: list[Any] = [each.cast(kinds.field(n).type) for n, each in enumerate(batch.columns)]
            columns.append(pa.array(found, kinds.field(data).type))
            columns.append(pa.array(errors, pa.string()))
            yield pa.RecordBatch.from_arrays(columns, schema=kinds)

    return df.mapInArrow(task, schema)


def _framed(value: bytes) -> int:
    """Return the id of the schema that a value begins with."""
    if len(value) < 5 or value[0] != _MAGIC:
        raise InvalidRecord("the value does not begin with a zero byte and the id of a schema")
    return int.from_bytes(value[1:5], "big")


class _Avro:
    def __init__(self, schema: str, registry: Registry | None) -> None:
        self._text = schema
        self._registry = registry
        try:
            self._parsed = _fastavro().parse_schema(json.loads(schema))
        except Exception as error:  # noqa: BLE001  # whatever fastavro says of it
            raise InvalidSetting(
                f"decode_avro: the schema cannot be parsed: {error}", hint="expected an Avro schema"
            ) from None
        if not isinstance(self._parsed, dict) or self._parsed.get("type") != "record":
            raise InvalidSetting("decode_avro: the schema is not a record", hint="wrap it in one")

    def __getstate__(self) -> dict[str, Any]:
        return {"_text": self._text, "_registry": self._registry}

    def kind(self) -> Any:
        names: dict[str, Any] = {}
        return self._kind(self._parsed, names, ())[0]

    def prepared(self) -> Callable[[bytes], Any]:
        fastavro = _fastavro()
        wanted = fastavro.parse_schema(json.loads(self._text))
        _, shape = self._kind(wanted, {}, ())
        writers: dict[int, Any] = {}

        def decode(value: bytes) -> Any:
            stream = io.BytesIO(value)
            writer = wanted
            if self._registry is not None:
                number = _framed(value)
                if number not in writers:
                    found = self._registry.schema(number)
                    if found.get("schemaType", "AVRO") != "AVRO":
                        raise InvalidRecord(f"schema {number} is {found['schemaType']}, not AVRO")
                    writers[number] = fastavro.parse_schema(json.loads(found["schema"]))
                stream.seek(5)
                writer = writers[number]
            row = fastavro.schemaless_reader(stream, writer, wanted)
            if self._registry is None and stream.tell() != len(value):
                raise InvalidRecord(f"{len(value) - stream.tell()} bytes are left behind the value")
            return shape(row)

        return decode

    def _kind(self, schema: Any, names: dict[str, Any], above: tuple[str, ...]) -> tuple[Any, Callable[[Any], Any]]:
        """Return the type of Spark's, and what makes a value fit it."""
        if isinstance(schema, list):
            others = [each for each in schema if each != "null"]
            return self._kind(others[0], names, above) if len(others) == 1 else (T.StringType(), _as_json)
        if isinstance(schema, str):
            simple = {
                "null": T.StringType(),
                "boolean": T.BooleanType(),
                "int": T.IntegerType(),
                "long": T.LongType(),
                "float": T.FloatType(),
                "double": T.DoubleType(),
                "bytes": T.BinaryType(),
                "string": T.StringType(),
            }
            if schema in simple:
                return simple[schema], _bytes if schema == "bytes" else _same
            if schema in above:
                return T.StringType(), _as_json
            return self._kind(names[schema], names, above)
        kind, logical = schema["type"], schema.get("logicalType")
        if logical == "decimal" and schema.get("precision", 99) <= _DECIMAL_PRECISION:
            return T.DecimalType(schema["precision"], schema.get("scale", 0)), partial(_decimal, schema.get("scale", 0))
        if logical == "date":
            return T.DateType(), _date
        if logical in ("timestamp-millis", "timestamp-micros"):
            return T.TimestampType(), partial(_time, 1000 if logical.endswith("millis") else 1)
        if logical in ("time-millis", "time-micros"):
            return T.LongType(), _microseconds
        if logical == "uuid":
            return T.StringType(), _text
        if kind == "record":
            name = schema["name"]
            names[name] = schema
            parts = {each["name"]: self._kind(each["type"], names, (*above, name)) for each in schema["fields"]}
            shapes = {each: shape for each, (_, shape) in parts.items()}
            return (
                T.StructType([T.StructField(each, part) for each, (part, _) in parts.items()]),
                lambda row: None if row is None else {each: shape(row[each]) for each, shape in shapes.items()},
            )
        if kind == "array":
            inner, shape = self._kind(schema["items"], names, above)
            return T.ArrayType(inner), lambda rows: None if rows is None else [shape(each) for each in rows]
        if kind == "map":
            inner, shape = self._kind(schema["values"], names, above)
            return (
                T.MapType(T.StringType(), inner),
                lambda rows: None if rows is None else [(name, shape(each)) for name, each in rows.items()],
            )
        if kind == "enum":
            names[schema["name"]] = schema
            return T.StringType(), _same
        if kind == "fixed":
            names[schema["name"]] = schema
            return T.BinaryType(), _bytes
        return self._kind(kind, names, above)


def _same(value: Any) -> Any:
    return value


# A default comes from the schema as it is written there: text for bytes, and numbers for times.


def _bytes(value: Any) -> Any:
    return value.encode("latin-1") if isinstance(value, str) else value


def _decimal(scale: int, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return Decimal(int.from_bytes(value.encode("latin-1"), "big", signed=True)).scaleb(-scale)


def _date(value: Any) -> Any:
    return date(1970, 1, 1) + timedelta(days=value) if isinstance(value, int) else value


def _time(microseconds: int, value: Any) -> Any:
    if not isinstance(value, int):
        return value
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value * microseconds)


def _text(value: Any) -> Any:
    return None if value is None else str(value)


def _as_json(value: Any) -> Any:
    return None if value is None else json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)


def _microseconds(value: Any) -> Any:
    if value is None or isinstance(value, int):
        return value
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _descriptor_set(data: bytes) -> tuple[list[bytes], list[str]]:
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(data)
    except DecodeError as error:
        raise InvalidSetting(
            f"decode_protobuf: the schema is not a descriptor set: {error}",
            hint="protoc --include_imports --descriptor_set_out=shop.desc shop.proto writes one",
        ) from None
    names = []
    for file in found.file:
        if not file.name.startswith("google/protobuf/"):
            names += [_full_name(file, each) for each in file.message_type]
    return [file.SerializeToString() for file in found.file], names


class _Protobuf:
    def __init__(self, files: list[bytes], message: str, registry: Registry | None) -> None:
        self._files = files
        self._message = message
        self._registry = registry
        try:
            self._descriptor()
        except KeyError:
            raise InvalidSetting(f"decode_protobuf: the schema has no message {message!r}") from None
        except TypeError as error:
            raise InvalidSetting(
                f"decode_protobuf: the schema is not complete: {error}", hint="protoc needs --include_imports"
            ) from None

    def _descriptor(self) -> Any:
        from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2

        pool = descriptor_pool.DescriptorPool()
        files = [descriptor_pb2.FileDescriptorProto.FromString(each) for each in self._files]
        known = {each.name for each in files}
        if timestamp_pb2.DESCRIPTOR.name not in known:
            pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
        for each in files:
            pool.AddSerializedFile(each.SerializeToString())
        return pool.FindMessageTypeByName(self._message)

    def kind(self) -> Any:
        return self._kind(self._descriptor(), ())[0]

    def prepared(self) -> Callable[[bytes], Any]:
        from google.protobuf import message_factory

        descriptor = self._descriptor()
        message_of = message_factory.GetMessageClass(descriptor)
        _, shape = self._kind(descriptor, ())
        names: dict[tuple[int, tuple[int, ...]], str] = {}

        def decode(value: bytes) -> Any:
            if self._registry is not None:
                number = _framed(value)
                found = self._registry.schema(number)
                if found.get("schemaType") != "PROTOBUF":
                    raise InvalidRecord(f"schema {number} is {found.get('schemaType', 'AVRO')}, not PROTOBUF")
                indexes, start = _indexes(value, 5)
                if (number, indexes) not in names:
                    names[number, indexes] = self._registry.message_name(number, indexes)
                if names[number, indexes] != self._message:
                    raise InvalidRecord(f"the value is a {names[number, indexes]}, not a {self._message}")
                value = value[start:]
            return shape(message_of.FromString(value))

        return decode

    def _kind(self, descriptor: Any, above: tuple[str, ...]) -> tuple[Any, Callable[[Any], Any]]:
        """Return the type of Spark's, and what makes a struct of a message."""
        from google.protobuf import json_format

        name = descriptor.full_name
        if name == "google.protobuf.Timestamp":
            return T.TimestampType(), lambda message: message.ToDatetime(UTC)
        if name in above or not descriptor.fields:
            return T.StringType(), lambda message: json_format.MessageToJson(message, indent=None)
        fields, shapes = [], []
        for field in descriptor.fields:
            kind, shape = self._field(field, (*above, name))
            fields.append(T.StructField(field.name, kind))
            shapes.append((field.name, field.has_presence and not field.is_repeated, shape))

        def struct(message: Any) -> dict[str, Any]:
            return {
                name: None if optional and not message.HasField(name) else shape(getattr(message, name))
                for name, optional, shape in shapes
            }

        return T.StructType(fields), struct

    def _field(self, field: Any, above: tuple[str, ...]) -> tuple[Any, Callable[[Any], Any]]:
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            key, _ = self._field(inner.fields_by_name["key"], above)
            kind, shape = self._field(inner.fields_by_name["value"], above)
            return T.MapType(key, kind), lambda rows: [(name, shape(rows[name])) for name in rows]
        kind, shape = self._kind(inner, above) if inner is not None else self._scalar(field)
        if field.is_repeated:
            return T.ArrayType(kind), lambda rows: [shape(each) for each in rows]
        return kind, shape

    @staticmethod
    def _scalar(field: Any) -> tuple[Any, Callable[[Any], Any]]:
        from google.protobuf.descriptor import FieldDescriptor as Kind

        if field.enum_type is not None:
            names = {each.number: each.name for each in field.enum_type.values}
            return T.StringType(), lambda number: names.get(number, str(number))
        if field.type in (Kind.TYPE_UINT64, Kind.TYPE_FIXED64):
            return T.DecimalType(20, 0), Decimal
        kinds = {
            Kind.CPPTYPE_INT32: T.IntegerType(),
            Kind.CPPTYPE_INT64: T.LongType(),
            Kind.CPPTYPE_UINT32: T.LongType(),
            Kind.CPPTYPE_DOUBLE: T.DoubleType(),
            Kind.CPPTYPE_FLOAT: T.FloatType(),
            Kind.CPPTYPE_BOOL: T.BooleanType(),
            Kind.CPPTYPE_STRING: T.BinaryType() if field.type == Kind.TYPE_BYTES else T.StringType(),
        }
        return kinds[field.cpp_type], _same


def _indexes(value: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the list of numbers that says which message of the file it is, and where the message begins."""
    count, at = _zigzag(value, at)
    found = []
    for _ in range(count):
        number, at = _zigzag(value, at)
        found.append(number)
    return tuple(found), at


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(value) or shift > 63:
            raise InvalidRecord("the value ends in the middle of its list of messages")
        byte = value[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
