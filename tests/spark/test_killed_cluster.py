"""A cluster's workers, executors, Python processes and drivers, and the server, killed at random moments, with
speculation: each record once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import klamm
import klamm.spark
from tests.crash.cases import seed_of
from tests.serving import restartable
from tests.spark.forks import NAME as FORKS
from tests.spark.processes import Cluster, Stranger, driver, shared_directory, standalone, wait_for

pytest.importorskip("pyspark")

DRIVER = Path(__file__).parent / "cluster_driver.py"
COUNT = 12_000
ROUNDS = 8
PATIENCE = 900  # seconds until a driver, two executors and their Python processes have done a micro-batch
PYTHON = "pyspark.daemon"
EXECUTOR = "CoarseGrainedExecutorBackend"
WORKER = "worker"
SERVER = "server"


def values(store: klamm.Store, topic: str) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    with store.consumer(topic, start="earliest", wait=0) as consumer:
        for record in consumer:
            assert record.key is not None
            found.setdefault(int(record.key), []).append(record.value)
    return found


def _run_and_kill(
    cluster: Cluster,
    server: Any,
    start: Callable[[], AbstractContextManager[subprocess.Popen[bytes]]],
    dice: random.Random,
    kills: dict[str, int],
    out: Callable[[], int],
) -> None:
    """Start a driver, kill what works for it again and again, and then the driver."""
    before = out()
    with start() as process:
        wait_for(lambda: out() > before, process, PATIENCE)
        for _ in range(dice.randrange(2, 6)):
            try:
                process.wait(dice.random() * 2)
                return  # it is done
            except subprocess.TimeoutExpired:
                pass
            kind = dice.choice([EXECUTOR, WORKER, PYTHON, PYTHON, *([SERVER] if server is not None else ())])
            if kind == SERVER:
                server.kill()
                server.begin()
                kills[kind] += 1
            elif kind == WORKER:
                cluster.restart_worker(dice.randrange(2))
                kills[kind] += 1
            elif victims := cluster.processes(kind):
                os.kill(dice.choice(victims), signal.SIGKILL)
                kills[kind] += 1
        time.sleep(dice.random())
        kills["driver"] += process.poll() is None


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("at", ["directory", "server"])
def test_a_cluster_whose_processes_are_killed_delivers_every_record_once(
    spark: Any, path: Path, tmp_path: Path, at: str
) -> None:
    """At a server, tasks write at the same time, so only the records of one task are in order. Its cluster works in a
    folder of its own, and as a user who cannot read the store; where the tests' user cannot start processes of another
    one, nothing but the folder is between them.
    """
    with klamm.open(path) as store, nullcontext() if at == "directory" else restartable(path) as server:
        _kill_a_cluster(spark, store, tmp_path, server)


def _kill_a_cluster(spark: Any, store: klamm.Store, tmp_path: Path, server: Any) -> None:
    """`server`: at which the store is written to and read; None: its directory."""
    is_ordered, where = server is None, store.path if server is None else f"klamm://{server.address}"
    dice = random.Random(seed_of())
    stranger = None if server is None else Stranger.find()
    print(f"the workers run as {'the same user' if stranger is None else 'nobody'}")
    store.topics.create("in", 2)
    store.topics.create("out", 2)
    for partition in (0, 1):
        rows = [(b"%d" % partition, b"%d" % n) for n in range(COUNT // 2)]
        for start in range(0, len(rows), 20):  # batches, for tasks to be cut at
            store.append_many("in", rows[start : start + 20], partition=partition, acks=1)
    checkpoint = tmp_path / "checkpoint"
    kills = {EXECUTOR: 0, WORKER: 0, PYTHON: 0, "driver": 0} | ({} if server is None else {SERVER: 0})

    def out() -> int:
        """How far `out` is committed."""
        return sum(each.ends().stable for each in store._acquired().topic("out").partitions())

    with pytest.MonkeyPatch.context() as patch, shared_directory() as shared:
        patch.delenv(FORKS, raising=False)  # so that workers are processes that can be killed
        attempts = shared / "attempts"
        attempts.mkdir()
        attempts.chmod(0o777)
        with standalone(shared, "127.0.0.1", "127.0.0.2", cores=2, stranger=stranger) as cluster:
            hidden = "" if stranger is None else store.path

            def drive() -> AbstractContextManager[subprocess.Popen[bytes]]:
                variables = None if stranger is None else stranger.environment
                return driver(DRIVER, cluster.address, where, checkpoint, attempts, hidden, environment=variables)

            with drive() as process:  # without a kill: speculation alone
                wait_for(
                    lambda: any(each.name.endswith(".1") for each in attempts.iterdir()) and out() > 200,
                    process,
                    PATIENCE,
                )
            for _ in range(ROUNDS):
                _run_and_kill(cluster, server, drive, dice, kills, out)
                for key, found in values(store, "out").items():
                    seen = found if is_ordered else sorted(found, key=int)
                    assert seen == [b"%d" % n for n in range(len(found))], key
    print(kills)
    assert all(kills.values())
    rest = klamm.spark.read_stream(spark, where, subscribe="in", columns="key,value")
    query = klamm.spark.write_stream(rest, where, topic="out", checkpointLocation=str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    written = values(store, "out")
    if not is_ordered:
        written = {key: sorted(found, key=int) for key, found in written.items()}
    assert written == values(store, "in") == {partition: [b"%d" % n for n in range(COUNT // 2)] for partition in (0, 1)}
    assert klamm.check(store.path).ok
