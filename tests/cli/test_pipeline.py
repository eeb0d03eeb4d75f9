"""`klamm pipeline`: what is wrong is told before Spark is started; a pipeline runs, and says what it did."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import klamm
from klamm.cli.spark_session import spark_session
from tests.cli.conftest import Cli
from tests.serving import KLAMM
from tests.spark.classes import ENVIRONMENT
from tests.spark.forks import forks


@pytest.mark.parametrize("command", ["archive", "compact", "quality"])
def test_what_is_not_there_is_told_at_once(cli: Cli, home: Path, command: str) -> None:
    more = [home.parent / "out"] if command == "archive" else []
    assert "no such directory" in cli("pipeline", command, "orders", *more, code=1).err
    with klamm.open(home):
        pass
    assert "Topic 'orders' does not exist" in cli("pipeline", command, "orders", *more, code=1).err


def test_a_setting_of_sparks_is_one(cli: Cli, home: Path) -> None:
    with klamm.open(home) as store:
        store.topics.create("orders")
    assert "--conf x=1: invalid" in cli("pipeline", "quality", "orders", "--conf", "x=1", code=2).err


def test_a_small_topic_needs_no_spark_and_the_pipeline_is_managed(cli: Cli, home: Path) -> None:
    pytest.importorskip("duckdb")
    folder = home.parent / "out"
    with klamm.open(home) as store:
        store.topics.create("orders", 2)
        store.append_many("orders", [(b"%d" % n, b'{"n":%d}' % n) for n in range(100)])
    said = cli("pipeline", "archive", "orders", folder)
    assert "without Spark: " in said.err and "not more than 64 MiB" in said.err
    assert (said.rows[0]["rows_written"], said.rows[0]["engine"]) == (100, "local")
    found = cli("pipeline", "quality", "orders", "--engine", "local").rows[0]
    assert (found["records"], found["engine"]) == (100, "local")
    for options, text in (
        (["--engine", "none"], "expected auto, spark or local"),
        (["--engine", "local", "--master", "local"], "--master: needs Spark"),
    ):
        assert text in cli("pipeline", "quality", "orders", *options, code=2).err
    (row,) = cli("pipeline", "list").rows
    assert (row["name"], row["state"], row["lag"], row["batches"]) == ("archive-orders", "idle", 0, 1)
    shown = cli("pipeline", "show", "archive-orders").rows[0]
    assert shown["error"] is None and len(shown["partitions"]) == 2 and shown["directory"] == str(folder)
    assert cli("pipeline", "reset", "archive-orders", "--dry-run").rows[0]["done"] is False
    asked = cli("pipeline", "reset", "archive-orders", code=2).err
    assert "would be removed, for good" in asked and "nothing was done (--yes" in asked
    assert cli("pipeline", "list").rows[0]["batches"] == 1
    assert cli("pipeline", "reset", "archive-orders", "--yes").rows[0]["done"] is True
    assert not list(folder.glob("date=*")) and cli("pipeline", "list").rows[0]["lag"] == 100
    assert cli("pipeline", "retire", "archive-orders", "--yes").rows[0]["done"] is True
    assert cli("pipeline", "list").rows == []
    assert "has no pipeline 'archive-orders'" in cli("pipeline", "show", "archive-orders", code=2).err


def test_a_store_behind_a_server_is_named_by_its_address(cli: Cli, home: Path) -> None:
    folder = home.parent / "out"
    with klamm.open(home) as store:
        store.topics.create("orders", 2)
        store.append_many("orders", [b"%d" % n for n in range(100)])
        with klamm.server(store) as found:
            there = ("--store", f"klamm://{found}")
            said = cli("pipeline", "archive", "orders", folder, "--engine", "local", *there)
            assert said.rows[0]["rows_written"] == 100
            assert "Topic 'ordres' does not exist" in cli("pipeline", "archive", "ordres", folder, *there, code=1).err
            windows = ("aggregate", "orders", "out", "--window", "1m", "--watermark", "1m")
            assert "--checkpoint: is missing" in cli("pipeline", *windows, *there, code=2).err
            for command in (("list",), ("compact", "orders"), ("restore", folder, "again")):
                assert "is for a store in a directory" in cli("pipeline", *command, *there, code=1).err


@pytest.mark.jvm
@pytest.mark.timeout(200)
def test_a_pipeline_runs_and_says_what_it_did(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("orders", 2)
        store.append_many("orders", [(b"%d" % n, b"%d" % n) for n in range(100)])
    command: list[str | Path] = [
        KLAMM,
        "pipeline",
        "archive",
        "orders",
        tmp_path / "out",
        "--store",
        tmp_path / "events",
        "--engine",
        "spark",
    ]
    with forks() as variables:
        environment = {**os.environ, **ENVIRONMENT, **variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["pipeline"], told["rows_read"], told["rows_written"]) == ("archive", 100, 100)
    assert list((tmp_path / "out").glob("date=*/*.parquet")) != []


def test_a_command_is_quiet_unless_the_users_own_settings_say_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[dict[str, object]] = []

    def session(**settings: object) -> SimpleNamespace:
        asked.append(settings)
        return SimpleNamespace(stop=lambda: None)

    monkeypatch.setattr("klamm.spark.session", session)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for defaults in ("", "spark.ui.enabled true\nspark.log.level WARN\n"):
        (tmp_path / "spark-defaults.conf").write_text(defaults)
        with spark_session("local[1]", ["spark.log.level=INFO"]):
            pass
    progress = {"spark.ui.showConsoleProgress": "false"}
    given = {"master": "local[1]", "spark.log.level": "INFO"}
    assert asked == [{**progress, **given, "spark.ui.enabled": "false"}, {**progress, **given}]
