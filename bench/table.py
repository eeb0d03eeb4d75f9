"""What does a table cost beside the bare RocksDB that it is kept in, and how long does it take to open?

get: (8 B key, 100 B value), keys in random order; the table asks before each read whether a head has moved. The peer is
`get` of the very rocksdict that the table is kept in: other files would be other blocks and caches. own write: an
append and the read that sees it; the peer is the append alone. open: until the first read has everything, for a log in
which each key was written ten times; the peer has no table yet and reads the log from its first record on.
"""

from __future__ import annotations

import random
import shutil

from rocksdict import Rdict

import _harness as harness
import klamm


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], rounds=7, count=(100_000, "keys"))
    count = 1_000 if options.quick else options.count
    rows = [(b"%08d" % number, b"v" * 100) for number in range(count)]
    chance = random.Random(7)
    for part, run in {"get": get, "own write": own_write, "open": reopen}.items():
        if options.only in part:
            run(rows, chance, options.rounds)


def get(rows: list[tuple[bytes, bytes]], chance: random.Random, rounds: int) -> None:
    reads = min(len(rows), 50_000)
    keys = [key for key, _ in chance.sample(rows, reads)]
    for partitions in (1, 8):
        with harness.folder() as path, klamm.open(path + "/store") as store:
            store.topics.create("users", partitions=partitions)
            store.append_many("users", rows, acks=1)
            users = store.table("users")
            assert len(users) == len(rows)

            def ours(users: klamm.Table = users) -> harness.Sample:
                with harness.clock(reads) as sample:
                    for key in keys:
                        users.get(key)
                return sample

            def theirs(db: Rdict = users._shared.tree._db) -> harness.Sample:
                with harness.clock(reads) as sample:
                    for key in keys:
                        db.get(key)
                return sample

            found = harness.interleave({"klamm": ours, "rocksdict": theirs}, rounds)
        harness.compare(
            f"table: get, {partitions} partition{'s' if partitions > 1 else ''}",
            found["klamm"],
            "rocksdict, the same files",
            found["rocksdict"],
            harness.at_least(0.8),
            us_a_call=harness.digits(harness.median([1e6 * each.wall / each.count for each in found["klamm"]])),
        )


def own_write(rows: list[tuple[bytes, bytes]], chance: random.Random, rounds: int) -> None:
    rows = rows[: max(100, len(rows) // 20)]
    with harness.folder() as path, klamm.open(path + "/store") as store:
        store.topics.create("users")
        append = store.append

        def alone() -> harness.Sample:
            with harness.clock(len(rows)) as sample:
                for key, value in rows:
                    append("users", value, key=key, acks=1)
            return sample

        def seen() -> harness.Sample:
            with store.table("users") as users:
                users.refresh()
                with harness.clock(len(rows)) as sample:
                    for key, value in rows:
                        append("users", value, key=key, acks=1)
                        users.get(key)
            return sample

        found = harness.interleave({"klamm": seen, "append": alone}, rounds)
    harness.compare(
        "table: an append, and the read that sees it",
        found["klamm"],
        "the append alone, without a table",
        found["append"],
        us_a_call=harness.digits(harness.median([1e6 * each.wall / each.count for each in found["klamm"]])),
    )


def reopen(rows: list[tuple[bytes, bytes]], chance: random.Random, rounds: int) -> None:
    with harness.folder() as path, klamm.open(path + "/store") as store:
        store.topics.create("users", partitions=3)
        for _ in range(10):
            store.append_many("users", rows, acks=1)

        def ready() -> harness.Sample:
            with harness.clock(1) as sample:
                users = store.table("users", wait=None)
                assert users[rows[0][0]] == rows[0][1]
            users.close()
            return sample

        def anew() -> harness.Sample:
            shutil.rmtree(path + "/store/tables", ignore_errors=True)
            return ready()

        found = harness.interleave({"replayed": anew, "opened": ready}, rounds)
    harness.answer(
        "table: open, until the first read",
        [1e3 * each.wall for each in found["opened"]],
        f"without a table: {10 * len(rows)} records are read",
        [1e3 * each.wall for each in found["replayed"]],
        harness.at_most(0.2),
        unit="ms",
    )


if __name__ == "__main__":
    main()
