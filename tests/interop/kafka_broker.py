"""A real Apache Kafka: one node that is broker and controller (KRaft), with ports and a directory of its own.

Starting takes seconds, most of them in two JVMs. So `start` only begins it, and `wait` sees it through.
"""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from pathlib import Path

from tests.interop.java_tools import java
from tests.procs import until
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


class KafkaBroker:
    """Started when made; `wait` until it answers, `stop` when done. `settings` are lines of server.properties."""

    def __init__(self, heap: str = "384m", *, is_guarded: bool = False, **settings: str) -> None:
        """`is_guarded`: see GUARDED."""
        self._directory = tempfile.TemporaryDirectory(prefix="kafka-", ignore_cleanup_errors=True)
        directory = Path(self._directory.name)
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        file = directory / "server.properties"
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
        name = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")
        made = java("kafka.tools.StorageTool", "format", "--standalone", "-t", name, "-c", str(file))
        run = java("kafka.Kafka", str(file), heap=heap, level="INFO")
        self._log_path = directory / "log"
        self._log = self._log_path.open("wb")
        # One process to begin both with: the shell becomes the broker. It does not outlive whoever started it.
        bound = ["setpriv", "--pdeathsig=KILL"] if shutil.which("setpriv") else []
        self._process = subprocess.Popen(
            [*bound, "sh", "-c", f"{shlex.join(made)} && exec {shlex.join(run)}"],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log[-8000:]
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True

    def wait(self, seconds: float = 60) -> None:
        """Until it listens, which is the last thing a broker does when it starts."""
        until(self._answers, "Apache Kafka answers", seconds)

    def stop(self) -> None:
        # Killed: nobody wants its files, and a clean end takes seconds.
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        self._log.close()
        self._directory.cleanup()
