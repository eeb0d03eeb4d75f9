"""Windows of time: what comes out is what plain Python counts, late and broken records included."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.errors import InvalidSetting, StoreBusy, UnknownTopic
from klamm.spark.pipelines import streams
from klamm.spark.pipelines.aggregate_pipeline import aggregate
from klamm.spark.pipelines.pipeline_directory import PipelineDirectory
from tests.crash.cases import seed_of
from tests.spark.pipelines.reference import (
    NO_RETENTION,
    START_MS,
    Event,
    contents,
    iso,
    order,
    orders,
    parsed,
    rounds,
    send,
)

pytestmark = pytest.mark.timeout(300)
MINUTE = 60_000


class Windows:
    """The reference: what is in which window, what is late, what is broken."""

    def __init__(self, window_ms: int, slide_ms: int, delay_ms: int, *, by: Any, time: Any) -> None:
        self.window_ms, self.slide_ms, self.delay_ms = window_ms, slide_ms, delay_ms
        self.by, self.time = by, time
        self.open: dict[tuple[int, Any], list[Decimal]] = {}
        self.closed: dict[tuple[int, Any], list[Decimal]] = {}
        self.late = self.missed = self.broken = 0

    def use(self, event: Event) -> tuple[int, Any, Decimal] | None:
        value = parsed(event.value)
        if not isinstance(value, dict):
            return None
        found = (self.time(event, value), self.by(event, value), value.get("total"))
        return None if found[0] is None or found[1] is ... or found[2] is None else (*found[:2], Decimal(str(found[2])))

    def run(self, runs: Sequence[Sequence[Sequence[Event]]]) -> None:
        times = lambda events: [[used[0] for each in events if (used := self.use(each))]]  # noqa: E731
        for round_ in rounds(runs, self.delay_ms, times):
            for event in round_.events or ():
                used = self.use(event)
                if used is None:
                    self.broken += 1
                    continue
                at, by, total = used
                first = (at - self.window_ms) // self.slide_ms * self.slide_ms + self.slide_ms
                starts = range(first, at + 1, self.slide_ms)
                missed = [start for start in starts if start + self.window_ms <= round_.late_ms]
                self.missed += len(missed)
                self.late += bool(missed)
                for start in starts:
                    if start not in missed:
                        self.open.setdefault((start, by), []).append(total)
            for tp in [tp for tp in self.open if tp[0] + self.window_ms <= round_.watermark_ms]:
                self.closed[tp] = self.open.pop(tp)


def results(windows: dict[tuple[int, Any], list[Decimal]], window_ms: int) -> dict[bytes, Any]:
    return {
        f"{iso(start)}/{by}".encode() if by is not None else iso(start).encode(): {
            "window": {"start": iso(start), "end": iso(start + window_ms)},
            "key": by,
            "count": len(totals),
            "sum($.total)": sum(totals),
            "min($.total)": min(totals),
            "max($.total)": max(totals),
        }
        for (start, by), totals in windows.items()
    }


ALL = ("count", "sum($.total)", "min( $.total )", "max($.total)")


def test_windows_have_what_plain_python_counts_and_late_and_broken_records_are_counted_too(
    spark: Any, store: klamm.Store
) -> None:
    dice = random.Random(seed_of())
    store.topics.create("orders", 1, NO_RETENTION)
    runs = [
        [  # micro-batches: the third is late by the watermark of the second, which is of the first; 6 records are
            orders(dice, 20, START_MS, MINUTE),
            orders(dice, 20, START_MS + 5 * MINUTE, MINUTE),
            orders(dice, 14, START_MS + MINUTE, 2 * MINUTE) + [order(START_MS - 3 * MINUTE + n, 0) for n in range(6)],
        ],
        [[order(START_MS + n, 0) for n in range(5)] + [order(START_MS + 20 * MINUTE, 0)]],
    ]
    before = Windows(MINUTE, MINUTE, MINUTE, by=None, time=None)
    for number, batches in enumerate(runs):
        want = Windows(
            MINUTE,
            MINUTE,
            MINUTE,
            by=lambda event, value: value.get("user", {}).get("id", ...),
            time=lambda event, value: event.at,
        )
        want.run(runs[: number + 1])
        sent = [event for batch in batches for event in batch]
        send(store, "orders", sent)
        report = aggregate(
            spark,
            store.path,
            "orders",
            "minutes",
            window="1 minute",
            watermark="1 minute",
            by="$.user.id",
            aggregates=ALL,
            max_offsets=20,
        )
        found = contents(store, "minutes")
        assert {each.key: json.loads(each.value, parse_float=Decimal) for each in found} == results(want.closed, MINUTE)
        assert len(found) == len(want.closed), "a window came out twice"
        assert len(contents(store, "orders.dlq")) == want.broken
        assert (report.rows_read, report.rows_written, report.dead_letters, report.late, report.details["missed"]) == (
            len(sent),
            len(want.closed) - len(before.closed),
            want.broken - before.broken,
            want.late - before.late,
            want.missed - before.missed,
        )
        before = want
    assert before.late == 11 and before.broken == 5
    letters = list(store.dead_letters("orders.dlq"))
    assert {each.reason for each in letters} <= {"has no $.user.id", "has no number $.total"}
    assert {each.error for each in letters} == {"klamm.errors.InvalidRecord"}
    origins = {(each.origin.partition, each.origin.offset): each.record.value for each in letters if each.origin}
    kept = {(each.partition, each.offset): each.value for each in contents(store, "orders")}
    assert origins.items() <= kept.items() and len(origins) == before.broken


TIMES = (
    b'{"at": %d.75, "total": 1}' % START_MS,
    b'{"at": "%d", "total": 1}' % START_MS,
    b'{"at": "%s", "total": 1}' % iso(START_MS).encode(),
    b'{"at": -120000, "total": 1}',  # before 1970, where watermarks begin: late
    b'{"at": %d, "total": 1} and more' % START_MS,
    b'{"at": %d000, "total": 1}' % START_MS,  # microseconds
    b'{"at": %d000000, "total": 1}' % START_MS,
    b'{"at": 9223372036854775807, "total": 1}',
    b'{"at": "+12000-01-01T00:00:00Z", "total": 1}',
    b'{"at": "12:30", "total": 1}',
    b'{"at": [%d], "total": 1}' % START_MS,
)


def when(at: Any) -> int | None:
    """The time that a record says; None: it is none."""
    if isinstance(at, str) and at.startswith("20"):
        return int(datetime.fromisoformat(at).timestamp() * 1000)
    try:
        return int(float(at)) if abs(float(at)) < 1e14 else None
    except (TypeError, ValueError):
        return None


def test_a_table_has_the_windows_as_they_are_now_and_a_micro_batch_done_again_changes_nothing(
    spark: Any, store: klamm.Store
) -> None:
    dice = random.Random(seed_of())
    store.topics.create("orders", 2, NO_RETENTION)
    timed = [Event(START_MS, b"anna-0", value) for value in TIMES]
    runs = [
        [orders(dice, 40, START_MS, 4 * MINUTE) + timed],
        [[*orders(dice, 20, START_MS, 8 * MINUTE), order(START_MS, 0)]],
    ]

    def run() -> Any:
        report = aggregate(
            spark,
            store.path,
            "orders",
            "now",
            window="2 minutes",
            slide="1 minute",
            watermark="1 minute",
            time="$.at",
            aggregates=ALL,
            table=True,
        )
        with store.table("now") as table:
            found = {key: json.loads(value, parse_float=Decimal) for key, value in table.items()}
        assert found == results({**want.closed, **want.open}, 2 * MINUTE)
        return report

    late = missed = 0
    for number in range(len(runs)):
        want = Windows(
            2 * MINUTE,
            MINUTE,
            MINUTE,
            by=lambda event, value: None if event.key is None else event.key.decode(),
            time=lambda event, value: when(value.get("at")),
        )
        want.run(runs[: number + 1])
        send(store, "orders", runs[number][0])
        report = run()
        late, missed = late + report.late, missed + report.details["missed"]
    assert (late, missed) == (want.late, want.missed) and missed > late > 0

    # As if killed when the last micro-batch with records was in the log, and Spark had not noted that it was done.
    before = [(each.key, each.value, each.timestamp) for each in contents(store, "now")]
    folder = Path(store.path, "pipelines/aggregate-orders-now/_klamm/checkpoint")
    for name in ("offsets/3", "offsets/.3.crc", "commits/3", "commits/.3.crc", "commits/2", "commits/.2.crc"):
        (folder / name).unlink()
    assert run().rows_read == len(runs[1][0])
    assert [(each.key, each.value, each.timestamp) for each in contents(store, "now")] == before


def test_an_empty_topic_is_no_error_and_its_folder_is_of_this_pipeline_only(
    spark: Any, store: klamm.Store, tmp_path: Path
) -> None:
    store.topics.create("orders")
    store.topics.create("payments")

    def run(topic: str = "orders", to: str = "counts", **more: Any) -> Any:
        given = {"window": "1 minute", "watermark": "0 seconds", "checkpoint": tmp_path / "mine", **more}
        return aggregate(spark, store.path, topic, to, **given)

    report = run()
    assert (report.rows_read, report.rows_written, report.late) == (0, 0, 0)
    wrong: dict[str, dict[str, Any]] = {
        'belongs to the pipeline aggregate of orders: its topics is {"orders"': {"topic": "payments"},
        'was begun with window = "60000 milliseconds", not "120000 milliseconds"': {"window": "2 minutes"},
        'was begun with by = "key", not "$.id"': {"by": "$.id"},
        'was begun with to = "counts", not "others"': {"to": "others", "table": True},
    }
    for said, more in wrong.items():
        with pytest.raises(InvalidSetting) as refused:
            run(**more)
        assert said in refused.value.message
    assert "counts" in store.topics and "others" not in store.topics
    with (
        PipelineDirectory(str(tmp_path / "mine"), {}).alone(),
        pytest.raises(StoreBusy, match="mine: another run is at work"),
    ):
        run()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"window": "soon"}, "window: 'soon' is not a time"),
        ({"window": "0 seconds"}, "window: '0 seconds' is too short"),
        ({"window": "99999999999 weeks"}, "window: '99999999999 weeks' is too long"),
        ({"window": 60}, "window: 60 is not a time"),
        ({"by": None}, "by: None is not a usable part of a record"),
        ({"watermark": "-1 minute"}, "watermark: '-1 minute' is not a time"),
        ({"slide": "1 hour"}, "slide: 1 hour is longer than the window of 1 minute"),
        ({"max_offsets": 0}, "max_offsets: 0 is invalid"),
        ({"every": "often"}, "every: 'often' is not a time"),
        ({"aggregates": ["median($.total)"]}, r"aggregates: 'median($.total)' is invalid"),
        ({"aggregates": ["sum"]}, "aggregates: 'sum' does not say of what"),
        ({"aggregates": ["count($.total)"]}, "aggregates: 'count($.total)' counts records, not a field"),
        ({"aggregates": ["sum(key)"]}, "aggregates: 'key' is not a usable part of a record"),
        ({"aggregates": []}, "aggregates: empty"),
        ({"aggregates": {"window": "count"}}, "aggregates: 'window' cannot be a name"),
        ({"by": "$.user..id"}, "by: '$.user..id' is not a path into JSON"),
        ({"by": "value"}, "by: 'value' is not a usable part of a record"),
        ({"time": "yesterday"}, "time: 'yesterday' is not a usable part of a record"),
        ({"to": "orders"}, "to: 'orders' is an input of the pipeline"),
        ({"to": "orders.dlq"}, "to: 'orders.dlq' is the dead-letter topic"),
        ({"to": "plain", "table": True}, "to: the topic plain is not compacted, so it is not a table"),
    ],
)
def test_what_does_not_fit_is_told_in_a_sentence_before_spark_is_asked(
    store: klamm.Store, given: dict[str, Any], said: str
) -> None:
    nobody: Any = None
    store.topics.create("orders")
    store.topics.create("plain")
    with pytest.raises(InvalidSetting) as refused:
        aggregate(nobody, store.path, "orders", **{"to": "out", "window": "1 minute", "watermark": "1 minute", **given})
    assert said in refused.value.message


def test_a_topic_that_is_not_there_is_told(store: klamm.Store) -> None:
    nobody: Any = None
    with pytest.raises(UnknownTopic, match="orders"):
        aggregate(nobody, store.path, "orders", "out", window="1 minute", watermark="1 minute")


def test_state_that_was_begun_as_snapshots_goes_on_as_a_changelog(
    spark: Any, store: klamm.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots are Spark's default, and were ours; what was counted before is counted on."""
    changelog = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
    store.topics.create("orders", 1, NO_RETENTION)
    store.append("orders", b"{}", key=b"id", timestamp=START_MS)
    with monkeypatch.context() as patch:
        patch.setitem(streams._OWN, changelog, "false")
        aggregate(spark, store.path, "orders", "minutes", window="1 minute", watermark="1 minute")
    state = Path(store.path) / "pipelines"
    assert list(state.rglob("*.zip")) and not list(state.rglob("*.changelog"))
    store.append("orders", b"{}", key=b"id", timestamp=START_MS)
    store.append("orders", b"{}", key=b"id", timestamp=START_MS + 3_600_000)
    aggregate(spark, store.path, "orders", "minutes", window="1 minute", watermark="1 minute")
    assert list(state.rglob("*.changelog"))
    with store.consumer("minutes", start="earliest", wait=0) as consumer:
        assert [json.loads(record.value)["count"] for record in consumer] == [2]
