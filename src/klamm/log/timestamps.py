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

from klamm.batch import decode
from klamm.errors import InvalidTimestamp

if TYPE_CHECKING:
    from klamm.log.head import Heads

__all__ = ["NO_LIMIT", "bounds", "refusal"]

NO_LIMIT = (1 << 63) - 1
_MOST_INDEXES = 100


def bounds(heads: Heads, limits_ms: tuple[int, int]) -> tuple[int, int]:
    """Return the earliest and the latest timestamp that is accepted now, for limits (before, after)."""
    clocks = heads.wall_ms(), heads.clock_ms()
    before_ms, after_ms = limits_ms
    return max(min(clocks) - before_ms, -NO_LIMIT), min(max(clocks) + after_ms, NO_LIMIT)


def refusal(where: str, batch: bytearray | memoryview | bytes, earliest: int, latest: int) -> InvalidTimestamp:
    """Return the error for a whole batch that has timestamps outside of [earliest, latest]."""
    stamps = [record.timestamp for record in decode(batch)]
    bad = [index for index, stamp in enumerate(stamps) if stamp != -1 and not earliest <= stamp <= latest]
    worst = stamps[bad[0]] if bad else max(stamps)  # none, if the clock has moved on since the batch was refused
    return InvalidTimestamp.outside(where, worst, earliest, latest, tuple(bad[:_MOST_INDEXES]))
