"""How many rows a second does a batch query of Spark's read, beside Spark's Kafka connector and Parquet?

`sum(length(value))` over 2 M rows of (8 B key, 100 B value) in two partitions, with a DataFrame of its own for each run
(Spark keeps the shuffle of one that ran):

    six columns    key, value, topic, partition, offset, timestamp
    seven          as they come without the option `columns`: timestampType, too
    value          what the query needs; Spark tells Parquet that, but no Python source
    Kafka          Spark's Kafka connector on Apache Kafka
    Parquet        the same rows, written by Spark, two files

With two cores, then with one; sessions take turns. One task is two processes, Python and the JVM, so that one core of
Spark's (`local[1]`) is nearly two of the machine's.
"""

from __future__ import annotations

from typing import Any

import _harness as harness
import _spark as spark

SIZE = 100
SIX = "key,value,topic,partition,offset,timestamp"


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0], count=(2_000_000, "rows"), warm=(3, "rounds of each kind before the first that counts")
    )
    quick = options.quick
    count = 20_000 if quick else options.count
    part, times = spark.part_of(count, SIZE)
    count = times * len(part)
    with harness.folder() as path, spark.broker(quick=quick) as server:
        spark.fill_store(f"{path}/store", part, times)
        topic = spark.topic(server)
        spark.fill(server, topic, part, times)

        def ours(session: Any, **more: str) -> Any:
            return session.read.format("klamm").options(subscribe="bench", **more).load(f"{path}/store")

        sources = {
            "six": lambda session: ours(session, columns=SIX),
            "seven": ours,
            "value": lambda session: ours(session, columns="value"),
            "kafka": lambda session: (
                session.read.format("kafka")
                .options(**{"kafka.bootstrap.servers": server.address, "subscribe": topic})
                .load()
            ),
            "parquet": lambda session: session.read.parquet(f"{path}/parquet"),
        }

        def run(session: Any, name: str) -> harness.Sample:
            with spark.clock(count, server, brokered=name == "kafka") as sample:
                ((found,),) = sources[name](session).selectExpr("sum(length(value))").collect()
            assert found == count * SIZE, (name, found)
            return sample

        found: dict[tuple[str, int], list[harness.Sample]] = {}
        rounds = [2] if quick else [2, 1] * options.rounds
        for number, cores in enumerate(rounds):
            with spark.session(quick=quick, cores=cores) as session:
                if number == 0:
                    ours(session).write.parquet(f"{path}/parquet")
                names = list(sources) if number % 4 < 2 else list(reversed(sources))
                for name in [each for _ in range(0 if quick else options.warm if number < 2 else 1) for each in names]:
                    run(session, name)  # each session has Python processes of its own
                for name in names:
                    found.setdefault((name, cores), []).append(run(session, name))
    kinds = {"six": "six columns", "seven": "all seven columns", "value": "only the value"}
    goals = {"six": 2, "value": 3}
    for name, kind in kinds.items():
        for other, peer in (("kafka", spark.peer()), ("parquet", "Spark on Parquet")):
            want = harness.at_least(goals[name]) if other == "kafka" and name in goals else None
            spark.compare(f"Spark batch read, {kind}", found[name, 2], peer, found[other, 2], want)
    if ("six", 1) in found:
        for name, kind in {**kinds, "kafka": "Kafka connector", "parquet": "Parquet"}.items():
            spark.compare(f"Spark batch read, {kind}, two cores", found[name, 2], "the same with one", found[name, 1])


if __name__ == "__main__":
    main()
