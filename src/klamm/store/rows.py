"""Checksums of rows of klamm.db: SQLite has none."""

from __future__ import annotations

import zlib

__all__ = ["crc", "crc_of_text"]


def crc(*values: object) -> int:
    return crc_of_text(repr(values))


def crc_of_text(text: str) -> int:
    """Return `crc(*values)`, given repr(values)."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))
