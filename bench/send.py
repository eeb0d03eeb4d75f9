"""How many records a second does a program send that has them one at a time?

producer.send() once a record, (8 B key, 100 B value), one partition, acks=1, until the last one is committed;
beside LMDB in its bulk mode, no sync: 1000 puts a transaction, and its quickest ways, which want the records in a list:
one `putmulti` a transaction, and that with `writemap`. With --before, the same sends also in processes of their own
that take turns, on the sources of this commit and on those of that one, which is built in build/before.
"""

from __future__ import annotations

from contextlib import closing

import _before
import _harness as harness
import _peers as peers
import klamm


def in_a_process(tree: _before.Tree, count: int) -> harness.Sample:
    with harness.folder() as path:
        _before.Worker(tree, "make", path + "/store").close()
        with closing(_before.Worker(tree, "send", path + "/store", count)) as worker:
            worker.ask()
            return harness.Sample(count, *worker.answer())


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0],
        rounds=7,
        count=(500_000, "records a round"),
        before=("", "a commit to compare with"),
    )
    count = 5_000 if options.quick else options.count
    rows = peers.records(count)

    def ours(partitions: int = 1) -> harness.Sample:
        with harness.folder() as path, klamm.open(path + "/store") as store:
            store.topics.create("bench", partitions=partitions)
            store.append_many("bench", rows[:1], acks=1)
            with harness.clock(count) as sample, store.producer(acks=1) as producer:
                send = producer.send
                for key, value in rows:
                    send("bench", value, key=key)
            return sample

    def lmdb(write, writemap: bool = False) -> harness.Sample:
        with harness.folder() as path, peers.open_lmdb(path, writemap=writemap) as env:
            with harness.clock(count) as sample:
                write(env, rows)
            return sample

    found = harness.interleave(
        {
            "send": ours,
            "put": lambda: lmdb(peers.lmdb_put),
            "send, 12 partitions": lambda: ours(12),
            "putmulti": lambda: lmdb(peers.lmdb_putmulti),
            "writemap": lambda: lmdb(peers.lmdb_putmulti, True),
        },
        options.rounds,
    )
    name = f"LMDB {peers.LMDB_VERSION}, no sync, 1000 a transaction"

    def nanoseconds(side: str) -> float:
        return harness.digits(harness.median([1e9 * each.wall / each.count for each in found[side]]))

    harness.compare(
        "producer.send",
        found["send"],
        name + ", put",
        found["put"],
        harness.at_least(1.2),
        ns_a_call=nanoseconds("send"),
    )
    twelve = "send, 12 partitions"
    harness.compare("producer." + twelve, found[twelve], name + ", put", found["put"], ns_a_call=nanoseconds(twelve))
    harness.compare("producer.send", found["send"], name + ", putmulti: one call for 1000", found["putmulti"])
    harness.compare("producer.send", found["send"], name + ", putmulti, writemap", found["writemap"])
    if options.before:
        before = _before.build(options.before)
        sides = {"now": lambda: in_a_process(_before.HERE, count), "before": lambda: in_a_process(before, count)}
        found = harness.interleave(sides, options.rounds)
        harness.compare("producer.send, in a process", found["now"], before.name, found["before"])


if __name__ == "__main__":
    main()
