"""The transaction coordinator: Kafka's protocol for transactional producers, backed by the store's transactions.

    init        a transactional id gets a producer id, or the next epoch of the one it has; what it had open is aborted
    add         a partition, or a group, becomes part of its transaction; before the first batch, or the first offset
    commit      offsets of a group wait for the end of the transaction
    end         the transaction is decided, and every partition marked
    decide      the same for several transactions at once, with a number of the writer (store/joint_decision.py)
    tick        what has timed out is aborted; what could not be marked is tried again

What counts is in klamm.db, and what may happen to it in store/transaction_state.py. Here is a copy in memory, so that
the loop can ask about each batch without SQLite. Methods that write are for threads, several at once: of a
transactional id one at a time, in its turn, with its syncs and its markers; what they write to klamm.db at the same
time is one commit (store/group_commit.py). They look at the rows themselves, under the write lock of klamm.db, for
other processes may have taken a name over, or aborted a transaction. The copy learns of that within a tick; until then
a batch may be appended to a transaction that was aborted, and is aborted with it.

Two kinds of clients, told apart by the version of their EndTxn. Those of KIP-890 (5 and later) get a new epoch with the
answer, for each transaction has its own. Older ones go on with the same epoch, and with their sequences.

What a client is told is what Apache Kafka tells it. Differences: what a client leaves open when it comes again is
aborted while it waits, where Kafka lets it ask again (CONCURRENT_TRANSACTIONS), unless a log cannot be written just
now; EndTxn answers when the markers are on disk, so the next transaction meets no CONCURRENT_TRANSACTIONS either. One
that was decided and could not be marked everywhere is answered, too: its end is certain.

Promises
  TCO1  An answer without error is on disk, and a server that is killed right after it goes on from there.
  TCO2  Who is fenced changes nothing.
  TCO3  A call that comes again because its answer was lost has the same effect, and the same answer, as once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeVar

from klamm.errors import GroupBusy, InvalidSetting, KlammError
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.parallel_sync import ParallelSync
from klamm.store import joint_decision
from klamm.store import transaction_table as table
from klamm.store.joint_decision import Decided, Decision
from klamm.store.markers import is_synced
from klamm.store.transaction_state import (
    ABORT,
    COMMIT,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    Add,
    CommitOffsets,
    End,
    Init,
    Marked,
    Outcome,
    Row,
    Step,
    step,
)
from klamm.types import PartitionKey

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.log.partition import Partition
    from klamm.store.database import Execute
    from klamm.store.directory import Core
    from klamm.store.groups import OffsetRow
    from klamm.store.transactions import PendingKey

__all__ = ["NEEDS_REGISTRATION", "STATES", "Identified", "TransactionCoordinator", "TransactionSettings"]

Key = TypeVar("Key")
Value = TypeVar("Value")

_MAX_NAME = 4096
_TRIES = 5
_TURN_TRIES, _TURN_PAUSE_S = 100, 0.02  # to have the turn of all transactional ids of a decision

STATES = {
    EMPTY: "Empty",
    ONGOING: "Ongoing",
    COMMIT: "PrepareCommit",
    ABORT: "PrepareAbort",
    COMPLETE_COMMIT: "CompleteCommit",
    COMPLETE_ABORT: "CompleteAbort",
}
"""Ours, and Kafka's names for them."""

_CODES = {
    Outcome.OK: ErrorCode.NONE,
    Outcome.UNKNOWN: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    Outcome.FENCED: ErrorCode.PRODUCER_FENCED,
    Outcome.CONCURRENT: ErrorCode.CONCURRENT_TRANSACTIONS,
    Outcome.INVALID: ErrorCode.INVALID_TXN_STATE,
}


class _Registration(Enum):
    NEEDED = "needed"


NEEDS_REGISTRATION: Final = _Registration.NEEDED
"""A batch is its producer's, but its partition is not in a transaction yet."""


