"""Decide whether a batch with the sequences of one in the log is that batch, sent again.

Apache Kafka compares producer id, epoch and sequences, and acknowledges. A client that reuses sequences for other
records (librdkafka may, when it aborts a transaction after a disconnect) then loses them without an error. Klamm
compares with the batch in the log: if the records differ, it raises OutOfOrderSequence, and the client gets an error.

Base offset and leader epoch always differ. So may the codec (`compression.type`) and, with LogAppendTime, the
timestamp: so records are compared, unless the checksums are equal. A batch that is deleted, or from which compaction
has removed records, cannot be compared: it counts as repeated, as in Kafka.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from klamm.batch import contents
from klamm.batch.header import CODEC_MASK, DELETE_HORIZON, HEADER_SIZE, LOG_APPEND_TIME, parse
from klamm.errors import OffsetOutOfRange, OutOfOrderSequence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klamm.batch.header import Header
    from klamm.log.partition import Partition

__all__ = ["check_same", "is_same"]

_MAY_DIFFER = CODEC_MASK | LOG_APPEND_TIME


def check_same(partition: Partition, offset: int, batch: memoryview) -> None:
    """Raise OutOfOrderSequence if the batch at `offset`, with the sequences of `batch`, has other records."""
    there = _read(partition, offset)
    if there is None or is_same(there, batch):
        return
    header = parse(batch)
    raise OutOfOrderSequence(
        f"{partition.topic}/{partition.number}: sequence {header.base_sequence} of producer {header.producer_id}, epoch"
        f" {header.producer_epoch}, is at offset {offset} with other records",
        hint="nothing was appended: these sequences were used before",
    )


def is_same(there: memoryview, batch: memoryview) -> bool:
    """Return whether `batch` repeats a batch of the log. Both have the same sequences."""
    old, new = parse(there), parse(batch)
    is_compacted = old.record_count != new.record_count or old.attributes & DELETE_HORIZON
    if old.crc == new.crc or is_compacted:
        return True
    if _origin(old) != _origin(new):
        return False
    if old.codec == new.codec and there[HEADER_SIZE:] == batch[HEADER_SIZE:]:
        return True
    return _are_equal(contents(there), contents(batch))


def _origin(header: Header) -> tuple[int, int]:
    """Return the fields that a producer sets, other than sequences."""
    return header.attributes & ~_MAY_DIFFER, header.base_timestamp


def _are_equal(one: Iterable[bytes | memoryview], other: Iterable[bytes | memoryview]) -> bool:
    """Return whether both have the same bytes, in whatever pieces."""
    left = right = memoryview(b"")
    pieces, others = iter(one), iter(other)
    while True:
        left = left or _next(pieces)
        right = right or _next(others)
        size = min(len(left), len(right))
        if not size:
            return len(left) == len(right)
        if left[:size] != right[:size]:
            return False
        left, right = left[size:], right[size:]


def _next(pieces: Iterable[bytes | memoryview]) -> memoryview:
    return next((memoryview(piece) for piece in chain(pieces) if len(piece)), memoryview(b""))


def _read(partition: Partition, offset: int) -> memoryview | None:
    """Return the batch that starts at `offset`; None if it is deleted."""
    try:
        with partition.reader(offset, committed=False) as reader:
            data = reader.read(HEADER_SIZE)
    except OffsetOutOfRange:
        return None
    if not data:
        return None
    header = parse(data)
    return data[: header.size] if header.base_offset == offset else None
