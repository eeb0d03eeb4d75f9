"""Writing with format("klamm"): what becomes of rows, and what is said about those that do not fit."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import klamm
import klamm.spark
from klamm.spark import staged_files as staging
from klamm.spark.internals import arrow_schema
from klamm.spark.option_names import SINK_OPTIONS
from klamm.spark.sink import WritePlan, _Stager, check_columns
from klamm.spark.sink_options import WriteOptions
from klamm.spark.staged_files import StagedName
from tests.spark.settings import with_limits

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType, _parse_datatype_string

HEADERS = "array<struct<key:string,value:binary>>"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "spark.md"


def records(store: klamm.Store, topic: str) -> list[klamm.Record]:
    with store.consumer(topic, start="earliest", wait=0) as consumer:
        return list(consumer)


def pairs(store: klamm.Store, topic: str) -> list[tuple[Any, Any]]:
    return [(record.key, record.value) for record in records(store, topic)]


def left_behind(store: klamm.Store) -> list[str]:
    directory = staging.directory_of(store.path, store.store_id)
    return os.listdir(directory) if os.path.isdir(directory) else []


def jobs(spark: Any) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


# What becomes of rows


def test_rows_are_records_where_an_embedded_producer_puts_them(spark: Any, store: klamm.Store) -> None:
    for name in ("orders", "same"):
        store.topics.create(name, 3)
    df = spark.range(0, 3000, 1, 3).selectExpr(
        "concat('user-', id % 50) AS key",
        "CAST(CAST(id AS STRING) AS BINARY) AS value",
        "array(named_struct('key', 'n', 'value', CAST(CAST(id AS STRING) AS BINARY))) AS headers",
    )
    df.write.format("klamm").option("topic", "orders").mode("append").save(store.path)
    numbers = range(3000)
    store.append_many(
        "same",
        [(b"user-%d" % (n % 50), b"%d" % n, [("n", b"%d" % n)]) for n in numbers],
        acks=1,
    )
    written, wanted = records(store, "orders"), records(store, "same")
    assert len(written) == 3000
    for number in range(3):
        mine, theirs = ([each for each in some if each.partition == number] for some in (written, wanted))
        assert [(each.key, each.value, each.headers) for each in mine] == [
            (each.key, each.value, each.headers) for each in theirs
        ]
    assert left_behind(store) == []
    assert klamm.check(store.path).ok


def test_columns_say_topic_partition_and_time_and_nulls_are_none(spark: Any, store: klamm.Store) -> None:
    store.topics.create("a", 2)
    store.topics.create("b", 4)
    rows = [
        ("k", "1", "a", 1, 1_000),
        (None, None, "b", 3, 2_000),
        ("k", "3", "b", None, 3_000),
        (None, "4", "a", 0, 4_000),
    ]
    df = spark.createDataFrame(rows, "Key string, value string, topic string, partition int, ms long").selectExpr(
        "Key", "value", "topic", "partition", "timestamp_millis(ms) AS timestamp", "1L AS offset", "0 AS timestampType"
    )
    klamm.spark.write(df, store.path, keepTimestamps=True, compression="zstd", compressionLevel=3)
    assert [(each.partition, each.key, each.value, each.timestamp) for each in records(store, "a")] == [
        (0, None, b"4", 4000),
        (1, b"k", b"1", 1000),
    ]
    found = {(each.partition, each.key, each.value, each.timestamp) for each in records(store, "b")}
    assert (3, None, None, 2000) in found and len(found) == 2
    # An option goes before the column, and columns that are not named are passed over.
    before = len(records(store, "a"))
    klamm.spark.write(df, store.path, topic="a", columns="value", acks=1)
    later = records(store, "a")[before:]
    assert sorted((each.key, each.value or b"") for each in records(store, "a") if each.timestamp > 10_000) == [
        (None, b""),
        (None, b"1"),
        (None, b"3"),
        (None, b"4"),
    ]
    assert len(later) == 4


def test_a_task_that_fails_and_is_tried_again_leaves_its_rows_once(spark: Any, store: klamm.Store) -> None:
    store.topics.create("orders", 2)
    df = spark.range(0, 400, 1, 4).selectExpr("CAST(id AS STRING) AS value")

    def fail_once(batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        for number, batch in enumerate(batches):
            yield batch
            if number == 0 and context is not None and context.attemptNumber() == 0 and context.partitionId() == 2:
                raise RuntimeError("after its first rows")

    klamm.spark.write(df.mapInArrow(fail_once, "value string"), store.path, topic="orders")
    assert sorted(int(value) for _, value in pairs(store, "orders")) == list(range(400))
    assert left_behind(store) == []


def test_a_write_that_fails_leaves_nothing(spark: Any, store: klamm.Store) -> None:
    store.topics.create("orders", 2)
    df = spark.range(0, 400, 1, 4).selectExpr(
        "CAST(id AS STRING) AS value", "IF(id = 399, CAST(NULL AS STRING), 'orders') AS topic"
    )
    with pytest.raises(Exception, match="the column topic is null in a row"):
        klamm.spark.write(df, store.path)
    assert records(store, "orders") == []
    assert left_behind(store) == []
    assert store.topics.describe("orders").partitions[0].end == 0, "not even an aborted record"


def test_a_write_with_a_name_and_a_number_is_done_once(spark: Any, store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("orders", 2)
    df = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
    for version in (0, 0, 1):
        klamm.spark.write(df, store.path, topic="orders", txnAppId="nightly", txnVersion=version)
    assert len(records(store, "orders")) == 20
    # In foreachBatch, which Spark calls again after a failure.
    store.topics.create("out", 1)
    failed: list[int] = []

    def twice(batch: Any, number: int) -> None:
        klamm.spark.write(batch, store.path, topic="out", columns="value", txnAppId="twice", txnVersion=number)
        if not failed:
            failed.append(number)
            raise RuntimeError("after the write")

    source = klamm.spark.read_stream(spark, store.path, subscribe="orders", startingOffsets="earliest")
    for _ in range(2):
        query = source.writeStream.foreachBatch(twice).option("checkpointLocation", str(tmp_path / "checkpoint"))
        started = query.trigger(availableNow=True).start()
        try:
            started.awaitTermination()
        except Exception:
            assert failed == [0]
    assert sorted(value for _, value in pairs(store, "out")) == sorted(value for _, value in pairs(store, "orders"))


@with_limits
def test_complete_mode_appends_every_result_each_time_with_one_producer_id(
    spark: Any, store: klamm.Store, tmp_path: Path
) -> None:
    store.topics.create("orders", 1)
    store.topics.create("counts", 1)
    for n in range(3):
        store.append_many("orders", [(b"a", b"%d" % n), (b"b", b"%d" % n)], acks=1)
    orders = klamm.spark.read_stream(
        spark, store.path, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=2
    )
    counts = orders.groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")
    query = klamm.spark.write_stream(counts, store.path, topic="counts", checkpointLocation=str(tmp_path / "counts"))
    query.outputMode("complete").trigger(availableNow=True).start().awaitTermination()
    assert sorted(pairs(store, "counts")) == sorted(
        (key, value) for key in (b"a", b"b") for value in (b"1", b"2", b"3")
    )
    assert len(store._acquired().topic("counts").partition(0).producers()) == 1


# What is said before a job starts


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ("value bigint", {}, r"column 'value' is bigint, expected string or binary .*CAST\(value AS STRING\) AS value"),
        ("value struct<a:int>", {}, r"expected string or binary .*to_json\(value\) AS value"),
        ("value string, key int", {}, r"column 'key' is int, expected string or binary .*CAST\(key AS STRING\)"),
        ("value string, partition string", {}, r"column 'partition' is string, expected a whole number .*AS INT\)"),
        (
            "value string, headers map<string,binary>",
            {},
            r"column 'headers' is map.*, expected array<struct<key:string",
        ),
        ("value string, topic int", {}, r"column 'topic' is int, expected a string"),
        ("value string, vlaue string", {}, r"no column 'vlaue' \(did you mean 'value'\?.* option columns"),
        ("value string, Value string", {}, "two columns 'value'"),
        ("key string", {}, r"no column 'value' \(.*to_json\(struct\(\*\)\) AS value"),
        ("value string", {"topic": ""}, "topic: is empty"),
        ("value string", {"columns": "value, key"}, "columns: the DataFrame has no column 'key'"),
        ("value string", {"keepTimestamps": "true"}, "there is no column 'timestamp'"),
        ("value string", {"acks": "0"}, "acks: '0' is invalid .*expected all"),
        ("value string", {"compression": "brotli"}, "brotli"),
        ("value string", {"compressionLevel": "much"}, "compressionLevel: 'much' is invalid"),
        ("value string", {"txnAppId": "a"}, "txnAppId and txnVersion belong together"),
        ("value string", {"tpoic": "orders"}, r"no option 'tpoic' \(did you mean 'topic'\?\)"),
        ("value string", {"kafka.acks": "all"}, "options of Kafka clients"),
    ],
)
def test_what_does_not_fit_is_told_in_one_sentence(
    spark: Any, columns: str, options: dict[str, str], sentence: str
) -> None:
    schema = _parse_datatype_string(columns)
    assert isinstance(schema, StructType)
    with pytest.raises(klamm.InvalidSetting, match=sentence) as error:
        check_columns(schema, WriteOptions.parse({"path": "/", "topic": "t", **options}, streaming=False))
    assert "\n" not in str(error.value)


def test_without_a_topic_there_is_nowhere_to_write_to(spark: Any) -> None:
    schema = _parse_datatype_string("value string")
    assert isinstance(schema, StructType)
    with pytest.raises(klamm.InvalidSetting, match="nothing says which topic"):
        check_columns(schema, WriteOptions.parse({"path": "/"}, streaming=False))
    with pytest.raises(klamm.InvalidSetting, match="txnAppId: is for batch writes only"):
        WriteOptions.parse({"path": "/", "txnAppId": "a", "txnVersion": "1"}, streaming=True)


def test_no_job_starts_for_a_write_that_cannot_end_well(spark: Any, store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("orders", 2)
    store.topics.create("users", 1, {"cleanup.policy": "compact"})
    df = spark.range(10).selectExpr("CAST(id AS STRING) AS value")

    def save(mode: str = "append", path: str = store.path, **options: str) -> Callable[[], None]:
        return lambda: df.write.format("klamm").options(**options).mode(mode).save(path)

    before = jobs(spark)
    for attempt, sentence in (
        (save(topic="ordres"), "Topic 'ordres' does not exist .did you mean 'orders'"),
        (save(topic="users"), "users: the topic is compacted, and the DataFrame has no column 'key'"),
        (save("overwrite", topic="orders"), "a log cannot be overwritten"),
        (save(path=str(tmp_path / "nothing"), topic="orders"), "nothing.*path is the directory of a store"),
    ):
        with pytest.raises(Exception, match=sentence) as error:
            attempt()
        assert "Traceback" not in str(error.value)
    assert jobs(spark) == before
    with pytest.raises(Exception, match="users: row 0 has no key, and the topic is compacted"):
        klamm.spark.write(df.selectExpr("value", "CAST(NULL AS STRING) AS key"), store.path, topic="users")
    with pytest.raises(Exception, match=r"there is no partition 7 .it has 2"):
        klamm.spark.write(df.selectExpr("value", "7 AS partition"), store.path, topic="orders")
    assert records(store, "orders") == records(store, "users") == []


@pytest.mark.parametrize(
    ("columns", "row", "said"),
    [
        ("partition int", {"partition": -1}, "orders: column 'partition': -1 in row 0 is negative"),
        ("timestamp timestamp", {"timestamp": datetime(1950, 1, 1, tzinfo=UTC)}, "orders: column 'timestamp'"),
        (f"headers {HEADERS}", {"headers": [None]}, "orders: column 'headers': a header is null"),
        (f"headers {HEADERS}", {"headers": [{"key": None, "value": b"x"}]}, "orders: "),
    ],
)
def test_a_row_that_cannot_be_a_record_is_told_in_one_sentence(
    store: klamm.Store, columns: str, row: dict[str, Any], said: str
) -> None:
    import pyarrow as pa

    store.topics.create("orders", 2)
    schema = _parse_datatype_string(f"value string, {columns}")
    assert isinstance(schema, StructType)
    given = {"path": store.path, "topic": "orders", "keepTimestamps": str("timestamp" in row).lower()}
    plan = WritePlan(schema, WriteOptions.parse(given, streaming=False))
    batch = pa.RecordBatch.from_pylist([{"value": "v", **row}], arrow_schema(schema))
    with pytest.raises(klamm.InvalidRecord) as caught:
        _Stager(plan, StagedName("job", 0, 0, 0)).run(iter([batch]))
    assert said in str(caught.value)
    assert left_behind(store) == []


@pytest.mark.parametrize("option", SINK_OPTIONS)
def test_every_option_of_the_sink_is_documented(option: str) -> None:
    assert f"| `{option}` |" in PAGE.read_text().split("## Writing")[1]
