"""format("klamm") with a server, in a real Spark: the same DataFrame as from the directory, in batches and streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
import klamm.spark
from klamm.errors import InvalidSetting
from tests.spark.settings import with_limits

pytest.importorskip("pyspark")


@pytest.fixture
def server(store: klamm.Store) -> Iterator[str]:
    store.topics.create("orders", 3, {"retention.ms": -1})
    many = [(b"user-%d" % (n % 50), b"%d" % n, [("n", b"%d" % n)] if n % 2 else []) for n in range(200)]
    store.append_many("orders", many, timestamp=1_700_000_000_000)
    aborted = store.transaction(batch_bytes=1)
    aborted.send("orders", b"aborted", key=b"t")
    aborted.send("orders", b"aborted", key=b"t")
    aborted.abort()
    with store.transaction() as transaction:
        transaction.send("orders", b"committed", key=b"t")
    with klamm.server(store) as address:
        yield address


def rows(df: Any) -> list[Any]:
    return sorted(df.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def test_a_batch_is_the_same_dataframe_with_every_way_to_name_the_server(
    spark: Any, store: klamm.Store, server: str
) -> None:
    here = klamm.spark.read(spark, store.path, subscribe="orders", includeHeaders=True)
    there = klamm.spark.read(spark, f"klamm://{server}", subscribe="orders", includeHeaders=True)
    assert here.schema == there.schema
    wanted = rows(here)
    assert len(wanted) == 201 and rows(there) == wanted
    pushed = rows(there.where("partition = 1 AND offset >= 5"))
    assert pushed == [row for row in wanted if row.partition == 1 and row.offset >= 5] != []
    cut: dict[str, Any] = {
        "assign": {"orders": [0, 2]},
        "startingOffsets": {"orders": {"0": -2, "2": 2}},
        "endingOffsets": {"orders": {"0": 4, "2": -1}},
        "minPartitions": 4,
        "columns": "topic,partition,offset",
    }
    named = spark.read.format("klamm").option("server", server).option("subscribe", "orders").load()
    assert [row.offset for row in rows(named)] == [row.offset for row in wanted]
    assert rows(klamm.spark.read(spark, server=server, **cut)) == rows(klamm.spark.read(spark, store.path, **cut))


def test_what_does_not_fit_is_told_before_there_is_a_job(spark: Any, server: str) -> None:
    with pytest.raises(InvalidSetting, match=r"sasl\.username: is not for security\.protocol=PLAINTEXT"):
        klamm.spark.read(spark, f"klamm://{server}", subscribe="orders", **{"sasl.username": "alice"})
    with pytest.raises(InvalidSetting, match=r"sasl\.username: is not for security\.protocol=PLAINTEXT"):
        klamm.spark.read(spark, f"klamm://{server}?sasl.username=alice", subscribe="orders")
    with pytest.raises(Exception, match=r"Topic 'order' does not exist .did you mean 'orders'"):
        spark.read.format("klamm").options(server=server, subscribe="order").load()


@with_limits
def test_a_stream_goes_on_at_the_other_door_with_one_checkpoint(
    spark: Any, store: klamm.Store, server: str, tmp_path: Path
) -> None:
    """Offsets name the store and the topics by id, and those are the same from the files and from the server."""
    store.topics.create("out", 2)
    for round_number, where in enumerate((store.path, f"klamm://{server}", store.path, f"klamm://{server}")):
        store.append_many("orders", [(b"user-%d" % (n % 50), b"%d %d" % (round_number, n)) for n in range(60)])
        stream = klamm.spark.read_stream(
            spark, where, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=150, groupId="lag"
        )
        writer = klamm.spark.write_stream(
            stream.select("key", "value"), store.path, topic="out", checkpointLocation=str(tmp_path / "checkpoint")
        )
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        assert all(progress.sources[0].metrics is not None for progress in query.recentProgress)
    with store.consumer("out", start="earliest", wait=0) as consumer:
        found = [record.value for record in consumer]
    with store.consumer("orders", start="earliest", wait=0) as consumer:
        assert sorted(found) == sorted(record.value for record in consumer)
    ends = {each.number: each.end for each in store.topics.describe("orders").partitions}
    followed = store.groups.describe("lag").offsets
    assert {each.partition: each.committed and each.committed.offset for each in followed} == ends
