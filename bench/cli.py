"""What does the command line cost: to ask for help, to see the last records of a large topic, and to measure?

    klamm --help    seconds, from the start of the process to its end; beside it, `import typer` in a Python of its own
    klamm tail      the last 10 of a topic of 10 GiB (if 12 GiB of disk are free, or by --gib), and of one of 10 MiB
    klamm bench     CPU of all its processes, beside that of a program without counters, clocks and a parent that looks:
                    one process that sends, one that reads, the same calls. Of both, less what it takes with one record

Each run is a process. CPU is user and system time; `cpu` beside a wall time says how much of it that was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import _harness as harness
import klamm

KLAMM = str(Path(sys.executable).parent / "klamm")
MIB = 1 << 20


def ran(*command: str) -> tuple[float, float, str]:
    """Wall and CPU seconds of a process and those it waited for, and what it printed."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    assert process.returncode == 0, command
    return wall, usage.ru_utime + usage.ru_stime, printed


def help_(rounds: int) -> None:
    found = harness.interleave(
        {
            "help": lambda: ran(KLAMM, "--help"),
            "typer": lambda: ran(sys.executable, "-c", "import typer"),
        },
        rounds,
    )
    walls, cpus = ([run[each] for run in found["help"]] for each in (0, 1))
    peers = [run[0] for run in found["typer"]]
    want = harness.at_most(0.2, "figure")
    cpu = harness.digits(harness.median(cpus))
    harness.answer(
        "klamm --help", walls, "import typer", peers, want, unit="s", cpu=cpu, least=harness.digits(min(walls))
    )


def tail(rounds: int, sizes: list[int]) -> None:
    with harness.folder() as path:
        for size in sizes:
            store = f"{path}/{size}"
            fill(store, size)
        small = f"{path}/{sizes[0]}"
        for size in sizes[1:]:
            found = harness.interleave(
                {
                    "large": lambda size=size: ran(KLAMM, "tail", "bench", "--store", f"{path}/{size}"),
                    "small": lambda: ran(KLAMM, "tail", "bench", "--store", small),
                },
                rounds,
            )
            assert all(len(run[2].splitlines()) == 10 for runs in found.values() for run in runs)
            walls, peers = ([run[0] for run in found[each]] for each in ("large", "small"))
            harness.answer(
                "klamm tail: the last 10",
                walls,
                f"of {sizes[0] // MIB} MiB",
                peers,
                harness.at_most(0.3, "figure"),
                unit="s",
                bytes=size,
                cpu=harness.digits(harness.median([run[1] for run in found["large"]])),
                least=harness.digits(min(walls)),
            )


def fill(path: str, size: int) -> None:
    with klamm.open(path) as store:
        store.topics.create("bench", partitions=1, settings={"retention.ms": -1})
        part = [(None, os.urandom(1000)) for _ in range(2_000)]
        while store.topics.describe("bench").partitions[0].size < size:
            store.append_many("bench", part, acks=1)


BARE = """
import os, sys
import klamm

path, count = sys.argv[1], int(sys.argv[2])
with klamm.open(path) as store:
    store.topics.create("bench")
child = os.fork()
with klamm.open(path) as store:
    if child:
        value, chunk = os.urandom(100), 500
        with store.producer(acks=1) as producer:
            for _ in range(max(count // chunk, 1)):
                for _ in range(min(count, chunk)):
                    producer.send("bench", value)
        os.waitpid(child, 0)
    else:
        done = 0
        with store.consumer("bench", start="earliest", form="values", wait=0.1) as reader:
            while done < count:
                done += len(reader.poll(10_000))
"""


def bench(rounds: int, count: int) -> None:
    def tool(count: int) -> float:
        with harness.folder() as path:
            _, cpu, printed = ran(KLAMM, "bench", f"{path}/store", "-n", str(count), "--seconds", "120")
        rows = [json.loads(line) for line in printed.splitlines()]
        assert [row["records"] for row in rows] == [count, count], rows
        return cpu

    def bare(count: int) -> float:
        with harness.folder() as path:
            return ran(sys.executable, "-c", BARE, f"{path}/store", str(count))[1]

    runs = harness.interleave(
        {"tool": lambda: tool(count) - tool(1), "bare": lambda: bare(count) - bare(1)},
        rounds,
    )
    harness.answer(
        "klamm bench: CPU of all its processes",
        runs["tool"],
        "CPU of the same calls without it",
        runs["bare"],
        harness.at_most(1.1),
        unit="s",
        count=count,
    )


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], rounds=9, gib=(-1, "size of the large topic"))
    large = options.gib if options.gib >= 0 else 10 if harness.free_bytes() > 12 << 30 else 1
    parts = {
        "help": lambda: help_(options.rounds),
        "tail": lambda: tail(options.rounds, [MIB, 4 * MIB] if options.quick else [10 * MIB, large << 30]),
        "bench": lambda: bench(min(options.rounds, 5), 20_000 if options.quick else 5_000_000),
    }
    for name, part in parts.items():
        if options.only in name:
            part()


if __name__ == "__main__":
    main()
