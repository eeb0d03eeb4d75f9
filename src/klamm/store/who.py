"""List the processes that hold or wait for a lock of a store: `Store.who` and `klamm who`.

It takes no lock, and works while processes are stuck. The kernel reports the lock bytes (disk/holders.py). For append
locks, `heads` has the life number of the owner, and the kernel reports the byte of that number (log/owner.h). A lock of
a process that cannot be seen from here (of another user, or outside of this container) is listed without its pid.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from klamm.disk import holders
from klamm.disk.locks import (
    DB_LOCK,
    DB_LOCK_QUEUE,
    DOOR,
    OWNED,
    PRESENCE,
    RECORDER,
    SERVER,
    TABLE,
    TRANSACTION,
    WAITING,
    held_by_others,
)
from klamm.log import head
from klamm.store.presence import IN_LOCK
from klamm.types import LockInfo

if TYPE_CHECKING:
    from klamm.disk.holders import Process
    from klamm.store.directory import Core

__all__ = ["who"]

_STORE_LOCKS = {DB_LOCK: "klamm.db", 1: "opening", DB_LOCK_QUEUE: "klamm.db queue"}
_PARTITION_LOCKS = ("append", "flush", "clean", "recovery point")
_GENERATION_BITS = 40  # of a flush lock, above its byte (log/slot.h)
_GROUP_BITS = 40
_MAX_RANGE = 4096  # bytes side by side that are listed one by one


class _Lock(NamedTuple):
    name: str
    of: str | None = None
    since_ms: int | None = None


def who(core: Core) -> list[LockInfo]:
    """Return the locks that processes hold or wait for, by lock and pid."""
    names = _Names(core)
    held = [
        (byte, process) for byte, process in _held(f"{core.files}/lock") if byte != IN_LOCK
    ]  # `members` has it, too
    held = sorted([*held, *_appending(core)], key=lambda each: each[0])
    rows = [_row(core, names, "lock", byte, process) for byte, process in held]
    return rows + [_row(core, names, "members", byte, process) for byte, process in _held(f"{core.files}/members")]


def _held(path: str, first: int = 0, end: int = (1 << 63) - 1) -> list[tuple[int, Process | None]]:
    """Return the bytes of a lock file that processes hold, and the process, if it can be seen from here."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    try:
        taken = held_by_others(fd, first, end - first)
    finally:
        os.close(fd)
    found: list[tuple[int, Process | None]] = []
    for held in holders.held_ranges(path):
        found += [(byte, held.process) for byte in _bytes(held.start, held.length) if first <= byte < end]
    seen = {byte for byte, _ in found}
    return found + [(byte, None) for start, length in taken for byte in _bytes(start, length) if byte not in seen]


def _bytes(start: int, length: int) -> Iterable[int]:
    return range(start, start + min(length, _MAX_RANGE))


def _appending(core: Core) -> list[tuple[int, Process | None]]:
    """Return the append locks that processes hold, as bytes 4n of `lock`."""
    owners = [] if core.heads.private else core.heads.owners()
    if not owners:
        return []
    lives = dict(_held(f"{core.files}/heads", head.LIFE, head.LIFE + (1 << 31)))
    return [(4 * slot, lives[head.LIFE + life]) for slot, life in owners if head.LIFE + life in lives]


def _row(core: Core, names: _Names, file: str, byte: int, process: Process | None) -> LockInfo:
    waits = file == "lock" and byte >= WAITING
    byte -= WAITING if waits else 0
    lock = names.in_lock(byte) if file == "lock" else names.in_members(byte)
    since_ms = lock.since_ms
    if file == "lock" and not waits:
        recorded = holders.recorded_holder(core.heads.holder_of(byte & ((1 << _GENERATION_BITS) - 1)))
        if recorded is not None and (process is None or recorded.pid == process.pid):
            since_ms = recorded.since_ms
            process = process or recorded.process
    if process is None:
        return LockInfo(lock.name, lock.of, "waits" if waits else "holds", None, None, None, since_ms)
    if since_ms is None or since_ms < process.started_ms:
        since_ms = None if waits or file == "lock" else process.started_ms
    return LockInfo(
        lock.name, lock.of, "waits" if waits else "holds", process.pid, process.command, process.is_stopped, since_ms
    )


class _Names:
    """The names of what lock bytes lock, from the catalog."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._partitions = {
            slot: f"{topic.name}/{number}"
            for topic in core.catalog.topics()
            for number, slot in enumerate(topic.partitions)
        }
        self._groups = {group.number: group.name for group in map(core.groups.get, core.groups.names())}
        self._members = {(number, row.member_index): row for number in self._groups for row in core.groups.rows(number)}
        self._transactions = {info.producer_id: info for info in core.transactions.infos()}
        names = core.catalog.database.read("SELECT producer_id, name FROM transaction_names")
        self._transactional_ids: dict[int, str] = dict(names)

    def _partition(self, slot: int) -> str:
        return self._partitions.get(slot, f"slot {slot}")

    def in_lock(self, byte: int) -> _Lock:
        if byte < 4:
            return _Lock(_STORE_LOCKS.get(byte, f"byte {byte}"))
        generation, byte = byte >> _GENERATION_BITS, byte & ((1 << _GENERATION_BITS) - 1)
        slot, kind = divmod(byte, 4)
        name = _PARTITION_LOCKS[kind]
        if kind == 1 and generation != self._flush_generation(slot):
            name = "flush (replaced)"
        return _Lock(name, self._partition(slot))

    def _flush_generation(self, slot: int) -> int:
        return self._core.heads.flush_generation_of(slot)

    def in_members(self, byte: int) -> _Lock:
        if byte == PRESENCE:
            return _Lock("open")
        if byte == SERVER:
            return _Lock("Kafka server")
        if byte == RECORDER:
            return _Lock("history of groups")
        if byte >= TRANSACTION:
            return self._transaction(byte - TRANSACTION)
        if byte >> _GROUP_BITS:
            return self._group((byte >> _GROUP_BITS) - 1, byte & ((1 << _GROUP_BITS) - 1))
        if byte >= TABLE:
            topic = self._partition(byte - TABLE).removesuffix("/0")
            return _Lock("table", topic)
        return _Lock(f"byte {byte}")

    def _group(self, number: int, byte: int) -> _Lock:
        group = self._groups.get(number, f"group number {number}")
        if byte >= OWNED:
            return _Lock("partition of group", f"{group}: {self._partition(byte - OWNED)}")
        if byte == DOOR:
            return _Lock("Kafka members of group", group)
        row = self._members.get((number, byte))
        member = f"member {byte}" if row is None else row.name or row.id
        return _Lock("member of group", f"{group}: {member}", None if row is None else row.joined_ms)

    def _transaction(self, producer_id: int) -> _Lock:
        info = self._transactions.get(producer_id)
        age_ms = None if info is None else info.age_ms
        since_ms = None if age_ms is None else time.time_ns() // 1_000_000 - age_ms
        name = self._transactional_ids.get(producer_id, f"id {producer_id}")
        return _Lock("transactional producer", name, since_ms)
