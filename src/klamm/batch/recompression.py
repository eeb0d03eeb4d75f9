"""Compress a batch with another codec: records, sequences and timestamps stay."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from klamm.batch import patch
from klamm.batch.codecs import MAX_DECODED_BYTES, compress, pieces
from klamm.batch.header import CODEC_MASK, HEADER_SIZE, LENGTH_END, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["contents", "recompress"]

_LENGTH_AT, _ATTRIBUTES_AT = 8, 21
_INT32, _INT16 = struct.Struct(">i"), struct.Struct(">h")


def recompress(
    batch: bytearray | memoryview, codec: int, level: int | None = None, *, max_decoded: int = MAX_DECODED_BYTES
) -> bytearray | memoryview:
    """Return the batch compressed with `codec`: itself if it is already, else a new one.

    Raise RecordTooLarge if it decompresses to more than `max_decoded` bytes: all of them are in memory.
    """
    header = parse(batch)
    if header.codec == codec:
        return batch
    records: bytes | memoryview = memoryview(batch)[HEADER_SIZE:]
    if header.codec:
        records = b"".join(pieces(header.codec, memoryview(batch)[HEADER_SIZE:], max_decoded))
    if codec:
        records = compress(codec, memoryview(records), level)
    made = bytearray(HEADER_SIZE + len(records))
    made[:HEADER_SIZE] = memoryview(batch)[:HEADER_SIZE]
    made[HEADER_SIZE:] = records
    _INT32.pack_into(made, _LENGTH_AT, len(made) - LENGTH_END)
    _INT16.pack_into(made, _ATTRIBUTES_AT, header.attributes & ~CODEC_MASK | codec)
    patch.seal(made, len(made))
    return made


def contents(batch: memoryview) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a batch's records, decompressed, in pieces."""
    codec = parse(batch).codec
    records = memoryview(batch)[HEADER_SIZE:]
    if codec:
        yield from pieces(codec, records)
    else:
        yield records
