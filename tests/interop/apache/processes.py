"""Processes of Kafka's that are killed and started again: processors of Streams, workers of Connect."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.procs import until
from tests.serving import Serving, restartable

__all__ = ["Program", "killed_now_and_then"]


class Program:
    """One Java program; what it prints, in all its lives, goes to a file."""

    def __init__(self, name: str, command: list[str], directory: Path) -> None:
        self.name = name
        bound = ["setpriv", "--pdeathsig=KILL"] if shutil.which("setpriv") else []
        self._command = [*bound, *command]
        self._output = directory / f"{name}.output"
        self.start()

    def start(self) -> None:
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def says(self, text: str, seconds: float = 120) -> None:
        """Wait until it has printed this."""
        until(lambda: text in self.output or self.process.poll() is not None, f"{self.name} says {text!r}", seconds)
        assert text in self.output, f"{self.name} has ended\n{self.output[-4000:]}"


@contextmanager
def killed_now_and_then(directory: Path) -> Iterator[tuple[Serving, list[Program]]]:
    """A server, and a list for programs: all are killed when the block ends."""
    programs: list[Program] = []
    with restartable(directory / "store") as server:
        try:
            yield server, programs
        finally:
            for program in programs:
                program.kill()
