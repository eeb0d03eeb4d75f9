"""Read ranges of offsets to their end: for `tail`, dead letters and exports.

Nothing waits, and nothing handles signals: Ctrl-C raises KeyboardInterrupt, as in any other function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from klamm.batch import RECORDS
from klamm.client.consume.engines import open_engine
from klamm.client.consume.read_engine import ReadFormat
from klamm.types import Batch, Position, TopicPartition

if TYPE_CHECKING:
    from klamm.store.directory import Core

__all__ = ["PLAIN", "read_ranges"]

PLAIN = ReadFormat(RECORDS, None, None)
"""Records, their keys and values as bytes."""

_AT_ONCE = 5_000  # records


def read_ranges(
    core: Core, ranges: Mapping[TopicPartition, range], read_format: ReadFormat = PLAIN
) -> Iterator[Batch[Any]]:
    """Yield the committed records of each range, in batches of one partition; partitions take turns.

    A range that begins before its log is read from the start of the log; one that ends after it, to the end of the log.
    `read_format` makes Records.
    """
    with closing(open_engine(core, read_format, auto_offset_reset="earliest")) as engine:
        ends = {name: offsets.stop for name, offsets in ranges.items() if offsets}
        engine.assign({name: Position(ranges[name].start) for name in ends})
        left, finished = len(ends), []
        while left and (records := engine.next_records(_AT_ONCE, 0)) is not None:
            batch = records.batch()
            name = records.partition
            end = ends.get(name)
            if end is None:
                continue  # it was read to its end
            if batch.end >= end:
                del ends[name]
                finished.append(name)
                left -= 1
                if len(finished) > left:  # not one by one: a change costs as much as there are partitions
                    engine.unassign(finished)
                    finished = []
            if batch.end > end:
                kept = [record for record in batch if record.offset < end]
                batch = Batch(kept, *name, batch.begin, end, batch.leader_epoch)
            if batch:
                yield batch
