"""The recovery point of a partition, and its history of leader epochs: the file `recovery`.

    header    magic, version, number of epochs, offset, base, position, log_start        48 bytes, little-endian
    epochs    (epoch, start offset), oldest first                                        16 bytes each
    CRC-32C of everything before

Everything below `offset`, which lies at `position` of segment `base`, was on disk when this was written: recovery
scans from there. Replaced as a whole, synced before and after.

An epoch ends where the next one starts. Each recovery starts a new epoch: records may have been lost that somebody
had already read, and a position stored with the older epoch is then known to end where that epoch ended.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from klamm.batch import crc32c
from klamm.disk import files

__all__ = ["Point", "end_of_epoch", "load", "store", "with_epoch"]

_MAGIC = b"KLAMMREC"
_VERSION = 1
_HEADER = struct.Struct("<8sIIqqqq")
_EPOCH = struct.Struct("<qq")
_CRC = struct.Struct("<I")
assert _HEADER.size == 48


class Point(NamedTuple):
    offset: int = 0
    base: int = 0
    position: int = 0
    log_start: int = 0
    epochs: tuple[tuple[int, int], ...] = ((0, 0),)


def load(directory: str) -> Point | None:
    """None if there is none, or none that can be believed: everything must then be scanned."""
    try:
        data = files.read(f"{directory}/recovery")
    except FileNotFoundError:
        return None
    return parse(data)


def parse(data: bytes) -> Point | None:
    if len(data) < _HEADER.size + _CRC.size or _CRC.unpack(data[-4:])[0] != crc32c(data[:-4]):
        return None
    magic, version, count, offset, base, position, log_start = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or len(data) != _HEADER.size + count * _EPOCH.size + _CRC.size:
        return None
    epochs = tuple(_EPOCH.iter_unpack(data[_HEADER.size : -4]))
    return Point(offset, base, position, log_start, epochs)


def pack(point: Point) -> bytes:
    head = _HEADER.pack(_MAGIC, _VERSION, len(point.epochs), *point[:4])
    data = head + b"".join(_EPOCH.pack(*epoch) for epoch in point.epochs)
    return data + _CRC.pack(crc32c(data))


def store(directory: str, point: Point) -> None:
    files.replace(f"{directory}/recovery", pack(point))


def with_epoch(epochs: tuple[tuple[int, int], ...], epoch: int, start: int) -> tuple[tuple[int, int], ...]:
    """The history with a new epoch; epochs that would have got no record are forgotten."""
    return (*((number, begin) for number, begin in epochs if begin < start), (epoch, start))


def end_of_epoch(epochs: tuple[tuple[int, int], ...], epoch: int, next_offset: int) -> int:
    """Where the epoch ended: where the first later one starts."""
    return min((start for number, start in epochs if number > epoch), default=next_offset)
