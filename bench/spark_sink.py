"""How many rows a second does Spark write into Klamm, beside its Kafka sink into Apache Kafka?

A batch write of 1 M rows (8 B key, 100 B value), made by two tasks as they go, to a topic of two partitions. Klamm's is
one transaction, all rows or none, and on disk when it is told (acks=all, its default; acks=1 is shown, too). Kafka's is
Spark's default, acks=all of one broker, which does not flush; rows become visible one by one. Nothing: Spark's sink
that throws rows away, what making them costs.
"""

from __future__ import annotations

from typing import Any

import _harness as harness
import _spark as spark
import klamm

ROWS = [
    "cast(lpad(hex(id), 8, '0') as binary) as key",
    "cast(rpad(cast(id as string), 100, 'v') as binary) as value",
]


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0], count=(1_000_000, "rows"), warm=(3, "rounds of each kind before the first that counts")
    )
    quick = options.quick
    count = 5_000 if quick else options.count
    with (
        harness.folder() as path,
        spark.broker(quick=quick) as server,
        klamm.open(f"{path}/store") as store,
        spark.session(quick=quick) as session,
    ):

        def writer(form: str) -> Any:
            rows = session.range(0, count, 1, spark.PARTITIONS).selectExpr(*ROWS)
            return rows.write.format(form).mode("append")

        def ours(acks: str) -> harness.Sample:
            store.topics.create("bench", spark.PARTITIONS)
            with spark.clock(count, server) as sample:
                writer("klamm").options(topic="bench", acks=acks).save(f"{path}/store")
            found = sum(each.end for each in store.topics.describe("bench").partitions)
            assert count < found <= count + spark.PARTITIONS, found  # and the transaction's markers
            store.topics.delete("bench")
            return sample

        def theirs() -> harness.Sample:
            topic = spark.topic(server)
            with spark.clock(count, server, brokered=True) as sample:
                writer("kafka").options(**{"kafka.bootstrap.servers": server.address, "topic": topic}).save()
            server.delete(topic)
            return sample

        def nothing() -> harness.Sample:
            with spark.clock(count, server) as sample:
                writer("noop").save()
            return sample

        sides = {"all": lambda: ours("all"), "1": lambda: ours("1"), "kafka": theirs, "nothing": nothing}
        for _ in range(1 if quick else options.warm):  # a session's first write waits for Python and for classes
            for side in sides.values():
                side()
        found = harness.interleave(sides, 1 if quick else options.rounds, warm=False)
    for acks in ("all", "1"):
        want = harness.at_least(1.5) if acks == "all" else None
        spark.compare(f"Spark batch write, acks={acks}", found[acks], spark.peer(), found["kafka"], want)
    spark.compare("Spark batch write, acks=all", found["all"], "nothing written", found["nothing"])


if __name__ == "__main__":
    main()
