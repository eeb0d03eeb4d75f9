"""Timers, against a list that is sorted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from klamm.kafka.timers import Timer, Timers

STEPS = st.lists(st.tuples(st.sampled_from(["arm", "cancel", "run"]), st.integers(0, 5), st.integers(0, 50)))


@given(STEPS)
def test_each_timer_fires_once_at_its_last_deadline_and_the_earliest_first(steps: list[tuple[str, int, int]]) -> None:
    now_ms = 0
    fired: list[tuple[int, int]] = []
    timers = Timers()
    clocks = [Timer(lambda _, n=n: fired.append((wanted[n], n))) for n in range(6)]  # type: ignore[misc]
    wanted: dict[int, int] = {}
    for what, n, ms in steps:
        if what == "arm":
            timers.arm(clocks[n], now_ms + ms)
            wanted[n] = now_ms + ms
        elif what == "cancel":
            timers.cancel(clocks[n])
            wanted.pop(n, None)
        else:
            now_ms += ms
            fired.clear()
            timers.run(now_ms)
            due = sorted((deadline_ms, n) for n, deadline_ms in wanted.items() if deadline_ms <= now_ms)
            assert sorted(fired) == due
            assert [deadline_ms for deadline_ms, _ in fired] == [deadline_ms for deadline_ms, _ in due]
            wanted = {n: deadline_ms for n, deadline_ms in wanted.items() if deadline_ms > now_ms}
        assert len(timers) == len(wanted)
        assert timers.next_deadline() == min(wanted.values(), default=None)


def test_timers_that_are_armed_and_cancelled_for_ever_leave_nothing_behind() -> None:
    timers = Timers()
    for n in range(10_000):
        timer = Timer(lambda _: None)
        timers.arm(timer, 300_000 + n)
        timers.cancel(timer)
    assert len(timers._heap) < 100


def test_a_timer_that_moves_later_all_the_time_takes_one_place() -> None:
    timers, timer = Timers(), Timer(lambda _: None)
    for n in range(10_000):
        timers.arm(timer, n)
    assert len(timers._heap) == 1
    assert timers.next_deadline() == 9_999
