"""Thousands of cases in a few children: one that crashes the interpreter or hangs is a failure with a name."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from tests.procs import children, how_ended

Case = TypeVar("Case")
WORKERS = 2
LIMIT_S = 60  # of a case that takes milliseconds: a machine may stall for long


told_seeds: list[str] = []
"""Those of the test that runs: the report of its failure names the last one, also with `-s` (tests/conftest.py)."""


def seed_of(name: str = "KLAMM_SEED") -> int:
    """A seed, from the environment to see a failure again."""
    seed = int(os.environ.get(name, random.randrange(10**6)))
    tell_seed(seed, name)
    return seed


def tell_seed(seed: int, name: str = "KLAMM_SEED") -> None:
    """Print the seed of what begins now: at once, for a test may be killed."""
    told_seeds.append(f"{name}={seed}")
    print(told_seeds[-1], flush=True)


@contextmanager
def memory_directory(fallback: Path) -> Iterator[Path]:
    """A directory in memory, if there is one: thousands of stores are opened, and each syncs many times."""
    if sys.platform != "linux" or not os.access("/dev/shm", os.W_OK):
        yield fallback
        return
    path = Path("/dev/shm") / f"klamm-{os.getpid()}-{time.time_ns()}"
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path)


def run_cases(cases: Sequence[Case], run: Callable[[Case, int], None], *, limit_s: int = LIMIT_S) -> None:
    """run(case, worker) for each, in children. A case fails by an exception, by a signal, or by taking too long.

    After an exception the others are run, too; a signal ends those of its child.
    """
    board = mmap.mmap(-1, 8 * WORKERS)  # which case each child is at

    def work(worker: int) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout has its own
        wrong = []
        for number in range(worker, len(cases), WORKERS):
            struct.pack_into("q", board, 8 * worker, number)
            signal.alarm(limit_s)
            try:
                run(cases[number], worker)
            except Exception:
                wrong.append(f"{cases[number]}\n{traceback.format_exc()}")
        assert not wrong, "\n".join(wrong)

    failed = []
    with children() as start:
        for worker, child in enumerate([start(partial(work, worker)) for worker in range(WORKERS)]):
            if status := child.ended(limit_s * (len(cases) + 1)):
                case = cases[struct.unpack_from("q", board, 8 * worker)[0]]
                hangs = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
                which = f"{case} hangs\n" if hangs else f"{case} ends by {how_ended(status)}\n"
                failed.append(f"{which if os.WIFSIGNALED(status) else ''}{child.error}")
    if failed:
        pytest.fail("\n".join(failed))
