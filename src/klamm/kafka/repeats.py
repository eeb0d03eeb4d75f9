"""Requests that name the same thing again and again. A response that repeats what it says of a thing could be a
thousand times as large as the request: so each is named once before a handler sees the request.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.kafka.wire.structs import Struct

__all__ = ["distinct", "merge_partitions"]


def distinct(entries: list[Any] | None, *fields: str) -> Any:
    """Return the first entry of each key, which are these fields; without fields, entries are plain values."""
    if not entries or len(entries) == 1:
        return entries
    keys = [_key(entry, fields) for entry in entries]
    if len(set(keys)) == len(keys):
        return entries
    first: dict[Hashable, Any] = {}
    for key, entry in zip(keys, entries, strict=True):
        first.setdefault(key, entry)
    return list(first.values())


def merge_partitions(topics: list[Struct] | None, partitions: str, *fields: str) -> list[Struct] | None:
    """Return the topics of a request with each partition of a topic once, and without those that only repeat.
    `partitions` is the array in a topic, `fields` are those of a partition's key.
    """
    seen: dict[Hashable, set[Hashable]] = {}
    merged = []
    for topic in topics or ():
        entries = getattr(topic, partitions)
        once = distinct(entries, *fields)
        if len(topics or ()) > 1 and entries:
            known = seen.setdefault(_topic_key(topic), set())
            once = [entry for entry in once if _key(entry, fields) not in known]
            if not once:
                continue
            known.update(_key(entry, fields) for entry in once)
        setattr(topic, partitions, once)
        merged.append(topic)
    return None if topics is None else merged


def _key(entry: Any, fields: tuple[str, ...]) -> Hashable:
    if not fields:
        return entry  # type: ignore[no-any-return]
    return getattr(entry, fields[0]) if len(fields) == 1 else tuple(getattr(entry, field) for field in fields)


def _topic_key(topic: Struct) -> Hashable:
    """Return the key of a topic, by name or id, whichever the API has."""
    return tuple(getattr(topic, field, None) for field in ("name", "topic", "topic_id"))
