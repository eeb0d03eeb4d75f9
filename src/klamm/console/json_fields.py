"""The fields that JSON values have: which there are, of which types, and where that has changed.

    user.id     a field of an object; items[] are the items of an array; $ is the value itself

Records are in the order of their timestamps. Drift is what differs between the older half of them and the newer one:
a field that is new or gone, one whose types differ, and one that every older record has and not every newer one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.batch import Record

__all__ = ["FieldUse", "columns_of", "field_uses", "flatten"]

MOST_FIELDS = 300
_EXAMPLES = 3
_EXAMPLE_LENGTH = 60
_DEEPEST = 12
_TYPES = {dict: "object", list: "array", str: "text", bool: "boolean", int: "whole number", float: "number"}


@dataclass
class FieldUse:
    """A field, over the records that were looked at."""

    path: str
    older: Counter[str] = field(default_factory=Counter)
    """How many records of the older half have it, by type."""
    newer: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    drift: str | None = None
    drift_at: str | None = None
    """The record from which on it is so: partition/offset."""

    @property
    def types(self) -> list[str]:
        return [name for name, _ in (self.older + self.newer).most_common()]


def _type(value: Any) -> str:
    return "null" if value is None else _TYPES[type(value)]


def _walk(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    yield path or "$", value
    if depth >= _DEEPEST:
        return
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _walk(part, f"{path}.{name}" if path else name, depth + 1)
    elif isinstance(value, list):
        for part in value:
            yield from _walk(part, f"{path}[]", depth + 1)


def _parse(data: bytes | None) -> tuple[bool, Any]:
    if data is None:
        return False, None
    try:
        return True, json.loads(data)
    except (ValueError, RecursionError):
        return False, None


def field_uses(records: Sequence[Record]) -> tuple[list[FieldUse], int]:
    """Return the fields, and how many of the records are JSON."""
    parsed = [(record, value) for record in records for is_json, value in [_parse(record.value)] if is_json]
    half = len(parsed) // 2
    uses: dict[str, FieldUse] = {}
    first_with: dict[tuple[str, str], str] = {}
    for number, (record, value) in enumerate(parsed):
        place = f"{record.partition}/{record.offset}"
        seen: set[tuple[str, str]] = set()
        for path, part in _walk(value):
            if path not in uses and len(uses) >= MOST_FIELDS:
                continue
            use = uses.setdefault(path, FieldUse(path))
            kind = _type(part)
            if not isinstance(part, dict | list) and len(use.examples) < _EXAMPLES:
                example = json.dumps(part, ensure_ascii=False)[:_EXAMPLE_LENGTH]
                if example not in use.examples:
                    use.examples.append(example)
            if (path, kind) not in seen:
                seen.add((path, kind))
                (use.newer if number >= half else use.older)[kind] += 1
                first_with.setdefault((path, kind), place)
    for use in uses.values():
        _mark_drift(use, half, len(parsed) - half, first_with)
    return list(uses.values()), len(parsed)


def _mark_drift(use: FieldUse, older: int, newer: int, first_with: dict[tuple[str, str], str]) -> None:
    if older < 2 or newer < 2:
        return
    before, after = set(use.older) - {"null"}, set(use.newer) - {"null"}
    if "number" in before:  # JSON has one kind of number: 1 among 1.5 and 2.5 is none of another type
        before, after = _as_numbers(before), _as_numbers(after)
    if not use.older:
        use.drift, use.drift_at = "new", first_with[use.path, use.newer.most_common(1)[0][0]]
    elif not use.newer:
        use.drift = "gone"
    elif before and after and before != after:
        kinds = sorted(after - before) or sorted(before - after)
        use.drift = f"{' or '.join(sorted(before))} before, {' or '.join(sorted(after))} now"
        use.drift_at = first_with[use.path, kinds[0]] if after - before else None
    elif use.older.total() >= older and use.newer.total() < newer and "." not in use.path and "[" not in use.path:
        use.drift = "not in every record any more"


def _as_numbers(types: set[str]) -> set[str]:
    return {"number" if name == "whole number" else name for name in types}


# ---- fields as columns


def flatten(data: bytes | None) -> dict[str, str] | None:
    """Return what a value's fields hold, by path; None if it is not an object. Arrays are one field."""
    is_json, value = _parse(data)
    if not is_json or not isinstance(value, dict):
        return None
    fields: dict[str, str] = {}

    def add(part: Any, path: str, depth: int) -> None:
        if isinstance(part, dict) and part and depth < _DEEPEST:
            for name, inner in part.items():
                add(inner, f"{path}.{name}" if path else name, depth + 1)
        else:
            fields[path] = part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)

    add(value, "", 0)
    return fields


def columns_of(rows: Sequence[dict[str, str] | None], most: int) -> list[str]:
    """Return the fields that most of the rows have, in the order in which they come."""
    counts = Counter(path for row in rows if row is not None for path in row)
    chosen = {path for path, _ in counts.most_common(most)}
    return [path for path in counts if path in chosen]
