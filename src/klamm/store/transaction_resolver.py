"""The resolver: ends transactions whose own process or server does not, or not in time. The protocol: transactions.py.

Any process may resolve, at any time, several concurrently, in these steps:

  1  look into the logs in question for open transactions; then read the rows
  2  abort each row that is still ongoing and whose process is gone, or whose timeout has passed
  3  for each decided row, the older one of a producer id first: write its markers, sync, and delete the row or make it
     complete. A partition whose append lock a stopped process holds is left for the next time, with the row
  4  abort each transaction that is open in a log and has no row

Only the server resolves its rows as long as it lives; otherwise a resolver takes the SERVER byte for 2 to 4.
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
        """Turns by transactional id: needed to change a row of the server, or to write its markers."""
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
        """Do all steps.

        `stalled`: logs to search for open transactions without a row. `of`: only rows of that producer id.
        `only_abandoned`: leave prepared rows to their processes, if those live. What cannot be done now, because of a
        stopped process or a full disk, is left for the next time: nothing is raised.
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
        """Resolve the server's rows, unless a server runs: it does so itself within a second."""
        held: HeldBytes[int, None] = HeldBytes(self._core.members)
        with held:
            if self._core.members is None or not held.take(locks.SERVER, locks.SERVER):
                self._reported.update(hanging)  # for the server, if it lives in this process
                return
            self.resolve_held(of)
            self.abort_hanging(hanging)

    def resolve_held(self, of: int | None = None) -> bool:
        """Abort the server's transactions that have timed out, and complete the decided ones. Return whether there were
        any.

        Skips transactional ids at which another thread has the turn: that thread does it.
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
        """Resolve one producer, with the turn of its name. Return whether there was something to do."""
        with self._core.catalog.database.reading() as execute:  # again: it may have been ended since
            rows = [row for row in table.rows(execute, producer_id) if self._is_due(row)]
        self.complete(self._abort_due(rows) + [row for row in rows if row.is_prepared])
        return bool(rows)

    def _abort_due(self, rows: list[Row]) -> list[Row]:
        """Abort and return the rows whose process is gone, or whose timeout has passed."""
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
        """Write the markers of decided rows, as far as possible; then delete the rows, or make them complete.

        Return each row as it is now, None if it is deleted. The caller has the turns of the server's rows.
        """
        decided = sorted((row for row in rows if row.is_prepared), key=lambda row: row.key)  # of an id, the older first
        found: dict[tuple[int, int], Row | None] = {row.key: row for row in decided}
        found.update(self.write_complete([row for row in decided if self.mark_all(row)]))
        return found

    def write_complete(self, rows: list[Row]) -> dict[tuple[int, int], Row | None]:
        """Delete or complete the rows, whose markers are on disk. Return each as it is now, None if it is deleted."""

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
        """Write all markers. Return whether each is on disk, or its partition deleted. A failure skips no other."""
        ends: list[tuple[Partition, int]] = []
        marked = [self._mark(row, key, ends) for key in sorted(row.partitions)]
        for synced in self.sync_each(ends):
            if isinstance(synced, KlammError):
                _log.warning("transaction %d/%d: a marker cannot be synced now: %s", *row.key, synced)
            marked.append(synced is True)
        return all(marked)

    def mark_now(self, rows: Sequence[Row]) -> list[bool]:
        """Like `mark_all` for several rows of the server, with one wait for the disk and none for other processes.

        Return for each row whether every marker is on disk. If not, `mark_all` may still succeed, or raises the reason.
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
                with suppress(KlammError):  # not synced; the reason does not matter here
                    partition.sync(end_offset)

    def _mark(self, row: Row, key: PartitionKey, ends: list[tuple[Partition, int]]) -> bool:
        """Write a marker, and add its end to `ends`. Return False if that is not possible now."""
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
        """Sync logs up to these offsets. Return for each whether it is on disk, or the error."""
        if len(ends) > 1:
            self.sync_now(ends)
        return [self._sync(end) for end in ends]

    def _sync(self, end: tuple[Partition, int]) -> bool | KlammError:
        try:
            return is_synced([end]) or sync_if_possible(self._core, *end)
        except UnknownTopic:
            return True  # deleted: it has no readers
        except KlammError as error:
            return error

    def partition(self, key: PartitionKey) -> Partition:
        """Return a partition by its topic's id. Raise UnknownTopic if that was deleted."""
        found = self._opened.get(key)
        if found is None:
            names = self._core.catalog.database.read("SELECT name FROM topics WHERE id = ?", key[:1])
            topic = self._core.topic(names[0][0]) if names else None
            if topic is None or topic.topic.id != key[0]:  # deleted; by now there may be another one of its name
                raise UnknownTopic(f"there is no topic with id {key[0]}")
            found = topic.partition(key[1])
            if len(self._opened) >= _MAX_OPENED:
                self._opened.clear()
            self._opened[key] = found
        return found

    def are_open(self, keys: Iterable[PartitionKey]) -> bool:
        """Return whether `partition` has returned all of these before, so that it will do so without waiting."""
        return all(key in self._opened for key in keys)

    def _open_in(self, partition: Partition) -> list[tuple[int, int, int]]:
        try:
            return partition.open_transactions() if can_append(partition) else []
        except KlammError:  # deleted, or damaged: its readers raise the error
            return []

    def is_held(self, row: Row) -> bool:
        """Return whether the process of a row is alive."""
        members = self._core.members
        return row.owner == PROCESS and members is not None and bool(members.held(locks.TRANSACTION + row.producer_id))

    # ---- what came late in the server's transactions

    def abort_reported(self) -> None:
        """Like `abort_hanging`, for the logs in which other threads have found open transactions."""
        reported, self._reported = self._reported, set()
        self.abort_hanging(reported)

    def abort_hanging(self, partitions: Iterable[Partition]) -> None:
        """Abort open transactions in these logs that have no row: their records came after the marker.

        Producers at which another thread has the turn are left for the next time: a transaction with the same epoch may
        begin there.
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
        """Abort a late transaction, with the turn of the producer's name."""
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
