"""The desk of transactional producers: Kafka's transaction coordinator, on the store's own transactions.

    init        a transactional id gets a producer id, or the next epoch of the one it has; what it had open is aborted
    add         a partition, or a group, becomes part of its transaction; before the first batch, or the first offset
    commit      offsets of a group wait for the end of the transaction
    end         the transaction is decided, and every partition marked
    tick        what has timed out is aborted; what could not be marked is tried again

What counts is in klamm.db (store/wire_transactions.py). Here is a copy in memory, so that the loop can ask about each
batch without SQLite. Methods that write are for the one thread that writes; they look at the rows themselves, under the
gate, for other processes may have taken a name over, or aborted a transaction. The copy learns of that within a tick;
until then a batch may be appended to a transaction that was aborted, and is aborted with it.

Two kinds of clients, told apart by the version of their EndTxn. Those of KIP-890 (5 and later) get a new epoch with the
answer, for each transaction has its own. Older ones go on with the same epoch, and with their sequences.

What a client is told is what Apache Kafka tells it. Differences: what a client leaves open when it comes again is
aborted while it waits, where Kafka lets it ask again (CONCURRENT_TRANSACTIONS), unless a log cannot be written just
now; EndTxn answers when the markers are on disk, so the next transaction meets no CONCURRENT_TRANSACTIONS either. One
that was decided and could not be marked everywhere is answered, too: its end is certain.

Promises
  D1  An answer without error is on disk, and a server that is killed right after it goes on from there.
  D2  Who is fenced changes nothing.
  D3  A call that comes again because its answer was lost has the same effect, and the same answer, as once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from klamm.errors import GroupBusy, InvalidSetting
from klamm.kafka.error_codes import ErrorCode
from klamm.store.marking import ABORT, COMMIT, MAX_EPOCH, ONGOING, Place
from klamm.store.wire_transactions import COMPLETE_ABORT, COMPLETE_COMMIT, EMPTY, Known, PendingKey, Rule, WireRow

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.store.directory import Core
    from klamm.store.groups import OffsetRow

__all__ = ["NEEDS_REGISTRATION", "STATES", "DeskSettings", "Identified", "TransactionDesk"]

_MAX_NAME = 4096
_EXPIRE_EVERY_S = 600.0
_TRIES = 5

STATES = {
    EMPTY: "Empty",
    ONGOING: "Ongoing",
    COMMIT: "PrepareCommit",
    ABORT: "PrepareAbort",
    COMPLETE_COMMIT: "CompleteCommit",
    COMPLETE_ABORT: "CompleteAbort",
}
"""Ours, and Kafka's names for them."""


class _Registration(Enum):
    NEEDED = "needed"


NEEDS_REGISTRATION: Final = _Registration.NEEDED
"""A batch is its producer's, but its partition is not in a transaction yet."""


class DeskSettings(Protocol):
    """What the desk wants to know of the server's settings."""

    @property
    def transaction_max_timeout_ms(self) -> int: ...
    @property
    def transactional_id_expiration_ms(self) -> int: ...


class Identified(NamedTuple):
    """Who a client is from now on."""

    error: ErrorCode
    producer_id: int = -1
    epoch: int = -1


class _Refused(Exception):
    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class _Done(Exception):
    """There is nothing to do."""

    def __init__(self, row: WireRow) -> None:
        super().__init__(row.name)
        self.row = row


class _Moved(Exception):
    """The row has more partitions than were synced."""


class _NeedsId(Exception):
    """A new producer id is wanted, and can only be had outside of the gate."""


