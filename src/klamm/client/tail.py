"""The last records of a topic, and then those that come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import merge
from typing import TYPE_CHECKING, Any

from klamm.client.consumer import Consumer
from klamm.errors import InvalidSetting
from klamm.types import TopicPartition

if TYPE_CHECKING:
    from klamm.client.serde import Serde
    from klamm.store.directory import Core
    from klamm.types import Position

__all__ = ["last_records", "tail"]


def tail(
    core: Core, topic: str, n: Any, *, follow: bool, serde: Serde | None, key_serde: Serde | None
) -> Iterator[Any]:
    """The last `n` records of all partitions, by time; with `follow` it then waits for more."""
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
    """The last `n` records before those ends, by time."""
    _check(n)
    found = [_last(core, topic, number, end, n, serde, key_serde) for (topic, number), end in ends.items()] if n else []
    records = list(merge(*found, key=lambda record: record.timestamp))
    return records[max(0, len(records) - n) :]


def _check(n: Any) -> None:
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"n is an int, not {type(n).__name__}")
    if n < 0:
        raise InvalidSetting(f"n: {n} is negative")


def _last(
    core: Core, topic: str, number: int, end: Position, n: int, serde: Serde | None, key_serde: Serde | None
) -> list[Any]:
    """The last `n` records before `end`. Offsets may have gaps, so it goes back further until there are enough."""
    reach = n
    while True:
        found: list[Any] = []
        with Consumer(
            core, topic, partitions=[number], last=reach, wait_ms=0, serde=serde, key_serde=key_serde, form="records"
        ) as consumer:
            begin = consumer.position(topic, number).offset
            for record in consumer:
                if record.offset >= end.offset:
                    break
                found.append(record)
        if len(found) >= n or reach >= end.offset or begin == 0 or len(found) == end.offset - begin:
            return found[-n:]
        reach *= 8
