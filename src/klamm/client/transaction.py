"""A transaction: records and progress that become visible together, or not at all. The protocol: store/transactions.py.

    send → RecordAccumulator (partition, open batch) → full → registered, appended
    commit: the open batches → registered in one write, appended → synced → decided, with offsets of groups → marked

Nothing happens before a batch is full or `commit` is called, so a small transaction costs two writes to klamm.db and
one sync of each partition it has records in. No thread works for it.

Promises
  CTX1  A transaction ends once: committed, or aborted. Whatever goes wrong before the commit point aborts it, also if
        the error was caught and `commit` is called all the same.
  CTX2  `commit` returns when the transaction is decided, on disk. If a marker cannot be written then (the disk is full,
        say), it is committed nonetheless: `commit` says so in the log and returns, and others write the marker.
  CTX3  Consumers take part in a transaction from its beginning, or not at all: it commits offsets of no others. If it
        is aborted, at whatever step, they go back to where their groups are: the next poll gives the same records
        again.
  CTX4  One that has a number (`once`) is committed at most once with it, in whatever process: a second one is skipped,
        which changes nothing in the store, and its state says so. The number is stored with the decision
        (store/once.py).
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self

from klamm.batch import RecordAccumulator, patch
from klamm.client.consume.consumer import Consumer, session_of, session_that_read
from klamm.client.participants import pending_commits_of
from klamm.client.produce.record_sender import RecordSender
from klamm.client.produce.target import codec_of, limit_of, sealed
from klamm.client.serde import Serde, key_pair, value_pair
from klamm.disk import _os, fork
from klamm.errors import (
    Aborted,
    CommitGap,
    Fenced,
    Forked,
    GroupError,
    InvalidSetting,
    KlammError,
    ReadOnly,
    TransactionError,
)
from klamm.store import once
from klamm.store.groups import put_offsets
from klamm.store.handle import StoreHandle
from klamm.store.once import AlreadyCommitted, WriterNumber
from klamm.store.transaction_state import MAX_EPOCH
from klamm.store.transactions import Identity, fenced
from klamm.times import Duration, to_seconds
from klamm.types import Batch, PartitionKey
from klamm.typevars import K, V

if TYPE_CHECKING:
    from types import TracebackType

    from klamm.batch import BatchDelivery, Builder, Partitioner
    from klamm.choices import Compression
    from klamm.client.groups.commits import PendingCommit
    from klamm.log.partition import Partition
    from klamm.store.database import Execute
    from klamm.store.directory import Core, OpenTopic
    from klamm.store.lineage import Input

__all__ = ["Pool", "Transaction"]

_MAX_IDLE = 16  # producer ids kept for the next transactions
_MAX_ONCE = 4096  # characters of a writer's name, a target, a fingerprint
_OPEN_BYTES = 32 << 20  # in open batches; more is appended
_log = logging.getLogger("klamm")


class Pool:
    """The producer ids of one Store object: a transaction takes one when it begins, and gives it back when it ends.

    A name is one producer id from its first transaction here on, until a newer one somewhere else takes it over. Then
    it is fenced here for good: only a store that is opened again may take it back.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self._mutex = threading.Lock()
        self._naming = threading.Lock()
        self._idle: list[Identity] = []
        self._named: dict[str, Identity] = {}
        self._busy: set[Identity] = set()
        self._fenced: set[str] = set()
        self._open: weakref.WeakSet[Transaction[Any, Any]] = weakref.WeakSet()
        self._dropped: list[Identity] = []
        self.turn = 0
        self._closed = self._forked = False
        fork.register(self, Pool._in_child)

    def begin(
        self, name: str | None, consumers: Consumer[Any] | Iterable[Consumer[Any]] = (), **options: Any
    ) -> Transaction[Any, Any]:
        """Begin a transaction in which `consumers` take part; a name aborts what it has open anywhere else."""
        core = self.core
        if core.read_only:
            raise ReadOnly(f"{core.path}: opened for reading only")
        if name is not None and (not isinstance(name, str) or not name):
            raise TypeError(f"the name of a transaction is a str, and not empty: {name!r}")
        transaction: Transaction[Any, Any] = Transaction(self, name, consumers, **options)
        while self._dropped:
            core.transactions.let_go(self._dropped.pop())
        if name is not None:
            with self._naming:
                transaction._identity = self._take_named(name)
        with self._mutex:
            self.turn += 1
            self._open.add(transaction)
        transaction._hold_consumers()
        return transaction

    def take(self) -> Identity:
        """Take a producer id, for one transaction."""
        with self._mutex:
            found = self._idle.pop() if self._idle else None
        return found or self.core.transactions.identity()

    def _take_named(self, name: str) -> Identity:
        known = self._named.get(name)
        if name in self._fenced:
            raise fenced(name)
        if known is None or known in self._busy or known.spoiled:
            try:
                made = self.core.transactions.identity(name, after=known)
            except Fenced:
                self._fenced.add(name)
                raise
            if known is not None and known not in self._busy:
                self.core.transactions.let_go(known)
            known = self._named[name] = made
        self._busy.add(known)
        return known

    def give_back(self, transaction: Transaction[Any, Any], identity: Identity, error: BaseException | None) -> None:
        """Give the producer id back. With an error the outcome is unknown, and the id is not used again."""
        identity.spoiled = error is not None or identity.epoch >= MAX_EPOCH
        with self._mutex:
            self._open.discard(transaction)
            self._busy.discard(identity)
            if identity.name is not None and self._named.get(identity.name) is identity:
                if isinstance(error, Fenced):
                    self._fenced.add(identity.name)
                elif not identity.spoiled:
                    return
            elif identity.name is None and not identity.spoiled and len(self._idle) < _MAX_IDLE:
                self._idle.append(identity)
                return
        self.core.transactions.let_go(identity)

    def drop(self, identity: Identity) -> None:
        """Leave its transaction open. Other processes end it when the next one begins, or when it times out."""
        self._dropped.append(identity)

    def close(self) -> None:
        """Abort what is open, and leave no work to other processes."""
        if self._closed or self._forked:
            return
        failed: Exception | None = None
        for transaction in list(self._open):  # those of other threads, too: their next call tells them
            try:
                transaction._close()
            except Exception as error:  # noqa: BLE001  # the others are ended, too; then it is raised
                failed = failed or error
        with self._mutex:
            self._closed = True
            mine = [*self._idle, *self._named.values(), *self._dropped]
        try:
            if not self.core.closed:
                self.core.transactions.tidy(mine)
        finally:
            for identity in mine:
                self.core.transactions.let_go(identity)
        if failed is not None:
            raise failed

    def _in_child(self) -> None:
        self._forked = True


