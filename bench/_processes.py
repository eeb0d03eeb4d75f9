"""Other processes for the scripts that need some: spawned, so that they share nothing with this one but files."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

_spawn = multiprocessing.get_context("spawn")


def together(jobs: list[tuple[Callable[..., Any], tuple[Any, ...]]]) -> list[Any]:
    """Run each job in a process of its own, as job(start, *arguments); `start()` returns when all of them called it."""
    barrier = _spawn.Barrier(len(jobs))
    pipes = []
    for job, arguments in jobs:
        ours, theirs = _spawn.Pipe()
        process = _spawn.Process(target=_run, args=(theirs, barrier, job, arguments))
        process.start()
        theirs.close()
        pipes.append((process, ours))
    results = []
    for process, pipe in pipes:
        try:
            results.append(pipe.recv())
        except EOFError:
            raise RuntimeError("a process of the benchmark died") from None
        process.join()
    return results


def _run(pipe: Any, barrier: Any, job: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    pipe.send(job(lambda: barrier.wait(60), *arguments))
