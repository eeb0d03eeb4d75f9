"""The notation of messages in `tables`: one text an API, one line a field.

    Fetch 1, versions 4-18, flexible 12-
    request
      cluster_id    string?      12-  =null #0
      max_bytes     int32             =2147483647
      topics        [Topic]
        topic       string       -12
        topic_id    uuid         13-
    response
      …

The first line has the API's name and key, the versions in which we know it, and from which on it is flexible: compact
lengths, and tagged fields behind every struct (KIP-482). A field is a name, a type and, in this order, what differs
from the usual:

    int8 … int64, float64, bool, uuid, string, bytes, records    types; `uuid` is 16 bytes, `records` are as they come
    Topic                      a struct; its fields follow, indented by two. Named again, it is the same struct
    [int32], [Topic]           an array
    string?  string?7          may be null, in all versions of the field or from version 7 on
    12-  -12  5-7              versions that have the field; without, those that have its struct
    =-1  =null                 its default; without, 0, false, "", an empty array
    #0                         it is a tagged field, sent only when it differs from its default

A tagged struct that is all defaults is None. Tables are parsed when a message is first used.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

__all__ = ["SIZES", "Field", "Head", "Shape", "parse", "parse_head"]

SIZES = {"bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float64": 8, "uuid": 16}
"""Types of fixed size, and the bytes they take."""

NO_UUID = bytes(16)

_HEAD = re.compile(r"(\w+) (\d+), versions (\d+)-(\d+)(?:, flexible (\d+)-)?")
_FIELD = re.compile(
    r"(?P<indent> *)(?P<name>\w+) +(?P<array>\[)?(?P<type>\w+)\]?(?P<null>\?(?P<null_from>\d*))?"
    r"(?: +(?P<since>\d*)-(?P<until>\d*))?(?: +=(?P<default>\S+))?(?: +#(?P<tag>\d+))?"
)
_NEVER = 1 << 15
_WORDS = {"null": None, "true": True}


class Head(NamedTuple):
    """The first line of a table, and the lines of its two messages."""

    name: str
    key: int
    min_version: int
    max_version: int
    flexible_from: int
    request: list[str]
    response: list[str]


class Shape(NamedTuple):
    """A struct: the fields of all versions, in the order of the wire."""

    name: str
    fields: list[Field]


class Field(NamedTuple):
    name: str
    type: str
    is_array: bool
    shape: Shape | None
    """Of its struct, or of the structs in its array."""
    since: int
    until: int
    null_from: int
    default: Any
    """None for null and for a tagged struct; of arrays, an empty tuple stands for a new list."""
    tag: int | None

    def exists(self, version: int) -> bool:
        return self.since <= version <= self.until

    def nullable(self, version: int) -> bool:
        return version >= self.null_from


def parse_head(table: str) -> Head:
    """Return all that is needed of a table as long as none of its messages is used."""
    first, *lines = (line.removeprefix("    ") for line in table.strip().splitlines())
    match = _HEAD.fullmatch(first)
    assert match, first
    name, key, low, high, flexible = match.groups()
    middle = lines.index("response")
    assert lines[0] == "request", name
    flexible_from = _NEVER if flexible is None else int(flexible)
    return Head(name, int(key), int(low), int(high), flexible_from, lines[1:middle], lines[middle + 1 :])


def parse(name: str, lines: list[str]) -> dict[str, Shape]:
    """Return the structs of a message by name; the message itself comes first, as `name`."""
    shapes = {name: Shape(name, [])}
    above = [shapes[name]]  # the struct that each depth belongs to
    for line in lines:
        match = _FIELD.fullmatch(line)
        assert match, line
        depth = len(match["indent"]) // 2
        field = _field(match, shapes)
        above[depth - 1].fields.append(field)
        if field.shape is not None:
            above[depth:] = [field.shape]
    return shapes


def _field(match: re.Match[str], shapes: dict[str, Shape]) -> Field:
    kind = match["type"]
    is_array = match["array"] is not None
    shape = shapes.setdefault(kind, Shape(kind, [])) if kind[0].isupper() else None
    since = int(match["since"] or 0)
    return Field(
        name=match["name"],
        type=kind,
        is_array=is_array,
        shape=shape,
        since=since,
        until=int(match["until"] or _NEVER),
        null_from=_NEVER if match["null"] is None else int(match["null_from"] or since),
        default=_default(kind, is_array, match["default"]),
        tag=None if match["tag"] is None else int(match["tag"]),
    )


def _default(kind: str, is_array: bool, text: str | None) -> Any:
    if text is not None:
        return _WORDS[text] if text in _WORDS else int(text)
    if is_array:
        return ()
    if kind[0].isupper():
        return None
    return {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": NO_UUID}.get(kind, 0)
