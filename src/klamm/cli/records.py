"""Records as text: formats as kcat has them, JSON lines, filters, and times as people write them.

JSON     as client/plain.py has it
Formats  %t topic, %p partition, %o offset, %T time, %M its milliseconds, %k key, %v (or %s) value, %h headers,
         %K and %S lengths of key and value (-1: it has none), %% a percent sign; \\n \\t \\r \\0 \\\\ as in C. In
         a pipe keys and values come as they are, byte for byte; on a terminal what is no text is escaped
Filters  --key, --grep, --header name=value, --where '$.user.id = 42'
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from klamm.batch import Record
from klamm.cli.output import harmless, moment
from klamm.cli.pairs import split_pair
from klamm.errors import InvalidSetting
from klamm.types import UNITS_MS

__all__ = ["Filter", "Format", "json_path", "parse_headers", "parse_time", "text"]

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def text(data: bytes | None) -> str:
    """For a person: what is no text is escaped; nothing is empty."""
    return "" if data is None else harmless(data.decode("utf-8", "backslashreplace"))


def parse_headers(pairs: Sequence[str]) -> list[tuple[str, bytes]]:
    return [
        (name, os.fsencode(value))
        for name, value in (split_pair(pair, f"--header {pair}", "want --header name=value") for pair in pairs)
    ]


def parse_time(given: str, what: str) -> datetime:
    """A moment, or how long ago: 2026-11-15T10:00+01:00, 2026-11-15, 90s, 15m, 2h, 3d, or milliseconds since 1970.

    A moment without a time zone is one of this machine's clock.
    """
    wanted = given.strip()
    try:
        ago = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", wanted)
        if ago is not None:
            return datetime.now(UTC) - timedelta(milliseconds=float(ago[1]) * UNITS_MS[ago[2]])
        if re.fullmatch(r"\d{11,14}", wanted):
            return _EPOCH + timedelta(milliseconds=int(wanted))
        return datetime.fromisoformat(wanted).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidSetting(
            f"{what}: {given!r} is no time", hint="want 15m, 2h or 3d (ago), or 2026-11-15T10:00+01:00"
        ) from None


# ---- formats


class Format:
    """A format, read once, to be filled often. `raw`: with keys and values as they are, else as text."""

    def __init__(self, form: str, *, raw: bool) -> None:
        self._show: Callable[[bytes | None], bytes] = _raw if raw else _escaped
        self._parts: list[bytes | _Field] = []
        for part in re.finditer(r"(?P<literal>[^\\%]+)|\\(?P<escape>.?)|%(?P<field>.?)", form, re.DOTALL):
            self._parts.append(_part(part))

    def fill(self, record: Record) -> bytes:
        show = self._show
        return b"".join(part if isinstance(part, bytes) else part(record, show) for part in self._parts)


def _raw(data: bytes | None) -> bytes:
    return data or b""


def _escaped(data: bytes | None) -> bytes:
    return text(data).encode()


_Show = Callable[[bytes | None], bytes]
_Field = Callable[[Any, _Show], bytes]


def _part(part: re.Match[str]) -> bytes | _Field:
    if part.lastgroup == "literal" or part[0] == "%%":
        return b"%" if part[0] == "%%" else os.fsencode(part[0])
    known: Mapping[str, Any] = _ESCAPES if part.lastgroup == "escape" else _FIELDS
    sign = part[0][:1]
    if part[0][1:] not in known:
        raise InvalidSetting(
            f"format: {part[0]} means nothing", hint="there are " + " ".join(sign + each for each in known)
        )
    found: bytes | _Field = known[part[0][1:]]
    return found


_FIELDS: dict[str, _Field] = {
    "t": lambda record, show: record.topic.encode(),
    "p": lambda record, show: b"%d" % record.partition,
    "o": lambda record, show: b"%d" % record.offset,
    "T": lambda record, show: moment(record.timestamp).encode(),
    "M": lambda record, show: b"%d" % record.timestamp,
    "k": lambda record, show: show(record.key),
    "v": lambda record, show: show(record.value),
    "s": lambda record, show: show(record.value),
    "h": lambda record, show: b",".join(name.encode() + b"=" + show(value) for name, value in record.headers),
    "K": lambda record, show: b"%d" % (-1 if record.key is None else len(record.key)),
    "S": lambda record, show: b"%d" % (-1 if record.value is None else len(record.value)),
}


# ---- filters


def json_path(path: str) -> list[str | int]:
    """$.user.tags[0] as ["user", "tags", 0]."""
    if not re.fullmatch(r"\$(\.[^.\[\]\s]+|\[\d+\])*", path):
        raise InvalidSetting(f"{path!r} is no path into JSON", hint="want $.user.id or $.tags[0]")
    return [int(number) if number else name for name, number in re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", path)]


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


class Filter:
    """Which records are wanted: all of what was given has to hold."""

    def __init__(
        self,
        *,
        key: str | None = None,
        grep: str | None = None,
        headers: Sequence[str] = (),
        where: Sequence[str] = (),
    ) -> None:
        self._tests: list[Callable[[Record], bool]] = []
        if key is not None:
            wanted = os.fsencode(key)
            self._tests.append(lambda record: record.key == wanted)
        if grep is not None:
            try:
                pattern = re.compile(os.fsencode(grep))
            except re.error as error:
                raise InvalidSetting(f"--grep {grep}: is no regular expression: {error}") from None
            self._tests.append(lambda record: record.value is not None and pattern.search(record.value) is not None)
        for pair in parse_headers(headers):
            self._tests.append(lambda record, pair=pair: pair in record.headers)  # type: ignore[misc]
        for condition in where:
            self._tests.append(_condition(condition))

    @property
    def takes_all(self) -> bool:
        return not self._tests

    def __call__(self, record: Record) -> bool:
        return all(test(record) for test in self._tests)


def _condition(condition: str) -> Callable[[Record], bool]:
    """$.path, or $.path = value; the value is JSON, or else text. What cannot be compared does not fit."""
    found = re.fullmatch(r"\s*(\$\S*?)\s*(?:(!=|<=|>=|=|<|>)\s*(.*?)\s*)?", condition, re.DOTALL)
    if found is None:
        raise InvalidSetting(
            f"--where {condition}: does not fit", hint="want '$.user.id = 42', or '$.user' to be there"
        )
    path, comparison = json_path(found[1]), found[2]
    try:
        wanted = json.loads(found[3]) if found[3] else found[3]
    except ValueError:
        wanted = found[3]

    def holds(record: Record) -> bool:
        try:
            value = _at(json.loads(record.value or b"null"), path)
        except ValueError:
            return False
        if comparison is None:
            return value is not None
        try:
            return value is not None and _COMPARISONS[comparison](value, wanted)
        except TypeError:
            return False

    return holds
