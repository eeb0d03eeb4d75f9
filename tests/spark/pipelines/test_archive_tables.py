"""archive as a Delta or an Iceberg table: it has each record of the topic once, whatever happens to runs."""

from __future__ import annotations

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
from klamm.errors import InvalidSetting, NotAStore
from klamm.spark.pipelines import archive, reset_pipeline, restore
from klamm.spark.pipelines.delta_table import DeltaTable
from klamm.spark.pipelines.iceberg_table import IcebergTable
from tests.crash.cases import seed_of
from tests.spark.conftest import delta_is_here
from tests.spark.pipelines.lake import FORMATS, delta_session, read, read_by_spark, table_rows, versions
from tests.spark.pipelines.test_archive import FITS, NEW_YEAR, UNFIT, topic_rows
from tests.spark.pipelines.test_without_spark import Died, fill

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("duckdb")

TABLES = {"delta": DeltaTable, "iceberg": IcebergTable}
_RUN = """
import sys
from klamm.spark.pipelines import archive
archive(None, sys.argv[1], "orders", sys.argv[2], format=sys.argv[3], max_offsets=7, file_bytes=1 << 20)
"""
formats = pytest.mark.parametrize("kind", FORMATS)


@formats
def test_a_table_grows_is_merged_and_restored_and_old_versions_stay(
    spark: Any, store: klamm.Store, tmp_path: Path, kind: str
) -> None:
    store.topics.create("orders", 2, {"retention.ms": -1})
    out, merged = tmp_path / "out", 0
    for number in range(10):
        for each in range(2):
            store.append("orders", b"%d" % number, timestamp=NEW_YEAR + number, headers=[("n", None)], partition=each)
        report = archive(
            spark if number in (4, 8) else None, store.path, "orders", out, format=None if number else kind
        )
        assert (report.rows_written, report.details["files"]) == (2, 1)
        merged += report.details["files_merged"]
    assert merged == 8
    assert table_rows(out, kind) == topic_rows(store, "orders")
    assert len(read(out, kind, 3 if kind == "delta" else 2)) == 6
    # Files that were merged still lie there, for readers of old versions: restore reads none of them.
    assert len(list(out.glob("date=*/*.parquet"))) == 11
    restore(spark, out, store.path, "again")
    assert topic_rows(store, "again") == topic_rows(store, "orders")


@formats
def test_what_does_not_fit_a_schema_is_not_in_the_table(
    spark: Any, store: klamm.Store, tmp_path: Path, kind: str
) -> None:
    """Nor if all of the first micro-batch does not fit: the table has the column of values when one comes that does."""
    store.topics.create("orders", 1, {"retention.ms": -1})
    out = tmp_path / "out"
    schema = "id BIGINT, name STRING, sub STRUCT<x: INT NOT NULL>"
    for values in (UNFIT, FITS):
        for value in values:
            store.append("orders", value, timestamp=NEW_YEAR)
        report = archive(spark, store.path, "orders", out, schema=schema, format=kind)
        assert (report.rows_written, report.dead_letters) == ((0, len(UNFIT)) if values is UNFIT else (len(FITS), 0))
    table = read(out, kind).sort_by("offset")
    assert table["value"].to_pylist() == FITS
    assert [each and each["id"] for each in table["data"].to_pylist()] == [1, 2, None, None, None]


STEPS: dict[str, Callable[[pytest.MonkeyPatch, Any], None]] = {}


def step(function: Callable[[pytest.MonkeyPatch, Any], None]) -> Callable[[pytest.MonkeyPatch, Any], None]:
    STEPS[function.__name__] = function
    return function


def die(*_: object, **__: object) -> Any:
    raise Died


@step
def before_the_journal_decides(patch: pytest.MonkeyPatch, _: Any) -> None:
    patch.setattr("klamm.spark.pipelines.journal.Journal.commit", die)


@step
def before_files_have_their_names(patch: pytest.MonkeyPatch, _: Any) -> None:
    patch.setattr("klamm.spark.pipelines.journal.Journal.recover", _die_when_decided)  # a run begins with it, too


@step
def before_the_table_is_created(patch: pytest.MonkeyPatch, table: Any) -> None:
    patch.setattr(table, "_create", die)


@step
def before_the_commit(patch: pytest.MonkeyPatch, table: Any) -> None:
    patch.setattr(table, "_commit", die)


@step
def behind_the_commit(patch: pytest.MonkeyPatch, table: Any) -> None:
    patch.setattr(table, "_sync", die)


@step
def before_spark_s_checkpoint_says_so(patch: pytest.MonkeyPatch, _: Any) -> None:
    patch.setattr("klamm.spark.checkpoint.write_commit", die)


