"""The log of a server: one line an event, for people or for machines.

    text   2026-11-15T18:20:03.123Z INFO  listening address=127.0.0.1:9092 store=events
    json   {"time": "2026-11-15T18:20:03.123Z", "level": "info", "event": "listening", "address": "127.0.0.1:9092", …}

Events are logged through the `logging` module like everything else of Klamm's, with fields beside them:

    event("listening", address="127.0.0.1:9092")
    event("connection closed", logging.WARNING, peer=peer, reason="request too large")

At info there are events of the server's life, and never one for each request.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

__all__ = ["FORMATS", "LEVELS", "event", "to_stderr"]

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
_PLAIN = re.compile(r"[^\s\"'=\\]+")
_log = logging.getLogger("klamm")


def event(name: str, level: int = logging.INFO, /, *, error: BaseException | None = None, **fields: Any) -> None:
    """Log an event. Fields that are None are left out; `error` adds its traceback."""
    if _log.isEnabledFor(level):
        fields = {field: value for field, value in fields.items() if value is not None}
        _log.log(level, "%s", name, extra={"klamm_fields": fields}, exc_info=error, stacklevel=2)


def to_stderr(form: str = "text", level: str = "info", stream: TextIO | None = None) -> logging.Handler:
    """Log to stderr in this process: Klamm from `level` on, other packages warnings."""
    assert form in FORMATS
    assert level in LEVELS
    logging.raiseExceptions = False  # a closed stderr must not fail the server
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    _log.setLevel(level.upper())
    return handler


class _Lines(logging.Formatter):
    """The base of both formatters: the text of an event."""

    def event_of(self, record: logging.LogRecord) -> tuple[str, str, dict[str, Any]]:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = dict(getattr(record, "klamm_fields", {}))
        if record.name.partition(".")[0] != "klamm":
            fields["logger"] = record.name
        if record.exc_info and record.exc_info[0] is not None:
            fields["traceback"] = self.formatException(record.exc_info)
        return at, record.getMessage(), fields


class _Text(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        at, message, fields = self.event_of(record)
        words = [at, f"{record.levelname:<7}", _one_line(message)]
        words += [f"{name}={_quoted(str(value))}" for name, value in fields.items()]
        return " ".join(words)


class _Json(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        at, message, fields = self.event_of(record)
        event_of = {**fields, "time": at, "level": record.levelname.lower(), "event": message}
        ordered = {name: event_of.pop(name) for name in ("time", "level", "event")} | event_of
        return json.dumps(ordered, default=str)


def _one_line(text: str) -> str:
    """Escape what would end the line, or move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) and text.isprintable() else _one_line(json.dumps(text, ensure_ascii=False))
