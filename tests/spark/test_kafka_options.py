"""Options of Spark's Kafka source and sink, each in a query: what is read, in how many tasks, and what is written."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import klamm
import klamm.spark
from tests.spark.settings import with_limits

pytest.importorskip("pyspark")

T0 = 1_700_000_000_000


@pytest.fixture
def orders(store: klamm.Store) -> klamm.Store:
    """Two partitions: 100 records a second apart in the first, 20 in the second, some with headers."""
    store.topics.create("orders", 2, settings={"retention.ms": -1})
    for partition, count in ((0, 100), (1, 20)):
        for number in range(count):
            headers = [("n", b"%d" % number)] if number % 2 else []
            store.append("orders", b"%d" % number, partition=partition, timestamp=T0 + 1000 * number, headers=headers)
    return store


def counted(spark: Any, store: klamm.Store, **options: Any) -> dict[int, int]:
    rows = klamm.spark.read(spark, store.path, subscribe="orders", **options).groupBy("partition").count()
    return {row["partition"]: row["count"] for row in rows.collect()}


def test_offsets_by_timestamp_are_by_partition(spark: Any, orders: klamm.Store) -> None:
    times = {"orders": {"0": T0 + 90_000, "1": T0 + 15_000}}
    assert counted(spark, orders, startingOffsetsByTimestamp=times) == {0: 10, 1: 5}
    assert counted(spark, orders, endingOffsetsByTimestamp=times) == {0: 90, 1: 15}
    late = {"orders": {"0": T0 + 90_000, "1": T0 + 20_000}}
    with pytest.raises(Exception, match="orders/1 has no record at or after"):
        counted(spark, orders, startingOffsetsByTimestamp=late)
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert counted(spark, orders, startingOffsetsByTimestamp=late, **strategy) == {0: 10}


def test_a_stream_starts_at_timestamps(spark: Any, orders: klamm.Store, tmp_path: Path) -> None:
    orders.topics.create("out")
    rows = klamm.spark.read_stream(
        spark,
        orders.path,
        subscribe="orders",
        startingOffsetsByTimestamp=json.dumps({"orders": {"0": T0 + 90_000, "1": T0 + 999_000}}),
        startingOffsetsByTimestampStrategy="latest",
        columns="value",
    )
    query = klamm.spark.write_stream(rows, orders.path, topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert sorted(int(record.value) for record in orders.consumer("out", start="earliest", wait=0)) == [*range(90, 100)]


def test_a_task_has_at_most_so_many_records(spark: Any, orders: klamm.Store) -> None:
    rows = klamm.spark.read(spark, orders.path, subscribe="orders", maxRecordsPerPartition=25)
    sizes = rows.selectExpr("spark_partition_id() AS task").groupBy("task").count().collect()
    assert len(sizes) == 5 and max(row["count"] for row in sizes) <= 25
    assert sum(row["count"] for row in sizes) == 120


@with_limits
def test_a_trigger_has_enough_offsets_or_waits_as_long_as_it_may(
    spark: Any, orders: klamm.Store, tmp_path: Path
) -> None:
    """The first micro-batch takes what is there; then three records are too few, until the delay has passed."""
    orders.topics.create("out")
    limits = {"minOffsetsPerTrigger": 50, "maxTriggerDelay": "3s", "maxOffsetsPerTrigger": 500}
    rows = klamm.spark.read_stream(
        spark, orders.path, subscribe="orders", startingOffsets="earliest", columns="value", **limits
    )
    query = klamm.spark.write_stream(rows, orders.path, topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
    running = query.start()
    try:
        running.processAllAvailable()
        orders.append_many("orders", [b"100", b"101", b"102"])
        running.processAllAvailable()
        progress = [each for each in running.recentProgress if each["numInputRows"]]
        assert [each["numInputRows"] for each in progress][:1] == [120]
        with orders.consumer("out", start="earliest", wait=60) as consumer:
            assert len(list(itertools.islice(consumer, 123))) == 123
        last = [each for each in running.recentProgress if each["numInputRows"]][-1]
        lag = json.loads(last["sources"][0]["latestOffset"])["@klamm"]
        assert {"minOffsetsBehindLatest", "maxOffsetsBehindLatest", "avgOffsetsBehindLatest"} <= set(lag)
    finally:
        running.stop()


@pytest.mark.parametrize("includes", [None, True, False])
def test_headers_are_written_unless_they_are_to_be_left_out(
    spark: Any, orders: klamm.Store, includes: bool | None
) -> None:
    orders.topics.create("out")
    rows = klamm.spark.read(spark, orders.path, subscribe="orders", columns="value,headers", minPartitions=1)
    options = {} if includes is None else {"includeHeaders": includes}
    klamm.spark.write(rows, orders.path, topic="out", **options)
    with_headers = sum(bool(record.headers) for record in orders.consumer("out", start="earliest", wait=0))
    assert with_headers == (0 if includes is False else 60)
