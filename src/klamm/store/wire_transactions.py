"""Transactions of producers that talk to a Kafka server: what the server must not forget when it is killed.

    wire_producers    producer_id, name, epoch, last_epoch, previous_id, state, ended_epoch, timeout_ms, boot_id,
                      started_boot_ms, started_ms, used_ms, partitions, groups, crc
    pending_offsets   producer_id, group_number, topic_id, partition, offset, leader_epoch, metadata, committed_ms, crc

A row is one transactional id, by the producer id that it has now, and the transaction that it is in. `epoch` is what
the client has to say next; `last_epoch` what it said before, so that a call that comes twice is known; `previous_id`
the producer id before this one, when its epochs had come to an end. `partitions` and `groups` are JSON.

    empty ─┬─▶ ongoing ──▶ prepared_commit ──▶ complete_commit ─┐      prepared: decided, on disk; markers are missing
           │        └────▶ prepared_abort ───▶ complete_abort ──┤      complete: every marker is on disk
           └────────────────────────────────────────────────────┘

The steps are those of transactions.py: register, append, sync, decide, mark. What differs:

  who lives    No lock byte: the server may be killed and come again while its client goes on. A transaction is ended by
               its client, by its time-out, by whoever takes its name, by a person. After a boot it has timed out.
  one row      A producer has one transaction at a time. The next one begins when the last one is complete.
  two kinds    `ended_epoch` is the epoch of what was decided. Markers bear `epoch`. In one kind (KIP-890, and whenever
               a transaction is ended by others) that is one more, as in a program's transaction. In the older kind it
               is the same, and so is the next transaction's: nothing in a log tells a late marker from one in time.
  who marks    Hence only who holds the SERVER byte of `members` writes markers of these rows: the server, or, where
               none lives, a resolver for as long as it takes. It resolves what is prepared, and what has timed out.

Promises, besides T1 to T6
  W1  Whatever was answered is in klamm.db: a killed server forgets no name, no epoch, no registration, no decision.
  W2  Offsets that are part of a transaction are nobody's until it is committed; they become the group's in the SQLite
      transaction that decides it. As long as they wait, the group's members sit at the server's door.
  W3  A name is held by one producer id, of a program or of the wire (`transaction_names`). Who takes it over fences the
      other, and what that one had open is aborted.
  W4  A row that is complete has no open record in any log, except one that came late. `end_strays` aborts those.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.disk._os import HeldBytes
from klamm.disk.locks import SERVER
from klamm.errors import KlammError, NotAStore, OutOfOrderSequence, UnknownTopic
from klamm.store.database import REBUILD
from klamm.store.groups import OffsetRow, checked_name, put_offsets
from klamm.store.marking import (
    ABORT,
    COMMIT,
    ONGOING,
    Place,
    can_append,
    holder,
    parse_places,
    put_name,
    spell_places,
    sync_if_possible,
)
from klamm.store.rows import crc
from klamm.types import TransactionInfo

if TYPE_CHECKING:
    from klamm.log.partition import Partition
    from klamm.store.database import Execute
    from klamm.store.directory import Core

__all__ = [
    "COMPLETE_ABORT",
    "COMPLETE_COMMIT",
    "EMPTY",
    "SCHEMA",
    "Known",
    "PendingKey",
    "Rule",
    "WireRow",
    "WireTransactions",
    "hold_server",
]

EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT = "empty", "complete_commit", "complete_abort"
_COMPLETE = {COMMIT: COMPLETE_COMMIT, ABORT: COMPLETE_ABORT}
_STATES = (EMPTY, ONGOING, COMMIT, ABORT, COMPLETE_COMMIT, COMPLETE_ABORT)
_MAX_KNOWN = 10_000  # partitions that are found without looking into the catalog
_log = logging.getLogger("klamm")

SCHEMA = """
CREATE TABLE wire_producers (
    producer_id INTEGER PRIMARY KEY, name TEXT NOT NULL, epoch INTEGER NOT NULL, last_epoch INTEGER NOT NULL,
    previous_id INTEGER NOT NULL, state TEXT NOT NULL, ended_epoch INTEGER NOT NULL, timeout_ms INTEGER NOT NULL,
    boot_id TEXT NOT NULL, started_boot_ms INTEGER NOT NULL, started_ms INTEGER NOT NULL, used_ms INTEGER NOT NULL,
    partitions TEXT NOT NULL, groups TEXT NOT NULL, crc INTEGER NOT NULL
);
CREATE TABLE pending_offsets (
    producer_id INTEGER NOT NULL, group_number INTEGER NOT NULL, topic_id TEXT NOT NULL, partition INTEGER NOT NULL,
    offset INTEGER NOT NULL, leader_epoch INTEGER NOT NULL, metadata TEXT NOT NULL, committed_ms INTEGER NOT NULL,
    crc INTEGER NOT NULL, PRIMARY KEY (producer_id, group_number, topic_id, partition)
) WITHOUT ROWID;
CREATE INDEX pending_offsets_by_group ON pending_offsets (group_number);
CREATE INDEX pending_offsets_by_topic ON pending_offsets (topic_id);
"""

PendingKey = tuple[str, str, int]
"""Group name, topic id, partition."""


class WireRow(NamedTuple):
    producer_id: int
    name: str
    epoch: int
    last_epoch: int = -1
    previous_id: int = -1
    state: str = EMPTY
    ended_epoch: int = -1
    timeout_ms: int = 60_000
    boot_id: str = ""
    started_boot_ms: int = 0
    started_ms: int = -1
    used_ms: int = 0
    places: frozenset[Place] = frozenset()
    groups: frozenset[str] = frozenset()

    @property
    def is_ongoing(self) -> bool:
        return self.state == ONGOING

    @property
    def is_prepared(self) -> bool:
        return self.state in (COMMIT, ABORT)

    @property
    def is_over(self) -> bool:
        """Nothing of it is open anywhere."""
        return not self.is_ongoing and not self.is_prepared

    @property
    def keeps_epoch(self) -> bool:
        """Decided, in the older way: its markers bear the epoch of the transaction itself."""
        return self.epoch == self.ended_epoch

    def ended(self, *, commit: bool, next_epoch: int, last_epoch: int) -> WireRow:
        """Decided. Without a partition there is nothing to be marked."""
        state = COMMIT if commit else ABORT
        ended = self._replace(state=state, ended_epoch=self.epoch, epoch=next_epoch, last_epoch=last_epoch)
        return ended if self.places else ended.completed()

    def fenced(self, last_epoch: int = -1) -> WireRow:
        """Aborted by somebody else than its client. `last_epoch`: who is to know all the same."""
        return self.ended(commit=False, next_epoch=self.epoch + 1, last_epoch=last_epoch)

    def completed(self) -> WireRow:
        return self._replace(
            state=_COMPLETE[self.state], ended_epoch=-1, started_ms=-1, places=frozenset(), groups=frozenset()
        )


class Known(NamedTuple):
    """Everything, as of one moment."""

    rows: dict[int, WireRow]
    names: dict[str, int]
    pending: dict[int, set[PendingKey]]


Rule = Callable[[WireRow | None, int | None], tuple[WireRow, ...]]
"""What becomes of a name: from its row, and the producer id that holds it (with a row, that row's). The last of the new
rows is the name's from now on. It raises to refuse, and nothing is changed then."""


def hold_server(core: Core, wait_s: float = 5.0) -> bool:
    """Be the server of the store, until `members` is closed or the byte released. False if there is one already.

    A resolver holds the byte for moments: hence the wait.
    """
    members = core.members
    assert members is not None
    until = time.monotonic() + wait_s
    while not members.try_hold(SERVER):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


class WireTransactions:
    """Those of a store. What changes rows under a name is for the server; the rest for anybody."""

    def __init__(self, core: Core, boot_id: str) -> None:
        self._core = core
        self._boot_id = boot_id
        self._partitions: dict[Place, Partition] = {}
        self._reported: set[Partition] = set()  # logs in which something is open that is in no transaction
        self.changes = 0
        """Grows when somebody else than the server has changed a row in this process."""

    # ---- the server's

    def load(self) -> Known:
        """What there is."""
        with self._core.catalog.database.reading() as execute:
            rows = {row.producer_id: row for row in self._rows(execute)}
            names = {
                name: producer_id
                for name, producer_id in execute("SELECT name, producer_id FROM transaction_names").fetchall()
                if producer_id in rows
            }
            pending: dict[int, set[PendingKey]] = {}
            query = """SELECT p.producer_id, g.name, p.topic_id, p.partition FROM pending_offsets p
                JOIN groups g ON g.number = p.group_number"""
            for producer_id, *key in execute(query).fetchall():
                pending.setdefault(producer_id, set()).add(tuple(key))
        return Known(rows, names, pending)

    def version(self) -> object:
        """Differs from an earlier answer when somebody else than the server may have changed a row."""
        return *self._core.catalog.database.others_version(), self.changes

    def change(
        self,
        name: str,
        rule: Rule,
        *,
        durable: bool = True,
        offsets: tuple[str, list[OffsetRow]] | None = None,
    ) -> tuple[WireRow, ...]:
        """Apply a rule to a name, in one SQLite transaction; `offsets`, of a group, wait for the transaction's end."""
        database = self._core.catalog.database
        before: int | None = None
        with database.gate(), database.transaction(durable=durable) as execute:
            held = holder(execute, name)
            row = None if held is None else _find(execute, held)
            rows = tuple(each._replace(used_ms=self._core.heads.clock_ms()) for each in rule(row, held))
            if held is not None and row is None:  # a program's
                self._core.transactions.prepare_abort(execute, held)
                before = held
            if held != rows[-1].producer_id:
                put_name(execute, name, rows[-1].producer_id)
            for each in rows:
                if each.is_over and each is not rows[-1]:
                    self._settle(execute, each)
                    _forget(execute, each.producer_id)
                else:
                    self._put(execute, each)
            if offsets is not None:
                group = self._core.groups.claim(execute, checked_name(offsets[0]), "kafka")
                _put_pending(execute, rows[-1].producer_id, group.number, offsets[1])
        if before is not None:
            self._core.transactions.resolve(of=before)
        return rows

    def begun(self, row: WireRow, places: Iterable[Place], groups: Iterable[str] = ()) -> WireRow:
        """With these in its transaction; if it has none, that begins."""
        if not row.is_ongoing:
            row = row._replace(
                state=ONGOING,
                boot_id=self._boot_id,
                started_boot_ms=self._core.heads.boot_ms(),
                started_ms=self._core.heads.wall_ms(),
                places=frozenset(),
                groups=frozenset(),
            )
        return row._replace(places=row.places.union(places), groups=row.groups.union(groups))

    def sync(self, places: Iterable[Place]) -> bool:
        """Step 4, before a transaction is committed: whether all that is in these partitions is on disk."""
        for place in sorted(places):
            try:
                partition = self.partition(place)
                if not sync_if_possible(self._core, partition, partition.snapshot().next_offset):
                    return False
            except UnknownTopic:
                continue
        return True

    def finish(self, row: WireRow) -> WireRow | None:
        """Step 6, by who holds SERVER: mark every partition of a prepared row. The row, complete if that could be done;
        None if it is gone, because its name belongs to another one.
        """
        marked = [self._finish_place(row, place) for place in sorted(row.places)]  # each, whatever became of the others
        if not all(marked):
            return row
        database = self._core.catalog.database
        with database.gate(), database.transaction(durable=False) as execute:  # the next registration makes it so
            now = _find(execute, row.producer_id)
            if now is None or not now.is_prepared:
                return now
            if holder(execute, now.name) != now.producer_id:
                _forget(execute, now.producer_id)
                return None
            now = now.completed()
            self._put(execute, now)
        return now

    def _finish_place(self, row: WireRow, place: Place) -> bool:
        """Whether the marker is on disk, or the partition is gone."""
        try:
            partition = self.partition(place)
            if not can_append(partition):
                return False
            try:
                end = _mark(partition, row)
            except OutOfOrderSequence:  # something came late in an older epoch
                self.end_strays([partition])
                end = _mark(partition, row)
            return sync_if_possible(self._core, partition, end)
        except UnknownTopic:
            return True
        except KlammError as error:
            _log.warning("%s/%d: transaction of %r cannot be ended there now: %s", *place, row.name, error)
            return False

    def partition(self, place: Place) -> Partition:
        found = self._partitions.get(place)
        if found is None:
            names = {topic.id: topic.name for topic in self._core.catalog.topics()}
            if place[0] not in names:
                raise UnknownTopic(f"there is no topic with id {place[0]}")
            found = self._core.topic(names[place[0]]).partition(place[1])
            if len(self._partitions) >= _MAX_KNOWN:
                self._partitions.clear()
            self._partitions[place] = found
        return found

    def timed_out(self, row: WireRow) -> bool:
        return row.boot_id != self._boot_id or self._core.heads.boot_ms() - row.started_boot_ms > row.timeout_ms

    def resolve_held(self, of: int | None = None) -> None:
        """By who holds SERVER: abort what has timed out, and mark what is prepared."""
        database = self._core.catalog.database
        with database.reading() as execute:
            rows = [row for row in self._rows(execute) if of in (None, row.producer_id)]
        late = [row for row in rows if row.is_ongoing and self.timed_out(row)]
        if late:
            with database.gate(), database.transaction() as execute:
                for row in late:
                    now = _find(execute, row.producer_id)
                    if now is not None and now.is_ongoing and self.timed_out(now):
                        _log.info("the transaction of %r is aborted after %d ms", now.name, now.timeout_ms)
                        self._put(execute, now.fenced())
            with database.reading() as execute:
                rows = [row for row in self._rows(execute) if of in (None, row.producer_id)]
        for row in rows:
            if row.is_prepared:
                self.finish(row)

    def end_reported(self) -> None:
        """By who holds SERVER: `end_strays`, where others have seen some."""
        reported, self._reported = self._reported, set()
        self.end_strays(reported)

    def end_strays(self, partitions: Iterable[Partition]) -> None:
        """By who holds SERVER: abort what is open in these logs and in no transaction. It came after the marker."""
        for partition in partitions:
            try:
                opened = partition.open_transactions() if can_append(partition) else []
            except KlammError:  # deleted, or damaged: its readers say so
                continue
            for producer_id, epoch, first in opened:
                with self._core.catalog.database.reading() as execute:
                    row = _find(execute, producer_id)
                if row is None or (epoch == self._open_epoch(row) and self._has(row, partition)):
                    continue
                offset = partition.append_marker(producer_id, epoch, commit=False, same_epoch=True)
                if offset is not None:
                    _log.warning("%r: what %r wrote from offset %d on came too late", partition, row.name, first)

    def _open_epoch(self, row: WireRow) -> int:
        return row.epoch if row.is_ongoing else row.ended_epoch

    def _has(self, row: WireRow, partition: Partition) -> bool:
        for place in row.places:
            try:
                if self.partition(place) is partition:
                    return True
            except UnknownTopic:
                continue
        return False

    def expire(self, unused_ms: int) -> None:
        """Forget names that nobody has used for so long."""
        database = self._core.catalog.database
        oldest = self._core.heads.clock_ms() - unused_ms
        query = "SELECT producer_id FROM wire_producers WHERE used_ms < ?"
        if not database.read(query, (oldest,)):
            return
        with database.gate(), database.transaction() as execute:
            for (producer_id,) in execute(query, (oldest,)).fetchall():
                row = _find(execute, producer_id)
                if row is not None and row.is_over:
                    _forget(execute, producer_id)
                    execute("DELETE FROM transaction_names WHERE producer_id = ?", (producer_id,))

    # ---- anybody's

    def resolve(self, stuck: Iterable[Partition] = (), *, of: int | None = None) -> None:
        """End what its server cannot, because none lives. Where one does, it will within a second."""
        stuck = list(stuck)
        with self._core.catalog.database.reading() as execute:
            rows = [row for row in self._rows(execute) if of in (None, row.producer_id)]
        if not stuck and not any(row.is_prepared or (row.is_ongoing and self.timed_out(row)) for row in rows):
            return
        held: HeldBytes[int, None] = HeldBytes(self._core.members)
        with held:
            if self._core.members is None or not held.take(SERVER, SERVER):
                self._reported.update(stuck)  # for the server, if it lives in this process
                return
            self.resolve_held(of)
            self.end_strays(stuck)

    def fence(self, execute: Execute, producer_id: int) -> bool:
        """Inside of a transaction: abort what it has open. Whether it has something open."""
        row = _find(execute, producer_id)
        if row is None or not row.is_ongoing:
            return False
        self._put(execute, row.fenced())
        self.changes += 1
        return True

    def lose_name(self, execute: Execute, producer_id: int) -> None:
        """Inside of a transaction: a program takes its name over."""
        self.fence(execute, producer_id)
        row = _find(execute, producer_id)
        if row is not None and row.is_over:
            _forget(execute, producer_id)
        self.changes += 1

    def ids(self, execute: Execute) -> frozenset[int]:
        """All producer ids of the wire that have a name."""
        return frozenset(row[0] for row in execute("SELECT producer_id FROM wire_producers").fetchall())

    def infos(self, execute: Execute, topics: Mapping[str, str]) -> list[TransactionInfo]:
        """What is not over, for people; `topics`: names by id."""
        now = self._core.heads.boot_ms()
        return [
            TransactionInfo(
                row.producer_id,
                self._open_epoch(row),
                row.name,
                row.state,
                now - row.started_boot_ms if row.boot_id == self._boot_id else None,
                row.timeout_ms,
                tuple(sorted((topics[topic], number) for topic, number in row.places if topic in topics)),
            )
            for row in self._rows(execute)
            if not row.is_over
        ]

    def check(self, execute: Execute) -> list[str]:
        """What is wrong with the rows."""
        problems = []
        found = set()
        for values in execute(f"SELECT {_COLUMNS} FROM wire_producers").fetchall():
            try:
                row = _parse(values)
            except ValueError as error:
                problems.append(f"wire_producers: the row of producer id {values[0]}: {error}")
            else:
                found.add(row.producer_id)
                if row.is_over and holder(execute, row.name) != row.producer_id:
                    problems.append(f"wire_producers: producer id {row.producer_id} does not hold {row.name!r}")
        for pending in execute("SELECT * FROM pending_offsets").fetchall():
            where = f"pending_offsets: producer id {pending[0]}, topic {pending[2]}, partition {pending[3]}"
            if pending[-1] != crc(*pending[:-1]):
                problems.append(f"{where}: the checksum does not fit")
            elif pending[0] not in found and not problems:
                problems.append(f"{where} belongs to no transaction")
        return problems

    # ---- rows; under the gate, where something is written

    def _rows(self, execute: Execute) -> list[WireRow]:
        """All that can be believed; `check` tells of the others, and nobody may guess how they ended."""
        found = []
        for values in execute(f"SELECT {_COLUMNS} FROM wire_producers").fetchall():
            try:
                found.append(_parse(values))
            except ValueError as error:
                _log.error("%s: wire_producers: producer id %s: %s", self._core.catalog.path, values[0], error)
        return found

    def _put(self, execute: Execute, row: WireRow) -> None:
        self._settle(execute, row)
        values = (*row[:-2], spell_places(row.places), json.dumps(sorted(row.groups)))
        places = ", ".join("?" * (len(values) + 1))
        execute(f"INSERT OR REPLACE INTO wire_producers VALUES ({places})", (*values, crc(*values)))

    def _settle(self, execute: Execute, row: WireRow) -> None:
        """What waits for the end of its transaction: that is decided now, or was."""
        if row.is_ongoing:
            return
        query = "SELECT * FROM pending_offsets WHERE producer_id = ?"
        waiting = execute(query, (row.producer_id,)).fetchall()
        if not waiting:
            return
        if row.state in (COMMIT, COMPLETE_COMMIT):
            by_group: dict[int, list[OffsetRow]] = {}
            for values in waiting:
                if values[-1] != crc(*values[:-1]):
                    raise NotAStore(
                        f"{self._core.catalog.path}: an offset that {row.name!r} commits is damaged",
                        hint=REBUILD,
                    )
                if _is_there(execute, values[1], values[2]):
                    by_group.setdefault(values[1], []).append(OffsetRow(*values[2:8]))
            for number, offsets in by_group.items():
                put_offsets(execute, number, offsets)
        execute("DELETE FROM pending_offsets WHERE producer_id = ?", (row.producer_id,))


_COLUMNS = """producer_id, name, epoch, last_epoch, previous_id, state, ended_epoch, timeout_ms, boot_id,
    started_boot_ms, started_ms, used_ms, partitions, groups, crc"""


def _is_there(execute: Execute, group_number: int, topic_id: str) -> bool:
    """Whether neither the group nor the topic was deleted meanwhile."""
    query = (
        "SELECT 1 WHERE EXISTS (SELECT 1 FROM groups WHERE number = ?) AND EXISTS (SELECT 1 FROM topics WHERE id = ?)"
    )
    return execute(query, (group_number, topic_id)).fetchone() is not None


def _mark(partition: Partition, row: WireRow) -> int:
    """End the transaction in one log, unless that was done. The marker lies below the offset that is returned."""
    offset = partition.append_marker(row.producer_id, row.epoch, commit=row.state == COMMIT, same_epoch=row.keeps_epoch)
    return partition.snapshot().next_offset if offset is None else offset + 1


def _find(execute: Execute, producer_id: int) -> WireRow | None:
    query = f"SELECT {_COLUMNS} FROM wire_producers WHERE producer_id = ?"
    values = execute(query, (producer_id,)).fetchone()
    if values is None:
        return None
    try:
        return _parse(values)
    except ValueError as error:
        raise NotAStore(
            f"klamm.db: the transaction of producer id {producer_id} is damaged: {error}",
            hint=REBUILD,
        ) from None


def _parse(values: tuple[Any, ...]) -> WireRow:
    *columns, places, groups, checksum = values
    if checksum != crc(*columns, places, groups):
        raise ValueError("the checksum does not fit")
    if columns[5] not in _STATES:
        raise ValueError(f"there is no state {columns[5]!r}")
    return WireRow._make((*columns, parse_places(places), frozenset(json.loads(groups))))


def _forget(execute: Execute, producer_id: int) -> None:
    execute("DELETE FROM wire_producers WHERE producer_id = ?", (producer_id,))


def _put_pending(execute: Execute, producer_id: int, group_number: int, rows: Iterable[OffsetRow]) -> None:
    now_ms = time.time_ns() // 1_000_000
    for row in rows:
        values = (producer_id, group_number, *row._replace(committed_ms=row.committed_ms or now_ms))
        execute("INSERT OR REPLACE INTO pending_offsets VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, crc(*values)))
