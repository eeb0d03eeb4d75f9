"""Snapshots of the table of producers, so that recovery need not read the whole log.

    00000000000000004711.snapshot    the table as it was when the next offset was 4711

    body        number of producers                                              u32
    producer    id, first open offset, last seen, number of batches              32 bytes
      batch     base offset, first sequence, last sequence, epoch                24 bytes each, at most 5

Sealed by sealed.py. _producers.pxi describes the table itself. A snapshot is written together with a recovery point;
the two latest are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from klamm.disk import files
from klamm.log import sealed, segment
from klamm.log.sealed import Lack

__all__ = ["SUFFIX", "ProducerState", "load", "load_latest", "parse", "prune", "seq_of", "store", "wrong_in_table"]

SUFFIX = ".snapshot"
_MAGIC = b"KLAMMPSN"
_VERSION = 1
_COUNT = struct.Struct("<I")
_PRODUCER = struct.Struct("<qqqq")
_BATCH = struct.Struct("<qiiq")

# The table's own layout, as _producers.pxi has it: the header up to the length of its journal, and an entry.
_TABLE = struct.Struct("<8sIIQQIIIIIII")
_HEADER_SIZE, _TABLE_VERSION, _FIRST_BUCKETS = 2048, 2, 64
_PLACES_AT, _PLACE_SIZE, _PLACES = 64, 24, 5
_ENTRY = struct.Struct("<qQqqIIII16x" + "q16x" * _PLACES + "8x")
assert (_TABLE.size, _ENTRY.size) == (60, 192)
_WORD = 1 << 64

ProducerState = tuple[int, int, int, list[tuple[int, int, int, int]]]


def pack(producers: list[ProducerState]) -> bytes:
    """Return the bytes of a snapshot."""
    return sealed.seal(_MAGIC, _VERSION, _pack_body(producers))


def _pack_body(producers: list[ProducerState]) -> bytes:
    parts = [_COUNT.pack(len(producers))]
    for producer_id, first_open, last_seen, batches in producers:
        parts.append(_PRODUCER.pack(producer_id, first_open, last_seen, len(batches)))
        parts += [_BATCH.pack(*batch) for batch in batches]
    return b"".join(parts)


def parse(data: bytes) -> list[ProducerState] | Lack:
    """Return the producers of a snapshot."""
    body = sealed.unseal(data, _MAGIC, _VERSION)
    return body if isinstance(body, Lack) else _parse(body)


def load(directory: str, offset: int) -> list[ProducerState] | Lack:
    """Return the producers of the snapshot at `offset`, or the reason why there are none."""
    body = sealed.load(segment.path_of(directory, offset, SUFFIX), _MAGIC, _VERSION)
    return body if isinstance(body, Lack) else _parse(body)


def _parse(body: bytes) -> list[ProducerState] | Lack:
    try:
        return _parse_body(body)
    except (struct.error, ValueError):
        return Lack.DAMAGED


def _parse_body(body: bytes) -> list[ProducerState]:
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


def store(directory: str, offset: int, producers: list[ProducerState] | bytes) -> None:
    """Write a snapshot of `producers`, or of a body that `Log.pack_producers` returned."""
    body = producers if isinstance(producers, bytes) else _pack_body(producers)
    files.replace(segment.path_of(directory, offset, SUFFIX), sealed.seal(_MAGIC, _VERSION, body))


def load_latest(directory: str, end_offset: int) -> tuple[int, list[ProducerState]] | None:
    """Return the latest valid snapshot at or before an offset."""
    for offset in reversed(segment.bases(directory, SUFFIX)):
        if offset <= end_offset:
            found = load(directory, offset)
            if not isinstance(found, Lack):
                return offset, found
    return None


def prune(directory: str, keep: int = 2) -> None:
    for offset in segment.bases(directory, SUFFIX)[:-keep]:
        files.remove(segment.path_of(directory, offset, SUFFIX))


def seq_of(data: bytes) -> int:
    """Return the number in the header of the table of producers; 0: it belongs to none."""
    return int(_TABLE.unpack_from(data)[3]) if len(data) >= _TABLE.size else 0


class _Links(NamedTuple):
    """The links of an entry to other entries. A link is the number of an entry + 1; 0: none."""

    producer_id: int
    chain: int
    older: int
    newer: int
    bucket: int
    first_open: int


def wrong_in_table(data: bytes, next_offset: Callable[[], int], *, is_at_rest: bool = False) -> tuple[int, str] | None:
    """Return the first error in a table of producers: where, and what. `is_at_rest`: no process changes it."""
    if len(data) < _TABLE.size:
        return 0, "it is cut short"
    magic, version, capacity, _, key, used, buckets, *ends, _ = _TABLE.unpack_from(data)
    if magic != b"KLAMMPRD" or version != _TABLE_VERSION or _HEADER_SIZE + capacity * _ENTRY.size > len(data):
        return 0, "its header is damaged"
    if not (used <= capacity and _FIRST_BUCKETS <= buckets <= capacity):
        return 0, "its header is damaged"
    end = next_offset()
    links = []
    for number in range(max(used, buckets)):
        at = _HEADER_SIZE + number * _ENTRY.size
        producer_id, count, first_open, _, chain, older, newer, bucket, *batches = _ENTRY.unpack_from(data, at)
        links.append(_Links(producer_id, chain, older, newer, bucket, first_open))
        for place, offset in enumerate(batches[: min(count, _PLACES)] if number < used else ()):
            if not 0 <= offset < end:
                what = f"producer {producer_id} has a batch at offset {offset}, but the log ends at {end}"
                return at + _PLACES_AT + place * _PLACE_SIZE, what
    wrong = _wrong_links(links, used, buckets, key, ends) if is_at_rest else None
    return None if wrong is None else (_HEADER_SIZE + wrong[0] * _ENTRY.size, wrong[1])


def _wrong_links(links: list[_Links], used: int, buckets: int, key: int, ends: list[int]) -> tuple[int, str] | None:
    """Return the first entry that a search or a list does not find in its place, and what is wrong."""
    seen = set()
    for number in range(buckets):
        link = links[number].bucket
        while link:
            if not 0 < link <= used or link in seen:
                return number, f"bucket {number} leads to entry {link - 1}"
            seen.add(link)
            if _bucket_of(_hash(key, links[link - 1].producer_id), buckets) != number:
                return link - 1, f"producer {links[link - 1].producer_id} is in bucket {number}"
            link = links[link - 1].chain
    if len(seen) != used or len({entry.producer_id for entry in links[:used]}) != used:
        return 0, f"{len(seen)} of {used} producers are found"
    listed: set[int] = set()
    for is_open, (link, newest) in enumerate((ends[:2], ends[2:])):
        older, latest = 0, -1
        while link:
            if not 0 < link <= used or link in listed or links[link - 1].older != older:
                return max(older - 1, 0), f"its neighbour in a list is entry {link - 1}"
            entry = links[link - 1]
            if (entry.first_open >= 0) != bool(is_open) or (is_open and entry.first_open <= latest):
                return link - 1, f"producer {entry.producer_id} is in the wrong list, or in the wrong place of it"
            listed.add(link)
            older, latest, link = link, entry.first_open, entry.newer
        if older != newest:
            return max(older - 1, 0), f"a list ends with entry {older - 1}, not with {newest - 1}"
    return None if len(listed) == used else (0, f"{len(listed)} of {used} producers are in a list")


def _hash(key: int, producer_id: int) -> int:
    word = producer_id % _WORD ^ key
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % _WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB % _WORD
    return (word ^ word >> 31) % (1 << 32)


def _bucket_of(hashed: int, buckets: int) -> int:
    mask = (1 << (buckets - 1).bit_length()) - 1
    return hashed & mask if hashed & mask < buckets else hashed & mask >> 1
