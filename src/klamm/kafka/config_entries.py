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

__all__ = [
    "FIXED_TOPIC_CONFIGS",
    "STATIC_NAMES",
    "Entry",
    "FixedConfig",
    "Source",
    "is_list",
    "of_broker",
    "of_topic",
    "supported",
]

_INT64 = 2**63 - 1
_TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7}
_LISTS = frozenset({"cleanup.policy"})


class Source:
    """The source of a value; Kafka's numbers."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class FixedConfig(NamedTuple):
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
        """Return whether setting it to `value` has the effect that Kafka promises."""
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
_FIXED_TOPIC_CONFIGS = [
    FixedConfig("file.delete.delay.ms", "long", "0", "Files of deleted segments go at once.", 0),
    FixedConfig("flush.messages", "long", str(_INT64), "The producer decides when a record is on disk: acks=all."),
    FixedConfig("flush.ms", "long", str(_INT64), "The producer decides when a record is on disk: acks=all."),
    FixedConfig("follower.replication.throttled.replicas", "list", "", "There are no followers.", is_free=True),
    FixedConfig("leader.replication.throttled.replicas", "list", "", "There are no followers.", is_free=True),
    FixedConfig("local.retention.bytes", "long", "-2", "All is local: retention.bytes says how much is kept."),
    FixedConfig("local.retention.ms", "long", "-2", "All is local: retention.ms says how long it is kept."),
    FixedConfig("min.insync.replicas", "int", "1", "There is one copy of each record, and acks=all means on disk.", 1),
    FixedConfig("preallocate", "boolean", "false", "A segment's blocks are allocated some at a time.", is_free=True),
    FixedConfig("remote.log.copy.disable", "boolean", "false", "There is no remote storage."),
    FixedConfig("remote.log.delete.on.disable", "boolean", "false", "There is no remote storage."),
    FixedConfig("remote.storage.enable", "boolean", "false", "There is no remote storage."),
    FixedConfig("segment.index.bytes", "int", "10485760", "An index is as large as it needs to be.", 4),
    FixedConfig("segment.jitter.ms", "long", "0", "Segments are closed when segment.ms says so, not earlier.", 0),
    FixedConfig("unclean.leader.election.enable", "boolean", "false", "There is one copy: elections lose nothing.",
        is_free=True),
]
# fmt: on
FIXED_TOPIC_CONFIGS: dict[str, FixedConfig] = {fixed_config.name: fixed_config for fixed_config in _FIXED_TOPIC_CONFIGS}
"""By name."""

# What Kafka calls some settings of a server, and what its tools like to know besides.
_KAFKA_NAMES = {"node-id": "node.id", "default-partitions": "num.partitions"}
_FIXED_BROKER_CONFIGS = [
    FixedConfig("default.replication.factor", "int", "1", "There is one copy of each record."),
]
STATIC_NAMES: frozenset[str] = frozenset(
    [_KAFKA_NAMES.get(name, name) for name in SERVER_SETTINGS]
    + [*SERVER_SETTINGS, *(fixed_config.name for fixed_config in _FIXED_BROKER_CONFIGS), "broker.id", "log.dirs"]
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
    """Return whether words can be added to the value, and removed from it."""
    return name in _LISTS


@lru_cache(256)
def of_topic(settings: Settings) -> tuple[Entry, ...]:
    """Return every setting of a topic, by name."""
    entries = [_entry(row, settings[row.name], row.name in settings.overridden) for row in SETTINGS.values()]
    entries += map(_fixed_entry, FIXED_TOPIC_CONFIGS.values())
    return tuple(sorted(entries))


def _entry(row: Setting, value: str, is_set: bool, source: int = Source.DYNAMIC_TOPIC) -> Entry:
    kind = "list" if is_list(row.name) else row.type
    synonyms = [(row.name, str(row.default), Source.DEFAULT)]
    if is_set:
        synonyms.insert(0, (row.name, value, source))
    elif value != str(row.default):  # the store's
        synonyms.insert(0, (row.name, value, Source.DYNAMIC_BROKER))
    return Entry(row.name, _TYPES[kind], value, synonyms[0][2], False, row.doc, tuple(synonyms))


def _fixed_entry(fixed_config: FixedConfig) -> Entry:
    default = (fixed_config.name, fixed_config.value, Source.DEFAULT)
    return Entry(
        fixed_config.name,
        _TYPES[fixed_config.type],
        fixed_config.value,
        Source.DEFAULT,
        True,
        fixed_config.doc,
        (default,),
    )


def of_broker(settings: ServerSettings, store: StoreSettings, directory: str) -> tuple[Entry, ...]:
    """Return every setting of a server and its store, by name."""
    entries = [
        _entry(row, store[name], name in store.to_dict(), Source.DYNAMIC_BROKER) for name, row in STORE_SETTINGS.items()
    ]
    entries += _of_server(settings)
    entries += map(_fixed_entry, _FIXED_BROKER_CONFIGS)
    node = str(settings.node_id)
    entries += map(_fixed_entry, [FixedConfig("broker.id", "int", node, SERVER_SETTINGS["node-id"].doc)])
    entries += map(_fixed_entry, [FixedConfig("log.dirs", "string", directory, "The directory of the store.")])
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
    """Return the requested settings that have to be set; the others are fixed at that value, or rejected."""
    for name, value in wanted.items():
        fixed_config = FIXED_TOPIC_CONFIGS.get(name)
        if fixed_config is not None and not fixed_config.says(value):
            raise InvalidSetting(
                f"{name}: fixed at {fixed_config.value!r}, cannot be set to {value!r}", hint=fixed_config.doc
            )
    return {name: value for name, value in wanted.items() if name not in FIXED_TOPIC_CONFIGS}
