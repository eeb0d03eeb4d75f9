"""A streaming query on a cluster, for tests to kill: executors in JVMs of their own, and speculation.

python cluster_driver.py <master> <events> <checkpoint> <attempts> <hidden>      ends when all of `in` is in `out`

Unless <hidden> is empty, tasks fail if they can read this directory. At a server there is a shuffle, so that Spark runs
a stage again when an executor is lost.

One task of each micro-batch is slow, so that Spark starts a second attempt beside it. Each attempt leaves a file in the
directory <attempts>: micro-batch, partition, number of the attempt.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import klamm.spark
from tests.spark.settings import SETTINGS

OFTEN = {
    "spark.speculation": "true",
    "spark.speculation.interval": "20ms",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.cores.max": "4",
    "spark.executor.cores": "2",
    "spark.task.maxFailures": "10",
    "spark.executor.memory": "512m",
    "spark.excludeOnFailure.enabled": "false",
}


def main(master: str, events: str, checkpoint: str, attempts: str, hidden: str) -> None:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    options = {**SETTINGS, "spark.driver.extraJavaOptions": quick, "spark.executor.extraJavaOptions": quick, **OFTEN}
    spark = klamm.spark.session(events, master=master, **options)

    def slow(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        assert not hidden or not os.access(hidden, os.R_OK)
        task = TaskContext.get()
        assert task is not None
        number = task.getLocalProperty("streaming.sql.batchId") or ""
        open(f"{attempts}/{number}.{task.partitionId()}.{task.attemptNumber()}", "w").close()
        for batch in batches:
            if task.attemptNumber() == 0 and task.partitionId() == int(number) % 4:
                time.sleep(2)
            yield batch

    rows = klamm.spark.read_stream(
        spark,
        subscribe="in",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=200,
        minPartitions=4,
        columns="key,value",
    )
    if events.startswith("klamm://"):  # where order is not promised: a lost executor has files that tasks need
        rows = rows.repartition(4, "value")
    rows = rows.mapInArrow(slow, rows.schema)
    query = klamm.spark.write_stream(rows, topic="out", checkpointLocation=checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
