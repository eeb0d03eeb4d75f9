"""What does a record through the Kafka door cost, with librdkafka as the client, beside Apache Kafka?

confluent-kafka puts records of 100 B and 1 KiB into a topic of one partition, `acks=1`, and reads them again. Two
figures for each way: seconds of CPU that the server spends on a million records, and records a second. The client is
the bottleneck of small records (it fills a core), so their rates say little; `kafka_rdkafka` has a client that is not.
"""

from __future__ import annotations

import _kafka as kafka


def main() -> None:
    options = kafka.arguments(
        __doc__.splitlines()[0],
        count=(2_000_000, "records of 100 B a round"),
        warm=(5_000_000, "before the first round"),
    )
    kafka.compare(options, "confluent-kafka")


if __name__ == "__main__":
    main()
