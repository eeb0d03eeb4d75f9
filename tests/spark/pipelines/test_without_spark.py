"""quality and archive without Spark: the same report and rows as with Spark, and either continues the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.errors import InvalidSetting
from klamm.spark import checkpoint
from klamm.spark.pipelines import archive, quality
from klamm.spark.pipelines.journal import Journal
from tests.spark.pipelines.test_archive import DAY_MS, NEW_YEAR, topic_rows

pytest.importorskip("pyspark")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("duckdb")

Row = tuple[Any, ...]


class Died(BaseException):
    """As good as a kill: nothing handles it."""


def rows_of(folder: Path) -> list[Row]:
    """What any reader of Parquet finds, as `topic_rows` has it; the folder's name is the day."""
    found = []
    for path in folder.glob("date=*/*.parquet"):
        for row in pq.ParquetFile(path).read().to_pylist():
            timestamp = int(row["timestamp"].timestamp() * 1000)
            day = row["timestamp"].date().isoformat()
            assert path.parent.name == f"date={day}"
            headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
            where = row["partition"], row["offset"], timestamp
            found.append((*where, row["key"], row["value"], headers, row["timestampType"]))
    return sorted(found)


def fill(store: klamm.Store, first: int, count: int) -> None:
    for number in range(first, first + count):
        store.append(
            "orders",
            b"%d" % number if number % 7 else None,
            key=b"k%d" % (number % 5),
            timestamp=NEW_YEAR + number * DAY_MS // 10,
            headers=[("n", b"%d" % number)] if number % 2 else None,
        )


def test_archive_is_continued_by_either(
    spark: Any, store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one was killed: after its plan, and after the journal has decided."""
    store.topics.create("orders", 2)
    folder = tmp_path / "archive"

    def run(session: Any, first: int) -> Any:
        fill(store, first, 20)
        return archive(session, store.path, "orders", folder, max_offsets=15)

    done = run(None, 0)
    assert (done.rows_read, done.batches, done.details["engine"]) == (20, 2, "local")
    assert rows_of(folder) == topic_rows(store, "orders")
    assert run(spark, 20).details["engine"] == "spark"
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "commit", _die)
        with pytest.raises(Died):
            run(None, 40)
    assert run(spark, 60).rows_written == 40
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_commit", _die)
        with pytest.raises(Died):
            run(None, 80)
    assert run(spark, 100).rows_written == 25  # 15 were decided when the run died
    assert run(None, 120).rows_written == 20
    assert rows_of(folder) == topic_rows(store, "orders")
    kinds = {str(pq.read_schema(path).remove_metadata()) for path in folder.glob("date=*/*.parquet")}
    assert len(kinds) == 1


def _die(*_: object, **__: object) -> None:
    raise Died


def test_a_run_without_spark_that_was_killed_is_continued_without_spark(
    store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.topics.create("orders", 2)
    folder = tmp_path / "archive"
    for number, (where, name) in enumerate(((Journal, "commit"), (checkpoint, "write_commit"))):
        fill(store, 20 * number, 20)
        with monkeypatch.context() as patch:
            patch.setattr(where, name, _die)
            with pytest.raises(Died):
                archive(None, store.path, "orders", folder)
        archive(None, store.path, "orders", folder)
        assert rows_of(folder) == topic_rows(store, "orders")


def test_a_run_without_spark_that_was_killed_does_its_plan_first(
    store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: the plan stays as it was, though there are more records by now."""
    store.topics.create("orders", 2)
    folder = tmp_path / "archive"
    fill(store, 0, 10)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "commit", _die)
        with pytest.raises(Died):
            archive(None, store.path, "orders", folder)
    fill(store, 10, 10)
    assert archive(None, store.path, "orders", folder).batches == 2
    assert rows_of(folder) == topic_rows(store, "orders")


def test_small_files_are_merged_without_spark(store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("orders")
    merged = []
    for number in range(9):
        store.append("orders", b"x", timestamp=NEW_YEAR + number)
        merged.append(archive(None, store.path, "orders", tmp_path / "archive").details["files_merged"])
    assert merged == [0] * 7 + [8, 0]
    assert rows_of(tmp_path / "archive") == topic_rows(store, "orders")
    assert len(list((tmp_path / "archive").glob("date=*/*.parquet"))) == 2


def test_what_needs_spark_is_said(store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("orders")
    with pytest.raises(InvalidSetting, match="an archive with a schema needs Spark"):
        archive(None, store.path, "orders", tmp_path / "typed", schema="id INT")
    with pytest.raises(InvalidSetting, match="every: needs Spark"):
        archive(None, store.path, "orders", tmp_path / "other", every="1s")


def test_days_beyond_the_year_9999_are_named_as_spark_names_them(
    spark: Any, store: klamm.Store, tmp_path: Path
) -> None:
    store.topics.create("orders", 1, {"message.timestamp.after.max.ms": (1 << 63) - 1, "retention.ms": -1})
    times = (0, 253_402_300_799_999, 253_402_300_800_000, (1 << 62) // 1000)
    for each in times:
        store.append("orders", b"{}", timestamp=each)
    for session, schema in ((None, None), (spark, None), (spark, "id INT")):
        archive(session, store.path, "orders", tmp_path / "out", schema=schema)
        names = sorted(each.name for each in (tmp_path / "out").glob("date=*"))
        assert names == ["date=+10000-01-01", "date=+148108-07-06", "date=1970-01-01", "date=9999-12-31"]
        (tmp_path / "out").rename(tmp_path / f"{session is None} {schema}")


def test_quality_is_the_same_either_way(spark: Any, store: klamm.Store) -> None:
    store.topics.create("clicks", 3)
    for number in range(400):
        value = json.dumps(
            {"n": number, "deep": {"x": None if number % 3 else "a"}, **({"old": 1} if number < 99 else {})}
        )
        odd = {0: b"{broken", 1: b"text", 2: None, 3: b"[1]"}
        store.append(
            "clicks",
            odd.get(number % 50, value.encode()),
            key=None if number % 11 == 0 else b"\xff%d" % (number % 40),
            timestamp=NEW_YEAR + number * DAY_MS // 3,
            partition=number % 2,
        )
    with store.transaction() as tx:
        tx.send("clicks", b"before a marker", partition=0, timestamp=NEW_YEAR)
    store.append("clicks", b"{}", partition=0, timestamp=NEW_YEAR)
    for since in (None, NEW_YEAR + 100 * DAY_MS, NEW_YEAR + 1000 * DAY_MS):
        found = [quality(session, store.path, "clicks", since=since).to_dict() for session in (spark, None)]
        assert [each.pop("engine") for each in found] == ["spark", "local"]
        assert all(each.pop("seconds") >= 0 for each in found)
        assert found[0] == found[1]
    assert quality(None, store.path, "clicks").gaps["count"] == 1
