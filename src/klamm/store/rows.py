"""Checksums of rows: SQLite has none of its own, so every row of klamm.db that matters carries one."""

from __future__ import annotations

import zlib

__all__ = ["crc"]


def crc(*values: object) -> int:
    return zlib.crc32(repr(values).encode("utf-8", "surrogatepass"))
