"""A real Apache Kafka: one node that is broker and controller (KRaft), with ports and a directory of its own.

Starting takes seconds, most of them in two JVMs. So `start` only begins it, and `wait` sees it through.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.interop.java_tools import java
from tests.interop.kafka_node import KafkaNode, kafka_id
from tests.serving import free_port

__all__ = ["USERS", "KafkaBroker"]

PROPERTIES = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/logs
num.network.threads=2
num.io.threads=4
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
metadata.max.idle.interval.ms=0
"""
GUARDED = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},GUARDED://127.0.0.1:{guarded}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},GUARDED://127.0.0.1:{guarded}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,GUARDED:SASL_PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.guarded.plain.sasl.jaas.config={jaas};
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
"""Beside: a listener whose clients are USERS, and have the rights that ACLs give them; all others may do everything."""
USERS = {"alice": "wonderland", "bob": "builder"}


class KafkaBroker(KafkaNode):
    """Started when made; `wait` until it answers, `stop` when done. `settings` are lines of server.properties."""

    def __init__(self, heap: str = "384m", *, is_guarded: bool = False, **settings: str) -> None:
        """`is_guarded`: see GUARDED."""
        self._directory = tempfile.TemporaryDirectory(prefix="kafka-", ignore_cleanup_errors=True)
        directory = Path(self._directory.name)
        file = directory / "server.properties"
        super().__init__(file, free_port(), heap=heap)
        ports = {"port": self.port, "controller": free_port()}
        lines = PROPERTIES.format(**ports, directory=directory)
        self.guarded = ""
        if is_guarded:
            users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
            jaas = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users}"
            guarded = free_port()
            self.guarded = f"127.0.0.1:{guarded}"
            lines += GUARDED.format(**ports, guarded=guarded, jaas=jaas)
        file.write_text(lines + "".join(f"{name.replace('_', '.')}={value}\n" for name, value in settings.items()))
        made = java("kafka.tools.StorageTool", "format", "--standalone", "-t", kafka_id(), "-c", str(file))
        self.begin(before=made)

    def stop(self) -> None:
        self.end()
        self._directory.cleanup()
