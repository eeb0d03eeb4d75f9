"""What does a large log cost: to open, and to scan?

A partition of 10 MiB, 1 GiB and 10 GiB (the last if 25 GiB of disk are free, or by --gib). A process of its own
opens the store, asks for its end and appends a record; milliseconds from the open to the answer, without the
import, after

    a clean close
    a kill             the process before was killed by SIGKILL while it appended
    a power cut        pretended: 60 MiB after the last recovery point the process is killed, then the boot id in
                       `heads` is wiped, so that the partition is recovered from its files. The page cache is warm, as
                       it would not be

Then another one scans the log as an Arrow stream: its peak memory, beyond what it had after the imports and the open,
must not grow with the log.
"""

from __future__ import annotations

import os
import resource
import signal
import time

import _harness as harness
import klamm
from _processes import together

VALUE = bytes(1000)
MIB = 1 << 20


def fill(path: str, size: int) -> None:
    with klamm.open(path) as store:
        store.topics.create("bench", partitions=1, settings={"retention.ms": -1})
        part = [(None, os.urandom(len(VALUE)))] * 10_000
        while store.topics.describe("bench").partitions[0].size < size:
            store.append_many("bench", part, acks=1)


def open_and_append(start, path: str) -> tuple[float, float]:
    """Milliseconds until the end is known, and until a record is appended."""
    start()
    begin = time.perf_counter()
    with klamm.open(path) as store:
        assert store.topics.describe("bench").partitions[0].end
        opened = time.perf_counter()
        store.append("bench", VALUE, acks=1)
        appended = time.perf_counter()
    return (opened - begin) * 1e3, (appended - begin) * 1e3


def append_and_die(start, path: str, size: int) -> None:
    store = klamm.open(path)
    start()
    store.append_many("bench", [(None, VALUE)] * (size // len(VALUE)), acks=1)
    for _ in range(1000):
        store.append("bench", VALUE, acks=1)
    os.kill(os.getpid(), signal.SIGKILL)


def kill(path: str, size: int = 0) -> None:
    try:
        one(append_and_die, path, size)
    except RuntimeError:
        return
    raise AssertionError("it should have been killed")


def cut_power(path: str) -> None:
    """A reboot leaves another boot id than this boot's in `heads`. (Bytes 16 to 32 of slot 0.)"""
    kill(path, 60 * MIB)
    with open(path + "/heads", "r+b") as file:
        file.seek(16)
        file.write(bytes(16))


def scan(start, path: str) -> tuple[int, int, float]:
    """Peak memory of a scan beyond that of the process before it, rows, seconds."""
    import pyarrow as pa

    with klamm.open(path) as store:
        for _ in pa.RecordBatchReader.from_stream(store.scan("bench", end=100)):
            pass
        start()
        rows, before, begin = 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        for batch in pa.RecordBatchReader.from_stream(store.scan("bench")):
            rows += batch.num_rows
        took = time.perf_counter() - begin
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, rows, took


def one(job, *arguments):
    return together([(job, arguments)])[0]


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0], gib=(0, "of the largest log; default: 10 if the disk has room")
    )
    largest = options.gib or (10 if harness.free_bytes() > 25 << 30 else 1)
    sizes = [10 * MIB, 1024 * MIB, largest * 1024 * MIB]
    if options.quick:
        sizes = [1 * MIB, 10 * MIB]
    with harness.folder() as above:
        paths = {size: f"{above}/{size}" for size in dict.fromkeys(sizes)}
        for size, path in paths.items():
            fill(path, size)
        cases = {"a clean close": lambda path: None, "a kill": kill, "a power cut": cut_power}
        for case, prepare in cases.items():
            if options.only not in case:
                continue

            def opened(path: str, prepare=prepare) -> tuple[float, float]:
                prepare(path)
                return one(open_and_append, path)

            found = harness.interleave(
                {size: lambda path=path, opened=opened: opened(path) for size, path in paths.items()},
                options.rounds,
                warm=False,
            )
            smallest = [known for known, _ in found[sizes[0]]]
            for size in paths:
                want = harness.at_most(50, "figure") if case == "a clean close" and size == sizes[-1] else None
                harness.answer(
                    f"open a log of {size // MIB} MiB after {case}",
                    [known for known, _ in found[size]],
                    f"of {sizes[0] // MIB} MiB",
                    smallest,
                    want,
                    unit="ms",
                    with_append_ms=harness.digits(harness.median([appended for _, appended in found[size]])),
                )
        if options.only in "scan":
            scans = harness.interleave(
                {size: lambda path=path: one(scan, path) for size, path in paths.items()},
                1 if options.quick else 3,
                warm=False,
            )
            for size in paths:
                harness.answer(
                    f"peak memory of a scan over {size // MIB} MiB",
                    [memory / MIB for memory, _, _ in scans[size]],
                    f"over {sizes[-2] // MIB} MiB",
                    [memory / MIB for memory, _, _ in scans[sizes[-2]]],
                    harness.at_most(1.25) if size == sizes[-1] else None,
                    unit="MiB",
                    gb_a_second=harness.digits(harness.median([size / took / 1e9 for _, _, took in scans[size]])),
                )


if __name__ == "__main__":
    main()
