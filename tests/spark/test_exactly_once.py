"""A streaming query from topic to topic: whatever fails, and whoever is killed, each record arrives once and in order.

Steps inside of a commit, at each of which the process is killed, are in test_publisher.py. Here Spark decides what
happens next: which batch is sent again, and whether `abort` is called.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import klamm
import klamm.spark

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from klamm.spark.source import KlammSource
from tests.crash.cases import seed_of
from tests.spark.processes import driver, wait_for
from tests.spark.settings import HAS_READ_LIMITS, with_limits

DRIVER = Path(__file__).parent / "driver.py"
COUNT = 1200


def fill(store: klamm.Store, topic: str, first: int, count: int) -> None:
    store.append_many(topic, [(b"user-%d" % (n % 9), b"%d" % n) for n in range(first, first + count)], acks=1)


def by_key(store: klamm.Store, topic: str) -> dict[Any, list[Any]]:
    """What a reader of committed records sees, in order."""
    found: dict[Any, list[Any]] = {}
    with store.consumer(topic, start="earliest", wait=0) as consumer:
        for record in consumer:
            found.setdefault(record.key, []).append(record.value)
    return found


class TrappedSource(KlammSource):
    """format("klamm"), but the first to commit after a trap was set meets it: `trap` is a file that says where."""

    @classmethod
    def name(cls) -> str:
        return "klamm_trapped"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802  # Spark's name
        options = dict(self.options)
        trap = options.pop("trap")
        self.options = options
        writer = super().streamWriter(schema=schema, overwrite=overwrite)
        commit = writer.commit

        def trapped(messages: Any, number: int) -> None:
            try:
                with open(trap) as file:
                    step = file.read()
                os.unlink(trap)
            except FileNotFoundError:
                step = ""
            _set(step)
            commit(messages, number)
            if step == "raise when all is done":
                raise RuntimeError(step)
            if step == "die when all is done":
                os.kill(os.getpid(), signal.SIGKILL)

        writer.commit = trapped  # type: ignore[assignment, method-assign]
        return writer


def _set(step: str) -> None:
    """In the process that commits."""
    from klamm.spark import batches as spark_batches
    from klamm.spark import publisher
    from klamm.store.transactions import Transactions

    def die(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def fail(*_: Any, **__: Any) -> Any:
        raise klamm.DiskFull("as if the disk were full")

    put, decide = spark_batches.put, Transactions.decide

    if step == "die in the decision":
        spark_batches.put = lambda *args, **more: die(put(*args, **more))
    elif step == "die before markers":
        Transactions.finish = die  # type: ignore[method-assign]
    elif step == "fail before the decision":
        publisher._fill = fail
    elif step == "fail after the decision":

        def both(*args: Any, **more: Any) -> Any:
            decide(*args, **more)
            Transactions.decide = decide  # type: ignore[method-assign]
            raise RuntimeError("after the decision")

        Transactions.decide = both  # type: ignore[method-assign]


STEPS = [
    "fail before the decision",
    "die in the decision",
    "fail after the decision",
    "die before markers",
    "raise when all is done",
    "die when all is done",
]


@with_limits
def test_a_commit_that_fails_at_any_step_is_made_up_for_by_the_next_run(
    spark: Any, store: klamm.Store, tmp_path: Path
) -> None:
    store.topics.create("orders", 2)
    store.topics.create("out", 3)
    fill(store, "orders", 0, COUNT)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(TrappedSource)
    trap = tmp_path / "trap"
    rows = klamm.spark.read_stream(
        spark,
        store.path,
        subscribe="orders",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=COUNT // (len(STEPS) + 1),
        columns="key,value",
    )

    def run() -> BaseException | None:
        writer = rows.writeStream.format("klamm_trapped").options(path=store.path, topic="out", trap=str(trap))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception as error:
            return error
        return None

    for step in STEPS:
        before = sum(map(len, by_key(store, "out").values()))
        trap.write_text(step)
        assert run() is not None, step
        assert not trap.exists()
        after = by_key(store, "out")
        for key, values in by_key(store, "orders").items():
            assert after.get(key, []) == values[: len(after.get(key, []))], f"{step}: {key}"
        assert sum(map(len, after.values())) >= before, f"{step}: something committed was undone"
    assert run() is None
    assert by_key(store, "out") == by_key(store, "orders")
    assert klamm.check(store.path).ok
    assert [each for each in store.transactions if each.state == "ongoing"] == []
    assert os.listdir(Path(store.path, "staging", store.store_id)) == []


@with_limits
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_a_driver_that_is_killed_again_and_again_delivers_every_record_once(
    spark: Any, store: klamm.Store, tmp_path: Path, kills: int
) -> None:
    seed = seed_of()
    dice = random.Random(seed)
    store.topics.create("orders", 2)
    store.topics.create("out", 3)
    fill(store, "orders", 0, 3000)
    arguments = (store.path, "orders", "out", tmp_path / "checkpoint", 40)

    def has(count: int) -> Callable[[], bool]:
        return lambda: sum(each.end for each in store.topics.describe("out").partitions) > count

    for kill in range(kills):
        before = sum(each.end for each in store.topics.describe("out").partitions)
        with driver(DRIVER, *arguments) as process:
            wait_for(has(before + 45), process)  # more than a micro-batch
            took = wait_for(has(before + 90), process)
            # Anywhere in the next two: reading, staging, committing, or in Spark's own logs.
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(dice.random() * 2 * took)
        seen, source = by_key(store, "out"), by_key(store, "orders")
        for key, values in source.items():
            assert seen.get(key, []) == values[: len(seen.get(key, []))]
        fill(store, "orders", 3000 + kill * 10, 10)
    rows = klamm.spark.read_stream(spark, store.path, subscribe="orders", columns="key,value")
    query = klamm.spark.write_stream(rows, store.path, topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert by_key(store, "out") == by_key(store, "orders")
    assert klamm.check(store.path).ok


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [pytest.param(20, marks=pytest.mark.soak), *(() if HAS_READ_LIMITS else (3,))])
def test_a_driver_that_is_killed_while_records_come_delivers_every_record_once(
    spark: Any, store: klamm.Store, tmp_path: Path, kills: int
) -> None:
    """Micro-batches are as large as what has come meanwhile: nothing limits them."""
    dice = random.Random(seed_of())
    store.topics.create("orders", 2)
    store.topics.create("out", 3)
    appended = iter(range(0, 1_000_000, 10))

    def ends() -> int:
        return sum(each.end for each in store.topics.describe("out").partitions)

    def append_until(end: int) -> bool:
        fill(store, "orders", next(appended), 10)
        return ends() > end

    for _ in range(kills):
        with driver(DRIVER, store.path, "orders", "out", tmp_path / "checkpoint", 0) as process:
            wait_for(partial(append_until, ends() + 20), process)
            took = wait_for(partial(append_until, ends() + 20), process)  # a micro-batch
            append_until(0)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(dice.random() * 2 * took)
        seen = by_key(store, "out")
        for key, values in by_key(store, "orders").items():
            assert seen.get(key, []) == values[: len(seen.get(key, []))]
    rows = klamm.spark.read_stream(spark, store.path, subscribe="orders", columns="key,value")
    query = klamm.spark.write_stream(rows, store.path, topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert by_key(store, "out") == by_key(store, "orders")
    assert klamm.check(store.path).ok
