"""In how much memory does Spark read a large log?

`sum(length(value))` over 10 GiB of records of 1000 B in two partitions (if 25 GiB of disk are free, or by --gib), and
over a twentieth of it. Peak resident memory of the largest Python process and of the JVM (its heap is 1 GiB) while the
query runs; the kernel keeps the peak of each process, and is asked every 50 ms. That of Python must not grow with the
log. Each query has a session and so Python processes of its own; the JVM is the same.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path
from typing import NamedTuple, Self

import _harness as harness
import _spark as spark
import klamm

SIZE = 1000
MIB = 1 << 20


class Peak(NamedTuple):
    """MiB, seconds, rows."""

    python: float
    jvm: float
    all_python: float
    sample: harness.Sample


class Watch:
    """Notes how much memory Spark's processes take, until its block ends."""

    def __init__(self) -> None:
        self.peaks: dict[int, tuple[str, float]] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        for pid in spark.processes():
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # forget the peak
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            ended = self._done.wait(0.05)
            for pid, name in spark.processes().items():
                with contextlib.suppress(OSError):
                    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
                    if found:
                        self.peaks[pid] = (name, int(found[1]) / 1024)

    def of(self, kind: str) -> list[float]:
        return [size for name, size in self.peaks.values() if name.startswith(kind)]


def fill(path: str, size: int) -> int:
    """How many records that are."""
    count = 0
    with klamm.open(path) as store:
        store.topics.create("bench", spark.PARTITIONS, settings={"retention.ms": -1})
        part = [(None, os.urandom(SIZE)) for _ in range(5_000)]
        while count * SIZE < size:
            for number in range(spark.PARTITIONS):
                store.append_many("bench", part, partition=number, acks=1)
                count += len(part)
    return count


def scan(path: str, count: int, *, quick: bool) -> Peak:
    with spark.session(quick=quick) as session:
        with Watch() as watch, spark.clock(count) as sample:
            rows = session.read.format("klamm").option("subscribe", "bench").load(path)
            ((found,),) = rows.selectExpr("sum(length(value))").collect()
        assert found == count * SIZE, found
    return Peak(max(watch.of("python")), max(watch.of("java")), sum(watch.of("python")), sample)


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0], rounds=3, gib=(0, "of the largest log; default: 10 if the disk has room")
    )
    quick = options.quick
    largest = options.gib or (10 if harness.free_bytes() > 25 << 30 else 1)
    sizes = [10 * MIB, 205 * MIB] if quick else [largest * 1024 * MIB // 20, largest * 1024 * MIB]
    with harness.folder() as above:
        counts = {size: fill(f"{above}/{size}", size) for size in sizes}
        found = harness.interleave(
            {
                size: lambda size=size, count=count: scan(f"{above}/{size}", count, quick=quick)
                for size, count in counts.items()
            },
            1 if quick else options.rounds,
            warm=False,
        )
    small, large = sizes
    for kind in ("python", "jvm"):
        peaks = {size: [getattr(each, kind) for each in found[size]] for size in sizes}
        name = "a Python process" if kind == "python" else "the JVM"
        harness.answer(
            f"Spark batch read of {large // MIB} MiB, peak memory of {name}",
            peaks[large],
            f"of {small // MIB} MiB",
            peaks[small],
            harness.at_most(1.25) if kind == "python" else None,
            unit="MiB",
            gb_a_second=middle([large / each.sample.wall / 1e9 for each in found[large]]),
            cpu_s=middle([each.sample.cpu for each in found[large]]),
            all_python_mib=middle([each.all_python for each in found[large]]),
            count=counts[large],
        )


def middle(values: list[float]) -> float:
    return harness.digits(harness.median(values))


if __name__ == "__main__":
    main()
