"""Logs for tests of this room: batches of many records, the clock moved, machines that go down."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from klamm.batch import RECORDS, Builder, Record, decode
from klamm.log import head, segment
from klamm.log.partition import Partition
from tests.rig import Rig

_ANCHOR_AT = 128  # in `heads`: wall time, then boot time, then a check of the two (slot.h)


def batch_of(
    timestamps: Iterable[int],
    *,
    padding: int = 0,
    codec: int = 0,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
) -> bytearray:
    """A batch with a record for each timestamp."""
    builder = Builder(64 << 20)
    for timestamp in timestamps:
        builder.add(None, b"." * padding, None, timestamp)
    return bytearray(builder.seal(codec=codec, producer_id=producer, producer_epoch=epoch, base_sequence=sequence))


def records(partition: Partition, start: int = 0, max_bytes: int = 1 << 20) -> list[Record]:
    """Everything from an offset on, as a reader gives it."""
    found: list[Record] = []
    with partition.reader(start) as reader:
        while data := reader.read(max_bytes):
            found += decode(data, form=RECORDS, from_offset=start)
    return found


def move_clock(rig: Rig, ms: int) -> None:
    """Let time pass, by every clock."""
    rig.heads.advance(ms)


def set_anchor(rig: Rig, ms: int) -> None:
    """Let the wall clock have been wrong by `ms` when the store was first opened after the boot, and right since."""
    with open(f"{rig.path}/heads", "r+b", buffering=0) as file:
        wall, boot = struct.unpack("<qq", os.pread(file.fileno(), 16, _ANCHOR_AT))
        os.pwrite(file.fileno(), struct.pack("<qqq", wall + ms, boot, (wall + ms) ^ ~boot), _ANCHOR_AT)


def power_cut(partition: Partition) -> None:
    """The machine went down and came back: what is in the head may not be believed any more."""
    partition.log.set_flags(head.NEEDS_RECOVERY)


def log_file(partition: Partition, base: int, suffix: str = segment.LOG) -> Path:
    return Path(segment.path_of(partition.directory, base, suffix))


def flip(path: Path, position: int, mask: int = 0x20) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        old = file.read(1)[0]
        file.seek(position)
        file.write(bytes([old ^ mask]))


__all__ = ["batch_of", "flip", "log_file", "move_clock", "power_cut", "records"]
