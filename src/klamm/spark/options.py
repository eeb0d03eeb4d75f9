"""The options of format("klamm"), as text in and as values out; whatever does not fit is told in one sentence.

    path                  the store's directory; load(path) says it, too
    subscribe             topics, with commas between them            one of these three
    subscribePattern      a regular expression for topics' names
    assign                JSON: {"orders": [0, 1]}
    startingOffsets       earliest (a batch's default), latest (a stream's), or JSON: offsets.py
    endingOffsets         latest (default), or JSON; a batch's only
    startingTimestamp     milliseconds since 1970: the first record that is as young
    endingTimestamp       the same; a batch's only
    columns               which columns, with commas between them; Spark does not tell a Python source what it needs
    includeHeaders        true: have the column `headers`, too
    minPartitions         at least so many tasks, if the log can be split at batches
    maxOffsetsPerTrigger  at most so many offsets in a micro-batch, of all partitions together; a stream's only
    failOnDataLoss        true (default): records that are gone fail the query; false: go on with what is there
    isolation             read_committed (default), read_uncommitted
    groupId               a group that is to stand where the query does; a stream's only

Names are spelled as Spark's Kafka source spells them, and like all of Spark's in any case.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from klamm.arrow.schema import COLUMNS, chosen
from klamm.choices import Isolation
from klamm.errors import InvalidSetting
from klamm.log.reader import reads_committed
from klamm.spark.offsets import EARLIEST, LATEST, Bound, parse_bound
from klamm.store.groups import checked_name
from klamm.store.names import nearest

__all__ = ["SOURCE_OPTIONS", "ReadOptions", "Subscription", "boolean", "check_names", "directory_of", "whole_number"]

SOURCE_OPTIONS = (
    "path",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "columns",
    "includeHeaders",
    "minPartitions",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "isolation",
    "groupId",
)
_SUBSCRIBING = ("subscribe", "subscribePattern", "assign")
_OF_BATCHES = ("endingOffsets", "endingTimestamp")
_OF_STREAMS = ("maxOffsetsPerTrigger", "groupId")
_NO_HEADERS = tuple(name for name in COLUMNS if name != "headers")


@dataclass(frozen=True)
class Subscription:
    """Which topics: by name, by pattern, or some partitions of them."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None

    def wants(self, topic: str) -> bool:
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.names

    def partitions(self, topic: str, count: int) -> range | tuple[int, ...]:
        """Those of a topic that has `count`."""
        return range(count) if self.assigned is None else self.assigned[topic]


@dataclass(frozen=True)
class ReadOptions:
    """What a source was told."""

    path: str
    subscription: Subscription
    starting: Bound
    ending: Bound
    columns: tuple[str, ...]
    columns_given: bool
    min_partitions: int
    max_offsets: int | None
    fail_on_data_loss: bool
    isolation: Isolation
    group: str | None

    @property
    def committed(self) -> bool:
        return self.isolation == "read_committed"

    @staticmethod
    def parse(given: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
        """`streaming` None: it is not known yet whether a batch or a stream will read, so either may be meant."""
        options = check_names(given, SOURCE_OPTIONS)
        for name in _OF_BATCHES if streaming else _OF_STREAMS if streaming is False else ():
            if name in options:
                only = "batch" if streaming else "streaming"
                raise InvalidSetting(f"{name}: is for {only} queries only", hint="leave it out")
        isolation: Any = options.get("isolation", "read_committed").lower()
        reads_committed(isolation)
        group = options.get("groupId")
        with_headers = boolean(options, "includeHeaders", default=False)
        most = whole_number(options, "maxOffsetsPerTrigger")
        return ReadOptions(
            path=directory_of(options),
            subscription=_subscription(options),
            starting=_starting(options, streaming),
            ending=_ending(options),
            columns=_columns(options, with_headers=with_headers),
            columns_given="columns" in options,
            min_partitions=whole_number(options, "minPartitions") or 0,
            max_offsets=most,
            fail_on_data_loss=boolean(options, "failOnDataLoss", default=True),
            isolation=isolation,
            group=None if group is None else checked_name(group, "groupId"),
        )


def check_names(given: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """The options by the names they are known by; InvalidSetting, with the nearest name, for one that is not."""
    names = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in names:
            near = nearest(name.lower(), names)
            for lower, spelled in names.items():
                near = near and near.replace(repr(lower), repr(spelled))
            if name.lower().startswith("kafka."):
                near = 'options of Kafka clients are for format("kafka")'
            raise InvalidSetting(
                f"format klamm has no option {name!r}", hint=near or f"there are {', '.join(names.values())}"
            )
        found[names[name.lower()]] = value
    return found


def directory_of(options: Mapping[str, str]) -> str:
    """The store's directory, absolute: tasks may run elsewhere."""
    path = options.get("path", "").strip()
    if not path:
        raise InvalidSetting("the option path is missing", hint="the directory of the store: .load('events/')")
    local = re.match(r"file:(?://(?=/))?(/.*)", path)
    if local:
        path = local[1]
    elif re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path):
        raise InvalidSetting(
            f"path: {path!r} is not a directory", hint='what listens on a port is read with format("kafka")'
        )
    return os.path.abspath(path)


def boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name)
    if value is None:
        return default
    if value.strip().lower() not in ("true", "false"):
        raise InvalidSetting(f"{name}: {value!r} does not fit", hint="want true or false")
    return value.strip().lower() == "true"


