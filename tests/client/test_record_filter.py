"""Filters of records: what values that were made to break them do."""

from __future__ import annotations

import pytest

from klamm.batch import Record
from klamm.client.record_filter import Filter

DEEP = "[" * 100_000


def takes(value: bytes | None, wanted: Filter) -> bool:
    return wanted(Record("t", 0, 0, 0, None, value))


def test_json_that_is_nested_too_deeply_fits_no_condition() -> None:
    assert not takes(DEEP.encode(), Filter(where=["$.a"]))
    assert not takes(DEEP.encode(), Filter(where=["$.a = 1"]))
    assert takes(b'{"a": 1}', Filter(where=["$.a = 1"]))


def test_a_condition_that_is_nested_too_deeply_is_text() -> None:
    assert not takes(b'{"a": 1}', Filter(where=[f"$.a = {DEEP}"]))
    assert takes(b'{"a": "[["}', Filter(where=["$.a = [["]))


@pytest.mark.parametrize("condition", ["$.a=x  y", " $.a  =  x  y ", '$.a = "x  y"', '$.a\n=\n"x  y"\n'])
def test_spaces_around_the_value_of_a_condition_do_not_count(condition: str) -> None:
    assert takes(b'{"a": "x  y"}', Filter(where=[condition]))


def test_text_is_looked_for_as_it_is() -> None:
    assert takes(b"total (1+1)*", Filter(contains="(1+1)*")) and not takes(b"total 11", Filter(contains="(1+1)*"))
    assert takes("schön".encode(), Filter(contains="ö")) and not takes(None, Filter(contains=""))
