"""Settings of a topic: Kafka's names and defaults, of the settings that Klamm supports.

The class below is the table: one line a setting, with its name, default, range and meaning. A topic stores only what
was set (`to_dict`), as strings, as Kafka's tools show and take them. A setting in milliseconds (`….ms`) also takes a
duration: "7d", "1h30m" or a timedelta.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, NamedTuple

from klamm.errors import InvalidSetting
from klamm.store.names import nearest
from klamm.times import MILLISECOND, parse_duration

__all__ = ["SETTINGS", "Setting", "Settings", "Value", "known", "named_settings"]

Value = str | int | float | timedelta

_INT32 = 2**31 - 1
_INT64 = 2**63 - 1
_HOUR_MS = 60 * 60 * 1000
_DAY_MS = 24 * _HOUR_MS
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_FRACTION = re.compile(r"[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,3})?")


class Setting(NamedTuple):
    """One row of the table. Numbers lie in low..high, or are -1 where that means "no limit"; words are of `choices`."""

    name: str
    type: str  # "int", "long", "double" or "string", as Kafka's tools say it
    default: Value
    doc: str
    low: int = 0
    high: int = 0
    unlimited: bool = False
    choices: tuple[str, ...] = ()

    @property
    def valid(self) -> str:
        """What fits, in words."""
        if self.choices:
            return " or ".join(repr(choice) for choice in self.choices)
        if self.type == "double":
            return f"a number from {self.low} to {self.high}"
        unit, duration = (" of milliseconds", ", a duration such as '90s' or '7d'") if self.is_duration else ("", "")
        meaning = "the default" if self.name.endswith(".level") else "no limit"
        unlimited = f", or -1: {meaning}" if self.unlimited else ""
        return f"a whole number{unit} from {self.low} to {self.high}{duration}{unlimited}"

    @property
    def is_duration(self) -> bool:
        """Whether it is in milliseconds."""
        return self.name.endswith(".ms")

    def parse(self, value: object) -> Value:
        """Return the typed value of `text`. Raise InvalidSetting if it is invalid."""
        if self.choices:
            if not isinstance(value, str):
                raise self._refuse(value)
            word = ",".join(part.strip() for part in value.split(","))
            if word not in self.choices:
                raise self._refuse(value)
            return word
        if self.type == "double":
            return self._parse_fraction(value)
        number = self._whole_number(value)
        if number is None or not (self.low <= number <= self.high or (self.unlimited and number == -1)):
            raise self._refuse(value)
        return number

    def _whole_number(self, value: object) -> int | None:
        if isinstance(value, str):
            text = value.strip()
            if _WHOLE_NUMBER.fullmatch(text):
                return int(text)
            return parse_duration(text) if self.is_duration else None
        if isinstance(value, timedelta):
            return value // MILLISECOND if self.is_duration and value >= timedelta() else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def _parse_fraction(self, value: object) -> float:
        if isinstance(value, str) and _FRACTION.fullmatch(value.strip()):
            value = float(value)
        if not isinstance(value, int | float) or isinstance(value, bool) or not self.low <= value <= self.high:
            raise self._refuse(value)
        return float(value)

    def _refuse(self, value: object) -> InvalidSetting:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:59] + "…"
        return InvalidSetting(f"{shown} is invalid", setting=self.name, hint=f"expected {self.valid}")


def _number(name: str, default: int, low: int, high: int, *, unlimited: bool = False, doc: str) -> Any:
    kind = "int" if high <= _INT32 else "long"
    return field(default=default, metadata={"setting": Setting(name, kind, default, doc, low, high, unlimited)})


def _fraction(name: str, default: float, *, doc: str) -> Any:
    return field(default=default, metadata={"setting": Setting(name, "double", default, doc, 0, 1)})


def _word(name: str, *choices: str, doc: str) -> Any:
    row = Setting(name, "string", choices[0], doc, choices=choices)
    return field(default=row.default, metadata={"setting": row})


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one topic, typed: `settings.retention_ms` is `retention.ms`."""

    # fmt: off
    cleanup_policy: str = _word("cleanup.policy", "delete", "compact", "compact,delete", "delete,compact",
        doc="Whether old segments are deleted when retention says so, or compacted to the latest record of each key,"
            " or both.")
    compression_gzip_level: int = _number("compression.gzip.level", -1, 1, 9, unlimited=True,
        doc="Level of gzip, where compression.type is gzip; -1: gzip's own default (6).")
    compression_lz4_level: int = _number("compression.lz4.level", 9, 1, 17,
        doc="Level of lz4, where compression.type is lz4.")
    compression_type: str = _word("compression.type", "producer", "uncompressed", "gzip", "snappy", "lz4", "zstd",
        doc="Compression of batches in the log. producer: as they come; else a batch that comes otherwise is"
            " compressed again, by the process that appends it.")
    compression_zstd_level: int = _number("compression.zstd.level", 3, -131072, 22,
        doc="Level of zstd, where compression.type is zstd.")
    delete_retention_ms: int = _number("delete.retention.ms", _DAY_MS, 0, _INT64,
        doc="Time, in milliseconds, for which a compacted topic keeps a tombstone (a null value) after the first"
            " compaction that met it.")
    index_interval_bytes: int = _number("index.interval.bytes", 4096, 0, _INT32,
        doc="Approximate number of bytes of log between two entries of the index.")
    max_message_bytes: int = _number("max.message.bytes", 1024 * 1024 + 12, 0, 64 * 1024 * 1024,
        doc="Maximum size, in bytes, of a batch as it is on disk: compressed, headers included.")
    max_compaction_lag_ms: int = _number("max.compaction.lag.ms", _INT64, 1, _INT64,
        doc="Maximum time, in milliseconds, that a record waits for its compaction, however little there is to do.")
    message_timestamp_after_max_ms: int = _number("message.timestamp.after.max.ms", _HOUR_MS, 0, _INT64,
        doc="Maximum time, in milliseconds, by which the timestamp of a record may be ahead of now (CreateTime only);"
            " a record further ahead is refused.")
    message_timestamp_before_max_ms: int = _number("message.timestamp.before.max.ms", _INT64, 0, _INT64,
        doc="Maximum age, in milliseconds, of the timestamp of a record (CreateTime only); an older record is refused.")
    message_timestamp_type: str = _word("message.timestamp.type", "CreateTime", "LogAppendTime",
        doc="Whether the timestamp of a record is the one its producer gave it, or the time of its append.")
    min_cleanable_dirty_ratio: float = _fraction("min.cleanable.dirty.ratio", 0.5,
        doc="Share of a log's closed segments that must be uncompacted before the log is compacted.")
    min_compaction_lag_ms: int = _number("min.compaction.lag.ms", 0, 0, _INT64,
        doc="Minimum time, in milliseconds, that a record stays before compaction may remove it.")
    producer_id_expiration_ms: int = _number("producer.id.expiration.ms", _DAY_MS, 1, _INT32,
        doc="Time, in milliseconds, for which an idempotent producer is remembered after its last batch.")
    retention_bytes: int = _number("retention.bytes", -1, 0, _INT64, unlimited=True,
        doc="Maximum size, in bytes, of a partition; beyond it, its oldest segments are deleted. -1: no limit.")
    retention_ms: int = _number("retention.ms", 7 * _DAY_MS, 0, _INT64, unlimited=True,
        doc="Maximum age, in milliseconds, of records; older segments are deleted. -1: no limit.")
    segment_bytes: int = _number("segment.bytes", 1024 * 1024 * 1024, 14, _INT32,
        doc="Maximum size, in bytes, of a segment; one that would grow beyond it is closed, and the next one begun.")
    segment_ms: int = _number("segment.ms", 7 * _DAY_MS, 1, _INT64,
        doc="Maximum age, in milliseconds, of a segment; an older one is closed, so that it can be deleted or"
            " compacted.")
    segment_records: int = _number("segment.records", -1, 1, _INT64, unlimited=True,
        doc="Maximum number of records of a segment; -1: no limit. (Klamm's own; Kafka has no such setting.)")
    # fmt: on
    overridden: frozenset[str] = frozenset()

    @property
    def compression_levels(self) -> dict[str, int]:
        """The level of each codec for which one is set."""
        levels = {"gzip": self.compression_gzip_level, "lz4": self.compression_lz4_level}
        return {**{name: level for name, level in levels.items() if level != -1}, "zstd": self.compression_zstd_level}

    @property
    def timestamp_limits_ms(self) -> tuple[int, int]:
        """How far a record's timestamp may lie in the past and in the future; no limit with LogAppendTime."""
        if self.message_timestamp_type == "LogAppendTime":
            return _INT64, _INT64
        return self.message_timestamp_before_max_ms, self.message_timestamp_after_max_ms

    @classmethod
    def of(cls, overrides: Mapping[str, Value], *, where: str = "") -> Settings:
        """Return the defaults, with `overrides` by Kafka's names. Messages of InvalidSetting start with `where`."""
        return cls().changed(overrides, where=where)

    @classmethod
    def described(cls, was_set: Collection[str], values: Mapping[str, str]) -> Settings:
        """Return those that a server describes: it has others, too, and other defaults for some."""
        known: dict[str, Value] = {}
        defaults: dict[str, Value] = {}
        for name, value in values.items():
            if name in SETTINGS:
                try:
                    parsed = SETTINGS[name].parse(value)
                except InvalidSetting:
                    continue
                (known if name in was_set else defaults)[name] = parsed
        settings = cls.of(known)
        for name, default in defaults.items():
            settings = settings.defaulted(name, default)
        return settings

    def changed(self, changes: Mapping[str, Value], resets: Iterable[str] = (), *, where: str = "") -> Settings:
        """Return these settings with `changes` applied and `resets` reset to their defaults."""
        if not isinstance(changes, Mapping):
            raise TypeError(f"settings are a mapping of names to values, not {type(changes).__name__}")
        overrides: dict[str, Value] = dict(self.to_dict())
        try:
            for name in resets:
                overrides.pop(known(name, SETTINGS).name, None)
                if name in changes:
                    raise InvalidSetting("cannot be both changed and reset", setting=name)
            for name, value in changes.items():
                overrides[name] = known(name, SETTINGS).parse(value)
            values = {_ATTRIBUTES[name]: SETTINGS[name].parse(value) for name, value in overrides.items()}
        except InvalidSetting as error:
            if not where:
                raise
            raise InvalidSetting(
                error.problem, setting=error.setting, where=where, hint=error.hint, code=error.code
            ) from None
        return Settings(**values, overridden=frozenset(overrides))  # type: ignore[arg-type]  # parsed just above

    def defaulted(self, name: str, value: Value) -> Settings:
        """Return these settings with another default for one of them."""
        attribute = _ATTRIBUTES[name]
        if name in self.overridden or getattr(self, attribute) == value:
            return self
        return replace(self, **{attribute: value})  # type: ignore[arg-type]  # of the setting's type

    def to_dict(self) -> dict[str, str]:
        """Return the values that were set, as strings, in the order of the names."""
        return {name: self[name] for name in sorted(self.overridden)}

    def __getitem__(self, name: str) -> str:
        """Return the value of `name` (Kafka's spelling) as a string."""
        return str(getattr(self, _ATTRIBUTES[known(name, SETTINGS).name]))


