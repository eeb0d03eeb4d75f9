"""A real Apache Kafka cluster on this machine: three nodes that are broker and controller (KRaft), each a process.

    python -m tests.interop.kafka_cluster [DIRECTORY] [BASE_PORT]

starts one, prints its address, and ends it at Ctrl-C. With a DIRECTORY its files stay, and a later start goes on with
them; brokers listen at BASE_PORT (by default 19092) and the two ports behind it.

Topics have three replicas, of which two must be in sync for acks="all". A node can be killed and started again.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.interop.java_tools import java
from tests.interop.kafka_node import KafkaNode, kafka_id
from tests.serving import free_port

__all__ = ["NODES", "KafkaCluster"]

NODES = 3
PROPERTIES = """
process.roles=broker,controller
node.id={number}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters={voters}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/logs
num.network.threads=2
num.io.threads=4
num.replica.fetchers=1
default.replication.factor=3
min.insync.replicas=2
offsets.topic.num.partitions=3
offsets.topic.replication.factor=3
transaction.state.log.num.partitions=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=100
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
log.cleaner.dedupe.buffer.size=8388608
log.cleaner.threads=1
group.coordinator.threads=1
"""
# Idle, it costs little: no record of the controller twice a second, replicas that wait longer.
IDLE = """
metadata.max.idle.interval.ms=0
replica.fetch.wait.max.ms=1500
"""
# A killed broker is noticed soon: by the controllers, and by the leader that waits for its replica.
SOON = """
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
replica.lag.time.max.ms=3000
controller.quorum.election.timeout.ms=500
controller.quorum.fetch.timeout.ms=1500
"""


class KafkaCluster:
    """Started when made; `wait` until all nodes answer, `stop` when done."""

    def __init__(self, directory: Path | None = None, ports: Sequence[int] = (), heap: str = "256m") -> None:
        """`ports`: of the brokers, then of the controllers; free ones by default."""
        self._temporary = (
            tempfile.TemporaryDirectory(prefix="kafka-cluster-", ignore_cleanup_errors=True)
            if directory is None
            else None
        )
        where = Path(self._temporary.name) if directory is None and self._temporary else directory
        assert where is not None
        ports = ports or _free_ports(2 * NODES)
        voters = ",".join(f"{n + 1}@127.0.0.1:{ports[NODES + n]}" for n in range(NODES))
        self.nodes: list[KafkaNode] = []
        for n in range(NODES):
            folder = where / f"node-{n + 1}"
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / "server.properties"
            about = {"number": n + 1, "port": ports[n], "controller": ports[NODES + n], "voters": voters}
            file.write_text(PROPERTIES.format(**about, directory=folder) + IDLE + SOON)
            self.nodes.append(KafkaNode(file, ports[n], heap=heap))
        self.address = ",".join(node.address for node in self.nodes)
        if not (where / "node-1" / "logs").exists():
            _format(where)
        for node in self.nodes:
            node.begin()

    def wait(self, seconds: float = 120) -> None:
        """Until all nodes answer."""
        for node in self.nodes:
            node.wait(seconds)

    def node(self, number: int) -> KafkaNode:
        """Return a node by its id, which librdkafka's metadata has."""
        return self.nodes[number - 1]

    def revive(self) -> None:
        """Start all nodes that were killed, and wait until they answer."""
        for node in self.nodes:
            if not node.is_running:
                node.begin()
        self.wait()

    def stop(self) -> None:
        """Kill all nodes. The files are removed, unless the caller named their directory."""
        for node in self.nodes:
            node.end()
        if self._temporary is not None:
            self._temporary.cleanup()


def _format(where: Path) -> None:
    """Format the directory of the first node, and give the others the same with ids of their own: a JVM for one."""
    first = where / "node-1"
    command = java("kafka.tools.StorageTool", "format", "-t", kafka_id(), "-c", str(first / "server.properties"))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    about = (first / "logs" / "meta.properties").read_text().splitlines()
    for number in range(2, NODES + 1):
        logs = where / f"node-{number}" / "logs"
        shutil.copytree(first / "logs", logs)
        own = {"node.id": str(number), "directory.id": kafka_id()}
        lines = [
            f"{name}={own.get(name, value)}" for name, _, value in (line.partition("=") for line in about) if value
        ]
        (logs / "meta.properties").write_text("\n".join(lines) + "\n")


def _free_ports(count: int) -> list[int]:
    ports: list[int] = []
    while len(ports) < count:
        port = free_port()
        if port not in ports:
            ports.append(port)
    return ports


def main(arguments: Sequence[str]) -> None:
    """Run a cluster until Ctrl-C."""
    directory = Path(arguments[0]).absolute() if arguments else None
    base = int(arguments[1]) if len(arguments) > 1 else 19092
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    ports = [base, base + 1, base + 2, base + 10, base + 11, base + 12]
    cluster = KafkaCluster(directory, ports, heap=os.environ.get("KAFKA_HEAP", "512m"))
    try:
        cluster.wait()
        print(f"kafka://{cluster.address}", flush=True)
        for n, node in enumerate(cluster.nodes, start=1):
            print(f"node {n}: pid {node.pid} at {node.address}", file=sys.stderr)
        over.wait()
    finally:
        cluster.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
