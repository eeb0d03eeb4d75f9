"""Topics as tables of a catalog, in a real Spark: CREATE TABLE … USING klamm, read and written in SQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import klamm
from klamm.errors import InvalidSetting
from klamm.spark.option_names import SINK_OPTIONS, SOURCE_OPTIONS, check_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def table(spark: SparkSession, store: klamm.Store) -> Iterator[str]:
    store.topics.create("orders", partitions=2)
    store.append_many("orders", [(b"k%d" % number, b"%d" % number) for number in range(10)])
    options = f"path '{store.path}', subscribe 'orders', startingOffsets 'earliest', compression 'zstd'"
    spark.sql(f"CREATE TABLE orders_table USING klamm OPTIONS ({options})")
    yield "orders_table"
    spark.sql("DROP TABLE IF EXISTS orders_table")


def values(spark: Any, sql: str) -> list[Any]:
    return [row[0] for row in spark.sql(sql).collect()]


def test_a_table_is_read_and_written(spark: SparkSession, store: klamm.Store, table: str) -> None:
    assert values(spark, f"SELECT count(*) FROM {table}") == [10]
    spark.sql(f"INSERT INTO {table} (key, value) VALUES (CAST('new' AS BINARY), CAST('10' AS BINARY))")
    assert values(spark, f"SELECT sum(CAST(CAST(value AS STRING) AS INT)) FROM {table}") == [sum(range(11))]
    with store.consumer("orders", start="earliest", wait=0) as consumer:
        assert sorted(record.key for record in consumer)[-1] == b"new"
    query = spark.readStream.table(table).writeStream.format("memory").queryName("seen")
    query.trigger(availableNow=True).start().awaitTermination(120)
    assert values(spark, "SELECT count(*) FROM seen") == [11]
    spark.sql(f"DROP TABLE {table}")
    assert store.topics.describe("orders").partitions[0].end > 0  # the topic stays


def test_an_insert_that_names_no_columns_is_refused(spark: SparkSession, store: klamm.Store, table: str) -> None:
    """Spark tells neither which table is meant: the rows have the options of the table that they come from."""
    store.topics.create("others")
    spark.sql(f"CREATE TABLE others_table USING klamm OPTIONS (path '{store.path}', subscribe 'others')")
    try:
        whole = "key, value, topic, partition, CAST(NULL AS BIGINT) AS offset, timestamp, timestampType"
        for rows, said in (
            ("*", r"INSERT names no columns"),
            (whole, r"path is missing.*INSERT INTO orders \(key, value"),
        ):
            with pytest.raises(Exception, match=said):
                spark.sql(f"INSERT INTO others_table SELECT {rows} FROM {table}")
        spark.sql(f"INSERT INTO others_table (key, value) SELECT key, value FROM {table}")
        assert values(spark, f"SELECT count(*) FROM {table}") == [10]
        assert values(spark, "SELECT count(*) FROM others_table") == [10]
    finally:
        spark.sql("DROP TABLE others_table")


def test_an_option_that_there_is_not_is_refused_when_the_table_is_made(spark: SparkSession, store: klamm.Store) -> None:
    store.topics.create("orders")
    with pytest.raises(Exception, match="format klamm has no option 'subscibe'"):
        spark.sql(f"CREATE TABLE wrong USING klamm OPTIONS (path '{store.path}', subscibe 'orders')")


def test_options_of_both_directions_are_for_tables_only() -> None:
    given = {"path": "/e", "subscribe": "orders", "topic": "orders"}
    with pytest.raises(InvalidSetting, match="has no option 'topic'"):
        check_names(given, SOURCE_OPTIONS, other=SINK_OPTIONS)
    of_table = {**given, "Location": "file:/e", "option.topic": "orders", "owner": "me", "serialization.format": "1"}
    assert check_names(of_table, SOURCE_OPTIONS, other=SINK_OPTIONS) == {"path": "/e", "subscribe": "orders"}
    assert check_names(of_table, SINK_OPTIONS, other=SOURCE_OPTIONS) == {"path": "/e", "topic": "orders"}
