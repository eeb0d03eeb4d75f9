"""By how much does the memory of a process grow while a consumer reads zstd?

100,000 records of 1,000 B, which compress to little, read from the first to the last in a process of its own. The peer
is not a program but the bound that `max_bytes` promises: twice max_bytes, or twice the largest batch when it is
uncompressed, whichever is more.

    small batches         batches of 64 KiB, max_bytes as it is by default: the bound is 2 MiB
    small records         the same with records of 10 B, whose objects take more than their bytes: 2 MiB
    max_bytes of 8 MiB    batches of 64 KiB, max_bytes of 8 MiB: 16 MiB
    large batches         batches of 8 MiB, max_bytes as it is by default: 16 MiB

Figure: the growth from before the first record to the peak, in MiB, by the one of two measures that shows more.
`resident_mib` is by the kernel's count: with native memory, but without what goes into memory that was free already.
`traced_mib` is what Python's allocators have given out, in a process of its own, since it slows down the reading.
Before, each process reads another small topic in the same way, so that modules and codecs are there.
"""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import _harness as harness
import klamm
from _processes import together

MIB = 1 << 20
WARM = 50  # records


Read = Callable[[klamm.Consumer], int]
Measure = Callable[[], AbstractContextManager[list[int]]]


class Grown(NamedTuple):
    """MiB."""

    resident: float
    traced: float


class Case(NamedTuple):
    batch_bytes: int
    max_bytes: int
    value_bytes: int = 1000

    @property
    def bound(self) -> int:
        return 2 * max(self.batch_bytes, self.max_bytes)


CASES = {
    "small batches": Case(64 << 10, MIB),
    "small records": Case(64 << 10, MIB, 10),
    "max_bytes of 8 MiB": Case(64 << 10, 8 * MIB),
    "large batches": Case(8 * MIB, MIB),
}


def fill(store: klamm.Store, topic: str, count: int, case: Case) -> None:
    store.topics.create(topic, partitions=1, max_message_bytes=2 * case.batch_bytes)
    options = {"batch_bytes": case.batch_bytes, "buffer_memory": 4 * case.batch_bytes, "linger_ms": 60_000}
    with store.producer(compression="zstd", acks=1, **options) as producer:
        for number in range(count):
            producer.send(topic, (b"%08d" % number).ljust(case.value_bytes, b"x"))


def resident(name: str) -> int:
    """Bytes: VmRSS now, VmHWM at the peak."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) << 10


def records(consumer: klamm.Consumer) -> int:
    return sum(1 for _ in consumer)


def batches(consumer: klamm.Consumer) -> int:
    return sum(map(len, consumer.batches(5_000)))


@contextmanager
def resident_growth() -> Iterator[list[int]]:
    grown: list[int] = []
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before = resident("VmRSS")
    yield grown
    grown.append(resident("VmHWM") - before)


@contextmanager
def traced_growth() -> Iterator[list[int]]:
    grown: list[int] = []
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    yield grown
    grown.append(tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()


def growth(start: Callable[[], object], path: str, read: Read, measured: Measure, count: int, max_bytes: int) -> float:
    """MiB."""
    with klamm.open(path) as store:
        with store.consumer("warm", wait=0) as consumer:
            read(consumer)
        start()
        with store.consumer("bench", wait=0, max_bytes=max_bytes) as consumer, measured() as grown:
            assert read(consumer) == count
    return grown[0] / MIB


def measure(name: str, case: Case, count: int, rounds: int) -> None:
    with harness.folder() as path:
        with klamm.open(path + "/store") as store:
            fill(store, "warm", WARM, CASES["small batches"])
            fill(store, "bench", count, case)
            compressed = store.topics.describe("bench").size

        def run(read: Read) -> Grown:
            measures = (resident_growth, traced_growth)
            jobs = [(growth, (path + "/store", read, each, count, case.max_bytes)) for each in measures]
            return Grown(*(together([job])[0] for job in jobs))

        sides = {read: lambda read=read: run(read) for read in (records, batches)}
        found = harness.interleave(sides, rounds, warm=False)
    for read, what in ((records, "record by record"), (batches, "in batches of 5,000")):
        resident_mib, traced_mib = (harness.digits(max(each)) for each in zip(*found[read], strict=True))
        harness.answer(
            f"memory of a consumer of zstd, {name}, {what}",
            [max(grown) for grown in found[read]],
            "the bound: 2 × max(max_bytes, largest batch uncompressed)",
            [case.bound / MIB] * rounds,
            harness.at_most(1),
            unit="MiB",
            resident_mib=resident_mib,
            traced_mib=traced_mib,
            max_bytes=case.max_bytes,
            batch_bytes=case.batch_bytes,
            topic_mib=harness.digits(compressed / MIB),
            count=count,
        )


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], rounds=3, count=(100_000, "records"))
    for name, case in CASES.items():
        if options.only in name:
            measure(name, case, 2_000 if options.quick else options.count, options.rounds)


if __name__ == "__main__":
    main()
