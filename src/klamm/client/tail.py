"""The last records of a topic, and then those that come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import merge
from typing import TYPE_CHECKING, Any

from klamm.batch import RECORDS
from klamm.client.consume.range_reader import read_ranges
from klamm.client.consume.read_engine import ReadFormat
from klamm.client.consumer import Consumer
from klamm.client.serde import key_pair, value_pair
from klamm.client.subscription import open_partitions
from klamm.errors import InvalidSetting
from klamm.types import Position, TopicPartition

if TYPE_CHECKING:
    from klamm.client.serde import Serde
    from klamm.store.directory import Core

__all__ = ["last_records", "tail"]

_WIDER = 8  # times as far back, where offsets have gaps


def tail(
    core: Core, topic: str, n: Any, *, follow: bool, serde: Serde | None, key_serde: Serde | None
) -> Iterator[Any]:
    """Return the last `n` records of all partitions, by time; with `follow` it then waits for more."""
    _check(n)
    consumer = Consumer(core, topic, start="latest", serde=serde, key_serde=key_serde)
    return _tail(core, consumer, n, follow, serde, key_serde)


def _tail(
    core: Core, consumer: Consumer, n: int, follow: bool, serde: Serde | None, key_serde: Serde | None
) -> Iterator[Any]:
    with consumer:
        yield from last_records(core, consumer.positions(), n, serde, key_serde)
        if follow:
            yield from consumer


def last_records(
    core: Core, ends: Mapping[TopicPartition, Position], n: Any, serde: Serde | None, key_serde: Serde | None
) -> list[Any]:
    """Return the last `n` records before those ends, by time."""
    _check(n)
    if not n:
        return []
    read_format = ReadFormat(RECORDS, key_pair(key_serde, serde).from_bytes, value_pair(serde).from_bytes)
    starts = {name: partition.ends().start for name, partition in open_partitions(core, ends).items()}
    found: dict[TopicPartition, list[Any]] = {}
    looks = {name: n for name, position in ends.items() if position.offset > starts[name]}  # how many offsets back
    while looks:
        ranges = {
            name: range(max(starts[name], ends[name].offset - reach), ends[name].offset)
            for name, reach in looks.items()
        }
        found |= {name: [] for name in ranges}
        for batch in read_ranges(core, ranges, read_format):
            found[TopicPartition(batch.topic, batch.partition)] += batch
        looks = {
            name: looks[name] * _WIDER
            for name, offsets in ranges.items()
            if len(found[name]) < min(n, len(offsets)) and offsets.start > starts[name]
        }
    records = list(merge(*found.values(), key=lambda record: record.timestamp))
    return records[max(0, len(records) - n) :]


def _check(n: Any) -> None:
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"n is an int, not {type(n).__name__}")
    if n < 0:
        raise InvalidSetting(f"n: {n} is negative")
