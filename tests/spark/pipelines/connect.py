"""Every pipeline with a session of Spark Connect: python connect.py <events> <folder>; prints a line of JSON for each.

The store has the topics orders and payments, with JSON values, users, which is compacted, and an archive of orders in
<folder>/archive.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import klamm.spark
from klamm.errors import InvalidSetting
from klamm.spark.pipelines import aggregate, archive, compact, deduplicate, join, quality, restore

SETTINGS: dict[str, Any] = {"spark.log.level": "OFF", "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main(events: str, folder: str) -> None:
    options = {"spark.driver.extraJavaOptions": QUICK, "spark.driver.memory": "1g"}
    spark = klamm.spark.session(events, remote="local[2]", **SETTINGS, **options)
    windows: dict[str, Any] = {"window": "1 minute", "watermark": "0 seconds"}
    calls: dict[str, Callable[[], Any]] = {
        "path": lambda: spark.read.format("klamm").option("subscribe", "orders").load().count(),
        "quality": lambda: quality(spark, events, "orders").records,
        "compact": lambda: compact(spark, events, "users", force=True).rows_written,
        "restore": lambda: restore(spark, f"{folder}/archive", events, "again").rows_written,
        "join": lambda: join(spark, events, "orders", "payments", "paid", within="1 hour", by="$.id").rows_read,
        "deduplicate": lambda: deduplicate(spark, events, "orders", "unique", within="1 day").rows_written,
        "aggregate": lambda: aggregate(spark, events, "orders", "totals", **windows).rows_read,
        "table": lambda: aggregate(spark, events, "orders", "latest", table=True, **windows),
        "archive": lambda: archive(spark, events, "orders", f"{folder}/other"),
    }
    for name, call in calls.items():
        try:
            found = call()
        except InvalidSetting as error:
            found = str(error)
        print(json.dumps([name, found]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
