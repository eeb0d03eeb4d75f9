"""The options of format("klamm"), as text in and as values out; an invalid one raises an error of one sentence.

    path                  the store's directory, or klamm://host:9092; load(path) says it, too
    server                host:9092, in the place of path; what follows is for a server: server/address.py
    security.protocol     PLAINTEXT (default), SSL, SASL_PLAINTEXT, SASL_SSL
    sasl.mechanism        PLAIN, SCRAM-SHA-256, SCRAM-SHA-512
    sasl.username         with sasl.mechanism
    sasl.password         with sasl.mechanism
    ssl.ca.location       certificates to trust
    ssl.certificate.location  of the client
    ssl.key.location      of the client's certificate
    ssl.key.password      of an encrypted key
    ssl.endpoint.identification.algorithm  https (default), none
    subscribe             topics, with commas between them            one of these three
    subscribePattern      a regular expression for topics' names
    assign                JSON: {"orders": [0, 1]}
    startingOffsets       earliest (a batch's default), latest (a stream's), or JSON: offsets.py
    endingOffsets         latest (default), or JSON; a batch's only
    startingTimestamp     milliseconds since 1970: the first record at or after that time
    endingTimestamp       the same; a batch's only
    startingOffsetsByTimestamp  the same for each partition, as JSON: {"orders": {"0": 1700000000000}}
    endingOffsetsByTimestamp  the same; a batch's only
    startingOffsetsByTimestampStrategy  if a partition has no record at or after its time: error (default), or latest
    columns               which columns, with commas between them; a Python source cannot know which Spark needs
    includeHeaders        true: have the column `headers`, too
    minPartitions         at least so many tasks, if the log can be split at batches
    maxRecordsPerPartition  at most so many offsets in a task
    maxOffsetsPerTrigger  at most so many offsets in a micro-batch, of all partitions together; a stream's only
    minOffsetsPerTrigger  no micro-batch of fewer offsets, unless maxTriggerDelay has passed since the last one
    maxTriggerDelay       15m (default), 90s, 1h30m, or milliseconds
    failOnDataLoss        true (default): records that are gone fail the query; false: go on with what is there
    isolation             read_committed (default), read_uncommitted
    groupId               a group that is to stand where the query does; a stream's only

Names are spelled as Spark's Kafka source spells them, and like all of Spark's in any case.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from klamm.arrow.schema import COLUMNS, chosen
from klamm.choices import Isolation
from klamm.errors import InvalidSetting
from klamm.log.reader import reads_committed
from klamm.spark.checkpoint import local_path
from klamm.spark.offsets import EARLIEST, LATEST, Bound, parse_bound, parse_times
from klamm.spark.option_names import SINK_OPTIONS, SOURCE_OPTIONS, check_names
from klamm.spark.server.address import SECURITY_OPTIONS, SERVER, ServerAddress
from klamm.store.groups import checked_name
from klamm.times import parse_duration

__all__ = ["ReadOptions", "Subscription", "boolean", "choice", "store_of", "whole_number"]

_STRATEGY = "startingOffsetsByTimestampStrategy"
_SUBSCRIBING = ("subscribe", "subscribePattern", "assign")
_OF_BATCHES = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_OF_STREAMS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupId")
_TRIGGER_DELAY_MS = 15 * 60 * 1000
_NO_HEADERS = tuple(name for name in COLUMNS if name != "headers")


@dataclass(frozen=True)
class Subscription:
    """The topics to read: by name, by pattern, or some partitions of them."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None

    def wants(self, topic: str) -> bool:
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.names

    def partitions(self, topic: str, count: int) -> range | tuple[int, ...]:
        """Return the partitions to read of a topic that has `count`."""
        return range(count) if self.assigned is None else self.assigned[topic]


