"""The console that `klamm serve --console PORT` starts: a process of its own, which ends with the server.

The server holds the other end of the console's standard input, so that it ends however the server does. A console that
ends by itself is logged, and the server goes on: records matter more than pages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from klamm.console.mask import Mask
from klamm.console.options import SERVER_TOKEN, VISITOR_TOKEN
from klamm.errors import InvalidSetting, NotInstalled
from klamm.kafka.logs import event

__all__ = ["ConsoleProcess"]

_START_S = 60.0
_END_S = 8.0

_log = logging.getLogger("klamm.console")


class ConsoleProcess:
    """A console as a child process; started once, on one event loop."""

    def __init__(self, path: Path, port: int, mask: Sequence[str] = (), *, is_guarded: bool = False) -> None:
        """Prepare a console. With `is_guarded`, visitors need a token: that of the environment, or a new one."""
        self._port, self._mask = port, mask
        self._token = secrets.token_urlsafe(32) if is_guarded and not os.environ.get(VISITOR_TOKEN) else ""
        masks = [word for field in mask for word in ("--mask", field)]
        arguments = ["console", str(path), "--port", str(port), "--record", "--until-eof", *masks]
        self._command = [sys.executable, "-P", "-m", "klamm", *arguments]
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._errors: list[str] = []
        self.address = ""

    @property
    def url(self) -> str:
        """Return where visitors go; it logs them in."""
        return f"{self.address}login?token={self._token}" if self._token else self.address

    def check(self) -> None:
        """Raise what would keep the console from starting, as far as that can be known before the server starts."""
        for package in ("starlette", "uvicorn"):
            if find_spec(package) is None:
                raise NotInstalled.package(package, "'klamm[console]'")
        Mask(self._mask)
        try:
            with socket.create_server(("127.0.0.1", self._port)):
                pass
        except OSError as error:
            problem = f"cannot listen at 127.0.0.1:{self._port}: {error.strerror or error}"
            raise InvalidSetting(problem, where="--console", hint="say another port") from None

    async def start(self, metrics: str = "", token: str = "") -> None:
        """Start the console, and return once it serves. InvalidSetting if it cannot start.

        `metrics`: the URL of the server's metrics port; `token`: what opens it.
        """
        command = [*self._command, *(("--server", metrics) if metrics else ())]
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            env={**os.environ, SERVER_TOKEN: token, **({VISITOR_TOKEN: self._token} if self._token else {})},
        )
        reader = asyncio.create_task(self._read_errors())
        assert self._process.stdout is not None
        try:
            line = (await asyncio.wait_for(self._process.stdout.readline(), _START_S)).decode()
        except TimeoutError:
            line = ""
        if not line:
            await self.stop()
            await reader
            why = self._errors[-1].removeprefix("klamm: ") if self._errors else "it did not start"
            raise InvalidSetting(why, where="--console")
        self.address = line.rpartition(" at ")[2].strip()
        event("console", address=self.address, pid=self._process.pid)
        self._watch = asyncio.create_task(self._wait())

    async def _read_errors(self) -> None:
        """Log what the console writes to stderr, once it runs."""
        assert self._process is not None
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            text = line.decode("utf-8", "replace").rstrip()
            if self.address:
                _log.warning("%s", text)
            elif text:
                self._errors.append(text)

    async def _wait(self) -> None:
        assert self._process is not None
        code = await self._process.wait()
        _log.error("the console ended with exit code %d; the server goes on without it", code)

    async def stop(self) -> None:
        """End the console, and wait for that."""
        process = self._process
        if process is None:
            return
        if self._watch is not None:
            self._watch.cancel()
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _END_S)
        except TimeoutError:
            process.kill()
            await process.wait()
