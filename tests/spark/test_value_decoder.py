"""Avro and Protobuf values, decoded in a real Spark: plain, and with a registry that speaks HTTP."""

from __future__ import annotations

import base64
import datetime
import io
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from klamm.errors import InvalidRecord, InvalidSetting
from klamm.spark.value_decoder import Registry, _Avro, _Protobuf, decode_avro, decode_protobuf

pytest.importorskip("pyspark")
fastavro = pytest.importorskip("fastavro")
descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
descriptor_pool = pytest.importorskip("google.protobuf.descriptor_pool")
message_factory = pytest.importorskip("google.protobuf.message_factory")

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "total",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            "default": "0",
        },
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
        {"name": "tags", "type": {"type": "map", "values": "string"}, "default": {}},
        {"name": "lines", "type": {"type": "array", "items": "double"}, "default": []},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "default": "A"},
        {"name": "any", "type": ["null", "int", "string"], "default": None},
    ],
}
AT = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
ORDER = {"id": 7, "total": Decimal("1.50"), "at": AT, "tags": {"a": "b"}, "lines": [1.5], "kind": "B", "any": "x"}


def avro(schema: Any, row: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def proto() -> Any:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=kinds.TYPE_UINT64, label=kinds.LABEL_OPTIONAL)
    order.field.add(name="names", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_REPEATED)
    order.field.add(name="raw", number=3, type=kinds.TYPE_BYTES, label=kinds.LABEL_OPTIONAL)
    order.field.add(name="child", number=4, type=kinds.TYPE_MESSAGE, type_name=".shop.Line", label=kinds.LABEL_OPTIONAL)
    order.nested_type.add(name="Part")
    line = file.message_type.add(name="Line")
    line.field.add(name="price", number=1, type=kinds.TYPE_DOUBLE, label=kinds.LABEL_OPTIONAL)
    return file


def message() -> bytes:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(proto().SerializeToString())
    order: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    made = order(id=(1 << 64) - 1, names=["a", "b"], raw=b"\x00")
    made.child.price = 2.5
    found: bytes = made.SerializeToString()
    return found


MESSAGE = {"id": Decimal((1 << 64) - 1), "names": ["a", "b"], "raw": b"\x00", "child": {"price": 2.5}}