class TransactionSettings(Protocol):
    """The settings of the server that the coordinator reads."""

    @property
    def transaction_max_timeout_ms(self) -> int: ...
    @property
    def transactional_id_expiration_ms(self) -> int: ...
    @property
    def transaction_remove_expired_transaction_cleanup_interval_ms(self) -> int: ...


class Identified(NamedTuple):
    """The identity of a producer from now on."""

    error: ErrorCode
    producer_id: int = -1
    epoch: int = -1


class TransactionCoordinator:
    """The coordinator of one server, which holds the store's SERVER byte. `load` it first."""

    def __init__(self, core: Core, settings: TransactionSettings) -> None:
        self._core = core
        self._settings = settings
        self._transactions = core.transactions
        self._resolver = core.transactions.resolver
        self._turns = self._resolver.turns
        self._syncs = ParallelSync()
        self._resolver.sync_at_once = self._syncs.sync
        self._loading = threading.Lock()
        self._mutex = threading.Lock()  # of the copy, and of what is below
        self._changed: dict[int, str | None] | None = None  # while it is loaded: producer ids that change, their names
        self._version: object = None
        self._expired_at = time.monotonic()
        self._rows: dict[int, Row] = {}
        self._names: dict[str, int] = {}
        self._pending: dict[int, frozenset[PendingKey]] = {}
        self._marked: dict[int, Row] = {}
        """Rows as klamm.db has them, whose markers are on disk. The next write of each makes it complete, or a tick."""

    def load(self) -> None:
        """Continue where the last server was: finish what it left undone, abort what is from before a boot."""
        self._resolver.resolve_held()
        self._reload()

    def close(self) -> None:
        """Write what is left to be written, and let threads end."""
        self._write_marked()
        self._resolver.sync_at_once = None
        self._syncs.close()

    # ---- on the loop: asked of each batch

    def check_produce(
        self, producer_id: int, epoch: int, key: PartitionKey
    ) -> ErrorCode | Literal[_Registration.NEEDED]:
        """Return whether a transactional batch may be appended there: NONE, an error, or NEEDS_REGISTRATION."""
        row = self._rows.get(producer_id)
        if row is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if epoch != row.next_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if row.is_ongoing:
            return ErrorCode.NONE if key in row.partitions else NEEDS_REGISTRATION
        return ErrorCode.CONCURRENT_TRANSACTIONS if row.is_prepared else NEEDS_REGISTRATION

    async def register_produce(
        self, broker: Broker, producer_id: int, epoch: int, transactional_id: str | None, keys: Iterable[PartitionKey]
    ) -> ErrorCode:
        """Produce v12 and later: a batch adds its partition to the transaction by itself."""
        if not transactional_id:
            return ErrorCode.INVALID_TXN_STATE
        error = (await broker.apply(transactional_id, Add((producer_id, epoch), frozenset(keys)))).error
        return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error

    def pending_offsets(self, groups: AbstractSet[str]) -> set[PendingKey]:
        """Return where transactions that are not over may move these groups. For any thread."""
        return {key for keys in list(self._pending.values()) for key in keys if key[0] in groups}

    def row(self, name: str) -> Row | None:
        """Return the row of a transactional id."""
        producer_id = self._names.get(name)
        return None if producer_id is None else self._rows.get(producer_id)

    def rows(self) -> list[Row]:
        """Return all rows with a name, by name."""
        with self._mutex:
            found = [(name, self._rows.get(producer_id)) for name, producer_id in self._names.items()]
        return [row for _, row in sorted(found, key=itemgetter(0)) if row is not None]

    # ---- in threads

    def init_producer_id(self, name: str | None, timeout_ms: int, producer_id: int = -1, epoch: int = -1) -> Identified:
        """Handle InitProducerId. `producer_id` and `epoch`: what the client had so far."""
        if name is None:
            return Identified(ErrorCode.NONE, self._core.catalog.allocate_producer_id(), 0)
        if not 0 < len(name) <= _MAX_NAME or (producer_id < 0) != (epoch < 0):
            return Identified(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._settings.transaction_max_timeout_ms:
            return Identified(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        event = Init(name, timeout_ms, None if producer_id < 0 else (producer_id, epoch))
        with self._turns.wait(name):
            for _ in range(_TRIES):
                done = self._apply(name, event)
                if done.outcome is not Outcome.CONCURRENT or done.row is None:
                    return _identified(done)
                if done.row.is_prepared and self._finish(done.row) is done.row:
                    break
        return Identified(ErrorCode.CONCURRENT_TRANSACTIONS)

    def _add(self, name: str, event: Add) -> ErrorCode:
        with self._turns.wait(name):
            self._retry_finish(name)
            return _CODES[self._apply(name, event).outcome]

    def apply(self, name: str, event: Add | End) -> Identified:
        """Handle EndTxn, AddPartitionsToTxn, AddOffsetsToTxn: without an error, they are part of the transaction."""
        if isinstance(event, Add):
            return Identified(self._add(name, event))
        return self.end(name, *event.client, commit=event.commit, bump=event.bumps)

    def apply_together(self, requests: Sequence[tuple[str, Add | End]]) -> list[Identified | None]:
        """Like `apply` for several transactional ids, with one write of klamm.db and one wait for all logs.

        It waits for nothing that one of them alone is in the way of. None: nothing was done, or what was done does no
        harm, and `apply` is to be called.
        """
        found: list[Identified | None] = [None] * len(requests)
        with ExitStack() as turns:
            ready = []
            for index, (name, event) in enumerate(requests):
                if turns.enter_context(self._turns.attempt(name)) and self._is_plain(name, event):
                    ready.append((index, name, event))
            try:
                ready = self._sync_ready(ready)
                marked = [self._marked.get(self._names.get(name, -1)) for _, name, _ in ready]
                events = [(name, event, row) for (_, name, event), row in zip(ready, marked, strict=True)]
                steps = self._transactions.apply_all(events) if events else []
            except KlammError:
                return found  # which of them it is, each finds out
            ended: list[tuple[int, Row, Step]] = []
            for (index, _, _), before, done in zip(ready, marked, steps, strict=True):
                if done.outcome is not Outcome.OK or done.row is None:
                    continue
                self._remember_step(done, before)
                if done.row.is_prepared:
                    ended.append((index, done.row, done))
                else:
                    found[index] = _identified(done)
            is_marked = self._resolver.mark_now([row for _, row, _ in ended])
            for (index, row, done), is_done in zip(ended, is_marked, strict=True):
                if is_done:
                    self._remember_marked(row)
                    found[index] = _identified(done)
        return found

    def _is_plain(self, name: str, event: Add | End) -> bool:
        """Return whether nothing is left to be done first, and no lineage to be kept."""
        row = self.row(name)
        if row is None or row.is_prepared:
            return False
        return isinstance(event, Add) or not event.commit or not self._transactions.lineage.retention_ms

    def _sync_ready(self, requests: list[tuple[int, str, Add | End]]) -> list[tuple[int, str, Add | End]]:
        """Sync what is to be committed. Return the requests that may be written."""
        ready: list[tuple[int, str, Add | End]] = []
        ends: list[list[tuple[Partition, int]]] = []
        for index, name, event in requests:
            if isinstance(event, Add):
                ends.append([])
                ready.append((index, name, event))
                continue
            synced = self._to_sync(name, event)
            if self._resolver.are_open(synced):  # opening may take a recovery
                ends.append(self._transactions.ends(synced))
                ready.append((index, name, event._replace(synced=synced)))
        self._resolver.sync_now([end for some in ends for end in some])
        return [each for each, some in zip(ready, ends, strict=True) if is_synced(some)]

    def _to_sync(self, name: str, event: End) -> frozenset[PartitionKey]:
        row = self.row(name)
        is_known = row is not None and (row.producer_id, row.next_epoch) == event.client
        return row.partitions if row is not None and is_known and event.commit else frozenset()

    def verify(
        self, name: str, producer_id: int, epoch: int, keys: Iterable[PartitionKey]
    ) -> ErrorCode | set[PartitionKey]:
        """Handle an AddPartitionsToTxn that only asks: return which of them are part of the transaction."""
        row = self.row(name)
        if row is None or row.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if row.next_epoch != epoch:
            return ErrorCode.PRODUCER_FENCED
        if row.is_prepared:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return set(keys) & row.partitions

    def commit_offsets(
        self, name: str, producer_id: int, epoch: int, group: str, offsets: list[OffsetRow], *, implicit: bool
    ) -> ErrorCode:
        """Handle TxnOffsetCommit. `implicit` (v5 and later): it adds the group to the transaction by itself.

        Whether this member may commit, the coordinator has said. GroupBusy, told as UNKNOWN_MEMBER_ID: the group's
        members are processes that have the store open. This is for the one thread that writes offsets, so it does not
        wait for another request of the same producer.
        """
        with self._turns.attempt(name) as has_turn:
            if not has_turn:
                return ErrorCode.CONCURRENT_TRANSACTIONS
            self._retry_finish(name)
            known = self.row(name)
            begins = known is None or not known.is_ongoing or group not in known.groups
            event = CommitOffsets((producer_id, epoch), group, implicit)
            try:
                done = self._apply(name, event, durable=begins, offsets=(group, offsets))
            except GroupBusy:
                return ErrorCode.UNKNOWN_MEMBER_ID
            except InvalidSetting:
                return ErrorCode.INVALID_GROUP_ID
            if done.outcome is not Outcome.OK:
                is_fenced = done.outcome is Outcome.FENCED
                return ErrorCode.INVALID_PRODUCER_EPOCH if is_fenced else _CODES[done.outcome]
            keys = {(group, offset.topic_id, offset.partition) for offset in offsets}
            with self._mutex:
                self._pending[producer_id] = self._pending.get(producer_id, frozenset()) | keys
                self._record_change(producer_id, name)
        return ErrorCode.NONE

    def end(self, name: str, producer_id: int, epoch: int, *, commit: bool, bump: bool) -> Identified:
        """Handle EndTxn. `bump` (v5 and later): the next transaction has the next epoch, which the response has."""
        with self._turns.wait(name):
            event = End((producer_id, epoch), commit, bump)
            for _ in range(_TRIES):
                synced = self._to_sync(name, event)
                if not self._transactions.sync(synced):
                    return Identified(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                done = self._apply(name, event._replace(synced=synced))
                if done.outcome is Outcome.NEEDS_SYNC:
                    self._reload()
                    continue
                for row in (done.retired, done.row):
                    if row is not None and row.is_prepared and done.outcome is Outcome.OK:
                        self._finish(row)
                return _identified(done)
        return Identified(ErrorCode.CONCURRENT_TRANSACTIONS)

    def decide(self, decision: Decision) -> tuple[ErrorCode, Decided | None]:
        """Decide several transactions, and abort the others of their scope. None: it could not be tried just now."""
        fresh_ids: dict[str, int] = {}
        names = {*decision.producers}
        for _ in range(_TURN_TRIES):
            with self._core.catalog.database.reading() as execute:
                names |= {*joint_decision.names_in(execute, decision.scope)}
            with ExitStack() as turns:
                if not all(turns.enter_context(self._turns.attempt(name)) for name in sorted(names)):
                    turns.close()
                    time.sleep(_TURN_PAUSE_S)
                    continue
                written = self._partitions_of(decision)
                if not self._transactions.sync(written):
                    return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
                decided = self._write_decision(decision, written, fresh_ids, names)
                if decided is None:  # another transactional id of the scope has come
                    continue
                if decided.outcome is Outcome.NEEDS_ID:
                    fresh_ids[decided.name] = self._core.catalog.allocate_producer_id()
                    continue
                if decided.outcome is Outcome.NEEDS_SYNC:
                    self._reload()
                    continue
                if decided.outcome is Outcome.CONCURRENT:
                    self._retry_finish(decided.name)
                    continue
                for _, done in decided.steps:
                    self._remember_step(done, None)
                for _, done in decided.steps:
                    for row in (done.retired, done.row):
                        if row is not None and row.is_prepared:
                            self._finish(row)
                if decided.forgotten:
                    for name in decided.forgotten:
                        self._marked.pop(self._names.get(name, -1), None)
                    self._reload()
                return _CODES[decided.outcome], decided
        return ErrorCode.CONCURRENT_TRANSACTIONS, None

    def _partitions_of(self, decision: Decision) -> frozenset[PartitionKey]:
        """Return the partitions of what is to be committed."""
        events = {name: End(client, decision.commit, True) for name, client in decision.producers.items()}
        return frozenset(key for name, event in events.items() for key in self._to_sync(name, event))

    def _write_decision(
        self, decision: Decision, synced: frozenset[PartitionKey], fresh_ids: dict[str, int], names: set[str]
    ) -> Decided | None:
        """Write the decision, in the turn of all its names. None: there is another one in the scope by now."""
        marked = {name: row for name in names if (row := self._marked.get(self._names.get(name, -1))) is not None}
        lineage = self._transactions.lineage
        outputs = {}
        if decision.commit and lineage.retention_ms:
            for name in decision.producers:
                row = self.row(name)
                if row is not None and row.is_ongoing:
                    outputs[row.key] = self._transactions.outputs(row)

        def write(execute: Execute) -> Decided | None:
            if not names.issuperset(joint_decision.names_in(execute, decision.scope)):
                return None
            ranges = [table.pending_ranges(execute, producer_id) for producer_id, _ in outputs]
            inputs = [each for moved in ranges for each in moved]  # of all: one decision has moved them
            decided = joint_decision.decide(
                execute, decision, self._resolver.now(), synced=synced, marked=marked, fresh_ids=fresh_ids
            )
            for before, done in decided.steps:
                if before is not None and done.row is not None and done.row.is_committed and before.key in outputs:
                    lineage.write(execute, before, inputs, outputs[before.key])
            return decided

        decided = self._resolver.group_commit.run(write)
        if decided is not None and decided.outcome is Outcome.OK and not decided.conflict:
            for before, done in decided.steps:  # what was marked before is written now that it is complete
                if before is not None and done.row != before:
                    self._marked.pop(before.producer_id, None)
        return decided

    # ---- time

    def tick(self) -> None:
        """Do what is due, about once a second: read changes of others, abort what timed out, write markers and rows."""
        self._write_marked()
        if self._transactions.version() != self._version:
            self._reload()
        now = self._resolver.now()
        with self._mutex:
            due = [row for row in self._rows.values() if row.is_prepared or (row.is_ongoing and row.is_late(now))]
        resolved = [self._resolver.resolve_held(row.producer_id) for row in due]
        if any(resolved):
            self._reload()
        self._resolver.abort_reported()
        every_ms = self._settings.transaction_remove_expired_transaction_cleanup_interval_ms
        if (time.monotonic() - self._expired_at) * 1000 > every_ms:
            self.expire()

    def expire(self) -> None:
        """Forget transactional ids that were not used for `transactional.id.expiration.ms`."""
        self._expired_at = time.monotonic()
        self._transactions.expire(self._settings.transactional_id_expiration_ms)
        self._reload()

    # ---- the copy

    def _reload(self) -> None:
        """Read all rows again. What other threads change meanwhile stays as they have put it, until the next time."""
        with self._loading:
            with self._mutex:
                self._changed = {}
            version = self._transactions.version()  # before: what others change meanwhile is looked at again
            loaded = self._transactions.load()
            rows, names = loaded.rows, loaded.names
            pending = {producer_id: frozenset(keys) for producer_id, keys in loaded.pending.items()}
            with self._mutex:
                for producer_id, name in self._changed.items():
                    _take_over(rows, self._rows, producer_id)
                    _take_over(pending, self._pending, producer_id)
                    if name is not None:
                        _take_over(names, self._names, name)
                self._version = None if self._changed else version
                self._changed = None
                for producer_id, row in list(self._marked.items()):
                    if rows.get(producer_id) == row:
                        rows[producer_id] = self._completed(row)
                self._rows, self._names, self._pending = rows, names, pending

    def _record_change(self, producer_id: int, name: str | None) -> None:
        """Record a change. Called with the mutex."""
        if self._changed is not None:
            self._changed[producer_id] = name

    def _apply(
        self,
        name: str,
        event: Init | Add | CommitOffsets | End,
        *,
        durable: bool = True,
        offsets: tuple[str, list[OffsetRow]] | None = None,
    ) -> Step:
        marked = self._marked.get(self._names.get(name, -1))
        done = self._transactions.apply(name, event, durable=durable, offsets=offsets, marked=marked)
        if done.outcome is Outcome.NEEDS_ID:  # which can only be had outside of the write lock
            assert isinstance(event, Init | End)
            fresh_id = self._core.catalog.allocate_producer_id()
            done = self._transactions.apply(name, event._replace(fresh_id=fresh_id), marked=marked)
        if done.outcome in (Outcome.OK, Outcome.CONCURRENT):
            self._remember_step(done, marked)
        return done

    def _remember_step(self, done: Step, marked: Row | None) -> None:
        """Remember what is written. `marked`: what was marked before; it is written now that it is complete."""
        if done.row is None:
            return
        if marked is not None:
            self._marked.pop(marked.producer_id, None)
        if done.retired is not None:
            self._remember(done.retired, has_name=False)
        self._remember(done.row, has_name=True)

    def _remember(self, row: Row, *, has_name: bool) -> None:
        with self._mutex:
            self._record_change(row.producer_id, row.name)
            if not row.is_ongoing:
                self._pending.pop(row.producer_id, None)
            if has_name and row.name is not None:
                self._names[row.name] = row.producer_id
            if has_name or not row.is_over:
                self._rows[row.producer_id] = row
            else:
                self._rows.pop(row.producer_id, None)

    def _finish(self, row: Row) -> Row | None:
        """Mark a decided transaction. Return the same row, if not everything could be marked.

        That it is complete is written with what comes next for its transactional id, or by a tick: if this server is
        killed before, the next one finds it decided and marked.
        """
        has_name = row.name is not None and self._names.get(row.name) == row.producer_id
        if has_name:
            return self._remember_marked(row) if self._resolver.mark_all(row) else row
        done = self._resolver.complete([row])[row.key]
        with self._mutex:
            self._record_change(row.producer_id, row.name)
            if done is not None:
                self._rows[row.producer_id] = done
            else:
                self._rows.pop(row.producer_id, None)
                if row.name is not None and self._names.get(row.name) == row.producer_id:
                    del self._names[row.name]
        return done

    def _remember_marked(self, row: Row) -> Row:
        done = self._completed(row)
        with self._mutex:
            self._record_change(row.producer_id, row.name)
            self._marked[row.producer_id] = row
            self._rows[row.producer_id] = done
        return done

    def _completed(self, row: Row) -> Row:
        done = step(row, Marked(), self._resolver.now()).row
        assert done is not None
        return done

    def _write_marked(self) -> None:
        """Write that rows are complete, but for those of transactional ids that another thread is at."""
        with ExitStack() as turns:
            rows = []
            for row in list(self._marked.values()):
                if turns.enter_context(self._turns.attempt(row.name)) and self._marked.get(row.producer_id) is row:
                    rows.append(row)
            self._resolver.write_complete(rows)
            for row in rows:
                del self._marked[row.producer_id]

    def _retry_finish(self, name: str) -> None:
        row = self.row(name)
        if row is not None and row.is_prepared:
            self._finish(row)


def _take_over(to: dict[Key, Value], current: dict[Key, Value], key: Key) -> None:
    """Copy what `current` has for this key to `to`."""
    if key in current:
        to[key] = current[key]
    else:
        to.pop(key, None)


def _identified(done: Step) -> Identified:
    if done.outcome is not Outcome.OK or done.row is None:
        return Identified(_CODES[done.outcome])
    return Identified(ErrorCode.NONE, done.row.producer_id, done.row.next_epoch)
