"""archive as an Iceberg table: its catalogs, its snapshots, and what others do to it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.disk import files
from klamm.errors import InvalidSetting, KlammError, NotAStore
from klamm.spark.pipelines import archive, iceberg_table, reset_pipeline
from klamm.spark.pipelines.folder_files import files_of
from klamm.spark.pipelines.iceberg_table import IcebergTable
from tests.spark.pipelines.lake import delete_rows, iceberg, table_rows
from tests.spark.pipelines.test_archive import NEW_YEAR, topic_rows
from tests.spark.pipelines.test_without_spark import Died, fill

pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")
duckdb = pytest.importorskip("duckdb")


def make(store: klamm.Store) -> None:
    store.topics.create("orders", 2, {"retention.ms": -1})


def snapshots(folder: Path) -> list[dict[str, str]]:
    """What the snapshots say of themselves, oldest first."""
    return [each.summary.additional_properties for each in iceberg(folder).metadata.snapshots]


def test_a_snapshot_has_the_offsets_that_it_archived_and_readers_without_the_catalog_find_it(
    store: klamm.Store, tmp_path: Path
) -> None:
    from pyiceberg.table import StaticTable

    make(store)
    out = tmp_path / "out"
    for number in range(3):
        fill(store, number * 10, 10)
        archive(None, store.path, "orders", out, format="iceberg")
    assert [each["klamm.batch"] for each in snapshots(out)] == ["0", "1", "2"]
    rows = topic_rows(store, "orders")
    for version, about in enumerate(snapshots(out)):
        ends = json.loads(about["klamm.ends"])
        assert table_rows(out, "iceberg", version) == [row for row in rows if row[1] < ends[str(row[0])]]
    table = StaticTable.from_metadata(f"file://{out}")
    one_day = table.scan(row_filter="date = '2025-01-02'", selected_fields=("offset",)).to_arrow()
    assert one_day.num_rows == 10
    assert len(list(table.scan(row_filter="partition = 0 and offset < 3").plan_files())) == 1
    files_read = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    assert duckdb.execute("SELECT count(*) FROM read_parquet(?)", [files_read]).fetchall() == [(30,)]


def test_a_run_that_dies_at_any_file_of_a_commit_is_made_up_for_by_the_next(
    store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each file was on disk before the catalog names it."""
    make(store)
    out = tmp_path / "out"
    replace, durable, left, most = files.replace, set[str](), 0, 0

    def counted(path: str, data: bytes) -> None:
        nonlocal left
        if "/metadata/" in path:
            if not left:
                raise Died
            left -= 1
            durable.add(path)
        replace(path, data)

    monkeypatch.setattr(files, "replace", counted)
    for change in range(2):
        fill(store, 10 * change, 10)
        for most in range(20):
            left = most
            try:
                archive(None, store.path, "orders", out, format="iceberg")
            except Died:
                continue
            break
        assert 4 <= most < 19  # at least a manifest, its list, the table's metadata, the hint
    assert table_rows(out, "iceberg") == topic_rows(store, "orders")
    newest = iceberg(out)
    named = {newest.metadata_location, newest.current_snapshot().manifest_list}
    named |= {each.manifest_path for each in newest.current_snapshot().manifests(newest.io)}
    assert {each.removeprefix("file://") for each in named} <= durable


@pytest.mark.parametrize("step", ["_replaced", "_commit", "_sync"])
def test_a_merge_that_dies_is_finished_by_the_next_run(
    store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    make(store)
    out = tmp_path / "out"
    for number in range(7):
        store.append("orders", b"%d" % number, timestamp=NEW_YEAR)
        archive(None, store.path, "orders", out, format="iceberg")
    store.append("orders", b"last", timestamp=NEW_YEAR)
    function = getattr(IcebergTable, step)

    def die(table: Any, *arguments: Any, **options: Any) -> Any:
        if "removes" in _decided(out) and _decided(out)["removes"]:
            raise Died
        return function(table, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(IcebergTable, step, die)
        with pytest.raises(Died):
            archive(None, store.path, "orders", out)
    store.append("orders", b"new", timestamp=NEW_YEAR)
    archive(None, store.path, "orders", out)
    assert table_rows(out, "iceberg") == topic_rows(store, "orders")
    assert len(list(iceberg(out).scan().plan_files())) == 2
    assert len(table_rows(out, "iceberg", 6)) == 7


def _decided(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "_klamm/journal.json").read_text())
    return found


def test_what_others_do_to_the_table_is_not_undone(store: klamm.Store, tmp_path: Path) -> None:
    """They expire snapshots, rewrite files that a merge was to replace, and roll the table back, which is an error."""
    make(store)
    out = tmp_path / "out"
    for number in range(2):
        fill(store, number * 10, 10)
        archive(None, store.path, "orders", out, format="iceberg")
    table = iceberg(out)
    table.append(table.scan(limit=0).to_arrow())  # a snapshot that is not ours
    table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in table.metadata.snapshots[:-1]]).commit()
    assert len(snapshots(out)) == 1 and "klamm.sequence" not in snapshots(out)[0]
    fill(store, 20, 10)
    archive(None, store.path, "orders", out)
    assert table_rows(out, "iceberg") == topic_rows(store, "orders")

    ours = IcebergTable(files_of(out), "app", "orders")
    small = {os.path.relpath(file.path, out): file for file in ours.files()}
    table = iceberg(out)
    table.overwrite(table.scan().to_arrow())
    assert all(file.day is None for file in ours.files())
    ours._table = ours._load()
    assert ours._replaced(list(small)) is None
    for first in (30, 40):
        fill(store, first, 10)
        archive(None, store.path, "orders", out)
    assert table_rows(out, "iceberg") == topic_rows(store, "orders")

    fill(store, 50, 10)
    for version, last in ((1, "3"), (0, "None")):
        table = iceberg(out)
        table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[version].snapshot_id).commit()
        with pytest.raises(NotAStore, match=f"the table has change {last} of the archive, its journal 5"):
            archive(None, store.path, "orders", out)


