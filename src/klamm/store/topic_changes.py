"""What changed in the catalog since the last look: the topics that are new, altered or gone, and no others.

All rows come from SQLite as one text, in one step without the GIL; a row whose text is known is not parsed again. So a
new topic among thousands costs a comparison of thousands of strings, and one topic is read.

The text of a row has all of it but the slots, which its checksum covers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from klamm.store.catalog import Topic
    from klamm.store.database import Execute
    from klamm.store.directory import Core, OpenTopic
    from klamm.store.store_settings import StoreSettings

__all__ = ["TopicChanges", "TopicReader"]

_FEW = 64  # of which each is read by itself
_TEXTS = """SELECT group_concat(
    id || char(31) || name || char(31) || settings || char(31) || created_ms || char(31) || crc, char(30)
) FROM topics"""


class TopicChanges(NamedTuple):
    version: int
    """Of the catalog, as of which this holds at least."""
    changed: list[OpenTopic]
    """Those that are new, or were altered."""
    gone: list[OpenTopic]


class _Known(NamedTuple):
    opened: OpenTopic
    topic: Topic
    """What the row says."""


class TopicReader:
    """Of one core; one thread at a time."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._known: dict[str, _Known] = {}  # by the text of the row
        self._defaults: dict[str, str] = {}  # settings of the store, which topics take over

    def read(self) -> TopicChanges:
        """Return what changed since the last call; all, the first time."""
        core, before = self._core, self._known
        core.check_open()
        version = core.heads.catalog_version
        with core.catalog.database.reading() as execute:
            text = execute(_TEXTS).fetchone()[0]
            texts = set(text.split("\x1e")) if text else set()
            defaults = core.catalog.read_settings(execute)
            same = texts & before.keys() if defaults.to_dict() == self._defaults else set()
            found = self._parse(execute, texts - same, defaults)
        if found is None:
            opened = core.take_topics(version, core.catalog.topics())  # raises what is wrong with them
            self._known = {}
            return TopicChanges(version, opened, [each.opened for each in before.values()])
        self._defaults = defaults.to_dict()
        kept = {text: before[text] for text in same}
        found |= {text: kept.pop(text).topic for text in core.confirm_topics(version, kept)}
        changed = core.take_topics(version, found.values())
        known = {text: _Known(each, each.topic) for text, each in zip(found, changed, strict=True)}
        stays = set(map(id, changed))
        gone = [each.opened for text, each in before.items() if text not in kept and id(each.opened) not in stays]
        self._known = kept | known
        return TopicChanges(version, changed, gone)

    def _parse(self, execute: Execute, texts: set[str], defaults: StoreSettings) -> dict[str, Topic] | None:
        """Return the topics of rows with these texts; None if a text is that of no row, which is damaged then."""
        catalog = self._core.catalog
        slots: dict[str, list[tuple[int, int]]] = {}
        if len(texts) > _FEW:
            for topic_id, number, slot in execute("SELECT topic_id, number, slot FROM partitions").fetchall():
                slots.setdefault(topic_id, []).append((number, slot))
        topics = {}
        for text in texts:
            topic_id = text.partition("\x1f")[0]
            row = execute("SELECT id, name, settings, created_ms, crc FROM topics WHERE id = ?", (topic_id,)).fetchone()
            if row is None:
                return None
            if len(texts) <= _FEW:
                query = "SELECT number, slot FROM partitions WHERE topic_id = ?"
                slots[topic_id] = execute(query, (topic_id,)).fetchall()
            topics[text] = catalog.parse_topic(row, slots.get(topic_id, []), defaults)
        return topics
