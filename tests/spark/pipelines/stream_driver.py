"""A Spark driver for tests to kill: aggregate, join and deduplicate at the same time, in a process of its own.

python stream_driver.py <events> <folder> <offsets a micro-batch>      ends when all three have done what is there
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import klamm.spark
from klamm.spark.pipelines.aggregate_pipeline import aggregate
from klamm.spark.pipelines.deduplicate_pipeline import deduplicate
from klamm.spark.pipelines.join_pipeline import join
from tests.spark.settings import SETTINGS


def pipelines(spark: Any, events: str, folder: str, most: int) -> list[Callable[[], Any]]:
    """What runs, in this process and in the test's."""
    return [
        lambda: aggregate(
            spark,
            events,
            "orders",
            "minutes",
            window="1 minute",
            watermark="1 minute",
            by="$.user.id",
            aggregates=("count", "sum($.total)", "min($.total)", "max($.total)"),
            max_offsets=most,
            checkpoint=f"{folder}/aggregate",
        ),
        lambda: join(
            spark,
            events,
            "orders",
            "payments",
            "paid",
            within="3 minutes",
            how="left",
            max_offsets=most,
            checkpoint=f"{folder}/join",
        ),
        lambda: deduplicate(
            spark,
            events,
            "orders",
            "once",
            by="header:id",
            within="4 minutes",
            max_offsets=most,
            checkpoint=f"{folder}/deduplicate",
        ),
    ]


def main(events: str, folder: str, most: str) -> None:
    spark = klamm.spark.session(master="local[2]", **SETTINGS)
    with ThreadPoolExecutor() as pool:
        for running in [pool.submit(each) for each in pipelines(spark, events, folder, int(most))]:
            running.result()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
