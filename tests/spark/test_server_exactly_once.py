"""A stream from a server to a server, in a real Spark: whoever is killed, each record arrives once."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
import klamm.spark
from klamm.errors import BatchConflict
from tests.crash.cases import seed_of
from tests.serving import restartable
from tests.spark.processes import driver, wait_for
from tests.spark.settings import with_limits
from tests.store.open_transactions import server_names

pytest.importorskip("pyspark")

DRIVER = Path(__file__).parent / "driver.py"


@pytest.fixture
def server(store: klamm.Store) -> Iterator[str]:
    store.topics.create("orders", 2)
    store.append_many("orders", [(b"user-%d" % (n % 9), b"%d" % n) for n in range(300)], acks=1)
    with klamm.server(store) as address:
        yield f"klamm://{address}"


def by_key(store: klamm.Store, topic: str) -> dict[Any, list[Any]]:
    """What a reader of committed records sees, in order."""
    found: dict[Any, list[Any]] = {}
    with store.consumer(topic, start="earliest", wait=0) as consumer:
        for record in consumer:
            found.setdefault(record.key, []).append(record.value)
    return found


@with_limits
def test_batches_streams_and_numbered_writes_are_each_one_transaction(
    spark: Any, store: klamm.Store, server: str, tmp_path: Path
) -> None:
    for topic in ("whole", "streamed", "once"):
        store.topics.create(topic, 3)
    klamm.spark.write(klamm.spark.read(spark, server, subscribe="orders", columns="key,value"), server, topic="whole")
    assert {key: sorted(values) for key, values in by_key(store, "whole").items()} == {
        key: sorted(values) for key, values in by_key(store, "orders").items()
    }
    assert server_names(store) == [], "ids of a job that is over are forgotten"

    rows = klamm.spark.read_stream(
        spark, server, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=100, columns="key,value"
    )
    location = str(tmp_path / "checkpoint")
    query = klamm.spark.write_stream(rows, server, topic="streamed", checkpointLocation=location)
    query.trigger(availableNow=True).start().awaitTermination()
    assert by_key(store, "streamed") == by_key(store, "orders")
    # Its last micro-batch once more: as if the driver had been killed before it was noted.
    for name in ("2", ".2.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    again = klamm.spark.write_stream(rows, server, topic="streamed", checkpointLocation=location)
    again.trigger(availableNow=True).start().awaitTermination()
    assert by_key(store, "streamed") == by_key(store, "orders")

    few = spark.range(0, 20, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    for _ in range(2):
        klamm.spark.write(few, server, topic="once", txnAppId="nightly", txnVersion=1)
    klamm.spark.write(few, store.path, topic="once", txnAppId="nightly", txnVersion=1)  # the other door knows it, too
    assert sum(map(len, by_key(store, "once").values())) == 20
    with pytest.raises(Exception, match=BatchConflict.__name__):
        klamm.spark.write(few.limit(3), server, topic="once", txnAppId="nightly", txnVersion=1)
    partitions = [each for topic in store.topics for each in store._acquired().topic(topic).partitions()]
    assert all(each.ends().stable == each.ends().end for each in partitions), "no transaction is left open"
    assert klamm.check(store.path).ok


@with_limits
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_drivers_and_servers_that_are_killed_deliver_every_record_once(
    spark: Any, path: Path, tmp_path: Path, kills: int
) -> None:
    dice = random.Random(seed_of())
    with klamm.open(path) as store:
        store.topics.create("orders", 2)
        store.topics.create("out", 3)
        store.append_many("orders", [(b"user-%d" % (n % 9), b"%d" % n) for n in range(2000)], acks=1)
        with restartable(path) as server:
            address = f"klamm://{server.address}"
            arguments = (address, "orders", "out", tmp_path / "checkpoint", 40)

            def has(count: int) -> Callable[[], bool]:
                return lambda: sum(each.end for each in store.topics.describe("out").partitions) > count

            for _ in range(kills):
                before = sum(each.end for each in store.topics.describe("out").partitions)
                with driver(DRIVER, *arguments) as process:
                    wait_for(has(before + 45), process)  # more than a micro-batch
                    server.kill()
                    server.begin()
                    took = wait_for(has(before + 130), process)
                    with pytest.raises(subprocess.TimeoutExpired):
                        process.wait(dice.random() * took)
                seen, source = by_key(store, "out"), by_key(store, "orders")
                for key, values in source.items():
                    assert seen.get(key, []) == values[: len(seen.get(key, []))]
            rows = klamm.spark.read_stream(spark, address, subscribe="orders", columns="key,value")
            query = klamm.spark.write_stream(
                rows, address, topic="out", checkpointLocation=str(tmp_path / "checkpoint")
            )
            query.trigger(availableNow=True).start().awaitTermination()
            assert by_key(store, "out") == by_key(store, "orders")
    assert klamm.check(path).ok
