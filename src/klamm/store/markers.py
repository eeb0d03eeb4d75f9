"""Markers: control batches that end a transaction in a log. And tests for logs that a stopped process has locked.

Resolving a transaction must not wait for a stopped process (T4), so it first tests whether a log can be written.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.log import head

if TYPE_CHECKING:
    from klamm.log.partition import Partition
    from klamm.store.directory import Core
    from klamm.store.transaction_state import Row

__all__ = [
    "can_append",
    "is_deleted",
    "is_flushed_elsewhere",
    "is_synced",
    "sync_if_possible",
    "write_marker",
    "write_marker_now",
]

_STOPPED_S = 0.05  # after an append lock is held this long without a change of the log, its holder counts as stopped
_TRIES = 20  # wait for the append lock of another thread
_BETWEEN_S = 0.0002
_STALLED_S = 1.0  # the same for a flush lock: no sync has ended


def write_marker(partition: Partition, row: Row) -> int:
    """Write the marker of a decided transaction to one log, unless it is there. Return an offset above the marker."""
    offset = partition.append_marker(
        row.producer_id, row.next_epoch, commit=row.is_committed, same_epoch=row.keeps_epoch
    )
    return partition.snapshot().next_offset if offset is None else offset + 1


def write_marker_now(partition: Partition, row: Row) -> int | None:
    """Like `write_marker`, but return None rather than wait, and if there is nothing to do."""
    for _ in range(_TRIES):
        offset = partition.append_marker_now(
            row.producer_id, row.next_epoch, commit=row.is_committed, same_epoch=row.keeps_epoch
        )
        if offset >= 0:
            return offset + 1
        if offset not in (-errno.EAGAIN, -errno.EACCES) or partition.log.is_locked_elsewhere:
            return None
        time.sleep(_BETWEEN_S)  # another thread appends
    return None


def is_deleted(partition: Partition) -> bool:
    return bool(partition.log.flags & head.DELETED)


def is_synced(ends: Iterable[tuple[Partition, int]]) -> bool:
    """Return whether the logs are on disk up to these offsets."""
    return all(partition.log.flushed_offset >= end_offset for partition, end_offset in ends)


def can_append(partition: Partition) -> bool:
    """Return False if another process holds the append lock without appending: it is stopped."""
    seq, until = partition.log.seq, time.monotonic() + _STOPPED_S
    while partition.log.is_locked_elsewhere:
        if partition.log.seq != seq:
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def is_flushed_elsewhere(core: Core, partition: Partition) -> bool:
    """Return whether another process is syncing the log."""
    assert core.lock is not None
    return bool(core.lock.held(partition.log.flush_byte))


def sync_if_possible(core: Core, partition: Partition, end_offset: int) -> bool:
    """Sync up to an offset. Return False if another process is syncing and does not finish."""
    log = partition.log
    until = time.monotonic() + _STALLED_S
    while log.flushed_offset < end_offset and is_flushed_elsewhere(core, partition):
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    partition.sync(end_offset)
    return True
