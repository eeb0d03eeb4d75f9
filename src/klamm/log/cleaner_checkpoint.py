"""The progress of compaction in a partition: the file `cleaner-checkpoint`.

    unused, offset, gaps_below, last_horizon                      28 bytes; sealed as sealed.py tells

    offset          below it, each key has one record: its latest, as of the last pass, which ended here
    gaps_below      from here on, offsets are contiguous; below, records may have been removed
    last_horizon    when the last tombstone below `offset` may be removed, by the store's clock; -1: there is none

It is written before a pass replaces its first segment, with `gaps_below` where the pass will end, and again when it has
ended. So a log without this file has no gaps, unless its recovery point says that it is compacted: then the file was
removed, and gaps may be anywhere. A reader that finds a gap reads this file before it reports damage.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from klamm.disk import files
from klamm.errors import CorruptBatch
from klamm.log import point, sealed
from klamm.log.sealed import Lack

__all__ = ["CleanerCheckpoint", "exists", "gap", "is_missing", "load", "parse", "path_of", "store", "what_is_missing"]

_MAGIC = b"KLAMMCLN"
_VERSION = 1
_BODY = struct.Struct("<Iqqq")


class CleanerCheckpoint(NamedTuple):
    offset: int = 0
    gaps_below: int = 0
    last_horizon: int = -1


EVERYWHERE = (1 << 63) - 1


def path_of(directory: str) -> str:
    return f"{directory}/cleaner-checkpoint"


def exists(directory: str) -> bool:
    return os.path.exists(path_of(directory))


def is_missing(directory: str) -> bool:
    """Return whether the file existed once and is missing now."""
    if exists(directory):
        return False
    known = point.load(directory)
    return isinstance(known, point.Point) and known.compacted


def what_is_missing(directory: str) -> str:
    """Return the addition to the report of a gap if both files that record compaction are missing, else ""."""
    if exists(directory) or point.load(directory) is not Lack.MISSING:
        return ""
    return f"; {point.path_of(directory)} is missing, too: it would tell whether the log was compacted"


def gap(directory: str, first: int, following: int) -> CorruptBatch:
    """Return the error for a gap between segments that no compaction explains."""
    return CorruptBatch(
        f"{directory}: offsets {first} to {following - 1} are missing{what_is_missing(directory)}",
        path=directory,
        next_offset=following,
        hint="run `check(repair=True)` on the store",
    )


def load(directory: str) -> CleanerCheckpoint:
    """Return the content of the file. If there never was one, nothing is compacted yet; if it is damaged or was
    removed, gaps may be anywhere, and everything is to be compacted again.
    """
    body = sealed.load(path_of(directory), _MAGIC, _VERSION)
    if body is Lack.MISSING and not is_missing(directory):
        return CleanerCheckpoint()
    found = Lack.DAMAGED if isinstance(body, Lack) else _parse(body)
    return CleanerCheckpoint(gaps_below=EVERYWHERE) if isinstance(found, Lack) else found


def parse(data: bytes) -> CleanerCheckpoint | Lack:
    body = sealed.unseal(data, _MAGIC, _VERSION)
    return body if isinstance(body, Lack) else _parse(body)


def _parse(body: bytes) -> CleanerCheckpoint | Lack:
    return CleanerCheckpoint(*_BODY.unpack(body)[1:]) if len(body) == _BODY.size else Lack.DAMAGED


def pack(known: CleanerCheckpoint) -> bytes:
    return sealed.seal(_MAGIC, _VERSION, _BODY.pack(0, *known))


def store(directory: str, known: CleanerCheckpoint) -> None:
    files.replace(path_of(directory), pack(known))
