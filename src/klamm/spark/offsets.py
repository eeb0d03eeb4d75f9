"""Offsets as Spark keeps and spells them.

    startingOffsets, endingOffsets    "earliest", "latest", or JSON: {"orders": {"0": 23, "1": -2}}; -2 is the earliest,
                                      -1 the latest
    …OffsetsByTimestamp               JSON, with milliseconds since 1970 in the place of offsets
    a stream's checkpoint             {"orders": {"0": 23, "1": 5}, "@klamm": {"store": "…", "topics": {"orders": "…"},
                                      "epochs": {"orders": {"0": 2, "1": 2}}}}

A checkpoint is thus what Spark's Kafka source would write, and one entry more (no topic can be called "@klamm"):

    store, topics    their ids: a topic that was deleted and created again has other records at the same offsets
    epochs           the leader epoch of the record before each offset: a log has other records, too, after an older
                     copy of the store was put back, or a power cut. Checkpoints of an older Klamm have none
    from             of the first micro-batch only: where it begins. Spark does not keep that, and asks again for the
                     initial offsets when it does that batch again: "latest" is further on by then

What a checkpoint or a query's progress says can be pasted as startingOffsets; the entry of ours is passed over there.

Spark compares offsets as text, so topics and partitions are always in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from klamm.errors import InvalidSetting
from klamm.types import TopicId

__all__ = [
    "EARLIEST",
    "LATEST",
    "OURS",
    "Bound",
    "StreamOffsets",
    "TopicIdPartition",
    "parse_bound",
    "parse_offset_map",
    "parse_times",
]

EARLIEST = -2
LATEST = -1
OURS = "@klamm"

_EXAMPLE = 'expected "earliest", "latest" or JSON such as {"orders": {"0": 23, "1": -2}}'
_TIMES_EXAMPLE = 'expected JSON with milliseconds since 1970, such as {"orders": {"0": 1700000000000}}'


class TopicIdPartition(NamedTuple):
    """A partition of a topic; the topic's id is the one it had."""

    topic: str
    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True)
class Bound:
    """A bound to begin or end at: an offset (or EARLIEST, LATEST), or a time; for all partitions, or one for each."""

    option: str
    everywhere: int | None = None
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[tuple[str, int], int] = field(default_factory=dict)
    needs_record: bool = False
    """Whether a partition without a record at or after its time is an error; else the bound is its end."""

    def check(self, tps: Iterable[tuple[str, int]]) -> None:
        """Refuse offsets or times that are given one by one, but not for exactly these partitions."""
        if self.everywhere is not None or self.timestamp_ms is not None:
            return
        wanted, given = set(tps), self.timestamps_ms or self.offsets
        extra = sorted(given.keys() - wanted)
        missing = sorted(wanted - given.keys())
        if extra:
            raise InvalidSetting(
                f"{self.option}: names {_listed(extra)}, which is not subscribed to, or not there",
                hint="leave it out, or subscribe to it",
            )
        if missing:
            raise InvalidSetting(
                f"{self.option}: says nothing of {_listed(missing)}",
                hint="name every partition"
                + ("" if self.timestamps_ms else "; -2 is its earliest offset, -1 its latest"),
            )

    def time_at(self, tp: TopicIdPartition) -> int | None:
        """Return the time in milliseconds; None if the bound is an offset."""
        return self.timestamps_ms.get((tp.topic, tp.partition), self.timestamp_ms)

    def at(self, tp: TopicIdPartition) -> int:
        """Return the offset, EARLIEST or LATEST; only if it is not a time."""
        if self.everywhere is not None:
            return self.everywhere
        return self.offsets[tp.topic, tp.partition]


def _listed(tps: list[tuple[str, int]]) -> str:
    shown = ", ".join(f"{topic}/{number}" for topic, number in tps[:3])
    return shown if len(tps) <= 3 else f"{shown} and {len(tps) - 3} more"


def parse_bound(text: str, option: str) -> Bound:
    """Parse startingOffsets or endingOffsets."""
    word = text.strip()
    if word.lower() == "earliest":
        return Bound(option, EARLIEST)
    if word.lower() == "latest":
        return Bound(option, LATEST)
    return Bound(option, offsets=parse_offset_map(word, option))


