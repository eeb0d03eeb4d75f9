"""How far compaction has got in a partition: the file `cleaned`.

    magic, version, unused, offset, gaps_below, last_horizon, CRC-32C of everything before     44 bytes, little-endian

    offset          below it, each key has one record: its latest, as of the pass that came this far
    gaps_below      from here on, offsets follow on; below, records may have been taken out
    last_horizon    when the last tombstone below `offset` may go, by the store's clock; -1: there is none

It is written before a pass replaces its first segment, with `gaps_below` where the pass will end, and again when it has
ended. So a log without this file has no gaps, and whoever meets one looks here before calling it damage.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from klamm.batch import crc32c
from klamm.disk import files

__all__ = ["Cleaned", "exists", "load", "parse", "path_of", "store"]

_MAGIC = b"KLAMMCLN"
_VERSION = 1
_BODY = struct.Struct("<8sIIqqq")
_CRC = struct.Struct("<I")
assert _BODY.size == 40


class Cleaned(NamedTuple):
    offset: int = 0
    gaps_below: int = 0
    last_horizon: int = -1


EVERYWHERE = (1 << 63) - 1


def path_of(directory: str) -> str:
    return f"{directory}/cleaned"


def exists(directory: str) -> bool:
    return os.path.exists(path_of(directory))


def load(directory: str) -> Cleaned:
    """What the file says. None: nothing was compacted yet. A damaged one: gaps may be anywhere, and all is to do."""
    try:
        data = files.read(path_of(directory))
    except FileNotFoundError:
        return Cleaned()
    return parse(data) or Cleaned(gaps_below=EVERYWHERE)


def parse(data: bytes) -> Cleaned | None:
    if len(data) != _BODY.size + _CRC.size or _CRC.unpack(data[-4:])[0] != crc32c(data[:-4]):
        return None
    magic, version, _, offset, gaps_below, last_horizon = _BODY.unpack_from(data)
    return Cleaned(offset, gaps_below, last_horizon) if magic == _MAGIC and version == _VERSION else None


def pack(known: Cleaned) -> bytes:
    data = _BODY.pack(_MAGIC, _VERSION, 0, *known)
    return data + _CRC.pack(crc32c(data))


def store(directory: str, known: Cleaned) -> None:
    files.replace(path_of(directory), pack(known))
