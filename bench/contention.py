"""What do several processes that append to one partition reach together?

    acks=1     two writers beside one: they take turns at one lock, and it must not eat up the second core
    acks=all   eight writers beside one: who syncs does it for everybody who waits (group commit)

Each writer appends (8 B key, 100 B value) one at a time for a second; the figure is what all of them did.
"""

from __future__ import annotations

import time

import _harness as harness
import klamm
from _processes import together


def writer(start, path: str, acks: int | str, seconds: float) -> tuple[int, float, float]:
    """Records, seconds, and p99 of one append in microseconds."""
    key, value = bytes(8), bytes(100)
    clock = time.perf_counter_ns
    times = []
    with klamm.open(path) as store:
        append = store.append
        append("bench", value, key=key, acks=acks)
        start()
        before = begin = clock()
        end = begin + int(seconds * 1e9)
        while before < end:
            append("bench", value, key=key, acks=acks)
            now = clock()
            times.append(now - before)
            before = now
    return len(times), (before - begin) / 1e9, harness.percentile(times, 99) / 1000


def total(writers: int, acks: int | str, seconds: float) -> tuple[float, float]:
    """Records a second of all, and the worst writer's p99."""
    with harness.folder() as path:
        with klamm.open(path + "/store") as store:
            store.topics.create("bench", partitions=1)
        found = together([(writer, (path + "/store", acks, seconds))] * writers)
    return sum(count / took for count, took, _ in found), max(p99 for _, _, p99 in found)


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], seconds=(1.0, "of appending, a round"))
    seconds = 0.05 if options.quick else options.seconds
    for question, writers, acks, want in (
        ("two writers on one partition, acks=1", 2, 1, harness.at_least(0.8)),
        ("eight writers on one partition, acks=all", 8, "all", harness.at_least(3)),
    ):
        if options.only not in question:
            continue
        found = harness.interleave(
            {
                "many": lambda writers=writers, acks=acks: total(writers, acks, seconds),
                "one": lambda acks=acks: total(1, acks, seconds),
            },
            options.rounds,
            warm=False,
        )
        harness.answer(
            question,
            [rate for rate, _ in found["many"]],
            "one writer",
            [rate for rate, _ in found["one"]],
            want,
            unit="records/s",
            p99_us=harness.digits(harness.median([p99 for _, p99 in found["many"]])),
            peer_p99_us=harness.digits(harness.median([p99 for _, p99 in found["one"]])),
        )


if __name__ == "__main__":
    main()