def test_another_catalog_has_the_table_until_the_archive_is_reset(
    store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(store)
    fill(store, 0, 10)
    monkeypatch.setenv("PYICEBERG_CATALOG__ELSEWHERE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__ELSEWHERE__URI", f"sqlite:///{tmp_path}/elsewhere.db")
    from pyiceberg import catalog as catalogs
    from pyiceberg.utils.config import Config

    monkeypatch.setattr(catalogs, "_ENV_CONFIG", Config())  # which pyiceberg reads once
    where: dict[str, Any] = {"catalog": "elsewhere", "table_name": "lake.orders"}
    out = tmp_path / "out"
    for _ in range(2):
        archive(None, store.path, "orders", out, format="iceberg", **where)
        assert not (out / iceberg_table.CATALOG).exists()
        catalog: Any = catalogs.load_catalog("elsewhere")
        assert catalog.load_table("lake.orders").scan().to_arrow().num_rows == 10
        with pytest.raises(NotAStore, match=r"the table lake.orders lies at file://.*/out"):
            archive(None, store.path, "orders", tmp_path / "second", format="iceberg", **where)
        with pytest.raises(InvalidSetting, match="was begun with table_name"):
            archive(None, store.path, "orders", out, table_name="lake.others")
        reset_pipeline(store.path, "archive-orders")
        assert not catalog.table_exists("lake.orders")
        catalog.engine.dispose()


def test_what_cannot_be_a_table_is_said_before_anything_is_written(store: klamm.Store, tmp_path: Path) -> None:
    make(store)
    fill(store, 0, 1)
    for options, message in (
        ({"table_name": "lake.orders"}, "table_name: only an Iceberg table has it"),
        ({"catalog": "x", "format": "delta"}, "catalog: only an Iceberg table has it"),
        ({"table_name": "orders", "format": "iceberg"}, "table_name: 'orders' is invalid"),
        ({"table_name": "lake.", "format": "iceberg"}, r"table_name: 'lake\.' is invalid"),
    ):
        with pytest.raises(InvalidSetting, match=message):
            archive(None, store.path, "orders", tmp_path / "none", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "none").exists()
    with pytest.raises(InvalidSetting, match="cannot contain '#'"):
        archive(None, store.path, "orders", tmp_path / "a#b", format="iceberg")
    with pytest.raises(KlammError, match="CATALOG__NOWHERE__URI"):
        archive(None, store.path, "orders", tmp_path / "other", format="iceberg", catalog="nowhere")
    assert not list((tmp_path / "other").glob("date=*"))


def test_a_folder_that_was_moved_or_copied_is_refused(store: klamm.Store, tmp_path: Path) -> None:
    make(store)
    fill(store, 0, 10)
    archive(None, store.path, "orders", tmp_path / "out", format="iceberg")
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    with pytest.raises(NotAStore, match=r"lies at file://.*/out"):
        archive(None, store.path, "orders", tmp_path / "copy")
    (tmp_path / "out").rename(tmp_path / "moved")
    with pytest.raises(NotAStore, match="names a file of metadata that is missing"):
        archive(None, store.path, "orders", tmp_path / "moved")
    (tmp_path / "moved").rename(tmp_path / "out")
    archive(None, store.path, "orders", tmp_path / "out")
    assert table_rows(tmp_path / "out", "iceberg") == topic_rows(store, "orders")


def test_rows_that_others_have_deleted_in_files_of_their_own_are_not_brought_back(
    store: klamm.Store, tmp_path: Path
) -> None:
    """Neither by a merge nor by restore."""
    make(store)
    out = tmp_path / "out"
    for number in range(7):
        store.append("orders", b"%d" % number, timestamp=NEW_YEAR)
        archive(None, store.path, "orders", out, format="iceberg")
    delete_rows(out, "00000003-0000.parquet", [0])
    left = [row for row in topic_rows(store, "orders") if row[4] != b"2"]
    assert table_rows(out, "iceberg") == left
    for number in range(7, 10):
        store.append("orders", b"%d" % number, timestamp=NEW_YEAR)
        archive(None, store.path, "orders", out)
    assert len(list(iceberg(out).scan().plan_files())) == 3  # seven and one are merged, the one with the hole is not
    assert table_rows(out, "iceberg") == [row for row in topic_rows(store, "orders") if row[4] != b"2"]
    table = IcebergTable(files_of(out), "app", "orders")
    with pytest.raises(KlammError, match="rows of it were deleted, in files of their own"):
        table.paths()
    names = [os.path.relpath(file.path, out) for file in table.files()]
    table._table = table._load()
    assert table._replaced(names) is None
