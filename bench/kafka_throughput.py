"""What does a record through the Kafka door cost, with librdkafka as the client, beside Apache Kafka?

confluent-kafka puts records of 100 B and 1 KiB into a topic of one partition, `acks=1`, and reads them again. Two
figures for each way: seconds of CPU that the server spends on a million records, and records a second. The client is
the bottleneck of small records (it fills a core), so their rates say little; `kafka_rdkafka` has a client that is not.
"""

from __future__ import annotations

import _harness as harness
import _kafka as kafka


def main() -> None:
    options = kafka.arguments(
        __doc__.splitlines()[0],
        count=(2_000_000, "records of 100 B a round"),
        warm=(5_000_000, "before the first round"),
    )
    peer = f"Apache Kafka {kafka.version()}, warm"
    with kafka.servers(quick=options.quick) as started:
        for size, part in ((100, 1), (1024, 4)):
            if options.only not in f"{size} B":
                continue
            count = 1000 if options.quick else options.count // part
            kafka.warm(started, size, 1000 if options.quick else options.warm // part)
            found = harness.interleave(
                {
                    name: lambda server=server, size=size, count=count: kafka.pass_through(server, size, count)
                    for name, server in started.items()
                },
                options.rounds,
                warm=False,
            )
            for at, way, most in ((0, "produce", 0.5), (1, "consume", 1)):
                ours = [each[at] for each in found["klamm"]]
                theirs = [each[at] for each in found["kafka"]]
                kafka.answer_cpu(f"{way} {size} B with confluent-kafka, the server's CPU", ours, peer, theirs, most)
                kafka.answer_rate(f"{way} {size} B with confluent-kafka", ours, peer, theirs)


if __name__ == "__main__":
    main()
