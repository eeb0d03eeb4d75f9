"""Settings of the store itself: a table like that of settings.py. klamm.db has the values that were set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from klamm.disk.locks import MAX_MEMBER_INDEX
from klamm.store.settings import SETTINGS, Setting, Settings, Value, known

__all__ = ["STORE_SETTINGS", "StoreSettings"]

_ROWS = [
    Setting("group.max.size", "int", 1000, "Maximum number of members of a group.", 1, MAX_MEMBER_INDEX),
    Setting(
        "lineage.retention.ms",
        "long",
        0,
        "Time, in milliseconds, for which `store.lineage` knows committed transactions; 0: none are kept.",
        0,
        (1 << 63) - 1,
    ),
    Setting(
        "producer.id.expiration.ms",
        "int",
        SETTINGS["producer.id.expiration.ms"].default,
        "Default of the topics' producer.id.expiration.ms.",
        1,
        (1 << 31) - 1,
    ),
]
STORE_SETTINGS: dict[str, Setting] = {row.name: row for row in _ROWS}


def _known(name: str) -> Setting:
    return known(name, STORE_SETTINGS, "a store has no such setting")


class StoreSettings:
    """The settings of one store."""

    def __init__(self, overridden: Mapping[str, Value] | None = None) -> None:
        self._overridden: dict[str, Value] = dict(overridden or {})

    @property
    def lineage_retention_ms(self) -> int:
        return int(self["lineage.retention.ms"])

    @property
    def group_max_size(self) -> int:
        return int(self["group.max.size"])

    def apply(self, settings: Settings) -> Settings:
        """Return the settings of a topic, with the store's values for settings that the topic does not set."""
        return settings.defaulted("producer.id.expiration.ms", int(self["producer.id.expiration.ms"]))

    def __getitem__(self, name: str) -> str:
        return str(self._overridden.get(name, _known(name).default))

    def changed(self, changes: Mapping[str, Value], resets: Iterable[str] = ()) -> StoreSettings:
        """Return these settings with `changes` applied and `resets` reset to their defaults."""
        if not isinstance(changes, Mapping):
            raise TypeError(f"settings are a mapping of names to values, not {type(changes).__name__}")
        values = dict(self._overridden)
        for name in resets:
            values.pop(_known(name).name, None)
        values.update({name: _known(name).parse(value) for name, value in changes.items()})
        return StoreSettings(values)

    def to_dict(self) -> dict[str, str]:
        """Return the values that were set, as strings."""
        return {name: str(value) for name, value in sorted(self._overridden.items())}

    def all(self) -> dict[str, str]:
        """Return every setting, defaults included."""
        return {name: self[name] for name in STORE_SETTINGS}
