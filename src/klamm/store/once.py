"""Numbers of writers (`tx.once`): what was committed under a number is not committed again.

    once    writer, target, number, committed_ms, fingerprint, note, crc

A row is the last number of a writer for one target. It is written in the SQLite transaction that commits its records
and offsets (transactions.py, step 5), so it is there if and only if they are. `fingerprint` identifies what the number
stood for, `note` is for people; the writer chooses both. Two fingerprints match when they are equal; for Spark's
batches spark/batches.py has a rule of its own.

A number alone is not enough: a writer that was restored from a copy may use a number again for other records. To skip
those would lose them.

Promises
  ONC1  A number that is not greater than the row's is never committed: `put` raises, under the write lock of klamm.db,
        and with it the transaction is aborted. So two writers that use one name by mistake commit each number once.
  ONC2  It is skipped only if writer, target, number and fingerprint are those of the row; else OnceMismatch.
  ONC3  The table is bounded. A row goes when its writer has been silent for SILENT_MS and KEPT others are younger: a
        store with fewer writers than that never forgets one.
  ONC4  A row whose checksum is wrong is an error, as in the catalog.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from klamm.errors import NotAStore, OnceMismatch, TransactionError
from klamm.store.database import REBUILD_BY_HAND
from klamm.store.rows import crc

if TYPE_CHECKING:
    from klamm.store.database import Database, Execute

__all__ = [
    "KEPT",
    "SCHEMA",
    "SILENT_MS",
    "AlreadyCommitted",
    "WriterNumber",
    "check",
    "find",
    "is_committed",
    "last",
    "put",
    "sweep",
    "upgrade",
    "write",
]

KEPT = 10_000
SILENT_MS = 30 * 24 * 3_600_000

SCHEMA = """
CREATE TABLE once (
    writer TEXT NOT NULL, target TEXT NOT NULL, number INTEGER NOT NULL, committed_ms INTEGER NOT NULL,
    fingerprint TEXT NOT NULL, note TEXT NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (writer, target)
) WITHOUT ROWID
"""
_COLUMNS = "writer, target, number, committed_ms, fingerprint, note"


class AlreadyCommitted(TransactionError):
    """The number was committed before. Callers never see it: there is nothing to do."""


class WriterNumber(NamedTuple):
    """A number of a writer, with its target and fingerprint."""

    writer: str
    target: str
    number: int
    fingerprint: str = ""
    note: str = ""

    def __str__(self) -> str:
        return f"{self.writer}: number {self.number}" + (f" to {self.target}" if self.target else "")


def find(execute: Execute, writer: str, target: str) -> WriterNumber | None:
    """Return the last number of a writer for a target. Raise NotAStore if its row is damaged."""
    query = f"SELECT {_COLUMNS}, crc FROM once WHERE writer = ? AND target = ?"
    row = execute(query, (writer, target)).fetchone()
    if row is None:
        return None
    *values, checksum = row
    if checksum != crc(*values):
        raise NotAStore(
            f"klamm.db: the last number of {writer!r} is damaged: the checksum is wrong", hint=REBUILD_BY_HAND
        )
    return WriterNumber(values[0], values[1], values[2], values[4], values[5])


def last(database: Database, writer: str, target: str = "") -> int | None:
    """Return the last number that a writer has committed; None if it has none."""
    with database.reading() as execute:
        found = find(execute, writer, target)
    return None if found is None else found.number


def is_committed(execute: Execute, once: WriterNumber) -> bool:
    """Return whether the number is committed. OnceMismatch if it has another fingerprint, or a later one is."""
    there = find(execute, once.writer, once.target)
    if there is None or once.number > there.number:
        return False
    if once.number == there.number and once.fingerprint == there.fingerprint:
        return True
    if once.number == there.number:
        message = f"{once}: is committed with another fingerprint ({there.fingerprint!r}, not {once.fingerprint!r})"
    else:
        message = f"{once}: comes after {there.number}, which is committed"
    raise OnceMismatch(
        f"{message}: nothing was written",
        number=once.number,
        last_number=there.number,
        hint=f"numbers of a writer only increase: use one above {there.number}, or another writer name",
    )


def put(execute: Execute, once: WriterNumber) -> None:
    """Record the number, inside the transaction that commits it. Raise AlreadyCommitted or OnceMismatch."""
    if is_committed(execute, once):
        raise AlreadyCommitted(f"{once}: is committed")
    write(execute, once)


def write(execute: Execute, once: WriterNumber, *, now_ms: int | None = None) -> None:
    """Replace the row of a writer and target, without checks."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    values = (once.writer, once.target, once.number, now_ms, once.fingerprint, once.note)
    execute(f"INSERT OR REPLACE INTO once ({_COLUMNS}, crc) VALUES (?, ?, ?, ?, ?, ?, ?)", (*values, crc(*values)))


def sweep(database: Database, *, now_ms: int | None = None) -> int:
    """Delete the rows of writers that have been silent for long, except the latest (ONC3). Return how many."""
    before_ms = (time.time_ns() // 1_000_000 if now_ms is None else now_ms) - SILENT_MS
    query = (
        "SELECT writer, target FROM once WHERE committed_ms < ?1 AND (writer, target) NOT IN"
        " (SELECT writer, target FROM once ORDER BY committed_ms DESC LIMIT ?2)"
    )
    if not database.read(query, (before_ms, KEPT)):
        return 0
    with database.db_lock(), database.transaction() as execute:
        return int(execute(f"DELETE FROM once WHERE (writer, target) IN ({query})", (before_ms, KEPT)).rowcount)


def check(database: Database) -> list[str]:
    """Return what is wrong with the rows."""
    rows = database.read(f"SELECT {_COLUMNS}, crc FROM once")
    return [f"once: the row of {row[0]!r}: the checksum is wrong" for row in rows if crc(*row[:-1]) != row[-1]]


def upgrade(execute: Execute, version: int) -> None:
    """Make the table from `spark_batches` of formats 3 (without plan and ends) and 4."""
    old = []
    if version >= 3:
        plan = "plan, ends" if version >= 4 else "'', ''"
        for *values, checksum in execute(
            f"SELECT writer, batch, committed_ms, {plan}, crc FROM spark_batches"
        ).fetchall():
            if checksum != crc(*values[: 5 if any(values[3:]) else 3]):
                raise NotAStore(f"klamm.db: the last batch of {values[0]!r} is damaged", hint=REBUILD_BY_HAND)
            old.append(values)
        execute("DROP TABLE spark_batches")
    execute(SCHEMA)
    for key, number, committed_ms, fingerprint, note in old:
        writer, is_split, target = key.rpartition(" to topic")  # before format 4 without
        where = (writer, f"topic{target}") if is_split else (key, "")
        write(execute, WriterNumber(*where, number, fingerprint, note), now_ms=committed_ms)
