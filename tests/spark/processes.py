"""Processes for tests of Spark to kill, and waiting for what they do."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import klamm
from klamm.spark import java
from tests.procs import until
from tests.spark.classes import PYTHONPATH

ROOT = Path(__file__).parents[2]


@contextmanager
def driver(
    script: Path, *arguments: object, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that finds what tests have in common."""
    command: list[str | Path] = [sys.executable, script, *map(str, arguments)]
    found_first = os.pathsep.join([str(ROOT), PYTHONPATH])
    variables = {**os.environ, "PYTHONPATH": found_first, **(environment or {})}
    with together(command, env=variables, stderr=subprocess.PIPE) as process:
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


def wait_for(holds: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 200) -> float:
    """Until it holds, looking 50 times a second: how many seconds that took."""
    begin = time.monotonic()
    while not holds():
        with pytest.raises(subprocess.TimeoutExpired):  # it goes on
            process.wait(0.02)
        assert time.monotonic() < begin + seconds, f"not within {seconds} s"
    return time.monotonic() - begin


class Stranger(NamedTuple):
    """A user who may not read what the tests' own user writes, and who can run Python tasks."""

    environment: dict[str, str]
    """Of drivers whose tasks such a user runs: by a Python that anyone may start, with our packages."""

    @staticmethod
    def find() -> Stranger | None:
        """Return the user `nobody`; None if the tests' user cannot start processes of another, or these no Python."""
        import pyspark

        packages = [Path(klamm.__file__).parents[1], Path(pyspark.__file__).parents[1]]
        path = os.pathsep.join([str(ROOT), PYTHONPATH, *map(str, packages)])
        python = shutil.which(f"python{sys.version_info[0]}.{sys.version_info[1]}", path=os.defpath)
        for program in filter(None, [sys.executable, python] if os.geteuid() == 0 else []):
            variables = {"PYTHONPATH": path, "PYSPARK_PYTHON": str(program)}
            command = [program, "-c", "import klamm.spark, pyarrow, pyspark"]
            with suppress(OSError, subprocess.CalledProcessError):
                subprocess.run(command, check=True, capture_output=True, cwd="/", env=variables, **_AS_NOBODY)
                return Stranger(variables)
        return None


_NOBODY = 65534
_AS_NOBODY: dict[str, Any] = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}


class Cluster:
    """A master and its workers, each a process."""

    def __init__(self, directory: Path, cores: int, stranger: Stranger | None) -> None:
        """Start the master. `stranger`: who the workers run as."""
        import pyspark

        self._program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        self._directory = directory
        self._cores = cores
        self._stranger = stranger
        self._logs = 0
        self._workers: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._master, log = self._start("Master", "127.0.0.1", "--port", "0", "--webui-port", "0")
        until(lambda: _said(log, _MASTER) is not None, "the master starts", 200)
        found = _said(log, _MASTER)
        assert found is not None
        self.address = found[1]
        """Of the master, for a session."""

    def _start(self, what: str, host: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = self._directory / f"{what}-{self._logs}.log"
        self._logs += 1
        variables = {**os.environ, "JAVA_HOME": java.find().home, "SPARK_LOCAL_IP": host}
        options: dict[str, Any] = {}
        if what == "Worker":
            variables["SPARK_LOCAL_DIRS"] = str(self._directory / "local")  # a killed one leaves its files
            if self._stranger is not None:
                variables |= {**self._stranger.environment, "HOME": str(self._directory)}
                options = {**_AS_NOBODY, "cwd": self._directory}
        command: list[str | Path] = [self._program, f"org.apache.spark.deploy.{what.lower()}.{what}", "--host", host]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command, *arguments], env=variables, stdout=file, stderr=subprocess.STDOUT, **options
            )
        return process, log

    def start_worker(self, host: str) -> Path:
        """Start a worker, and return its log."""
        options = ("--cores", str(self._cores), "--memory", "1g", "--webui-port", "0")
        process, log = self._start("Worker", host, *options, "--work-dir", str(self._directory / "work"), self.address)
        self._workers.append((host, process))
        return log

    def restart_worker(self, number: int) -> None:
        """Kill a worker, whose executors end with it, and start another one on its host."""
        host, process = self._workers.pop(number)
        process.kill()
        process.wait()
        self.start_worker(host)

    def stop(self) -> None:
        for process in (self._master, *(process for _, process in self._workers)):
            process.kill()
            process.wait()

    def processes(self, command: str) -> list[int]:
        """Return what workers have started, and what that has, if its command line has this word."""
        parents: dict[int, int] = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):  # ended meanwhile
                parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        found = {process.pid for _, process in self._workers}
        while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
            found |= more
        chosen = []
        for pid in sorted(found):
            with suppress(OSError):
                if command.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    chosen.append(pid)
        return chosen


_MASTER = r"Starting Spark master at (\S+)"


def _said(log: Path, pattern: str) -> re.Match[str] | None:
    return re.search(pattern, log.read_text())


@contextmanager
def standalone(directory: Path, *hosts: str, cores: int = 1, stranger: Stranger | None = None) -> Iterator[Cluster]:
    """A master and two workers, as an operator starts them. Spark speculates only if they are on two hosts."""
    cluster = Cluster(directory, cores, stranger)
    try:
        for host in hosts or ("127.0.0.1", "127.0.0.1"):
            log = cluster.start_worker(host)
            until(partial(_said, log, "registered with master"), "a worker is there", 200)
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def shared_directory() -> Iterator[Path]:
    """A directory that every user may write to; pytest's are for the tests' own user."""
    with tempfile.TemporaryDirectory(prefix="klamm-", ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o777)
        yield Path(name)