@formats
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("name", STEPS)
def test_a_run_that_dies_at_any_step_is_made_up_for_by_the_next(
    store: klamm.Store, tmp_path: Path, name: str, first: bool, kind: str
) -> None:
    store.topics.create("orders", 2, {"retention.ms": -1})
    out = tmp_path / "out"
    if not first:
        fill(store, 0, 10)
        archive(None, store.path, "orders", out, format=kind)
    fill(store, 10, 10)
    with pytest.MonkeyPatch.context() as patch:
        STEPS[name](patch, TABLES[kind])
        if first or name != "before_the_table_is_created":
            with pytest.raises(Died):
                archive(None, store.path, "orders", out, format=kind)
    fill(store, 20, 10)
    archive(None, store.path, "orders", out, format=kind)
    assert table_rows(out, kind) == topic_rows(store, "orders")


def _die_when_decided(journal: Any, **_: bool) -> None:
    if journal.state.adds and os.path.exists(journal.files.path(journal.state.adds[0][0])):
        raise Died


@pytest.mark.parametrize(
    ("kind", "kills"),
    [("delta", 3), ("iceberg", 2), *(pytest.param(kind, 50, marks=pytest.mark.soak) for kind in FORMATS)],
)
def test_a_process_that_is_killed_again_and_again_leaves_a_table_with_each_record_once(
    request: pytest.FixtureRequest, store: klamm.Store, tmp_path: Path, kind: str, kills: int
) -> None:
    dice = random.Random(seed_of())
    store.topics.create("orders", 2, {"retention.ms": -1})
    out = tmp_path / "out"
    fill(store, 0, 100)
    command = [sys.executable, "-c", _RUN, store.path, str(out), kind]
    for kill in range(kills):
        before = versions(out, kind)
        process = subprocess.Popen(command)
        deadline = time.monotonic() + 60
        while versions(out, kind) <= before + 1 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(dice.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (out / "metadata/version-hint.text").exists() or kind == "delta":
            seen = table_rows(out, kind)
            assert seen == [row for row in topic_rows(store, "orders") if row in set(seen)]
        fill(store, 100 + kill * 40, 40)
    archive(None, store.path, "orders", out)
    assert table_rows(out, kind) == topic_rows(store, "orders")
    if kind == "delta" and kills > 3 and delta_is_here():
        session = delta_session(request.getfixturevalue("spark"))
        assert read_by_spark(session, out) == topic_rows(store, "orders")


@formats
def test_a_table_and_a_journal_that_are_apart_are_an_error(store: klamm.Store, tmp_path: Path, kind: str) -> None:
    store.topics.create("orders", 2, {"retention.ms": -1})
    out, journal, copy = tmp_path / "out", tmp_path / "out/_klamm/journal.json", tmp_path / "copy"
    for number in range(3):
        fill(store, number * 10, 10)
        archive(None, store.path, "orders", out, format=kind)
        if not number:
            shutil.copytree(out, copy)
    with pytest.raises(InvalidSetting, match=f"was begun with format = {kind}, not parquet"):
        archive(None, store.path, "orders", out, format="parquet")
    with pytest.raises(InvalidSetting, match="format: 'orc' is invalid"):
        archive(None, store.path, "orders", out, format="orc")
    shutil.move(out / "_klamm", tmp_path / "klamm")
    shutil.copytree(copy / "_klamm", out / "_klamm")
    if kind == "iceberg":  # whose catalog is in there, and would be as old
        shutil.copy(tmp_path / "klamm/iceberg.db", out / "_klamm/iceberg.db")
    with pytest.raises(NotAStore, match="the table has change 3 of the archive, its journal 1"):
        archive(None, store.path, "orders", out)
    shutil.rmtree(out / "_klamm")
    shutil.move(tmp_path / "klamm", out / "_klamm")
    log = out / ("_delta_log" if kind == "delta" else "_klamm/iceberg.db")
    shutil.move(log, tmp_path / "log")
    with pytest.raises(NotAStore, match="the table has change None of the archive, its journal 3"):
        archive(None, store.path, "orders", out)
    (shutil.rmtree if log.is_dir() else os.unlink)(log) if log.exists() else None
    shutil.move(tmp_path / "log", log)
    assert journal.exists()
    change = reset_pipeline(store.path, "archive-orders")
    assert str(log) in change.removes
    assert not list(out.glob("date=*"))
    archive(None, store.path, "orders", out, format=kind)
    assert table_rows(out, kind) == topic_rows(store, "orders")


@formats
def test_a_day_beyond_the_year_9999_has_no_date(spark: Any, store: klamm.Store, tmp_path: Path, kind: str) -> None:
    store.topics.create("orders", 1, {"message.timestamp.after.max.ms": (1 << 63) - 1, "retention.ms": -1})
    for timestamp in (NEW_YEAR, 253_402_300_800_000):
        store.append("orders", b"{}", timestamp=timestamp)
    for session, schema in ((None, None), (spark, "id INT")):
        out = tmp_path / f"out{schema is None}"
        archive(session, store.path, "orders", out, format=kind, schema=schema)
        table = read(out, kind).sort_by("offset")
        assert [str(each) for each in table["date"].to_pylist()] == ["2025-01-01", "None"]


# ---- schemas that grow


def values_of(folder: Path, kind: str) -> list[Any]:
    """The column of fields. pyiceberg reads a list that is null as one that is empty, if its type has grown."""
    rows = read(folder, kind).sort_by("offset")["data"].to_pylist()
    return [row and {name: None if value == [] else value for name, value in row.items()} for row in rows]


def offset_of(letter: Any) -> int:
    return int(letter.origin.offset)


@formats
def test_fields_are_added_to_the_schema_of_a_table_and_a_field_of_another_type_is_a_dead_letter(
    spark: Any, store: klamm.Store, tmp_path: Path, kind: str
) -> None:
    """Also if the run died whose dead letters were sent by the schema before: its records have that schema."""
    store.topics.create("orders", 1, {"retention.ms": -1})
    out = tmp_path / "out"
    begin, later = "id BIGINT, sub STRUCT<x: INT>", "more STRING NOT NULL, id BIGINT, sub STRUCT<x: INT, y: DOUBLE>"
    store.append("orders", b'{"id": 1, "sub": {"x": 1, "y": 1.5}, "more": "a"}')
    archive(spark, store.path, "orders", out, schema=begin, format=kind)
    for value in (b'{"id": 2, "sub": {"x": 2, "y": 2.5}}', b'{"id": "two"}'):
        store.append("orders", value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("klamm.spark.pipelines.journal.Journal.commit", _fail)
        with pytest.raises(Exception, match="as if it were killed"):
            archive(spark, store.path, "orders", out)
    for value in (b'{"id": 4, "sub": {"x": 4, "y": 4.5}, "more": "d"}', b'{"id": 5}', b'{"id": "six", "more": ""}'):
        store.append("orders", value)
    report = archive(spark, store.path, "orders", out, schema=later)
    assert (report.batches, report.rows_written) == (2, 2)
    assert values_of(out, kind) == [
        {"id": 1, "sub": {"x": 1, "y": None}, "more": None},
        {"id": 2, "sub": {"x": 2, "y": None}, "more": None},
        {"id": 4, "sub": {"x": 4, "y": 4.5}, "more": "d"},
    ]
    letters = [(offset_of(each), each.reason) for each in store.dead_letters("orders.dlq")]
    assert [offset for offset, _ in letters] == [2, 4, 5]
    assert "more may not be null" in letters[1][1] and "id does not fit bigint" in letters[2][1]
    for worse, message in (
        ("id BIGINT, sub STRUCT<x: INT, y: DOUBLE>", "schema: more is missing"),
        (later.replace("id BIGINT", "id STRING"), "schema: id was bigint, and is string"),
        (later.replace("x: INT, ", ""), "schema: sub.x is missing"),
    ):
        with pytest.raises(InvalidSetting, match=message):
            archive(spark, store.path, "orders", out, schema=worse)
    with pytest.raises(InvalidSetting, match="was begun with schema"):
        archive(spark, store.path, "orders", out, schema="infer")


def _fail(*_: object, **__: object) -> Any:
    raise RuntimeError("as if it were killed")


@formats
def test_an_inferred_schema_of_a_table_grows_with_the_records(
    spark: Any, store: klamm.Store, tmp_path: Path, kind: str
) -> None:
    store.topics.create("orders", 1, {"retention.ms": -1})
    out = tmp_path / "out"
    batches = (
        [b'{"id": 1, "later": null}'],
        [b'{"id": "text", "new": 1}', b'{"id": 2, "later": [{"a": 1}]}', b'{"ID": 3, "sub": {"x": true}}'],
        [b'{"later": [{"a": 2, "b": "c"}], "sub": {"y": {"z": 1.5}}}', None],
    )
    for values in batches:
        for value in values:
            store.append("orders", value)
        archive(spark, store.path, "orders", out, schema="infer", format=kind)
    empty = {"id": None, "later": None, "new": None, "sub": None}
    assert values_of(out, kind) == [
        empty | {"id": 1},
        empty | {"id": 2, "later": [{"a": 1, "b": None}]},
        empty | {"sub": {"x": True, "y": None}},
        empty | {"later": [{"a": 2, "b": "c"}], "sub": {"x": None, "y": {"z": 1.5}}},
        None,
    ]
    assert [offset_of(each) for each in store.dead_letters("orders.dlq")] == [1]
