"""How many records a second does a program read, from the first to the last?

(8 B key, 100 B value), one partition, in the page cache; every record is handed to a Python loop that does nothing.
In batches of 5,000 and of 500, as a poll has, and one by one, as `for record in consumer` gives them.
Klamm checks the CRC of every batch it reads, LMDB has none.
"""

from __future__ import annotations

import _harness as harness
import _peers as peers
import klamm


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], rounds=7, count=(500_000, "records"))
    count = 5_000 if options.quick else options.count
    rows = peers.records(count)
    with harness.folder() as path, klamm.open(path + "/store") as store, peers.open_lmdb(path + "/lmdb") as env:
        store.topics.create("bench", partitions=1)
        store.append_many("bench", rows, acks=1)
        peers.lmdb_putmulti(env, rows)
        sqlite = peers.open_sqlite(path + "/db")
        peers.sqlite_bulk(sqlite, rows)
        fd = peers.json_open(path + "/json")
        peers.json_singles(fd, peers.json_rows(rows))

        def ours(form: str, max_records: int = 5000) -> harness.Sample:
            seen = 0
            consumer = store.consumer("bench", start="earliest", wait=0, form=form)
            with harness.clock(count) as sample, consumer:
                for batch in consumer.batches(max_records):
                    for _ in batch:
                        pass
                    seen += len(batch)
            assert seen == count, (seen, count)
            return sample

        def one_by_one() -> harness.Sample:
            consumer = store.consumer("bench", start="earliest", wait=0)
            with harness.clock(count) as sample, consumer:
                for record in consumer:  # noqa: B007  # looked at below
                    pass
            assert record.offset == count - 1, (record, count)
            return sample

        def cursor(keys: bool) -> harness.Sample:
            with harness.clock(count) as sample, env.begin() as txn:
                for _ in txn.cursor().iternext(keys=keys, values=True):
                    pass
            return sample

        def select() -> harness.Sample:
            with harness.clock(count) as sample:
                for _ in sqlite.execute("select key, value from log order by id"):
                    pass
            return sample

        def json_lines() -> harness.Sample:
            with harness.clock(count) as sample:
                for _ in peers.json_read(path + "/json"):
                    pass
            return sample

        found = harness.interleave(
            {
                "tuples": lambda: ours("tuples"),
                "cursor": lambda: cursor(True),
                "values": lambda: ours("values"),
                "cursor, values": lambda: cursor(False),
                "records": lambda: ours("records"),
                "records, 500": lambda: ours("records", 500),
                "one by one": one_by_one,
                "sqlite": select,
                "json": json_lines,
            },
            options.rounds,
        )
        sqlite.close()
    name = f"LMDB {peers.LMDB_VERSION}, cursor"
    compare = harness.compare
    compare("read as tuples", found["tuples"], name, found["cursor"], harness.at_least(1))
    compare("read as record objects", found["records"], name, found["cursor"], harness.at_least(0.6))
    compare("read as record objects, 500 a batch", found["records, 500"], name, found["cursor"])
    compare("read as record objects, one by one", found["one by one"], name, found["cursor"])
    compare("read as values", found["values"], name, found["cursor"], harness.at_least(2))
    compare("read as values", found["values"], name + ", values only", found["cursor, values"])
    compare("read as tuples", found["tuples"], f"SQLite {peers.SQLITE_VERSION}, select", found["sqlite"])
    compare("read as tuples", found["tuples"], "JSON lines, json.loads", found["json"])


if __name__ == "__main__":
    main()
