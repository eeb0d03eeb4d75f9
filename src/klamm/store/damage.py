"""Read a damaged segment: its valid batches in order, and the ranges of bytes between them that are damaged.

A batch is valid if all its bytes are there, its CRC is right, and its base offset follows the batch before it: exactly,
or with a gap where a compaction may have left one. Behind damage, the next valid batch is looked for: first at the end
that the damaged batch's own header gives, then at every byte.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from klamm.batch import Header, verify, walk
from klamm.batch import header as batch_header
from klamm.disk import _os
from klamm.errors import CorruptBatch

__all__ = ["Batch", "Damage", "batches"]

_CHUNK = 4 << 20
_MAX_GAP = 1 << 31  # of offsets, over damage; bytes that look like a batch further on are one by chance
_MAGIC_AT = 16


class Batch(NamedTuple):
    """A valid batch: the byte where it starts, its header, and its bytes."""

    position: int
    header: Header
    data: memoryview


class Damage(NamedTuple):
    """A damaged range, bytes [position, stop). `offset`: the base offset of the batch that should begin there."""

    position: int
    stop: int
    offset: int
    message: str


def batches(path: str, base: int, end: int, *, contiguous: bool, highest_epoch: int = -1) -> Iterator[Batch | Damage]:
    """Yield the valid batches and the damage in the first `end` bytes of a segment, in order.

    `base` is the offset that the file is named by. With `contiguous` every offset must be there; else gaps are valid,
    for a compaction leaves them. A leader epoch above `highest_epoch` is damage, unless that is -1.
    """
    fd = _os.open_file(path, os.O_RDONLY)
    try:
        position, offset, room = 0, base, _CHUNK
        while position < end:
            data = _os.pread(fd, min(room, end - position), position)
            message = None
            try:
                done, following = verify(data, offset, contiguous, highest_epoch)
            except CorruptBatch as error:
                message = re.sub(r"^byte \d+: ", "", error.message)  # that byte counts from the window's start
                data = data[: error.position or 0]
                done, following = verify(data, offset, contiguous, highest_epoch)
            start = position
            for header in walk(memoryview(data)[:done]) if done else ():
                at = position - start
                yield Batch(position, header, memoryview(data)[at : at + header.size])
                position += header.size
            offset = following if done else offset
            if message is None and not done:
                whole = batch_header.parse(data).size if len(data) >= batch_header.HEADER_SIZE else end
                if len(data) == room < whole <= end - position:
                    room = whole  # a batch larger than the window
                    continue
                message = f"an incomplete batch of {end - position} bytes"
            if message is not None:
                stop, offset_there = _next_good(fd, position, end, offset)
                yield Damage(position, stop, offset, message)
                position, offset = stop, offset_there
    finally:
        os.close(fd)


def _next_good(fd: int, position: int, end: int, offset: int) -> tuple[int, int]:
    """Return where the next good batch after `position` starts, and its base offset; `end` if there is none."""
    framed = _size_at(fd, position, end)
    if framed is not None:
        found = _good_at(fd, position + framed, end, offset)
        if found is not None:
            return position + framed, found
    start = position + 1
    while start + batch_header.HEADER_SIZE <= end:
        window = _os.pread(fd, min(_CHUNK, end - start), start)
        at = window.find(batch_header.MAGIC, _MAGIC_AT)
        while at >= 0:
            candidate = start + at - _MAGIC_AT
            found = _good_at(fd, candidate, end, offset)
            if found is not None:
                return candidate, found
            at = window.find(batch_header.MAGIC, at + 1)
        start += max(1, len(window) - _MAGIC_AT)
    return end, offset


def _size_at(fd: int, position: int, end: int) -> int | None:
    """Return the size that the batch at `position` says it has."""
    length = int.from_bytes(_os.pread(fd, 4, position + 8), "big", signed=True)
    size = batch_header.LENGTH_END + length
    return size if batch_header.HEADER_SIZE <= size < end - position else None


def _good_at(fd: int, position: int, end: int, offset: int) -> int | None:
    """Return the base offset of a good batch at `position`, if there is one and it can follow `offset`."""
    head = _os.pread(fd, batch_header.HEADER_SIZE, position)
    try:
        header = batch_header.parse(head)
        if not offset <= header.base_offset < offset + _MAX_GAP or header.size > end - position:
            return None
        done, _ = verify(_os.pread(fd, header.size, position), header.base_offset, True)
    except CorruptBatch:
        return None
    return header.base_offset if done == header.size else None
