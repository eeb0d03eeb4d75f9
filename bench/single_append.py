"""How many records a second does a program append that commits each by itself?

store.append(acks=1), (8 B key, 100 B value): when it returns, the record is committed and survives any process; the
same is asked of the peers, so none of them syncs; SQLite does at a checkpoint, unless it is told synchronous=OFF, so it
is shown with both. LMDB with `writemap` is the stretch: it makes no system call at all, but then a stray store of the
program into its memory is a store into the database.
"""

from __future__ import annotations

import os

import _harness as harness
import _peers as peers
import klamm


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], rounds=7, count=(100_000, "records a round"))
    count = 1_000 if options.quick else options.count
    rows = peers.records(count)
    json_rows = peers.json_rows(rows)

    def ours() -> harness.Sample:
        with harness.folder() as path, klamm.open(path + "/store") as store:
            store.topics.create("bench", partitions=1)
            append = store.append
            append("bench", b"", acks=1)
            with harness.clock(count) as sample:
                for key, value in rows:
                    append("bench", value, key=key, acks=1)
            return sample

    def lmdb(writemap: bool) -> harness.Sample:
        with harness.folder() as path, peers.open_lmdb(path, writemap=writemap) as env:
            with harness.clock(count) as sample:
                peers.lmdb_singles(env, rows)
            return sample

    def sqlite(synchronous: str) -> harness.Sample:
        with harness.folder() as path:
            connection = peers.open_sqlite(path + "/db")
            connection.execute(f"pragma synchronous = {synchronous}")
            with harness.clock(count) as sample:
                peers.sqlite_singles(connection, rows)
            connection.close()
            return sample

    def json_lines() -> harness.Sample:
        with harness.folder() as path:
            fd = peers.json_open(path + "/log")
            with harness.clock(count) as sample:
                peers.json_singles(fd, json_rows)
            os.close(fd)
            return sample

    found = harness.interleave(
        {
            "klamm": ours,
            "lmdb": lambda: lmdb(False),
            "sqlite": lambda: sqlite("normal"),
            "sqlite, off": lambda: sqlite("off"),
            "writemap": lambda: lmdb(True),
            "json": json_lines,
        },
        options.rounds,
    )
    question = "single append: one record a commit"
    lmdb_name = f"LMDB {peers.LMDB_VERSION}, no sync, one record a transaction"
    microseconds = harness.digits(harness.median([1e6 * each.wall / each.count for each in found["klamm"]]))

    def compare(peer: str, side: str, want: harness.Want | None = None) -> None:
        harness.compare(question, found["klamm"], peer, found[side], want, us_a_call=microseconds)

    compare(lmdb_name + ", default map", "lmdb", harness.at_least(3.5))
    compare(lmdb_name + ", writemap", "writemap", harness.at_least(0.8))
    sqlite_name = f"SQLite {peers.SQLITE_VERSION}, WAL/{{}}, one record a transaction"
    compare(sqlite_name.format("NORMAL"), "sqlite", harness.at_least(4))
    compare(sqlite_name.format("OFF"), "sqlite, off")
    compare("JSON lines, O_APPEND, one write a record", "json")


if __name__ == "__main__":
    main()
