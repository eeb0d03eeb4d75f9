"""Runs scripts of this folder and appends their answers to results/<date>.jsonl, each as it comes: `make bench`.

    python bench/_collect.py [--readme] [--quick] [--allow-dirty] [name …]

    --readme        only the scripts, and the parts of them, that the figures of README.md come from
    --quick         tiny counts, to see whether the scripts work; nothing is recorded
    --allow-dirty   measure sources that differ from HEAD; their lines are marked, and never count as meeting a goal

A miss is a result, not a failure. A script that fails is one: it keeps the lines it had, and the others run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import _machine
import _results

HERE = Path(__file__).resolve().parent
LIMIT_S = 1800  # a script that takes longer hangs
VERDICTS = {"yes": "ok", "unsure": "?", "no": "MISS", None: ""}


class Run(NamedTuple):
    """A script, the arguments that choose a part of it, and minutes that it takes on a quiet machine of two cores."""

    script: str
    arguments: tuple[str, ...] = ()
    minutes: float = 0


README_RUNS = [
    Run("bulk_write", minutes=0.7),
    Run("send", minutes=0.3),
    Run("single_append", minutes=0.7),
    Run("contention", minutes=0.7),
    Run("read", minutes=0.5),
    Run("latency", minutes=1),
    Run("flat", ("--only", "partitions"), 1),
    Run("offsets", minutes=2.5),
    Run("big_log", ("--only", "a kill"), 2),
    Run("cli", ("--only", "help"), 0.2),
    Run("cli", ("--only", "tail"), 1),
    Run("stream_servers", minutes=2),
    Run("kafka_rdkafka", ("--only", "100 B"), 2),
    Run("kafka_java", ("--only", "100 B"), 4),
    Run("kafka_latency", ("--only", "sync, acks=1"), 3),
    Run("kafka_start", minutes=5),
    Run("spark_read", minutes=4),
    Run("spark_archive", minutes=3),
]
"""What `_tables.README_ROWS` come from, the quick ones first."""


def summary(line: _results.Line) -> str:
    """Return a line for the terminal: ok, MISS or ? (the range crosses the goal); busy or dirty before it."""
    marks = [mark for mark in ("busy", "dirty") if line[mark]]
    low, high = line["ratio_range"] or (0, 0)
    ratio = f"{line['ratio']:g} × ({low:g} to {high:g})" if line["ratio"] is not None else ""
    peer = f" · {line['peer']}: {line['peer_figure']:g}" if line["peer"] else ""
    figure = f"{line['question']}: {line['figure']:g} {line['unit']}{peer}"
    verdict = " ".join([*marks, VERDICTS[_results.verdict(line)]])
    return f"{verdict:>10} {ratio:>24} {line['want'] or '':>15}  {figure}"


def answers(run: Run, quick: bool) -> Iterator[_results.Line]:
    """Run a script and yield its lines as they come. Raise RuntimeError if it fails, prints anything else, or hangs."""
    command = [sys.executable, str(HERE / f"{run.script}.py"), *run.arguments, *(["--quick"] if quick else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    hung = threading.Event()

    def stop() -> None:
        hung.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(LIMIT_S, stop)
    timer.start()
    try:
        for text in process.stdout:
            try:
                yield {"script": run.script, **json.loads(text)}
            except (json.JSONDecodeError, TypeError):
                raise RuntimeError(f"printed {text.strip()[:200]!r}, which is not an answer") from None
        code = process.wait()
    except BaseException:
        stop()
        raise
    finally:
        timer.cancel()
        process.wait()
        process.stdout.close()
    if hung.is_set():
        raise RuntimeError(f"took more than {LIMIT_S} s")
    if code:
        raise RuntimeError(f"ended with exit code {code}")


def warn_if_busy() -> None:
    reading = _machine.Watch().before
    cores = _machine.cores()
    if reading.is_busy(cores):
        print(
            f"bench: WARNING: others use {reading.others + reading.steal:.1f} of {cores} cores; "
            "lines that are measured meanwhile are marked busy and meet no goal",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Run benchmarks and append what they answer to bench/results.")
    parser.add_argument("--readme", action="store_true", help="only what the figures of README.md come from")
    parser.add_argument("--quick", action="store_true", help="tiny counts: do the scripts work? Records nothing")
    parser.add_argument("--allow-dirty", action="store_true", help="measure sources that differ from HEAD, and mark it")
    parser.add_argument("names", nargs="*", help="scripts [default: all]")
    options = parser.parse_args()
    names = [name.removesuffix(".py") for name in options.names]
    if unknown := [name for name in names if name.startswith("_") or not (HERE / f"{name}.py").exists()]:
        parser.error(f"no such script: {', '.join(unknown)}")
    runs = (
        [run for run in README_RUNS if not names or run.script in names]
        if options.readme
        else [Run(name) for name in names or sorted(path.stem for path in HERE.glob("[a-z]*.py"))]
    )

    if not options.quick:
        if _machine.read_sources().dirty and not options.allow_dirty:
            print("bench: src/ or bench/ differ from HEAD, so that the figures cannot be traced: commit first, or")
            print('bench: make bench ARGS="--allow-dirty …", whose lines are marked and never count as meeting a goal')
            return 2
        if options.readme:
            minutes = sum(run.minutes for run in runs)
            print(f"bench: {len(runs)} scripts, about {minutes:.0f} minutes on a quiet machine", flush=True)
        warn_if_busy()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the script is stopped, too
    begin = time.monotonic()
    lines: list[_results.Line] = []
    failures = {}
    path = None
    for run in runs:
        started = time.monotonic()
        print(f"bench: {' '.join([run.script, *run.arguments])}", flush=True)
        try:
            for line in answers(run, options.quick):
                lines.append(line)
                if not options.quick:
                    path = _results.append(line)
                print(summary(line), flush=True)
        except RuntimeError as error:
            failures[run.script] = str(error)
            print(f"bench: {run.script} failed: it {error}", flush=True)
        print(f"bench: {run.script} took {time.monotonic() - started:.0f} s", flush=True)
    print(f"bench: {(time.monotonic() - begin) / 60:.1f} minutes; {_results.score(lines)}")
    if path:
        print(f"bench: {len(lines)} lines appended to bench/results; `make docs` brings the tables up to date")
    for script, reason in failures.items():
        print(f"bench: FAILED: {script} {reason}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
