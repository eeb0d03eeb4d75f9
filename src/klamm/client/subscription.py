"""A subscription: the partitions that a consumer reads.

    "orders"                           a topic, with all of its partitions, also those that are added later
    ["orders", "users"]                several
    {"orders": [0, 2], "users": [1]}   these partitions and no others; partitions=[0, 2] says the same for one topic
    re.compile("orders-.*")            every topic whose whole name matches, also those that are created later;
                                       pattern="orders-.*" says the same. Topics of Klamm's own (`__…`) never match

A topic that was named and is deleted is UnknownTopic; one that only matched is read no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from klamm.errors import InvalidSetting, UnknownTopic
from klamm.store.names import RESERVED, check_type
from klamm.types import TopicId, TopicPartition

if TYPE_CHECKING:
    from klamm.log.partition import Partition
    from klamm.store.directory import Core, OpenTopic

__all__ = ["Subscription", "TopicSelection", "open_partitions", "wanted_of"]

TopicSelection: TypeAlias = str | re.Pattern[str] | Iterable[str] | Mapping[str, Iterable[int]]

_WHICH = 'name the topics to read: "orders", ["orders", "users"], or pattern="orders-.*"'


class Subscription:
    """Names, or a pattern."""

    def __init__(
        self, topics: TopicSelection | None, pattern: str | re.Pattern[str] | None, partitions: Iterable[int] | None
    ) -> None:
        if isinstance(topics, re.Pattern):
            topics, pattern = None, topics
        if topics is None and pattern is None:
            raise InvalidSetting("consumer(): no topics are given", hint=_WHICH)
        if topics is not None and pattern is not None:
            raise InvalidSetting("consumer(): topics and pattern are both given", hint="give one of them")
        self._pattern = re.compile(pattern) if pattern is not None else None
        self._named: dict[str, list[int] | None] = {}
        self._ids: dict[str, TopicId] = {}  # of the topics that were named, so that a re-created one is noticed
        if isinstance(topics, str):
            self._named[topics] = None if partitions is None else _numbers(partitions)
        elif partitions is not None:
            raise InvalidSetting("partitions: goes with one topic", hint="expected {topic: [partition, …]} for several")
        elif isinstance(topics, Mapping):
            self._named = {name: _numbers(numbers) for name, numbers in topics.items()}
        elif topics is not None:
            self._named = dict.fromkeys(_names(topics))
        if self._pattern is None and not self._named:
            raise InvalidSetting("consumer(): the list of topics is empty", hint=_WHICH)

    def spelled(self) -> dict[str, Any]:
        """Return the subscription as JSON takes it, for the other members of a group. `wanted_of` reads it."""
        if self._pattern is not None:
            return {"pattern": self._pattern.pattern, "flags": self._pattern.flags}
        return {"topics": self._named}

    def partitions(self, core: Core) -> dict[TopicPartition, Partition]:
        """Return the subscribed partitions, as the catalog has them now."""
        if self._pattern is not None:
            matching = self._pattern.fullmatch
            known = [each.name for each in core.catalog.topics()]
            names = [name for name in known if matching(name) and not name.startswith(RESERVED)]
            return _all_of([core.topic(name) for name in names])
        found: dict[TopicPartition, Partition] = {}
        for name, numbers in self._named.items():
            opened = core.topic(name)
            if self._ids.setdefault(name, opened.topic.id) != opened.topic.id:
                raise UnknownTopic(f"{name}: the topic was deleted, and another made with its name")
            if numbers is None:
                found.update(_all_of([opened]))
            else:
                found.update({TopicPartition(name, number): opened.partition(number) for number in numbers})
        return found


def open_partitions(
    core: Core, names: Iterable[tuple[str, int]], *, skip_unknown: bool = False
) -> dict[TopicPartition, Partition]:
    """Open partitions; each topic is looked up once, however many of its partitions are wanted.

    `skip_unknown`: leave out those that are not there any more, instead of raising UnknownTopic.
    """
    wanted = [TopicPartition(*name) for name in names]
    ignored = (UnknownTopic,) if skip_unknown else ()
    topics: dict[str, OpenTopic] = {}
    for topic in {name.topic for name in wanted}:
        with suppress(*ignored):
            topics[topic] = core.topic(topic)
    found: dict[TopicPartition, Partition] = {}
    for name in wanted:
        if name.topic in topics:
            with suppress(*ignored):
                found[name] = topics[name.topic].partition(name.partition)
    return found


def wanted_of(spelled: Any, topics: Iterable[str]) -> dict[str, list[int] | None]:
    """Return the part of `topics` that a subscription from `spelled` covers: all partitions (None), or those named."""
    if "pattern" in spelled:
        matching = re.compile(spelled["pattern"], spelled["flags"]).fullmatch
        return {name: None for name in topics if matching(name) and not name.startswith(RESERVED)}
    named = spelled["topics"]
    return {name: named[name] for name in topics if name in named}


def _all_of(topics: list[OpenTopic]) -> dict[TopicPartition, Partition]:
    return {
        TopicPartition(each.name, number): each.partition(number) for each in topics for number in range(each.count)
    }


def _names(topics: Any) -> list[str]:
    if isinstance(topics, bytes) or not isinstance(topics, Iterable):
        raise TypeError(f"topics are a name, several, or {{name: partitions}}, not {type(topics).__name__}")
    return [check_type(name) for name in topics]


def _numbers(partitions: Any) -> list[int]:
    numbers = [partitions] if isinstance(partitions, int) else list(partitions)
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"a partition is an int, not {type(number).__name__}")
    return sorted(set(numbers))
