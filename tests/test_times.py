"""Times and durations as users write them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.errors import InvalidSetting
from klamm.times import (
    FOREVER_S,
    format_duration,
    format_time,
    from_ms,
    parse_duration,
    parse_time,
    to_ms,
    to_seconds,
    to_timeout,
)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0s", 0),
        ("250ms", 250),
        ("90s", 90_000),
        ("1.5h", 5_400_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("30 m", 1_800_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
    ],
)
def test_a_duration_is_read_from_text(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "7", "d", "-1h", "1x", "1h,30m", "h1", "1 hour", "١s", "1e3s", "1h\n", ".5h", "1.h"]
)
def test_what_is_not_a_duration_is_none(text: str) -> None:
    assert parse_duration(text) is None


@given(milliseconds=st.integers(0, 10**15))
def test_a_duration_round_trips_as_text(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds)) == milliseconds


def test_a_duration_is_written_with_the_largest_units() -> None:
    assert [format_duration(each) for each in (0, 1, 90_000, 5_400_000, 86_400_000, 1_209_600_001)] == [
        "0s",
        "1ms",
        "1m30s",
        "1h30m",
        "1d",
        "2w1ms",
    ]


@given(when=st.datetimes(timezones=st.just(UTC) | st.just(timezone(timedelta(hours=5, minutes=30)))))
def test_a_time_round_trips_as_text_and_as_milliseconds(when: datetime) -> None:
    try:
        milliseconds = to_ms(when)
        text = format_time(milliseconds)
    except OverflowError:  # in UTC, it is of the year 0 or 10000
        return
    assert parse_time(text) == milliseconds
    assert timedelta() <= when - from_ms(milliseconds) < timedelta(milliseconds=1)


def test_a_time_without_a_zone_is_local_as_text_and_refused_as_a_datetime() -> None:
    local = datetime(2026, 11, 15, 10).astimezone()
    assert parse_time("2026-11-15T10:00") == to_ms(local)
    with pytest.raises(ValueError, match="has no time zone"):
        to_ms(datetime(2026, 11, 15, 10))  # noqa: DTZ001  # that is the test
    with pytest.raises(TypeError, match="not str"):
        to_ms("2026-11-15")


@pytest.mark.parametrize("text", ["", "yesterday", "1h", "2026-13-01", "0001-01-01T00:00+14:00"])
def test_what_is_not_a_time_is_none(text: str) -> None:
    assert parse_time(text) is None


@pytest.mark.parametrize(("duration", "seconds"), [(0, 0.0), (1.5, 1.5), (timedelta(minutes=2), 120.0)])
def test_a_duration_is_seconds_or_a_timedelta(duration: Any, seconds: float) -> None:
    assert to_seconds("wait", duration) == to_timeout("wait", duration) == seconds


def test_none_and_infinity_are_without_limit() -> None:
    assert to_timeout("wait", None) is None
    assert to_timeout("wait", math.inf) is None
    assert to_timeout("wait", timedelta.max) is None
    assert to_seconds("wait", math.inf) == FOREVER_S


@pytest.mark.parametrize(
    ("duration", "error"),
    [
        ("1s", TypeError),
        (True, TypeError),
        (-0.1, InvalidSetting),
        (timedelta(seconds=-1), InvalidSetting),
        (math.nan, InvalidSetting),
    ],
)
def test_what_is_not_a_duration_is_refused_by_name(duration: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^wait"):
        to_seconds("wait", duration)
