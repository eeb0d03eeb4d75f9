"""What every script here shares: rounds, medians, and the line that signs an answer.

A script asks one question. It runs Klamm and its peers in turn, round after round (klamm, peer, klamm, peer, …), so
that whatever else the machine does meanwhile hits both alike, and prints one JSON line for each pair that it
compared:

    question   what was asked                       figure        Klamm's median, in `unit`
    peer       who it was compared with, and how    peer_figure   the peer's median in the same run
    figure_range           the least and the most of the rounds
    ratio, ratio_range     median, least and most over the rounds of figure / peer_figure of that round
    want       the goal for the ratio (or for the figure); null: only shown beside
    ok         "yes": the whole range meets the goal; "no": none of it; "unsure": the range crosses it; null: no goal
    cpu_ratio  the ratio of records per CPU second (user and system), where that makes sense
    tree       the git tree of src/ that was measured (`git rev-parse HEAD:src`); commit: the commit it was in
    dirty      whether sources differed from the commit, or changed during the run
    busy       whether others used more than a tenth of the machine, before or during the run (`_machine.py`)
    machine    what the figures depend on; others_before, others, steal: cores that the benchmark did not have
    rounds, count, at; seconds: from the start of the script

A ratio is the figure to read; figures alone tell about the machine.

    --quick      tiny counts, two rounds, cold: does the script work? Its figures mean nothing
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
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import _machine
from _results import Want, at_least, at_most, judge

__all__ = ["Sample", "Want", "answer", "arguments", "at_least", "at_most", "clock", "compare", "digits", "folder"]
__all__ += ["free_bytes", "interleave", "median", "percentile"]

ROOT = Path(__file__).resolve().parent.parent
QUICK_ROUNDS = 2
QUICK_BEFORE_S = 0.02


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
    Run.current = Run(quick=options.quick)
    return options


class Run:
    """This run of a script: when it began, on which sources, and how busy others keep the machine."""

    current: Run | None = None

    def __init__(self, *, quick: bool) -> None:
        self.is_quick = quick
        self._begin = time.monotonic()
        self._sources = _machine.read_sources()
        self._watch = _machine.Watch(QUICK_BEFORE_S if quick else _machine.BEFORE_S)

    def sign(self) -> dict[str, Any]:
        """Return the fields of a line that say what was measured, and on which machine."""
        sources, now = self._sources, _machine.read_sources()
        before, during = self._watch.before, self._watch.read()
        with folder() as path:
            machine = _machine.describe(path)
        machine["others_before"] = round(before.others + before.steal, 2)
        machine["others"], machine["steal"] = round(during.others, 2), round(during.steal, 2)
        return {
            "machine": machine,
            "busy": any(reading.is_busy(machine["cores"]) for reading in (before, during)),
            "tree": sources.tree,
            "commit": sources.commit,
            "dirty": sources.dirty or now.dirty or now.tree != sources.tree,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._begin, 1),
        }


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
    """Run each side once a round, in turn; every second round backwards, so that no side always comes first."""
    results: dict[str, list[Any]] = {name: [] for name in sides}
    quick = Run.current is not None and Run.current.is_quick
    if warm and not quick:  # once for nothing: imports, caches, the first pages
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
    run = Run.current
    assert run is not None, "a script calls `arguments` first"
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)] if theirs else []
    judged = ratios if want and want.of == "ratio" else ours
    line: dict[str, Any] = {
        "question": question,
        "figure": digits(median(ours)),
        "figure_range": [digits(min(ours)), digits(max(ours))],
        "unit": unit,
        "peer": peer,
        "peer_figure": digits(median(theirs)) if theirs else None,
        "ratio": digits(median(ratios)) if ratios else None,
        "ratio_range": [digits(min(ratios)), digits(max(ratios))] if ratios else None,
        "want": None if want is None else f"{want.of} {want.text}",
        "ok": judge(want, min(judged), max(judged)),
        **more,
        "rounds": len(ours),
        **run.sign(),
    }
    print(json.dumps(line, ensure_ascii=False), flush=True)


def digits(value: float) -> float:
    """Three digits are as many as a shared machine can answer for."""
    return float(f"{value:.3g}")
