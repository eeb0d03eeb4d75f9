"""Settings as Kafka's tools show them and take them: those that Klamm honours, and those that it need not.

Kafka has settings that Klamm has not, for there is nothing here to set: one copy of each record, no tiered storage, no
down-conversion. Tools set some of them all the same. What such a setting says here is written down once, below, in
TOPIC_FACTS: it is shown as a setting that cannot be changed, and one who sets it to just that is not refused. Any other
value is refused: what we take, we do. Some may be set to any value of their type, as a replication factor may, for they
ask for nothing that is not so: they are about copies that there are none of, or allow what is never done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from klamm.errors import InvalidSetting
from klamm.kafka.settings import SERVER_SETTINGS
from klamm.store.settings import SETTINGS, Setting, Settings
from klamm.store.store_settings import STORE_SETTINGS, StoreSettings

if TYPE_CHECKING:
    from klamm.kafka.settings import ServerSettings

__all__ = ["STATIC_NAMES", "TOPIC_FACTS", "Entry", "Fact", "Source", "is_list", "of_broker", "of_topic", "supported"]

_INT64 = 2**63 - 1
_TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7}
_LISTS = frozenset({"cleanup.policy"})


class Source:
    """Where a value comes from; Kafka's numbers."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class Fact(NamedTuple):
    """A setting of Kafka's that has one value here."""

    name: str
    type: str
    value: str
    doc: str
    least: int | None = None
    """Any number from here on is fine: it asks for less than there is."""
    is_free: bool = False
    """Any value of its type is fine: there is nothing that it would change."""

    def says(self, value: str) -> bool:
        """Whether somebody who sets it to `value` gets what he wants."""
        if self.least is not None:
            return value.strip().isdecimal() and int(value) >= self.least
        if self.is_free:
            return self.type != "boolean" or value.strip().lower() in ("true", "false")
        if self.type in ("int", "long"):
            try:
                return int(value) == int(self.value)
            except ValueError:
                return False
        return value.strip().lower() == self.value


# fmt: off
_TOPIC_FACTS = [
    Fact("file.delete.delay.ms", "long", "0", "Files of deleted segments go at once.", 0),
    Fact("flush.messages", "long", str(_INT64), "When a record is on disk is for its producer to say: acks=all."),
    Fact("flush.ms", "long", str(_INT64), "When a record is on disk is for its producer to say: acks=all."),
    Fact("follower.replication.throttled.replicas", "list", "", "There are no followers.", is_free=True),
    Fact("leader.replication.throttled.replicas", "list", "", "There are no followers.", is_free=True),
    Fact("local.retention.bytes", "long", "-2", "All is local: retention.bytes says how much is kept."),
    Fact("local.retention.ms", "long", "-2", "All is local: retention.ms says how long it is kept."),
    Fact("min.insync.replicas", "int", "1", "There is one copy of each record, and acks=all means on disk.", 1),
    Fact("preallocate", "boolean", "false", "A segment's blocks are allocated some at a time.", is_free=True),
    Fact("remote.log.copy.disable", "boolean", "false", "There is no remote storage."),
    Fact("remote.log.delete.on.disable", "boolean", "false", "There is no remote storage."),
    Fact("remote.storage.enable", "boolean", "false", "There is no remote storage."),
    Fact("segment.index.bytes", "int", "10485760", "An index is as large as it needs to be.", 4),
    Fact("segment.jitter.ms", "long", "0", "Segments are closed when segment.ms says so, not earlier.", 0),
    Fact("unclean.leader.election.enable", "boolean", "false", "There is one copy, so nothing is lost by elections.",
        is_free=True),
]
# fmt: on
TOPIC_FACTS: dict[str, Fact] = {fact.name: fact for fact in _TOPIC_FACTS}
"""By name."""

# What Kafka calls some settings of a server, and what its tools like to know besides.
_KAFKA_NAMES = {"node-id": "node.id", "default-partitions": "num.partitions"}
_BROKER_FACTS = [
    Fact("default.replication.factor", "int", "1", "There is one copy of each record."),
]
STATIC_NAMES: frozenset[str] = frozenset(
    [_KAFKA_NAMES.get(name, name) for name in SERVER_SETTINGS]
    + [*SERVER_SETTINGS, *(fact.name for fact in _BROKER_FACTS), "broker.id", "log.dirs"]
)
"""Of a broker, and not to be changed while it runs."""


class Entry(NamedTuple):
    """A setting as it is shown. `synonyms`: name, value and source, the one that counts first."""

    name: str
    type: int
    value: str
    source: int
    read_only: bool
    doc: str
    synonyms: tuple[tuple[str, str, int], ...]


def is_list(name: str) -> bool:
    """Whether words can be added to the value, and taken out of it."""
    return name in _LISTS


@lru_cache(256)
def of_topic(settings: Settings) -> tuple[Entry, ...]:
    """Every setting of a topic, by name."""
    entries = [_entry(row, settings[row.name], row.name in settings.overridden) for row in SETTINGS.values()]
    entries += map(_of_fact, TOPIC_FACTS.values())
    return tuple(sorted(entries))


def _entry(row: Setting, value: str, is_set: bool, source: int = Source.DYNAMIC_TOPIC) -> Entry:
    kind = "list" if is_list(row.name) else row.type
    synonyms = [(row.name, str(row.default), Source.DEFAULT)]
    if is_set:
        synonyms.insert(0, (row.name, value, source))
    elif value != str(row.default):  # the store's
        synonyms.insert(0, (row.name, value, Source.DYNAMIC_BROKER))
    return Entry(row.name, _TYPES[kind], value, synonyms[0][2], False, row.doc, tuple(synonyms))


def _of_fact(fact: Fact) -> Entry:
    default = (fact.name, fact.value, Source.DEFAULT)
    return Entry(fact.name, _TYPES[fact.type], fact.value, Source.DEFAULT, True, fact.doc, (default,))


def of_broker(settings: ServerSettings, store: StoreSettings, directory: str) -> tuple[Entry, ...]:
    """Every setting of a server and its store, by name."""
    entries = [
        _entry(row, store[name], name in store.to_dict(), Source.DYNAMIC_BROKER) for name, row in STORE_SETTINGS.items()
    ]
    entries += _of_server(settings)
    entries += map(_of_fact, _BROKER_FACTS)
    node = str(settings.node_id)
    entries += map(_of_fact, [Fact("broker.id", "int", node, SERVER_SETTINGS["node-id"].doc)])
    entries += map(_of_fact, [Fact("log.dirs", "string", directory, "The directory of the store.")])
    return tuple(sorted(entries))


def _of_server(settings: ServerSettings) -> Iterator[Entry]:
    for name, row in SERVER_SETTINGS.items():
        value, default = settings[name], str(row.default)
        synonyms = [(name, default, Source.DEFAULT)]
        if value != default:
            synonyms.insert(0, (name, value, Source.STATIC_BROKER))
        shown = _KAFKA_NAMES.get(name, name)
        yield Entry(shown, _TYPES[row.type], value, synonyms[0][2], True, row.doc, tuple(synonyms))


def supported(wanted: Mapping[str, str]) -> dict[str, str]:
    """What of the settings that somebody wants a topic to have is to be set; the rest is so anyway, or refused."""
    for name, value in wanted.items():
        fact = TOPIC_FACTS.get(name)
        if fact is not None and not fact.says(value):
            raise InvalidSetting(f"{name}: is {fact.value!r} here and cannot be {value!r}", hint=fact.doc)
    return {name: value for name, value in wanted.items() if name not in TOPIC_FACTS}
