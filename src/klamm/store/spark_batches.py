"""Which micro-batches are in the log: so that one that Spark sends again is not appended again.

    spark_batches    writer, batch, committed_ms, crc        writer: "query <id>" of a streaming query, or "app <name>"

A row is the number of the last batch of a writer; numbers only grow. It is written in the SQLite transaction that
commits the batch's records (store/transactions.py, step 5), so it is there if and only if they are.

Promises
  M1  A batch whose number is not greater than the row's is never appended: `put` raises, under the gate, and with it
      the transaction is aborted. So two drivers that run one query by mistake append each batch once.
  M2  The table is bounded. A row goes when its writer has been silent for SILENT_MS and KEPT others are younger: a
      store with fewer writers than that never forgets one.
  M3  A row that is not what was written is an error, as in the catalog.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from klamm.errors import NotAStore, StoreError
from klamm.store.rows import crc

if TYPE_CHECKING:
    from klamm.store.database import Database, Execute

__all__ = ["KEPT", "SCHEMA", "SILENT_MS", "AlreadyCommitted", "check", "last", "put", "sweep"]

KEPT = 10_000
SILENT_MS = 30 * 24 * 3_600_000

SCHEMA = """
CREATE TABLE spark_batches (
    writer TEXT PRIMARY KEY, batch INTEGER NOT NULL, committed_ms INTEGER NOT NULL, crc INTEGER NOT NULL
) WITHOUT ROWID;
"""


class AlreadyCommitted(StoreError):
    """This batch is in the log. Nobody outside sees this: a sink that meets it has nothing to do."""


def last(database: Database, writer: str) -> int | None:
    """The number of the writer's last batch; None if there was none."""
    with database.reading() as execute:
        return _last(execute, writer)


def put(execute: Execute, writer: str, batch: int, *, now_ms: int | None = None) -> None:
    """Inside of the transaction that commits the batch: note it, or raise AlreadyCommitted."""
    before = _last(execute, writer)
    if before is not None and batch <= before:
        raise AlreadyCommitted(f"{writer}: batch {batch} is in the log, and so are all up to {before}")
    values = (writer, batch, time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    execute("INSERT OR REPLACE INTO spark_batches VALUES (?, ?, ?, ?)", (*values, crc(*values)))


def sweep(database: Database, *, now_ms: int | None = None) -> int:
    """Forget those that have been silent for long, but for the youngest (M2): how many."""
    before_ms = (time.time_ns() // 1_000_000 if now_ms is None else now_ms) - SILENT_MS
    query = (
        "SELECT writer FROM spark_batches WHERE committed_ms < ?1 AND writer NOT IN"
        " (SELECT writer FROM spark_batches ORDER BY committed_ms DESC LIMIT ?2)"
    )
    if not database.read(query, (before_ms, KEPT)):
        return 0
    with database.gate(), database.transaction() as execute:
        return int(execute(f"DELETE FROM spark_batches WHERE writer IN ({query})", (before_ms, KEPT)).rowcount)


def check(database: Database) -> list[str]:
    """What is wrong with the rows."""
    rows = database.read("SELECT writer, batch, committed_ms, crc FROM spark_batches")
    return [
        f"spark_batches: the row of {row[0]!r}: the checksum does not fit" for row in rows if crc(*row[:3]) != row[3]
    ]


def _last(execute: Execute, writer: str) -> int | None:
    query = "SELECT writer, batch, committed_ms, crc FROM spark_batches WHERE writer = ?"
    row = execute(query, (writer,)).fetchone()
    if row is None:
        return None
    if crc(*row[:3]) != row[3]:
        raise NotAStore(
            f"klamm.db: the last batch of {writer!r} is damaged: the checksum does not fit",
            hint="restore klamm.db from a backup",
        )
    return int(row[1])