@pytest.fixture
def registry() -> Iterator[str]:
    """Answers as a schema registry does: schemas 1 and 2 of orders-value, and 3, which is Protobuf."""
    encoded = base64.b64encode(proto().SerializeToString()).decode()
    answers = {
        "/schemas/ids/1": {"schema": json.dumps(OLD)},
        "/schemas/ids/2": {"schema": json.dumps(NEW)},
        "/schemas/ids/3": {"schema": "syntax …", "schemaType": "PROTOBUF"},
        "/schemas/ids/3?format=serialized": {"schema": encoded, "schemaType": "PROTOBUF"},
        "/subjects/orders-value/versions/latest": {"id": 2, "schema": json.dumps(NEW)},
        "/subjects/proto-value/versions/latest": {"id": 3, "schema": "syntax …", "schemaType": "PROTOBUF"},
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path)
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(json.dumps(found or {"error_code": 40401, "message": "Subject not found."}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def framed(number: int, value: bytes) -> bytes:
    return b"\x00" + number.to_bytes(4, "big") + value


def test_avro_is_decoded_and_what_does_not_fit_is_an_error() -> None:
    decode = _Avro(json.dumps(NEW), None).prepared()
    expected = {**ORDER, "tags": [("a", "b")], "any": '"x"'}
    assert decode(avro(NEW, ORDER)) == expected
    with pytest.raises(InvalidRecord, match="1 bytes are left behind"):
        decode(avro(NEW, ORDER) + b"x")


def test_protobuf_is_decoded() -> None:
    decode = _Protobuf([proto().SerializeToString()], "shop.Order", None).prepared()
    assert decode(message()) == MESSAGE
    assert decode(b"") == {"id": Decimal(0), "names": [], "raw": b"", "child": None}


def test_a_message_of_another_type_is_an_error_not_a_guess(registry: str) -> None:
    line = b"\x09" + bytes(8)  # a field of Line; as an Order it would decode, too
    decode = _Protobuf([proto().SerializeToString()], "shop.Line", Registry(registry)).prepared()
    assert decode(framed(3, b"\x02\x02" + line)) == {"price": 0.0}
    for first, said in ((b"\x00", "is a shop.Order, not a shop.Line"), (b"\x02\x04", r"has no message \[2\]")):
        with pytest.raises(InvalidRecord, match=said):
            decode(framed(3, first + line))
    assert Registry(registry).message_name(3, (0, 0)) == "shop.Order.Part"


def test_in_spark_with_a_registry_and_with_files(spark: Any, registry: str, tmp_path: Path) -> None:
    values = [framed(2, avro(NEW, ORDER)), framed(1, avro(OLD, {"id": 3})), None, b"text", framed(3, message())]
    df = spark.createDataFrame([(value,) for value in values], "value BINARY").coalesce(1)
    rows = decode_avro(df, registry=registry, subject="orders-value").select("data.*", "error").collect()
    assert (rows[0]["id"], rows[0]["total"], rows[0]["tags"], rows[0]["any"]) == (7, Decimal("1.50"), {"a": "b"}, '"x"')
    assert (rows[1]["id"], rows[1]["total"], rows[1]["kind"], rows[1]["error"]) == (3, Decimal("0.48"), "A", None)
    assert [row["error"] for row in rows[2:4]] == [
        None,
        "the value does not begin with a zero byte and the id of a schema",
    ]
    assert rows[4]["error"] == "schema 3 is PROTOBUF, not AVRO"
    of_proto = spark.createDataFrame(
        [(framed(3, b"\x00" + message()),), (framed(3, b"\x02\x00" + message()),)], "value BINARY"
    )
    found = decode_protobuf(of_proto, registry=registry, subject="proto-value").select("data.*").collect()
    assert [(row["id"], row["names"], row["child"]["price"]) for row in found] == [
        (Decimal((1 << 64) - 1), ["a", "b"], 2.5)
    ] * 2
    whole = descriptor_pb2.FileDescriptorSet(file=[proto()]).SerializeToString()
    (tmp_path / "shop.desc").write_bytes(whole)
    plain = spark.createDataFrame([(message(),)], "value BINARY")
    with pytest.raises(InvalidSetting, match="has 2 messages"):
        decode_protobuf(plain, schema=tmp_path / "shop.desc")
    (row,) = decode_protobuf(plain, schema=tmp_path / "shop.desc", message="shop.Order").collect()
    assert bytes(row["data"]["raw"]) == b"\x00" and row["error"] is None


def test_what_is_wrong_is_said_before_a_job_starts(spark: Any, registry: str, tmp_path: Path) -> None:
    df = spark.createDataFrame([(b"",)], "value BINARY")
    for call, said in (
        (lambda: decode_avro(df), "expected a schema or a registry"),
        (lambda: decode_avro(df, registry=registry), "subject is missing"),
        (lambda: decode_avro(df, registry=registry, subject="nothing"), "404"),
        (lambda: decode_avro(df, registry="host:8081", subject="x"), "is not an address"),
        (lambda: decode_avro(df, schema=tmp_path / "none.avsc"), "cannot be read"),
        (lambda: decode_avro(df, schema="{}"), "cannot be parsed"),
        (lambda: decode_avro(df, "other", schema=OLD), "there is no column 'other' of bytes"),
        (lambda: decode_protobuf(df, registry=registry, subject="orders-value"), "is AVRO, not PROTOBUF"),
        (lambda: decode_protobuf(df, schema=b"text"), "not a descriptor set"),
    ):
        with pytest.raises(InvalidSetting, match=said):
            call()
