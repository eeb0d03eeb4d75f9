"""Transactions: records in any number of partitions and offsets of groups, all of them or none.

    transactions        producer_id, epoch, state, name, timeout_ms, boot_id, started_boot_ms, partitions, crc
    transaction_names   name, producer_id, crc                        who writes under a transactional id now
    members             byte TRANSACTION + producer id: held by the process that uses it; free: that process is gone

A row is one transaction that is not over; `partitions` is JSON: {topic id: [numbers]}. Each transaction of a producer
id has an epoch of its own, one more than the last. In this order:

  1  own        hold the producer id's byte, for as long as this process uses the id
  2  register   the row, `ongoing`, on disk, with every partition that is about to be appended to
  3  append     transactional batches with (producer id, epoch), sequences from 0; readers of committed records wait
                in front of the first
  4  sync       every partition that was appended to
  5  decide     one SQLite transaction, on disk: the row is still `ongoing`, offsets of groups, `prepared_commit`.
                That is the commit point. To abort: `prepared_abort`
  6  mark       a marker with epoch + 1 in every partition of the row, whether or not it has records of the transaction
  7  forget     the row goes once every marker is on disk: with a later registration, at the end, or by a resolver

What is left by whoever is killed in between, and what `resolve` makes of it, in any process, as often as one likes:

  after 1, 2    an `ongoing` row whose byte is free            prepared_abort, then 6 and 7
  after 3, 4    the same, and records that nobody has seen     the same
  after 5, 6    a prepared row                                 6 and 7: markers that are there are not written again
  stopped       an `ongoing` row whose byte is held            left alone until `timeout_ms` have passed; then as above
  no row        open in a log, but in no row                   aborted. It cannot come from here (2 before 3, 6 before
                                                               7), but from a klamm.db that is older than its logs

Promises
  T1  A transaction's records and offsets become visible together, or never: the row's state alone decides, and
      everybody who writes a marker has read it there.
  T2  From the commit point on it is on disk, whatever happens; the markers only tell the logs.
  T3  Whoever comes late is refused. The row is not `ongoing` any more: no registration, no commit. A marker lies in
      every registered partition: no append there, for it bears a newer epoch. So an aborted transaction gets no more
      records, and a late commit cannot touch the next one, which has another epoch.
  T4  Nobody waits for a process that is gone, and for a stopped one no longer than the transaction's time-out. A
      partition whose append lock a stopped process holds makes nobody else's wait, either.
  T5  A producer id is used by one process; its next epoch begins when every marker of the last one is written.
  T6  A name belongs to who asked for it last. With that the transaction of the one before is aborted, and it can begin
      no other.

No append lock is awaited under the gate, nor the gate under an append lock. Time is CLOCK_BOOTTIME: time-outs pass
while the machine sleeps, and a jump of the wall clock ends nothing. After a boot every byte is free.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.disk._os import HeldBytes
from klamm.disk.locks import TRANSACTION
from klamm.errors import Aborted, Fenced, KlammError, NotAStore, TransactionError, UnknownTopic
from klamm.store.database import REBUILD
from klamm.store.marking import (
    ABORT,
    COMMIT,
    MAX_EPOCH,
    ONGOING,
    Place,
    can_append,
    is_deleted,
    parse_places,
    put_name,
    spell_places,
)
from klamm.store.marking import holder as _holder
from klamm.store.rows import crc
from klamm.store.wire_transactions import WireTransactions
from klamm.types import TransactionInfo

if TYPE_CHECKING:
    from klamm.log.partition import Partition
    from klamm.store.database import Execute
    from klamm.store.directory import Core

__all__ = ["MAX_EPOCH", "SCHEMA", "Identity", "Place", "Transactions", "fenced"]

_log = logging.getLogger("klamm")

SCHEMA = """
CREATE TABLE transactions (
    producer_id INTEGER NOT NULL, epoch INTEGER NOT NULL, state TEXT NOT NULL, name TEXT, timeout_ms INTEGER NOT NULL,
    boot_id TEXT NOT NULL, started_boot_ms INTEGER NOT NULL, partitions TEXT NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (producer_id, epoch)
) WITHOUT ROWID;
CREATE TABLE transaction_names (
    name TEXT PRIMARY KEY, producer_id INTEGER NOT NULL UNIQUE, crc INTEGER NOT NULL
) WITHOUT ROWID;
"""

_COLUMNS = "producer_id, epoch, state, name, timeout_ms, boot_id, started_boot_ms, partitions, crc"


class Identity:
    """A producer id of this process, and the epoch of its next transaction, or of the one that it is in."""

    __slots__ = ("epoch", "held", "name", "partitions", "producer_id", "spoiled")

    def __init__(self, producer_id: int, name: str | None) -> None:
        self.producer_id = producer_id
        self.epoch = 0
        self.name = name
        self.partitions: dict[Place, Partition] = {}
        """Those that are registered."""
        self.spoiled = False
        """Not to be used again."""
        self.held: HeldBytes[int, None] | None = None
        """The byte of the producer id, while this process has it; released when the identity is dropped."""


class _Row(NamedTuple):
    producer_id: int
    epoch: int
    state: str
    name: str | None
    timeout_ms: int
    boot_id: str
    started_boot_ms: int
    places: frozenset[Place]

    @property
    def key(self) -> tuple[int, int]:
        return self.producer_id, self.epoch


class _Finished(NamedTuple):
    """A transaction whose markers are written: its row may go when they are on disk."""

    key: tuple[int, int]
    ends: list[tuple[Partition, int]]

    def is_on_disk(self) -> bool:
        return all(partition.log.flushed_offset >= end or is_deleted(partition) for partition, end in self.ends)


class Transactions:
    """Those of a store, for any thread."""

    def __init__(self, core: Core, boot_id: bytes) -> None:
        self._core = core
        self._boot_id = boot_id.hex()
        self.wire = WireTransactions(core, self._boot_id)
        """Those of producers that talk to a server."""
        self._mutex = threading.Lock()
        self._finished: list[_Finished] = []

    # ---- one's own, in the order of the steps above

    def identity(self, name: str | None = None, *, after: Identity | None = None) -> Identity:
        """A new producer id. With a name it takes over from whoever had it; `after`: only from that one, or nobody."""
        core = self._core
        core.catalog.database.refuse_read_only()
        made = Identity(core.catalog.allocate_producer_id(), name)
        members = core.members
        assert members is not None
        made.held = HeldBytes(members)
        if not made.held.take(made.producer_id, TRANSACTION + made.producer_id):
            raise NotAStore(
                f"{core.path}/members: producer id {made.producer_id} is new, and held by another process",
                hint="was klamm.db replaced by an older one while the store was in use?",
            )
        if name is not None:
            try:
                self._take_over(made, name, after)
            except BaseException:
                self.let_go(made)
                raise
        return made

    def prepare_abort(self, execute: Execute, producer_id: int) -> bool:
        """Inside of a transaction: what a program's producer id has open is aborted. Whether it had something open."""
        mine = [row for row in self._rows(execute) if row.producer_id == producer_id]
        return bool(_prepare_aborts(execute, mine))

    def _take_over(self, made: Identity, name: str, after: Identity | None) -> None:
        database = self._core.catalog.database
        with database.gate(), database.transaction() as execute:
            before = _holder(execute, name)
            if after is not None and before not in (after.producer_id, None):  # None: swept, as nobody held it any more
                raise fenced(name)
            if before is not None:
                self.prepare_abort(execute, before)
                self.wire.lose_name(execute, before)
            put_name(execute, name, made.producer_id)
        if before is not None:
            self.resolve(of=before)

    def register(self, mine: Identity, places: Mapping[Place, Partition], timeout_ms: int) -> None:
        """On disk when this returns: the transaction may append to `places`. Aborted or Fenced if it is over."""
        with self._mutex:
            done = [each for each in self._finished if each.is_on_disk()]
        together = {**mine.partitions, **places}
        database = self._core.catalog.database
        with database.gate(), database.transaction() as execute:
            self._refuse_ended(execute, mine)
            row = _Row(
                mine.producer_id,
                mine.epoch,
                ONGOING,
                mine.name,
                timeout_ms,
                self._boot_id,
                self._core.heads.boot_ms(),
                frozenset(together),
            )
            if mine.partitions:
                row = row._replace(started_boot_ms=_find(execute, mine).started_boot_ms)
            _put(execute, row)
            _forget(execute, (each.key for each in done))
        mine.partitions = together
        self._was_forgotten(done)

    def decide(self, mine: Identity, *, commit: bool, also: Callable[[Execute], None] | None = None) -> bool | None:
        """Step 5. Whether the transaction is committed; None if it was ended by others, and that is all one can know.

        `also` writes what is to be committed with it, or raises. Aborting what was committed changes nothing.
        """
        if not mine.partitions and also is None:
            return commit
        database = self._core.catalog.database
        with database.gate(), database.transaction() as execute:
            if commit:
                self._refuse_ended(execute, mine)
                if also is not None:
                    also(execute)
            if not mine.partitions:
                return commit
            row = _look_up(execute, mine)
            if row is not None and row.state == ONGOING:
                row = row._replace(state=COMMIT if commit else ABORT)
                _put(execute, row)
        return None if row is None else row.state == COMMIT

    def finish(self, mine: Identity, *, commit: bool) -> None:
        """Step 6; the identity is then ready for its next transaction. After an error it is not: see `resolve`."""
        ends = []
        failed: Exception | None = None
        for partition in mine.partitions.values():
            try:
                ends.append((partition, _mark(partition, mine.producer_id, mine.epoch, commit=commit)))
            except UnknownTopic:
                continue  # deleted: it has no readers either
            except Exception as error:  # noqa: BLE001  # first the others; then it is raised
                failed = failed or error
        if failed is not None:
            raise failed
        if mine.partitions:
            with self._mutex:
                self._finished.append(_Finished((mine.producer_id, mine.epoch), ends))
            mine.partitions = {}
            mine.epoch += 1

    def let_go(self, mine: Identity) -> None:
        """This process will not use the producer id again. What it left undone is a resolver's."""
        if mine.held is not None:
            mine.held.release_all()

    def tidy(self, names: Iterable[Identity] = ()) -> None:
        """Step 7 for everything of this process, and away with the names that these hold."""
        with self._mutex:
            done = list(self._finished)
        for each in done:
            for partition, end in each.ends:
                if not is_deleted(partition):
                    partition.sync(end)
        named = [(each.name, each.producer_id) for each in names if each.name is not None]
        if done or named:
            database = self._core.catalog.database
            with database.gate(), database.transaction() as execute:
                _forget(execute, (each.key for each in done))
                for name in named:
                    execute("DELETE FROM transaction_names WHERE name = ? AND producer_id = ?", name)
            self._was_forgotten(done)

    def _was_forgotten(self, done: list[_Finished]) -> None:
        if done:
            with self._mutex:
                self._finished = [each for each in self._finished if each not in done]

    def _refuse_ended(self, execute: Execute, mine: Identity) -> None:
        if mine.name is not None and _holder(execute, mine.name) != mine.producer_id:
            raise fenced(mine.name)
        if mine.partitions:
            row = _look_up(execute, mine)
            if row is None or row.state != ONGOING:
                raise Aborted(
                    f"the transaction of producer id {mine.producer_id} was ended by somebody else",
                    hint="it took longer than its timeout_ms; nothing of it will be read: begin another",
                )

    def why_refused(self, mine: Identity) -> TransactionError:
        """A log has refused a batch, because a marker is there: what that means."""
        with self._core.catalog.database.reading() as execute:
            try:
                self._refuse_ended(execute, mine)
            except TransactionError as error:
                return error
        return Fenced(f"producer id {mine.producer_id} is used by somebody else")

    # ---- everybody's

    def resolve(self, stuck: Iterable[Partition] = (), *, of: int | None = None, only_abandoned: bool = False) -> None:
        """End what its own process will not, or not in time: see the table above.

        `stuck`: also look into these logs for what is open there and in no row. `of`: only that producer id's.
        `only_abandoned`: leave prepared rows to their processes, where those live. What cannot be done now, because a
        stopped process is in the way, or the disk is full, is left for the next time: nothing is raised.
        """
        if self._core.read_only:
            return
        try:
            self._resolve(list(stuck), of, only_abandoned)
        except KlammError as error:
            _log.warning("transactions cannot be resolved now: %s", error)

    def _resolve(self, stuck: list[Partition], of: int | None, only_abandoned: bool) -> None:
        opened = [(each, *found) for each in stuck for found in self._open_in(each)]  # before the rows: see step 2
        with self._core.catalog.database.reading() as execute:
            rows = [row for row in self._rows(execute) if of in (None, row.producer_id)]
            known = set(execute("SELECT producer_id, epoch FROM transactions").fetchall()) if opened else set()
            over_wire = self.wire.ids(execute) if opened else frozenset()
        gone = {producer_id for producer_id in {row.producer_id for row in rows} if not self._is_held(producer_id)}
        over = [row for row in rows if row.state == ONGOING and (row.producer_id in gone or self._timed_out(row))]
        if over:
            database = self._core.catalog.database
            with database.gate(), database.transaction() as execute:
                over = _prepare_aborts(execute, over)
        prepared = [row for row in rows if row.state != ONGOING and (row.producer_id in gone or not only_abandoned)]
        self._finish_rows(sorted(over + prepared, key=lambda row: row.key))  # of a producer id, the older one first
        for partition, producer_id, epoch, _ in opened:
            if producer_id in over_wire:
                continue  # its next transaction may have the same epoch, and have begun since we looked
            if (producer_id, epoch) not in known and can_append(partition):
                _mark(partition, producer_id, epoch, commit=False)
        self.wire.resolve([each[0] for each in opened if each[1] in over_wire], of=of)

    def _finish_rows(self, rows: list[_Row]) -> None:
        """Steps 6 and 7, as far as possible."""
        if not rows:
            return
        names = {topic.id: topic.name for topic in self._core.catalog.topics()}
        done = []
        for row in rows:
            places = [(names[topic_id], number) for topic_id, number in sorted(row.places) if topic_id in names]
            ended = [self._finish_place(row, *place) for place in places]  # each, whatever became of the others
            if all(ended):
                done.append(row.key)
        if done:
            database = self._core.catalog.database
            with database.gate(), database.transaction() as execute:
                _forget(execute, done)

    def _finish_place(self, row: _Row, topic: str, number: int) -> bool:
        """Whether the marker is on disk, or the partition is gone."""
        try:
            partition = self._core.topic(topic).partition(number)
            if not can_append(partition):
                return False
            partition.sync(_mark(partition, row.producer_id, row.epoch, commit=row.state == COMMIT))
        except UnknownTopic:
            return True
        except KlammError as error:
            _log.warning("%s/%d: transaction %d/%d cannot be resolved now: %s", topic, number, *row.key, error)
            return False
        return True

    def _open_in(self, partition: Partition) -> list[tuple[int, int, int]]:
        try:
            return partition.open_transactions() if can_append(partition) else []
        except KlammError:  # deleted, or damaged: its readers say so
            return []

    def _is_held(self, producer_id: int) -> bool:
        members = self._core.members
        return members is not None and bool(members.held(TRANSACTION + producer_id))

    def _timed_out(self, row: _Row) -> bool:
        return row.boot_id == self._boot_id and self._core.heads.boot_ms() - row.started_boot_ms > row.timeout_ms

    # ---- for people, and for those who keep house

    def infos(self) -> list[TransactionInfo]:
        """Those that are not over, and those whose rows are still to be forgotten."""
        names = {topic.id: topic.name for topic in self._core.catalog.topics()}
        now = self._core.heads.boot_ms()
        with self._core.catalog.database.reading() as execute:
            rows = self._rows(execute)
            others = self.wire.infos(execute, names)
        mine = [
            TransactionInfo(
                row.producer_id,
                row.epoch,
                row.name,
                row.state,
                now - row.started_boot_ms if row.boot_id == self._boot_id else None,
                row.timeout_ms,
                tuple(sorted((names[topic], number) for topic, number in row.places if topic in names)),
            )
            for row in rows
        ]
        return sorted(mine + others, key=lambda info: (info.producer_id, info.epoch))

    def abort(self, producer_id: int) -> bool:
        """Abort what the producer id has open, whoever uses it. False if it has nothing open."""
        database = self._core.catalog.database
        with database.gate(), database.transaction() as execute:
            found = self.prepare_abort(execute, producer_id) or self.wire.fence(execute, producer_id)
        self.resolve(of=producer_id)
        return found

    def sweep_names(self) -> None:
        """Forget names whose holders are gone: they protect from nobody. Those of the wire are their server's."""
        held = self._core.catalog.database.read(
            "SELECT name, producer_id FROM transaction_names"
            " WHERE producer_id NOT IN (SELECT producer_id FROM wire_producers)"
        )
        gone = [(name, producer_id) for name, producer_id in held if not self._is_held(producer_id)]
        if gone:
            database = self._core.catalog.database
            with database.gate(), database.transaction() as execute:
                for row in gone:
                    execute("DELETE FROM transaction_names WHERE name = ? AND producer_id = ?", row)

    def check(self) -> list[str]:
        """What is wrong with the rows."""
        problems = []
        with self._core.catalog.database.reading() as execute:
            for values in execute(f"SELECT {_COLUMNS} FROM transactions").fetchall():
                try:
                    _parse(values)
                except ValueError as error:
                    problems.append(f"transactions: the row of producer id {values[0]}, epoch {values[1]}: {error}")
            for name, producer_id, found in execute("SELECT name, producer_id, crc FROM transaction_names").fetchall():
                if found != crc(name, producer_id):
                    problems.append(f"transaction_names: the row of {name!r}: the checksum does not fit")
            problems += self.wire.check(execute)
        return problems

    def _rows(self, execute: Execute) -> list[_Row]:
        """All that can be believed; `check` tells of the others, and nobody may guess how they ended."""
        found = []
        for values in execute(f"SELECT {_COLUMNS} FROM transactions").fetchall():
            try:
                found.append(_parse(values))
            except ValueError as error:
                _log.error("%s: producer id %s, epoch %s: %s", self._core.catalog.path, values[0], values[1], error)
        return found


