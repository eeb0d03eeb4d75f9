"""Which micro-batches are in the log: so that one that Spark sends again is not appended again.

    spark_batches    writer, batch, committed_ms, crc, plan, ends

    writer    "query <id> to <target>" of a streaming query, "app <name> to <target>" of a write with txnAppId; the
              target is "topic <name>", or "topics by column". Before format 4: without " to <target>"
    plan      a fingerprint of the batch: names and values, spaces between them. Empty before format 4
                offsets <SHA-256>         Spark's plan: where the batch ends in each source (spark/checkpoint.py)
                records <sum>/<count>     the records themselves, in any order
                run <id>                  the run of the streaming query
    ends      where the batch ended in its sources, for startingOffsets of another query; empty if it is not known

A row is the last batch of a writer; numbers only grow. It is written in the SQLite transaction that commits the batch's
records (store/transactions.py, step 5), so it is there if and only if they are.

A number alone says little: a query whose checkpoint was lost in part, or put back from a copy, plans another batch
under a number that it has used. To skip that one would lose its records.

Promises
  M1  A batch whose number is not greater than the row's is never appended: `put` raises, under the gate, and with it
      the transaction is aborted. So two drivers that run one query by mistake append each batch once.
  M2  The table is bounded. A row goes when its writer has been silent for SILENT_MS and KEPT others are younger: a
      store with fewer writers than that never forgets one.
  M3  A row that is not what was written is an error, as in the catalog.
  M4  A batch is skipped only if writer, target, number and fingerprint are those of the row; else BatchConflict.
      Fingerprints are the same if the offsets are, or, where these are not known, the records. With the same offsets,
      other records are those of a query that gives others each time it runs; in one run they are another write.
      A row without a fingerprint, of an older format, stands for the batch of its number.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from klamm.errors import BatchConflict, NotAStore, StoreError
from klamm.store.database import REBUILD
from klamm.store.rows import crc

if TYPE_CHECKING:
    from klamm.store.database import Database, Execute

__all__ = [
    "BY_COLUMN",
    "KEPT",
    "MAX_ENDS",
    "PIPELINES",
    "SCHEMA",
    "SCHEMA_4",
    "SILENT_MS",
    "AlreadyCommitted",
    "BatchId",
    "check",
    "is_committed",
    "last",
    "put",
    "sweep",
    "target_of",
]

KEPT = 10_000
SILENT_MS = 30 * 24 * 3_600_000
MAX_ENDS = 4096  # characters
BY_COLUMN = "topics by column"
PIPELINES = ("pipeline ", "klamm.archive.")
"""How a txnAppId of a pipeline begins: its checkpoint is in a folder of its own."""

SCHEMA = """
CREATE TABLE spark_batches (
    writer TEXT PRIMARY KEY, batch INTEGER NOT NULL, committed_ms INTEGER NOT NULL, crc INTEGER NOT NULL
) WITHOUT ROWID;
"""
SCHEMA_4 = """
ALTER TABLE spark_batches ADD COLUMN plan TEXT NOT NULL DEFAULT '';
ALTER TABLE spark_batches ADD COLUMN ends TEXT NOT NULL DEFAULT '';
"""
_COLUMNS = "writer, batch, committed_ms, crc, plan, ends"


class AlreadyCommitted(StoreError):
    """This batch is in the log. Nobody outside sees this: a sink that meets it has nothing to do."""


class BatchId(NamedTuple):
    """A batch: whose, to where, its number, and what it was made from."""

    writer: str
    """ "query <id>" or "app <name>"."""
    target: str
    number: int
    plan: str = ""
    ends: str = ""
    file: str = ""
    """Spark's plan, for error messages."""
    may_differ: bool = False
    """Skip a batch of the same number with other records (option onConflict=skip)."""

    @property
    def key(self) -> str:
        return f"{self.writer} to {self.target}"

    def __str__(self) -> str:
        return f"{self.writer}: batch {self.number} to {self.target}"


class _Row(NamedTuple):
    number: int
    plan: str
    ends: str


def target_of(topic: str | None) -> str:
    """Return the target of a write to `topic`; None: each row names its own."""
    return BY_COLUMN if topic is None else f"topic {topic}"


def last(database: Database, writer: str) -> int | None:
    """Return the number of the last batch of `writer`, as the table spells it; None if there was none."""
    with database.reading() as execute:
        row = _row(execute, writer)
    return None if row is None else row.number


