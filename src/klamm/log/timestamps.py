"""The timestamps that a topic accepts: message.timestamp.before.max.ms and message.timestamp.after.max.ms.

The native append checks the limit on the future for every batch, by the max_timestamp of its header. So that field must
be true: the Kafka server computes it for batches of clients, and Klamm builds all other batches. Few topics limit the
past: for those, Partition reads the records of a batch before the append.

There are two clocks, the wall clock and the store's (docs/decisions, "Records expire only when two clocks agree"): a
record is refused only if it is out of range by both. Not checked are records without a timestamp (-1), topics with
LogAppendTime, and records that are in a log already (backup, recovery, compaction).
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
    """Return the error for a batch with timestamps that the topic does not accept."""
    earliest, latest = partition.timestamp_bounds()
    scan = RecordScan(batch, earliest, latest)
    worst = scan.first_outside if scan.outside else scan.result[2]  # the clock has moved on since it was refused
    return InvalidTimestamp.outside(f"{partition.topic}/{partition.number}", worst, earliest, latest, scan.outside)
