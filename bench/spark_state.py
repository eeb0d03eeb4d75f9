"""What does RocksDB's changelog spare a query with state: Spark writes what a micro-batch has changed, not snapshots?

A streaming query counts records by key and window, in append mode with a watermark, as the pipelines do: a backlog of
micro-batches of 5,000 records each with 2,000 different keys, two partitions of state in RocksDB, a checkpoint on a
local disk. The same backlog with `changelogCheckpointing` and with Spark's default, in turns, in one session; p50 of
what Spark says that a micro-batch took (`triggerExecution`), its CPU and the commit of the state, which is part of it,
added up over the tasks. The first micro-batches of a run are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import _harness as harness
import _spark as spark
import klamm

CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
AT_ONCE, KEYS = 5_000, 2_000
FIRST = 3
START_MS = 1_700_000_000_000


@dataclass
class Run:
    """Milliseconds of each micro-batch and of its state's commit; CPU milliseconds of one."""

    whole: list[float]
    commits: list[float]
    cpu: float


def fill(path: str, batches: int) -> None:
    """Make a topic whose records are a minute later in each micro-batch."""
    with klamm.open(path) as store:
        store.topics.create("bench", 1)
        for number in range(batches):
            with store.producer(acks=1) as producer:
                for each in range(AT_ONCE):
                    producer.send("bench", b"", key=b"%d" % (each % KEYS), timestamp=START_MS + number * 60_000)


def run(session: Any, path: str, checkpoint: str, changelog: str, first: int) -> Run:
    session.conf.set(PROVIDER, ROCKSDB)
    session.conf.set(CHANGELOG, changelog)
    rows = session.readStream.format("klamm").options(
        subscribe="bench", startingOffsets="earliest", columns="key,timestamp", maxOffsetsPerTrigger=str(AT_ONCE)
    )
    counts = rows.load(path).withWatermark("timestamp", "2 minutes")
    query = (
        counts.groupBy("key", "timestamp")
        .count()
        .writeStream.format("noop")
        .outputMode("append")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
    )
    before = spark.cpu()
    running = query.start()
    running.awaitTermination()
    done = [each for each in running.recentProgress if each["numInputRows"]]
    spent = (spark.cpu() - before) / len(done)
    counted = done[first:]
    return Run(
        [float(each["durationMs"]["triggerExecution"]) for each in counted],
        [float(each["stateOperators"][0]["commitTimeMs"]) for each in counted],
        spent * 1000,
    )


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], batches=(40, "micro-batches a run"))
    quick = options.quick
    batches, first = (4, 1) if quick else (options.batches, FIRST)
    settings = {"spark.sql.streaming.numRecentProgressUpdates": "1000"}
    with harness.folder() as path, spark.session(quick=quick, **settings) as session:
        fill(f"{path}/store", batches)
        numbers = iter(range(1_000_000))
        found = harness.interleave(
            {
                name: lambda value=value: run(session, f"{path}/store", f"{path}/{next(numbers)}", value, first)
                for name, value in (("changelog", "true"), ("snapshots", "false"))
            },
            1 if quick else options.rounds,
        )
    harness.answer(
        "Spark micro-batch with state in RocksDB, changelog",
        [harness.percentile(each.whole, 50) for each in found["changelog"]],
        "Spark's default, snapshots",
        [harness.percentile(each.whole, 50) for each in found["snapshots"]],
        unit="ms p50",
        **{
            f"{side}{field}": harness.digits(harness.median([value(each) for each in found[name]]))
            for side, name in (("", "changelog"), ("peer_", "snapshots"))
            for field, value in (
                ("commit_ms", lambda each: harness.percentile(each.commits, 50)),
                ("cpu_ms", lambda each: each.cpu),
            )
        },
        count=batches,
    )


if __name__ == "__main__":
    main()
