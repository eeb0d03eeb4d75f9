"""The states of a transaction, and the steps between them: a machine without SQLite, locks, logs or clock.

    step(row, event, now) -> Step        the row afterwards, and the response

A row is one transaction, or a transactional id of the server between two of them:

    empty ─┬─▶ ongoing ──▶ prepared_commit ──▶ complete_commit ─┐      prepared: decided, on disk; markers are missing
           │        └────▶ prepared_abort ───▶ complete_abort ──┤      complete: every marker is on disk
           └────────────────────────────────────────────────────┘

`epoch` is the transaction's; `next_epoch` is the one that its producer has to name next, which its markers have, too.
While the transaction is ongoing, both are equal. When it ends, they stay equal if its producer uses one epoch for all
transactions (EndTxn before version 5). Otherwise, and whenever anything but its producer ends the transaction,
`next_epoch` becomes one more, which fences the old one.

A person and the next owner of its name may end a row. So may, depending on its owner:

    process        its own process, which holds the lock byte of the producer id. A resolver when that is free, or when
                   the timeout has passed. The row is deleted when every marker is on disk.
    server         its client, through the server, which may be killed and restarted while the client goes on. The
                   process that holds the SERVER byte when the timeout has passed; after a boot it counts as passed.
    coordinator    the process that decides it together with others (`Transactions.decide`). A resolver when the timeout
                   has passed: so the transactions of a dead coordinator are aborted.

Promises
  TXN1  A decision is never undone: a row leaves `ongoing` once, and `prepared` only for `complete` with the same end.
  TXN2  A producer with another epoch than `next_epoch` changes nothing, except by repeating a call (TXN3).
  TXN3  A producer that lost a response names its `last_epoch`: a repeated call has no further effect and gets the same
        response. A fenced producer does not.
  TXN4  `next_epoch` never goes back. Beyond MAX_EPOCH the server's producer gets another id, and a process takes one.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from klamm.types import PartitionKey

__all__ = [
    "ABORT",
    "COMMIT",
    "COMPLETE_ABORT",
    "COMPLETE_COMMIT",
    "COORDINATOR",
    "EMPTY",
    "MAX_EPOCH",
    "ONGOING",
    "OWNERS",
    "PROCESS",
    "SERVER",
    "STATES",
    "Add",
    "CommitOffsets",
    "End",
    "Event",
    "Fence",
    "HandOver",
    "Init",
    "Marked",
    "Now",
    "Outcome",
    "Resolve",
    "Row",
    "Step",
    "step",
]

MAX_EPOCH = 32_000  # an int16 on disk; then the next producer id
EMPTY, ONGOING, COMMIT, ABORT = "empty", "ongoing", "prepared_commit", "prepared_abort"
COMPLETE_COMMIT, COMPLETE_ABORT = "complete_commit", "complete_abort"
STATES = (EMPTY, ONGOING, COMMIT, ABORT, COMPLETE_COMMIT, COMPLETE_ABORT)
PROCESS, SERVER, COORDINATOR = OWNERS = ("process", "server", "coordinator")
_COMPLETE = {COMMIT: COMPLETE_COMMIT, ABORT: COMPLETE_ABORT}

Client = tuple[int, int]
"""Producer id and epoch, as a producer names itself."""


class Now(NamedTuple):
    """The time: by the machine's clocks, and by the store's."""

    boot_id: str
    boot_ms: int
    """Since the boot."""
    wall_ms: int
    clock_ms: int
    """The store's clock, which does not go back."""


class Row(NamedTuple):
    producer_id: int
    epoch: int
    owner: str
    state: str = EMPTY
    name: str | None = None
    next_epoch: int = 0
    last_epoch: int = -1
    """What the producer named before, when it ended a transaction or was initialised."""
    previous_id: int = -1
    """Its producer id before this one, whose epochs had come to an end."""
    timeout_ms: int = 60_000
    boot_id: str = ""
    started_boot_ms: int = 0
    started_ms: int = -1
    used_ms: int = 0
    """When a client of the server was last heard of."""
    partitions: frozenset[PartitionKey] = frozenset()
    groups: frozenset[str] = frozenset()

    @property
    def key(self) -> tuple[int, int]:
        return self.producer_id, self.epoch

    @property
    def is_ongoing(self) -> bool:
        return self.state == ONGOING

    @property
    def is_prepared(self) -> bool:
        return self.state in (COMMIT, ABORT)

    @property
    def is_over(self) -> bool:
        """Whether the transaction is open in no log."""
        return not self.is_ongoing and not self.is_prepared

    @property
    def is_committed(self) -> bool:
        return self.state in (COMMIT, COMPLETE_COMMIT)

    @property
    def keeps_epoch(self) -> bool:
        """Whether it is decided with markers that have its own epoch, as the next transaction will."""
        return self.is_prepared and self.next_epoch == self.epoch

    def is_late(self, now: Now) -> bool:
        """Return whether its timeout has passed.

        The timeout of a process only counts within the boot that it began in: after another boot its lock byte is free.
        """
        if self.boot_id != now.boot_id:
            return self.owner != PROCESS
        return now.boot_ms - self.started_boot_ms > self.timeout_ms


