"""What every script here shares: rounds, medians, and the line that signs an answer.

A script asks one question. It runs Klamm and its peers in turn, round after round (klamm, peer, klamm, peer, …), so
that whatever else the machine does meanwhile hits both alike, and prints one JSON line for each pair that it
compared:

    question   what was asked                       figure        Klamm's median, in `unit`
    peer       who it was compared with, and how    peer_figure   the peer's median in the same run
    ratio      median over the rounds of figure / peer_figure of that round; ratio_range: the least and the most
    want, ok   the goal for the ratio (or for the figure), and whether it was met; null: only shown beside
    cpu_ratio  the same ratio of records per CPU second (user and system), where that makes sense
    rounds, count, machine, commit, at

A ratio is the figure to read; figures alone tell about the machine.

    --quick      tiny counts, two rounds: does the script work? Its figures mean nothing
    --rounds N   instead of 5
    --only TEXT  only the parts whose name contains TEXT

Files go to $KLAMM_BENCH_DIR, or to build/bench of this repository, and are removed as soon as they were measured,
before the kernel finds time to write them out.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
QUICK_ROUNDS = 2


# ---- the command line


def arguments(question: str, *, rounds: int = 5, **more: Any) -> argparse.Namespace:
    """Options every script has, and `more` of its own: name=(default, help)."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--quick", action="store_true", help="tiny counts: does the script work?")
    parser.add_argument("--rounds", type=int, default=None, help=f"instead of {rounds}")
    parser.add_argument("--only", default="", help="only the parts whose name contains this")
    for name, (default, text) in more.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default, help=text)
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = QUICK_ROUNDS if options.quick else rounds
    return options


# ---- places


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """A directory on the file system that is measured; gone afterwards."""
    above = os.environ.get("KLAMM_BENCH_DIR") or str(ROOT / "build" / "bench")
    os.makedirs(above, exist_ok=True)
    path = tempfile.mkdtemp(dir=above)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def free_bytes() -> int:
    with folder() as path:
        return shutil.disk_usage(path).free


# ---- measuring


@dataclass
class Sample:
    """One run of one side: how much was done, in how many seconds."""

    count: float
    wall: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.count / self.wall


@contextlib.contextmanager
def clock(count: float) -> Iterator[Sample]:
    """Times its block, in which `count` things are done; without the garbage collector, as timeit does it."""
    sample = Sample(count, 0.0, 0.0)
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        yield sample
    finally:
        sample.wall = time.perf_counter() - wall
        sample.cpu = time.process_time() - cpu
        if was_enabled:
            gc.enable()


def interleave(sides: dict[str, Callable[[], Any]], rounds: int, *, warm: bool = True) -> dict[str, list[Any]]:
    """Run each side once a round, in turn; every second round backwards, so that nobody always comes first."""
    results: dict[str, list[Any]] = {name: [] for name in sides}
    if warm:  # once for nothing: imports, caches, the first pages
        for run in sides.values():
            run()
    for number in range(rounds):
        names = list(sides) if number % 2 == 0 else list(reversed(sides))
        for name in names:
            results[name].append(sides[name]())
    return results


# ---- answering


def median(values: list[float]) -> float:
    return statistics.median(values)


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


@dataclass
class Want:
    """A goal, for the ratio unless said otherwise."""

    text: str
    of: str = "ratio"
    relation: str = field(init=False)
    limit: float = field(init=False)

    def __post_init__(self) -> None:
        self.relation, limit = self.text.split()[:2]
        self.limit = float(limit)

    def met(self, value: float) -> bool:
        return value >= self.limit if self.relation == ">=" else value <= self.limit


def at_least(limit: float, of: str = "ratio") -> Want:
    return Want(f">= {limit:g}", of)


def at_most(limit: float, of: str = "ratio") -> Want:
    return Want(f"<= {limit:g}", of)


def compare(
    question: str, ours: list[Sample], peer: str, theirs: list[Sample], want: Want | None = None, **more: Any
) -> None:
    """Answer by records a second, wall and CPU."""
    cpu = [(a.count / a.cpu) / (b.count / b.cpu) for a, b in zip(ours, theirs, strict=True) if a.cpu > 0 and b.cpu > 0]
    if cpu:
        more["cpu_ratio"] = digits(median(cpu))
    answer(
        question,
        [each.rate for each in ours],
        peer,
        [each.rate for each in theirs],
        want,
        unit="records/s",
        count=int(ours[0].count),
        **more,
    )


def answer(
    question: str,
    ours: list[float],
    peer: str | None = None,
    theirs: list[float] | None = None,
    want: Want | None = None,
    *,
    unit: str,
    **more: Any,
) -> None:
    """Print the line."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)] if theirs else []
    figure = median(ours)
    judged = median(ratios) if want and want.of == "ratio" else figure
    line: dict[str, Any] = {
        "question": question,
        "figure": digits(figure),
        "unit": unit,
        "peer": peer,
        "peer_figure": digits(median(theirs)) if theirs else None,
        "ratio": digits(median(ratios)) if ratios else None,
        "ratio_range": [digits(min(ratios)), digits(max(ratios))] if ratios else None,
        "want": None if want is None else f"{want.of} {want.text}",
        "ok": None if want is None else want.met(judged),
        **more,
        "rounds": len(ours),
        "machine": machine(),
        "commit": commit(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    print(json.dumps(line, ensure_ascii=False), flush=True)


def digits(value: float) -> float:
    """Three digits are as many as a shared machine can answer for."""
    return float(f"{value:.3g}")


def machine() -> dict[str, Any]:
    """What the figures depend on; nothing that names the host."""
    model = ""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    with folder() as path:
        df = subprocess.run(["df", "--output=fstype", path], capture_output=True, text=True, check=False).stdout
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release(),
        "file_system": df.split()[-1] if df else "",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def commit() -> str:
    """The commit that was measured; + when the working tree differs from it (results of earlier runs aside)."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return (head + ("+" if changed else "")) or "unknown"
