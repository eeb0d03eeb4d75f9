"""Is a seek in a copied store as fast as in the original?

A log of 64 MiB segments (--records N of 100 B), copied by `cp -r`, by rsync and by tar, and a copy whose indexes were
removed, after they were made again in the background. Milliseconds of one seek to a random offset and the read of its
batch; beside the same in the original, in turn. `rebuilt_s` is how long the indexes took, from the first seek that
missed one.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import _harness as harness
import klamm
from klamm.log.index import Index
from klamm.log.partition import Partition

VALUE = bytes(100)


def milliseconds(log: Partition, offsets: list[int]) -> float:
    with harness.clock(1) as sample:
        for offset in offsets:
            with log.reader(offset) as reader:
                reader.read(1)
    return sample.wall / len(offsets) * 1e3


def are_valid(log: Partition) -> bool:
    for base in log.segments()[:-1]:
        with Index(log.directory, base) as index:
            if not index.is_valid:
                return False
    return True


def rebuilt_s(log: Partition) -> float:
    begin = time.perf_counter()
    milliseconds(log, [log.segments()[0] + 1])
    while not are_valid(log):
        time.sleep(0.001)
    return time.perf_counter() - begin


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0], records=(2_000_000, "of the log"), count=(500, "seeks a round")
    )
    records, count = (20_000, 50) if options.quick else (options.records, options.count)
    draw = random.Random(1)
    with harness.folder() as path, ExitStack() as stack:
        with klamm.open(path + "/original") as store:
            segment = 1 << 20 if options.quick else 64 << 20
            store.topics.create("bench", settings={"segment.bytes": segment})
            for _ in range(records // 100):
                store.append_many("bench", [VALUE] * 100, acks=1)
        subprocess.run(["cp", "-r", path + "/original", path + "/cp"], check=True)
        subprocess.run(["rsync", "-a", path + "/original/", path + "/rsync"], check=True)
        os.mkdir(path + "/tar")
        with subprocess.Popen(["tar", "-C", path + "/original", "-c", "."], stdout=subprocess.PIPE) as packing:
            subprocess.run(["tar", "-C", path + "/tar", "-x"], stdin=packing.stdout, check=True)
        subprocess.run(["cp", "-r", path + "/original", path + "/without"], check=True)
        for index in Path(path, "without").rglob("*.index"):
            index.unlink()
        logs = {}
        for name in ("original", "cp", "rsync", "tar", "without"):
            store = stack.enter_context(klamm.open(f"{path}/{name}"))
            logs[name] = store._core.topic("bench").partition(0)
        more = {"records": records, "count": count, "rebuilt_s": harness.digits(rebuilt_s(logs["without"]))}

        def seek(name: str) -> float:
            return milliseconds(logs[name], [draw.randrange(records) for _ in range(count)])

        found = harness.interleave({name: lambda name=name: seek(name) for name in logs}, options.rounds)
    for side, question in (
        ("cp", "seek in a store copied by cp -r"),
        ("rsync", "seek in a store copied by rsync"),
        ("tar", "seek in a store copied by tar"),
        ("without", "seek in a store whose indexes were removed and made again"),
    ):
        harness.answer(
            question, found[side], "the original", found["original"], harness.at_most(1.2), unit="ms", **more
        )


if __name__ == "__main__":
    main()
