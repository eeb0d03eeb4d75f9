"""Two topics joined: the pairs that plain Python finds, and what is late or has no key is told apart."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.errors import InvalidSetting, StoreBusy
from klamm.spark.pipelines.join_pipeline import join
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
Sides = tuple[Sequence[Event], Sequence[Event]]


class Pairs:
    """The reference: all pairs among the records that were not late, and left records that are alone."""

    def __init__(self, within_ms: int, delay_ms: int, by: tuple[Any, Any]) -> None:
        self.within_ms, self.delay_ms, self.by = within_ms, delay_ms, by
        self.kept: tuple[list[Event], list[Event]] = ([], [])
        self.late = self.letters = 0
        self.watermark_ms = 0

    def run(self, runs: Sequence[Sequence[Sides]]) -> Pairs:
        def times(sides: Sides) -> list[list[int]]:
            return [[each.at for each in sides[n] if self.by[n](each) is not None] for n in (0, 1)]

        for round_ in rounds(runs, self.delay_ms, times):
            self.watermark_ms = round_.watermark_ms
            for number, events in enumerate(round_.events or ()):
                for event in events:
                    if self.by[number](event) is None:
                        self.letters += 1
                    elif event.at <= round_.late_ms:
                        self.late += 1
                    else:
                        self.kept[number].append(event)
        return self

    def results(self, *, left: bool) -> Counter[Any]:
        found: Counter[Any] = Counter()
        for one in self.kept[0]:
            key = self.by[0](one)
            mates = [
                each for each in self.kept[1] if self.by[1](each) == key and abs(each.at - one.at) <= self.within_ms
            ]
            for mate in mates:
                found[key, max(one.at, mate.at), one.value, iso(one.at), mate.value, iso(mate.at)] += 1
            if left and not mates and one.at + self.within_ms < self.watermark_ms:
                found[key, one.at, one.value, iso(one.at), None, None] += 1
        return found


def results(store: klamm.Store, topic: str) -> Counter[Any]:
    """What is in the topic, with the values as they were sent."""
    found: Counter[Any] = Counter()
    for record in contents(store, topic):
        row = json.loads(record.value)
        assert row["key"].encode() == record.key
        sides = [None if row[side] is None else canonical(row[side]) for side in ("left", "right")]
        found[record.key, record.timestamp, sides[0], row["left_timestamp"], sides[1], row["right_timestamp"]] += 1
    return found


def canonical(value: Any) -> Any:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def as_told(expected: Counter[Any]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for (key, at, left, left_at, right, right_at), count in expected.items():
        told = [
            None
            if value is None
            else canonical(parsed(value) if parsed(value) is not None else value.decode("utf-8", "replace"))
            for value in (left, right)
        ]
        found[key, at, told[0], left_at, told[1], right_at] += count
    return found


def test_pairs_are_those_of_plain_python_and_late_records_are_counted(spark: Any, store: klamm.Store) -> None:
    dice = random.Random(seed_of())
    for name in ("orders", "payments"):
        store.topics.create(name, 2, NO_RETENTION)
    far = START_MS + 60 * MINUTE
    runs: list[list[Sides]] = [
        [(orders(dice, 20, START_MS, 20 * MINUTE), orders(dice, 20, START_MS, 22 * MINUTE))],
        [
            (
                orders(dice, 10, START_MS + 15 * MINUTE, 10 * MINUTE) + [order(START_MS + n, n) for n in range(3)],
                orders(dice, 10, START_MS + 15 * MINUTE, 10 * MINUTE) + [order(START_MS + n, n) for n in range(2)],
            )
        ],
        [([order(far, 1)], [order(far + 1, 1)])],
    ]
    late = letters = written = 0
    by = (lambda event: event.key, lambda event: event.key)
    for number, ((sides,)) in enumerate(runs):
        for name, events in zip(("orders", "payments"), sides, strict=True):
            send(store, name, events)
        report = join(
            spark, store.path, "orders", "payments", "paid", within="3 minutes", watermark="5 minutes", how="left"
        )
        want = Pairs(3 * MINUTE, 5 * MINUTE, by).run(runs[: number + 1])
        assert results(store, "paid") == as_told(want.results(left=True))
        late, letters, written = late + report.late, letters + report.dead_letters, written + report.rows_written
        assert (late, letters) == (want.late, want.letters)
        assert report.rows_read == sum(map(len, sides)) and written == len(contents(store, "paid"))
    assert late >= 5 and letters == 6
    assert {each.reason for each in store.dead_letters("orders.dlq")} == {"has no key"}
    assert len(list(store.dead_letters("orders.dlq"))) == len(list(store.dead_letters("payments.dlq"))) == 3


def test_each_topic_may_have_its_own_field_and_values_need_not_be_json(
    spark: Any, store: klamm.Store, tmp_path: Path
) -> None:
    for name in ("orders", "payments"):
        store.topics.create(name, 1, NO_RETENTION)
    send(store, "orders", [Event(START_MS, b"x", b'{"id": 4711, "text": "a\\u00e9"}'), Event(START_MS, b"x", b"{")])
    send(store, "payments", [Event(START_MS + 1, b"4711", b'1 2 \xff"'), Event(START_MS + 60_001, b"4711", b"2")])

    def run(**more: Any) -> Any:
        given = {"within": "1 minute", "by": ("$.id", "key"), "checkpoint": tmp_path / "mine", **more}
        return join(spark, store.path, "orders", "payments", "paid", **given)

    report = run()
    (record,) = contents(store, "paid")
    assert record.key == b"4711" and record.timestamp == START_MS + 1
    assert json.loads(record.value) == {
        "key": "4711",
        "left": {"id": 4711, "text": "aé"},
        "right": '1 2 \ufffd"',
        "left_timestamp": iso(START_MS),
        "right_timestamp": iso(START_MS + 1),
    }
    assert (report.rows_read, report.rows_written, report.dead_letters, report.late) == (4, 1, 1, 0)
    with (
        PipelineDirectory(str(tmp_path / "mine"), {}).alone(),
        pytest.raises(StoreBusy, match="mine: another run is at work"),
    ):
        run()
    with pytest.raises(InvalidSetting, match='was begun with how = "inner", not "left"'):
        run(how="left")
    with pytest.raises(InvalidSetting, match="was begun with left = "):
        join(spark, store.path, "payments", "orders", "paid", within="1 minute", checkpoint=tmp_path / "mine")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"within": "near"}, "within: 'near' is not a time"),
        ({"watermark": "1"}, "watermark: '1' is not a time"),
        ({"max_offsets": 0}, "max_offsets: 0 is invalid"),
        ({"every": "1 fortnight"}, "every: '1 fortnight' is not a time"),
        ({"how": "outer"}, "how: 'outer' is not a join type"),
        ({"by": "$"}, "by: '$' is not a path into JSON"),
        ({"by": ("key", "key", "key")}, "is not one or two"),
        ({"by": ("key", "offset")}, "by: 'offset' is not a usable part of a record"),
        ({"right": "orders"}, "right: 'orders' is the left topic, too"),
        ({"to": "payments"}, "to: 'payments' is an input of the pipeline"),
    ],
)
def test_what_does_not_fit_is_told_in_a_sentence_before_spark_is_asked(
    store: klamm.Store, given: dict[str, Any], said: str
) -> None:
    nobody: Any = None
    store.topics.create("orders")
    store.topics.create("payments")
    with pytest.raises(InvalidSetting) as refused:
        join(nobody, store.path, "orders", **{"right": "payments", "to": "paid", "within": "1 minute", **given})
    assert said in refused.value.message
