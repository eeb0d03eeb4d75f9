"""`klamm console` as a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.procs import PATIENCE, die_with_parent, readable


class ConsoleProcess:
    """A console that serves a store; `address` is without the slash at its end."""

    def __init__(self, path: Path | str, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "klamm", "console", str(path), "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - no thread forks here
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        assert readable(self.process.stdout.fileno(), PATIENCE), "it says nothing"
        self.line = self.process.stdout.readline()
        assert self.line, self.process.stderr.read()
        self.address = self.line.rpartition(" at ")[2].strip().rstrip("/")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def signal(self, number: int) -> tuple[int, str]:
        """Send a signal; return the exit code, and what it has written to stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=PATIENCE)