def whole_number(options: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if not least <= number < 1 << 63:
        raise InvalidSetting(f"{name}: {value!r} does not fit", hint=f"want a whole number from {least} on")
    return number


def _columns(options: Mapping[str, str], *, with_headers: bool) -> tuple[str, ...]:
    text = options.get("columns")
    if text is None:
        return COLUMNS if with_headers else _NO_HEADERS
    lower = {name.lower(): name for name in COLUMNS}
    names = [name.strip() for name in text.split(",") if name.strip()]
    found = chosen([lower.get(name.lower(), name) for name in names])
    return (*found, "headers") if with_headers and "headers" not in found else found


def _subscription(options: Mapping[str, str]) -> Subscription:
    given = [name for name in _SUBSCRIBING if name in options]
    if len(given) != 1:
        what = " and ".join(given) + " are both given" if given else "nothing says which topics to read"
        raise InvalidSetting(what, hint="give one of subscribe, subscribePattern and assign")
    text = options[given[0]]
    if given[0] == "subscribe":
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not names:
            raise InvalidSetting(f"subscribe: {text!r} names no topic")
        return Subscription(names)
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise InvalidSetting(f"subscribePattern: {text!r} is no regular expression: {error}") from None
        if not text.strip():
            raise InvalidSetting("subscribePattern: is empty")
        return Subscription(pattern=text)
    assigned = _assigned(text)
    return Subscription(tuple(assigned), assigned=assigned)


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    wrong = InvalidSetting(f"assign: {text[:60]!r} does not fit", hint='want JSON such as {"orders": [0, 1]}')
    try:
        found: Any = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict) or not found:
        raise wrong
    for numbers in found.values():
        if not isinstance(numbers, list) or not numbers:
            raise wrong
        if any(not isinstance(number, int) or isinstance(number, bool) or number < 0 for number in numbers):
            raise wrong
    return {topic: tuple(sorted(set(numbers))) for topic, numbers in found.items()}


def _bound(options: Mapping[str, str], offsets: str, timestamp: str) -> Bound | None:
    if offsets in options and timestamp in options:
        raise InvalidSetting(f"{offsets} and {timestamp} are both given", hint="give one")
    if timestamp in options:
        return Bound(timestamp, timestamp_ms=whole_number(options, timestamp, least=0))
    return parse_bound(options[offsets], offsets) if offsets in options else None


def _starting(options: Mapping[str, str], streaming: bool | None) -> Bound:
    bound = _bound(options, "startingOffsets", "startingTimestamp")
    if bound is None:
        return Bound("startingOffsets", LATEST if streaming else EARLIEST)
    if streaming is False and (bound.everywhere == LATEST or LATEST in bound.offsets.values()):
        raise InvalidSetting("startingOffsets: a batch cannot start at the latest offset", hint="nothing is there yet")
    return bound


def _ending(options: Mapping[str, str]) -> Bound:
    bound = _bound(options, "endingOffsets", "endingTimestamp")
    if bound is None:
        return Bound("endingOffsets", LATEST)
    if bound.everywhere == EARLIEST or EARLIEST in bound.offsets.values():
        raise InvalidSetting("endingOffsets: a batch cannot end at the earliest offset", hint="nothing is before it")
    return bound