class Init(NamedTuple):
    """A client of the server requests its producer id; `client`: the id and epoch that it claims."""

    name: str
    timeout_ms: int
    client: Client | None = None
    fresh_id: int | None = None
    """An unused producer id, if one is wanted."""


class Add(NamedTuple):
    """Partitions and groups become part of the transaction, before the first batch or offset."""

    client: Client
    partitions: frozenset[PartitionKey]
    groups: frozenset[str] = frozenset()


class CommitOffsets(NamedTuple):
    """Offsets of a group wait for the end. Without `adds_group`, the group has to be part of it already."""

    client: Client
    group: str
    adds_group: bool


class End(NamedTuple):
    """The producer commits or aborts. `bumps`: its next transaction has the next epoch."""

    client: Client
    commit: bool
    bumps: bool
    synced: frozenset[PartitionKey] | None = None
    """Partitions whose records are on disk; None: all."""
    fresh_id: int | None = None


class HandOver(NamedTuple):
    """A process leaves its transaction to a coordinator."""

    client: Client


class Fence(NamedTuple):
    """A person, or the next owner of its name, aborts it. `with_empty`: also before its producer has begun."""

    with_empty: bool = False


class Resolve(NamedTuple):
    """A resolver tests whether it has to be aborted. `is_held`: its process is alive, or may be."""

    is_held: bool


class Marked(NamedTuple):
    """Every marker is on disk. `has_name`: its producer still has its transactional id."""

    has_name: bool = True


Event = Init | Add | CommitOffsets | End | HandOver | Fence | Resolve | Marked


class Outcome(Enum):
    OK = "ok"
    UNKNOWN = "no such producer"
    FENCED = "its epoch is over, or its name another's"
    CONCURRENT = "its last transaction has to be marked first"
    INVALID = "not in this state"
    NEEDS_ID = "another producer id is wanted"
    NEEDS_SYNC = "not all of its partitions are on disk"


class Step(NamedTuple):
    outcome: Outcome
    row: Row | None
    """What the row is now. None, where there was one: it goes."""
    retired: Row | None = None
    """That of its previous producer id: it stays until it is over."""


def step(row: Row | None, event: Event, now: Now) -> Step:
    """Return the next state of a row. For an event of a server's client, `row` is the one that has its name."""
    match event:
        case Init():
            return _init(row, event, now)
        case _ if row is None:
            return Step(Outcome.UNKNOWN, None)
        case Add() | CommitOffsets():
            return _add(row, event, now)
        case End():
            return _end(row, event, now)
        case HandOver():
            wrong = _check_client(row, event.client) or (None if row.is_ongoing else Outcome.INVALID)
            return Step(wrong, row) if wrong else Step(Outcome.OK, row._replace(owner=COORDINATOR))
        case Fence():
            is_due = row.is_ongoing or (event.with_empty and row.state == EMPTY)
            return Step(Outcome.OK, _fenced(row)) if is_due else Step(Outcome.INVALID, row)
        case Resolve():
            abandoned = row.owner == PROCESS and not event.is_held
            is_due = row.is_ongoing and (abandoned or row.is_late(now))
            return Step(Outcome.OK, _fenced(row)) if is_due else Step(Outcome.INVALID, row)
        case Marked():
            if not row.is_prepared:
                return Step(Outcome.INVALID, row)
            return Step(Outcome.OK, _completed(row) if row.owner == SERVER and event.has_name else None)


def _init(row: Row | None, event: Init, now: Now) -> Step:
    if row is None or row.owner != SERVER:
        if row is not None and event.client is not None:
            return Step(Outcome.FENCED, row)
        if event.fresh_id is None:
            return Step(Outcome.NEEDS_ID, row)
        return Step(Outcome.OK, _new(event.name, event.fresh_id, event.timeout_ms, now))
    is_again = event.client is not None and _is_again(row, event.client)
    if event.client is not None and not is_again and event.client != (row.producer_id, row.next_epoch):
        return Step(Outcome.FENCED, row)
    row = row._replace(used_ms=now.clock_ms)
    last_epoch = -1 if event.client is None else row.next_epoch
    if row.is_prepared:
        return Step(Outcome.CONCURRENT, row)
    if row.is_ongoing:
        row = _fenced(row, last_epoch)
        is_done = row.is_over and event.client is not None  # else the next epoch is for a later call, as if in time
        return Step(Outcome.OK if is_done else Outcome.CONCURRENT, row)
    if is_again:
        return Step(Outcome.OK, row._replace(timeout_ms=event.timeout_ms))
    if row.next_epoch >= MAX_EPOCH:
        if event.fresh_id is None:
            return Step(Outcome.NEEDS_ID, row)
        new = _new(event.name, event.fresh_id, event.timeout_ms, now)
        return Step(Outcome.OK, new._replace(previous_id=row.producer_id), retired=row)
    following = row.next_epoch + 1
    return Step(
        Outcome.OK,
        row._replace(
            epoch=following, next_epoch=following, last_epoch=last_epoch, state=EMPTY, timeout_ms=event.timeout_ms
        ),
    )


