"""archive: each record of a topic is in its folder once, whatever happens; what does not fit is a dead letter."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.disk import _os
from klamm.errors import InvalidSetting, KlammError, NotAStore, StoreBusy
from klamm.spark.pipelines import archive, archive_pipeline, local_archive
from klamm.spark.pipelines.journal import Journal
from klamm.spark.pipelines.pipeline_directory import PipelineDirectory
from tests.crash.cases import seed_of
from tests.spark.processes import driver, wait_for

pytest.importorskip("pyspark")

from pyspark import cloudpickle

DRIVER = Path(__file__).parent / "driver.py"
DAY_MS = 86_400_000
NEW_YEAR = 1_735_689_600_000  # 2025-01-01, UTC

Row = tuple[Any, ...]


def archived(spark: Any, folder: Path) -> list[Row]:
    """What anybody reads there, as `topic_rows` has it."""
    rows = spark.read.parquet(str(folder)).selectExpr(
        "partition", "offset", "unix_millis(timestamp)", "key", "value", "headers", "timestampType"
    )
    return sorted(
        (
            *each[:3],
            *(None if value is None else bytes(value) for value in each[3:5]),
            tuple((key, None if value is None else bytes(value)) for key, value in each[5] or ()),
            each[6],
        )
        for each in rows.collect()
    )


def topic_rows(store: klamm.Store, topic: str) -> list[Row]:
    found = []
    with store.consumer(topic, start="earliest", wait=0) as consumer:
        for each in consumer:
            found.append((each.partition, each.offset, each.timestamp, each.key, each.value, each.headers, 0))
    return sorted(found)


def days(folder: Path) -> dict[str, int]:
    return {each.name: len(list(each.glob("*.parquet"))) for each in sorted(folder.glob("date=*"))}


def test_each_record_is_archived_once_under_its_date(spark: Any, store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("orders", 2, {"retention.ms": -1})
    store.append("orders", b"the last of its year", timestamp=NEW_YEAR - 1, partition=0)
    store.append("orders", None, key=b"gone", timestamp=NEW_YEAR, partition=0)
    store.append(
        "orders", b"", key=b"", headers=[("a", b"1"), ("a", None), ("ü", b"")], timestamp=NEW_YEAR, partition=1
    )
    aborted = store.transaction(batch_bytes=1)
    for _ in range(3):
        aborted.send("orders", b"aborted", partition=0)
    aborted.abort()
    with store.transaction() as transaction:
        transaction.send("orders", b"committed", partition=0, timestamp=NEW_YEAR + 2 * DAY_MS)
    told: list[tuple[int, int | None]] = []
    report = archive(
        spark, store.path, "orders", tmp_path / "out", progress=lambda done, total: told.append((done, total))
    )
    assert (report.rows_read, report.rows_written, report.dead_letters, report.batches) == (4, 4, 0, 1)
    ends = [each.end for each in store.topics.describe("orders").partitions]
    assert ends[0] > 5  # some of what was aborted is in the log, and two markers
    assert told[-1] == (sum(ends), sum(ends))
    found = archived(spark, tmp_path / "out")
    assert found == topic_rows(store, "orders")
    assert [each[:5] for each in found] == [
        (0, 0, NEW_YEAR - 1, None, b"the last of its year"),
        (0, 1, NEW_YEAR, b"gone", None),
        (0, ends[0] - 2, NEW_YEAR + 2 * DAY_MS, None, b"committed"),
        (1, 0, NEW_YEAR, b"", b""),
    ]
    assert found[-1][5] == (("a", b"1"), ("a", None), ("ü", b""))
    assert days(tmp_path / "out") == {"date=2024-12-31": 1, "date=2025-01-01": 1, "date=2025-01-03": 1}
    assert {each.name for each in (tmp_path / "out").iterdir()} == {"_klamm", *days(tmp_path / "out")}

    assert archive(spark, store.path, "orders", tmp_path / "out").rows_written == 0
    store.append("orders", b"new", timestamp=NEW_YEAR + 2 * DAY_MS, partition=1)
    stopped: list[int] = []

    def stop(done: int, _: int | None) -> None:
        if done and not stopped:
            stopped.append(done)
            raise KeyboardInterrupt

    assert (
        archive(spark, store.path, "orders", tmp_path / "out", every="50 milliseconds", progress=stop).rows_written == 1
    )
    assert stopped == [1]
    assert archived(spark, tmp_path / "out") == topic_rows(store, "orders")


FITS = [b'{"id": 1, "name": "one"}', b'{"id": 2, "more": [3]}', b" {} ", None, b'{"id": null, "sub": {"x": 1}}']
UNFIT = {
    b"no json": "the value is not JSON",
    b'{"id": 3} and more': "the value is not one JSON object that fits the schema",
    b"": "the value is not JSON",
    b'[{"id": 4}]': "the value is not a JSON object",
    b'{"id": "five", "name": "x"}': "id does not fit bigint",
    b'{"id": 6.5, "sub": {"x": "y"}}': "id does not fit bigint; sub does not fit struct<x:int>",
    b'{"name": "\xff"}': "the value is not UTF-8",
    b'{"sub": {}}': "the value is not one JSON object that fits the schema",
}


def test_what_does_not_fit_the_schema_is_a_dead_letter_and_not_archived(
    spark: Any, store: klamm.Store, tmp_path: Path
) -> None:
    store.topics.create("orders", 1)
    for value in [*FITS[:2], *UNFIT, *FITS[2:]]:
        store.append("orders", value, key=b"k", headers=[("h", b"1"), ("klamm.attempts", b"2")], timestamp=NEW_YEAR)
    schema = "id BIGINT, name STRING, sub STRUCT<x: INT NOT NULL>"
    report = archive(spark, store.path, "orders", tmp_path / "out", schema=schema)
    assert (report.rows_read, report.rows_written, report.dead_letters) == (13, 5, 8)
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    assert [each["value"] and bytes(each["value"]) for each in rows] == FITS
    assert [each["data"] and each["data"].asDict(recursive=True) for each in rows] == [
        {"id": 1, "name": "one", "sub": None},
        {"id": 2, "name": None, "sub": None},
        {"id": None, "name": None, "sub": None},
        None,
        {"id": None, "name": None, "sub": {"x": 1}},
    ]
    letters = list(store.dead_letters("orders.dlq"))
    assert {each.record.value: each.reason for each in letters} == UNFIT
    assert [each.origin for each in letters] == [("orders", 0, offset, NEW_YEAR) for offset in range(2, 10)]
    assert {(each.attempts, each.error, each.record.key, tuple(each.record.headers)) for each in letters} == {
        (3, "klamm.errors.InvalidRecord", b"k", (("h", b"1"),))
    }
    # Repaired and put back they fit; the schema is what it was.
    store.redrive("orders.dlq", limit=1)
    store.append("orders", b'{"id": 9}')
    report = archive(spark, store.path, "orders", tmp_path / "out")
    assert (report.rows_written, report.dead_letters) == (1, 1)
    assert len(list(store.dead_letters("orders.dlq"))) == 8
    assert {each.attempts for each in store.dead_letters("orders.dlq")} == {3, 4}


def test_an_inferred_schema_is_that_of_the_first_run(spark: Any, store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("orders", 1)

    def run() -> tuple[int, int]:
        report = archive(spark, store.path, "orders", tmp_path / "out", schema="infer", dead_letters="bad")
        return report.rows_written, report.dead_letters

    assert run() == (0, 0)  # nothing to infer from, and nothing to archive
    store.append_many("orders", [(None, b'{"a": 1}'), (None, b'{"b": {"c": "x"}}'), (None, b"-")])
    assert run() == (2, 1)
    store.append_many("orders", [(None, b'{"a": "text"}'), (None, b'{"z": 1}')])
    assert run() == (1, 1)
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.schema["data"].dataType.simpleString() == "struct<a:bigint,b:struct<c:string>>"
    assert [each.reason for each in store.dead_letters("bad")] == ["the value is not JSON", "a does not fit bigint"]


def test_small_files_are_merged_and_sorted_when_a_run_ends(spark: Any, store: klamm.Store, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    store.topics.create("orders", 2, {"retention.ms": -1})
    for number in range(4):
        store.append_many(
            "orders", [(b"%d" % (n % 4), b"%d" % n, None, NEW_YEAR + n) for n in range(number * 10, number * 10 + 10)]
        )
    store.append("orders", b"alone", timestamp=NEW_YEAR + DAY_MS)
    report = archive(spark, store.path, "orders", tmp_path / "out", max_offsets=5)
    assert report.details["files_merged"] >= 8
    assert days(tmp_path / "out") == {"date=2025-01-01": 1, "date=2025-01-02": 1}
    assert archived(spark, tmp_path / "out") == topic_rows(store, "orders")
    (merged,) = (tmp_path / "out" / "date=2025-01-01").glob("*.parquet")
    table = pq.read_table(merged, partitioning=None)
    tps = list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert tps == sorted(tps)
    assert not (tmp_path / "out" / "_klamm" / "staging").exists()


def test_what_cannot_be_is_said_before_a_job_starts(spark: Any, store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("orders", 1)
    store.topics.create("others", 1)
    out = tmp_path / "out"
    refused: list[tuple[dict[str, Any], str]] = [
        ({"schema": "id INTT"}, "schema: 'id INTT' cannot be parsed"),
        ({"schema": "INT"}, "schema: 'INT' is not a struct"),
        ({"schema": "a INT, A INT"}, "two fields A"),
        ({"schema": "a ARRAY<STRUCT<b: INT NOT NULL>>"}, "a has something that may not be null inside of an array"),
        ({"schema": "a STRUCT<b: MAP<INT, STRING>>"}, r"a\.b has keys of int; names in JSON are text"),
        ({"schema": "a ARRAY<INTERVAL>"}, "a is interval, which Spark does not read from JSON into Parquet"),
        ({"schema": "a CHAR(3)"}, r"a is char\(3\), which"),
        ({"schema": "a STRUCT<>"}, "a is struct<>, which"),
        ({"schema": "a TIME"}, r"a is time\(6\), which"),
        ({"dead_letters": "bad"}, "without a schema every record fits"),
        ({"dead_letters": "orders", "schema": "a INT"}, "orders is the topic itself"),
        ({"max_offsets": 0}, "max_offsets: 0 is invalid"),
        ({"file_bytes": "1"}, "file_bytes: '1' is invalid"),
        ({"every": "often"}, "every: 'often' is not a time"),
    ]
    for options, said in refused:
        with pytest.raises(InvalidSetting, match=said):
            archive(spark, store.path, "orders", out, **options)
    assert not out.exists()
    with pytest.raises(klamm.UnknownTopic):
        archive(spark, store.path, "order", out)
    assert archive(spark, store.path, "orders", out, schema="id INT").rows_written == 0
    begun: list[tuple[str, dict[str, Any], str]] = [
        ("orders", {"schema": "id BIGINT"}, 'was begun with schema = "id INT", not "id BIGINT"'),
        ("orders", {"dead_letters": "bad"}, 'was begun with dead_letters = "orders.dlq"'),
        ("others", {}, "belongs to the pipeline archive of orders"),
    ]
    for topic, options, said in begun:
        with pytest.raises(InvalidSetting, match=said):
            archive(spark, store.path, topic, out, **options)
    PipelineDirectory.take(tmp_path / "else", {"pipeline": "aggregate"}, {})
    with pytest.raises(InvalidSetting, match="belongs to the pipeline aggregate"):
        archive(spark, store.path, "orders", tmp_path / "else")
    with PipelineDirectory(str(out), {}).alone(), pytest.raises(StoreBusy, match="another run is at work"):
        archive(spark, store.path, "orders", out)
    (out / "_klamm" / "journal.json").write_text(
        json.dumps({"version": 1, "sequence": 1, "batch": 3, "ends": {}, "adds": [], "removes": []})
    )
    with pytest.raises(NotAStore, match="offsets/3: missing: micro-batch 3 is archived"):
        archive(spark, store.path, "orders", out)
    store.append("orders", b"no JSON")
    with pytest.raises(InvalidSetting, match="no value of orders is a JSON object"):
        archive(spark, store.path, "orders", tmp_path / "third", schema="infer")


def _dies_at_first(parts: Any, output: Any, batches: Any, **options: Any) -> Any:
    """Run a task of archive; kill the first attempt when it has written its files."""
    from pyspark import TaskContext

    written = list(archive_pipeline._write(parts, output, batches, **options))
    task = TaskContext.get()
    if task is not None and task.attemptNumber() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    yield from written


def test_what_a_killed_attempt_of_a_task_has_written_is_not_archived(
    spark: Any, store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.topics.create("orders", 2, {"retention.ms": -1})
    for number in range(6):
        store.append("orders", b"%d" % number, timestamp=NEW_YEAR + number * DAY_MS // 2, partition=number % 2)
    monkeypatch.setattr(local_archive, "TASK_OFFSETS", 3)  # a task for each partition
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with monkeypatch.context() as patch:
        patch.setattr(archive_pipeline, "partial", lambda _, *given, **named: partial(_dies_at_first, *given, **named))
        report = archive(spark, store.path, "orders", tmp_path / "out")
    assert (report.rows_read, report.rows_written) == (6, 6)
    assert archived(spark, tmp_path / "out") == topic_rows(store, "orders")
    assert days(tmp_path / "out") == {"date=2025-01-01": 2, "date=2025-01-02": 2, "date=2025-01-03": 2}


@pytest.mark.parametrize("decided", [False, True])
def test_an_error_in_the_middle_is_made_up_for_by_the_next_run(
    spark: Any, store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decided: bool
) -> None:
    """Files and dead letters are written; the micro-batch is done, though its files were not renamed, or it is not."""
    store.topics.create("orders", 1)
    store.append_many("orders", [(None, b'{"n": %d}' % n if n % 3 else b"bad") for n in range(12)])

    def full(*_: Any, **__: Any) -> Any:
        raise klamm.DiskFull("as if the disk were full")

    with monkeypatch.context() as patch:
        if decided:
            patch.setattr(_os, "rename", lambda path, to: full() if "/date=" in to else os.rename(path, to))
        else:
            patch.setattr(Journal, "commit", full)
        with pytest.raises(KlammError, match="as if the disk were full"):
            archive(spark, store.path, "orders", tmp_path / "out", schema="n INT")
    assert len(list(store.dead_letters("orders.dlq"))) == 4
    report = archive(spark, store.path, "orders", tmp_path / "out")
    assert (report.rows_written, report.dead_letters) == ((0, 0) if decided else (8, 4))
    assert len(list(store.dead_letters("orders.dlq"))) == 4
    assert len(archived(spark, tmp_path / "out")) == 8


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_a_driver_that_is_killed_again_and_again_archives_every_record_once(
    spark: Any, store: klamm.Store, tmp_path: Path, kills: int
) -> None:
    dice = random.Random(seed_of())
    store.topics.create("orders", 2)
    out, journal = tmp_path / "out", tmp_path / "out" / "_klamm" / "journal.json"

    def fill(count: int) -> None:
        store.append_many("orders", [(b"%d" % (n % 9), b'{"n": %d}' % n if n % 5 else b"bad") for n in range(count)])

    def done() -> int:
        return int(json.loads(journal.read_text())["batch"]) if journal.exists() else -1

    fill(2000)
    for _ in range(kills):
        before = done()
        with driver(DRIVER, "archive", store.path, "orders", out, 20) as process:
            wait_for(lambda least=before + 1: done() >= least, process)  # type: ignore[misc]
            took = wait_for(lambda least=before + 2: done() >= least, process)  # type: ignore[misc]
            # Anywhere in the next two micro-batches: reading, staging, renaming, or in Spark's own logs.
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(dice.random() * 2 * took)
        fill(20)
    archive(spark, store.path, "orders", out)
    whole = topic_rows(store, "orders")
    assert archived(spark, out) == [row for row in whole if row[4] != b"bad"]
    letters = [each.origin for each in store.dead_letters("orders.dlq")]
    assert sorted((each.partition, each.offset) for each in letters if each) == [
        row[:2] for row in whole if row[4] == b"bad"
    ]
    assert klamm.check(store.path).ok
