"""`klamm pipeline`: what is wrong is told before Spark is started; a pipeline runs, and says what it did."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import klamm
from tests.cli.conftest import Cli
from tests.serving import KLAMM
from tests.spark.classes import ENVIRONMENT
from tests.spark.forks import forks


@pytest.mark.parametrize("command", ["archive", "compact", "quality"])
def test_what_is_not_there_is_told_at_once(cli: Cli, home: Path, command: str) -> None:
    more = [home.parent / "out"] if command == "archive" else []
    assert "is not there" in cli("pipeline", command, "orders", *more, code=1).err
    with klamm.open(home):
        pass
    assert "there is no topic 'orders'" in cli("pipeline", command, "orders", *more, code=1).err


def test_a_setting_of_sparks_is_one(cli: Cli, home: Path) -> None:
    with klamm.open(home) as store:
        store.topics.create("orders")
    assert "--conf x=1: does not fit" in cli("pipeline", "quality", "orders", "--conf", "x=1", code=2).err


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
    ]
    with forks() as variables:
        environment = {**os.environ, **ENVIRONMENT, **variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["pipeline"], told["rows_read"], told["rows_written"]) == ("archive", 100, 100)
    assert list((tmp_path / "out").glob("date=*/*.parquet")) != []
