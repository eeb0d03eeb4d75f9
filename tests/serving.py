"""`klamm serve`, as a process of its own, for tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.procs import PATIENCE, until

KLAMM = Path(sys.executable).parent / "klamm"
READY = re.compile(
    r"klamm: serving (?P<path>.+) at (?P<address>\S+) "
    r"\((?:new )?store (?P<store>\w+)(?:, metrics at (?P<metrics>\S+))?\)\n"
)


class Serving:
    """One `klamm serve`. What it writes goes to files, so that nobody has to read for it to go on."""

    def __init__(
        self, path: Path, *options: str, where: Path, environment: Mapping[str, str], open_files: int | None = None
    ) -> None:
        where.mkdir(parents=True, exist_ok=True)
        self._out, self._err = where / "stdout", where / "stderr"
        limited = () if open_files is None else ("prlimit", f"--nofile={open_files}:{open_files}")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*limited, KLAMM, "serve", path, *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **environment},
            )
        self.pid = self.process.pid

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def ready(self) -> re.Match[str]:
        """What it said when it was ready."""
        until(lambda: "\n" in self.stdout or self.process.poll() is not None, "klamm serve is ready")
        found = READY.fullmatch(self.stdout)
        assert found is not None, f"{self.stdout!r}, {self.stderr}"
        return found

    @property
    def address(self) -> str:
        return self.ready()["address"]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        return self.process.wait(PATIENCE)


@contextmanager
def serving(
    path: Path, *options: str, where: Path | None = None, open_files: int | None = None, **environment: str
) -> Iterator[Serving]:
    """A server that does not outlive the block; on a port that is free unless `options` say otherwise."""
    if "--kafka" not in options and "KLAMM_CONFIG" not in environment and "--config" not in options:
        options = ("--kafka", "0", *options)
    where = where or path.parent / f"{path.name}.out"
    server = Serving(path, *options, where=where, environment=environment, open_files=open_files)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait(PATIENCE)
