"""How many records a second pass the Kafka door with the Java client, beside Apache Kafka?

Kafka's own ProducerPerformance and ConsumerPerformance, 100 B and 1 KiB, `acks=1`, one partition. Each run is a JVM of
its own: the producer warms up before it measures; the consumer reads so many that its start does not count for much.
"""

from __future__ import annotations

import re
import subprocess

import _kafka as kafka


def run(command: list[str]) -> str:
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if said.returncode:
        raise RuntimeError(f"{' '.join(command)}: {said.stdout[-3000:]}{said.stderr[-3000:]}")
    return said.stdout


def produce(server: kafka.Server, topic: str, size: int, count: int, warm: int) -> kafka.Load:
    before = server.cpu()
    said = run(
        kafka.tool(
            "producer-performance",
            *("--topic", topic, "--num-records", str(warm + count), "--warmup-records", str(warm)),
            *("--record-size", str(size), "--throughput", "-1", "--bootstrap-server", server.address),
            *("--command-property", "acks=1"),
        )
    )
    cpu = (server.cpu() - before) * count / (warm + count)
    rate = re.findall(rf"^{count} steady state records sent, ([\d.]+) records/sec", said, re.MULTILINE)
    if not rate:
        raise RuntimeError(said)
    return kafka.Load(count, count / float(rate[-1]), cpu)


def consume(server: kafka.Server, topic: str, count: int) -> kafka.Load:
    before = server.cpu()
    said = run(
        kafka.tool(
            "consumer-performance",
            *("--topic", topic, "--num-records", str(count), "--bootstrap-server", server.address),
            *("--timeout", "30000"),
        )
    )
    cpu = server.cpu() - before
    names, values = (line.split(", ") for line in said.strip().splitlines()[-2:])
    row = dict(zip(names, values, strict=True))
    done = int(row["data.consumed.in.nMsg"])
    if done < count:
        raise RuntimeError(said)
    return kafka.Load(done, done / float(row["fetch.nMsg.sec"]), cpu)


def pass_through(server: kafka.Server, size: int, count: int) -> tuple[kafka.Load, kafka.Load]:
    topic = server.topic()
    warm = count // 4
    put = produce(server, topic, size, count, warm)
    got = consume(server, topic, count + warm)
    server.delete(topic)
    return put, got


def main() -> None:
    options = kafka.arguments(
        __doc__.splitlines()[0],
        count=(4_000_000, "records of 100 B a round"),
        warm=(5_000_000, "before the first round"),
    )
    kafka.compare(options, "the Java client", pass_through)


if __name__ == "__main__":
    main()
