"""Snapshots of the table of producers, so that recovery need not read the whole log.

    00000000000000004711.snapshot    the table as it was when the next offset was 4711

    body        number of producers                                              u32
    producer    id, first open offset, last seen, number of batches              32 bytes
      batch     base offset, first sequence, last sequence, epoch                24 bytes each, at most 5

Sealed as sealed.py tells. The table itself is in `_producers.pxi`. A snapshot is written together with a recovery
point; the two latest are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from klamm.disk import files
from klamm.log import sealed, segment
from klamm.log.sealed import Lack

__all__ = ["SUFFIX", "ProducerState", "is_current", "load_latest", "parse", "prune", "store", "wrong_in_table"]

SUFFIX = ".snapshot"
_MAGIC = b"KLAMMPSN"
_VERSION = 1
_COUNT = struct.Struct("<I")
_PRODUCER = struct.Struct("<qqqq")
_BATCH = struct.Struct("<qiiq")

# The table's own layout, as _producers.pxi has it.
_TABLE = struct.Struct("<8sIIQ40x")
_PLACES_AT, _PLACE_SIZE, _PLACES, _CHUNK_IDS, _ENTRY_SIZE = 24, 24, 5, 64, 144
_CHUNK_SIZE = _CHUNK_IDS * (8 + _ENTRY_SIZE)

ProducerState = tuple[int, int, int, list[tuple[int, int, int, int]]]


def pack(producers: list[ProducerState]) -> bytes:
    parts = [_COUNT.pack(len(producers))]
    for producer_id, first_open, last_seen, batches in producers:
        parts.append(_PRODUCER.pack(producer_id, first_open, last_seen, len(batches)))
        parts += [_BATCH.pack(*batch) for batch in batches]
    return sealed.seal(_MAGIC, _VERSION, b"".join(parts))


def parse(data: bytes, *, path: str = "") -> list[ProducerState] | Lack:
    """Return the producers of a snapshot."""
    body = sealed.unseal(data, _MAGIC, _VERSION, path=path)
    if isinstance(body, Lack):
        return body
    try:
        return _parse(body)
    except (struct.error, ValueError):
        return Lack.DAMAGED


def _parse(body: bytes) -> list[ProducerState]:
    (count,) = _COUNT.unpack_from(body)
    at, producers = _COUNT.size, []
    for _ in range(count):
        producer_id, first_open, last_seen, batch_count = _PRODUCER.unpack_from(body, at)
        at += _PRODUCER.size
        if not 0 <= batch_count <= _PLACES or producer_id < 0:
            raise ValueError("more batches than a producer can have")
        batches = [_BATCH.unpack_from(body, at + n * _BATCH.size) for n in range(batch_count)]
        if not all(-(1 << 15) <= batch[3] < 1 << 15 for batch in batches):
            raise ValueError("an epoch that no producer has")
        at += batch_count * _BATCH.size
        producers.append((producer_id, first_open, last_seen, batches))
    if at != len(body):
        raise ValueError("bytes after the last producer")
    return producers


def is_current(directory: str, seq: int) -> bool:
    """Return whether the table is there, whole, and the log's, whose slot says `seq`."""
    try:
        data = files.read(f"{directory}/producers")
    except FileNotFoundError:
        return False
    if len(data) < _TABLE.size:
        return False
    magic, version, chunks, found = _TABLE.unpack_from(data)
    room = (len(data) - _TABLE.size) // _CHUNK_SIZE
    return bool(magic == b"KLAMMPRD" and version == 1 and 1 <= chunks <= room and found == seq > 0)


def store(directory: str, offset: int, producers: list[ProducerState]) -> None:
    files.replace(segment.path_of(directory, offset, SUFFIX), pack(producers))


def load_latest(directory: str, upto: int) -> tuple[int, list[ProducerState]] | None:
    """The youngest good snapshot at or before an offset."""
    for offset in reversed(segment.bases(directory, SUFFIX)):
        if offset <= upto:
            path = segment.path_of(directory, offset, SUFFIX)
            found = parse(files.read(path), path=path)
            if not isinstance(found, Lack):
                return offset, found
    return None


def prune(directory: str, keep: int = 2) -> None:
    for offset in segment.bases(directory, SUFFIX)[:-keep]:
        files.remove(segment.path_of(directory, offset, SUFFIX))


def wrong_in_table(data: bytes, next_offset: Callable[[], int]) -> tuple[int, str] | None:
    """The first thing wrong in a table of producers: where, and what."""
    if len(data) < _TABLE.size:
        return 0, "it is cut short"
    magic, version, chunks, _ = _TABLE.unpack_from(data)
    if magic != b"KLAMMPRD" or version != 1 or chunks < 1 or _TABLE.size + chunks * _CHUNK_SIZE > len(data):
        return 0, "its header is damaged"
    end = next_offset()
    for chunk in range(chunks):
        start = _TABLE.size + chunk * _CHUNK_SIZE
        for number, producer in enumerate(struct.unpack_from(f"<{_CHUNK_IDS}q", data, start)):
            at = start + _CHUNK_IDS * 8 + number * _ENTRY_SIZE
            (count,) = struct.unpack_from("<Q", data, at)
            for place in range(min(count, _PLACES) if producer else 0):
                position = at + _PLACES_AT + place * _PLACE_SIZE
                (offset,) = struct.unpack_from("<q", data, position)
                if not 0 <= offset < end:
                    return (
                        position,
                        f"producer {producer - 1} has a batch at offset {offset}, but the log ends at {end}",
                    )
    return None
