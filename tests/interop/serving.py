"""A server of one store that can be killed, stopped, and started again at its port: for tests of what outlives it.

`Serving` is the program, `klamm serve`, begun anew each time. `serve_here` runs it in this process: for a forked child,
which has everything imported and can have some of it broken first.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from klamm.cli.main import run
from tests.procs import until

__all__ = ["Serving", "answers", "free_port", "serve_here", "serving"]

# Short sessions, so that a killed member is missed soon; and a look at what is left of transactions every half second.
SETTINGS = {"group.min.session.timeout.ms": "100", "log.cleaner.backoff.ms": "500"}

_PROGRAM = [sys.executable, "-c", "from klamm.cli.main import main; main()"]


def free_port() -> int:
    """One that stays free while nobody listens: below those that the kernel gives to those who dial. (Who dials one of
    those may even be connected with himself.)
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


def answers(address: str) -> bool:
    """Whether somebody listens there."""
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def _arguments(store: Path | str, port: int) -> list[str]:
    settings = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    return ["serve", str(store), f"--kafka={port}", *settings]


def serve_here(store: Path | str, port: int, log: Path) -> None:
    """Until SIGTERM. Its exit code is 0, or this is an error."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    assert run(_arguments(store, port)) == 0


class Serving:
    """`klamm serve`, from `start` to `stop` or `kill`, and again."""

    def __init__(self, store: Path, log: Path) -> None:
        self.store = store
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def start(self) -> None:
        """It listens when this returns."""
        self.begin()
        self.wait()

    def begin(self) -> None:
        assert self._process is None
        bound = ["setpriv", "--pdeathsig=KILL"] if shutil.which("setpriv") else []  # it does not outlive the tests
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [*bound, *_PROGRAM, *_arguments(self.store, self.port)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def wait(self) -> None:
        def listens() -> bool:
            assert self._process is not None and self._process.poll() is None, self.log[-8000:]
            return answers(self.address)

        until(listens, "klamm serve listens")

    def kill(self) -> None:
        """SIGKILL: it has no time for anything."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(30)

    def stop(self) -> None:
        """SIGTERM: it ends what is under way, and well."""
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(30) == 0, self.log[-8000:]
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(30)

    def restart(self, how: str) -> None:
        """`how`: "stop" or "kill"."""
        getattr(self, how)()
        self.start()


@contextmanager
def serving(directory: Path) -> Iterator[Serving]:
    """A server of the store `directory`/store, which does not outlive the block and logs no traceback."""
    made = Serving(directory / "store", directory / "server.log")
    made.start()
    try:
        yield made
        assert not re.search(r"Traceback|CRITICAL", made.log), made.log[-8000:]
    finally:
        made.kill()