@dataclass(frozen=True)
class ReadOptions:
    """The options of a source."""

    path: str
    """The store's directory, or how errors call the server."""
    server: ServerAddress | None
    """The server; None: the store's files are read."""
    subscription: Subscription
    starting: Bound
    ending: Bound
    columns: tuple[str, ...]
    columns_given: bool
    min_partitions: int
    max_records: int | None
    """In a task."""
    max_offsets: int | None
    min_offsets: int | None
    """A micro-batch waits until there are so many, but no longer than:"""
    trigger_delay_s: float
    fail_on_data_loss: bool
    isolation: Isolation
    group: str | None

    @property
    def committed(self) -> bool:
        return self.isolation == "read_committed"

    @staticmethod
    def parse(given: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
        """Parse the options. `streaming` None: a batch or a stream may read, so either may be meant."""
        options = check_names(given, SOURCE_OPTIONS, other=SINK_OPTIONS)
        for name in _OF_BATCHES if streaming else _OF_STREAMS if streaming is False else ():
            if name in options:
                only = "batch" if streaming else "streaming"
                raise InvalidSetting(f"{name}: is for {only} queries only", hint="leave it out")
        isolation: Any = options.get("isolation", "read_committed").lower()
        reads_committed(isolation)
        group = options.get("groupId")
        with_headers = boolean(options, "includeHeaders", default=False)
        most, least = whole_number(options, "maxOffsetsPerTrigger"), whole_number(options, "minOffsetsPerTrigger")
        if most is not None and least is not None and least > most:
            raise InvalidSetting(
                f"minOffsetsPerTrigger: {least} is more than maxOffsetsPerTrigger, {most}", hint="make it smaller"
            )
        path, server = store_of(options)
        return ReadOptions(
            path=path,
            server=server,
            subscription=_subscription(options),
            starting=_starting(options, streaming),
            ending=_ending(options),
            columns=_columns(options, with_headers=with_headers),
            columns_given="columns" in options,
            min_partitions=whole_number(options, "minPartitions") or 0,
            max_records=whole_number(options, "maxRecordsPerPartition"),
            max_offsets=most,
            min_offsets=least,
            trigger_delay_s=_trigger_delay_s(options),
            fail_on_data_loss=boolean(options, "failOnDataLoss", default=True),
            isolation=isolation,
            group=None if group is None else checked_name(group, "groupId"),
        )


def store_of(options: Mapping[str, str]) -> tuple[str, ServerAddress | None]:
    """Return the store's directory, absolute, as tasks may run elsewhere; or the name and the address of its server."""
    path = options.get("path", "").strip()
    hosts = re.fullmatch(r"klamm://(.*?)/?", path)
    if SERVER in options or hosts is not None:
        if SERVER in options and path:
            raise InvalidSetting("path and server are both given", hint="give one of them")
        address = ServerAddress.parse({SERVER: hosts[1] if hosts else "", **options})
        return str(address), address
    for name in SECURITY_OPTIONS:
        if name in options:
            raise InvalidSetting(f"{name}: is for a server", hint="give the option server, or a path klamm://host:9092")
    return _directory(path), None


def _directory(path: str) -> str:
    if not path:
        hint = (
            "the directory of the store: .load('events/'); an INSERT names columns: INSERT INTO orders (key, value) …"
        )
        raise InvalidSetting("the option path is missing", hint=hint)
    if re.match(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*://", path):
        raise InvalidSetting(
            f"path: {path!r} is not a directory", hint='what listens on a port is read with format("kafka")'
        )
    return local_path(path) or os.path.abspath(path)


def choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """Return which of the `choices`, the first of which is the default, an option is."""
    text = options.get(name, choices[0])
    if text.strip().lower() not in choices:
        raise InvalidSetting(f"{name}: {text!r} is invalid", hint=f"expected {' or '.join(choices)}")
    return text.strip().lower()


def boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    return choice(options, name, ("true", "false") if default else ("false", "true")) == "true"


def whole_number(options: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if not least <= number < 1 << 63:
        raise InvalidSetting(f"{name}: {value!r} is invalid", hint=f"expected a whole number from {least} on")
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
            raise InvalidSetting(f"subscribePattern: {text!r} is not a regular expression: {error}") from None
        if not text.strip():
            raise InvalidSetting("subscribePattern: is empty")
        return Subscription(pattern=text)
    assigned = _assigned(text)
    return Subscription(tuple(assigned), assigned=assigned)


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    wrong = InvalidSetting(f"assign: {text[:60]!r} is invalid", hint='expected JSON such as {"orders": [0, 1]}')
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


def _trigger_delay_s(options: Mapping[str, str]) -> float:
    text = options.get("maxTriggerDelay")
    if text is None:
        return _TRIGGER_DELAY_MS / 1000
    word = text.strip().lower().replace("min", "m")
    milliseconds = int(word) if word.isascii() and word.isdigit() else parse_duration(word)
    if milliseconds is None:
        raise InvalidSetting(f"maxTriggerDelay: {text!r} is invalid", hint="expected 90s, 15m, 1h30m, or milliseconds")
    if "minOffsetsPerTrigger" not in options:
        raise InvalidSetting("maxTriggerDelay: is for minOffsetsPerTrigger", hint="give both, or neither")
    return milliseconds / 1000


def _bound(options: Mapping[str, str], offsets: str, timestamp: str, by_timestamp: str) -> Bound | None:
    given = [name for name in (offsets, timestamp, by_timestamp) if name in options]
    if len(given) > 1:
        raise InvalidSetting(f"{given[0]} and {given[1]} are both given", hint="give one")
    if timestamp in options:
        return Bound(timestamp, timestamp_ms=whole_number(options, timestamp, least=0))
    if by_timestamp in options:
        return parse_times(options[by_timestamp], by_timestamp)
    return parse_bound(options[offsets], offsets) if offsets in options else None


def _starting(options: Mapping[str, str], streaming: bool | None) -> Bound:
    bound = _bound(options, "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
    needs_record = choice(options, _STRATEGY, ("error", "latest")) == "error"
    if bound is None:
        return Bound("startingOffsets", LATEST if streaming else EARLIEST)
    if bound.timestamp_ms is not None or bound.timestamps_ms:
        return replace(bound, needs_record=needs_record)
    if streaming is False and (bound.everywhere == LATEST or LATEST in bound.offsets.values()):
        raise InvalidSetting("startingOffsets: a batch cannot start at the latest offset", hint="nothing is there yet")
    return bound


def _ending(options: Mapping[str, str]) -> Bound:
    bound = _bound(options, "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    if bound is None:
        return Bound("endingOffsets", LATEST)
    if bound.everywhere == EARLIEST or EARLIEST in bound.offsets.values():
        raise InvalidSetting("endingOffsets: a batch cannot end at the earliest offset", hint="nothing is before it")
    return bound
