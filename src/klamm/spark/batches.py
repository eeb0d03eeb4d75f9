"""The micro-batches that are in the log: one that Spark sends again is not appended again. In store/once.py:

    writer        "query <id>" of a streaming query, "app <name>" of a write with txnAppId
    target        "topic <name>", or "topics by column"; of format 3: empty, and stands for every target
    number        of the batch
    fingerprint   names and values, spaces between them; of format 3: empty
                    offsets <SHA-256>         Spark's plan: where the batch ends in each source (spark/checkpoint.py)
                    records <sum>/<count>     the records themselves, in any order
                    run <id>                  the run of the streaming query
    note          where the batch ended in its sources, for startingOffsets of another query; empty if it is not known

Promises
  BID1  A batch whose number is not greater than the row's is never appended (ONC1).
  BID4  A batch is skipped only if writer, target, number and fingerprint are those of the row; else BatchConflict.
        Fingerprints are the same if the offsets are, or, where these are not known, the records. With the same offsets,
        other records are those of a query that gives others each time it runs; in one run they are another write.
        A row without a fingerprint, of an older format, stands for the batch of its number.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from klamm.errors import BatchConflict
from klamm.store import once
from klamm.store.joint_decision import find_last
from klamm.store.once import AlreadyCommitted, WriterNumber

if TYPE_CHECKING:
    from klamm.store.database import Database, Execute

__all__ = [
    "BY_COLUMN",
    "MAX_ENDS",
    "PIPELINES",
    "BatchId",
    "is_committed",
    "is_recorded",
    "log_skipped",
    "put",
    "target_of",
]

_log = logging.getLogger("klamm.spark")

MAX_ENDS = 4096  # characters
BY_COLUMN = "topics by column"
PIPELINES = ("pipeline ", "klamm.archive.")
"""How a txnAppId of a pipeline begins: its checkpoint is in a folder of its own."""


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

    def __str__(self) -> str:
        return f"{self.writer}: batch {self.number} to {self.target}"


def target_of(topic: str | None) -> str:
    """Return the target of a write to `topic`; None: each row names its own."""
    return BY_COLUMN if topic is None else f"topic {topic}"


def is_committed(database: Database, batch: BatchId) -> bool:
    """Return whether the batch is in the log. Raise BatchConflict if another one of its number, or a later one, is."""
    with database.reading() as execute:
        return _is_committed(execute, batch)


def put(execute: Execute, batch: BatchId) -> None:
    """Record the batch, inside the transaction that commits it. Raise AlreadyCommitted or BatchConflict."""
    if _is_committed(execute, batch):
        raise AlreadyCommitted(f"{batch}: is in the log")
    once.write(execute, WriterNumber(batch.writer, batch.target, batch.number, batch.plan, batch.ends))
    execute("DELETE FROM once WHERE writer = ? AND target = ''", (batch.writer,))  # of format 3


def log_skipped(batch: BatchId) -> None:
    _log.warning("Skipping %s: it is in the log already, and was sent again after a failure or a restart", batch)


def _is_committed(execute: Execute, batch: BatchId) -> bool:
    return is_recorded(find_last(execute, batch.writer, batch.target), batch)


def is_recorded(last: WriterNumber | None, batch: BatchId) -> bool:
    """Like `is_committed`, of the last row of the batch's writer."""
    if last is None or batch.number > last.number:
        return False
    if batch.number == last.number and _is_same(batch, last):
        return True
    raise _conflict(batch, last)


def _is_same(batch: BatchId, last: WriterNumber) -> bool:
    sent, there = _parts(batch.plan), _parts(last.fingerprint)
    same = {name: sent[name] == there[name] for name in sent.keys() & there.keys()}
    if "offsets" in same:
        return same["offsets"] and (same.get("records", True) or not same.get("run"))
    return same.get("records", not there) or batch.may_differ


def _parts(plan: str) -> dict[str, str]:
    words = plan.split()
    return dict(zip(words[::2], words[1::2], strict=True))


def _conflict(batch: BatchId, last: WriterNumber) -> BatchConflict:
    name, from_query = batch.writer.split(" ", 1)[1], batch.writer.startswith("query ")
    what = f"query {name}: batch" if from_query else f"txnAppId {name!r}: txnVersion"
    where = f" ({batch.file})" if batch.file else ""
    sent, there = _parts(batch.plan), _parts(last.fingerprint)
    has_plan = "offsets" in sent and "offsets" in there
    if batch.number < last.number:
        message = (
            f"{what} {batch.number}{where} comes after {last.number}, which is in the log ({batch.target}):"
            " nothing was written; the checkpoint is older than the log, or two drivers write under one name"
        )
    elif has_plan and sent["offsets"] == there["offsets"]:
        message = (
            f"{what} {batch.number} was used already for another write of this micro-batch ({batch.target}):"
            " nothing was written"
        )
        hint = "give each write of a micro-batch a txnAppId of its own"
        return BatchConflict(message, number=batch.number, last_number=last.number, hint=hint)
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
        hint = "put the pipeline's folder back as it was, or begin again in a new one"
        return BatchConflict(message, number=batch.number, last_number=last.number, hint=hint)
    start = f"startingOffsets={last.note}" if last.note else "startingOffsets"
    name_too = "" if from_query else ", another txnAppId"
    hint = (
        f"put back the newer checkpoint, or go on with a new checkpointLocation{name_too} and {start}:"
        f" batch {last.number} ended there"
    )
    if not has_plan and batch.number == last.number:
        hint = f"onConflict=skip if it is the same batch; else {hint}"
    return BatchConflict(message, number=batch.number, last_number=last.number, hint=hint)
