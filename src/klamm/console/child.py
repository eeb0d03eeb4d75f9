"""Klamm commands in a child process, with limits: what takes memory and time does so elsewhere, and is ended.

memory    RLIMIT_AS of the child
time      it is killed after that many seconds, when the console ends, and by the kernel if the console is killed
output    no more than that many lines and bytes are read; then it is killed, and the result says so
number    PLACES at a time; who gets no place within _WAIT_S is refused
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from klamm.console.errors import RequestError
from klamm.disk._os import TimedLock

__all__ = ["ChildCache", "ChildResult", "end_children", "run_child"]

_MEMORY = 4 << 30
_TIMEOUT_S = 30.0
_CACHE_S = 10.0
_WAIT_S = 2.0
PLACES = threading.BoundedSemaphore(2)

_running: set[subprocess.Popen[bytes]] = set()
_is_ending = threading.Event()

# PR_SET_PDEATHSIG is 1. It tells of the end of the thread that has started the child, which waits for the child.
_START = """
import ctypes, os, resource, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("klamm: the console has ended")
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
from klamm.cli.main import run
sys.exit(run(sys.argv[3:]))
"""


@dataclass(frozen=True)
class ChildResult:
    """The output of a command, as JSON lines."""

    rows: list[Any]
    is_cut: bool
    """Whether there was more."""
    took_ms: int


def run_child(
    arguments: list[str], *, memory_bytes: int, timeout_s: float, most_rows: int = 5_000, most_bytes: int = 8 << 20
) -> ChildResult:
    """Run `klamm ARGUMENTS`. RequestError, with what it says, if it fails or takes too long."""
    with TimedLock(PLACES, _WAIT_S) as is_held:
        if not is_held:
            raise RequestError(503, "other queries are running", "ask again when they are done")
        return _run(arguments, memory_bytes, timeout_s, most_rows, most_bytes)


def _run(arguments: list[str], memory_bytes: int, timeout_s: float, most_rows: int, most_bytes: int) -> ChildResult:
    began = time.monotonic()
    command = [sys.executable, "-P", "-c", _START, str(os.getpid()), str(memory_bytes), *arguments]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        assert process.stdout is not None
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            process.kill()

        _running.add(process)
        timer = threading.Timer(timeout_s, end)
        timer.daemon = True
        timer.start()
        if _is_ending.is_set():  # since before it was among those that run
            process.kill()
        rows: list[Any] = []
        size, is_cut = 0, False
        try:
            while line := process.stdout.readline(most_bytes + 1):  # a line may be longer than memory
                size += len(line)
                if len(rows) >= most_rows or size > most_bytes:
                    is_cut = True
                    process.kill()
                    break
                rows.append(json.loads(line))
        except ValueError:
            process.kill()
            raise RequestError(500, f"klamm {arguments[0]} has printed what is not JSON: {line[:200]!r}") from None
        finally:
            timer.cancel()
            process.stdout.close()
            code = process.wait()
            _running.discard(process)
        if is_late.is_set():
            raise RequestError(400, f"it took longer than {timeout_s:g} s, and was ended", "ask for less")
        if code and not is_cut:
            errors.seek(0)
            said = errors.read(4096).decode("utf-8", "replace").strip()
            problem = said.removeprefix("klamm: ") or f"it ended with exit code {code}: it may have needed more memory"
            raise RequestError(400, problem)
    if is_cut and not rows:
        raise RequestError(400, f"the first row has more than {most_bytes:,} bytes", "ask for less")
    return ChildResult(rows, is_cut, round((time.monotonic() - began) * 1000))


def end_children() -> None:
    """Kill the commands that run, and those that are started from now on: the console ends."""
    _is_ending.set()
    for process in list(_running):
        process.kill()


class ChildCache:
    """The output of commands, kept for some seconds: a child takes a second or so to start. Thread-safe.

    While a command runs, those who ask for the same wait for it, and for its error; commands do not wait for others.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._kept: dict[tuple[str, ...], _Output] = {}

    def run(self, *arguments: str) -> list[Any]:
        """Return the rows that `klamm ARGUMENTS` prints, or printed a moment ago."""
        with self._mutex:
            now_s = time.monotonic()
            self._kept = {key: output for key, output in self._kept.items() if now_s < output.until_s}
            is_first = arguments not in self._kept
            output = self._kept.setdefault(arguments, _Output())
        if is_first:
            try:
                output.rows.set_result(run_child(list(arguments), memory_bytes=_MEMORY, timeout_s=_TIMEOUT_S).rows)
                output.until_s = time.monotonic() + _CACHE_S
            except BaseException as error:  # noqa: BLE001 - raised by `result`, to those who wait, too
                output.until_s = 0.0
                output.rows.set_exception(error)
        return output.rows.result()


class _Output:
    """The rows of a command, now or soon; kept until then."""

    def __init__(self) -> None:
        self.rows: Future[list[Any]] = Future()
        self.until_s = float("inf")
