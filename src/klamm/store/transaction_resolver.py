"""Resolving transactions: end what its own process or server will not, or not in time. The protocol: transactions.py.

Anybody may, at any time, and several at once, in these steps:

  1  look into the logs in question for open transactions; then read the rows
  2  a row whose process is gone, or whose time is over: abort it, if it is still ongoing
  3  each row that is decided, of a producer id the older one first: write its markers, sync, and let the row go, or be
     complete. A partition whose append lock a stopped process holds is left for the next time, with the row
  4  open in a log, and in no row: abort it

The server's rows are its own, as long as it lives; else a resolver takes the SERVER byte for 2 to 4.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from klamm.disk import locks
from klamm.disk._os import HeldBytes
from klamm.errors import KlammError, OutOfOrderSequence, UnknownTopic
from klamm.store import transaction_table as table
from klamm.store.group_commit import GroupCommit
from klamm.store.markers import (
    can_append,
    is_flushed_elsewhere,
    is_synced,
    sync_if_possible,
    write_marker,
    write_marker_now,
)
from klamm.store.transaction_state import (
    PROCESS,
    SERVER,
    Fence,
    Marked,
    Now,
    Outcome,
    Resolve,
    Row,
    step,
)
from klamm.store.turns import Turns
from klamm.types import PartitionKey

if TYPE_CHECKING:
    from klamm.log.partition import Partition
    from klamm.store.database import Execute
    from klamm.store.directory import Core

__all__ = ["Resolver"]

SyncAtOnce = Callable[[Sequence[tuple["Partition", int]]], object]
"""Syncs logs up to offsets, as far as possible without waiting for others."""

_MAX_OPENED = 10_000  # partitions that are found without looking into the catalog
_log = logging.getLogger("klamm")


class Resolver:
    """The resolver of a store. Thread-safe. `…_held`, `complete` of its rows, `abort_…`: for the holder of SERVER."""

    def __init__(self, core: Core, boot_id: str) -> None:
        self._core = core
        self.boot_id = boot_id
        self._opened: dict[PartitionKey, Partition] = {}
        self._reported: set[Partition] = set()  # logs in which something of the server's is open, and in no transaction
        self.changes = 0
        """Grows when others than the server change one of its rows in this process."""
        self.turns = Turns()
        """By transactional id: who changes a row of the server, or writes its markers, has its turn."""
        self.group_commit = GroupCommit(core.catalog.database)
        """For the server's rows, which several threads change."""
        self.sync_at_once: SyncAtOnce | None = None
        """Of the server: syncs of several partitions at once. Without it, one after the other."""

    def now(self) -> Now:
        heads = self._core.heads
        return Now(self.boot_id, heads.boot_ms(), heads.wall_ms(), heads.clock_ms())

    def resolve(
        self, stalled: Iterable[Partition] = (), *, of: int | None = None, only_abandoned: bool = False
    ) -> None:
        """Do all of the above.

        `stalled`: also look into these logs for what is open there and in no row. `of`: only that producer id's.
        `only_abandoned`: leave prepared rows to their processes, where those live. What cannot be done now, because a
        stopped process is in the way, or the disk is full, is left for the next time: nothing is raised.
        """
        if self._core.read_only:
            return
        try:
            self._resolve(list(stalled), of, only_abandoned)
        except KlammError as error:
            _log.warning("transactions cannot be resolved now: %s", error)

    def _resolve(self, stalled: list[Partition], of: int | None, only_abandoned: bool) -> None:
        opened = [
            (log, *found) for log in stalled for found in self._open_in(log)
        ]  # before the rows: a row comes first
        with self._core.catalog.database.reading() as execute:
            rows = table.rows(execute, of)
            query = "SELECT producer_id, epoch, owner FROM transactions"
            known = execute(query).fetchall() if opened else []  # with those that are damaged
        servers = [row for row in rows if row.owner == SERVER]
        others = [row for row in rows if row.owner != SERVER]
        decided = [row for row in others if row.is_prepared and not (only_abandoned and self.is_held(row))]
        self.complete(self._abort_due(others) + decided)
        keys = {(producer_id, epoch) for producer_id, epoch, _ in known}
        server_ids = {producer_id for producer_id, _, owner in known if owner == SERVER}
        for partition, producer_id, epoch, _ in opened:
            if producer_id in server_ids:
                continue  # its next transaction may have the same epoch, and have begun since we looked
            if (producer_id, epoch) not in keys and can_append(partition):
                partition.append_marker(producer_id, epoch + 1, commit=False)
        hanging = {log for log, producer_id, *_ in opened if producer_id in server_ids}
        now = self.now()
        if hanging or any(row.is_prepared or (row.is_ongoing and row.is_late(now)) for row in servers):
            self._resolve_for_server(hanging, of)

    def _resolve_for_server(self, hanging: set[Partition], of: int | None) -> None:
        """Resolve for a server, which does this itself within a second while it runs."""
        held: HeldBytes[int, None] = HeldBytes(self._core.members)
        with held:
            if self._core.members is None or not held.take(locks.SERVER, locks.SERVER):
                self._reported.update(hanging)  # for the server, if it lives in this process
                return
            self.resolve_held(of)
            self.abort_hanging(hanging)

    def resolve_held(self, of: int | None = None) -> bool:
        """Abort those of the server that have timed out, and mark those that are decided; whether there were any.

        Without those that another thread has its turn at: that one does it.
        """
        with self._core.catalog.database.reading() as execute:
            due = [row for row in table.rows(execute, of) if self._is_due(row)]
        found = False
        for row in due:
            with self.turns.attempt(row.name) as has_turn:
                found = (has_turn and self._resolve_id(row.producer_id)) or found
        return found

    def _is_due(self, row: Row) -> bool:
        return row.owner == SERVER and (row.is_prepared or (row.is_ongoing and row.is_late(self.now())))

    def _resolve_id(self, producer_id: int) -> bool:
        """Resolve one producer, in the turn of its name. Return whether there was something to do."""
        with self._core.catalog.database.reading() as execute:  # again: it may have been ended since
            rows = [row for row in table.rows(execute, producer_id) if self._is_due(row)]
        self.complete(self._abort_due(rows) + [row for row in rows if row.is_prepared])
        return bool(rows)

    def _abort_due(self, rows: list[Row]) -> list[Row]:
        """Abort those whose process is gone, or whose time is over, and return them."""
        now = self.now()
        events = [(row.key, Resolve(self.is_held(row))) for row in rows if row.is_ongoing]
        looked_at = {row.key: row for row in rows}
        due = [(key, event) for key, event in events if step(looked_at[key], event, now).outcome is Outcome.OK]
        if not due:
            return []
        aborted = []
        database = self._core.catalog.database
        with database.db_lock(), database.transaction() as execute:
            for key, event in due:
                row = table.find(execute, key)  # again: it may have been decided since
                done = step(row, event, now)
                if done.outcome is Outcome.OK and done.row is not None:
                    table.write(execute, row, done)
                    aborted.append(done.row)
        for ended in aborted:  # now that the write lock is released: a log may be slow
            _log.info("Aborting transaction %d/%d of transactional id %s", *ended.key, ended.name)
        return aborted

    def fence(self, execute: Execute, producer_id: int, *, loses_name: bool = False) -> bool:
        """Abort what a producer id has open, for any owner. Return whether it had something open."""
        found = False
        for row in table.rows(execute, producer_id):
            done = step(row, Fence(), self.now())
            if done.outcome is Outcome.OK:
                table.write(execute, row, done)
                found = True
            if row.owner == SERVER:
                self.changes += 1
                if loses_name and done.row is not None and done.row.is_over:
                    table.forget(execute, [done.row.key])
        return found

    def complete(self, rows: list[Row]) -> dict[tuple[int, int], Row | None]:
        """Write the markers of decided rows, as far as possible, and let the rows go, or be complete.

        Return what became of each; None: it is gone. Of the server's rows, the caller has the turn.
        """
        decided = sorted((row for row in rows if row.is_prepared), key=lambda row: row.key)  # of an id, the older first
        found: dict[tuple[int, int], Row | None] = {row.key: row for row in decided}
        found.update(self.write_complete([row for row in decided if self.mark_all(row)]))
        return found

    def write_complete(self, rows: list[Row]) -> dict[tuple[int, int], Row | None]:
        """Delete or complete the rows whose markers are on disk. Return what became of each."""

        def write(execute: Execute) -> dict[tuple[int, int], Row | None]:
            return {row.key: self._complete(execute, row) for row in rows}

        return self.group_commit.run(write, durable=False) if rows else {}  # a later one is durable

    def _complete(self, execute: Execute, row: Row) -> Row | None:
        is_server = row.owner == SERVER
        current = table.find_server(execute, row.producer_id) if is_server else table.find(execute, row.key)
        if current is None or current.key != row.key:
            return current
        has_name = row.name is not None and table.holder(execute, row.name) == row.producer_id
        done = step(current, Marked(has_name), self.now())
        if done.outcome is Outcome.OK:
            table.write(execute, current, done)
        return done.row

    def mark_all(self, row: Row) -> bool:
        """Return whether every marker is on disk, or its partition gone. One failure does not skip the others."""
        ends: list[tuple[Partition, int]] = []
        marked = [self._mark(row, key, ends) for key in sorted(row.partitions)]
        for synced in self.sync_each(ends):
            if isinstance(synced, KlammError):
                _log.warning("transaction %d/%d: a marker cannot be synced now: %s", *row.key, synced)
            marked.append(synced is True)
        return all(marked)

    def mark_now(self, rows: Sequence[Row]) -> list[bool]:
        """Like `mark_all` for several rows of the server, with one wait for the disk and none for other processes.

        Return of each whether every marker is on disk. If not, `mark_all` may still do it, or knows why it cannot.
        """
        ends: list[list[tuple[Partition, int]]] = []
        marked = [self._mark_now(row, ends) for row in rows]
        self.sync_now([end for some in ends for end in some])
        return [is_marked and is_synced(some) for is_marked, some in zip(marked, ends, strict=True)]

    def _mark_now(self, row: Row, ends: list[list[tuple[Partition, int]]]) -> bool:
        ends.append([])
        for key in sorted(row.partitions):
            partition = self._opened.get(key)
            if partition is None:
                return False
            try:
                end_offset = write_marker_now(partition, row)
            except KlammError:
                return False
            if end_offset is None:
                return False
            ends[-1].append((partition, end_offset))
        return True

    def sync_now(self, ends: list[tuple[Partition, int]]) -> None:
        """Sync logs up to these offsets, as far as possible without waiting for another process that syncs."""
        latest: dict[Partition, int] = {}
        for partition, end_offset in ends:
            latest[partition] = max(end_offset, latest.get(partition, 0))
        left = [end for end in latest.items() if not is_synced([end])]
        if len(left) > 1 and self.sync_at_once is not None:
            self.sync_at_once(left)
        for partition, end_offset in left:
            if not is_synced([(partition, end_offset)]) and not is_flushed_elsewhere(self._core, partition):
                with suppress(KlammError):  # it is not synced: that is what counts
                    partition.sync(end_offset)

    def _mark(self, row: Row, key: PartitionKey, ends: list[tuple[Partition, int]]) -> bool:
        """Write a marker, and add to `ends` where it is. Return False if that cannot be done now."""
        try:
            partition = self.partition(key)
            if not can_append(partition):
                return False
            try:
                end = write_marker(partition, row)
            except OutOfOrderSequence:
                if row.owner != SERVER:
                    raise
                self.abort_hanging([partition])  # a batch came late in an older epoch
                end = write_marker(partition, row)
            ends.append((partition, end))
        except UnknownTopic:
            return True
        except KlammError as error:
            _log.warning("%s/%d: transaction %d/%d cannot be ended there now: %s", *key, *row.key, error)
            return False
        return True

    def sync_each(self, ends: list[tuple[Partition, int]]) -> list[bool | KlammError]:
        """Sync logs up to these offsets. Return of each whether it is on disk, or why it is not."""
        if len(ends) > 1:
            self.sync_now(ends)
        return [self._sync(end) for end in ends]

    def _sync(self, end: tuple[Partition, int]) -> bool | KlammError:
        try:
            return is_synced([end]) or sync_if_possible(self._core, *end)
        except UnknownTopic:
            return True  # deleted: it has no readers either
        except KlammError as error:
            return error

    def partition(self, key: PartitionKey) -> Partition:
        """Return a partition by its topic's id. Raise UnknownTopic if that was deleted."""
        found = self._opened.get(key)
        if found is None:
            names = {topic.id: topic.name for topic in self._core.catalog.topics()}
            if key[0] not in names:
                raise UnknownTopic(f"there is no topic with id {key[0]}")
            found = self._core.topic(names[key[0]]).partition(key[1])
            if len(self._opened) >= _MAX_OPENED:
                self._opened.clear()
            self._opened[key] = found
        return found

    def are_open(self, keys: Iterable[PartitionKey]) -> bool:
        """Return whether `partition` has returned all of these before: then it returns them at once."""
        return all(key in self._opened for key in keys)

    def _open_in(self, partition: Partition) -> list[tuple[int, int, int]]:
        try:
            return partition.open_transactions() if can_append(partition) else []
        except KlammError:  # deleted, or damaged: its readers say so
            return []

    def is_held(self, row: Row) -> bool:
        """Return whether the process of a row lives."""
        members = self._core.members
        return row.owner == PROCESS and members is not None and bool(members.held(locks.TRANSACTION + row.producer_id))

    # ---- what came late in the server's transactions

    def abort_reported(self) -> None:
        """Like `abort_hanging`, where others have seen something."""
        reported, self._reported = self._reported, set()
        self.abort_hanging(reported)

    def abort_hanging(self, partitions: Iterable[Partition]) -> None:
        """Abort what is open in these logs and in no transaction. It came after the marker.

        What another thread is at is left to the next time: a transaction with the same epoch may begin there.
        """
        for partition in partitions:
            for producer_id, epoch, first in self._open_in(partition):
                row = self._server_row(producer_id)
                if row is None:
                    continue
                with self.turns.attempt(row.name) as has_turn:
                    if has_turn:
                        self._abort_late(partition, producer_id, epoch, first)
                    else:
                        self._reported.add(partition)

    def _server_row(self, producer_id: int) -> Row | None:
        with self._core.catalog.database.reading() as execute:
            return table.find_server(execute, producer_id)

    def _abort_late(self, partition: Partition, producer_id: int, epoch: int, first: int) -> None:
        """Abort a late transaction, in the turn of the producer's name."""
        row = self._server_row(producer_id)
        if row is None or (not row.is_over and epoch == row.epoch and self._has(row, partition)):
            return
        offset = partition.append_marker(producer_id, epoch, commit=False, same_epoch=True)
        if offset is not None:
            _log.warning(
                "%r: aborting late records of transactional id %r from offset %d on", partition, row.name, first
            )

    def _has(self, row: Row, partition: Partition) -> bool:
        for key in row.partitions:
            try:
                if self.partition(key) is partition:
                    return True
            except UnknownTopic:
                continue
        return False
