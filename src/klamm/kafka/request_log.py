"""The recent requests of each connection, decoded: what /connections of the metrics port shows, to debug a client.

Off unless `request.log.size` is set, and then only where the metrics port is of this machine alone.

Promises
  RQL1  Nothing of a record, of a login or of a member's metadata is kept: bytes are shown as their size. Nor is the
        value of a setting that a client sends, which may be a password: its name is.
  RQL2  What is kept is bounded: so many requests of a connection, parts of a request, characters of a text. A request
        of more than MOST_DECODED bytes is not decoded. What a connection sent is forgotten with it.
  RQL3  No request is handled differently because it is logged.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from klamm.errors import KlammError
from klamm.kafka.wire.frames import read_request_header
from klamm.kafka.wire.structs import Struct

if TYPE_CHECKING:
    from klamm.kafka.session import Session

__all__ = ["RequestLog", "as_shown"]

MOST_DECODED = 64 * 1024
_MOST_ITEMS = 20
_MOST_TEXT = 200
_DEEPEST = 8


class RequestLog:
    """The recent requests of one server, on its loop; `describe` is thread-safe."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._recent: dict[Session, deque[dict[str, Any]]] = {}

    def add(self, session: Session, frame: memoryview) -> None:
        """Note a request that has come."""
        entry: dict[str, Any] = {"time_ms": time.time_ns() // 1_000_000, "bytes": len(frame)}
        try:
            header = read_request_header(frame)
            entry |= {
                "api": header.api.name,
                "version": header.version,
                "correlation_id": header.correlation_id,
                "client_id": as_shown(header.client_id),
            }
            if len(frame) <= MOST_DECODED:
                entry["request"] = as_shown(header.api.request.decode(frame, header.version, header.position))
        except (KlammError, ValueError) as error:  # its handler says so to the client
            entry["problem"] = as_shown(str(error))
        recent = self._recent.get(session)
        if recent is None:
            recent = self._recent[session] = deque(maxlen=self._size)
        recent.append(entry)

    def forget(self, session: Session) -> None:
        """Forget what a connection sent: it is closed."""
        self._recent.pop(session, None)

    def describe(self) -> list[dict[str, Any]]:
        """Return each connection that has sent a request, and its recent ones, the latest first."""
        return [
            {
                "peer": repr(session),
                "principal": session.principal,
                "is_encrypted": session.endpoint.uses_tls,
                "has_logged_in": session.login is not None and bool(session.login.user),
                "client_id": next((row["client_id"] for row in reversed(rows) if "client_id" in row), None),
                "requests": rows[::-1],
            }
            for session, recent in list(self._recent.items())
            for rows in [list(recent)]
        ]


def as_shown(value: Any, depth: int = 0) -> Any:
    """Return a decoded request as plain values, without bytes and cut to a size."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if len(value) <= _MOST_TEXT else f"{value[:_MOST_TEXT]}…"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if depth >= _DEEPEST:
        return "…"
    if isinstance(value, Struct):
        shown = {name: as_shown(getattr(value, name), depth + 1) for name in value.__slots__}
        is_setting = {"name", "value"} <= shown.keys() and isinstance(shown["value"], str)
        return {**shown, "value": "…"} if is_setting else shown
    if isinstance(value, list | tuple):
        items = [as_shown(item, depth + 1) for item in value[:_MOST_ITEMS]]
        return [*items, f"… {len(value) - _MOST_ITEMS:,} more"] if len(value) > _MOST_ITEMS else items
    return f"<{type(value).__name__}>"
