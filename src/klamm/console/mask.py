"""Fields of JSON that are not shown: `klamm console --mask FIELD`.

    email            a field of that name, at any depth
    $.user.email     the field at that path; a name applies to each item of an array, [0] to one

Promises
  MSK1  what the mask names is replaced before a record is filtered, shown, exported or sent to a browser: no filter
        finds a record by it, either.
  MSK2  a value that is not JSON is hidden whole, because what it holds is not known. Keys and headers that are not JSON
        are shown, but for a header that has the name of a field. JSON that has a name twice in one object, or is
        nested too deeply to be looked through, is hidden whole wherever it is: parsers disagree about what it says.
  MSK3  where something of a dead letter is hidden, so is what its handler said of it. What a run of a pipeline ended
        with is hidden in any case: it may quote a record.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from klamm.batch import Record
from klamm.client.record_filter import json_path
from klamm.errors import InvalidSetting

__all__ = ["HIDDEN", "Mask"]

HIDDEN = "(masked)"
_NOT_JSON = b"(masked: not JSON)"
_REASON = "klamm.dlq.reason"
_DEEPEST = 8  # JSON within strings of JSON


class _Ambiguous(Exception):
    """An object of JSON has a name twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise _Ambiguous
    return fields


class Mask:
    """Makes records that can be shown. False if it hides nothing."""

    def __init__(self, fields: Sequence[str] = ()) -> None:
        names, self._paths = set(), []
        for field in fields:
            if field.startswith("$"):
                path = json_path(field)
                if not path:
                    raise InvalidSetting(f"{field!r} is invalid", setting="mask", hint="expected email or $.user.email")
                self._paths.append(path)
            elif not field.strip():
                raise InvalidSetting("the name of a field is empty", setting="mask", hint="expected email or $.a.b")
            else:
                names.add(field)
        self._names = frozenset(names)
        self._ends = names | {str(path[-1]) for path in self._paths}

    def __bool__(self) -> bool:
        return bool(self._names or self._paths)

    def __call__(self, record: Record) -> Record:
        """Return the record as it may be shown: the same object, if nothing of it is hidden."""
        if not self:
            return record
        value = self._hide_bytes(record.value, _NOT_JSON)
        key = self._hide_bytes(record.key, record.key)
        headers = [
            (name, HIDDEN.encode() if name in self._names else self._hide_bytes(data, data))
            for name, data in record.headers
        ]
        if value is record.value and key is record.key and headers == list(record.headers):
            return record
        headers = [(name, HIDDEN.encode() if name == _REASON else data) for name, data in headers]
        place = (record.topic, record.partition, record.offset, record.timestamp)
        return Record(*place, key, value, headers, record.leader_epoch)

    def _hide_bytes(self, data: bytes | None, otherwise: bytes | None) -> bytes | None:
        if data is None:
            return None
        try:
            parsed = json.loads(data, object_pairs_hook=_once)
            shown = self._hide(parsed, self._paths, 0)
        except ValueError:
            return otherwise
        except (_Ambiguous, RecursionError):
            return HIDDEN.encode() if otherwise is data else otherwise
        return data if shown is parsed else json.dumps(shown, ensure_ascii=False).encode("utf-8", "backslashreplace")

    def _hide(self, value: Any, paths: Sequence[Sequence[str | int]], depth: int) -> Any:
        """Return the value without what is hidden; the same object, if nothing is."""
        if isinstance(value, str):
            return self._hide_text(value, depth)
        if isinstance(value, dict):
            parts = {name: self._hide_part(name, part, paths, depth) for name, part in value.items()}
            return parts if any(parts[name] is not part for name, part in value.items()) else value
        if isinstance(value, list):
            items = [self._hide_item(at, item, paths, depth) for at, item in enumerate(value)]
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        return value

    def _hide_part(self, name: str, part: Any, paths: Sequence[Sequence[str | int]], depth: int) -> Any:
        if name in self._names or [name] in paths:
            return HIDDEN
        return self._hide(part, [path[1:] for path in paths if path[0] == name and len(path) > 1], depth)

    def _hide_item(self, at: int, item: Any, paths: Sequence[Sequence[str | int]], depth: int) -> Any:
        if [at] in paths:
            return HIDDEN
        inside = [path[1:] for path in paths if path[0] == at]
        return self._hide(item, inside + [path for path in paths if isinstance(path[0], str)], depth)

    def _hide_text(self, text: str, depth: int) -> Any:
        """Hide fields of JSON within a string: there, the last name of a path is hidden wherever it is."""
        if text.lstrip()[:1] not in ("{", "[", '"'):
            return text
        try:
            parsed = json.loads(text, object_pairs_hook=_once)
        except ValueError:
            return HIDDEN if any(name in text for name in self._ends) else text
        except (_Ambiguous, RecursionError):
            return HIDDEN
        if depth >= _DEEPEST:
            return HIDDEN
        shown = _Inner(self._ends)._hide(parsed, (), depth + 1)
        return text if shown is parsed else json.dumps(shown, ensure_ascii=False)


class _Inner(Mask):
    """The mask of JSON within a string: names alone."""

    def __init__(self, names: set[str]) -> None:
        self._names, self._paths, self._ends = frozenset(names), [], names
