"""The timestamps that a topic accepts: message.timestamp.before.max.ms and message.timestamp.after.max.ms.

The limit on the future is checked by the native append, for every batch, by the max_timestamp of its header; so that
must be true (the Kafka server computes it for batches of clients; every other batch is built here). Few topics limit
the past: for those, Partition reads the records of a batch before it is appended.

Now is either of two clocks, the wall clock and the store's (docs/decisions, "Records expire only when two clocks
agree"): a record is refused only if it is out of range by both. Records without a timestamp (-1) are not checked, nor
is a topic with LogAppendTime, nor what is in a log already (backup, recovery, compaction).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.batch import RecordScan
from klamm.errors import InvalidTimestamp

if TYPE_CHECKING:
    from klamm.log.head import Heads
    from klamm.log.partition import Partition

__all__ = ["NO_LIMIT", "bounds", "refusal"]

NO_LIMIT = (1 << 63) - 1


def bounds(heads: Heads, limits_ms: tuple[int, int]) -> tuple[int, int]:
    """Return the earliest and the latest timestamp that is accepted now, for limits (before, after)."""
    clocks = heads.wall_ms(), heads.clock_ms()
    before_ms, after_ms = limits_ms
    return max(min(clocks) - before_ms, -NO_LIMIT), min(max(clocks) + after_ms, NO_LIMIT)


def refusal(partition: Partition, batch: memoryview) -> InvalidTimestamp:
    """Return the error for a whole batch that has timestamps outside of what the topic accepts."""
    earliest, latest = partition.timestamp_bounds()
    scan = RecordScan(batch, earliest, latest)
    worst = scan.first_outside if scan.outside else scan.result[2]  # the clock has moved on since it was refused
    return InvalidTimestamp.outside(f"{partition.topic}/{partition.number}", worst, earliest, latest, scan.outside)