def named_settings(settings: Mapping[str, Value] | None, named: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return settings by Kafka's names: those of a mapping, and those given as keywords, with `_` for `.`."""
    if not named:
        return {} if settings is None else settings
    changes = {} if settings is None else dict(settings)
    for keyword, value in named.items():
        name = keyword.replace("_", ".")
        if name in changes:
            raise InvalidSetting(f"{name}: given twice", hint=f"leave out {keyword}=, or the entry of the mapping")
        changes[name] = value
    return changes


def known(name: object, table: Mapping[str, Setting], absent: str = "there is no such setting") -> Setting:
    """Return the setting of that name. Raise InvalidSetting, with `absent`, if the table has none."""
    if not isinstance(name, str):
        raise TypeError(f"a setting's name is a str, not {type(name).__name__}")
    setting = table.get(name)
    if setting is not None:
        return setting
    if name in ("partitions", "num.partitions", "partition.count") and "retention.ms" in table:
        hint = "say it by partitions=, or store.topics.add_partitions"
        raise InvalidSetting(absent, setting=name, hint=hint, code="partition_count")
    if name in ("config", "configs") and "retention.ms" in table:
        hint = "name settings one by one, retention_ms=…, or give a mapping: settings={'retention.ms': …}"
        raise InvalidSetting(absent, setting=name, hint=hint, code="setting_names")
    few = f"there are {', '.join(table)}" if len(table) < 10 else None
    raise InvalidSetting(absent, setting=name, hint=nearest(name, table) or few)


# By Kafka's names: the rows of the table, and the attributes that hold them.
SETTINGS: dict[str, Setting] = {
    f.metadata["setting"].name: f.metadata["setting"] for f in fields(Settings) if f.metadata
}
_ATTRIBUTES: dict[str, str] = {f.metadata["setting"].name: f.name for f in fields(Settings) if f.metadata}
assert all(attribute == name.replace(".", "_") for name, attribute in _ATTRIBUTES.items())
