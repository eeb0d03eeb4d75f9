"""A filter of records: by key, value, header, and fields of JSON. `klamm tail` and the console filter by this.

key        the whole key, as text
contains   text that is somewhere in the value
grep       a regular expression that matches somewhere in the value. It can take forever, and no other thread runs
           until it is done: not for what strangers ask
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
    """Parse a path: $.user.tags[0] becomes ["user", "tags", 0]."""
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
    """A filter of records: every condition that was given has to hold."""

    def __init__(
        self,
        *,
        key: str | None = None,
        contains: str | None = None,
        grep: str | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        where: Sequence[str] = (),
    ) -> None:
        self._tests: list[Callable[[Record], bool]] = []
        if key is not None:
            wanted = os.fsencode(key)
            self._tests.append(lambda record: record.key == wanted)
        if contains is not None:
            part = os.fsencode(contains)
            self._tests.append(lambda record: record.value is not None and part in record.value)
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
    """Parse $.path, or $.path = value; the value is JSON, or else text. What cannot be compared does not match."""
    found = re.fullmatch(r"\s*(\$\S*?)\s*(?:(!=|<=|>=|=|<|>)(.*))?", condition, re.DOTALL)
    if found is None:
        raise InvalidSetting(f"--where {condition}: invalid", hint="expected '$.user.id = 42', or '$.user' to be there")
    path, comparison = json_path(found[1]), found[2]
    wanted: Any = (found[3] or "").strip()  # not by the expression, which would try each space of a long row
    try:
        wanted = json.loads(wanted) if wanted else wanted
    except (ValueError, RecursionError):
        pass

    def holds(record: Record) -> bool:
        try:
            value = _at(json.loads(record.value or b"null"), path)
        except (ValueError, RecursionError):
            return False
        if comparison is None:
            return value is not None
        try:
            return value is not None and _COMPARISONS[comparison](value, wanted)
        except (TypeError, RecursionError):
            return False

    return holds
