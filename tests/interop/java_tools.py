"""Kafka's Java tools, from the jars that `make tools` fetches, each in a process of its own.

One takes two seconds of CPU to start. Tools that end by themselves are better run in one JVM: see one_jvm.py.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from tests.procs import until

__all__ = ["JARS", "Tool", "java", "need_kafka", "start_tool", "with_archive"]

JARS = Path(__file__).parents[2] / ".tools" / "kafka"
_HERE = Path(__file__).parent / "kafka"

TOOLS = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "consumer-performance": "org.apache.kafka.tools.ConsumerPerformance",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "producer-performance": "org.apache.kafka.tools.ProducerPerformance",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactional-message-copier": "org.apache.kafka.tools.TransactionalMessageCopier",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}

# Quick to start and small, rather than quick in the long run.
_FLAGS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable", "-Djava.awt.headless=true"]


@functools.cache
def _java_version() -> tuple[int, ...]:
    if (found := shutil.which("java")) is None:
        return (0,)
    said = subprocess.run([found, "-version"], capture_output=True, text=True).stderr
    version = re.search(r'version "([\d.]+)', said)
    return tuple(map(int, version[1].split("."))) if version else (0,)


def need_kafka() -> None:
    """Skip without a Java that is new enough, or without the jars."""
    if _java_version()[0] < 17:
        pytest.skip("there is no Java of version 17 or later on this machine: see `make tools`")
    if not (JARS / "pom.xml").exists():
        pytest.skip("there is no Apache Kafka in .tools: see `make tools`")


def java(main: str, *arguments: str, heap: str = "128m", level: str = "WARN") -> list[str]:
    """The command that runs the class `main`."""
    logs = f"-Dlog4j2.configurationFile={_HERE / 'log4j2.xml'}"
    return ["java", f"-Xmx{heap}", *_FLAGS, logs, f"-Dlevel={level}", "-cp", f"{JARS}/*", main, *arguments]


class Tool:
    """A tool that runs. What it prints goes to files, so nobody has to read while it runs. Killed by `close`."""

    def __init__(
        self, name: str, command: list[str], given: str | None = None, at_end: Callable[[], None] | None = None
    ) -> None:
        self.name = name
        self._at_end = at_end
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._out, stderr=self._err, env={**os.environ, "LC_ALL": "C.UTF-8"}
        )
        assert self.process.stdin
        if given is not None:
            self.give(given)
            self.end_input()

    def give(self, text: str) -> None:
        """To its standard input. Short texts only: it is not waited for that they are read."""
        assert self.process.stdin
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def end_input(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()

    @staticmethod
    def _all(file: IO[bytes]) -> str:
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")

    @property
    def out(self) -> str:
        """Everything it has printed so far."""
        return self._all(self._out)

    @property
    def err(self) -> str:
        return self._all(self._err)

    def ended(self, seconds: float = 150) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name}: still runs after {seconds} s\n{self.out}\n{self.err}") from None

    def done(self, seconds: float = 150) -> str:
        """What it printed, after it has ended well."""
        assert self.ended(seconds) == 0, f"{self.name} ended with {self.process.returncode}\n{self.out}\n{self.err}"
        return self.out

    def says(self, pattern: str, count: int = 1, seconds: float = 150) -> list[str]:
        """Wait until it has printed what matches `pattern` so many times."""

        def said() -> list[str]:
            found = re.findall(pattern, self.out, re.MULTILINE)
            if len(found) < count and self.process.poll() is not None:
                found = re.findall(pattern, self.out, re.MULTILINE)
                assert len(found) >= count, f"{self.name} ended without {pattern!r}\n{self.out}\n{self.err}"
            return found if len(found) >= count else []

        try:
            return until(said, f"{self.name} says {pattern!r} × {count}", seconds)
        except AssertionError:
            print(self.out[-4000:], self.err[-4000:])
            raise

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        assert self.process.stdin
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self._out.close()
        self._err.close()
        if self._at_end:
            self._at_end()


_archiving: set[str] = set()


def with_archive(name: str, command: list[str]) -> tuple[list[str], Callable[[], None] | None]:
    """Let a JVM use the archive of its classes that an earlier one left behind, which halves its start. Without one,
    return what is to be called after this JVM has ended by itself: it leaves one. A Java that cannot use it does not.
    """
    archive = JARS / f"{name}-{'.'.join(map(str, _java_version()))}.jsa"
    if archive.exists():
        return [command[0], f"-XX:SharedArchiveFile={archive}", *command[1:]], None
    if name in _archiving:
        return command, None
    _archiving.add(name)
    mine = archive.with_suffix(f".{os.getpid()}")
    return [command[0], f"-XX:ArchiveClassesAtExit={mine}", *command[1:]], functools.partial(_keep, mine, archive)


def start_tool(name: str, *arguments: str, given: str | None = None) -> Tool:
    """Start a tool, with an archive of its classes, or to leave one behind."""
    command, at_end = with_archive("classes", java(TOOLS[name], *arguments))
    return Tool(name, command, given, at_end)


def _keep(made: Path, archive: Path) -> None:
    if made.exists():
        made.replace(archive)
