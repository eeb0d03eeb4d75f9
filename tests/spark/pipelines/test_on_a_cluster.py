"""Pipelines at a server on a standalone cluster: its workers are processes of a user who cannot read the store."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest

import klamm
from tests.spark.forks import NAME as FORKS
from tests.spark.pipelines.reference import contents
from tests.spark.processes import Stranger, driver, shared_directory, standalone

pytest.importorskip("pyspark")
DRIVER = Path(__file__).parent / "cluster_driver.py"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_workers_that_cannot_read_the_store_run_pipelines(store: klamm.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tests' user cannot start processes of another one, nothing but the address is between them."""
    monkeypatch.delenv(FORKS, raising=False)
    stranger = Stranger.find()
    print(f"the workers run as {'the same user' if stranger is None else 'nobody'}")
    store.topics.create("orders", 2)
    keys = [b"%d" % (n % 40) for n in range(120)]
    begin_ms = time.time_ns() // 60_000_000_000 * 60_000  # not so old that retention takes what pipelines write
    for n, key in enumerate(keys):
        store.append("orders", b"%d" % n, key=key, partition=n % 2, timestamp=begin_ms + n)
    with shared_directory() as shared, klamm.server(store) as address:
        variables, hidden = (None, "") if stranger is None else (stranger.environment, store.path)
        with (
            standalone(shared, "127.0.0.1", cores=2, stranger=stranger) as cluster,
            driver(DRIVER, cluster.address, f"klamm://{address}", shared, hidden, environment=variables) as process,
        ):
            _, said = process.communicate(timeout=600)
            print(said.decode()[-20_000:])
            assert process.returncode == 0
    assert sorted(each.key or b"" for each in contents(store, "once")) == sorted(set(keys))
    counts = {each.key: json.loads(each.value)["count"] for each in contents(store, "minutes")}
    assert sorted(counts.values()) == sorted(Counter(keys).values())
    assert klamm.check(store.path).ok
