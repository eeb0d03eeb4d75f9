"""The error codes in a response, for the metrics: of the whole request, and of its parts.

Where codes are is read off the shape of each API's response, once. Produce and Fetch are not looked into: they come
often, and count what they refuse themselves. Nor are the partitions that Metadata and DescribeTopicPartitions tell of:
there are many, and nothing is ever wrong with them here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from klamm.kafka.wire.messages import DESCRIBE_TOPIC_PARTITIONS, FETCH, METADATA, PRODUCE

if TYPE_CHECKING:
    from klamm.kafka.wire.codec import Api
    from klamm.kafka.wire.notation import Shape
    from klamm.kafka.wire.structs import Struct

__all__ = ["codes_in"]

_CODE = "error_code"
_DEPTHS = {PRODUCE.key: 0, FETCH.key: 0, METADATA.key: 1, DESCRIBE_TOPIC_PARTITIONS.key: 1}
_ALL = 8


class _ErrorCodeField(NamedTuple):
    """A struct that may bear a code, and the lists in it whose structs may."""

    has_code: bool
    below: tuple[tuple[str, _ErrorCodeField], ...]


_fields: dict[int, _ErrorCodeField] = {}


def codes_in(api: Api, response: Struct) -> Iterator[int]:
    """Yield all codes, 0 as well."""
    error_field = _fields.get(api.key)
    if error_field is None:
        error_field = _fields[api.key] = _find_field(api.response.shape, _DEPTHS.get(api.key, _ALL))
    return _collect(error_field, response)


def _find_field(shape: Shape, depth: int) -> _ErrorCodeField:
    below = []
    for field in shape.fields if depth else ():
        if field.is_array and field.shape is not None:
            error_field = _find_field(field.shape, depth - 1)
            if error_field.has_code or error_field.below:
                below.append((field.name, error_field))
    return _ErrorCodeField(any(field.name == _CODE for field in shape.fields), tuple(below))


def _collect(error_field: _ErrorCodeField, part: Struct) -> Iterator[int]:
    if error_field.has_code:
        yield part.error_code
    for name, below in error_field.below:
        for each in getattr(part, name) or ():
            yield from _collect(below, each)
