"""Markers of transactions: control batches that end one in a log; and logs that a stopped process holds.

Whoever resolves a transaction must not wait for a stopped process (T4): so it asks first whether a log can be written.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from klamm.log import head

if TYPE_CHECKING:
    from klamm.log.partition import Partition
    from klamm.store.directory import Core
    from klamm.store.transaction_state import Row

__all__ = ["can_append", "is_deleted", "sync_if_possible", "write_marker"]

_STOPPED_S = 0.05  # so long may an append lock be held, and the log not change, before its holder counts as stopped
_STUCK_S = 1.0  # and a flush lock, without anything reaching the disk


def write_marker(partition: Partition, row: Row) -> int:
    """End a decided transaction in one log, unless that was done. The marker is below the offset that is returned."""
    offset = partition.append_marker(
        row.producer_id, row.next_epoch, commit=row.is_committed, same_epoch=row.keeps_epoch
    )
    return partition.snapshot().next_offset if offset is None else offset + 1


def is_deleted(partition: Partition) -> bool:
    return bool(partition.log.flags & head.DELETED)


def can_append(partition: Partition) -> bool:
    """Return False if another process holds the append lock and does nothing: it is stopped."""
    seq, until = partition.log.seq, time.monotonic() + _STOPPED_S
    while partition.log.is_locked_elsewhere:
        if partition.log.seq != seq:
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def sync_if_possible(core: Core, partition: Partition, end_offset: int) -> bool:
    """Sync up to an offset. Return False if another process began to, and does not come to an end."""
    lock, log = core.lock, partition.log
    assert lock is not None
    until = time.monotonic() + _STUCK_S
    while log.flushed_offset < end_offset and lock.held(log.flush_byte):
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    partition.sync(end_offset)
    return True
