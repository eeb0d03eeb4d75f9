"""How many transactions a second, and what does exactly-once cost beside at-least-once?

small      one record in one partition and nothing else, on disk when it is done; beside it SQLite with one row a
           transaction, on disk as well (WAL, synchronous=FULL)
pipeline   read 500 records, write 500, move the group's offset: in one transaction, beside `append_many` and
           `commit` one after the other
"""

from __future__ import annotations

import sqlite3

import _harness as harness
import klamm

BATCH = 500


def small(count: int) -> harness.Sample:
    with harness.folder() as path, klamm.open(path + "/store") as store:
        store.topics.create("bench")
        with store.transaction() as tx:
            tx.send("bench", b"x")
        with harness.clock(count) as sample:
            for _ in range(count):
                with store.transaction() as tx:
                    tx.send("bench", bytes(100), key=bytes(8))
        return sample


def rows(count: int) -> harness.Sample:
    with harness.folder() as path:
        connection = sqlite3.connect(path + "/rows.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE records (key BLOB, value BLOB)")
        with harness.clock(count) as sample:
            for _ in range(count):
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("INSERT INTO records VALUES (?, ?)", (bytes(8), bytes(100)))
                connection.execute("COMMIT")
        connection.close()
        return sample


def pipeline(batches: int, *, exactly_once: bool) -> harness.Sample:
    with harness.folder() as path, klamm.open(path + "/store") as store:
        for topic in ("in", "out"):
            store.topics.create(topic)
        store.append_many("in", [(bytes(8), bytes(100))] * (batches * BATCH))
        done = 0
        with (
            store.consumer("in", group="bench", wait=0) as consumer,
            harness.clock(batches * BATCH) as sample,
        ):
            for batch in consumer.batches(max_records=BATCH):
                if exactly_once:
                    with consumer.transaction() as tx:
                        for record in batch:
                            tx.send("out", record.value, key=record.key)
                        tx.commit_offsets(batch)
                else:
                    store.append_many("out", [(record.key, record.value) for record in batch])
                    consumer.commit(batch)
                done += len(batch)
        assert done == batches * BATCH
        return sample


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0])
    count, batches = (20, 4) if options.quick else (500, 200)
    if options.only in "small":
        found = harness.interleave({"klamm": lambda: small(count), "sqlite": lambda: rows(count)}, options.rounds)
        harness.answer(
            "transactions of one record",
            [each.rate for each in found["klamm"]],
            "SQLite, a row a transaction, synchronous=FULL",
            [each.rate for each in found["sqlite"]],
            unit="transactions/s",
        )
    if options.only in "pipeline":
        found = harness.interleave(
            {
                "exactly": lambda: pipeline(batches, exactly_once=True),
                "least": lambda: pipeline(batches, exactly_once=False),
            },
            options.rounds,
        )
        harness.compare(
            f"read, write, move the offset: {BATCH} records a transaction",
            found["exactly"],
            "at least once: append_many(acks=all), then commit",
            found["least"],
        )


if __name__ == "__main__":
    main()
