"""The driver's decision: one request commits what all tasks have written, and records the batch with it.

    1  look      the batch is in the log (batches.py): nothing to do but to abort what the tasks have written
    2  decide    DecideTransactions, Klamm's own API: the transactions of the tasks that Spark has chosen are committed,
                 the batch's row is written, and every other transaction of the scope is aborted
    3  repeat    if another driver was faster, or the response was lost: from 1

Step 1 is left out the first time if this process has committed a batch of the scope before: its row is expected then.

Promises
  SRV1  All that tasks have written for a batch is committed once, or not at all, though tasks, driver or server
        are killed. The row is compared and set: it has to be the one that step 1 has looked at, or
        that this process has written.
  SRV2  A task that comes back after the decision is fenced: it cannot add to what was decided, nor have it decided.
        If the batch has a number, nor can it begin a transaction that would stay open.
  SRV3  Nothing is written to a server that does not have the API: an Apache Kafka.

A scope is `<writer>/<hash of the target>/`, and a transactional id is the scope, the number of the task's partition and
the number of the attempt; then one more, if another attempt uses that id (attempt.py). So a streaming query uses the
same few ids for all of its micro-batches.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from klamm.batch import crc32c
from klamm.errors import KlammError, Unsupported
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire import Struct
from klamm.kafka.wire.messages import DECIDE_TRANSACTIONS
from klamm.spark import batches
from klamm.spark.batches import BatchId
from klamm.spark.server.address import ServerAddress
from klamm.spark.server.attempt import TaskTransaction
from klamm.spark.server.client import Client
from klamm.spark.server.errors import check
from klamm.store.once import WriterNumber
from klamm.types import TopicId

__all__ = ["Scope", "can_decide", "check_server", "commit", "discard", "is_decided"]

_TRIES = 5
_DISCARD_TIMEOUT_S = 10.0
"""Less than for a commit: what could not be aborted times out."""
_log = logging.getLogger("klamm.spark")


@dataclass(frozen=True)
class Scope:
    """The owner of transactional ids: a writer, and what it writes to."""

    writer: str
    """Of the batch, or of the job."""
    target: str
    is_last: bool = False
    """Whether its transactional ids are not used again."""

    def __str__(self) -> str:
        return f"{self.writer}/{crc32c(self.target.encode()):08x}/"

    def transactional_id(self, task: int, attempt: int) -> str:
        return f"{self}{task}-{attempt}"


_recorded: dict[tuple[ServerAddress, Scope], WriterNumber] = {}
"""The last row that this process has written; another one may have written since."""


def can_decide(client: Client) -> bool:
    """Return whether the server can decide several transactions at once: whether it is klamm serve."""
    return client.knows(DECIDE_TRANSACTIONS)


def check_server(client: Client) -> None:
    """Raise Unsupported if the server cannot decide several transactions at once."""
    if not can_decide(client):
        raise Unsupported(
            f"{client.address}: the server cannot commit what several tasks have written: it is not klamm serve",
            hint='an Apache Kafka is written to with format("kafka"), which is at least once; nothing was written',
        )


def commit(
    client: Client,
    scope: Scope,
    transactions: Sequence[TaskTransaction],
    topic_ids: Sequence[TopicId],
    batch: BatchId | None,
    *,
    is_whole: bool = True,
) -> bool:
    """Commit what the tasks have written. Return False if the batch is in the log already.

    `is_whole`: whether each task has written; one that has found the batch in the log has not.

    Raise BatchConflict if another batch of its number, or a later one, is.
    """
    expected = _recorded.get((client.address, scope)) if is_whole and transactions else None
    for _ in range(_TRIES):
        last, expected = expected, None
        if batch is not None and (last is None or last.number >= batch.number):
            last = client.patiently(partial(_look, client, scope, batch))
        if batch is not None and batches.is_recorded(last, batch):
            batches.log_skipped(batch)
            discard(client, scope)
            return False
        if not is_whole:
            raise KlammError(
                f"{client.address}: {batch}: was in the log when a task began, and is no longer: nothing was written",
                hint="start the query again",
            )
        if not transactions:
            return True
        kind = DECIDE_TRANSACTIONS.request
        request = kind(
            writer=scope.writer,
            scope=str(scope),
            transactions=[
                kind.Transaction(
                    transactional_id=each.transactional_id, producer_id=each.producer_id, producer_epoch=each.epoch
                )
                for each in transactions
            ],
            committed=True,
            topics=[kind.Topic(topic_id=bytes.fromhex(topic_id)) for topic_id in topic_ids],
            number=None if batch is None else _number(batch, last),
        )
        if client.patiently(partial(_decide, client, request)):
            if batch is not None:
                _recorded[client.address, scope] = WriterNumber(*batch[:3], batch.plan, batch.ends)
            if scope.is_last:
                discard(client, scope)
            return True
    raise KlammError(f"{client.address}: {batch}: other drivers write under this name: nothing was written")


def is_decided(client: Client, scope: Scope, number: int) -> bool:
    """Return whether this batch of the scope, or a later one, is in the log."""
    last = _look(client, scope, BatchId(scope.writer, scope.target, number))
    return last is not None and last.number >= number


def discard(client: Client, scope: Scope) -> None:
    """Abort everything of the scope that was not decided, as far as the server can be reached: if not, it times out."""
    request = DECIDE_TRANSACTIONS.request(
        writer=scope.writer, scope=str(scope), committed=False, forgets_ids=scope.is_last
    )
    try:
        client.patiently(partial(_decide, client, request), _DISCARD_TIMEOUT_S)
    except Exception as error:  # noqa: BLE001  # whatever it is, the server aborts them in time
        _log.warning("%s: what was not committed could not be aborted, and will time out: %s", client.address, error)


def _decide(client: Client, request: Struct) -> bool:
    """Return whether it was done; False: another number was recorded since."""
    response = client.ask(DECIDE_TRANSACTIONS, request)
    if response.error_code == ErrorCode.INVALID_UPDATE_VERSION:
        return False
    check(str(client.address), response.error_code, response.error_message)
    return True


def _look(client: Client, scope: Scope, batch: BatchId) -> WriterNumber | None:
    number = DECIDE_TRANSACTIONS.request.Number(target=batch.target, number=batch.number)
    request = DECIDE_TRANSACTIONS.request(writer=scope.writer, scope=str(scope), number=number, validate_only=True)
    response = client.ask(DECIDE_TRANSACTIONS, request)
    check(str(client.address), response.error_code, response.error_message)
    if response.last_number < 0:
        return None
    return WriterNumber(batch.writer, batch.target, response.last_number, response.last_fingerprint, response.last_note)


def _number(batch: BatchId, last: WriterNumber | None) -> Struct:
    return DECIDE_TRANSACTIONS.request.Number(
        target=batch.target,
        number=batch.number,
        fingerprint=batch.plan,
        note=batch.ends,
        last_number=-1 if last is None else last.number,
        last_fingerprint="" if last is None else last.fingerprint,
    )
