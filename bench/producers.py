"""Does an append cost the same however many producers there were?

A partition that knows 100,000 producers (--producers N), beside one that knows one: batches of one of the old ones, of
two of them taking turns, of a random one each, and of new ones. CPU of one append of a batch of one record, 100 B,
encoded before. `snapshot_ms` is how long appends wait while a snapshot of all producers is taken. With --before
d265882^, also beside the table that was searched from its start: that commit is built, and filled, which takes a while.
"""

from __future__ import annotations

import random
import time

import _before
import _harness as harness
import klamm
from klamm.batch import Builder
from klamm.log.partition import Partition

VALUE = bytes(100)
QUESTIONS = (
    ("same", "append with 100,000 known producers, always the same", harness.at_most(1.2)),
    ("two", "append with 100,000 known producers, two old ones taking turns", harness.at_most(1.2)),
    ("random", "append with 100,000 known producers, a random one", None),
    ("new", "append with 100,000 known producers, a new one", None),
)


class Log:
    """A partition, and the sequence that each of its producers has come to."""

    def __init__(self, store: klamm.Store, known: int) -> None:
        create = getattr(store, "create_topic", None) or store.topics.create  # its name before
        create("bench", partitions=1)
        self.partition: Partition = store._core.topic("bench").partition(0)
        self._next = [0] * known
        self.microseconds(list(range(known)))

    def microseconds(self, ids: list[int]) -> float:
        """CPU time of an append, with these producers one after the other."""
        batches = [self._batch(producer_id) for producer_id in ids]
        append = self.partition.append
        with harness.clock(1) as sample:
            for batch in batches:
                append(batch)
        return sample.cpu / len(ids) * 1e6

    def new_producers(self, count: int) -> float:
        known = len(self._next)
        self._next += [0] * count
        return self.microseconds(list(range(known, known + count)))

    def _batch(self, producer_id: int) -> bytearray:
        builder = Builder(4096)
        builder.add(None, VALUE)
        batch = bytearray(builder.seal(0, None, producer_id, 0, self._next[producer_id], 0))
        self._next[producer_id] += 1
        return batch

    def snapshot_ms(self) -> float:
        log = self.partition.log
        with log.append_lock():
            begin = time.perf_counter()
            getattr(log, "pack_producers", log.producers)()
            return (time.perf_counter() - begin) * 1e3


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0],
        producers=(100_000, "that are known"),
        count=(20_000, "appends a round"),
        before=("", "a commit to compare with"),
    )
    known, count = (2000, 500) if options.quick else (options.producers, options.count)
    draw = random.Random(1)
    with harness.folder() as path, klamm.open(path + "/one") as one, klamm.open(path + "/many") as many:
        few, old = Log(one, 1), Log(many, known)
        turns = [known // 3, known // 2]
        found = harness.interleave(
            {
                "one": lambda: few.microseconds([0] * count),
                "same": lambda: old.microseconds([known // 2] * count),
                "two": lambda: old.microseconds([turns[n % 2] for n in range(count)]),
                "random": lambda: old.microseconds([draw.randrange(known) for _ in range(count)]),
                "new": lambda: old.new_producers(max(count // 10, 1)),
            },
            options.rounds,
        )
        more = {"producers": known, "count": count, "snapshot_ms": harness.digits(old.snapshot_ms())}
    for side, question, want in QUESTIONS:
        harness.answer(question, found[side], "one known producer", found["one"], want, unit="µs", **more)
    if options.before:
        tree = _before.build(options.before)
        arguments = ("--producers", str(known), "--count", str(min(count, 2000)), "--rounds", "2")
        old = _before.lines_of(tree, "producers", *arguments)
        for side, question, _ in QUESTIONS:
            theirs = [old[question]["figure"]] * options.rounds
            harness.answer(question, found[side], tree.name, theirs, harness.at_most(1), unit="µs", **more)


if __name__ == "__main__":
    main()
