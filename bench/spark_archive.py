"""How many rows a second does `archive` bring into Parquet, beside Spark's Kafka connector and its own Parquet sink?

3 M rows of (8 B key, 100 B value) in two partitions -> key, value, headers, partition, offset, timestamp and
timestampType, in Parquet, by date; all that is there, with a checkpoint, into a new folder each time:

    archive    klamm.spark.pipelines.archive: micro-batches with a journal, on disk when they are done
    Kafka      format("kafka") on Apache Kafka -> format("parquet"), partitioned by date, trigger availableNow; nothing
               there is synced

Two cores; both in the same session, in turns.
"""

from __future__ import annotations

import shutil
from typing import Any

import _harness as harness
import _spark as spark

SIZE = 100
COLUMNS = ("key", "value", "headers", "partition", "offset", "timestamp", "timestampType")


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0], count=(3_000_000, "rows"), warm=(1, "rounds of each kind before the first that counts")
    )
    quick = options.quick
    count = 20_000 if quick else options.count
    part, times = spark.part_of(count, SIZE)
    count = times * len(part)
    with (
        harness.folder() as path,
        spark.broker(quick=quick) as server,
        spark.session(quick=quick) as session,
    ):
        from klamm.spark.pipelines import archive

        spark.fill_store(f"{path}/store", part, times)
        topic = spark.topic(server)
        spark.fill(server, topic, part, times)

        def ours(to: str) -> None:
            archive(session, f"{path}/store", "bench", to)

        def theirs(to: str) -> None:
            rows = session.readStream.format("kafka").options(
                **{
                    "kafka.bootstrap.servers": server.address,
                    "subscribe": topic,
                    "startingOffsets": "earliest",
                    "includeHeaders": "true",
                }
            )
            dated = rows.load().selectExpr(*COLUMNS, "to_date(timestamp) AS date")
            writer = dated.writeStream.partitionBy("date").option("checkpointLocation", f"{to}.checkpoint")
            writer.trigger(availableNow=True).start(to, format="parquet").awaitTermination()

        def run(name: str, work: Any) -> harness.Sample:
            to = f"{path}/{name}"
            with spark.clock(count, server, brokered=name == "kafka") as sample:
                work(to)
            found = session.read.parquet(to).selectExpr("count(*)", "sum(length(value))", "count(date)").collect()
            assert found == [(count, count * SIZE, count)], (name, found)
            shutil.rmtree(to)
            shutil.rmtree(f"{to}.checkpoint", ignore_errors=True)
            return sample

        kinds = {"archive": ours, "kafka": theirs}
        found: dict[str, list[harness.Sample]] = {name: [] for name in kinds}
        for number in range(-(0 if quick else options.warm), options.rounds):
            for name, work in kinds.items() if number % 2 else reversed(kinds.items()):
                sample = run(name, work)
                if number >= 0:
                    found[name].append(sample)
    spark.compare("topic to Parquet by date", found["archive"], spark.peer(), found["kafka"], harness.at_least(2))


if __name__ == "__main__":
    main()
