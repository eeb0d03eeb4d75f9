"""Transactions: records in any number of partitions and offsets of groups, all of them or none.

    transactions        a row for each transaction that is not over, and for each transactional id of the Kafka server
    transaction_names   which producer id writes under a transactional id now
    members             byte TRANSACTION + producer id: held by the process that uses it; free: that process is gone
                        byte SERVER: held by the Kafka server, or by a resolver for as long as it takes

transaction_state.py has the states of a row, transaction_table.py its columns. This module has the protocol, in this
order, for transactions of processes, of clients of the server and of Spark:

  1  own        the lock byte of the producer id, for as long as its process uses it; a client of the server: none
  2  register   the row, `ongoing`, on disk, with every partition that is about to be appended to
  3  append     transactional batches with (producer id, epoch); readers of committed records wait in front of the first
  4  sync       every partition that was appended to
  5  decide     one SQLite transaction, on disk: every row is still `ongoing`, offsets of groups, a number (once.py),
                `prepared_commit`. That is the commit point. To abort: `prepared_abort`
  6  mark       a marker in every partition of the row, whether or not it has records of the transaction
  7  forget     once every marker is on disk, the row is deleted, or complete: by a later registration, at the end, or
     by
                a resolver

What a process or a server that is killed leaves, and what `resolve`, in any process, does about it:

  after 1, 2    an `ongoing` row                               of a process: prepared_abort, 6, 7; a client goes on
  after 3, 4    the same, and records that were never seen     the same
  after 5, 6    a prepared row                                 6 and 7: markers that are there are not written again
  stopped       an `ongoing` row whose byte is held            left alone until `timeout_ms` have passed; then as above
  no row        open in a log, but in no row                   aborted. It cannot come from here (2 before 3, 6 before
                                                               7), but from a klamm.db that is older than its logs

Markers have the row's `next_epoch`. That is one more than the transaction's, so a late or repeated marker is not
written, and any process may write it. Clients of the server that use one epoch for all transactions are the exception:
there the marker has the transaction's epoch, and so has the next transaction. Hence only the holder of SERVER writes
markers of the server's rows.

Promises
  T1  A transaction's records and offsets become visible together, or never: the row's state alone decides, and
      every process that writes a marker has read it there. Rows that are decided together have the same end.
  T2  From the commit point on, the commit is on disk; the markers only publish it in the logs.
  T3  A late producer is fenced. The row is not `ongoing` any more: no registration, no commit. A marker lies in
      every registered partition: no append there, for it has a newer epoch. So an aborted transaction gets no more
      records, and a late commit cannot touch the next one, which has another epoch.
  T4  No process waits for one that is gone, nor for a stopped one longer than the transaction's timeout. A partition
      whose append lock a stopped process holds delays no other partition.
  T5  One process uses a producer id; its next epoch begins when every marker of the last one is written.
  T6  A name belongs to the process, or client of the server, that requested it last. The previous owner's transaction
      is aborted, and it can begin no other.
  WTX1  The server responds only after klamm.db has the change: a killed server forgets no name, epoch, registration or
        decision.
  WTX2  Offsets that are part of a client's transaction become the group's when it is committed. As long as they wait,
        the group's members belong to the server.
  WTX4  A complete row has no open record in any log, except late ones, which `abort_hanging` aborts.

No process waits for an append lock while it holds the klamm.db lock, nor the other way round. Time is CLOCK_BOOTTIME:
timeouts pass while the machine sleeps, and a jump of the wall clock ends nothing. After a boot every byte is free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from klamm.disk import locks
from klamm.disk._os import HeldBytes
from klamm.errors import Aborted, Fenced, KlammError, NotAStore, TransactionError, UnknownTopic
from klamm.store import transaction_table as table
from klamm.store.groups import OffsetRow, checked_name
from klamm.store.lineage import Input, LineageTable, Output
from klamm.store.markers import is_deleted
from klamm.store.transaction_resolver import Resolver
from klamm.store.transaction_state import (
    COORDINATOR,
    PROCESS,
    Add,
    End,
    Event,
    HandOver,
    Marked,
    Outcome,
    Row,
    Step,
    step,
)
from klamm.types import PartitionKey, TransactionInfo

if TYPE_CHECKING:
    from klamm.log.partition import Partition
    from klamm.store.database import Execute
    from klamm.store.directory import Core

__all__ = ["Identity", "Transactions", "fenced"]

Also = Callable[["Execute"], "list[Input] | None"]
_PIECE = 500  # names that are forgotten under one lock of klamm.db


class Identity:
    """A producer id of this process, and the epoch of its current or next transaction."""

    __slots__ = ("epoch", "held", "name", "partitions", "producer_id", "spoiled")

    def __init__(self, producer_id: int, name: str | None, epoch: int = 0) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.name = name
        self.partitions: dict[PartitionKey, Partition] = {}
        """The partitions that are registered."""
        self.spoiled = False
        """Not to be used again."""
        self.held: HeldBytes[int, None] | None = None
        """The byte of the producer id, while this process has it; released when the identity is dropped."""

    @property
    def key(self) -> tuple[int, int]:
        return self.producer_id, self.epoch


class _Finished(NamedTuple):
    """A transaction whose markers are written: its row may be deleted when they are on disk."""

    key: tuple[int, int]
    ends: list[tuple[Partition, int]]

    def is_on_disk(self) -> bool:
        return all(partition.log.flushed_offset >= end or is_deleted(partition) for partition, end in self.ends)


class Transactions:
    """The transactions of a store. Thread-safe. Methods for the server's rows are for the holder of SERVER."""

    def __init__(self, core: Core, boot_id: bytes) -> None:
        self._core = core
        self._mutex = threading.Lock()
        self._finished: list[_Finished] = []
        self.resolver = Resolver(core, boot_id.hex())
        self.resolve = self.resolver.resolve
        self.lineage = LineageTable(core)

    # ---- a process's own, in the order of the steps above

    def identity(self, name: str | None = None, *, after: Identity | None = None) -> Identity:
        """Return a new producer id. With a name, it takes that over; `after`: only from this id, or if the name is
        free.
        """
        core = self._core
        core.catalog.database.check_writable()
        made = Identity(core.catalog.allocate_producer_id(), name)
        assert core.members is not None
        made.held = HeldBytes(core.members)
        if not made.held.take(made.producer_id, locks.TRANSACTION + made.producer_id):
            raise NotAStore(
                f"{core.path}/members: producer id {made.producer_id} is new, and held by another process",
                hint="klamm.db may have been replaced by an older one while the store was in use",
            )
        if name is not None:
            try:
                self._take_over(made, name, after)
            except BaseException:
                self.let_go(made)
                raise
        return made

    def _take_over(self, made: Identity, name: str, after: Identity | None) -> None:
        database = self._core.catalog.database
        with database.db_lock(), database.transaction() as execute:
            before = table.holder(execute, name)
            if after is not None and before not in (
                after.producer_id,
                None,
            ):  # None: swept, because its process was gone
                raise fenced(name)
            if before is not None:
                self.resolver.fence(execute, before, loses_name=True)
            table.put_name(execute, name, made.producer_id)
        if before is not None:
            self.resolve(of=before)

    def register(self, mine: Identity, partitions: Mapping[PartitionKey, Partition], timeout_ms: int) -> None:
        """Add `partitions` to the transaction, on disk. Raise Aborted or Fenced if it is over."""
        with self._mutex:
            done = [finished for finished in self._finished if finished.is_on_disk()]
        database = self._core.catalog.database
        with database.db_lock(), database.transaction() as execute:
            self._step(execute, self._check_ongoing(execute, mine, timeout_ms), Add(mine.key, frozenset(partitions)))
            table.forget(execute, (finished.key for finished in done))
        mine.partitions = {**mine.partitions, **partitions}
        self._was_forgotten(done)

    def decide(self, *mine: Identity, commit: bool, also: Also | None = None) -> bool | None:
        """Step 5, for one transaction or several that have the same end. Return whether they are committed.

        None if another process ended them and the outcome is unknown. `also` writes what is to be committed with them,
        or raises; it returns the inputs for lineage.py, if known. Aborting a committed transaction changes nothing.
        """
        registered = [identity for identity in mine if identity.partitions]
        if not registered and also is None:
            return commit
        ends = []
        inputs: list[Input] | None = None
        outputs = {}
        if commit and self.lineage.retention_ms:
            outputs = {
                identity: self.lineage.outputs(identity.producer_id, identity.partitions.items()) for identity in mine
            }
        database = self._core.catalog.database
        with database.db_lock(), database.transaction() as execute:
            if commit:
                rows = {identity: self._check_ongoing(execute, identity) for identity in mine}
                if also is not None:
                    inputs = also(execute)
            for identity in registered:
                row = rows[identity] if commit else table.find(execute, identity.key)
                done = step(row, End(identity.key, commit, bumps=True), self.resolver.now())
                if done.outcome is Outcome.OK:
                    table.write(execute, row, done)
                    if row is not None and identity in outputs:
                        self.lineage.write(execute, row, inputs or (), outputs[identity])
                if done.row is not None:
                    ends.append(done.row.is_committed)
        return commit if not registered else any(ends) if ends else None

    def finish(self, mine: Identity, *, commit: bool) -> None:
        """Carry out step 6; the identity is then ready for its next transaction. After an error it is not: see
        `resolve`.
        """
        ends = []
        failed: Exception | None = None
        for partition in mine.partitions.values():
            try:
                offset = partition.append_marker(mine.producer_id, mine.epoch + 1, commit=commit)
                ends.append((partition, partition.snapshot().next_offset if offset is None else offset + 1))
            except UnknownTopic:
                continue  # deleted: it has no readers either
            except Exception as error:  # noqa: BLE001  # first the others; then it is raised
                failed = failed or error
        if failed is not None:
            raise failed
        if mine.partitions:
            with self._mutex:
                self._finished.append(_Finished(mine.key, ends))
            mine.partitions = {}
            mine.epoch += 1

    def let_go(self, mine: Identity) -> None:
        """Give up the producer id in this process. A resolver does what is left."""
        if mine.held is not None:
            mine.held.release_all()

    def hand_over(self, mine: Identity) -> tuple[int, int]:
        """Leave the transaction, whose records are synced, to a coordinator. Return the argument for its `adopt`.

        A coordinator in any process may decide it, together with others. If none does in time, it is aborted.
        """
        database = self._core.catalog.database
        with database.db_lock(), database.transaction() as execute:
            self._step(execute, self._check_ongoing(execute, mine), HandOver(mine.key))
        self.let_go(mine)
        return mine.key

    def adopt(self, producer_id: int, epoch: int) -> Identity:
        """Take over a transaction that was handed over, and return it. Raise Aborted if it is over."""
        mine = Identity(producer_id, None, epoch)
        with self._core.catalog.database.reading() as execute:
            row = table.find(execute, mine.key)
        if row is None or row.owner != COORDINATOR or not row.is_ongoing:
            raise _ended(mine)
        mine.name = row.name
        mine.partitions = {key: self.resolver.partition(key) for key in sorted(row.partitions)}
        mine.spoiled = True
        return mine

    def tidy(self, names: Iterable[Identity] = ()) -> None:
        """Carry out step 7 for all transactions of this process, and release the names that they hold."""
        with self._mutex:
            done = list(self._finished)
        for finished in done:
            for partition, end in finished.ends:
                if not is_deleted(partition):
                    partition.sync(end)
        named = [identity for identity in names if identity.name is not None]
        if done or named:
            database = self._core.catalog.database
            with database.db_lock(), database.transaction() as execute:
                table.forget(execute, (finished.key for finished in done))
                for identity in named:
                    table.forget_name(execute, identity.name, identity.producer_id)
            self._was_forgotten(done)

    def _was_forgotten(self, done: list[_Finished]) -> None:
        if done:
            with self._mutex:
                self._finished = [finished for finished in self._finished if finished not in done]

    def _check_ongoing(self, execute: Execute, mine: Identity, timeout_ms: int = 0) -> Row:
        """Return the row of a transaction of this process, a new one before its first registration.

        Raise Fenced if another producer has its name, Aborted if another process ended it.
        """
        if mine.name is not None and table.holder(execute, mine.name) != mine.producer_id:
            raise fenced(mine.name)
        if not mine.partitions:
            return Row(*mine.key, PROCESS, name=mine.name, next_epoch=mine.epoch, timeout_ms=timeout_ms)
        row = table.find(execute, mine.key)
        if row is None or not row.is_ongoing:
            raise _ended(mine)
        return row

    def _step(self, execute: Execute, row: Row, event: Event) -> None:
        done = step(row, event, self.resolver.now())
        assert done.outcome is Outcome.OK, done
        table.write(execute, row, done)

    def why_refused(self, mine: Identity) -> TransactionError:
        """Return the error for a batch that a log has rejected because of a marker."""
        with self._core.catalog.database.reading() as execute:
            try:
                self._check_ongoing(execute, mine)
            except TransactionError as error:
                return error
        return Fenced(f"producer id {mine.producer_id} is used by another process")

    # ---- the server's

    def version(self) -> object:
        """Return a value that changes when another process may have changed a row of the server."""
        return *self._core.catalog.database.others_version(), self.resolver.changes

    def apply(
        self,
        name: str,
        event: Event,
        *,
        durable: bool = True,
        offsets: tuple[str, list[OffsetRow]] | None = None,
        marked: Row | None = None,
    ) -> Step:
        """Apply an event of a client to the row that has its name. `offsets`, of a group, wait for the end.

        `marked`: a row whose markers are on disk; if it has not changed since, it is completed first.
        """
        outputs = None
        if isinstance(event, End) and event.commit and event.synced is not None and self.lineage.retention_ms:
            outputs = self.lineage.outputs(event.client[0], self._open(event.synced))
        done, taken = self.resolver.group_commit.run(
            lambda execute: self._apply(execute, name, event, offsets, outputs, marked), durable=durable
        )
        if taken is not None:
            self.resolve(of=taken)
        return done

    def apply_all(self, requests: Sequence[tuple[str, Event, Row | None]]) -> list[Step]:
        """Like `apply` for several names, each with its `marked`, in one write. No event may take over a name; no
        lineage.
        """

        def write(execute: Execute) -> list[Step]:
            return [self._apply(execute, name, event, None, None, marked)[0] for name, event, marked in requests]

        return self.resolver.group_commit.run(write)

    def _apply(
        self,
        execute: Execute,
        name: str,
        event: Event,
        offsets: tuple[str, list[OffsetRow]] | None,
        outputs: list[Output] | None,
        marked: Row | None,
    ) -> tuple[Step, int | None]:
        """Return the new row, and the producer id of a process that has lost the name."""
        producer_id, before = table.find_named(execute, name)
        now, taken = self.resolver.now(), None
        row = before
        if producer_id is not None and row is None:
            row = Row(producer_id, 0, PROCESS, name=name)
        elif row is not None and row == marked:
            row = step(row, Marked(), now).row
        done = step(row, event, now)
        if done.row is None or done.outcome not in (Outcome.OK, Outcome.CONCURRENT):
            return done, None
        if row is not None and row.owner == PROCESS:
            self.resolver.fence(execute, row.producer_id)
            taken = row.producer_id
        if producer_id != done.row.producer_id:
            table.put_name(execute, name, done.row.producer_id)
        if done.row != before:
            if outputs is not None and before is not None and before.is_ongoing:
                self.lineage.write(execute, before, table.pending_ranges(execute, before.producer_id), outputs)
            table.write(execute, before, done)
        if offsets is not None and done.outcome is Outcome.OK:
            group = self._core.groups.claim(execute, checked_name(offsets[0]), "kafka")
            table.put_pending(execute, done.row.producer_id, group.number, offsets[1])
        return done, taken

    def outputs(self, row: Row) -> list[Output]:
        """Return what a transaction of a client has written, for lineage."""
        return self.lineage.outputs(row.producer_id, self._open(row.partitions))

    def _open(self, keys: Iterable[PartitionKey]) -> Iterator[tuple[PartitionKey, Partition]]:
        for key in sorted(keys):
            with suppress(UnknownTopic):
                yield key, self.resolver.partition(key)

    def sync(self, partitions: Iterable[PartitionKey]) -> bool:
        """Carry out step 4 for a client's transaction: return whether everything in these partitions is on disk."""
        synced = self.resolver.sync_each(self.ends(partitions))
        for error in synced:
            if isinstance(error, KlammError):
                raise error
        return all(synced)

    def ends(self, partitions: Iterable[PartitionKey]) -> list[tuple[Partition, int]]:
        """Return where these logs end now, without deleted ones."""
        found = []
        for _, partition in self._open(partitions):
            with suppress(UnknownTopic):
                found.append((partition, partition.snapshot().next_offset))
        return found

    def expire(self, unused_ms: int) -> None:
        """Delete names that clients have not used for this long."""
        database = self._core.catalog.database
        oldest_ms = self._core.heads.clock_ms() - unused_ms
        with database.reading() as execute:
            unused = table.unused(execute, oldest_ms)
        for start in range(0, len(unused), _PIECE):
            with database.db_lock(), database.transaction() as execute:
                for row in unused[start : start + _PIECE]:
                    if table.find(execute, row.key) == row:
                        table.forget(execute, [row.key])
                        table.forget_name(execute, row.name, row.producer_id)

    # ---- for people, and for maintenance

    def infos(self) -> list[TransactionInfo]:
        """Return the transactions that are not over, or whose rows still exist."""
        names = {topic.id: topic.name for topic in self._core.catalog.topics()}
        now = self._core.heads.boot_ms()
        with self._core.catalog.database.reading() as execute:
            rows = [row for row in table.rows(execute) if not row.is_over]
        return [
            TransactionInfo(
                row.producer_id,
                row.epoch,
                row.name,
                row.state,
                now - row.started_boot_ms if row.boot_id == self.resolver.boot_id else None,
                row.timeout_ms,
                tuple(sorted((names[topic], number) for topic, number in row.partitions if topic in names)),
                row.started_ms,
            )
            for row in rows
        ]

    def abort(self, producer_id: int, *, only: tuple[int, int] | None = None) -> bool:
        """Abort the open transaction of a producer id, for any owner. Return False if there is none.

        `only`: epoch and started_ms of the transaction to abort; any other goes on.
        """
        database = self._core.catalog.database
        with database.db_lock(), database.transaction() as execute:
            if only is not None and only not in {
                (row.epoch, row.started_ms) for row in table.rows(execute, producer_id) if row.is_ongoing
            }:
                return False
            found = self.resolver.fence(execute, producer_id)
        self.resolve(of=producer_id)
        return found

    def sweep_names(self) -> None:
        """Delete names whose processes are gone: they fence no producer any more. Others are the server's, or handed
        over.
        """
        held = self._core.catalog.database.read(
            "SELECT name, producer_id FROM transaction_names"
            " WHERE producer_id NOT IN (SELECT producer_id FROM transactions WHERE owner != ?)",
            (PROCESS,),
        )
        gone = [
            (name, producer_id) for name, producer_id in held if not self.resolver.is_held(Row(producer_id, 0, PROCESS))
        ]
        if gone:
            database = self._core.catalog.database
            with database.db_lock(), database.transaction() as execute:
                for name, producer_id in gone:
                    table.forget_name(execute, name, producer_id)

    def check(self) -> list[str]:
        """Return what is wrong with the rows."""
        with self._core.catalog.database.reading() as execute:
            return table.check(execute)


def _ended(mine: Identity) -> Aborted:
    return Aborted(
        f"the transaction of producer id {mine.producer_id} was ended by another process",
        hint="it took longer than its timeout_ms; nothing of it will be read: begin another",
    )


def fenced(name: str) -> Fenced:
    return Fenced(
        f"the transactional id {name!r} belongs to a newer producer",
        hint="there can be one at a time; open the store again to take over",
    )