def _mark(partition: Partition, producer_id: int, epoch: int, *, commit: bool) -> int:
    """End the transaction in one log, unless that was done. The marker lies below the offset that is returned."""
    offset = partition.append_marker(producer_id, epoch + 1, commit=commit)
    return partition.snapshot().next_offset if offset is None else offset + 1


# ---- rows; under the gate, where something is written


def _look_up(execute: Execute, mine: Identity) -> _Row | None:
    query = f"SELECT {_COLUMNS} FROM transactions WHERE producer_id = ? AND epoch = ?"
    values = execute(query, (mine.producer_id, mine.epoch)).fetchone()
    if values is None:
        return None
    try:
        return _parse(values)
    except ValueError as error:
        raise NotAStore(
            f"klamm.db: the transaction of producer id {mine.producer_id} is damaged: {error}",
            hint=REBUILD,
        ) from None


def _find(execute: Execute, mine: Identity) -> _Row:
    row = _look_up(execute, mine)
    assert row is not None
    return row


def _put(execute: Execute, row: _Row) -> None:
    values = (*row[:-1], spell_places(row.places))
    execute("INSERT OR REPLACE INTO transactions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, crc(*values)))


def _forget(execute: Execute, keys: Iterable[tuple[int, int]]) -> None:
    for key in keys:
        execute("DELETE FROM transactions WHERE producer_id = ? AND epoch = ?", key)


def _prepare_aborts(execute: Execute, rows: list[_Row]) -> list[_Row]:
    """Those that are still going on are aborted now; what became of them, with all their partitions."""
    aborted = []
    for row in rows:
        query = f"SELECT {_COLUMNS} FROM transactions WHERE producer_id = ? AND epoch = ? AND state = ?"
        values = execute(query, (*row.key, ONGOING)).fetchone()
        if values is not None:
            now = _parse(values)._replace(state=ABORT)
            _put(execute, now)
            aborted.append(now)
    return aborted


def fenced(name: str) -> Fenced:
    return Fenced(
        f"the transactional id {name!r} belongs to a newer producer",
        hint="there can be one at a time; open the store anew to take over",
    )


def _parse(values: tuple[Any, ...]) -> _Row:
    *columns, text, checksum = values
    if checksum != crc(*columns, text):
        raise ValueError("the checksum does not fit")
    if columns[2] not in (ONGOING, COMMIT, ABORT):
        raise ValueError(f"there is no state {columns[2]!r}")
    places = parse_places(text)
    producer_id, epoch, state, name, timeout_ms, boot_id, started_boot_ms = columns
    return _Row(producer_id, epoch, state, name, timeout_ms, boot_id, started_boot_ms, places)
