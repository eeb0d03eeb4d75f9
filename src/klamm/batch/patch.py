"""Read and change single fields of a sealed batch. header.py says where they lie.

Base offset and leader epoch lie outside of the CRC; a change of any other field needs a new checksum.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from klamm.batch._kernel import crc32c
from klamm.batch.header import HEADER_SIZE, LENGTH_END, LOG_APPEND_TIME, MAGIC, TRANSACTIONAL, Header, pack

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "base_offset_of",
    "clear_log_append_time",
    "discharge",
    "empty",
    "enrol",
    "leader_epoch_of",
    "max_timestamp_of",
    "seal",
    "set_base_offset",
    "set_leader_epoch",
    "set_max_timestamp",
    "stamp",
]

_BASE_OFFSET_AT, _LEADER_EPOCH_AT, _CRC_AT, _ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 0, 12, 17, 21, 35
_PRODUCER_AT, _PRODUCER = 43, struct.Struct(">qhi")  # id, epoch, first sequence
_INT64, _INT32, _INT16, _UINT32 = (struct.Struct(f">{letter}") for letter in "qihI")


def base_offset_of(batch: Buffer) -> int:
    return int(_INT64.unpack_from(batch, _BASE_OFFSET_AT)[0])


def set_base_offset(batch: bytearray | memoryview, offset: int) -> None:
    _INT64.pack_into(batch, _BASE_OFFSET_AT, offset)


def leader_epoch_of(batch: Buffer) -> int:
    return int(_INT32.unpack_from(batch, _LEADER_EPOCH_AT)[0])


def set_leader_epoch(batch: bytearray | memoryview, epoch: int) -> None:
    _INT32.pack_into(batch, _LEADER_EPOCH_AT, epoch)


def max_timestamp_of(batch: Buffer) -> int:
    return int(_INT64.unpack_from(batch, _MAX_TIMESTAMP_AT)[0])


def set_max_timestamp(batch: bytearray | memoryview, size: int, timestamp_ms: int) -> None:
    """Set the header's max_timestamp to the largest timestamp of the records, and seal the batch again."""
    _INT64.pack_into(batch, _MAX_TIMESTAMP_AT, timestamp_ms)
    seal(batch, size)


def clear_log_append_time(batch: bytearray | memoryview, size: int) -> None:
    """Restore the records' own timestamps, and seal the batch again."""
    (attributes,) = _INT16.unpack_from(batch, _ATTRIBUTES_AT)
    _INT16.pack_into(batch, _ATTRIBUTES_AT, attributes & ~LOG_APPEND_TIME)
    seal(batch, size)


def stamp(batch: bytearray | memoryview, size: int, timestamp_ms: int) -> None:
    """Set the time of every record to that of its append (LogAppendTime)."""
    (attributes,) = _INT16.unpack_from(batch, _ATTRIBUTES_AT)
    _INT16.pack_into(batch, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    _INT64.pack_into(batch, _MAX_TIMESTAMP_AT, timestamp_ms)
    seal(batch, size)


def enrol(batch: bytearray | memoryview, producer_id: int, epoch: int, sequence: int) -> None:
    """Make a whole batch part of a producer's transaction."""
    (attributes,) = _INT16.unpack_from(batch, _ATTRIBUTES_AT)
    _INT16.pack_into(batch, _ATTRIBUTES_AT, attributes | TRANSACTIONAL)
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, epoch, sequence)
    seal(batch, len(batch))


def discharge(batch: bytearray | memoryview) -> None:
    """Detach a whole batch from its producer: keep the records of a committed transaction, without the transaction."""
    (attributes,) = _INT16.unpack_from(batch, _ATTRIBUTES_AT)
    _INT16.pack_into(batch, _ATTRIBUTES_AT, attributes & ~TRANSACTIONAL)
    _PRODUCER.pack_into(batch, _PRODUCER_AT, -1, -1, -1)
    seal(batch, len(batch))


def empty(first: int, count: int, leader_epoch: int) -> bytes:
    """Return a batch without records that takes `count` offsets."""
    length = HEADER_SIZE - LENGTH_END
    batch = bytearray(pack(Header(first, length, leader_epoch, MAGIC, 0, 0, count - 1, -1, -1, -1, -1, -1, 0)))
    seal(batch, len(batch))
    return bytes(batch)


def seal(batch: bytearray | memoryview, size: int) -> None:
    """Write the checksum of the batch in the first `size` bytes."""
    _UINT32.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_ATTRIBUTES_AT:size]))
