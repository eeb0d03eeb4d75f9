"""Helpers for tests of programs that use Klamm: topics from a file, and a clock that can be set ahead.

    klamm.testing.seed(store, "orders.yaml")
    klamm.testing.advance(store, days=8)

The pytest fixtures have both: `klamm_server.seed(…)`, `klamm_server.advance(…)`. A file of YAML has topics:

    orders:
      partitions: 3
      settings: {cleanup.policy: compact}
      records:
        - one coffee                                          a value
        - {key: alice, value: {item: coffee}, headers: {source: web}, timestamp: 2026-11-15T10:00:00Z, partition: 0}
    invoices:                                                 as above, if it has records only
      - an invoice

A file of JSON lines has records, as `klamm export` writes them; they go to one topic, or to that which each of them
names, or to the one that the file is named after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from klamm.client.plain import PlainRecord, bytes_of, from_json, from_plain
from klamm.errors import InvalidRecord, InvalidSetting, NotInstalled, ReadOnly
from klamm.store.names import validate
from klamm.store.settings import Settings

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.types import TopicInfo

__all__ = ["advance", "now", "seed"]


def __dir__() -> list[str]:
    return sorted(__all__)


_LINES = (".jsonl", ".ndjson")
_YAML = (".yaml", ".yml", ".json")
_PARTS = {"partitions", "settings", "records"}


# ---- time


def advance(store: Store[Any, Any], **by: float) -> datetime:
    """Set the store's clock ahead, by so much as `timedelta` has it: `advance(store, days=8)`. What it shows then.

    Everybody who has the store open sees it, until the machine is started again: retention, compaction and timeouts go
    by it, and records that are given no time bear it. What is due by then is done when this returns, as by
    `store.maintain()`. Waits of consumers and producers are as long as ever.
    """
    milliseconds = timedelta(**by) // timedelta(milliseconds=1)
    if milliseconds < 0:
        raise InvalidSetting(f"advance: by {timedelta(**by)}", hint="a store's clock does not go back")
    if store.read_only:
        raise ReadOnly(f"{store.path}: is open for reading only, and its clock is in its files")
    core = store._acquired()
    with core.catalog.database.db_lock():
        core.heads.advance(milliseconds)
    core.heads.ring_all()
    store.maintain()
    return now(store)


def now(store: Store[Any, Any]) -> datetime:
    """Return the time of the store's clock."""
    return datetime.fromtimestamp(store._acquired().heads.wall_ms() / 1000, UTC)


# ---- records


@dataclass
class _Topic:
    partitions: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    records: list[PlainRecord] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Its partitions, or as many as its records name."""
        named = max((record.partition for record in self.records if record.partition is not None), default=0) + 1
        return named if self.partitions is None else self.partitions


def seed(store: Store[Any, Any], path: str | Path, *, topic: str | None = None) -> dict[str, int]:
    """Append the records of a file, YAML or JSON lines: how many by topic. Nothing, if the file cannot be read.

    Topics that are not there are created, with as many partitions as the file says, or as its records name.
    """
    path = Path(path)
    found = _read(path, topic)
    known = list(store.topics)
    for name, each in found.items():
        if name in known and (each.partitions is not None or each.settings):
            raise InvalidSetting(
                f"{path}: {name}: already exists",
                hint="leave out partitions and settings, or do not create it before",
            )
        _check(each, store.topics.describe(name) if name in known else None, f"{path}: {name}")
        validate(name)
    for name, each in found.items():
        if name not in known:
            store.topics.create(name, each.count, each.settings)
    with store.producer(serde="bytes", key_serde="bytes") as producer:
        for name, each in found.items():
            for record in each.records:
                record.send(producer, name)
    return {name: len(each.records) for name, each in found.items()}


def _check(given: _Topic, there: TopicInfo | None, where: str) -> None:
    """Raise for what the topic would reject, before anything is done."""
    settings = Settings.of(given.settings if there is None else there.settings, where=where)
    count = given.count if there is None else len(there.partitions)
    for number, record in enumerate(given.records):
        if record.partition is not None and not 0 <= record.partition < count:
            raise InvalidRecord(f"{where}: record {number}: there is no partition {record.partition}; it has {count}")
        if record.key is None and "compact" in settings.cleanup_policy:
            raise InvalidRecord(f"{where}: record {number}: has no key, and the topic is compacted")


def _read(path: Path, topic: str | None) -> dict[str, _Topic]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if path.suffix in _LINES:
        return _of_lines(text, path, topic)
    if path.suffix in _YAML:
        if topic is not None:
            raise InvalidSetting(f"{path}: names its topics itself", hint="topic= is for JSON lines")
        return dict(_of_yaml(text, path))
    raise InvalidSetting(f"{path}: neither YAML nor JSON lines", hint=f"expected {', '.join((*_YAML, *_LINES))}")


def _of_lines(text: str, path: Path, topic: str | None) -> dict[str, _Topic]:
    found: dict[str, _Topic] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            record = from_json(line, f"{path}: line {number}")
            found.setdefault(topic or record.topic or path.stem, _Topic()).records.append(record)
    return found


def _of_yaml(text: str, path: Path) -> Iterator[tuple[str, _Topic]]:
    try:
        import yaml
    except ImportError:
        raise NotInstalled(
            f"{path}: PyYAML is not installed", name="yaml", hint="pip install 'klamm[testing]', or use JSON lines"
        ) from None
    try:
        topics = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidRecord(f"{path}: is not YAML: {error}") from None
    if not isinstance(topics, Mapping):
        raise InvalidRecord(f"{path}: has no topics", hint="expected their names at the top, and records below")
    for name, given in topics.items():
        where = f"{path}: {name}"
        if not isinstance(given, Mapping):
            given = {"records": given}
        if unknown := given.keys() - _PARTS:
            raise InvalidRecord(
                f"{where}: {min(unknown, key=str)!r} is nothing that a topic has",
                hint=f"expected {', '.join(sorted(_PARTS))}",
            )
        records, settings = given.get("records") or [], given.get("settings") or {}
        if not isinstance(records, list) or not isinstance(settings, Mapping):
            raise InvalidRecord(f"{where}: expected a list of records, and a mapping of settings")
        made = [_record(each, f"{where}: record {number}") for number, each in enumerate(records)]
        yield str(name), _Topic(given.get("partitions"), settings, made)


def _record(given: Any, where: str) -> PlainRecord:
    if isinstance(given, Mapping):
        return from_plain(given, where)
    return PlainRecord(None, bytes_of(given, where), [])
