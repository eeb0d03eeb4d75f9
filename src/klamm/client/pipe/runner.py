"""The loop of a running pipe: read, call the function, send, commit.

    poll → f(record) or f(record, state) → outputs and changes of state → one transaction with the group's progress

One transaction takes what there is, up to `max_records` or a part of a second. It is begun by its first record, and
committed when there is nothing to wait for, or when a partition is given back.

Promises
  PIP1  Outputs, the changelog of the state, dead letters and the group's progress are one transaction: each record that
        is read has its effect once, whatever process is killed and whenever.
  PIP2  A member that has lost a partition commits nothing of it (client/groups/commits.py), and begins again with what
        the group has committed: nothing of an earlier ownership gets into a later transaction.
  PIP3  A transaction that fails to commit is done again, one record at a time until one commits: a function that takes
        longer than a transaction may gets through.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.client.consume.consumer import session_of
from klamm.client.pipe.output import RawOutput
from klamm.client.work.dead_letters import attempts_before
from klamm.errors import Aborted, CommitGap, Fenced, InvalidRecord, KlammError, NotOwner, RecordTooLarge

if TYPE_CHECKING:
    from klamm.batch import Record
    from klamm.client.consume.consumer import Consumer
    from klamm.client.pipe.output import PipeFunction
    from klamm.client.pipe.state import State, States
    from klamm.client.transaction import Transaction
    from klamm.client.work.dead_letters import DeadLetterBox
    from klamm.types import TopicPartition

__all__ = ["Counts", "PipeRunner"]

_LONGEST_S = 0.5  # of a transaction, from its first record to its commit, unless the function takes longer
_LATE = (NotOwner, CommitGap, Aborted, Fenced)  # others have the partition, or have ended the transaction
_UNSENDABLE = (InvalidRecord, RecordTooLarge, TypeError, ValueError)
_log = logging.getLogger("klamm")


class _Again(Exception):
    """The transaction cannot be committed; its records are to be read again. The cause says why."""


@dataclass(slots=True)
class Counts:
    records: int = 0
    outputs: int = 0
    dead_lettered: int = 0


class PipeRunner:
    """The runner of one pipe. For one thread at a time."""

    def __init__(
        self,
        consumer: Consumer,
        function: PipeFunction,
        states: States | None,
        letters: DeadLetterBox | None,
        *,
        max_records: int,
        timeout_s: float,
    ) -> None:
        """Prepare a runner. `letters`: where records go for which the function raises; None: the error is raised."""
        self.done = Counts()
        """What was committed."""
        self._consumer = consumer
        self._session = session_of(consumer)
        self._function = function
        self._states = states
        self._letters = letters
        self._max_records = self._limit = max_records
        self._timeout_s = timeout_s
        self._open = Counts()
        self._transaction: Transaction | None = None
        self._due = 0.0  # when the transaction is to be committed
        self._refused: dict[tuple[int, int], Exception] = {}  # by partition and offset: outputs that cannot be sent
        self._thread = 0  # that reads

    # ---- reading

    def read(self, wait_s: float | None, is_over: Callable[[], bool]) -> None:
        """Take records until `is_over()`, or until none comes for `wait_s`; commit what is done."""
        self._thread = threading.get_ident()
        while not is_over():
            is_begun = self._transaction is not None
            room = max(1, self._limit - self._open.records)
            records = self._session.next_records(room, 0 if is_begun else wait_s, is_over)
            if records is not None:
                self._take(records, is_over)
            elif is_begun:
                self._commit()
            else:
                return  # nothing came in time, or it is over
        self._commit()

    def _take(self, records: Iterable[Record], is_over: Callable[[], bool]) -> None:
        """Handle records, and commit if the transaction takes no more."""
        try:
            for record in records:
                self._handle(record)
                if is_over() or time.monotonic() >= self._due:
                    break
        except _Again as again:
            self._retry(again.__cause__)
        else:
            if self._open.records >= self._limit or time.monotonic() >= self._due:
                self._commit()

    # ---- one record

    def _handle(self, record: Record) -> None:
        transaction = self._begun()
        state = None if self._states is None else self._states.of(record)
        is_letter = False
        try:
            outputs = self._apply(record, state)
        except Exception as error:
            error.add_note(_describe_record(record))
            if self._letters is None:
                raise
            outputs, is_letter = [_letter(self._letters, record, error)], True
        for topic, key, value, headers, timestamp, partition in outputs:
            try:
                transaction.send(topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition)
            except _LATE as error:
                raise _Again from error
            except _UNSENDABLE as error:
                if self._letters is None or is_letter:
                    error.add_note(_describe_record(record))
                    raise
                self._refused[record.partition, record.offset] = error
                raise _Again from error  # other outputs of the record may be in the transaction
        self._open.records += 1
        self._open.outputs += 0 if is_letter else len(outputs)
        self._open.dead_lettered += is_letter

    def _apply(self, record: Record, state: State | None) -> list[RawOutput]:
        """Call the function and return what is to be sent; then the state is what the function has made of it."""
        error = self._refused.pop((record.partition, record.offset), None)
        if error is not None:
            raise error
        if self._states is None or state is None:
            return self._function(record)
        outputs = self._function(record, state)
        self._states.put(record, state)
        return outputs

    # ---- transactions

    def _begun(self) -> Transaction:
        transaction = self._transaction
        if transaction is None:
            transaction = self._transaction = self._consumer.transaction(
                timeout=self._timeout_s, serde="bytes", key_serde="bytes"
            )
            self._due = time.monotonic() + _LONGEST_S
        return transaction

    def _commit(self) -> None:
        """Commit what was done since the last time. If others were faster, it is done again."""
        transaction, states = self._transaction, self._states
        if transaction is None:
            return
        try:
            if states is not None:
                for number, key, value in states.changes():
                    transaction.send(states.changelog, value, key=key, partition=number)
            transaction.commit_offsets(self._consumer)
            transaction.commit()
        except _LATE as error:
            self._retry(error)
            return
        self._transaction = None
        if states is not None:
            states.committed()
        done, counts, self._open = self.done, self._open, Counts()
        done.records += counts.records
        done.outputs += counts.outputs
        done.dead_lettered += counts.dead_lettered
        self._limit = self._max_records

    def _retry(self, error: BaseException | None) -> None:
        """Read the records of the transaction again, and commit each of them by itself until one is committed."""
        _log.warning("%r: a transaction is aborted, and done again: %s", self._consumer, error)
        self.abort()
        self._limit = 1

    def abort(self) -> None:
        """End the transaction, if there is one, without effect. If it was committed all the same, that is read."""
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            return
        self._open = Counts()
        if self._states is not None:
            self._states.forget()
        if transaction.state == "open":
            try:
                transaction.abort()
            except KlammError as error:
                _log.warning("%r: a transaction is left to others to abort: %s", self._consumer, error)

    # ---- partitions that go (groups.group_session.Runner)

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit before the partitions are given back."""
        if self.is_worker():  # else `close` has waited for the function long enough
            self._commit()
            self._drop(partitions)

    def lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget what was done: the partitions are another member's, and may be ours again before the next commit."""
        self.abort()
        self._drop(partitions)

    def is_worker(self) -> bool:
        return threading.get_ident() == self._thread

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        self._refused.clear()
        if self._states is not None:
            self._states.drop(number for _, number in partitions)


def _letter(letters: DeadLetterBox, record: Record, error: Exception) -> RawOutput:
    headers = letters.headers(record, 1 + attempts_before(record), error)
    return RawOutput(letters.topic_of(record), record.key, record.value, headers, None, None)


def _describe_record(record: Record) -> str:
    return f"while handling {record.topic}/{record.partition} at offset {record.offset}"
