"""The record batch, Kafka's format v2 (magic 2), and its header.

A log is a sequence of batches, back to back. They have the same bytes on disk, on the wire and in memory, big-endian:

    position  size  field
           0     8  base_offset          offset of the batch; each record adds its offset delta
           8     4  batch_length         bytes that follow this field: the whole batch is 12 + batch_length
          12     4  leader_epoch
          16     1  magic                2
          17     4  crc                  CRC32C of everything from `attributes` to the end
          21     2  attributes           bits 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 delete horizon
          23     4  last_offset_delta    next_offset is base_offset + last_offset_delta + 1, also after cleaning
          27     8  base_timestamp       milliseconds; each record adds its timestamp delta
          35     8  max_timestamp        with log append time, the timestamp of every record
          43     8  producer_id          -1: none
          51     2  producer_epoch
          53     4  base_sequence
          57     4  record_count
          61        records, compressed together by the codec

A record is made of zigzag varints (below: v) and bytes. A size of -1 means null:

    v size of the rest · 1 byte attributes (0) · v timestamp delta · v offset delta · v key size · key ·
    v value size · value · v header count · for each header: v name size · name (UTF-8) · v value size · value

Promises
  B1  base_offset and leader_epoch lie outside of the CRC: a batch is sealed before its offset is known, and patched.
  B2  next_offset >= base_offset + record_count. A cleaned batch may have fewer records, even none; offsets grow in it.
  B3  no byte sequence makes a reader of batches crash, read outside of its buffer or allocate beyond MAX_DECODED_BYTES.
      Bytes that violate this format are CorruptBatch, with the position of their batch.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from klamm.errors import CorruptBatch

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "CODEC_MASK",
    "CONTROL",
    "DELETE_HORIZON",
    "HEADER_SIZE",
    "LOG_APPEND_TIME",
    "MAGIC",
    "TRANSACTIONAL",
    "Header",
    "pack",
    "parse",
]

_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
assert _HEADER.size == HEADER_SIZE

MAGIC = 2
LENGTH_END = 12
"""`batch_length` counts from here."""

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40


class Header(NamedTuple):
    """The header of a batch, parsed."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return LENGTH_END + self.batch_length

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """Number of the codec, see `codecs`."""
        return self.attributes & CODEC_MASK

    @property
    def log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)


def parse(data: Buffer, position: int = 0) -> Header:
    """Parse the header at `position`. Magic, length and offsets are checked, the CRC is not."""
    if position < 0 or memoryview(data).nbytes - position < HEADER_SIZE:
        raise CorruptBatch(f"byte {position}: no room for the {HEADER_SIZE} bytes of a batch header", position=position)
    header = Header._make(_HEADER.unpack_from(data, position))
    problem = _problem(header)
    if problem:
        raise CorruptBatch(f"byte {position}: {problem}", position=position)
    return header


def pack(header: Header) -> bytes:
    """Return the bytes of the header, without computing a CRC."""
    return _HEADER.pack(*header)


def _problem(header: Header) -> str | None:
    if header.magic != MAGIC:
        return f"magic is {header.magic}, expected {MAGIC}"
    if header.batch_length < HEADER_SIZE - LENGTH_END:
        return f"batch length is {header.batch_length}, less than a header"
    if header.base_offset < 0 or header.next_offset >= 1 << 63:
        return f"base offset is {header.base_offset}"
    if header.record_count < 0 or header.last_offset_delta < header.record_count - 1 or header.last_offset_delta < 0:
        return f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
    return None
