"""A directory and kafka://: the same DataFrame, the same options, the same sentences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
import klamm.spark
from klamm.errors import InvalidSetting, KlammError
from klamm.spark import remote
from tests.spark.conftest import connector_is_here

pytest.importorskip("pyspark")

needs_connector = pytest.mark.skipif(not connector_is_here(), reason="`make tools` fetches Spark's Kafka connector")


@pytest.fixture
def cluster(store: klamm.Store) -> Iterator[str]:
    """The same store, at its other door."""
    store.topics.create("orders", 3, {"retention.ms": -1})
    store.append_many(
        "orders",
        [(b"user-%d" % (n % 50), b"%d" % n, [("n", b"%d" % n)] if n % 2 else []) for n in range(200)],
        timestamp=1_700_000_000_000,
    )
    with store.transaction() as transaction:
        transaction.send("orders", b"committed", key=b"t")
    aborted = store.transaction(batch_bytes=1)
    aborted.send("orders", b"aborted", key=b"t")
    aborted.send("orders", b"aborted", key=b"t")
    aborted.abort()
    with klamm.server(store) as address:
        yield f"kafka://{address}"


def rows(df: Any) -> list[Any]:
    return sorted(df.collect(), key=lambda row: (row.topic, row.partition, row.offset))


@needs_connector
@pytest.mark.timeout(300)
def test_reading_gives_the_same_dataframe(spark: Any, store: klamm.Store, cluster: str, tmp_path: Path) -> None:
    both = [
        klamm.spark.read(spark, where, subscribe="orders", includeHeaders=True, startingTimestamp=1_700_000_000_000)
        for where in (store.path, cluster)
    ]
    assert both[0].schema == both[1].schema
    assert both[0].dtypes == both[1].dtypes
    mine, theirs = map(rows, both)
    assert len(mine) == 201 and mine == theirs
    for options in (
        {"subscribePattern": "ord.*", "columns": "offset,partition,topic", "startingOffsets": "earliest"},
        {
            "assign": {"orders": [0, 2]},
            "startingOffsets": {"orders": {"0": -2, "2": 2}},
            "endingOffsets": {"orders": {"0": 4, "2": -1}},
        },
    ):
        mine, theirs = (rows(klamm.spark.read(spark, where, **options)) for where in (store.path, cluster))
        assert mine and mine == theirs
    # A stream, too.
    found = []
    for number, where in enumerate((store.path, cluster)):
        stream = klamm.spark.read_stream(spark, where, subscribe="orders", startingOffsets="earliest")
        writer = stream.writeStream.format("memory").queryName(f"seen_{number}").outputMode("append")
        writer.trigger(availableNow=True).start().awaitTermination()
        found.append(rows(spark.table(f"seen_{number}")))
    assert len(found[0]) == 201 and found[0] == found[1]


@needs_connector
@pytest.mark.timeout(300)
def test_writing_gives_the_same_records(spark: Any, store: klamm.Store, cluster: str, tmp_path: Path) -> None:
    for name in ("here", "there", "stream-here", "stream-there"):
        store.topics.create(name, 4)
    df = spark.range(0, 500, 1, 1).selectExpr(
        "concat('user-', id % 20) AS Key",
        "CAST(id AS STRING) AS value",
        "IF(id % 10 = 0, 3L, NULL) AS partition",
        "array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers",
        "'elsewhere' AS topic",
        "7L AS offset",
    )
    klamm.spark.write(df, store.path, topic="here", compression="lz4", acks="all")
    klamm.spark.write(df, cluster, topic="there", compression="lz4", acks="all")
    for where, topic in ((store.path, "stream-here"), (cluster, "stream-there")):
        stream = klamm.spark.read_stream(
            spark, where, subscribe="here", startingOffsets="earliest", includeHeaders=True
        )
        columns = "key,value,headers"
        writer = klamm.spark.write_stream(
            stream, where, topic=topic, columns=columns, checkpointLocation=str(tmp_path / topic)
        )
        writer.trigger(availableNow=True).start().awaitTermination()

    def contents(topic: str) -> dict[tuple[int, Any], list[Any]]:
        found: dict[tuple[int, Any], list[Any]] = {}
        with store.consumer(topic, start="earliest", wait=0) as consumer:
            for record in consumer:
                found.setdefault((record.partition, record.key), []).append((record.value, record.headers))
        return {tp: sorted(values) for tp, values in found.items()}

    assert sum(map(len, contents("here").values())) == 500
    assert contents("here") == contents("there")
    assert contents("stream-here") == contents("stream-there")
    assert sum(map(len, contents("stream-here").values())) == 500


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "orders", "groupId": "g"}, r"groupId: kafka://host:1 cannot do that .*checkpoint"),
        ({"subscribe": "orders", "assign": "{}"}, "both given"),
        ({"subscribe": "orders", "columns": "kee"}, r"no column 'kee' .did you mean 'key'"),
        ({"subscirbe": "orders"}, r"no option 'subscirbe' .did you mean 'subscribe'"),
        ({}, "nothing says which topics to read"),
    ],
)
def test_what_does_not_fit_is_told_as_for_a_directory(spark: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidSetting, match=sentence):
        klamm.spark.read(spark, "kafka://host:1", **options)


def test_what_a_cluster_cannot_do_is_refused(spark: Any) -> None:
    df = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    for options in ({"txnAppId": "a", "txnVersion": 1}, {"keepTimestamps": True}):
        with pytest.raises(InvalidSetting, match="cannot do that"):
            klamm.spark.write(df, "kafka://host:1", topic="t", **options)
    with pytest.raises(InvalidSetting, match="column 'value' is bigint"):
        klamm.spark.write(spark.range(1).selectExpr("id AS value"), "kafka://host:1", topic="t")
    with pytest.raises(InvalidSetting, match="kafka:/host: not an address"):
        klamm.spark.read(spark, "kafka:/host", subscribe="orders")


def test_without_the_connector_one_sentence_says_how_to_get_it(spark: Any) -> None:
    sentence = r"has no Kafka connector of Spark's .*session\(kafka=True\)"
    explained = remote._explained(remote._Destination(spark, "kafka://host:1", {}))
    with pytest.raises(KlammError, match=sentence), explained:
        raise RuntimeError("Failed to find data source: kafka. Please deploy the application as per …")