def is_committed(database: Database, batch: BatchId) -> bool:
    """Return whether the batch is in the log. Raise BatchConflict if another one of its number, or a later one, is."""
    with database.reading() as execute:
        return _is_committed(execute, batch)


def put(execute: Execute, batch: BatchId, *, now_ms: int | None = None) -> None:
    """Record the batch, inside the transaction that commits it. Raise AlreadyCommitted or BatchConflict."""
    if _is_committed(execute, batch):
        raise AlreadyCommitted(f"{batch}: is in the log")
    values = (batch.key, batch.number, time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    more = (batch.plan, batch.ends)
    execute(
        f"INSERT OR REPLACE INTO spark_batches ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
        (*values, _crc(*values, *more), *more),
    )
    execute("DELETE FROM spark_batches WHERE writer = ?", (batch.writer,))  # of an older format


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
    rows = database.read(f"SELECT {_COLUMNS} FROM spark_batches")
    return [
        f"spark_batches: the row of {row[0]!r}: the checksum does not fit"
        for row in rows
        if _crc(*row[:3], *row[4:]) != row[3]
    ]


def _crc(writer: str, number: int, committed_ms: int, plan: str, ends: str) -> int:
    more = (plan, ends) if plan or ends else ()  # rows of format 3 have neither
    return crc(writer, number, committed_ms, *more)


def _row(execute: Execute, writer: str) -> _Row | None:
    row = execute(f"SELECT {_COLUMNS} FROM spark_batches WHERE writer = ?", (writer,)).fetchone()
    if row is None:
        return None
    if _crc(*row[:3], *row[4:]) != row[3]:
        raise NotAStore(
            f"klamm.db: the last batch of {writer!r} is damaged: the checksum does not fit",
            hint=REBUILD,
        )
    return _Row(row[1], row[4], row[5])


def _is_committed(execute: Execute, batch: BatchId) -> bool:
    row = _row(execute, batch.key) or _row(execute, batch.writer)
    if row is None or batch.number > row.number:
        return False
    if batch.number == row.number and _is_same(batch, row):
        return True
    raise _conflict(batch, row)


def _is_same(batch: BatchId, row: _Row) -> bool:
    sent, there = _parts(batch.plan), _parts(row.plan)
    same = {name: sent[name] == there[name] for name in sent.keys() & there.keys()}
    if "offsets" in same:
        return same["offsets"] and (same.get("records", True) or not same.get("run"))
    return same.get("records", not there) or batch.may_differ


def _parts(plan: str) -> dict[str, str]:
    words = plan.split()
    return dict(zip(words[::2], words[1::2], strict=True))


def _conflict(batch: BatchId, row: _Row) -> BatchConflict:
    name, from_query = batch.writer.split(" ", 1)[1], batch.writer.startswith("query ")
    what = f"query {name}: batch" if from_query else f"txnAppId {name!r}: txnVersion"
    where = f" ({batch.file})" if batch.file else ""
    sent, there = _parts(batch.plan), _parts(row.plan)
    has_plan = "offsets" in sent and "offsets" in there
    if batch.number < row.number:
        message = (
            f"{what} {batch.number}{where} comes after {row.number}, which is in the log ({batch.target}):"
            " nothing was written; the checkpoint is older than the log, or two drivers write under one name"
        )
    elif has_plan and sent["offsets"] == there["offsets"]:
        message = (
            f"{what} {batch.number} was used already for another write of this micro-batch ({batch.target}):"
            " nothing was written"
        )
        return BatchConflict(message, hint="give each write of a micro-batch a txnAppId of its own")
    elif has_plan:
        message = (
            f"{what} {batch.number} is in the log ({batch.target}), but was planned again with other offsets{where}:"
            " nothing was written; the checkpoint was lost in part, put back from a copy, or is used twice"
        )
    else:
        message = (
            f"{what} {batch.number} is in the log ({batch.target}) with other records: nothing was written;"
            " the batch was planned again, or what it computes differs each time"
        )
    if not from_query and name.startswith(PIPELINES):
        return BatchConflict(message, hint="put the pipeline's folder back as it was, or begin again in a new one")
    start = f"startingOffsets={row.ends}" if row.ends else "startingOffsets"
    name_too = "" if from_query else ", another txnAppId"
    hint = (
        f"put back the newer checkpoint, or go on with a new checkpointLocation{name_too} and {start}:"
        f" batch {row.number} ended there"
    )
    if not has_plan and batch.number == row.number:
        hint = f"onConflict=skip if it is the same batch; else {hint}"
    return BatchConflict(message, hint=hint)
