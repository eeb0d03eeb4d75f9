"""Fields of JSON values: types, shares, drift; fields as columns."""

from __future__ import annotations

import json
from typing import Any

from klamm.batch import Record
from klamm.console.json_fields import columns_of, field_uses, flatten


def records(values: list[Any]) -> list[Record]:
    return [
        Record("t", 0, at, at, None, value if isinstance(value, bytes | None) else json.dumps(value).encode())
        for at, value in enumerate(values)
    ]


def drift(values: list[Any]) -> dict[str, tuple[str | None, str | None]]:
    return {use.path: (use.drift, use.drift_at) for use in field_uses(records(values))[0] if use.drift}


def test_fields_have_their_types_and_how_many_records_have_them() -> None:
    uses, count = field_uses(records([{"a": 1, "b": {"c": [1, "x"]}}, {"a": None}, b"not json", None, {"a": 1.5}]))
    assert count == 3
    shown = {use.path: (sorted(use.types), use.older.total() + use.newer.total()) for use in uses}
    assert shown == {
        "$": (["object"], 3),
        "a": (["null", "number", "whole number"], 3),
        "b": (["object"], 1),
        "b.c": (["array"], 1),
        "b.c[]": (["text", "whole number"], 2),
    }
    assert next(use.examples for use in uses if use.path == "a") == ["1", "null", "1.5"]


def test_records_that_are_alike_have_no_drift() -> None:
    assert drift([{"a": n, "b": [n]} for n in range(10)]) == {}


def test_a_field_that_is_new_gone_or_of_another_type_is_drift() -> None:
    assert drift([{"a": 1}] * 5 + [{"a": 1, "b": 2}] * 5) == {"b": ("new", "0/5")}
    assert drift([{"a": 1, "b": 2}] * 5 + [{"a": 1}] * 5) == {"b": ("gone", None)}
    assert drift([{"a": 1}] * 5 + [{"a": 1}] + [{"a": "x"}] * 5) == {
        "a": ("whole number before, text or whole number now", "0/6")
    }
    assert drift([{"a": 1}] * 6 + [{"b": 1}] + [{"a": 1}] * 5)["a"] == ("not in every record any more", None)


def test_null_is_not_another_type() -> None:
    assert drift([{"a": 1}] * 5 + [{"a": None}] * 5) == {}


def test_a_whole_number_among_numbers_is_not_another_type() -> None:
    assert drift([{"a": 1.5}] * 5 + [{"a": 2}, {"a": 2.5}] * 3) == {}
    assert drift([{"a": 1}] * 5 + [{"a": 1.5}] * 5) == {"a": ("whole number before, number now", "0/5")}


def test_too_few_records_have_no_drift() -> None:
    assert drift([{"a": 1}, {"b": 1}, {"a": "x"}]) == {}


def test_fields_become_columns() -> None:
    row = flatten(b'{"a": 1, "b": {"c": "x", "d": {}}, "e": [1, 2]}')
    assert row == {"a": "1", "b.c": "x", "b.d": "{}", "e": "[1, 2]"}
    assert flatten(b"[1]") is None and flatten(None) is None and flatten(b"x") is None
    assert columns_of([{"a": "1", "rare": "2"}, None, {"a": "1", "b": "3"}, {"b": "3"}], 2) == ["a", "b"]
