"""Processes for tests of Spark to kill, and waiting for what they do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from klamm.spark import java
from tests.procs import until
from tests.spark.classes import PYTHONPATH

ROOT = Path(__file__).parents[2]


@contextmanager
def driver(script: Path, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """A program that finds what tests have in common."""
    command: list[str | Path] = [sys.executable, script, *map(str, arguments)]
    found_first = os.pathsep.join([str(ROOT), PYTHONPATH])
    with together(command, env={**os.environ, "PYTHONPATH": found_first}, stderr=subprocess.PIPE) as process:
        yield process


@contextmanager
def together(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """In a session of its own: Python, the JVM and Python's workers are killed together."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


def wait_for(holds: Callable[[], bool], process: subprocess.Popen[bytes]) -> float:
    """Until it holds, looking 50 times a second: how many seconds that took."""
    begin = time.monotonic()
    while not holds():
        with pytest.raises(subprocess.TimeoutExpired):  # it goes on
            process.wait(0.02)
        assert time.monotonic() < begin + 200
    return time.monotonic() - begin


class Cluster(NamedTuple):
    address: str
    """Of the master, for a session."""
    workers: list[int]
    """Processes, one for each."""

    def processes(self, command: str) -> list[int]:
        """Return what workers have started, and what that has, if its command line has this word."""
        parents: dict[int, int] = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):  # ended meanwhile
                parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        found = set(self.workers)
        while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
            found |= more
        chosen = []
        for pid in sorted(found):
            with suppress(OSError):
                if command.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    chosen.append(pid)
        return chosen


@contextmanager
def standalone(directory: Path, *hosts: str, cores: int = 1) -> Iterator[Cluster]:
    """A master and two workers, as an operator starts them. Spark speculates only if they are on two hosts."""
    import pyspark

    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = {**os.environ, "JAVA_HOME": java.find().home}
    running: list[subprocess.Popen[bytes]] = []
    logs: list[Path] = []

    def start(what: str, host: str, *arguments: str) -> Path:
        log = directory / f"{what}-{len(logs)}.log"
        command: list[str | Path] = [program, f"org.apache.spark.deploy.{what.lower()}.{what}", "--host", host]
        variables = {**environment, "SPARK_LOCAL_IP": host}
        with log.open("wb") as file:
            running.append(
                subprocess.Popen([*command, *arguments], env=variables, stdout=file, stderr=subprocess.STDOUT)
            )
        logs.append(log)
        return log

    def said(log: Path, pattern: str) -> re.Match[str] | None:
        return re.search(pattern, log.read_text())

    try:
        log = start("Master", "127.0.0.1", "--port", "0", "--webui-port", "0")
        until(lambda: said(log, r"Starting Spark master at (\S+)") is not None, "the master starts", 200)
        found = said(log, r"Starting Spark master at (\S+)")
        assert found is not None
        for host in hosts or ("127.0.0.1", "127.0.0.1"):
            worker = start(
                *("Worker", host, "--cores", str(cores), "--memory", "1g", "--webui-port", "0"),
                *("--work-dir", str(directory / "work"), found[1]),
            )
            until(partial(said, worker, "registered with master"), "a worker is there", 200)
        yield Cluster(found[1], [process.pid for process in running[1:]])
    finally:
        for process in running:
            process.kill()
            process.wait()
