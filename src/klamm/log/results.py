"""Raise errors for the codes that native calls of `head.Log` return instead of an offset."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from klamm.errors import (
    Closed,
    CorruptBatch,
    DiskFull,
    Fenced,
    Forked,
    KlammError,
    LogError,
    NotAStore,
    OutOfOrderSequence,
    ReadOnly,
    UnknownTopic,
)
from klamm.log.head import SLOT_BYTES, Result

if TYPE_CHECKING:
    from klamm.log.partition import Partition

__all__ = ["Ended", "error_of", "not_deleted_error", "text_of"]


class Ended(LogError):
    """The transaction has its marker already."""


def error_of(partition: Partition, result: int) -> KlammError:
    """Return the error for a negative result of a native call."""
    where = f"{partition.topic}/{partition.number}"
    if result == Result.DELETED:
        return UnknownTopic(f"{partition.topic}: the topic was deleted")
    if result == Result.READ_ONLY and not partition.is_read_only:
        return ReadOnly(_marked(partition, "read-only"), hint=_NOT_MARKED)
    if result == Result.READ_ONLY or result == -errno.EROFS or (result == -errno.EBADF and partition.is_read_only):
        return ReadOnly(f"{where}: opened for reading only")
    if result in (Result.REPLACED, -errno.ESTALE):
        return _moved_error(partition)
    if result == Result.OLDER_HEAD:
        return CorruptBatch(
            f"{partition.heads.path}: is older than the log of {where}; it may have been restored from a backup",
            path=partition.heads.path,
            position=partition.slot * SLOT_BYTES,
            hint="open the store for writing once: that rebuilds the head from the log",
        )
    if result == Result.DAMAGED_HEAD:
        position = partition.slot * SLOT_BYTES
        return CorruptBatch(
            f"{partition.heads.path}: byte {position}: the head of {where} is damaged",
            path=partition.heads.path,
            position=position,
            hint="run `check(repair=True)` on the store: it rebuilds the head from the log",
        )
    if result == Result.SHORT_SEGMENT:
        return CorruptBatch(
            f"{partition.directory}: the active segment is shorter than what was committed",
            path=partition.directory,
            hint="a file was cut or removed; run `check(repair=True)` on the store",
        )
    if result == Result.ABANDONED:
        if partition.is_forked:
            return Forked(f"{where}: opened before the fork", hint="open the store again in the child")
        return Closed(f"{where}: the store is closed", hint="open it again")
    if result == Result.FENCED:
        return Fenced(f"{where}: a producer with a newer epoch has taken over this producer id")
    if result == Result.ENDED:
        return Ended(f"{where}: the transaction is over")
    if result == Result.ELSEWHERE:
        return LogError(
            f"{where}: the log ends at offset {partition.snapshot().next_offset}: another process has appended to it"
        )
    if result == Result.OUT_OF_ORDER:
        return OutOfOrderSequence(f"{where}: the batch does not follow its producer's last one")
    if result == Result.TOO_MANY_PRODUCERS:
        return LogError(
            f"{where}: the table of producers is full, and each of them has an open transaction",
            hint="commit or abort transactions, or wait until they time out",
        )
    if result in (-errno.ENOSPC, -errno.EDQUOT):
        return DiskFull(f"{where}: no space left on the device", hint="nothing was appended; free some space")
    return LogError(f"{where}: cannot append: {text_of(result)}")


_NOT_MARKED = "this Klamm did not mark it; close the store in every process, and move `heads` aside: it is made again"


def _marked(partition: Partition, mark: str) -> str:
    where = f"{partition.topic}/{partition.number}"
    return f"{partition.heads.path}: byte {partition.slot * SLOT_BYTES}: the head of {where} is marked as {mark}"


def not_deleted_error(partition: Partition) -> CorruptBatch:
    """Return the error for a head that is marked as deleted, while klamm.db has its topic."""
    return CorruptBatch(
        f"{_marked(partition, 'deleted')}, but klamm.db has the topic",
        path=partition.heads.path,
        position=partition.slot * SLOT_BYTES,
        hint=_NOT_MARKED,
    )


def _moved_error(partition: Partition) -> KlammError:
    """Return the error for an append that found no store, or another one, at the store's path.

    NotAStore if that is still so; a LogError if the store is at its path again.
    """
    try:
        partition.heads.check_place()
    except NotAStore as error:
        return error
    return LogError(
        f"{partition.topic}/{partition.number}: not appended: the store was moved away, and is back",
        hint="append again",
    )


def text_of(result: int) -> str:
    """Describe a negative result of a native call."""
    return Result(result).name.lower().replace("_", " ") if result <= Result.DELETED else os.strerror(-result)
