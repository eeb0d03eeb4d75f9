"""The topic `orders` as a streaming table, and its large ones back to a topic."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
EVENTS = spark.conf.get("spark.klamm.path")
LARGE = 100


@dp.table(comment="Each order once, as it came.")
def orders() -> DataFrame:
    records = spark.readStream.format("klamm").options(subscribe="orders", startingOffsets="earliest").load(EVENTS)
    order = "from_json(CAST(value AS STRING), 'id BIGINT, customer STRING, amount DOUBLE') AS order"
    return records.selectExpr(order, "timestamp AS at").select("order.*", "at")


dp.create_sink("large_orders", "klamm", {"path": EVENTS, "topic": "large-orders"})


@dp.append_flow(target="large_orders")
def send_large_orders() -> DataFrame:
    large = spark.readStream.table("orders").where(f"amount >= {LARGE}")
    return large.selectExpr("customer AS key", "to_json(struct(id, customer, amount)) AS value")
