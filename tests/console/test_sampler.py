"""Rates, lag in seconds and forecasts: exact where they can be, and honest where they cannot."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import klamm
from klamm.console.sampler import (
    NEVER,
    GroupPoint,
    Look,
    Sampler,
    Stall,
    catch_up_ms,
    group_point,
    look,
    per_second,
    stalls_of,
    standing,
)

HOUR_MS = 3_600_000


@given(
    st.lists(st.integers(0, 10**7), min_size=3, max_size=60, unique=True),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_a_rate_is_what_was_counted_over_the_time_that_passed(counts: list[int], first: int, step: int) -> None:
    counts.sort()
    points = [(1_000_000 + 1000 * n, count) for n, count in enumerate(counts)]
    within = [point for point in points if point[0] >= points[-1][0] - 10_000]
    expected = (within[-1][1] - within[0][1]) / ((within[-1][0] - within[0][0]) / 1000)
    assert per_second(points, points[-1][0]) == pytest.approx(expected)


def test_a_count_that_falls_starts_over() -> None:
    assert per_second([(0, 900), (1000, 1000), (2000, 0), (3000, 50)], 3000) == 50
    assert per_second([(0, 900), (1000, 10)], 1000) is None
    assert per_second([], 0) is None and per_second([(0, 1)], 0) is None


@given(lag=st.integers(1_000, 10**9), per_s=st.integers(1, 10**6), seconds=st.integers(2, 60))
def test_at_a_steady_rate_the_forecast_is_right(lag: int, per_s: int, seconds: int) -> None:
    lag = max(lag, per_s * seconds + 1)
    points = [GroupPoint(n * 1000, 0, lag - per_s * n, HOUR_MS) for n in range(seconds + 1)]
    left = points[-1].lag / per_s * 1000
    assert catch_up_ms(points, points[-1].time_ms) == pytest.approx(left)


def test_a_lag_that_grows_or_stays_is_never_caught_up() -> None:
    for change in (0, 5):
        points = [GroupPoint(n * 1000, 0, 100 + change * n, 5_000) for n in range(5)]
        assert catch_up_ms(points, 4000) == NEVER
    assert catch_up_ms([GroupPoint(0, 0, 5, None)], 0) is None
    assert catch_up_ms([GroupPoint(0, 0, 5, 0), GroupPoint(1000, 5, 0, 0)], 1000) == 0


def test_a_group_that_has_read_all_but_the_last_moment_keeps_up() -> None:
    points = [GroupPoint(n * 1000, 0, 10 + n, 4_999) for n in range(5)]
    assert catch_up_ms(points, 4000) == 0


def test_a_look_that_failed_is_a_gap(tmp_path: Path) -> None:
    with klamm.open(tmp_path) as store:
        sampler = Sampler(store)
        for n in range(3):
            sampler.add(Look(n * 2000, {"a": n * 100}, {}))
        sampler.add(None)
        assert [point["in_per_s"] for point in sampler.totals()] == [None, 50, 50, None]


def test_rates_of_topics_and_groups_come_from_what_was_seen(tmp_path: Path) -> None:
    with klamm.open(tmp_path) as store:
        sampler = Sampler(store)
        for n in range(4):
            group = GroupPoint(n * 1000, 1000 + 300 * n, 500 + 100 * n, HOUR_MS)
            sampler.add(Look(n * 1000, {"a": 200 * n, "b": 100 * n}, {"g": group}))
        assert (sampler.in_per_s(), sampler.in_per_s("a"), sampler.in_per_s("c")) == (300, 200, None)
        assert (sampler.out_per_s(), sampler.out_per_s("g"), sampler.out_per_s("h")) == (200, 200, None)
        assert sampler.catch_up_ms("g") == NEVER and sampler.catch_up_ms("h") is None


@pytest.mark.parametrize("committed", range(11))
def test_lag_in_seconds_is_exact_to_the_record(tmp_path: Path, committed: int) -> None:
    """Every record has a time of its own: the lag is the age of the first one that was not read, to the millisecond."""
    begin_ms = time.time_ns() // 1_000_000 - HOUR_MS
    times = [begin_ms + 1000 * n for n in range(10)]
    with klamm.open(tmp_path) as store:
        store.topics.create("t")
        store.append_many("t", [(None, b"v", None, stamp) for stamp in times])  # one batch, many times
        store.groups.reset("g", "t", to={0: committed})
        before_ms = time.time_ns() // 1_000_000
        point = group_point(store.groups.describe("g"), 0)
        after_ms = time.time_ns() // 1_000_000
        assert point.lag == 10 - committed
        if committed == 10:
            assert point.lag_ms == 0
        else:
            assert point.lag_ms is not None
            assert before_ms - times[committed] <= point.lag_ms <= after_ms - times[committed]


def test_lag_of_a_group_is_that_of_its_oldest_partition_and_skips_what_was_aborted(tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    with klamm.open(tmp_path) as store:
        store.topics.create("t", partitions=2)
        store.append("t", b"old", partition=0, timestamp=now_ms - 90_000)
        aborted = store.transaction(batch_bytes=1)
        aborted.send("t", b"aborted", partition=1, timestamp=now_ms - HOUR_MS)
        aborted.abort()
        store.append("t", b"new", partition=1, timestamp=now_ms - 5_000)
        store.groups.reset("g", "t", to={0: 0, 1: 0})
        point = group_point(store.groups.describe("g"), 0)
        spent_ms = time.time_ns() // 1_000_000 - now_ms
        assert point.lag_ms is not None and 90_000 <= point.lag_ms <= 90_000 + spent_ms
        seen = look(store)
        assert seen.ends["t"] == store["t"].info().count and seen.groups["g"].lag == point.lag


def test_a_member_that_reads_one_partition_after_the_other_does_not_stand_still() -> None:
    both = (("a", ("t/0", "t/1")), ("b", ("t/2",)))
    looks = [
        GroupPoint(0, 0, 9, 9999, both, (("t/0", 5), ("t/1", 5), ("t/2", 5))),
        GroupPoint(60_000, 0, 9, 9999, both, (("t/0", 5), ("t/1", 8), ("t/2", 5))),
        GroupPoint(120_000, 0, 9, 9999, both, (("t/0", 5), ("t/1", 8), ("t/2", 6))),
        GroupPoint(180_000, 0, 9, 9999, (("c", ("t/0", "t/1")), ("b", ("t/2",))), (("t/0", 5), ("t/2", 6))),
    ]
    stalls: dict[str, Stall] = {}
    seen = []
    for point in looks:
        stalls = stalls_of(point, stalls)
        seen.append([(stall.partition, stall.since_ms) for stall in standing(stalls.values(), point.time_ms - 60_000)])
    assert seen == [[], [("t/2", 0)], [("t/0", 0), ("t/1", 60_000)], [("t/2", 120_000)]]
