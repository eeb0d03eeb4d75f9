"""All three: their page of the guide, and a driver that is killed in the middle: nobody can tell by what came out."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import klamm
import klamm.spark
from klamm.spark.pipelines.query_runner import drain, duration
from tests.crash.cases import seed_of
from tests.procs import until
from tests.serving import Serving, restartable
from tests.spark.pipelines import test_aggregate, test_deduplicate, test_join
from tests.spark.pipelines.reference import NO_RETENTION, START_MS, contents, orders, send
from tests.spark.pipelines.stream_driver import pipelines
from tests.spark.processes import driver, wait_for

DRIVER = Path(__file__).parent / "stream_driver.py"
MINUTE = 60_000
MOST = 25
OUTPUTS = ("minutes", "paid", "once", "orders.dlq")


def cut(events: Sequence[Any]) -> list[Sequence[Any]]:
    """The micro-batches of a topic with one partition."""
    return [events[start : start + MOST] for start in range(0, len(events), MOST)]


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("5 minutes", 300_000), ("5m", 300_000), ("1h30m", 5_400_000), ("250ms", 250)]
)
def test_a_duration_is_taken_as_spark_or_as_klamm_writes_it(text: str, milliseconds: int) -> None:
    number, unit = duration(text, "every").split()
    assert int(number) * {"milliseconds": 1, "minutes": MINUTE}[unit] == milliseconds


def written(store: klamm.Store) -> int:
    return sum(
        sum(each.end for each in store.topics.describe(name).partitions) for name in OUTPUTS if name in store.topics
    )


GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "pipeline-streams.md"


@pytest.mark.timeout(300)
def test_the_examples_of_the_guide_are_true(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"^```py\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(block, GUIDE.name, "exec"), names)
    names["store"].close()
    said = capsys.readouterr().out
    assert "b'2023-11-14T22:13:00.000Z/u1' {'window': {'start': '2023-11-14T22:13:00.000Z'" in said
    assert "'key': 'u1', 'sales': 8, 'revenue': 14.8}" in said
    assert said.count("'left_timestamp'") == 50 and said.splitlines()[-1] == "90 10"


def test_every_micro_batch_is_reported_though_spark_forgets_them_before_the_first_is_looked_at(
    spark: Any, store: klamm.Store, tmp_path: Path
) -> None:
    store.topics.create("orders")
    store.append_many("orders", [b"%d" % n for n in range(6)])
    own = spark.newSession()
    own.conf.set("spark.sql.streaming.numRecentProgressUpdates", 2)
    rows = klamm.spark.read_stream(
        own, store.path, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=1
    )
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    reports: list[int] = []

    def after(progress: dict[str, Any]) -> None:
        until(lambda: not own.streams.active, "the query ends", 60)
        reports.append(progress["batchId"])

    outcome = drain(writer, after=after)
    assert reports == list(range(6))
    assert (outcome.batches, outcome.rows, outcome.offsets) == (6, 6, 6)


def test_reports_of_other_queries_are_left_out_and_the_listener_goes_with_the_query(
    spark: Any, store: klamm.Store, tmp_path: Path
) -> None:
    store.topics.create("orders")
    store.append_many("orders", [b"%d" % n for n in range(3)])

    def writer(name: str) -> Any:
        rows = klamm.spark.read_stream(
            spark, store.path, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=1
        )
        return rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / name))

    other = writer("other").trigger(processingTime="1 millisecond").start()
    try:
        outcome = drain(writer("this"))
        assert (outcome.batches, outcome.rows) == (3, 3)
    finally:
        other.stop()
    assert len(spark._jsparkSession.streams().listListeners()) == 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kills", "door"),
    [
        (1, "server"),
        pytest.param(10, "server", marks=pytest.mark.soak),
        pytest.param(10, "directory", marks=pytest.mark.soak),
    ],
)
def test_a_driver_that_is_killed_leaves_nothing_out_and_nothing_twice(
    spark: Any, store: klamm.Store, tmp_path: Path, kills: int, door: str
) -> None:
    with restartable(Path(store.path)) if door == "server" else nullcontext() as server:
        _kill_drivers(spark, store, tmp_path, kills, server)


def _kill_drivers(spark: Any, store: klamm.Store, tmp_path: Path, kills: int, server: Serving | None) -> None:
    """And the server, if there is one."""
    where = store.path if server is None else f"klamm://{server.address}"
    dice = random.Random(seed_of())
    count = MOST * 4 * kills
    sent: dict[str, list[Any]] = {"orders": [], "payments": []}
    for name, events in sent.items():
        store.topics.create(name, 1, NO_RETENTION)
        for number in range(count):  # time goes on, and now and then one is late
            late = 600_000 if number % 20 == 13 else dice.choice([0, 0, 0, 10_000, 100_000, 600_000])
            at = START_MS + number * 6000 - late
            (event,) = orders(dice, 1, at, 1)
            events.append(event._replace(headers=(("id", b"%d" % dice.randrange(count // 2)),)))
            if number % 20 == 7:
                events[-1] = event._replace(value=b"{", key=None, headers=())
        send(store, name, events)
    for name in OUTPUTS[:3]:  # a server that is killed begins a segment: what has times of long ago would expire
        store.topics.create(name, 1, NO_RETENTION)
    for _ in range(kills):
        before = written(store)
        with driver(DRIVER, where, tmp_path, MOST) as process:
            wait_for(lambda before=before: written(store) > before, process)  # type: ignore[misc]
            if server is not None:
                server.kill()
                server.begin()
            with pytest.raises(subprocess.TimeoutExpired):  # anywhere in the next micro-batches
                process.wait(dice.random() / 2)
    reports = [run() for run in pipelines(spark, where, str(tmp_path), MOST)]
    assert all(report.batches for report in reports)

    windows = test_aggregate.Windows(
        MINUTE, MINUTE, MINUTE, by=lambda event, value: value["user"]["id"], time=lambda event, value: event.at
    )
    windows.run([cut(sent["orders"])])
    found = contents(store, "minutes")
    assert len(found) == len(windows.closed) > 5 and windows.late > 0
    told = {each.key: json.loads(each.value, parse_float=Decimal) for each in found}
    assert told == test_aggregate.results(windows.closed, MINUTE)

    by = (lambda event: event.key, lambda event: event.key)
    pairs = test_join.Pairs(3 * MINUTE, 3 * MINUTE, by)
    pairs.run([list(zip(cut(sent["orders"]), cut(sent["payments"]), strict=True))])
    assert test_join.results(store, "paid") == test_join.as_told(pairs.results(left=True))
    assert pairs.late > 0

    firsts = test_deduplicate.Firsts(4 * MINUTE, 4 * MINUTE, test_deduplicate.by_header)
    firsts.run([cut(contents(store, "orders"))])
    assert test_deduplicate.rows(contents(store, "once")) == test_deduplicate.rows(firsts.passed)
    assert firsts.late > 0 and firsts.dropped > 0

    # All three put the same records of orders aside, each of them once.
    letters = Counter(each.reason for each in store.dead_letters("orders.dlq"))
    assert letters == {
        "has no $.user.id": windows.broken,
        "has no key": windows.broken,
        "has no header:id": windows.broken,
    }
    assert len(contents(store, "orders.dlq")) == 3 * windows.broken > 0
    assert klamm.check(store.path).ok
