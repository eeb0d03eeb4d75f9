"""Offsets as Spark keeps and spells them.

    startingOffsets, endingOffsets    "earliest", "latest", or JSON: {"orders": {"0": 23, "1": -2}}; -2 is the earliest,
                                      -1 the latest
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
]

EARLIEST = -2
LATEST = -1
OURS = "@klamm"

_EXAMPLE = 'want "earliest", "latest" or JSON such as {"orders": {"0": 23, "1": -2}}'


class TopicIdPartition(NamedTuple):
    """A partition of a topic; the topic's id is the one it had."""

    topic: str
    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True)
class Bound:
    """Where to begin, or to end: an offset (or EARLIEST, LATEST) for all partitions, for each, or a time."""

    option: str
    everywhere: int | None = None
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)
    timestamp_ms: int | None = None

    def check(self, places: Iterable[tuple[str, int]]) -> None:
        """That offsets are given for exactly these partitions, if they are given one by one."""
        if self.everywhere is not None or self.timestamp_ms is not None:
            return
        wanted = set(places)
        extra = sorted(self.offsets.keys() - wanted)
        missing = sorted(wanted - self.offsets.keys())
        if extra:
            raise InvalidSetting(
                f"{self.option}: names {_listed(extra)}, which is not subscribed to, or not there",
                hint="leave it out, or subscribe to it",
            )
        if missing:
            raise InvalidSetting(
                f"{self.option}: says nothing of {_listed(missing)}",
                hint="name every partition; -2 is its earliest offset, -1 its latest",
            )

    def at(self, place: TopicIdPartition) -> int:
        """The offset, EARLIEST or LATEST; only if it is no time."""
        if self.everywhere is not None:
            return self.everywhere
        return self.offsets[place.topic, place.partition]


def _listed(places: list[tuple[str, int]]) -> str:
    shown = ", ".join(f"{topic}/{number}" for topic, number in places[:3])
    return shown if len(places) <= 3 else f"{shown} and {len(places) - 3} more"


def parse_bound(text: str, option: str) -> Bound:
    """What startingOffsets or endingOffsets says."""
    word = text.strip()
    if word.lower() == "earliest":
        return Bound(option, EARLIEST)
    if word.lower() == "latest":
        return Bound(option, LATEST)
    return Bound(option, offsets=parse_offset_map(word, option))


def parse_offset_map(text: str, option: str) -> dict[tuple[str, int], int]:
    """{"orders": {"0": 23}}, by topic and partition."""
    found: dict[tuple[str, int], int] = {}
    for topic, numbers in _object(text, option).items():
        if topic == OURS:
            continue
        if not isinstance(numbers, dict):
            raise InvalidSetting(f"{option}: {topic!r} has no offsets by partition", hint=_EXAMPLE)
        for number, offset in numbers.items():
            if not number.isascii() or not number.isdigit():
                raise InvalidSetting(f"{option}: {topic}: {number!r} is no partition", hint=_EXAMPLE)
            if not isinstance(offset, int) or isinstance(offset, bool) or not EARLIEST <= offset < 1 << 63:
                raise InvalidSetting(f"{option}: {topic}/{number}: {offset!r} is no offset", hint=_EXAMPLE)
            found[topic, int(number)] = offset
    return found


def _object(text: str, option: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise InvalidSetting(f"{option}: {text[:60]!r} does not fit", hint=_EXAMPLE) from None
    if not isinstance(found, dict):
        raise InvalidSetting(f"{option}: {text[:60]!r} does not fit", hint=_EXAMPLE)
    return found


@dataclass(frozen=True)
class StreamOffsets:
    """How far a stream has come: what Spark keeps in its checkpoint and hands back to us."""

    store_id: str
    offsets: Mapping[TopicIdPartition, int]
    epochs: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    origin: Mapping[TopicIdPartition, int] | None = None
    """Where the micro-batch that ends here begins, if it is the query's first."""

    def get(self, place: TopicIdPartition) -> int | None:
        return self.offsets.get(place)

    def epoch(self, place: TopicIdPartition) -> int:
        """Return the leader epoch of the record before the offset; -1 if it is not known."""
        return self.epochs.get(place, -1)

    def is_at(self, other: StreamOffsets) -> bool:
        """Return whether nothing lies between the two. The same offset of a later epoch has other records before it."""
        return self.offsets == other.offsets and all(
            other.epoch(place) in (-1, self.epoch(place)) for place in self.offsets
        )

    def topics(self) -> dict[str, TopicId]:
        """The id that each topic had."""
        return {place.topic: place.topic_id for place in sorted(self.offsets)}

    def __iter__(self) -> Iterator[tuple[TopicIdPartition, int]]:
        for place in sorted(self.offsets):
            yield place, self.offsets[place]

    def to_json(self, **more: int) -> dict[str, Any]:
        """As Spark keeps it. `more` is for people to read."""
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
        """What to_json made."""
        try:
            ours = data[OURS]
            ids = ours["topics"]
            offsets = {topic: numbers for topic, numbers in data.items() if topic != OURS}
            return StreamOffsets(
                str(ours["store"]),
                _by_place(offsets, ids),
                _by_place(ours.get("epochs", {}), ids),
                _by_place(ours["from"], ids) if "from" in ours else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InvalidSetting(
                f"the checkpoint's offsets are not of format klamm: {json.dumps(data)[:120]}",
                hint="was it made by another source? a query with another source needs a checkpoint of its own",
            ) from None


def _by_topic(numbers: Mapping[TopicIdPartition, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for place in sorted(numbers):
        found.setdefault(place.topic, {})[str(place.partition)] = numbers[place]
    return found


def _by_place(topics: Mapping[str, Mapping[str, Any]], ids: Mapping[str, TopicId]) -> dict[TopicIdPartition, int]:
    return {
        TopicIdPartition(topic, ids[topic], int(partition)): int(number)
        for topic, numbers in topics.items()
        for partition, number in numbers.items()
    }
