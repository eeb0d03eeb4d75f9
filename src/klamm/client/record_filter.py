"""Which records are wanted: by key, value, header, and what JSON holds. `klamm tail` and the console filter by this.

key        the whole key, as text
grep       a regular expression that matches somewhere in the value
header     name=value: a header of that name with that value
where      $.path, to be there; $.path = value, with = != < <= > >=. The value is JSON, or else text
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from klamm.batch import Record
from klamm.errors import InvalidSetting

__all__ = ["Filter", "json_path"]


def json_path(path: str) -> list[str | int]:
    """$.user.tags[0] as ["user", "tags", 0]."""
    if not re.fullmatch(r"\$(\.[^.\[\]\s]+|\[\d+\])*", path):
        raise InvalidSetting(f"{path!r} is not a path into JSON", hint="expected $.user.id or $.tags[0]")
    return [int(number) if number else name for name, number in re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", path)]


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


class Filter:
    """Which records are wanted: all of what was given has to hold."""

    def __init__(
        self,
        *,
        key: str | None = None,
        grep: str | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        where: Sequence[str] = (),
    ) -> None:
        self._tests: list[Callable[[Record], bool]] = []
        if key is not None:
            wanted = os.fsencode(key)
            self._tests.append(lambda record: record.key == wanted)
        if grep is not None:
            try:
                pattern = re.compile(os.fsencode(grep))
            except re.error as error:
                raise InvalidSetting(f"--grep {grep}: not a regular expression: {error}") from None
            self._tests.append(lambda record: record.value is not None and pattern.search(record.value) is not None)
        for name, value in headers:
            self._tests.append(lambda record, name=name, value=value: value in record.headers.get_all(name))  # type: ignore[misc]
        for condition in where:
            self._tests.append(_condition(condition))

    @property
    def takes_all(self) -> bool:
        return not self._tests

    def __call__(self, record: Record) -> bool:
        return all(test(record) for test in self._tests)


def _condition(condition: str) -> Callable[[Record], bool]:
    """$.path, or $.path = value; the value is JSON, or else text. What cannot be compared does not fit."""
    found = re.fullmatch(r"\s*(\$\S*?)\s*(?:(!=|<=|>=|=|<|>)\s*(.*?)\s*)?", condition, re.DOTALL)
    if found is None:
        raise InvalidSetting(f"--where {condition}: invalid", hint="expected '$.user.id = 42', or '$.user' to be there")
    path, comparison = json_path(found[1]), found[2]
    try:
        wanted = json.loads(found[3]) if found[3] else found[3]
    except ValueError:
        wanted = found[3]

    def holds(record: Record) -> bool:
        try:
            value = _at(json.loads(record.value or b"null"), path)
        except ValueError:
            return False
        if comparison is None:
            return value is not None
        try:
            return value is not None and _COMPARISONS[comparison](value, wanted)
        except TypeError:
            return False

    return holds
