"""The history of groups: recorded, bounded, read back with gaps. Rebalances, lag and forecasts against the truth."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path

import pytest

import klamm
from klamm.cli import history_thread
from klamm.cli.history_thread import HistoryThread
from klamm.console import history
from klamm.console.history import HISTORY_TOPIC, History, Recorder, read_history, with_gaps
from klamm.console.rebalances import Assignment, Rebalance, RebalanceWatch, cause_of
from klamm.console.sampler import NEVER, GroupPoint, Look, Sampler, catch_up_ms, look
from tests.console.visitor import Visitor
from tests.procs import PATIENCE, Flag, children, until

A, B = ("a", ("t/0",)), ("b", ("t/1",))
BOTH = ("a", ("t/0", "t/1"))


def point(time_ms: int, end: int, lag: int, *assignment: tuple[str, tuple[str, ...]]) -> GroupPoint:
    return GroupPoint(time_ms, end, lag, 0, assignment)


def seen(*points: GroupPoint) -> list[Rebalance]:
    watch = RebalanceWatch()
    return [rebalance for each in points if (rebalance := watch.see(each)) is not None]


def test_a_rebalance_has_its_cause_and_what_the_pause_cost() -> None:
    (rebalance,) = seen(
        point(0, 100, 50, BOTH),
        point(2000, 200, 50, BOTH),
        point(4000, 300, 150, A, B),
        point(6000, 400, 250, A, B),
        point(8000, 500, 300, A, B),
        point(10_000, 600, 300, A, B),
    )
    assert rebalance == Rebalance(4000, "b joined", 2, 6000, 300)


def test_a_group_that_reads_on_or_has_nothing_to_read_has_no_pause() -> None:
    assert seen(point(0, 9, 0, BOTH), point(2000, 9, 0, A, B)) == [Rebalance(2000, "b joined", 2, 0, 0)]
    assert seen(point(0, 9, 0, A, B), point(2000, 9, 0, A, B)) == []


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        ((), (BOTH,), "a joined"),
        ((A, B), (BOTH,), "b left"),
        ((A,), (B,), "b joined, a left"),
        ((A,), (BOTH,), "1 partition was assigned"),
        ((BOTH,), (A,), "1 partition was given up"),
        ((A, B), (("a", ("t/1",)), ("b", ("t/0",))), "partitions changed hands"),
        ((), tuple((f"m{n}", ()) for n in range(5)), "m0, m1, m2 and 2 more joined"),
    ],
)
def test_a_cause_says_who_came_and_went(before: Assignment, after: Assignment, cause: str) -> None:
    assert cause_of(before, after) == cause


# ---- recorded


@pytest.fixture
def store(tmp_path: Path) -> klamm.Store:
    opened = klamm.open(tmp_path / "events")
    opened.topics.create("orders")
    opened.append_many("orders", [(None, b"x")] * 10, acks=1)
    opened.groups.reset("billing", "orders", to=4)
    return opened


def test_what_is_recorded_is_read_back_by_the_next_console(store: klamm.Store) -> None:
    with store:
        recorder = Recorder(store, every_s=0)
        now_ms = time.time_ns() // 1_000_000
        for n in range(3):
            recorder.record(Look(now_ms - 3000 + n * 1000, {}, {"billing": GroupPoint(0, 10, 6 - n, 900)}), {})
        rebalance = Rebalance(now_ms - 500, "b joined", 2, 4000, 17)
        recorder.record(Look(now_ms, {}, {}), {"billing": rebalance})
        assert recorder.problem is None
        points, rebalances = read_history(store, "billing", now_ms - 60_000)
        assert [(each.end, each.lag, each.lag_ms) for each in points] == [(10, 6, 900), (10, 5, 900), (10, 4, 900)]
        assert rebalances == [rebalance] and read_history(store, "other", 0) == ([], [])
        assert len(read_history(store, "billing", now_ms - 2500)[0]) == 2
        data = Visitor(store).get("/api/groups/show?group=billing").json
        assert [row["lag"] for row in data["history"]] == [6, 5, 4]
        assert data["rebalances"][0]["cause"] == "b joined"
        assert "17 records" in Visitor(store).get("/groups/show?group=billing&span=6h").words


STRANGE = (
    b"[" * 9000,
    b'{"groups": {"billing": 5}}',
    b'{"groups": {"billing": [1, 2]}}',
    b'{"groups": {"billing": ["<b>", 2, null]}}',
    b'{"rebalance": "billing", "time_ms": "x", "cause": "c", "members": 1, "pause_ms": 1, "came": 1}',
)


def test_a_record_that_is_no_history_is_left_out(store: klamm.Store) -> None:
    with store:
        Recorder(store, every_s=0).record(Look(1000, {}, {"billing": GroupPoint(0, 10, 6, None)}), {})
        for value in (b"x", b"[]", b'{"groups": 1}', b'{"rebalance": "billing"}', None, *STRANGE):
            store.append(HISTORY_TOPIC, value, acks=1)
        points, rebalances = read_history(store, "billing", 0)
        assert [point.lag for point in points] == [6] and rebalances == []


def test_the_topic_is_bounded_and_a_look_is_written_every_ten_seconds(store: klamm.Store) -> None:
    with store:
        recorder = Recorder(store)
        for n in range(50):
            recorder.record(Look(n, {}, {"billing": point(n, 10, 6)}), {})
        assert store[HISTORY_TOPIC].info().count == 1
        settings = store[HISTORY_TOPIC].settings()
        assert (settings["retention.ms"], settings["retention.bytes"]) == (str(7 * 86_400_000), str(64 << 20))


def test_a_recorder_that_cannot_write_says_so_and_goes_on(store: klamm.Store) -> None:
    recorder = Recorder(store, every_s=0)
    store.close()
    recorder.record(Look(0, {}, {"billing": point(0, 10, 6)}), {})
    assert recorder.problem


def test_a_history_that_was_read_is_not_read_again_at_once(store: klamm.Store) -> None:
    with store:
        history = History(store)
        assert history.read("billing", 1000) == ([], [])
        Recorder(store, every_s=0).record(Look(time.time_ns() // 1_000_000, {}, {"billing": point(0, 1, 1)}), {})
        assert history.read("billing", 1000) == ([], []) and len(history.read("billing", 2000)[0]) == 1


def test_where_nothing_was_recorded_there_is_a_gap() -> None:
    times = (0, 10_000, 20_000, 90_000, 100_000)
    points = [point(time_ms, 0, 5)._replace(lag_ms=7500, every_ms=10_000) for time_ms in times]
    assert with_gaps(points) == [
        (0, 5, 7.5),
        (10_000, 5, 7.5),
        (20_000, 5, 7.5),
        (30_000, None, None),
        (90_000, 5, 7.5),
        (100_000, 5, 7.5),
    ]


def test_a_store_that_takes_long_to_look_at_has_no_gaps_for_that(store: klamm.Store) -> None:
    """Looks come every 40 s, and say so: here, and in what was recorded."""
    with store:
        recorder = Recorder(store, every_s=0)
        now_ms = time.time_ns() // 1_000_000
        times = [now_ms - 600_000 + n * 40_000 for n in range(5)]
        for time_ms in times:
            recorder.record(Look(time_ms, {}, {"billing": point(time_ms, 10, 6)}, every_ms=40_000), {})
        points, _ = read_history(store, "billing", now_ms - 3_600_000)
        assert [each.every_ms for each in points] == [40_000] * 5
        assert [time_ms for time_ms, _, _ in with_gaps(points)] == times
        rows = Visitor(store).get("/api/groups/show?group=billing").json["history"]
        assert [row["every_ms"] for row in rows] == [40_000] * 5


def test_a_look_says_after_how_long_the_next_one_comes(store: klamm.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_: klamm.Store) -> Look:
        time.sleep(0.02)
        return Look(0, {}, {"g": point(0, 1, 0)})

    monkeypatch.setattr("klamm.console.sampler.look", slow)
    looks: list[Look] = []
    sampler = Sampler(store, interval_s=0.001, share=0.001, on_look=lambda seen, _: looks.append(seen))
    sampler.start()
    until(lambda: looks, "a look")
    sampler.stop()
    assert looks[0].every_ms >= 20_000
    assert [each.every_ms for each in sampler.group_history("g")][:1] == [looks[0].every_ms]
    store.close()


def test_one_process_records_at_a_time_and_another_takes_over(store: klamm.Store, tmp_path: Path) -> None:
    """The first is a console that is killed; the second stands for a server beside it."""
    recorded = Flag(tmp_path / "recorded")
    path = store.path
    store.close()

    def record() -> None:
        with klamm.open(path) as opened:
            Recorder(opened, every_s=0).record(Look(1000, {}, {"billing": point(1000, 10, 6)}), {})
            recorded.up()
            time.sleep(PATIENCE)

    with children() as start:
        first = start(record)
        recorded.wait()
        with klamm.open(path) as opened:
            second = Recorder(opened, every_s=0)
            assert "history of groups" in {lock.lock for lock in opened.who()}
            second.record(Look(2000, {}, {"billing": point(2000, 10, 5)}), {})
            assert opened[HISTORY_TOPIC].info().count == 1 and second.problem is None
            first.kill()
            second.record(Look(3000, {}, {"billing": point(3000, 10, 4)}), {})
            assert [each.lag for each in read_history(opened, "billing", 0)[0]] == [6, 4]


def test_two_consoles_of_a_process_record_once(store: klamm.Store) -> None:
    with store:
        for recorder in (Recorder(store, every_s=0), Recorder(store, every_s=0)):
            recorder.record(Look(1000, {}, {"billing": point(1000, 10, 6)}), {})
        assert store[HISTORY_TOPIC].info().count == 1


def test_a_store_without_groups_has_no_history(store: klamm.Store) -> None:
    with store:
        Recorder(store, every_s=0).record(Look(1000, {"orders": 10}, {}), {})
        assert HISTORY_TOPIC not in store.topics


def test_a_server_records_the_history_unless_a_console_does(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_thread, "START_AFTER_S", 0.01)
    monkeypatch.setattr(history, "EVERY_S", 0.01)
    monkeypatch.setattr(Recorder, "record", partialmethod(_record_each, Recorder.record))
    with store:
        thread = HistoryThread(Path(store.path))
        thread.start()
        until(lambda: len(read_history(store, "billing", 0)[0]) > 1, "the server records")
        assert not Recorder(store).is_recorder()
        thread.stop()
        count = store[HISTORY_TOPIC].info().count
        assert not [each for each in threading.enumerate() if each.name in ("klamm-history", "klamm-console-sampler")]
        assert store[HISTORY_TOPIC].info().count == count


def _record_each(self: Recorder, record: Callable[..., None], *args: object) -> None:
    """Record a look although the last one was written a moment ago."""
    self._next_s = 0.0
    record(self, *args)


def test_a_thread_that_is_stopped_before_its_time_opens_nothing(tmp_path: Path) -> None:
    for is_started in (False, True):
        thread = HistoryThread(tmp_path / "nothing")
        if is_started:
            thread.start()
        thread.stop()
    assert not (tmp_path / "nothing").exists()


# ---- lag and forecasts


def test_lag_in_seconds_is_exact_to_the_record(tmp_path: Path) -> None:
    """The age of the first record that was not read: of each partition, and the oldest of them for the group."""
    draw = random.Random(11)
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("t", partitions=3)
        base_ms = time.time_ns() // 1_000_000 - 3_600_000
        stamps = {number: sorted(base_ms + draw.randrange(3_000_000) for _ in range(50)) for number in range(3)}
        for number, times in stamps.items():
            store.append_many("t", [(None, b"x", None, time_ms) for time_ms in times], partition=number, acks=1)
        for _ in range(5):
            at = {number: draw.randrange(50) for number in range(3)}
            store.groups.reset("g", "t", to=at)
            before_ms = time.time_ns() // 1_000_000
            group = look(store).groups["g"]
            after_ms = time.time_ns() // 1_000_000
            oldest = min(stamps[number][offset] for number, offset in at.items())
            assert group.lag == sum(50 - offset for offset in at.values())
            assert group.lag_ms is not None and before_ms - oldest <= group.lag_ms <= after_ms - oldest
            for offset in store.groups.describe("g").offsets:
                expected = stamps[offset.partition][at[offset.partition]]
                assert offset.lag_ms is not None and 0 <= offset.lag_ms - (before_ms - expected) < 60_000


@pytest.mark.parametrize("seed", range(12))
def test_a_forecast_is_within_a_fifth_of_the_truth_at_steady_rates(seed: int) -> None:
    """Writers append, and the group commits, in batches of their own; looks come at other times."""
    draw = random.Random(seed)
    in_per_s, faster = draw.uniform(10, 5000), draw.uniform(1.2, 3)
    out_per_s = in_per_s * faster
    in_every, out_every = draw.uniform(0.01, 1.0), draw.uniform(0.05, 3.0)
    lag = int((out_per_s - in_per_s) * draw.uniform(120, 3000))
    points = []
    for number in range(31):
        now_s = number * 2.0 + draw.uniform(-0.2, 0.2)
        end = lag + int(now_s / in_every) * in_every * in_per_s
        passed = int(now_s / out_every) * out_every * out_per_s
        points.append(GroupPoint(int(now_s * 1000), int(end), int(end - passed), 60_000))
    now_ms = points[-1].time_ms
    forecast = catch_up_ms(points, now_ms)
    truth_ms = points[-1].lag / (out_per_s - in_per_s) * 1000
    assert isinstance(forecast, float) and abs(forecast - truth_ms) < 0.2 * truth_ms, (seed, forecast, truth_ms)


def test_a_lag_that_grows_or_stays_is_never_caught_up() -> None:
    for step in (0, 5):
        points = [GroupPoint(n * 2000, 1000, 500 + n * step, 60_000) for n in range(31)]
        assert catch_up_ms(points, points[-1].time_ms) == NEVER


def test_the_sampler_hands_each_look_to_the_recorder(store: klamm.Store) -> None:
    with store:
        calls: list[tuple[Look, dict[str, Rebalance]]] = []
        sampler = Sampler(store, on_look=lambda seen, over: calls.append((seen, over)))
        sampler.add(Look(0, {}, {"g": point(0, 9, 0, BOTH)}))
        sampler.add(Look(2000, {}, {"g": point(2000, 9, 0, A, B)}))
        assert [over for _, over in calls] == [{}, {"g": Rebalance(2000, "b joined", 2, 0, 0)}]
        assert sampler.rebalances("g") == [Rebalance(2000, "b joined", 2, 0, 0)]
