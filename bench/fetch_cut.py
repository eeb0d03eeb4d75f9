"""How long does it take to find and cut the range of a catch-up fetch?

A consumer that catches up gets so many bytes of whole batches with each fetch, from where the last response ended. What
is measured is the look-up alone (`Ranges.find_now`), as the event loop of the Kafka door makes it: the batches that fit
into 1 MiB, out of a segment of --batches of 4.4 kB each, with an entry of its index for each. Microseconds of CPU of
one; beside a walk over the headers of that mebibyte, one `pread` each, as it would be without an index.
"""

from __future__ import annotations

import time

import _harness as harness
import klamm
from klamm.batch import header as batch_header
from klamm.disk import _os
from klamm.disk.page_cache import WouldBlock
from klamm.log.partition import Partition
from klamm.log.ranges import Ranges, SegmentFiles

FETCH = 1 << 20
VALUES = [bytes(100)] * 40


def look_ups(log: Partition, ranges: Ranges, count: int) -> float:
    now = log.snapshot()
    done, spent = 0, 0
    while done < count:
        found = ranges.find(0, FETCH, now.next_offset, at_least_one=True)
        while found is not None and 0 <= found.next_offset < now.next_offset and done < count:
            offset = found.next_offset
            began = time.thread_time_ns()
            try:
                found = ranges.find_now(offset, FETCH, now.next_offset, at_least_one=True)
            except WouldBlock:  # the kernel is at that page just now
                found = ranges.find(offset, FETCH, now.next_offset, at_least_one=True)
                continue
            spent += time.thread_time_ns() - began
            done += 1
    return spent / done / 1000


def walks(log: Partition, ranges: Ranges, count: int) -> float:
    now = log.snapshot()
    found = ranges.find(0, FETCH, now.next_offset, at_least_one=True)
    assert found is not None
    began = time.thread_time_ns()
    for _ in range(count):
        position = 0
        while position + batch_header.HEADER_SIZE <= FETCH:
            header = batch_header.parse(_os.pread(found.file.fd, batch_header.HEADER_SIZE, position))
            position += header.size
    return (time.thread_time_ns() - began) / count / 1000


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0], count=(5000, "look-ups a round"), batches=(60_000, "of the segment")
    )
    batches, count = (2000, 50) if options.quick else (options.batches, options.count)
    with harness.folder() as path, klamm.open(path + "/store") as store:
        store.topics.create("bench", settings={"segment.bytes": 1 << 30})
        for _ in range(batches):
            store.append_many("bench", VALUES, acks=1)
        log = store._core.topic("bench").partition(0)
        ranges = Ranges(log, SegmentFiles(16))
        found = harness.interleave(
            {"index": lambda: look_ups(log, ranges, count), "walk": lambda: walks(log, ranges, max(1, count // 50))},
            options.rounds,
        )
    harness.answer(
        "find and cut the range of a catch-up fetch",
        found["index"],
        "a walk over its headers",
        found["walk"],
        harness.at_most(10, "figure"),
        unit="µs of CPU",
        count=count,
        batches=batches,
    )


if __name__ == "__main__":
    main()
