"""The errors in an answer, for the metrics: of the whole request, and of its parts.

Where codes are is read off the shape of each API's response, once. Produce and Fetch are not looked into: they come
often, and count what they refuse themselves. Nor are the partitions that Metadata and DescribeTopicPartitions tell of:
there are many, and nothing is ever wrong with them here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from klamm.kafka.wire.messages import DESCRIBE_TOPIC_PARTITIONS, FETCH, METADATA, PRODUCE

if TYPE_CHECKING:
    from klamm.kafka.wire.codec import Api
    from klamm.kafka.wire.notation import Shape
    from klamm.kafka.wire.structs import Struct

__all__ = ["errors_in"]

_CODE = "error_code"
_DEPTHS = {PRODUCE.key: 0, FETCH.key: 0, METADATA.key: 1, DESCRIBE_TOPIC_PARTITIONS.key: 1}
_ALL = 8


class _ErrorCodeField(NamedTuple):
    """A struct that may bear a code, and the lists in it whose structs may."""

    has_code: bool
    below: tuple[tuple[str, _ErrorCodeField], ...]


_places: dict[int, _ErrorCodeField] = {}


def errors_in(api: Api, response: Struct) -> list[int]:
    """The codes that are not 0."""
    place = _places.get(api.key)
    if place is None:
        place = _places[api.key] = _place(api.response.shape, _DEPTHS.get(api.key, _ALL))
    found: list[int] = []
    _collect(place, response, found)
    return found


def _place(shape: Shape, depth: int) -> _ErrorCodeField:
    below = []
    for field in shape.fields if depth else ():
        if field.is_array and field.shape is not None:
            place = _place(field.shape, depth - 1)
            if place.has_code or place.below:
                below.append((field.name, place))
    return _ErrorCodeField(any(field.name == _CODE for field in shape.fields), tuple(below))


def _collect(place: _ErrorCodeField, part: Struct, found: list[int]) -> None:
    if place.has_code and part.error_code:
        found.append(int(part.error_code))
    for name, below in place.below:
        for each in getattr(part, name) or ():
            _collect(below, each, found)
