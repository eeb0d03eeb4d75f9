"""How long does a micro-batch of Spark's take from Klamm to Klamm, beside Kafka to Kafka?

A streaming query copies a topic of two partitions to another, trigger after trigger, while ten records of 100 B come
every 10 ms. A query runs for so many micro-batches that have records, the first of them not counted, then the other
side's; p50 of what Spark itself says each took (`triggerExecution`), and in `parts` where the time went, p50 of each:

    latestOffset   asking the source how far there are records, on disk with Klamm
    walCommit      Spark writes the offsets into its checkpoint
    getBatch, queryPlanning
    addBatch       planning the writer, the tasks, and the commit of what they wrote
    commitOffsets  Spark notes that the micro-batch is done

Both sinks with their defaults: Klamm's is exactly once and on disk before it is told (acks=all), Kafka's is at least
once and in the page cache; so Klamm's with acks=1 is shown, too. CPU is Spark's, and the broker's, for one micro-batch.

Klamm's queries run as `klamm.spark.session` sets them up. Kafka's run twice: with Spark's own default for the files of
a checkpoint, which is what a session has that does nothing about it, and with the class that Klamm's session sets.
"""

from __future__ import annotations

from typing import Any

import _harness as harness
import _kafka as kafka
import _spark as spark
import klamm

SIZE = 100
AT_ONCE = 10
FIRST = 5  # of a query, not counted
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
SPARKS_OWN = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0],
        batches=(60, "micro-batches a round"),
        warm=(3, "rounds of each side before the first that counts"),
    )
    quick = options.quick
    first, batches = (1, 3) if quick else (FIRST, options.batches)
    value = bytes(SIZE)
    with (
        harness.folder() as path,
        spark.broker(quick=quick) as server,
        klamm.open(f"{path}/store") as store,
        spark.session(quick=quick, **{"spark.sql.streaming.numRecentProgressUpdates": "1000"}) as session,
    ):
        for name in ("from", "to"):
            store.topics.create(name, spark.PARTITIONS)
        topics = [spark.topic(server) for _ in range(2)]
        checkpoints = iter(range(1_000_000))
        producer = producer_of(server)
        number = iter(range(1 << 62))

        def put_here() -> None:
            store.append_many("from", [(None, value)] * AT_ONCE, partition=next(number) % spark.PARTITIONS, acks=1)

        def put_there() -> None:
            where = next(number) % spark.PARTITIONS
            for _ in range(AT_ONCE):
                producer.produce(topics[0], value, partition=where)
            producer.poll(0)

        def query(form: str, source: dict[str, str], sink: dict[str, str]) -> Any:
            frame = session.readStream.format(form).options(startingOffsets="latest", **source).load()
            writer = frame.select("key", "value").writeStream.format(form).options(**sink)
            return writer.option("checkpointLocation", f"{path}/checkpoint-{next(checkpoints)}").start()

        def ours(acks: str) -> spark.QueryRun:
            place = {"path": f"{path}/store"}
            with spark.Feeder(put_here):
                found = query(
                    "klamm",
                    {**place, "subscribe": "from", "columns": "key,value"},
                    {**place, "topic": "to", "acks": acks},
                )
                return spark.run_query(found, first, batches, lambda: spark.cpu(server))

        ours_manager = session.conf.get(MANAGER)

        def theirs(manager: str) -> spark.QueryRun:
            session.conf.set(MANAGER, manager)
            try:
                return copy_there()
            finally:
                session.conf.set(MANAGER, ours_manager)

        def copy_there() -> spark.QueryRun:
            place = {"kafka.bootstrap.servers": server.address}
            with spark.Feeder(put_there):
                found = query("kafka", {**place, "subscribe": topics[0]}, {**place, "topic": topics[1]})
                return spark.run_query(found, first, batches, lambda: spark.cpu(server) + server.cpu())

        sides = {
            "all": lambda: ours("all"),
            "1": lambda: ours("1"),
            "kafka": lambda: theirs(SPARKS_OWN),
            "equal": lambda: theirs(ours_manager),
        }
        for _ in range(0 if quick else options.warm):
            for side in sides.values():
                side()
        found = harness.interleave(sides, 1 if quick else options.rounds, warm=False)
        producer.flush(kafka.PATIENCE_S)
    figures = {side: spark.Figures.of(runs) for side, runs in found.items()}
    for side, settings, goal in (("kafka", "Spark's own settings", 0.6), ("equal", "the settings of klamm.spark", 1)):
        for acks in ("all", "1"):
            harness.answer(
                f"Spark micro-batch, Klamm to Klamm, acks={acks}",
                figures[acks].p50,
                f"Kafka to Kafka, {settings}, {spark.peer()}",
                figures[side].p50,
                harness.at_most(goal) if acks == "all" else None,
                unit="ms p50",
                p99=figures[acks].p99,
                peer_p99=figures[side].p99,
                cpu_ms=figures[acks].cpu,
                peer_cpu_ms=figures[side].cpu,
                rows=spark.middle([each.rows for each in found[acks]]),
                peer_rows=spark.middle([each.rows for each in found[side]]),
                parts=figures[acks].parts,
                peer_parts=figures[side].parts,
                count=batches,
            )


def producer_of(server: kafka.Server) -> Any:
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": server.address, "acks": 1, "linger.ms": 0})


if __name__ == "__main__":
    main()
