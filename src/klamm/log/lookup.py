"""Look up records by time.

    offset_at      the first committed record at or after a time: for readers of records
    first_since    the first record at or after a time, markers and aborted records included: as Kafka does it
    find_max_timestamp  the first record with the largest timestamp, in the order of the log

The largest timestamp of a segment and its index give the starting point; from there on every batch is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from klamm.batch import RECORDS, decode, walk
from klamm.errors import OffsetOutOfRange
from klamm.log import retention
from klamm.log.index import Index
from klamm.log.reader import Reader

if TYPE_CHECKING:
    from klamm.batch.header import Header
    from klamm.log.head import Snapshot
    from klamm.log.partition import Partition

__all__ = ["TimestampLookup", "find_max_timestamp", "first_since", "offset_at"]


class TimestampLookup(NamedTuple):
    """The result of a look-up: a record without its contents."""

    offset: int
    timestamp: int
    leader_epoch: int


def offset_at(partition: Partition, timestamp_ms: int) -> int | None:
    """Return the first offset of a committed record with a timestamp of at least `timestamp_ms`, or None."""
    found = _first(partition, timestamp_ms, committed=True)
    return None if found is None else found.offset


def first_since(partition: Partition, timestamp_ms: int) -> TimestampLookup | None:
    """Return the first record, or marker, with a timestamp of at least `timestamp_ms`; None if there is none."""
    return _first(partition, timestamp_ms, committed=False)


def find_max_timestamp(partition: Partition) -> TimestampLookup | None:
    """Return the first record, or marker, with the largest timestamp; None in an empty log."""
    now = partition.snapshot()
    largest = max((stamp for _, stamp in _segments(partition, now)), default=-1)
    if largest < 0:
        return None
    return first_since(partition, largest) or _find_max_timestamp_left(partition)


def _find_max_timestamp_left(partition: Partition) -> TimestampLookup | None:
    """Like `find_max_timestamp`, for a segment whose largest timestamp lies before the log start: read the rest."""
    best: TimestampLookup | None = None
    now = partition.snapshot()
    with Reader(partition, now.log_start, committed=False) as reader:
        while data := reader.read():
            for batch in walk(data):
                while batch.max_timestamp > (-1 if best is None else best.timestamp):
                    above = 0 if best is None else best.timestamp + 1
                    found = _in_batch(data, batch, above, now.log_start, markers=True)
                    if found is None:
                        break
                    best = found
    return best


def _segments(partition: Partition, now: Snapshot) -> Iterator[tuple[int, int]]:
    """Yield base offset and largest timestamp of each segment."""
    found = partition.segments()
    for base, following in zip(found, [*found[1:], now.active_base], strict=False):
        if base == now.active_base:
            yield base, now.max_timestamp
            continue
        partition.look_for_gaps()
        try:
            stamp = retention.max_timestamp_of(
                partition.directory,
                base,
                following,
                contiguous=partition.contiguous,
                on_missing_index=partition.miss_index,
            )
            yield base, stamp
        except FileNotFoundError:
            continue  # expired just now


def _first(partition: Partition, timestamp_ms: int, *, committed: bool) -> TimestampLookup | None:
    while True:
        now = partition.snapshot()
        try:
            return _first_from(partition, timestamp_ms, now, committed=committed)
        except OffsetOutOfRange:
            if partition.snapshot().log_start == now.log_start:
                raise
            # else it expired during the search


def _first_from(partition: Partition, timestamp_ms: int, now: Snapshot, *, committed: bool) -> TimestampLookup | None:
    for base, stamp in _segments(partition, now):
        if stamp < timestamp_ms:
            continue
        end_position = now.position if base == now.active_base else None
        with Index(partition.directory, base, end_position=end_position) as entries:
            start = entries.before_time(timestamp_ms).offset
        if end_position is None and not entries.is_valid:
            partition.miss_index()
        with Reader(partition, max(start, now.log_start), committed=committed) as reader:
            while data := reader.read():
                at = 0
                for batch in walk(data):
                    if batch.max_timestamp >= timestamp_ms and batch.next_offset > now.log_start:
                        whole = data[at : at + batch.size]
                        found = _in_batch(whole, batch, timestamp_ms, now.log_start, markers=not committed)
                        if found is not None:
                            return found
                    at += batch.size
        return None  # the segment reached to the end of the log
    return None


def _in_batch(
    data: memoryview, batch: Header, timestamp_ms: int, start: int, *, markers: bool
) -> TimestampLookup | None:
    if batch.is_control:
        return TimestampLookup(batch.base_offset, batch.max_timestamp, batch.leader_epoch) if markers else None
    for record in decode(data, form=RECORDS, from_offset=start):
        if record.timestamp >= timestamp_ms:
            return TimestampLookup(record.offset, record.timestamp, batch.leader_epoch)
    return None
