"""archive as a Delta table: it has each record of the topic once, whatever happens to runs."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.errors import InvalidSetting, KlammError, NotAStore
from klamm.spark.pipelines import archive, delta_table, reset_pipeline, restore
from klamm.spark.pipelines.delta_table import LOG
from tests.crash.cases import seed_of
from tests.spark.pipelines.test_archive import FITS, NEW_YEAR, UNFIT, Row, topic_rows
from tests.spark.pipelines.test_without_spark import Died, fill

pytest.importorskip("pyspark")
deltalake = pytest.importorskip("deltalake")
duckdb = pytest.importorskip("duckdb")

_RUN = """
import sys
from klamm.spark.pipelines import archive
archive(None, sys.argv[1], "orders", sys.argv[2], format="delta", max_offsets=7, file_bytes=1 << 20)
"""


def table_rows(folder: Path) -> list[Row]:
    """What readers of the table have, as `topic_rows` has it; the partition column is the day."""
    rows = deltalake.DeltaTable(folder).to_pyarrow_table()
    found = []
    for row in rows.to_pylist():
        timestamp = int(row["timestamp"].timestamp() * 1000)
        assert row["date"] == row["timestamp"].date()
        headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
        found.append(
            (row["partition"], row["offset"], timestamp, row["key"], row["value"], headers, row["timestampType"])
        )
    assert duckdb.sql("SELECT count(*) FROM rows").fetchall() == [(len(found),)]
    return sorted(found)


def commits(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / LOG).glob("*.json"))


def test_a_table_grows_is_merged_and_restored_and_old_versions_stay(
    spark: Any, store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 4)
    store.topics.create("orders", 2, {"retention.ms": -1})
    out, merged = tmp_path / "out", 0
    for number in range(10):
        for each in range(2):
            store.append("orders", b"%d" % number, timestamp=NEW_YEAR + number, headers=[("n", None)], partition=each)
        report = archive(spark if number == 4 else None, store.path, "orders", out, format=None if number else "delta")
        assert (report.rows_written, report.details["files"]) == (2, 1)
        merged += report.details["files_merged"]
    assert merged == 8
    assert list((out / LOG).glob("*.checkpoint.parquet"))
    assert table_rows(out) == topic_rows(store, "orders")
    assert len(deltalake.DeltaTable(out, version=3).to_pyarrow_table()) == 6
    # Files that were merged still lie there, for readers of old versions: restore reads none of them.
    assert len(list(out.glob("date=*/*.parquet"))) > len(deltalake.DeltaTable(out).file_uris())
    restore(spark, out, store.path, "again")
    assert topic_rows(store, "again") == topic_rows(store, "orders")


def test_what_does_not_fit_a_schema_is_not_in_the_table(spark: Any, store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("orders", 1, {"retention.ms": -1})
    for value in [*FITS, *UNFIT]:
        store.append("orders", value, timestamp=NEW_YEAR)
    schema = "id BIGINT, name STRING, sub STRUCT<x: INT NOT NULL>"
    report = archive(spark, store.path, "orders", tmp_path / "out", schema=schema, format="delta")
    assert (report.rows_written, report.dead_letters) == (len(FITS), len(UNFIT))
    table = deltalake.DeltaTable(tmp_path / "out").to_pyarrow_table().sort_by("offset")
    assert table["value"].to_pylist() == FITS
    assert [each and each["id"] for each in table["data"].to_pylist()] == [1, 2, None, None, None]


STEPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def step(function: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    STEPS[function.__name__] = function
    return function


def die(*_: object, **__: object) -> Any:
    raise Died


@step
def before_the_journal_decides(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("klamm.spark.pipelines.journal.Journal.commit", die)


@step
def before_files_have_their_names(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("klamm.spark.pipelines.journal.Journal.recover", die)


@step
def before_the_table_is_created(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delta_table.DeltaTable, "_create", die)


@step
def before_the_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delta_table.DeltaTable, "_commit", die)


@step
def behind_the_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delta_table.DeltaTable, "_sync", die)


@step
def before_spark_s_checkpoint_says_so(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("klamm.spark.checkpoint.write_commit", die)


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("name", STEPS)
def test_a_run_that_dies_at_any_step_is_made_up_for_by_the_next(
    store: klamm.Store, tmp_path: Path, name: str, first: bool
) -> None:
    store.topics.create("orders", 2, {"retention.ms": -1})
    out = tmp_path / "out"
    if not first:
        fill(store, 0, 10)
        archive(None, store.path, "orders", out, format="delta")
    fill(store, 10, 10)
    with pytest.MonkeyPatch.context() as patch:
        STEPS[name](patch)
        if name == "before_files_have_their_names":  # which a run does at its beginning, too
            patch.setattr("klamm.spark.pipelines.journal.Journal.recover", _die_when_decided)
        dies = first or name != "before_the_table_is_created"
        if dies:
            with pytest.raises(Died):
                archive(None, store.path, "orders", out, format="delta")
    fill(store, 20, 10)
    archive(None, store.path, "orders", out, format="delta")
    assert table_rows(out) == topic_rows(store, "orders")


def _die_when_decided(journal: Any) -> None:
    if journal.state.adds and os.path.exists(f"{journal._folder}/{journal.state.adds[0][0]}"):
        raise Died


@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.soak)])
def test_a_process_that_is_killed_again_and_again_leaves_a_table_with_each_record_once(
    store: klamm.Store, tmp_path: Path, kills: int
) -> None:
    dice = random.Random(seed_of())
    store.topics.create("orders", 2, {"retention.ms": -1})
    out = tmp_path / "out"
    fill(store, 0, 100)
    command = [sys.executable, "-c", _RUN, store.path, str(out)]
    for kill in range(kills):
        before = len(commits(out))
        process = subprocess.Popen(command)
        deadline = time.monotonic() + 60
        while len(commits(out)) <= before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(dice.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        seen = table_rows(out)
        assert seen == [row for row in topic_rows(store, "orders") if row in set(seen)]
        assert len(set(seen)) == len(seen)
        fill(store, 100 + kill * 40, 40)
    archive(None, store.path, "orders", out)
    assert table_rows(out) == topic_rows(store, "orders")


@pytest.mark.parametrize("left", [0.0, 0.5])
def test_a_commit_that_a_power_cut_has_left_without_its_end_is_made_again(
    store: klamm.Store, tmp_path: Path, left: float
) -> None:
    store.topics.create("orders", 2, {"retention.ms": -1})
    out = tmp_path / "out"
    for number in range(2):
        fill(store, number * 10, 10)
        archive(None, store.path, "orders", out, format="delta")
    last = out / LOG / commits(out)[-1]
    os.truncate(last, int(last.stat().st_size * left))
    fill(store, 20, 10)
    archive(None, store.path, "orders", out)
    assert table_rows(out) == topic_rows(store, "orders")


def test_a_table_and_a_journal_that_are_apart_are_an_error(store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("orders", 2, {"retention.ms": -1})
    out, copy = tmp_path / "out", tmp_path / "copy"
    for number in range(3):
        fill(store, number * 10, 10)
        archive(None, store.path, "orders", out, format="delta")
        if not number:
            shutil.copytree(out, copy)
    with pytest.raises(InvalidSetting, match="was begun with format = delta, not parquet"):
        archive(None, store.path, "orders", out, format="parquet")
    with pytest.raises(InvalidSetting, match="format: 'orc' is invalid"):
        archive(None, store.path, "orders", out, format="orc")
    shutil.move(out / "_klamm", tmp_path / "klamm")
    shutil.copytree(copy / "_klamm", out / "_klamm")
    with pytest.raises(NotAStore, match="the table has change 3 of the archive, its journal 1"):
        archive(None, store.path, "orders", out)
    shutil.rmtree(out / "_klamm")
    shutil.move(tmp_path / "klamm", out / "_klamm")
    shutil.move(out / LOG, tmp_path / "log")
    with pytest.raises(NotAStore, match="the table has change None of the archive, its journal 3"):
        archive(None, store.path, "orders", out)
    shutil.move(tmp_path / "log", out / LOG)
    (out / LOG / commits(out)[1]).write_text("[]\n")
    with pytest.raises(KlammError, match=LOG):
        archive(None, store.path, "orders", out)
    name = json.loads(next((Path(store.path) / "pipelines").glob("*.json")).read_text())["directory"]
    assert name == str(out)
    change = reset_pipeline(store.path, "archive-orders")
    assert str(out / LOG) in change.removes
    archive(None, store.path, "orders", out, format="delta")
    assert table_rows(out) == topic_rows(store, "orders")


def test_a_day_beyond_the_year_9999_has_no_date(store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("orders", 1, {"message.timestamp.after.max.ms": (1 << 63) - 1, "retention.ms": -1})
    for timestamp in (NEW_YEAR, 253_402_300_800_000):
        store.append("orders", b"x", timestamp=timestamp)
    archive(None, store.path, "orders", tmp_path / "out", format="delta")
    table = deltalake.DeltaTable(tmp_path / "out").to_pyarrow_table().sort_by("offset")
    assert [str(each) for each in table["date"].to_pylist()] == ["2025-01-01", "None"]