class TransactionDesk:
    """Of one server, which holds the store's SERVER byte. `load` it first."""

    def __init__(self, core: Core, settings: DeskSettings) -> None:
        self._core = core
        self._settings = settings
        self._wire = core.transactions.wire
        self._mutex = threading.RLock()
        self._version: object = None
        self._expired_at = time.monotonic()
        self._rows: dict[int, WireRow] = {}
        self._names: dict[str, int] = {}
        self._pending: dict[int, frozenset[PendingKey]] = {}

    def load(self) -> None:
        """Go on where the last server was: what it left undone is done, what is from before a boot aborted."""
        with self._mutex:
            self._wire.resolve_held()
            self._reload()

    def close(self) -> None:
        """Nothing: all is in klamm.db."""

    # ---- on the loop: asked of each batch, each fetched offset

    def check_produce(self, producer_id: int, epoch: int, place: Place) -> ErrorCode | Literal[_Registration.NEEDED]:
        """Whether a transactional batch may be appended there. NONE, an error, or NEEDS_REGISTRATION."""
        row = self._rows.get(producer_id)
        if row is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if epoch != row.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if row.state == ONGOING:
            return ErrorCode.NONE if place in row.places else NEEDS_REGISTRATION
        return ErrorCode.CONCURRENT_TRANSACTIONS if row.is_prepared else NEEDS_REGISTRATION

    async def register_produce(
        self, broker: Broker, producer_id: int, epoch: int, transactional_id: str | None, places: Iterable[Place]
    ) -> ErrorCode:
        """Produce v12 and later: a batch adds its partition to the transaction by itself."""
        if not transactional_id:
            return ErrorCode.INVALID_TXN_STATE
        error = await broker.write(self.add_partitions, transactional_id, producer_id, epoch, list(places))
        return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error

    def has_pending(self, group: str, topic_id: str, partition: int) -> bool:
        """Whether a transaction that is not over may move the group there."""
        key = (group, topic_id, partition)
        return any(key in keys for keys in list(self._pending.values()))

    def pending_offsets(self, group: str) -> set[tuple[str, int]]:
        """Topic id and partition of all those."""
        return {key[1:] for keys in list(self._pending.values()) for key in keys if key[0] == group}

    def row(self, name: str) -> WireRow | None:
        """What is known of a transactional id."""
        producer_id = self._names.get(name)
        return None if producer_id is None else self._rows.get(producer_id)

    def rows(self) -> list[WireRow]:
        """All that hold a name, by name."""
        found = [(name, self._rows.get(producer_id)) for name, producer_id in sorted(self._names.items())]
        return [row for _, row in found if row is not None]

    # ---- in the thread that writes

    def init_producer_id(self, name: str | None, timeout_ms: int, producer_id: int = -1, epoch: int = -1) -> Identified:
        """InitProducerId. `producer_id` and `epoch`: who the client was so far."""
        if name is None:
            return Identified(ErrorCode.NONE, self._core.catalog.allocate_producer_id(), 0)
        if not 0 < len(name) <= _MAX_NAME or (producer_id < 0) != (epoch < 0):
            return Identified(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._settings.transaction_max_timeout_ms:
            return Identified(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        before = None if producer_id < 0 else (producer_id, epoch)
        fresh: int | None = None
        with self._mutex:
            for _ in range(_TRIES):
                try:
                    row = self._change(name, partial(self._initialised, name, before, timeout_ms, fresh))
                except _NeedsId:
                    fresh = self._core.catalog.allocate_producer_id()
                    continue
                except _Refused as refused:
                    return Identified(refused.code)
                if not row.is_prepared and not self._wants_another(row, before):
                    return Identified(ErrorCode.NONE, row.producer_id, row.epoch)
                if row.is_prepared and self._finish(row) is row:
                    break
        return Identified(ErrorCode.CONCURRENT_TRANSACTIONS)

    def _wants_another(self, row: WireRow, before: tuple[int, int] | None) -> bool:
        """It was fenced in this call, and nothing had to be marked: its epoch was never for the client."""
        return row.state == COMPLETE_ABORT and before is None

    def _initialised(
        self,
        name: str,
        before: tuple[int, int] | None,
        timeout_ms: int,
        fresh: int | None,
        row: WireRow | None,
        held: int | None,
    ) -> tuple[WireRow, ...]:
        if row is None:
            if held is not None and before is not None:
                raise _Refused(ErrorCode.PRODUCER_FENCED)  # by a program that has the store open
            return (WireRow(_given(fresh), name, 0, timeout_ms=timeout_ms),)
        again = False
        if before is not None:
            again = _is_again(row, before)
            if not again and before != (row.producer_id, row.epoch):
                raise _Refused(ErrorCode.PRODUCER_FENCED)
        if row.is_prepared:
            return (row,)
        if row.is_ongoing:
            return (row.fenced(-1 if before is None else row.epoch),)
        if again:
            return (row._replace(timeout_ms=timeout_ms),)
        last = -1 if before is None else row.epoch
        if row.epoch >= MAX_EPOCH:
            return row, WireRow(_given(fresh), name, 0, previous_id=row.producer_id, timeout_ms=timeout_ms)
        return (row._replace(epoch=row.epoch + 1, last_epoch=last, state=EMPTY, timeout_ms=timeout_ms),)

    def add_partitions(self, name: str, producer_id: int, epoch: int, places: Iterable[Place]) -> ErrorCode:
        """AddPartitionsToTxn: they are part of the transaction when this returns NONE."""
        return self._add(name, producer_id, epoch, frozenset(places), frozenset())

    def add_group(self, name: str, producer_id: int, epoch: int, group: str) -> ErrorCode:
        """AddOffsetsToTxn."""
        return self._add(name, producer_id, epoch, frozenset(), frozenset({group}))

    def _add(
        self, name: str, producer_id: int, epoch: int, places: frozenset[Place], groups: frozenset[str]
    ) -> ErrorCode:
        def rule(row: WireRow | None, held: int | None) -> tuple[WireRow, ...]:
            row = _identified(row, held, producer_id, epoch)
            if row.is_prepared:
                raise _Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
            if row.is_ongoing and places <= row.places and groups <= row.groups:
                raise _Done(row)
            return (self._wire.begun(row, places, groups),)

        with self._mutex:
            self._retry_finish(name)
            try:
                self._change(name, rule)
            except _Refused as refused:
                return refused.code
            except _Done:
                return ErrorCode.NONE
        return ErrorCode.NONE

    def verify(self, name: str, producer_id: int, epoch: int, places: Iterable[Place]) -> ErrorCode | set[Place]:
        """AddPartitionsToTxn that only asks: which of them are part of the transaction."""
        try:
            row = _identified(self.row(name), None, producer_id, epoch)
        except _Refused as refused:
            return refused.code
        if row.is_prepared:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return set(places) & row.places if row.is_ongoing else set()

    def commit_offsets(
        self, name: str, producer_id: int, epoch: int, group: str, offsets: list[OffsetRow], *, implicit: bool
    ) -> ErrorCode:
        """TxnOffsetCommit. `implicit` (v5 and later): it adds the group to the transaction by itself.

        Whether this member may commit, the coordinator has said. GroupBusy, told as UNKNOWN_MEMBER_ID: the group's
        members are processes that have the store open.
        """

        def rule(row: WireRow | None, held: int | None) -> tuple[WireRow, ...]:
            row = _identified(row, held, producer_id, epoch)
            if row.is_prepared:
                raise _Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
            if not implicit and not (row.is_ongoing and group in row.groups):
                raise _Refused(ErrorCode.INVALID_TXN_STATE)
            return (self._wire.begun(row, (), {group}),)

        with self._mutex:
            self._retry_finish(name)
            known = self.row(name)
            begins = known is None or not known.is_ongoing or group not in known.groups
            try:
                row = self._change(name, rule, durable=begins, offsets=(group, offsets))
            except _Refused as refused:
                fenced = refused.code is ErrorCode.PRODUCER_FENCED
                return ErrorCode.INVALID_PRODUCER_EPOCH if fenced else refused.code
            except GroupBusy:
                return ErrorCode.UNKNOWN_MEMBER_ID
            except InvalidSetting:
                return ErrorCode.INVALID_GROUP_ID
            keys = {(group, each.topic_id, each.partition) for each in offsets}
            self._pending[row.producer_id] = self._pending.get(row.producer_id, frozenset()) | keys
        return ErrorCode.NONE

    def end(self, name: str, producer_id: int, epoch: int, *, commit: bool, bump: bool) -> Identified:
        """EndTxn. `bump` (v5 and later): the next transaction has the next epoch, which is answered."""
        with self._mutex:
            fresh: int | None = None
            for _ in range(_TRIES):
                known = self.row(name)
                is_mine = known is not None and (known.producer_id, known.epoch) == (producer_id, epoch)
                synced = known.places if known is not None and is_mine and commit else frozenset()
                if not self._wire.sync(synced):
                    return Identified(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                client = (producer_id, epoch)
                try:
                    rows = self._change_all(name, partial(self._ended, client, commit, bump, synced, fresh))
                except _NeedsId:
                    fresh = self._core.catalog.allocate_producer_id()
                    continue
                except _Moved:
                    self._reload()
                    continue
                except _Refused as refused:
                    return Identified(refused.code)
                except _Done as done:
                    self._retry_finish(name)
                    return Identified(ErrorCode.NONE, done.row.producer_id, done.row.epoch)
                for row in rows:
                    if row.is_prepared:
                        self._finish(row)
                return Identified(ErrorCode.NONE, rows[-1].producer_id, rows[-1].epoch)
        return Identified(ErrorCode.CONCURRENT_TRANSACTIONS)

    def _ended(
        self,
        client: tuple[int, int],
        commit: bool,
        bump: bool,
        synced: frozenset[Place],
        fresh: int | None,
        row: WireRow | None,
        held: int | None,
    ) -> tuple[WireRow, ...]:
        """What Kafka's endTransaction does, in both kinds."""
        wanted = (COMMIT, COMPLETE_COMMIT) if commit else (ABORT, COMPLETE_ABORT)
        again = row is not None and bump and _is_again(row, client)
        if not again:
            row = _identified(row, held, *client)
        assert row is not None
        if not row.is_ongoing and (again or not bump):
            if row.state in wanted:
                raise _Done(row)
            raise _Refused(ErrorCode.INVALID_TXN_STATE)
        if row.is_prepared:  # of this very epoch: its own end is still to be marked
            raise _Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        if not row.is_ongoing and commit:
            raise _Refused(ErrorCode.INVALID_TXN_STATE)
        if row.is_ongoing and commit and not row.places <= synced:
            raise _Moved
        if not bump:
            return (row.ended(commit=commit, next_epoch=row.epoch, last_epoch=row.last_epoch),)
        ended = row.ended(commit=commit, next_epoch=row.epoch + 1, last_epoch=row.epoch)
        if ended.epoch <= MAX_EPOCH:
            return (ended,)
        state = COMPLETE_COMMIT if commit else COMPLETE_ABORT
        following = WireRow(
            _given(fresh), row.name, 0, previous_id=row.producer_id, state=state, timeout_ms=row.timeout_ms
        )
        return ended, following

    # ---- time

    def tick(self) -> None:
        """About once a second: what others did, what has timed out, what is still to be marked."""
        with self._mutex:
            if self._wire.version() != self._version:
                self._reload()
            late = (row for row in self._rows.values() if row.is_ongoing and self._wire.timed_out(row))
            if any(row.is_prepared for row in self._rows.values()) or any(late):
                self._wire.resolve_held()
                self._reload()
            self._wire.end_reported()
            if time.monotonic() - self._expired_at > _EXPIRE_EVERY_S:
                self.expire()

    def expire(self) -> None:
        """Forget transactional ids that were not used for `transactional.id.expiration.ms`."""
        with self._mutex:
            self._expired_at = time.monotonic()
            self._wire.expire(self._settings.transactional_id_expiration_ms)
            self._reload()

    # ---- the copy; under the mutex

    def _reload(self) -> None:
        self._version = self._wire.version()  # before: what changes meanwhile is looked at again
        known: Known = self._wire.load()
        self._rows, self._names = known.rows, known.names
        self._pending = {producer_id: frozenset(keys) for producer_id, keys in known.pending.items()}

    def _change(
        self, name: str, rule: Rule, *, durable: bool = True, offsets: tuple[str, list[OffsetRow]] | None = None
    ) -> WireRow:
        return self._change_all(name, rule, durable=durable, offsets=offsets)[-1]

    def _change_all(
        self, name: str, rule: Rule, *, durable: bool = True, offsets: tuple[str, list[OffsetRow]] | None = None
    ) -> tuple[WireRow, ...]:
        rows = self._wire.change(name, rule, durable=durable, offsets=offsets)
        for row in rows[:-1]:
            self._remember(row, holds=False)
        self._remember(rows[-1], holds=True)
        return rows

    def _remember(self, row: WireRow, *, holds: bool) -> None:
        if not row.is_ongoing:
            self._pending.pop(row.producer_id, None)
        if holds:
            self._names[row.name] = row.producer_id
        if holds or not row.is_over:
            self._rows[row.producer_id] = row
        else:
            self._rows.pop(row.producer_id, None)

    def _finish(self, row: WireRow) -> WireRow | None:
        """The same row, if not everything could be marked."""
        done = self._wire.finish(row)
        if done is None:
            self._rows.pop(row.producer_id, None)
            if self._names.get(row.name) == row.producer_id:
                del self._names[row.name]
        else:
            self._rows[row.producer_id] = done
        return done

    def _retry_finish(self, name: str) -> None:
        row = self.row(name)
        if row is not None and row.is_prepared:
            self._finish(row)


def _given(fresh: int | None) -> int:
    if fresh is None:
        raise _NeedsId
    return fresh


def _is_again(row: WireRow, client: tuple[int, int]) -> bool:
    """Whether the client repeats its last call: it has not heard of its new epoch, or producer id."""
    if row.is_ongoing:
        return False
    rotated = row.epoch == 0 and client[0] == row.previous_id and client[1] >= MAX_EPOCH
    return rotated or (client[1] >= 0 and client == (row.producer_id, row.last_epoch))


def _identified(row: WireRow | None, held: int | None, producer_id: int, epoch: int) -> WireRow:
    """The row, if it is this client's; a program that took the name over fences."""
    if row is None and held is not None:
        raise _Refused(ErrorCode.PRODUCER_FENCED)
    if row is None or row.producer_id != producer_id:
        raise _Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if row.epoch != epoch:
        raise _Refused(ErrorCode.PRODUCER_FENCED)
    return row
