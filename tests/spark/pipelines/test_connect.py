"""Every pipeline takes a session of Spark Connect, or refuses it in one sentence: docs/guide/spark-on-a-cluster.md."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.spark.pipelines import archive
from tests.procs import until

pytest.importorskip("pyspark")
GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "spark-on-a-cluster.md"


@pytest.mark.soak  # a server, and seven pipelines
@pytest.mark.timeout(900)
def test_pipelines_over_spark_connect(store: klamm.Store, tmp_path: Path) -> None:
    for name in ("orders", "payments"):
        store.topics.create(name, 2)
        store.append_many(name, [(b"k%d" % number, b'{"id":"%d"}' % number) for number in range(20)])
    store.topics.create("users", cleanup_policy="compact")
    store.append_many("users", [(b"k%d" % (number % 5), b"v") for number in range(20)])
    archive(None, store.path, "orders", tmp_path / "archive")
    program = [sys.executable, "-m", "tests.spark.pipelines.connect", store.path, str(tmp_path)]
    log = tmp_path / "log"

    def told() -> dict[str, Any]:
        lines = [line[line.index('["') :] for line in log.read_text().splitlines() if '["' in line]
        found = dict(json.loads(line) for line in lines)
        assert "archive" in found or client.poll() is None, log.read_text()[-3000:]
        return found if "archive" in found else {}

    with open(log, "wb") as output:
        client = subprocess.Popen(program, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        found = until(told, "all pipelines have run", 880)
    finally:  # to stop takes Spark minutes, now and then
        os.killpg(client.pid, signal.SIGKILL)
        client.wait()
    refused = {name: found.pop(name, "") for name in ("table", "archive")}
    same = {"path": 20, "quality": 20, "restore": 20, "compact": 5, "join": 40, "deduplicate": 20, "aggregate": 20}
    assert found == same
    for text in refused.values():
        assert "needs the driver's process, and this session is a client of Spark Connect" in text


def test_the_guide_names_them() -> None:
    table = GUIDE.read_text().partition("| pipeline | with a session of Spark Connect |")[2].partition("\n\n")[0]
    rows = {line.split("|")[1]: line.split("|")[2] for line in table.splitlines()[2:]}
    works = next(row for row, text in rows.items() if text.startswith(" works"))
    refused = next(row for row, text in rows.items() if text.startswith(" refused"))
    assert all(f"`{name}`" in works for name in ("quality", "compact", "restore", "join", "deduplicate", "aggregate"))
    assert "`archive`" in refused and "`aggregate(table=True)`" in refused
