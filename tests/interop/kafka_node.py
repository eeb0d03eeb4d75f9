"""A process of Apache Kafka: a broker and controller (KRaft), which can be killed and started again."""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

from tests.interop.java_tools import java, with_archive
from tests.procs import until

__all__ = ["KafkaNode", "kafka_id"]


def kafka_id() -> str:
    """Return an id as Kafka makes it for clusters and directories."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")


class KafkaNode:
    """`properties`: its server.properties. It ends with the thread that began it, at the latest."""

    def __init__(self, properties: Path, port: int, *, heap: str) -> None:
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self._run = java("kafka.Kafka", str(properties), heap=heap, level="INFO")
        self._log_path = properties.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None
        self._keep_archive: Callable[[], None] | None = None

    def begin(self, before: list[str] | None = None) -> None:
        """Start the process, and do not wait for it. `before`: a command that runs first."""
        assert not self.is_running
        command, self._keep_archive = with_archive("broker", self._run)
        if before is not None:  # one process for both: the shell becomes the broker
            command = ["sh", "-c", f"{shlex.join(before)} && exec {shlex.join(command)}"]
        run = [*(["setpriv", "--pdeathsig=KILL"] if shutil.which("setpriv") else []), *command]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                run, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What it has logged, in all its lives."""
        return self._log_path.read_text(errors="replace")

    def _answers(self) -> bool:
        assert self.is_running, self.log[-8000:]
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True

    def wait(self, seconds: float = 60) -> None:
        """Until it listens, which is the last thing a broker does when it starts."""
        until(self._answers, f"Apache Kafka answers at {self.address}", seconds)

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)

    def end(self) -> None:
        """Kill it: its files are not wanted, and a clean end takes seconds. One that leaves an archive ends cleanly."""
        if self._keep_archive is not None and self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(60)
                self._keep_archive()
            except subprocess.TimeoutExpired:
                pass
        self.kill()
