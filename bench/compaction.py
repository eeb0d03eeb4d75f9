"""How fast is a log compacted, and in how much memory?

store.compact(force=True), in a process of its own, on logs of (8 B key, 100 B value) in segments of 64 MiB:

    speed     each key four times, so that three of four records go; megabytes of log a second, all of it on disk at
              the end. The peer copies the same files and syncs them: what reading and writing it all once costs
    memory    each key once, then a tenth of them again: what the process takes beyond what it had, at its peak. The
              table of keys takes 128 MiB at most, which is room for 4.2 million; beyond that there are more passes

`passes` and `seconds` are those of the compaction; what 100 million keys would take is told from them: passes grow with
the keys, and so does each pass, since it reads the log from its start.
"""

from __future__ import annotations

import os
import resource
import shutil
import time

import _harness as harness
import klamm
from _processes import together

MIB = 1 << 20
VALUE = bytes(100)
SETTINGS = {"cleanup.policy": "compact", "segment.bytes": 64 * MIB}
PART = 100_000


def fill(path: str, keys: int, again: int, rounds: int) -> int:
    """Every key once, then the first `again` of them `rounds` times more: bytes of log."""
    with klamm.open(path) as store:
        store.topics.create("bench", partitions=1, settings=SETTINGS)
        for count in [keys] + [again] * rounds:
            for start in range(0, count, PART):
                part = range(start, min(start + PART, count))
                store.append_many("bench", [(number.to_bytes(8, "little"), VALUE) for number in part], acks=1)
        return store.topics.describe("bench").size


def compact(start, path: str) -> tuple[float, float, int, int, int]:
    """Seconds, CPU seconds, passes, records left, and bytes of memory beyond those before."""
    with klamm.open(path) as store:
        store.append_many("bench", [(b"warm", b"")] * 10)
        start()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin, cpu = time.perf_counter(), time.process_time()
        report = store["bench"].compact(force=True)
        took, cpu = time.perf_counter() - begin, time.process_time() - cpu
        grown = max((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, 4096)
        return took, cpu, report.passes, report.records_left, grown


def copy(path: str, to: str) -> float:
    begin = time.perf_counter()
    for folder, _, names in os.walk(path + "/topics"):
        for name in names:
            if name.endswith(".log"):
                target = shutil.copyfile(f"{folder}/{name}", f"{to}/{name}")
                fd = os.open(target, os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)
    return time.perf_counter() - begin


def one(job, *arguments):
    return together([(job, arguments)])[0]


def speed(keys: int, rounds: int) -> None:
    sizes: list[int] = []
    cpus: list[float] = []

    def ours() -> float:
        with harness.folder() as path:
            size = fill(path + "/store", keys, keys, 3)
            took, cpu, passes, left, _ = one(compact, path + "/store")
            assert (passes, left) == (1, keys + 1)
            sizes.append(size)
            cpus.append(size / cpu / 1e6)
            return size / took / 1e6

    def theirs() -> float:
        with harness.folder() as path:
            size = fill(path + "/store", keys, keys, 3)
            os.mkdir(path + "/copy")
            return size / copy(path + "/store", path + "/copy") / 1e6

    found = harness.interleave({"klamm": ours, "copy": theirs}, rounds, warm=False)
    harness.answer(
        f"compact {keys:,} keys, four records each",
        found["klamm"],
        "copy the files, and sync them",
        found["copy"],
        unit="MB/s",
        mebibytes=sizes[0] // MIB,
        megabytes_a_cpu_second=harness.digits(harness.median(cpus)),
    )


def memory(keys: int, rounds: int) -> None:
    def run(count: int) -> tuple[float, int, int]:
        with harness.folder() as path:
            fill(path + "/store", count, count // 10, 1)
            took, _, passes, left, grown = one(compact, path + "/store")
            assert left == count + 1
            return took, passes, grown

    found = harness.interleave({keys: lambda: run(keys), keys // 10: lambda: run(keys // 10)}, rounds, warm=False)
    seconds = harness.median([took for took, _, _ in found[keys]])
    passes = found[keys][0][1]
    times = (
        100_000_000 / keys
    )  # as many keys: that many times the passes, each over a log that is as many times as long
    harness.answer(
        f"peak memory of a compaction of {keys:,} keys",
        [grown / MIB for _, _, grown in found[keys]],
        f"of {keys // 10:,} keys",
        [grown / MIB for _, _, grown in found[keys // 10]],
        harness.at_most(192, "figure"),
        unit="MiB",
        passes=passes,
        seconds=harness.digits(seconds),
        passes_at_100_million=round(passes * times),
        seconds_at_100_million=harness.digits(seconds * times * times),
    )


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], rounds=3, keys=(10_000_000, "for the memory"))
    if options.only in "speed":
        speed(2_000 if options.quick else 1_000_000, options.rounds)
    if options.only in "memory":
        memory(5_000 if options.quick else options.keys, 1)


if __name__ == "__main__":
    main()
