"""Records as text: JSON lines, lines for people, formats as kcat has them, and filters.

JSON     as client/plain.py has it
Table    a line each: time, partition and offset, key, value, headers
Formats  %t topic, %p partition, %o offset, %T time, %M its milliseconds, %k key, %v (or %s) value, %h headers,
         %K and %S lengths of key and value (-1: it has none), %% a percent sign; \\n \\t \\r \\0 \\\\ as in C. In
         a pipe keys and values come as they are, byte for byte; on a terminal bytes that are not text are escaped
Filters  --key, --grep, --header name=value, --where '$.user.id = 42'
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from klamm.batch import Record
from klamm.cli.output import Output, harmless, is_terminal, json_line, moment, styled
from klamm.cli.pairs import split_pair
from klamm.client.plain import as_plain
from klamm.client.record_filter import Filter, json_path
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
    """Return text for a person: bytes that are not text are escaped; None is empty."""
    return "" if data is None else harmless(data.decode("utf-8", "backslashreplace"))


def parse_headers(pairs: Sequence[str]) -> list[tuple[str, bytes]]:
    return [
        (name, os.fsencode(value))
        for name, value in (split_pair(pair, f"--header {pair}", "expected --header name=value") for pair in pairs)
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
    """Return whether that is meant as a format: it has a field or an escape."""
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
            f"format: {part[0]} is not a field", hint="there are " + " ".join(sign + each for each in known)
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
