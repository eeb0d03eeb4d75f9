"""The first of each id passes as it was; the others are counted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.errors import InvalidSetting, StoreBusy
from klamm.spark.pipelines.deduplicate_pipeline import deduplicate
from klamm.spark.pipelines.pipeline_directory import PipelineDirectory
from tests.crash.cases import seed_of
from tests.spark.pipelines.reference import (
    NO_RETENTION,
    START_MS,
    Event,
    contents,
    order,
    orders,
    rounds,
    send,
)

pytestmark = pytest.mark.timeout(300)
MINUTE = 60_000


class Firsts:
    """The reference. It forgets nothing: that Spark's state does is not to be seen."""

    def __init__(self, within_ms: int, delay_ms: int, by: Any) -> None:
        self.within_ms, self.delay_ms, self.by = within_ms, delay_ms, by
        self.passed: list[Event] = []
        self.last: dict[Any, int] = {}
        self.late = self.letters = self.dropped = 0

    def run(self, runs: Sequence[Sequence[Sequence[Any]]]) -> Firsts:
        def times(events: Sequence[Any]) -> list[list[int]]:
            return [[each.timestamp for each in events if self.by(each) is not None]]

        for round_ in rounds(runs, self.delay_ms, times):
            for each in sorted(round_.events or (), key=lambda each: (each.timestamp, each.partition, each.offset)):
                key = self.by(each)
                if key is None:
                    self.letters += 1
                elif each.timestamp <= round_.late_ms:
                    self.late += 1
                elif key in self.last and each.timestamp < self.last[key] + self.within_ms:
                    self.dropped += 1
                else:
                    self.last[key] = each.timestamp
                    self.passed.append(each)
        return self


def rows(records: Sequence[Any]) -> Counter[Any]:
    return Counter((each.key, each.value, each.timestamp, each.headers) for each in records)


def by_header(record: Any) -> bytes | None:
    return dict(record.headers).get("id")


def test_the_first_of_each_id_passes_as_it_was_and_the_others_are_counted(spark: Any, store: klamm.Store) -> None:
    dice = random.Random(seed_of())
    store.topics.create("orders", 2, NO_RETENTION)
    sent = [
        orders(dice, 40, START_MS, 10 * MINUTE),
        orders(dice, 40, START_MS + 5 * MINUTE, 10 * MINUTE) + [order(START_MS + n, n) for n in range(4)],
        orders(dice, 10, START_MS + 60 * MINUTE, 10 * MINUTE),
    ]
    runs: list[list[Any]] = []
    seen = 0
    total: Counter[str] = Counter()
    for events in sent:
        send(store, "orders", events)
        runs.append([[each for each in contents(store, "orders") if (each.partition, each.offset) not in known(runs)]])
        report = deduplicate(
            spark, store.path, "orders", "once", by="header:id", within="4 minutes", watermark="6 minutes"
        )
        want = Firsts(4 * MINUTE, 6 * MINUTE, by_header).run(runs)
        assert rows(contents(store, "once")) == rows(want.passed)
        total.update(late=report.late, letters=report.dead_letters, dropped=report.details["dropped"])
        assert total == Counter(late=want.late, letters=want.letters, dropped=want.dropped)
        assert report.rows_read == len(events) and report.rows_written == len(want.passed) - seen
        seen = len(want.passed)
    assert min(total.values()) >= 4
    assert {each.reason for each in store.dead_letters("orders.dlq")} == {"has no header:id"}


def known(runs: Sequence[Sequence[Sequence[Any]]]) -> set[tuple[int, int]]:
    return {(each.partition, each.offset) for run in runs for batch in run for each in batch}


def test_state_is_forgotten_when_the_watermark_has_passed_and_the_folder_is_of_this_pipeline_only(
    spark: Any, store: klamm.Store, tmp_path: Path
) -> None:
    store.topics.create("orders", 1, NO_RETENTION)

    def run(**more: Any) -> Any:
        given = {"within": "1 minute", "watermark": "0 seconds", "checkpoint": tmp_path / "mine", **more}
        return deduplicate(spark, store.path, "orders", "once", **given)

    stops = [KeyboardInterrupt]

    def stop(done: int, total: int | None) -> None:
        if done == total == 20 and stops:
            raise stops.pop()

    send(store, "orders", [Event(START_MS + n, b"%d" % n, None) for n in range(20)])
    assert run(every="1 second", progress=stop).rows_written == 20  # until Ctrl-C
    assert stops == []
    send(store, "orders", [Event(START_MS + 10 * MINUTE, b"new", b"1")])
    assert run().rows_written == 1
    state = (
        spark.read.format("statestore").option("stateVarName", "passed").load(str(tmp_path / "mine/_klamm/checkpoint"))
    )
    assert [bytes(row.key.id) for row in state.collect()] == [b"new"]
    with (
        PipelineDirectory(str(tmp_path / "mine"), {}).alone(),
        pytest.raises(StoreBusy, match="mine: another run is at work"),
    ):
        run()
    with pytest.raises(InvalidSetting, match='was begun with within = "60000 milliseconds", not "120000 milliseconds"'):
        run(within="2 minutes")
    with pytest.raises(InvalidSetting, match='was begun with by = "key", not "header:id"'):
        run(by="header:id")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"within": ""}, "within: '' is not a time"),
        ({"within": "0 days"}, "within: '0 days' is too short"),
        ({"watermark": "later"}, "watermark: 'later' is not a time"),
        ({"max_offsets": 0}, "max_offsets: 0 is invalid"),
        ({"every": "now"}, "every: 'now' is not a time"),
        ({"by": "header:"}, "by: 'header:' is not a usable part of a record"),
        ({"by": "$.a[x]"}, "by: '$.a[x]' is not a path into JSON"),
        ({"to": "orders"}, "to: 'orders' is an input of the pipeline"),
        ({"dead_letters": "orders"}, "dead_letters: 'orders' is an input of the pipeline"),
    ],
)
def test_what_does_not_fit_is_told_in_a_sentence_before_spark_is_asked(
    store: klamm.Store, given: dict[str, Any], said: str
) -> None:
    nobody: Any = None
    store.topics.create("orders")
    with pytest.raises(InvalidSetting) as refused:
        deduplicate(nobody, store.path, "orders", **{"to": "once", "within": "1 minute", **given})
    assert said in refused.value.message
