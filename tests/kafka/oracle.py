"""kio, whose messages are generated from Kafka's own definitions: random ones of them, and the same as ours.

Structure, nulls and values come from kio's classes, not from our tables: what is missing or wrong there shows.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import random
import types
import typing
import uuid
from collections.abc import Iterator
from functools import cache
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer

from klamm.kafka.wire import Api, Message
from klamm.kafka.wire.messages import APIS, DECIDE_TRANSACTIONS
from klamm.kafka.wire.notation import Field, Shape

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)
WORDS = ["", "orders", "größe", "日本", "x" * 126, "y" * 127, "z" * 300, "with\0nul"]
BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


KAFKAS = [api for api in APIS.values() if api is not DECIDE_TRANSACTIONS]
"""The APIs that are Kafka's."""


def known_versions(api: Api) -> list[int]:
    """That kio knows."""
    return sorted(schema_name_map[api_key_map[api.key]])


def every_message() -> Iterator[tuple[Message, int]]:
    """Of ours that kio knows, too."""
    for api in KAFKAS:
        for version in range(max(api.min_version, known_versions(api)[0]), api.max_version + 1):
            yield api.request, version
            yield api.response, version


@cache
def kio_class(message: Message, version: int) -> Any:
    load = load_request_schema if message is message.api.request else load_response_schema
    return load(message.api.key, version)


def encoded(entity: Any) -> bytes:
    """By kio."""
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


# Random messages


@dataclasses.dataclass
class _Plan:
    """Of a field of kio's."""

    name: str
    kind: str | None  # or an entity
    entity: Any
    is_array: bool
    nullable: bool
    default: Any
    tagged: bool


@cache
def plans(cls: Any) -> list[_Plan]:
    result = []
    for field in dataclasses.fields(cls):
        kind, nullable = _without_none(field.type)
        is_array = typing.get_origin(kind) is tuple
        if is_array:
            kind = typing.get_args(kind)[0]
        entity = kind if dataclasses.is_dataclass(kind) else None
        name = field.metadata.get("kafka_type")
        result.append(_Plan(field.name, name, entity, is_array, nullable, field.default, "tag" in field.metadata))
    return result


def _without_none(kind: Any) -> tuple[Any, bool]:
    if typing.get_origin(kind) not in (types.UnionType, typing.Union):
        return kind, False
    (inner,) = (each for each in typing.get_args(kind) if each is not type(None))
    return inner, True


def random_entity(cls: Any, rng: random.Random) -> Any:
    return cls(**{plan.name: _random_field(plan, rng) for plan in plans(cls)})


def _random_field(plan: _Plan, rng: random.Random) -> Any:
    if plan.default is not dataclasses.MISSING and rng.random() < (0.5 if plan.tagged else 0.1):
        return plan.default
    if plan.nullable and rng.random() < 0.3 and not (plan.tagged and plan.default is not None):
        return None
    if not plan.is_array:
        return _random_value(plan, rng)
    many = 130 if rng.random() < 0.02 or (plan.entity is None and rng.random() < 0.1) else 3
    return tuple(_random_value(plan, rng) for _ in range(rng.randrange(many) if many == 3 else many))


def _random_value(plan: _Plan, rng: random.Random) -> Any:
    if plan.entity is not None:
        return random_entity(plan.entity, rng)
    kind = plan.kind
    if kind in BITS:
        bits = BITS[kind]
        return rng.choice([0, 1, -1, -(2**bits), 2**bits - 1, rng.randrange(-(2**bits), 2**bits)])
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.choice([0.0, -1.5, 1e300, rng.random()])
    if kind == "string":
        return rng.choice(WORDS)
    if kind in ("bytes", "records"):
        return rng.randbytes(rng.choice([0, 1, 61, 126, 127, 1000, 20000]))
    if kind == "uuid":
        return uuid.UUID(int=rng.getrandbits(128)) if rng.random() < 0.8 else None
    if kind == "error_code":
        return rng.choice(list(ErrorCode))
    if kind in ("timedelta_i32", "timedelta_i64"):
        return rng.randrange(-(2**31), 2**31) * MILLISECOND
    assert kind == "datetime_i64", kind
    return EPOCH + rng.randrange(2**40) * MILLISECOND


# The same in our classes


def ours(message: Message, version: int, entity: Any) -> Any:
    return _our_struct(message, message.shape, version, entity)


def _our_struct(message: Message, shape: Shape, version: int, entity: Any) -> Any:
    fields = [field for field in shape.fields if field.exists(version)]
    entity_class: Any = type(entity)
    found = plans(entity_class)
    assert [field.name.removesuffix("_ms") for field in fields] == [plan.name.removesuffix("_ms") for plan in found]
    values = {}
    for field, plan in zip(fields, found, strict=True):
        assert field.is_array == plan.is_array
        assert (field.tag is not None) == plan.tagged
        if field.type not in ("uuid", "int64") and not plan.tagged:  # kio has None for the zero id, and for no time
            assert field.nullable(version) == plan.nullable, field
        values[field.name] = _our_value(message, field, version, getattr(entity, plan.name), plan)
    return message.classes[shape.name](**values)


def _our_value(message: Message, field: Field, version: int, value: Any, plan: _Plan) -> Any:
    if field.is_array and value is not None:
        return [_our_item(message, field, version, item) for item in value]
    if field.shape is not None and field.tag is not None and value == plan.default:
        return None
    return _our_item(message, field, version, value)


def _our_item(message: Message, field: Field, version: int, value: Any) -> Any:
    if value is None:
        return {"uuid": bytes(16), "int64": -1}.get(field.type)
    if field.shape is not None:
        return _our_struct(message, field.shape, version, value)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
    return int(value) if isinstance(value, ErrorCode) else value
