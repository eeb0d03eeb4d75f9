"""What happens to topics while a query reads them, and to the Python workers that write: in Spark, with the sink.

The query takes one record a trigger of thousands, so that it is far behind whatever the test does.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import klamm
import klamm.spark

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from klamm.spark.source import KlammSource
from tests.crash.cases import seed_of
from tests.procs import until
from tests.spark.settings import with_limits

PATIENCE = 150  # a micro-batch, on a machine that has other things to do
COUNT = 3000
LEFT = 4


def values(store: klamm.Store, topic: str) -> list[bytes]:
    with store.consumer(topic, start="earliest", wait=0) as consumer:
        return [record.value for record in consumer]


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def expire(store: klamm.Store) -> str:
    """Let all but the last few records expire; return what the query has to say."""
    store["in"].delete_records({0: COUNT - LEFT})
    store.maintain()
    return rf"data loss: in/0: offsets \d+ to {COUNT - LEFT - 1} are gone; the log starts at {COUNT - LEFT}"


def make_again(store: klamm.Store) -> str:
    store.topics.delete("in")
    store.topics.create("in")
    store.append_many("in", numbers(COUNT - LEFT, COUNT))
    return r"data loss: in(/0: offsets \d+ to \d+)?(: the topic was deleted|.* are gone)"


@with_limits
@pytest.mark.parametrize("happens", [expire, make_again])
@pytest.mark.parametrize("fails", [True, False], ids=["fail", "go on"])
def test_records_that_are_gone_under_a_running_query_are_the_only_ones_it_misses(
    spark: Any, store: klamm.Store, tmp_path: Path, happens: Callable[[klamm.Store], str], fails: bool
) -> None:
    store.topics.create("in")
    store.topics.create("out")
    store.append_many("in", numbers(0, COUNT))
    rows = klamm.spark.read_stream(
        spark,
        store.path,
        subscribe="in",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=1,
        failOnDataLoss=fails,
        columns="key,value",
    )
    query = klamm.spark.write_stream(rows, store.path, topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
    running = query.start()
    try:
        until(lambda: len(values(store, "out")) > 1, "the query has begun", PATIENCE)
        says = happens(store)
        if fails:
            with pytest.raises(Exception, match=says):
                running.awaitTermination(PATIENCE)
            seen = values(store, "out")
            assert seen == numbers(0, len(seen)), "what it read before, and nothing else"
            return
        until(lambda: values(store, "out")[-1] == b"%d" % (COUNT - 1), "it goes on with what is there", PATIENCE)
        seen = values(store, "out")
        assert seen == numbers(0, len(seen) - LEFT) + numbers(COUNT - LEFT, COUNT)
        assert len(seen) < COUNT // 2
    finally:
        running.stop()
    assert klamm.check(store.path).ok


# ---- Python workers that are killed while they write


class FragileSource(KlammSource):
    """format("klamm"), but a worker is killed somewhere in a task for each file in the directory `traps`."""

    @classmethod
    def name(cls) -> str:
        return "klamm_fragile"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802  # Spark's name
        options = dict(self.options)
        traps = options.pop("traps")
        self.options = options
        writer = super().streamWriter(schema=schema, overwrite=overwrite)
        write = writer.write

        def fragile(rows: Any) -> Any:
            for name in os.listdir(traps):
                try:
                    os.unlink(f"{traps}/{name}")
                except FileNotFoundError:
                    continue  # the other task has it
                die = threading.Timer(float(name), os.kill, (os.getpid(), signal.SIGKILL))
                die.daemon = True
                die.start()
                break
            staged = write(rows)
            time.sleep(0.03)  # some die when all is staged, but before Spark knows
            return staged

        writer.write = fragile  # type: ignore[assignment, method-assign]
        return writer


@with_limits
@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.timeout(1200)
def test_workers_that_are_killed_while_they_write_leave_every_record_once(
    spark: Any, store: klamm.Store, tmp_path: Path, kills: int
) -> None:
    dice = random.Random(seed_of())
    store.topics.create("in", 2)
    store.topics.create("out")
    for partition in (0, 1):
        store.append_many("in", [b"%d/%d" % (partition, n) for n in range(300 * kills)], partition=partition, acks=1)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(FragileSource)
    traps = tmp_path / "traps"
    traps.mkdir()
    for _ in range(kills):
        (traps / f"{dice.random() * 0.06:.9f}").touch()
    rows = klamm.spark.read_stream(
        spark,
        store.path,
        subscribe="in",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=300,
        columns="key,value",
    )
    writer = rows.writeStream.format("klamm_fragile").options(path=store.path, topic="out", traps=str(traps))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    said: list[str] = []
    while len(said) <= kills:
        try:
            writer.start().awaitTermination()
            break
        except Exception as error:
            said.append(str(error))
    assert all("Python worker exited unexpectedly" in each for each in said), said
    assert list(traps.iterdir()) == []
    seen = values(store, "out")
    for partition in (0, 1):
        ours = [value for value in seen if value.startswith(b"%d/" % partition)]
        assert ours == [b"%d/%d" % (partition, n) for n in range(300 * kills)]
    assert klamm.check(store.path).ok
    assert [each for each in store.transactions if each.state == "ongoing"] == []