def parse_times(text: str, option: str) -> Bound:
    """Return what startingOffsetsByTimestamp or endingOffsetsByTimestamp says."""
    times = _number_map(text.strip(), option, "time", _TIMES_EXAMPLE, least=0)
    if not times:
        raise InvalidSetting(f"{option}: names no partition", hint=_TIMES_EXAMPLE)
    return Bound(option, timestamps_ms=times)


def parse_offset_map(text: str, option: str) -> dict[tuple[str, int], int]:
    """Return {"orders": {"0": 23}}, by topic and partition."""
    return _number_map(text, option, "offset", _EXAMPLE, least=EARLIEST)


def _number_map(text: str, option: str, noun: str, example: str, *, least: int) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for topic, numbers in _object(text, option, example).items():
        if topic == OURS:
            continue
        if not isinstance(numbers, dict):
            raise InvalidSetting(f"{option}: {topic!r} has no {noun}s by partition", hint=example)
        for partition, number in numbers.items():
            if not partition.isascii() or not partition.isdigit():
                raise InvalidSetting(f"{option}: {topic}: {partition!r} is not a partition", hint=example)
            if not isinstance(number, int) or isinstance(number, bool) or not least <= number < 1 << 63:
                raise InvalidSetting(f"{option}: {topic}/{partition}: {number!r} is not a valid {noun}", hint=example)
            found[topic, int(partition)] = number
    return found


def _object(text: str, option: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise InvalidSetting(f"{option}: {text[:60]!r} is invalid", hint=example) from None
    if not isinstance(found, dict):
        raise InvalidSetting(f"{option}: {text[:60]!r} is invalid", hint=example)
    return found


@dataclass(frozen=True)
class StreamOffsets:
    """The progress of a stream: Spark keeps it in its checkpoint and hands it back to us."""

    store_id: str
    offsets: Mapping[TopicIdPartition, int]
    epochs: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    origin: Mapping[TopicIdPartition, int] | None = None
    """Where the micro-batch that ends here begins, if it is the query's first."""

    def get(self, tp: TopicIdPartition) -> int | None:
        return self.offsets.get(tp)

    def epoch(self, tp: TopicIdPartition) -> int:
        """Return the leader epoch of the record before the offset; -1 if it is not known."""
        return self.epochs.get(tp, -1)

    def is_at(self, other: StreamOffsets) -> bool:
        """Return whether nothing lies between the two. The same offset of a later epoch has other records before it."""
        return self.offsets == other.offsets and all(other.epoch(tp) in (-1, self.epoch(tp)) for tp in self.offsets)

    def topics(self) -> dict[str, TopicId]:
        """Return the id that each topic had."""
        return {tp.topic: tp.topic_id for tp in sorted(self.offsets)}

    def __iter__(self) -> Iterator[tuple[TopicIdPartition, int]]:
        for tp in sorted(self.offsets):
            yield tp, self.offsets[tp]

    def to_json(self, **more: float) -> dict[str, Any]:
        """Return the offsets as Spark stores them. `more` is for people to read."""
        found = _by_topic(self.offsets)
        ours: dict[str, Any] = {"store": self.store_id, "topics": self.topics(), **more}
        if self.epochs:
            ours["epochs"] = _by_topic(self.epochs)
        if self.origin is not None:
            ours["from"] = _by_topic(self.origin)
        found[OURS] = ours
        return found

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> StreamOffsets:
        """Parse what to_json made."""
        try:
            ours = data[OURS]
            ids = ours["topics"]
            offsets = {topic: numbers for topic, numbers in data.items() if topic != OURS}
            return StreamOffsets(
                str(ours["store"]),
                _by_partition(offsets, ids),
                _by_partition(ours.get("epochs", {}), ids),
                _by_partition(ours["from"], ids) if "from" in ours else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InvalidSetting(
                f"the checkpoint's offsets are not of format klamm: {json.dumps(data)[:120]}",
                hint="another source may have written it; a query with another source needs a checkpoint of its own",
            ) from None


def _by_topic(numbers: Mapping[TopicIdPartition, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for tp in sorted(numbers):
        found.setdefault(tp.topic, {})[str(tp.partition)] = numbers[tp]
    return found


def _by_partition(topics: Mapping[str, Mapping[str, Any]], ids: Mapping[str, TopicId]) -> dict[TopicIdPartition, int]:
    return {
        TopicIdPartition(topic, ids[topic], int(partition)): int(number)
        for topic, numbers in topics.items()
        for partition, number in numbers.items()
    }