class Transaction(StoreHandle, RecordSender[K, V], by="store.transaction(…)", of=Pool):
    """Made by `store.transaction()`. Leaving its `with` block commits, or aborts if an exception does so.

    For one thread at a time.
    """

    def __init__(
        self,
        pool: Pool,
        name: str | None,
        consumers: Consumer[Any] | Iterable[Consumer[Any]],
        *,
        timeout: Duration = 60,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        compression: Compression | None = None,
        compression_level: int | None = None,
        batch_bytes: int = 64 << 10,
        partitioner: Partitioner | None = None,
    ) -> None:
        if type(batch_bytes) is not int:
            raise TypeError(f"batch_bytes is a whole number, not {type(batch_bytes).__name__}")
        if batch_bytes < 1:
            raise InvalidSetting(f"batch_bytes: {batch_bytes} is invalid", hint="expected at least 1")
        if partitioner is not None and not callable(partitioner):
            raise TypeError(f"partitioner is {type(partitioner).__name__}; expected a callable (key, count)")
        self.name = name
        self._pool = pool
        self._core = pool.core
        self._timeout_ms = round(to_seconds("timeout", timeout, at_least=0.001) * 1000)
        self._values = value_pair(serde)
        self._keys = key_pair(key_serde, serde)
        self._codec = codec_of(compression, compression_level)
        self._level = compression_level
        self._batch_bytes = batch_bytes
        self._partitioner = partitioner
        self._store: object = None  # whose transaction it is, kept from being dropped
        self._identity: Identity | None = None
        self._accumulators: dict[str, RecordAccumulator] = {}
        self._topics: dict[str, tuple[OpenTopic, RecordAccumulator]] = {}
        self._sequences: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        self._full: deque[tuple[Partition, RecordAccumulator, Builder, BatchDelivery]] = (
            deque()
        )  # taken, and not yet appended
        self._appended: list[tuple[BatchDelivery, int, int]] = []  # where, and the time the log has stamped on it
        self._dropped: list[BatchDelivery] = []  # not appended: it will be skipped
        self._pending_commits = pending_commits_of(consumers, pool.core)  # by consumer that takes part
        self._once: WriterNumber | None = None
        self._is_repeated = False  # its number is committed
        self._is_skipped = False
        self._mutex = threading.RLock()
        self._defers = False  # full batches wait until _append_full is called
        self._state = "open"
        self._failed: BaseException | None = None
        self._forked = False
        fork.register(self, Transaction._in_child)

    def __repr__(self) -> str:
        return f"<Transaction{f' {self.name!r}' if self.name else ''} of {self._core.path}: {self._state}>"

    def __reduce__(self) -> str:
        raise TypeError("a transaction cannot be pickled")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._state != "open":
            return
        if error is None:
            self.commit()
        elif not self._forked:
            try:
                self.abort()
            except Exception as failure:  # noqa: BLE001  # the error of the block is the one to be seen
                error.add_note(f"and the transaction could not be aborted, which others will see to: {failure}")

    def __del__(self) -> None:
        identity = getattr(self, "_identity", None)
        if identity is not None and self._state == "open" and not self._forked:
            self._pool.drop(identity)

    @property
    def state(self) -> str:
        """ "open", "committed", "aborted", or "skipped": it was committed before, and has changed nothing (`once`)."""
        return self._state

    # ---- records

    def _find_accumulator(self, topic: str) -> RecordAccumulator:
        """Return the topic's accumulator, as the topic was when the transaction first used it."""
        if not isinstance(topic, str):
            raise TypeError(f"a topic's name is a str, not {type(topic).__name__}")
        self._check_open()
        if self._failed is not None:
            raise self._refused()
        opened = self._core.topic(topic)
        before_ms, after_ms = opened.topic.settings.timestamp_limits_ms
        accumulator = RecordAccumulator(
            topic,
            opened.count,
            self._batch_bytes,
            limit_of(opened.topic.settings.max_message_bytes),
            self._partitioner,
            self._keys.to_bytes,
            self._values.to_bytes,
            first=self._pool.turn,
            keyed="compact" in opened.topic.settings.cleanup_policy,
            clock=self._core.heads,
            before_ms=before_ms,
            after_ms=after_ms,
        )
        self._topics[topic] = opened, accumulator
        self._accumulators[topic] = accumulator
        return accumulator

    def _ship(self, accumulator: RecordAccumulator) -> None:
        """Append the batches that are full; all, if those that are open take too much memory."""
        if not self._defers:
            self._append_full()

    @property
    def _is_full(self) -> bool:
        """Whether something is to be appended."""
        return any(accumulator.full for _, accumulator in self._topics.values())

    def _drain(self) -> None:
        for _, accumulator in self._topics.values():
            accumulator.drain()

    def _append_full(self) -> None:
        """Register what is new, in one write, and append."""
        with self._mutex:
            self._check_open()
            self._append_taken()

    def _append_taken(self) -> None:
        try:
            if sum(accumulator.bytes for _, accumulator in self._topics.values()) > _OPEN_BYTES:
                self._drain()
            fresh: dict[PartitionKey, Partition] = {}
            known = self._identity.partitions if self._identity is not None else {}
            for opened, accumulator in self._topics.values():
                for number, builder, delivery in accumulator.take_full():
                    if self._is_repeated:
                        self._dropped.append(delivery)
                        accumulator.recycle(builder)
                        continue
                    partition = opened.partition(number)
                    self._full.append((partition, accumulator, builder, delivery))
                    if (opened.topic.id, number) not in known:
                        fresh[opened.topic.id, number] = partition
            if fresh:
                if self._identity is None:
                    self._identity = self._pool.take()
                self._core.transactions.register(self._identity, fresh, self._timeout_ms)
            while self._full:
                self._append_first()
        except BaseException as error:
            self._fail(error)
            raise

    def _append_first(self) -> None:
        partition, accumulator, builder, delivery = self._full[0]
        identity, sequence, count = self._identity, self._sequences.get(partition, 0), builder.count
        assert identity is not None
        batch = sealed(
            builder, self._codec, self._level, identity.producer_id, identity.epoch, sequence, transactional=True
        )
        try:
            offset = partition.append(batch)
        except Fenced:
            raise self._core.transactions.why_refused(identity) from None
        stamped = partition.settings.message_timestamp_type == "LogAppendTime"
        self._appended.append((delivery, offset, patch.max_timestamp_of(batch) if stamped else -1))
        self._sequences[partition] = sequence + count
        self._ends[partition] = offset + count
        self._full.popleft()
        accumulator.recycle(builder)

    def _fail(self, error: BaseException) -> None:
        self._failed = self._failed or error
        self._accumulators = {}

    def _refused(self) -> TransactionError:
        refused = Aborted("the transaction cannot go on after an error", hint="abort it, and begin another")
        refused.__cause__ = self._failed
        return refused

    # ---- progress

    def commit_offsets(self, read: Batch[Any] | Consumer[Any]) -> None:
        """Make the group's progress part of the transaction: past this batch, or past all that the consumer returned.

        Raise GroupError if the consumer does not take part in the transaction, CommitGap if the batch does not follow
        the last one. The commit raises NotOwner or CommitGap, and aborts, if another member has committed first.
        """
        self._check_open()
        if not isinstance(read, Batch | Consumer):
            raise TypeError(f"commit_offsets takes a Batch or a Consumer, not {type(read).__name__}")
        if isinstance(read, Batch) and read.begin == read.end:
            return  # a poll that gave nothing, or an empty slice
        session = session_of(read) if isinstance(read, Consumer) else session_that_read(read)
        if session is None:
            raise GroupError(
                "these records were not read by a group, or their consumer is gone",
                hint='read them with store.consumer(…, group="name")',
            )
        pending_commit = self._pending_commits.get(session)
        if pending_commit is None:
            raise GroupError(
                "the consumer that read these records does not take part in this transaction",
                hint="begin it with consumer.transaction(), or with store.transaction(consumers=…)",
            )
        pending_commit.add(read if isinstance(read, Batch) else None)

    # ---- once

    def once(self, writer: str, number: int, *, fingerprint: str = "", target: str = "") -> bool:
        """Commit this transaction at most once: the numbers of a writer, for each target, only go up.

        Return False if the number is committed, with the same fingerprint: there is nothing to do. What is sent all the
        same is dropped, `commit` and the end of the block change nothing, and `state` is "skipped" then. The same if
        another process commits the number first. Raise OnceMismatch, here or at the commit, if it is committed with
        another fingerprint, or a later number is: nothing of the transaction will be visible.
        """
        self._check_open()
        for name, value in (("writer", writer), ("fingerprint", fingerprint), ("target", target)):
            if not isinstance(value, str):
                raise TypeError(f"{name} is a str, not {type(value).__name__}")
            if len(value) > _MAX_ONCE:
                raise InvalidSetting(
                    f"{name}: {len(value)} characters", hint=f"expected at most {_MAX_ONCE}: a digest, say"
                )
        if type(number) is not int:  # nor bool
            raise TypeError(f"number is an int, not {type(number).__name__}")
        if not writer or not 0 <= number < 1 << 63:
            raise InvalidSetting(f"writer {writer!r}, number {number}", hint="expected a name, and a number from 0 on")
        if self._once is not None:
            raise TransactionError(f"the transaction has a number already: {self._once}", hint="begin another")
        self._once = WriterNumber(writer, target, number, fingerprint)
        with self._core.catalog.database.reading() as execute:
            self._is_repeated = once.is_committed(execute, self._once)
        return not self._is_repeated

    def _moves(self) -> list[PendingCommit]:
        """Return the pending commits that `commit_offsets` was called for; the others commit nothing."""
        return [pending_commit for pending_commit in self._pending_commits.values() if not pending_commit.is_empty]

    def _members_held(self) -> AbstractContextManager[None]:
        """Return a context that holds the members' mutexes, in one order: their watchdogs revoke nothing in it."""
        members = {id(pending_commit.member): pending_commit.member for pending_commit in self._moves()}
        return _os.Mutexes(member.mutex for _, member in sorted(members.items()))

    def _put_also(self, execute: Execute) -> list[Input]:
        """Write what is committed with the records: offsets of groups, and the number. Return what was read."""
        if self._once is not None:
            once.put(execute, self._once)
        moves = self._moves()
        for pending_commit in moves:
            pending_commit.check_ownership()
            put_offsets(
                execute, pending_commit.member.group_number, pending_commit.rows(), expect=pending_commit.expect()
            )
        return [read for pending_commit in moves for read in pending_commit.ranges()]

    def _complete_commits(self) -> None:
        for pending_commit in self._moves():
            pending_commit.done()

    # ---- the end

    def commit(self) -> None:
        """Make all of it visible; it is on disk when this returns. One that is to be skipped (`once`) ends."""
        with self._mutex:
            self._check_open()
            self._commit()

    def _commit(self) -> None:
        try:
            if self._failed is not None:
                raise self._refused()
            if self._is_repeated:
                raise AlreadyCommitted(f"{self._once}: is committed")
            self._drain()
            self._append_taken()
            for partition, end in self._ends.items():
                partition.sync(end)
            with self._members_held():
                self._core.transactions.decide(
                    self._identity or Identity(-1, None),
                    commit=True,
                    also=self._put_also if self._once or self._moves() else None,
                )
                self._complete_commits()
        except AlreadyCommitted as repeated:
            _log.info("%r: skipped: %s", self, repeated)
            self._is_skipped = True
            self._abort(None)
            return
        except BaseException as error:
            self._fail(error)
            try:
                self._abort(error)
            except Exception as failure:  # noqa: BLE001  # the first error is the one to be seen
                error.add_note(f"and the transaction could not be aborted, which others will see to: {failure}")
            raise
        self._mark(None, commit=True)

    def abort(self) -> None:
        """Make nothing of it visible; consumers go back to their groups' offsets. A second call does nothing."""
        with self._mutex:
            if self._state != "aborted":
                self._check_open()
                self._abort(self._failed)

    def _abort(self, error: BaseException | None, *, rewind: bool = True) -> None:
        """End it, as it was decided: after an interrupted `commit` that may be as committed."""
        identity = self._identity
        decided: bool | None = False
        try:
            if identity is not None and identity.partitions:
                decided = self._core.transactions.decide(identity, commit=False)
            if decided is None:  # others have ended it, and may be at it still
                self._end(False, error if isinstance(error, TransactionError) else Aborted("it was ended by others"))
            else:
                self._mark(error if isinstance(error, Fenced) else None, commit=decided)
            if decided:
                self._complete_commits()
        finally:
            try:
                if self._state == "open":
                    self._end(False, Aborted("its outcome is unknown"))
            finally:
                if rewind and self._state != "committed":
                    self._rewind(moved=self._is_skipped or isinstance(error, CommitGap))

    def _mark(self, failed: BaseException | None, *, commit: bool) -> None:
        try:
            if self._identity is not None:
                self._core.transactions.finish(self._identity, commit=commit)
        except KlammError as error:
            how = "committed" if commit else "aborted"
            _log.warning("%r: %s; writing some transaction markers failed and will be retried: %s", self, how, error)
            failed = error
        except BaseException as error:
            failed = error
            raise
        finally:
            self._end(commit, failed)

    def _end(self, committed: bool, error: BaseException | None) -> None:
        identity, self._identity = self._identity, None
        self._state = "committed" if committed else "skipped" if self._is_skipped else "aborted"
        for session in self._pending_commits:
            session.transaction = None
        if identity is not None:
            self._pool.give_back(self, identity, error)
        self._accumulators = {}
        for _, accumulator in self._topics.values():
            # a send of another thread, though this is for one: it raises, or its record is drained here
            accumulator.close()
            accumulator.drain()
        left = [delivery for _, accumulator in self._topics.values() for _, _, delivery in accumulator.take_full()]
        left += [*self._dropped, *(full[-1] for full in self._full)]
        self._topics = {}
        self._full.clear()
        appended, self._appended = self._appended, []
        interrupts = []
        for delivery, offset, stamp in [*appended, *((delivery, -1, -1) for delivery in left)]:
            try:
                if committed and offset >= 0:
                    delivery.resolve(offset, stamp)
                else:
                    delivery.fail(Aborted(f"the transaction that the record was sent in was {self._state}"))
            except BaseException as interrupt:  # noqa: BLE001  # of a callback; the other deliveries come first
                interrupts.append(interrupt)
        if interrupts:
            raise interrupts[0]

    def _hold_consumers(self) -> None:
        for session in self._pending_commits:
            session.transaction = self

    def _rewind(self, *, moved: bool) -> None:
        """Move its consumers back. `moved`: others have moved the group concurrently; continue where it is now."""
        failed: BaseException | None = None
        for session in self._pending_commits:
            try:
                session.rewind(reload=moved)
            except BaseException as error:  # noqa: BLE001  # the others go back, too; then it is raised
                failed = failed or error
        if failed is not None:
            raise failed

    def _close(self) -> None:
        """Close the transaction, because its store is closed."""
        with self._mutex:
            if self._state == "open" and not self._forked:
                self._abort(self._failed, rewind=False)

    def _check_open(self) -> None:
        if self._forked:
            raise Forked("this transaction was begun before the fork", hint="begin another in the child")
        if self._state != "open":
            raise TransactionError(f"the transaction is over: {self._state}", hint="begin another")

    def _in_child(self) -> None:
        self._forked = True
        self._accumulators = {}
        self._mutex = threading.RLock()
