"""What does Spark get of `klamm serve` by klamm://, beside its Kafka connector on the same server?

    read      a batch query, `sum(length(value))` over 2 M rows of (8 B key, 100 B value) in two partitions, with a
              DataFrame of its own for each run: all seven columns, as both give them, and only the value
    sink      a streaming query that writes micro-batches of 200,000 rows (8 B key, 100 B value), made by two tasks as
              they go, to a topic of two partitions; rows a second, by the median of what Spark says each micro-batch
              took (`triggerExecution`), the first ones not counted. Klamm's are exactly once, each of them one
              transaction; Kafka's are at least once
    trigger   a streaming query from a topic to another, trigger after trigger, while ten records of 100 B come every
              10 ms: by klamm://, beside the same query on the store's files; p50 of `triggerExecution`, and where the
              time goes (`spark_trigger` says what the parts are). Both are exactly once

There is one server, one store and one session; the sides take turns. CPU is Spark's, and the server's where it is used.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import _harness as harness
import _kafka as kafka
import _spark as spark
import klamm

SIZE = 100
AT_ONCE = 10
FIRST = 5  # micro-batches of a query, not counted
ROWS = [
    "cast(lpad(hex(value), 8, '0') as binary) as key",
    "cast(rpad(cast(value as string), 100, 'v') as binary) as value",
]
PEER = "Spark's Kafka connector, the same klamm serve"


class Bench:
    """What the parts share."""

    def __init__(self, options: Any, path: str, server: kafka.Server, store: klamm.Store, session: Any) -> None:
        self.quick = options.quick
        self.options = options
        self.rounds = 1 if options.quick else options.rounds
        self.path = path
        self.server = server
        self.store = store
        self.session = session
        self.ours = {"server": server.address}
        self.theirs = {"kafka.bootstrap.servers": server.address}
        self._checkpoints = 0

    def interleave(self, sides: dict[str, Any]) -> dict[str, list[Any]]:
        for _ in range(0 if self.quick else self.options.warm):
            for side in sides.values():
                side()
        return harness.interleave(sides, self.rounds, warm=False)

    def start(self, frame: Any, form: str, sink: dict[str, str]) -> Any:
        self._checkpoints += 1
        writer = frame.writeStream.format(form).options(**sink)
        return writer.option("checkpointLocation", f"{self.path}/checkpoint-{self._checkpoints}").start()

    def used(self) -> float:
        return spark.cpu(self.server) + self.server.cpu()


def read(bench: Bench) -> None:
    part, times = spark.part_of(20_000 if bench.quick else bench.options.count, SIZE)
    count = times * len(part)
    bench.store.topics.create("bench", spark.PARTITIONS)
    for _ in range(times):
        for number in range(spark.PARTITIONS):
            bench.store.append_many("bench", part[number :: spark.PARTITIONS], partition=number, acks=1)

    def run(form: str, **options: str) -> harness.Sample:
        frame = bench.session.read.format(form).options(subscribe="bench", **options).load()
        with spark.clock(count, bench.server, brokered=True) as sample:
            ((found,),) = frame.selectExpr("sum(length(value))").collect()
        assert found == count * SIZE, (form, found)
        return sample

    found = bench.interleave(
        {
            "seven": lambda: run("klamm", **bench.ours),
            "value": lambda: run("klamm", columns="value", **bench.ours),
            "kafka": lambda: run("kafka", **bench.theirs),
        }
    )
    bench.store.topics.delete("bench")
    for name, kind in (("seven", "all seven columns"), ("value", "only the value")):
        want = harness.at_least(1.5) if name == "seven" else None
        spark.compare(f"Spark batch read of a server, {kind}", found[name], PEER, found["kafka"], want)


def sink(bench: Bench) -> None:
    rows = 2_000 if bench.quick else bench.options.rows
    first, batches = (1, 2) if bench.quick else (FIRST, bench.options.micro_batches)
    names = (f"bench-{number}" for number in itertools.count())

    def run(form: str, **options: str) -> spark.QueryRun:
        name = next(names)  # a producer of the Kafka connector that lives on would create its topic again
        bench.store.topics.create(name, spark.PARTITIONS)
        source = bench.session.readStream.format("rate-micro-batch").options(
            rowsPerBatch=rows, numPartitions=spark.PARTITIONS
        )
        query = bench.start(source.load().selectExpr(*ROWS), form, {**options, "topic": name})
        found = spark.run_query(query, first, batches, bench.used)
        written = sum(each.end for each in bench.store.topics.describe(name).partitions)
        assert written >= rows * (first + batches), written
        bench.store.topics.delete(name)
        return found

    found = bench.interleave(
        {"klamm": lambda: run("klamm", **bench.ours), "kafka": lambda: run("kafka", **bench.theirs)}
    )
    ours, theirs = ([rows / harness.median(each.whole) * 1000 for each in found[side]] for side in ("klamm", "kafka"))
    harness.answer(
        "Spark streaming sink to a server, exactly once",
        ours,
        f"at least once, {PEER}",
        theirs,
        harness.at_least(1),
        unit="records/s",
        batch_ms=spark.middle([harness.median(each.whole) for each in found["klamm"]]),
        peer_batch_ms=spark.middle([harness.median(each.whole) for each in found["kafka"]]),
        cpu_ms=spark.middle([each.cpu for each in found["klamm"]]),
        peer_cpu_ms=spark.middle([each.cpu for each in found["kafka"]]),
        count=rows,
    )


def trigger(bench: Bench) -> None:
    first, batches = (1, 3) if bench.quick else (FIRST, bench.options.micro_batches)
    store, value, number = bench.store, bytes(SIZE), iter(range(1 << 62))
    for name in ("from", "to"):
        store.topics.create(name, spark.PARTITIONS)

    def put() -> None:
        store.append_many("from", [(None, value)] * AT_ONCE, partition=next(number) % spark.PARTITIONS, acks=1)

    def run(where: dict[str, str]) -> spark.QueryRun:
        source = bench.session.readStream.format("klamm").options(
            startingOffsets="latest", subscribe="from", columns="key,value", **where
        )
        with spark.Feeder(put):
            return spark.run_query(
                bench.start(source.load(), "klamm", {**where, "topic": "to"}), first, batches, bench.used
            )

    found = bench.interleave({"server": lambda: run(bench.ours), "directory": lambda: run({"path": store.path})})
    figures = {side: spark.Figures.of(runs) for side, runs in found.items()}
    harness.answer(
        "Spark micro-batch, server to server",
        figures["server"].p50,
        "the store's files to the store's files",
        figures["directory"].p50,
        harness.at_most(1.2),
        unit="ms p50",
        p99=figures["server"].p99,
        peer_p99=figures["directory"].p99,
        cpu_ms=figures["server"].cpu,
        peer_cpu_ms=figures["directory"].cpu,
        parts=figures["server"].parts,
        peer_parts=figures["directory"].parts,
        count=batches,
    )


PARTS = {"read": read, "sink": sink, "trigger": trigger}


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0],
        count=(2_000_000, "rows that are read"),
        rows=(200_000, "rows of a micro-batch that is written"),
        micro_batches=(20, "micro-batches a round"),
        warm=(2, "rounds of each side before the first that counts"),
    )
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(harness.folder())
        server = kafka.start_klamm(path)
        stack.callback(server.stop)
        server.wait()
        store = stack.enter_context(klamm.open(f"{path}/store"))
        progress = {"spark.sql.streaming.numRecentProgressUpdates": "1000"}
        session = stack.enter_context(spark.session(quick=options.quick, **progress))
        bench = Bench(options, path, server, store, session)
        for name, part in PARTS.items():
            if options.only in name:
                part(bench)


if __name__ == "__main__":
    main()
