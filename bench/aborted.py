"""Does reading take time in proportion to the aborted transactions?

A topic with 100,000 transactions of one record, all aborted, and one committed record at the end, is read from its
start by a consumer of committed records; beside it a topic with a tenth of them. If each transaction costs the same in
both, the rates are alike.
"""

from __future__ import annotations

import _harness as harness
import klamm
from klamm.batch import Builder

TRANSACTIONAL = 0x10
EPOCHS = 30_000  # of one producer id


def fill(store: klamm.Store, topic: str, count: int) -> None:
    store.topics.create(topic)
    partition = store._acquired().topic(topic).partition(0)
    builder = Builder(4096)
    for number in range(count):
        producer, epoch = divmod(number, EPOCHS)
        builder.add(bytes(8), bytes(100))
        partition.append(bytearray(builder.seal(0, None, producer, epoch, 0, TRANSACTIONAL)))
        partition.append_marker(producer, epoch + 1, commit=False)
    store.append(topic, b"the last one")


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], count=(100_000, "aborted transactions"))
    count = 1_000 if options.quick else options.count
    with harness.folder() as path, klamm.open(path + "/store") as store:

        def read(topic: str, aborted: int) -> harness.Sample:
            with harness.clock(aborted) as sample, store.consumer(topic, start="earliest", wait=0) as consumer:
                assert len(list(consumer)) == 1
            return sample

        sides = {"all": count, "tenth": count // 10}
        for topic, aborted in sides.items():
            fill(store, topic, aborted)
        found = harness.interleave(
            {topic: lambda topic=topic, aborted=aborted: read(topic, aborted) for topic, aborted in sides.items()},
            options.rounds,
        )
    harness.compare(
        f"{count:,} aborted transactions read",
        found["all"],
        f"{count // 10:,} of them",
        found["tenth"],
        harness.at_least(0.8),
    )


if __name__ == "__main__":
    main()
