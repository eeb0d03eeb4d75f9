"""How many records a second come out as Arrow?

A topic of (8 B key, 100 B value), scanned whole, beside a DuckDB table with the same columns (offset, timestamp,
key, value) in a database file: as one table in memory, and as a stream of which each batch is dropped at once. Both
in the page cache; DuckDB uses as many threads as it likes, so look at cpu_ratio, too.
"""

from __future__ import annotations

import duckdb
import pyarrow as pa

import _harness as harness
import _peers as peers
import klamm

COLUMNS = ["offset", "timestamp", "key", "value"]


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], rounds=7, count=(2_000_000, "records"))
    count = 5_000 if options.quick else options.count
    part = peers.records(min(count, 100_000))
    with harness.folder() as path, klamm.open(path + "/store") as store, duckdb.connect(path + "/db") as connection:
        store.topics.create("bench", partitions=1)
        for _ in range(count // len(part)):
            store.append_many("bench", part, acks=1)
        filled = pa.RecordBatchReader.from_stream(store.scan("bench", columns=COLUMNS))
        connection.register("filled", filled)
        connection.execute("create table log as select * from filled")
        connection.execute("checkpoint")
        select = "select * from log"

        def table() -> harness.Sample:
            with harness.clock(count) as sample:
                rows = pa.table(store.scan("bench", columns=COLUMNS)).num_rows
            assert rows == count, (rows, count)
            return sample

        def stream() -> harness.Sample:
            rows = 0
            with harness.clock(count) as sample:
                for batch in pa.RecordBatchReader.from_stream(store.scan("bench", columns=COLUMNS)):
                    rows += batch.num_rows
            assert rows == count, (rows, count)
            return sample

        def duck_table() -> harness.Sample:
            with harness.clock(count) as sample:
                rows = connection.sql(select).to_arrow_table().num_rows
            assert rows == count, (rows, count)
            return sample

        def duck_stream() -> harness.Sample:
            rows = 0
            with harness.clock(count) as sample:
                for batch in connection.sql(select).to_arrow_reader(100_000):
                    rows += batch.num_rows
            assert rows == count, (rows, count)
            return sample

        found = harness.interleave(
            {"table": table, "duckdb": duck_table, "stream": stream, "duckdb, stream": duck_stream}, options.rounds
        )
    name = f"DuckDB {duckdb.__version__}, table to Arrow"
    harness.compare("Arrow scan, one table", found["table"], name, found["duckdb"], harness.at_least(5))
    harness.compare(
        "Arrow scan, a stream", found["stream"], name + ", a stream", found["duckdb, stream"], harness.at_least(5)
    )


if __name__ == "__main__":
    main()