def _add(row: Row, event: Add | CommitOffsets, now: Now) -> Step:
    if wrong := _check_client(row, event.client):
        return Step(wrong, row)
    if row.is_prepared:
        return Step(Outcome.CONCURRENT, row)
    if isinstance(event, Add):
        partitions, groups = event.partitions, event.groups
        if row.is_ongoing and partitions <= row.partitions and groups <= row.groups:
            return Step(Outcome.OK, row)
    else:
        partitions, groups = frozenset(), frozenset({event.group})
        if not event.adds_group and not (row.is_ongoing and event.group in row.groups):
            return Step(Outcome.INVALID, row)
    if row.is_ongoing:
        more = row._replace(partitions=row.partitions | partitions, groups=row.groups | groups, used_ms=now.clock_ms)
        return Step(Outcome.OK, more)
    begun = row._replace(
        state=ONGOING,
        boot_id=now.boot_id,
        started_boot_ms=now.boot_ms,
        started_ms=now.wall_ms,
        used_ms=now.clock_ms,
        partitions=partitions,
        groups=groups,
    )
    return Step(Outcome.OK, begun)


def _end(row: Row, event: End, now: Now) -> Step:
    """Like Kafka's endTransaction, for both kinds of clients."""
    is_again = event.bumps and _is_again(row, event.client)
    if not is_again and (wrong := _check_client(row, event.client)):
        return Step(wrong, row)
    if not row.is_ongoing and (is_again or not event.bumps):
        is_same = row.state in ((COMMIT, COMPLETE_COMMIT) if event.commit else (ABORT, COMPLETE_ABORT))
        return Step(Outcome.OK if is_same else Outcome.INVALID, row)
    if row.is_prepared:
        return Step(Outcome.CONCURRENT, row)
    if not row.is_ongoing and event.commit:
        return Step(Outcome.INVALID, row)
    if event.commit and event.synced is not None and not row.partitions <= event.synced:
        return Step(Outcome.NEEDS_SYNC, row)
    row = row._replace(used_ms=now.clock_ms)
    if not event.bumps:
        return Step(Outcome.OK, _ended(row, event.commit, row.epoch, row.last_epoch))
    ended = _ended(row, event.commit, row.epoch + 1, row.epoch)
    if ended.next_epoch <= MAX_EPOCH or row.owner != SERVER:
        return Step(Outcome.OK, ended)
    if event.fresh_id is None:
        return Step(Outcome.NEEDS_ID, row)
    state = COMPLETE_COMMIT if event.commit else COMPLETE_ABORT
    new = _new(row.name, event.fresh_id, row.timeout_ms, now)._replace(previous_id=row.producer_id, state=state)
    return Step(Outcome.OK, new, retired=ended)


def _new(name: str | None, producer_id: int, timeout_ms: int, now: Now) -> Row:
    return Row(producer_id, 0, SERVER, name=name, timeout_ms=timeout_ms, used_ms=now.clock_ms)


def _check_client(row: Row, client: Client) -> Outcome | None:
    if row.producer_id != client[0]:  # of a process: it has taken the name
        return Outcome.UNKNOWN if row.owner == SERVER else Outcome.FENCED
    return Outcome.FENCED if row.next_epoch != client[1] else None


def _is_again(row: Row, client: Client) -> bool:
    """Return whether the producer repeats its last call because it did not receive its next epoch or id."""
    if row.is_ongoing or client[1] < 0:
        return False
    is_rotated = row.next_epoch == 0 and client[0] == row.previous_id and client[1] >= MAX_EPOCH
    return is_rotated or client == (row.producer_id, row.last_epoch)


def _ended(row: Row, commit: bool, next_epoch: int, last_epoch: int) -> Row:
    """Return the row, decided. Without a partition there are no markers to write."""
    ended = row._replace(state=COMMIT if commit else ABORT, next_epoch=next_epoch, last_epoch=last_epoch)
    return ended if row.partitions else _completed(ended)


def _fenced(row: Row, last_epoch: int = -1) -> Row:
    """Return the row, aborted by another than its producer. `last_epoch`: that of a producer to be notified."""
    return _ended(row, False, row.epoch + 1, last_epoch)


def _completed(row: Row) -> Row:
    return row._replace(
        epoch=row.next_epoch, state=_COMPLETE[row.state], started_ms=-1, partitions=frozenset(), groups=frozenset()
    )
