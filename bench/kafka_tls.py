"""What does a record through the Kafka door cost over TLS, beside Apache Kafka's TLS?

As `kafka_throughput`: confluent-kafka puts records of 100 B and 1 KiB into a topic of one partition, `acks=1`, and
reads them again, by listeners with TLS 1.3 and the same certificate.
"""

from __future__ import annotations

import _harness as harness
import _kafka as kafka
import _secured as secured
from _processes import together


def pass_through(each: secured.Secured, size: int, count: int) -> tuple[kafka.Load, kafka.Load]:
    """So many records in, and out again, over TLS."""
    server, security = each.server, {"security.protocol": "SSL", "ssl.ca.location": each.authority}
    topic = server.topic()
    (put,) = together([(kafka.produce, (each.tls, server.pid, topic, size, count, security))])
    (got,) = together([(kafka.consume, (each.tls, server.pid, topic, count, security))])
    server.delete(topic)
    return put, got


def main() -> None:
    options = kafka.arguments(
        __doc__.splitlines()[0],
        count=(1_000_000, "records of 100 B a round"),
        warm=(3_000_000, "before the first round"),
    )
    peer = f"Apache Kafka {kafka.version()}, warm"
    with secured.servers(quick=options.quick) as started:
        for size, part in ((100, 1), (1024, 4)):
            if options.only not in f"{size} B":
                continue
            count = 1000 if options.quick else options.count // part
            for each in started.values():
                pass_through(each, size, 1000 if options.quick else options.warm // part)
            found = harness.interleave(
                {
                    name: lambda each=each, size=size, count=count: pass_through(each, size, count)
                    for name, each in started.items()
                },
                options.rounds,
                warm=False,
            )
            for at, way in ((0, "produce"), (1, "consume")):
                ours, theirs = ([each[at] for each in found[name]] for name in ("klamm", "kafka"))
                kafka.answer_cpu(f"{way} {size} B over TLS, the server's CPU", ours, peer, theirs, 1)


if __name__ == "__main__":
    main()
