"""JVMs of tests: they live for seconds, so they are to start soon rather than to run fast.

    python -m tests.spark.classes

writes what the JVM has made of Spark's classes into a file, which the next ones map instead of reading, checking and
linking thousands of classes again: a session starts in half the time. `make test` does that once. Where the file is
missing, or of another Java, everything goes on without.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

STARTUP = Path(__file__).parent / "startup"
"""A directory for PYTHONPATH: with its sitecustomize.py, Spark's Python workers import pyspark in less time."""
ARCHIVE = Path(__file__).parents[2] / ".tools" / "spark.jsa"
# Without the second compiler, Java reserves little for what the first one makes, and soon sweeps it again and again.
_ROOM = "-XX:ReservedCodeCacheSize=200m -XX:-UseCodeCacheFlushing"
_SOON = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable {_ROOM}"


def _flags() -> str:
    if not ARCHIVE.exists() or " " in str(ARCHIVE):  # flags are told apart by spaces
        return f"{_SOON} -Xshare:auto"  # and klamm.spark.session makes no archive, since options speak of one
    return f"{_SOON} -XX:SharedArchiveFile={ARCHIVE}"


QUICK = _flags()
"""For spark.driver.extraJavaOptions."""
PYTHONPATH = os.pathsep.join([str(STARTUP), *filter(None, [os.environ.get("PYTHONPATH")])])
ENVIRONMENT = {"JAVA_TOOL_OPTIONS": f"{QUICK} -Xmx1g", "PYTHONPATH": PYTHONPATH}
"""For programs that make their session themselves."""


def main() -> None:
    import klamm
    import klamm.spark
    from klamm.spark import pipelines
    from tests.spark import settings

    unfinished = ARCHIVE.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    ARCHIVE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as tp, klamm.open(f"{tp}/events") as store:
        store.topics.create("from")
        store.topics.create("to")
        store.append_many("from", [(b"%d" % n, b"{}") for n in range(100)])
        flags = f"{_SOON} -XX:ArchiveClassesAtExit={unfinished}"
        options = {"spark.driver.extraJavaOptions": flags, "spark.log.level": "OFF", "spark.ui.enabled": "false"}
        options |= {"spark.sql.shuffle.partitions": "2", "spark.ui.showConsoleProgress": "false"}
        spark = klamm.spark.session(store.path, master="local[2]", **options)
        read = klamm.spark.read(spark, subscribe="from")
        read.groupBy("partition").count().write.parquet(f"{tp}/counts")
        spark.read.parquet(f"{tp}/counts").orderBy("count").collect()
        rows = klamm.spark.read_stream(spark, subscribe="from", startingOffsets="earliest")
        counts = rows.withWatermark("timestamp", "1 minute").groupBy("key", "timestamp").count().selectExpr("key value")
        query = klamm.spark.write_stream(counts, topic="to", checkpointLocation=f"{tp}/checkpoint")
        query.outputMode("append").trigger(availableNow=True).start().awaitTermination()
        pipelines.archive(spark, store.path, "from", f"{tp}/archive", schema="n INT")
        spark.read.parquet(f"{tp}/archive").selectExpr("key", "unix_millis(timestamp)", "headers").collect()
        for name in ("spark.sql.codegen.factoryMode", "spark.sql.codegen.wholeStage"):
            spark.conf.set(name, settings.SETTINGS[name])  # most tests do without generated code
        pipelines.aggregate(spark, store.path, "from", "minutes", window="1 minute", watermark="1 minute")
        pipelines.join(spark, store.path, "from", "to", "both", within="1 minute")
        pipelines.deduplicate(spark, store.path, "from", "once", within="1 minute")
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        jvm = gateway.proc
        spark.stop()
        jvm.stdin.close()
        jvm.wait(600)  # the JVM writes the archive
    unfinished.replace(ARCHIVE)


if __name__ == "__main__":
    main()
