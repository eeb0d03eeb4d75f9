"""Markers: the control batches that end a transaction, one in each partition it wrote to, as Kafka writes them.

A batch of one record, transactional and control, of the transaction's producer:

    key      int16 version (0) · int16 type: 0 abort, 1 commit
    value    int16 version (0) · int32 coordinator epoch (0)

Decoders of records leave markers out.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from klamm.batch.header import CONTROL, HEADER_SIZE, LENGTH_END, MAGIC, TRANSACTIONAL, Header, pack
from klamm.batch.patch import seal

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["SIZE", "commits", "marker"]

# size of the rest, attributes, timestamp delta, offset delta, key size, key, value size, value, header count
_RECORD = struct.Struct(">bbbbbhhbhib")
_KEY_SIZE, _VALUE_SIZE = 4, 6
SIZE = HEADER_SIZE + _RECORD.size
_TYPE_AT = HEADER_SIZE + 7


def marker(producer_id: int, epoch: int, *, commit: bool, timestamp: int) -> bytearray:
    """Return a sealed marker."""
    zigzag = 2  # a varint below 64 is one byte, twice its value
    record = _RECORD.pack(
        zigzag * (_RECORD.size - 1), 0, 0, 0, zigzag * _KEY_SIZE, 0, int(commit), zigzag * _VALUE_SIZE, 0, 0, 0
    )
    header = Header(
        0, SIZE - LENGTH_END, 0, MAGIC, 0, TRANSACTIONAL | CONTROL, 0, timestamp, timestamp, producer_id, epoch, -1, 1
    )
    batch = bytearray(pack(header) + record)
    seal(batch, len(batch))
    return batch


def commits(batch: Buffer) -> bool:
    """Return whether a marker commits; else it aborts."""
    return bytes(memoryview(batch)[_TYPE_AT : _TYPE_AT + 2]) == b"\0\1"
