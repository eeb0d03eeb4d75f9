"""Does an append cost the same however much there is?

    partitions   a store of 10,000 partitions that have all been appended to, beside a store of one: appends to one
                 of them, to 100 of them in turn, and to a random one each. Files are opened when used and closed when
                 idle, so a random one often has to be opened again; `descriptors` tells how many were open at most
    records      a partition of 100,000,000 records beside one of 1,000 (--records N for less)

Nanoseconds of one store.append(acks=1), 100 B; beside the same in the smaller store, in turn.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import _harness as harness
import klamm

VALUE = bytes(100)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def nanoseconds(store: klamm.Store, numbers: list[int], watch: Callable[[], None] = lambda: None) -> float:
    append = store.append
    chunk = max(1, len(numbers) // 10)
    took = 0.0
    for start in range(0, len(numbers), chunk):
        with harness.clock(1) as sample:
            for number in numbers[start : start + chunk]:
                append("bench", VALUE, partition=number, acks=1)
        took += sample.wall
        watch()
    return took / len(numbers) * 1e9


def by_partitions(options, partitions: int, count: int) -> None:
    draw = random.Random(1)
    with harness.folder() as path, klamm.open(path + "/one") as one, klamm.open(path + "/many") as many:
        one.topics.create("bench", partitions=1)
        begin = time.perf_counter()
        many.topics.create("bench", partitions=partitions)
        created = time.perf_counter()
        for number in range(partitions):
            many.append("bench", VALUE, partition=number, acks=1)
        first_appends = time.perf_counter()
        most = 0

        def watch() -> None:
            nonlocal most
            most = max(most, descriptors())

        few = draw.sample(range(partitions), min(100, partitions))
        found = harness.interleave(
            {
                "one": lambda: nanoseconds(one, [0] * count),
                "same": lambda: nanoseconds(many, [partitions // 2] * count, watch),
                "hundred": lambda: nanoseconds(many, [few[n % len(few)] for n in range(count)], watch),
                "random": lambda: nanoseconds(many, [draw.randrange(partitions) for _ in range(count)], watch),
            },
            options.rounds,
        )
        more = {
            "partitions": partitions,
            "descriptors": most,
            "create_s": harness.digits(created - begin),
            "us_a_first_append": harness.digits((first_appends - created) / partitions * 1e6),
        }
    for side, question in (
        ("same", "append in a store of 10,000 partitions, always to the same"),
        ("hundred", "append in a store of 10,000 partitions, to 100 of them in turn"),
        ("random", "append in a store of 10,000 partitions, to a random one"),
    ):
        want = harness.at_most(1.25)
        harness.answer(
            question, found[side], "a store of one partition", found["one"], want, unit="ns", count=count, **more
        )


def fill(store: klamm.Store, records: int) -> None:
    part = [(None, b"")] * min(records, 100_000)
    for _ in range(records // len(part)):
        store.append_many("bench", part, partition=0, acks=1)
    assert store.topics.describe("bench").partitions[0].end >= records


def by_records(options, records: int, count: int) -> None:
    with harness.folder() as path, klamm.open(path + "/few") as few, klamm.open(path + "/many") as many:
        for store, size in ((few, 1000), (many, records)):
            store.topics.create("bench", partitions=1)
            fill(store, size)
        numbers = [0] * count

        def fresh() -> float:
            """The small one stays small: what is measured in it is thrown away."""
            nonlocal few
            few.topics.delete("bench")
            few.topics.create("bench", partitions=1)
            fill(few, 1000)
            few.append("bench", VALUE, acks=1)
            return nanoseconds(few, numbers)

        found = harness.interleave({"many": lambda: nanoseconds(many, numbers), "few": fresh}, options.rounds)
    question = f"append to a partition of {records:,} records"
    harness.answer(
        question, found["many"], "of 1,000 records", found["few"], harness.at_most(1.25), unit="ns", count=count
    )


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0],
        partitions=(10_000, "of the large store"),
        records=(100_000_000, "of the large partition"),
        count=(20_000, "appends a round"),
    )
    count = 500 if options.quick else options.count
    if options.only in "partitions":
        by_partitions(options, 200 if options.quick else options.partitions, count)
    if options.only in "records":
        by_records(options, 200_000 if options.quick else options.records, count)


if __name__ == "__main__":
    main()
