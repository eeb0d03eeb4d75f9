"""Changes of the catalog since the last read: the topics that are new, altered or gone, and no others.

SQLite returns all rows as one text, in one step without the GIL. That text is compared with the last one from both
ends. Only rows between the first and the last difference are read, and a row with a known text is not parsed again. So
a new topic among thousands costs a comparison of bytes and one parsed row.

The text of a row has everything but the slots, which its checksum covers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from klamm.store.catalog import Topic
    from klamm.store.database import Execute
    from klamm.store.directory import Core, OpenTopic
    from klamm.store.store_settings import StoreSettings

__all__ = ["TopicChanges", "TopicReader", "different_rows"]

_FEW = 64  # of which each is read by itself
_END = "\x1e"  # between rows
_TEXTS = """SELECT group_concat(
    id || char(31) || name || char(31) || settings || char(31) || created_ms || char(31) || crc, char(30)
) FROM topics"""


class TopicChanges(NamedTuple):
    version: int
    """Of the catalog, as of which this holds at least."""
    changed: list[OpenTopic]
    """Topics that are new, or were altered."""
    gone: list[OpenTopic]


class _TopicRow(NamedTuple):
    opened: OpenTopic
    topic: Topic
    """What the row says."""


class TopicReader:
    """The topics of one core; for one thread at a time."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._text = ""  # all rows
        self._known: dict[str, _TopicRow] = {}  # by the text of the row
        self._defaults: dict[str, str] = {}  # settings of the store, which topics take over

    def read(self) -> TopicChanges:
        """Return what changed since the last call; everything on the first call."""
        core, known = self._core, dict(self._known)
        core.check_open()
        version = core.heads.catalog_version
        with core.catalog.database.reading() as execute:
            text = execute(_TEXTS).fetchone()[0] or ""
            defaults = core.catalog.read_settings(execute)
            if defaults.to_dict() == self._defaults:
                old, new = different_rows(self._text, text)
            else:
                old, new = set(known), _rows(text)
            found = self._parse(execute, new, defaults)
        if found is None:
            opened = core.take_topics(version, core.catalog.topics())  # raises what is wrong with the rows
            self._text, self._known = "", {}
            return TopicChanges(version, opened, [each.opened for each in known.values()])
        before = [known.pop(row).opened for row in old]
        for row in core.confirm_topics(version, known):
            other = known.pop(row)
            before.append(other.opened)
            found[row] = other.topic
        changed = core.take_topics(version, found.values())
        for row, each in zip(found, changed, strict=True):
            known[row] = _TopicRow(each, each.topic)
        self._text, self._known, self._defaults = text, known, defaults.to_dict()
        stays = set(map(id, changed))
        return TopicChanges(version, changed, [each for each in before if id(each) not in stays])

    def _parse(self, execute: Execute, texts: set[str], defaults: StoreSettings) -> dict[str, Topic] | None:
        """Return the topics of rows with these texts; None if a text is of a damaged row."""
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


def _rows(text: str) -> set[str]:
    return set(text.split(_END)) if text else set()


def different_rows(old: str, new: str) -> tuple[set[str], set[str]]:
    """Return the rows of `old` that are not in `new`, and those of `new` that are not in `old`."""
    if old == new:
        return set(), set()
    start = _common_length(old, new, min(len(old), len(new)))
    start = old.rfind(_END, 0, start) + 1  # rows before that are the same
    old, new = old[start:], new[start:]
    size = _common_length(old[::-1], new[::-1], min(len(old), len(new)))
    # Cut behind a separator that both have: the rest is equal.
    at = old.find(_END, len(old) - size)
    if at >= 0:
        old, new = old[:at], new[: len(new) - (len(old) - at)]
    before, after = _rows(old), _rows(new)
    return before - after, after - before


def _common_length(one: str, other: str, limit: int) -> int:
    """Return the length of the common prefix, at most `limit`."""
    same, step = 0, limit
    while step and same < limit:
        end = min(same + step, limit)
        if one[same:end] == other[same:end]:
            same = end
        else:
            step = (end - same) // 2
    return same
