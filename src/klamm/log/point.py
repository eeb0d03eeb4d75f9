"""The file `recovery`: the recovery point of a partition, its history of leader epochs, and the files it must have.

    body      number of epochs, number of segments, flags, unused                        16 bytes
              offset, base, position, log_start, snapshot                                40 bytes
    epochs    (epoch, start offset), oldest first                                        16 bytes each
    segments  (base offset, entries of its .aborted that end below `snapshot`)           16 bytes each

Sealed as sealed.py tells. Everything below `offset`, which lies at `position` of segment `base`, was on disk when this
was written: recovery scans from there. Replaced as a whole, synced before and after.

An epoch ends where the next one starts. Each recovery starts a new epoch: records may be lost that a reader has read,
and a position that was stored with the older epoch is then known to end where that epoch ended.

`segments` lists the segments up to `base`; segments below `log_start` may be deleted since. `snapshot` is the offset of
the latest snapshot of producers, -1 if there was no producer yet; a later one may have replaced it. The flag COMPACTED
means that the log may have been compacted, and may have a `cleaner-checkpoint`. So a file that another program removed
is noticed, and not taken for one that never existed. The flag REPAIRED means that a repair removed synced records:
recovery then does not expect everything that the old head says was synced.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from klamm.disk import files
from klamm.log import aborted, sealed, segment
from klamm.log.sealed import Lack

if TYPE_CHECKING:
    from klamm.log.head import Evidence

__all__ = [
    "MAX_EPOCH",
    "Point",
    "end_of_epoch",
    "highest_epoch",
    "load",
    "missing_segments",
    "parse",
    "store",
    "with_epoch",
]

_MAGIC = b"KLAMMREC"
_VERSION = 2
_BODY = struct.Struct("<IIIIqqqqq")
_PAIR = struct.Struct("<qq")
_COMPACTED, _REPAIRED = 1, 2
MAX_EPOCH = 2**31 - 2
"""The highest leader epoch: batches have an int32 for it."""
assert _BODY.size == 56


class Point(NamedTuple):
    offset: int = 0
    base: int = 0
    position: int = 0
    log_start: int = 0
    epochs: tuple[tuple[int, int], ...] = ((0, 0),)
    snapshot: int = -1
    compacted: bool = False
    segments: tuple[tuple[int, int], ...] = ()
    repaired: bool = False

    @property
    def listed_aborted(self) -> list[aborted.Listed]:
        """The .aborted files that must exist, each with the least number of its entries."""
        return [(base, count, self.snapshot) for base, count in self.segments if count]


def path_of(directory: str) -> str:
    return f"{directory}/recovery"


def load(directory: str) -> Point | Lack:
    """Return the content of the file, or the reason why it has none: then everything must be scanned."""
    body = sealed.load(path_of(directory), _MAGIC, _VERSION)
    return body if isinstance(body, Lack) else _parse(body)


def parse(data: bytes) -> Point | Lack:
    body = sealed.unseal(data, _MAGIC, _VERSION)
    return body if isinstance(body, Lack) else _parse(body)


def _parse(body: bytes) -> Point | Lack:
    if len(body) < _BODY.size:
        return Lack.DAMAGED
    epochs, segments, flags, _, offset, base, position, log_start, snapshot = _BODY.unpack_from(body)
    if len(body) != _BODY.size + (epochs + segments) * _PAIR.size:
        return Lack.DAMAGED
    pairs = tuple(_PAIR.iter_unpack(body[_BODY.size :]))
    if min(offset, base, position, log_start, *(start for pair in pairs for start in pair), 0) < 0:
        return Lack.DAMAGED
    if not all(0 <= epoch <= MAX_EPOCH for epoch, _ in pairs[:epochs]):
        return Lack.DAMAGED
    known = pairs[:epochs], snapshot, bool(flags & _COMPACTED), pairs[epochs:], bool(flags & _REPAIRED)
    return Point(offset, base, position, log_start, *known)


def pack(point: Point) -> bytes:
    flags = _COMPACTED * point.compacted | _REPAIRED * point.repaired
    numbers = len(point.epochs), len(point.segments), flags, 0
    body = _BODY.pack(*numbers, *point[:4], point.snapshot)
    body += b"".join(_PAIR.pack(*pair) for pair in (*point.epochs, *point.segments))
    return sealed.seal(_MAGIC, _VERSION, body)


def store(directory: str, point: Point) -> None:
    """Replace the file durably; it lists the segments that exist now."""
    with_entries = set(segment.bases(directory, aborted.SUFFIX))
    listed = tuple(
        (base, _entries_below(directory, base, point.snapshot) if base in with_entries else 0)
        for base in segment.bases(directory)
        if base <= point.base
    )
    files.replace(path_of(directory), pack(point._replace(segments=listed)))


def missing_segments(known: Point, there: list[int], log_start: int) -> list[int]:
    """Return the bases of segments from `log_start` on that the point lists and that are missing now."""
    listed = [base for base, _ in known.segments]
    ends = [*listed[1:], known.offset]
    return [
        base
        for base, end in zip(listed, ends, strict=False)
        if base not in there and end > max(log_start, base)  # an empty one is created by its first append
    ]


def _entries_below(directory: str, base: int, offset: int) -> int:
    return aborted.count_below(aborted.load(directory, base), offset)


def with_epoch(epochs: tuple[tuple[int, int], ...], epoch: int, start: int) -> tuple[tuple[int, int], ...]:
    """Return the history with a new epoch, without epochs that have no record."""
    return (*((number, begin) for number, begin in epochs if begin < start), (epoch, start))


def highest_epoch(epochs: tuple[tuple[int, int], ...], proof: Evidence, boot_count: int) -> int:
    """Return the highest leader epoch that a batch can have. `epochs`: those of the recovery point, if there is one;
    `proof`: what the old head proves.
    """
    if not epochs and not proof.exists:
        return MAX_EPOCH  # repaired without either: no epoch is known
    return min(MAX_EPOCH, max(boot_count, proof.leader_epoch, *(epoch for epoch, _ in epochs[-1:])))


def end_of_epoch(epochs: tuple[tuple[int, int], ...], epoch: int, next_offset: int) -> int:
    """Return where the epoch ended: where the first later one starts.

    An epoch later than all of them is from before a backup was restored: it ends where the latest one started.
    """
    if epochs and epoch > epochs[-1][0]:
        return epochs[-1][1]
    return min((start for number, start in epochs if number > epoch), default=next_offset)
