"""The errors of a malformed message.

KlammError
├── MalformedMessage         bytes that are not the message they claim to be; the connection cannot go on
└── UnsupportedVersion       a request that we do not know, or not in that version; its frame is sound
"""

from __future__ import annotations

from klamm.errors import KlammError

__all__ = ["MalformedMessage", "UnsupportedVersion"]


class MalformedMessage(KlammError):
    """Bytes that are not the message they claim to be. Nothing behind them can be read either."""


class UnsupportedVersion(KlammError):
    """The API is unknown, or this version of it. `correlation_id` is that of the request, if there was one."""

    def __init__(self, message: str, *, key: int, version: int, correlation_id: int = 0) -> None:
        super().__init__(message)
        self.key = key
        self.version = version
        self.correlation_id = correlation_id
