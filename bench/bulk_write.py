"""How many records a second does a program write that has them in a list, or in an Arrow table?

(8 B key, 100 B value), one partition, acks=1: committed, not synced; and so the peers do not sync either. Every round
writes a new store. LMDB is shown in three ways: called once a record (`put`), as bulk loaders in Python mostly do,
called once a transaction (`putmulti`), and so with `writemap`; one of the latter two is its quickest way.
"""

from __future__ import annotations

import duckdb
import pyarrow as pa

import _harness as harness
import _peers as peers
import klamm

CALL = 1000


def table_of(rows: peers.Records) -> pa.Table:
    keys, values = zip(*rows, strict=True)
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], rounds=7, count=(500_000, "records a round"))
    count = 5_000 if options.quick else options.count
    rows = peers.records(count)
    table = table_of(rows)
    calls = [rows[start : start + CALL] for start in range(0, count, CALL)]

    def ours(append) -> harness.Sample:
        with harness.folder() as path, klamm.open(path + "/store") as store:
            store.topics.create("bench", partitions=1)
            store.append_many("bench", rows[:1], acks=1)  # the files are there
            with harness.clock(count) as sample:
                append(store)
            return sample

    def in_calls(store: klamm.Store) -> None:
        for part in calls:
            store.append_many("bench", part, acks=1)

    def lmdb(write, writemap: bool = False) -> harness.Sample:
        with harness.folder() as path, peers.open_lmdb(path, writemap=writemap) as env:
            with harness.clock(count) as sample:
                write(env, rows)
            return sample

    def sqlite() -> harness.Sample:
        with harness.folder() as path:
            connection = peers.open_sqlite(path + "/db")
            with harness.clock(count) as sample:
                peers.sqlite_bulk(connection, rows)
            connection.close()
            return sample

    def duck() -> harness.Sample:
        with harness.folder() as path, duckdb.connect(path + "/db") as connection:
            connection.execute("create table log (key blob, value blob)")
            connection.register("rows", table)
            with harness.clock(count) as sample:
                connection.execute("insert into log select * from rows")
            return sample

    duckdb_table = "DuckDB " + duckdb.__version__ + ", insert from Arrow, one transaction"
    found = harness.interleave(
        {
            "list": lambda: ours(lambda store: store.append_many("bench", rows, acks=1)),
            "put": lambda: lmdb(peers.lmdb_put),
            "arrow": lambda: ours(lambda store: store.append_table("bench", table, acks=1)),
            "putmulti": lambda: lmdb(peers.lmdb_putmulti),
            "calls": lambda: ours(in_calls),
            "sqlite": sqlite,
            "writemap": lambda: lmdb(peers.lmdb_putmulti, True),
            "duckdb": duck,
        },
        options.rounds,
    )
    lmdb_name = f"LMDB {peers.LMDB_VERSION}, no sync, 1000 a transaction"
    compare = harness.compare
    compare("bulk write: append_many of a list", found["list"], lmdb_name + ", put", found["put"], harness.at_least(5))
    compare("bulk write: append_many of a list", found["list"], lmdb_name + ", putmulti", found["putmulti"])
    compare("bulk write: append_many of a list", found["list"], lmdb_name + ", putmulti, writemap", found["writemap"])
    compare("bulk write: append_many, 1000 a call", found["calls"], lmdb_name + ", put", found["put"])
    compare("bulk write: append_many, 1000 a call", found["calls"], lmdb_name + ", putmulti", found["putmulti"])
    sqlite_name = f"SQLite {peers.SQLITE_VERSION}, WAL/NORMAL, 1000 a transaction"
    compare("bulk write: append_many of a list", found["list"], sqlite_name, found["sqlite"])
    compare("bulk write: append_table", found["arrow"], "append_many of a list", found["list"], harness.at_least(1))
    compare("bulk write: append_table", found["arrow"], duckdb_table, found["duckdb"])


if __name__ == "__main__":
    main()
