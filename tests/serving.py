"""`klamm serve` for tests: a process of its own, which can be stopped, killed and started again.

`serve_here` runs it in this process instead: for a forked child, which has everything imported and can have some of it
broken first.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from klamm.cli.main import run
from tests.procs import PATIENCE, until

KLAMM = Path(sys.executable).parent / "klamm"
READY = re.compile(
    r"klamm: serving (?P<path>.+) at (?P<address>\S+) "
    r"\((?:new )?store (?P<store>\w+)(?:, metrics at (?P<metrics>[^\s,]+))?(?:, console at (?P<console>\S+))?\)\n"
)
# A killed member is missed soon, and unfinished transactions are looked for every half second.
SHORT_SESSIONS = ("--set", "group.min.session.timeout.ms=100", "--set", "log.cleaner.backoff.ms=500")


class Serving:
    """`klamm serve` of one store, from `begin` to `stop` or `kill`, and again.

    What it writes goes to files, so that it never waits for a reader. stdout is of its present life, stderr of all.
    """

    def __init__(
        self, store: Path, *options: str, where: Path, environment: Mapping[str, str], open_files: int | None = None
    ) -> None:
        self.store = store
        where.mkdir(parents=True, exist_ok=True)
        self._out, self._err = where / "stdout", where / "stderr"
        limited = () if open_files is None else ("prlimit", f"--nofile={open_files}:{open_files}")
        bound = ("setpriv", "--pdeathsig=KILL") if shutil.which("setpriv") else ()  # it does not outlive the tests
        self._command = [*bound, *limited, KLAMM, "serve", store, *options]
        self._environment = {**os.environ, **environment}
        self.begin()

    def begin(self) -> None:
        """Start the process, and do not wait for it."""
        with self._out.open("wb") as out, self._err.open("ab") as err:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self._environment
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text(errors="replace")

    def ready(self) -> re.Match[str]:
        """Wait until it listens, and return its one line of stdout."""
        until(lambda: "\n" in self.stdout or self.process.poll() is not None, "klamm serve is ready")
        found = READY.fullmatch(self.stdout)
        assert found is not None, f"{self.stdout!r}, {self.stderr[-8000:]}"
        return found

    @property
    def address(self) -> str:
        return self.ready()["address"]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Wait until it has ended, and return the exit code."""
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.ended()

    def start(self) -> None:
        """Start it again, with the same options."""
        assert self.process.poll() is not None
        self.begin()
        self.ready()

    def restart(self, how: str) -> None:
        """`how`: "stop" or "kill"."""
        if how == "kill":
            self.kill()
        else:
            assert self.stop() == 0, self.stderr[-8000:]
        self.start()

    def check_log(self) -> None:
        """Fail if it has logged that something went wrong that should not."""
        assert not re.search(r"Traceback|CRITICAL", self.stderr), self.stderr[-8000:]


@contextmanager
def serving(
    path: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
    where: Path | None = None,
    open_files: int | None = None,
) -> Iterator[Serving]:
    """A server that does not outlive the block; on a port that is free unless `options` say otherwise."""
    environment = environment or {}
    if "--kafka" not in options and "KLAMM_CONFIG" not in environment and "--config" not in options:
        options = ("--kafka", "0", *options)
    where = where or path.parent / f"{path.name}.out"
    server = Serving(path, *options, where=where, environment=environment, open_files=open_files)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def restartable(path: Path) -> Iterator[Serving]:
    """A server with short sessions that keeps its port when it is restarted. It must log no traceback."""
    with serving(path, "--kafka", str(free_port()), *SHORT_SESSIONS) as server:
        server.ready()
        yield server
        server.check_log()


def serve_here(store: Path | str, port: int, log: Path) -> None:
    """Run `klamm serve` in this process until SIGTERM. An exit code other than 0 is an error."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # pytest has put files of its own in their place
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    assert run(["serve", str(store), f"--kafka={port}", *SHORT_SESSIONS]) == 0


def free_port() -> int:
    """Return a port for a server that is started again: one that stays free while nobody listens.

    It is below the ports that the kernel gives to clients. (A client that connects to one of those may even be
    connected to itself.)
    """
    for _ in range(1000):
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("no port is free")


def listens(address: str) -> bool:
    """Return whether a server accepts connections there."""
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


__all__ = ["KLAMM", "SHORT_SESSIONS", "Serving", "free_port", "listens", "restartable", "serve_here", "serving"]
