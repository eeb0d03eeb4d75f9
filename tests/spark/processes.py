"""Processes for tests of Spark to kill, and waiting for what they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

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
