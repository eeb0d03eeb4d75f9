"""A driver of pipelines at a server, on a cluster whose workers cannot read the store.

python cluster_driver.py <master> <address> <folder> <hidden>

Unless <hidden> is empty, tasks fail if they can read this directory. Workers may write to the pipelines' folder,
though they run as another user.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator

import klamm.spark
from klamm.spark.pipelines import aggregate, deduplicate
from tests.spark.settings import SETTINGS

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CLUSTER = {
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
    "spark.executor.memory": "512m",
    "spark.hadoop.fs.permissions.umask-mode": "000",
}


def main(master: str, address: str, folder: str, hidden: str) -> None:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.umask(0)
    spark = klamm.spark.session(master=master, **{**SETTINGS, **CLUSTER})

    def look(numbers: Iterable[int]) -> Iterator[bool]:
        for _ in numbers:
            yield os.access(hidden, os.R_OK)

    if hidden:
        assert spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect() == [False]
    deduplicate(spark, address, "orders", "once", within="1 hour", checkpoint=f"{folder}/deduplicate")
    aggregate(
        spark,
        address,
        "orders",
        "minutes",
        window="1 minute",
        watermark="1 minute",
        by="key",
        table=True,
        checkpoint=f"{folder}/aggregate",
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
