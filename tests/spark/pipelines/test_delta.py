"""archive as a Delta table: the table's own log. What it shares with Iceberg is in test_archive_tables.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.disk import files
from klamm.errors import KlammError
from klamm.spark.pipelines import archive, delta_table
from klamm.spark.pipelines.delta_table import LOG, DeltaTable
from tests.spark.conftest import delta_is_here
from tests.spark.pipelines.lake import delta_session, read_by_spark, table_rows
from tests.spark.pipelines.test_archive import topic_rows
from tests.spark.pipelines.test_archive_tables import STEPS
from tests.spark.pipelines.test_without_spark import Died, fill

pytest.importorskip("pyspark")
deltalake = pytest.importorskip("deltalake")
pytest.importorskip("duckdb")


def commits(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / LOG).glob("*.json"))


@pytest.mark.skipif(not delta_is_here(), reason="`make tools` fetches Delta Lake for Spark")
def test_spark_reads_a_table_whose_runs_died_at_every_step_and_its_versions(
    spark: Any, store: klamm.Store, tmp_path: Path
) -> None:
    store.topics.create("orders", 2, {"retention.ms": -1})
    out, rows = tmp_path / "out", []
    for number, name in enumerate(["before_the_table_is_created", *(each for each in STEPS if "created" not in each)]):
        fill(store, number * 10, 5)
        with pytest.MonkeyPatch.context() as patch:
            STEPS[name](patch, DeltaTable)
            with pytest.raises(Died):
                archive(None, store.path, "orders", out, format="delta")
        fill(store, number * 10 + 5, 5)
        archive(None, store.path, "orders", out)
        rows.append(topic_rows(store, "orders"))
    session = delta_session(spark)
    assert read_by_spark(session, out) == table_rows(out, "delta") == rows[-1]
    for version in range(0, len(commits(out)), 3):
        assert read_by_spark(session, out, version) == table_rows(out, "delta", version)


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
    assert table_rows(out, "delta") == topic_rows(store, "orders")


@pytest.mark.parametrize("left", [None, 0.5, 1.0])
def test_a_merge_whose_file_a_power_cut_has_taken_is_undone_and_made_again(
    store: klamm.Store, tmp_path: Path, left: float | None
) -> None:
    store.topics.create("orders", 2, {"retention.ms": -1})
    out = tmp_path / "out"
    for number in range(8):
        fill(store, number % 2, 1)
    archive(None, store.path, "orders", out, format="delta", max_offsets=1)
    actions = [json.loads(line) for line in (out / LOG / commits(out)[-1]).read_text().splitlines()]
    (merged,) = [out / each["add"]["path"] for each in actions if "add" in each]
    assert len([each for each in actions if "remove" in each]) == 8
    size = merged.stat().st_size
    if left is None:
        merged.unlink()
    elif left < 1:
        os.truncate(merged, int(size * left))
    else:
        merged.write_bytes(bytes(size))  # its length is there, and no byte of it
    fill(store, 0, 1)
    archive(None, store.path, "orders", out)
    assert table_rows(out, "delta") == topic_rows(store, "orders")
    assert len(deltalake.DeltaTable(out).file_uris()) == 1, "merged again"


def test_a_checkpoint_that_a_power_cut_has_torn_is_removed_if_the_commits_are_there(
    store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can read the table until then."""
    monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 2)
    store.topics.create("orders", 2, {"retention.ms": -1})
    out = tmp_path / "out"
    log = out / LOG
    for number in range(5):
        fill(store, number, 1)
        archive(None, store.path, "orders", out, format="delta")
    first, last = sorted(log.glob("*.checkpoint.parquet"))
    whole, name = last.read_bytes(), (log / "_last_checkpoint").read_bytes()
    middle = slice(100, len(whole) // 2)
    torn = (whole[: len(whole) // 2], whole[:100] + bytes(len(whole[middle])) + whole[middle.stop :], b"", None)
    for number, data in enumerate(torn):
        (log / "_last_checkpoint").write_bytes(name)
        last.unlink(missing_ok=True) if data is None else last.write_bytes(data)
        with pytest.raises(deltalake.exceptions.DeltaError):
            deltalake.DeltaTable(out).to_pyarrow_table()
        fill(store, 5 + number, 1)
        monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 100)
        archive(None, store.path, "orders", out)
        assert table_rows(out, "delta") == topic_rows(store, "orders")
        assert not last.exists() and first.exists()
    last.write_bytes(b"")
    (log / "00000000000000000003.json").unlink()
    with pytest.raises(KlammError, match="missing or damaged, and the commit of version 3 is gone, too"):
        archive(None, store.path, "orders", out)


def test_a_log_gets_checkpoints_and_all_of_it_is_synced_and_a_broken_one_is_named(
    store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 4)
    synced: set[str] = set()
    sync = files.sync_file

    def sync_file(path: str) -> None:
        synced.add(path)
        sync(path)

    monkeypatch.setattr(files, "sync_file", sync_file)
    store.topics.create("orders", 2, {"retention.ms": -1})
    out = tmp_path / "out"
    for number in range(8):
        fill(store, number % 2, 1)
        archive(None, store.path, "orders", out, format="delta")
    assert len(list((out / LOG).glob("*.checkpoint.parquet"))) == 2
    table = deltalake.DeltaTable(out)
    assert len(table.file_uris()) == 1  # merged
    written = {str(path) for path in (out / LOG).iterdir() if path.is_file()}
    assert written | {uri.removeprefix("file://") for uri in table.file_uris()} <= synced
    (out / LOG / commits(out)[-2]).write_text("[]\n")
    (out / LOG / "_last_checkpoint").unlink()
    for path in (out / LOG).glob("*.checkpoint.parquet"):
        path.unlink()
    with pytest.raises(KlammError, match=LOG):
        archive(None, store.path, "orders", out)
