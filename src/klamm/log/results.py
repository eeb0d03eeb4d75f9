"""What the native calls of `head.Log` return instead of an offset, as errors of ours."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from klamm.errors import (
    CorruptBatch,
    DiskFull,
    Fenced,
    Forked,
    KlammError,
    LogError,
    OutOfOrderSequence,
    ReadOnly,
    UnknownTopic,
)
from klamm.log import head

if TYPE_CHECKING:
    from klamm.log.partition import Partition

__all__ = ["Ended", "error_of"]


class Ended(LogError):
    """A transaction that has its marker already."""


def error_of(partition: Partition, result: int) -> KlammError:
    """Return the error for a negative result of a native call."""
    what = head.RESULTS.get(result)
    where = f"{partition.topic}/{partition.number}"
    if what == "deleted":
        return UnknownTopic(f"{partition.topic}: the topic was deleted")
    if what == "read_only" or result == -errno.EROFS or (result == -errno.EBADF and partition.is_read_only):
        return ReadOnly(f"{where}: opened for reading only")
    if what == "older_head":
        return CorruptBatch(
            f"{partition._heads.path}: is older than the log of {where}: was it put back from a backup?",
            path=partition._heads.path,
            position=partition.slot * head.SLOT_BYTES,
            hint="open the store for writing once: the head is made again from the log",
        )
    if what == "damaged_head":
        position = partition.slot * head.SLOT_BYTES
        return CorruptBatch(
            f"{partition._heads.path}: byte {position}: the head of {where} is damaged",
            path=partition._heads.path,
            position=position,
            hint="run `check(repair=True)` on the store: it rebuilds the head from the log",
        )
    if what == "short_segment":
        return CorruptBatch(
            f"{partition.directory}: the active segment is shorter than what was committed",
            path=partition.directory,
            hint="somebody cut or removed a file; run `check(repair=True)` on the store",
        )
    if what == "abandoned":
        return Forked(f"{where}: used after its store was closed, or in a forked child", hint="open the store anew")
    if what == "fenced":
        return Fenced(f"{where}: a producer with a newer epoch has taken over this producer id")
    if what == "ended":
        return Ended(f"{where}: the transaction is over")
    if what == "elsewhere":
        return LogError(
            f"{where}: goes on at offset {partition.snapshot().next_offset}: somebody else has appended to it"
        )
    if what == "out_of_order":
        return OutOfOrderSequence(f"{where}: the batch does not follow its producer's last one")
    if what == "too_many_producers":
        return LogError(
            f"{where}: the table of producers is full, and each of them has an open transaction",
            hint="commit or abort transactions, or wait until they time out",
        )
    if result in (-errno.ENOSPC, -errno.EDQUOT):
        return DiskFull(f"{where}: no space left on the device", hint="nothing was appended; free some space")
    return LogError(f"{where}: cannot append: {os.strerror(-result)}")
