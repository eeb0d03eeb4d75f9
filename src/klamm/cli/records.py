"""Records as text: JSON lines, lines for people, formats as kcat has them, and filters.

JSON     as client/plain.py has it
Table    a line each: time, partition and offset, key, value, headers
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
from typing import Annotated, Any

import typer

from klamm.batch import Record
from klamm.cli.output import Output, harmless, is_terminal, json_line, moment, styled
from klamm.cli.pairs import split_pair
from klamm.client.plain import as_plain
from klamm.errors import InvalidSetting
from klamm.times import parse_duration

__all__ = [
    "Filter",
    "Format",
    "RecordOutput",
    "RecordOutputOption",
    "is_format",
    "json_path",
    "parse_headers",
    "parse_seconds",
    "text",
]

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def text(data: bytes | None) -> str:
    """For a person: what is no text is escaped; nothing is empty."""
    return "" if data is None else harmless(data.decode("utf-8", "backslashreplace"))


def parse_headers(pairs: Sequence[str]) -> list[tuple[str, bytes]]:
    return [
        (name, os.fsencode(value))
        for name, value in (split_pair(pair, f"--header {pair}", "want --header name=value") for pair in pairs)
    ]


def parse_seconds(given: str, name: str) -> float:
    """Return seconds: 500ms, 90s, 1h30m, or a number of them."""
    text = given.strip()
    milliseconds = parse_duration(f"{text}s" if text[-1:].isdigit() else text)
    if milliseconds is None:
        raise InvalidSetting(f"{given!r} is invalid", setting=name, hint="expected a duration: 500ms, 90s, 15m, 2h")
    return milliseconds / 1000


# ---- formats


class RecordOutput(Output):
    """Prints results as an Output does, and encodes records: as JSON, as lines for people, or in a format of fields."""

    def __init__(self, choice: str = "") -> None:
        try:
            self._format = Format(choice, raw=not is_terminal()) if is_format(choice) else None
        except InvalidSetting as error:
            raise typer.BadParameter(str(error)) from None
        if choice and self._format is None and choice not in self.FORMATS:
            raise typer.BadParameter(
                f"{choice!r} is invalid; expected json, table, or a format with fields, such as '%T %k %v\\n'"
            )
        super().__init__("" if self._format is not None else choice)

    def encoder(self, *, with_topics: bool = False) -> Callable[[Record], bytes]:
        """Return a function that encodes a record. `with_topics`: lines for people name the record's topic."""
        if self._format is not None:
            return self._format.fill
        if not self.is_table:
            return lambda record: f"{json_line(as_plain(record))}\n".encode()

        def line(record: Record) -> bytes:
            offset = f"{record.partition}/{record.offset}"
            where = styled(f"{record.topic}/{offset}" if with_topics else offset.rjust(8), dim=True)
            key = "" if record.key is None else styled(text(record.key), fg="cyan") + "  "
            value = styled("tombstone", dim=True) if record.value is None else text(record.value)
            headers = "".join(f"  {name}={text(data)}" for name, data in record.headers)
            return f"{moment(record.timestamp)} {where}  {key}{value}{styled(headers, dim=True)}\n".encode()

        return line


RecordOutputOption = Annotated[
    RecordOutput,
    typer.Option(
        "-o",
        "--format",
        metavar="json|table|FORMAT",
        parser=RecordOutput,
        default_factory=str,
        show_default=False,
        autocompletion=lambda: RecordOutput.FORMATS,
        help="Print lines of JSON, lines for people, or what a format says: '%T %k %v\\n'. Fields: %t topic, %p "
        "partition, %o offset, %T time, %M milliseconds, %k key, %v value, %h headers, %K %S lengths. "
        "[default: table on a terminal, else json]",
    ),
]


def is_format(text: str) -> bool:
    """Whether that is meant as a format: it has a field or an escape."""
    return "%" in text or "\\" in text


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
        for name, value in parse_headers(headers):
            self._tests.append(lambda record, name=name, value=value: value in record.headers.get_all(name))  # type: ignore[misc]
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
