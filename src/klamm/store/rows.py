"""Checksums of rows: SQLite has none of its own, so every row of klamm.db that matters carries one."""

from __future__ import annotations

import zlib

__all__ = ["crc", "crc_of_text"]


def crc(*values: object) -> int:
    return crc_of_text(repr(values))


def crc_of_text(text: str) -> int:
    """Return the same for the repr of the values, as a tuple."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))
