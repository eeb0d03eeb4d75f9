"""Sealed files: small, and always replaced as a whole. `recovery`, `cleaner-checkpoint`, snapshots of producers.

    magic, version, body, CRC-32C of everything before        8 bytes, u32, …, u32; little-endian

Every version of such a file keeps this frame, so that a file from a newer Klamm is not taken for a damaged one. `load`
returns the body, or the reason why there is none: missing or damaged. Neither means that the file never existed.
"""

from __future__ import annotations

import enum
import struct

from klamm.batch import crc32c
from klamm.disk import files
from klamm.errors import NewerFormat

__all__ = ["Lack", "load", "seal", "unseal"]

_FRAME = struct.Struct("<8sI")
_CRC = struct.Struct("<I")
_MAX_SIZE = 64 << 20  # as the table of producers has, of which a snapshot is a part


class Lack(enum.Enum):
    """The reason why a file has no valid body."""

    MISSING = "is missing"
    DAMAGED = "its checksum is wrong"


def seal(magic: bytes, version: int, body: bytes) -> bytes:
    data = _FRAME.pack(magic, version) + body
    return data + _CRC.pack(crc32c(data))


def unseal(data: bytes, magic: bytes, version: int, *, path: str = "") -> bytes | Lack:
    """Return the body. NewerFormat if a newer Klamm wrote it."""
    if len(data) < _FRAME.size + _CRC.size or _CRC.unpack(data[-4:])[0] != crc32c(memoryview(data)[:-4]):
        return Lack.DAMAGED
    found_magic, found_version = _FRAME.unpack_from(data)
    if found_magic != magic:
        return Lack.DAMAGED
    if found_version > version:
        raise NewerFormat(f"{path}: has format {found_version}; this Klamm knows up to {version}", hint="upgrade Klamm")
    return data[_FRAME.size : -4] if found_version == version else Lack.DAMAGED


def load(path: str, magic: bytes, version: int) -> bytes | Lack:
    """Return the body of the file. NewerFormat if a newer Klamm wrote it."""
    try:
        data = files.read(path, max_size=_MAX_SIZE)
    except FileNotFoundError:
        return Lack.MISSING
    except files.TooLarge:
        return Lack.DAMAGED
    return unseal(data, magic, version, path=path)
