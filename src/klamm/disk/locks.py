"""Lock files: bytes that processes lock, for moments or for long.

    lock       byte 0: the write lock of klamm.db; byte 1: openers (store/directory.py); byte 2: the queue for
               the klamm.db lock
               bytes 4n + 1 to 4n + 3: flush, clean, recovery point of the partition in slot n
               4n + 1 + (g << 40): its flush byte, after g syncing processes were replaced (log/head.py)
               WAITING + b: shared by the processes that have waited for byte b for more than a moment; 4n: for the
               append lock of slot n, which is not a byte, but a word in `heads` (log/owner.h)
    members    byte 0: presence, shared by every process that has the store open; exclusive for recovery
               byte 1: the Kafka server, of which a store has at most one
               byte 2: the process that records the history of groups (console/history.py)
               TABLE + s: the process that maintains the table of the topic whose partition 0 is in slot s
               (g + 1) << 40: the lock range of group number g. The member with index m holds byte m of the range, the
               owner of the partition in slot s byte OWNED + s, and the Kafka server byte DOOR as long as members of the
               group belong to it TRANSACTION + p: the transactional producer with id p
    heads      bytes beyond its end: presence (store/presence.py); mapped (log/_heads.pxi);
               LIFE + x: the life number of a process (log/owner.h)

The bytes are never written; only their locks matter. A lock is an open-file-description lock: it belongs to the
descriptor, not to the process, so a stray `close` elsewhere does not drop it, and the kernel frees it when the last
copy of the descriptor is gone, however the process ended. Liveness is a lock that is free, never a pid. Beside each
byte of `lock` is a note in `heads` (os.h): which process took it last, and a word that waiting processes sleep on.

Such a lock excludes neither threads that share the descriptor nor forked children. Hence each byte has a
mutex, and `_in_child` closes the descriptor. Bytes held for long are recorded here instead: so two holders in one
process exclude each other, and `held` includes this process's own locks, which the kernel does not report to it.

Where the system has no such locks (macOS, Windows), the first opener takes the whole `members` file for itself, and a
second process gets StoreBusy: one process at a time, rather than a weaker protocol.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Protocol

from klamm.disk import _os, fork, holders
from klamm.errors import StoreBusy

__all__ = [
    "BUSY_TIMEOUT_MS",
    "DB_LOCK",
    "DB_LOCK_QUEUE",
    "DOOR",
    "MAX_GROUPS",
    "MAX_MEMBER_INDEX",
    "OWNED",
    "PRESENCE",
    "RECORDER",
    "SERVER",
    "TABLE",
    "TRANSACTION",
    "WAITING",
    "LockFile",
    "Notes",
    "group_lock_base",
    "held_by_others",
]

BUSY_TIMEOUT_MS = 30_000
DB_LOCK = 0
DB_LOCK_QUEUE = 2
WAITING = _os.WAITING
_LOCKS = ("append lock", "flush lock", "clean lock", "lock of the recovery point")
_GENERATION = 1 << 40  # from one byte of a flush lock to the next (log/slot.h)
_STORE_LOCKS = ("write lock of klamm.db", "lock for opening the store", "queue for the write lock of klamm.db")

PRESENCE = 0
SERVER = 1
RECORDER = 2
TABLE = 1 << 32
OWNED = 1 << 30  # from the start of a group's region
MAX_MEMBER_INDEX = 1 << 20
DOOR = MAX_MEMBER_INDEX  # from the start of a group's region
MAX_GROUPS = (1 << 22) - 1
TRANSACTION = 1 << 62


def group_lock_base(number: int) -> int:
    """Return the first byte of a group's lock range in `members`."""
    assert 0 <= number < MAX_GROUPS
    return (number + 1) << 40


class Notes(Protocol):
    """The notes in `heads`, in which processes record the locks that they hold."""

    def note_address(self, byte: int) -> int: ...
    def holder_of(self, byte: int) -> int: ...


def name_of(byte: int) -> str:
    """Return the purpose of a byte of `lock`, in words."""
    byte %= _GENERATION
    if byte < 4:
        return _STORE_LOCKS[byte] if byte < 3 else f"byte {byte}"
    return f"{_LOCKS[byte % 4]} of slot {byte // 4}"


class LockFile:
    """One file of lock bytes. A process opens it once."""

    def __init__(self, path: str, *, create: bool = True, timeout_ms: int = BUSY_TIMEOUT_MS) -> None:
        """Open the file. `timeout_ms`: how long a process waits for a byte by default; -1: without limit."""
        self.path = path
        self.fd = -1
        self.timeout_ms = timeout_ms
        self.stopped_after_ms = 1000  # how long a stopped process can keep others from syncing
        self.unknown_after_ms = 10_000  # the same, if it is unknown whether the process is stopped
        self._notes: Notes | None = None
        self._mutexes: dict[int, _os.ByteMutex] = {}
        self._ours: dict[int, bool] = {}  # bytes held for long; whether exclusively. Changed by native code
        with fork.guard:
            self.fd = _os.open_file(path, os.O_RDWR | (os.O_CREAT if create else 0))
            fork.register(self, LockFile._in_child)

    def record_in(self, notes: Notes) -> None:
        """Record in `heads` which bytes this process takes from now on. Bytes taken before are not recorded."""
        self._notes = notes

    def hold(
        self, byte: int, *, timeout_ms: int | None = None, queue: int | None = None, what: str | None = None
    ) -> AbstractContextManager[None]:
        """Hold `byte` exclusively for a `with` block. Raise StoreBusy after `timeout_ms`; `what` names the lock in it.

        Processes that wait for a byte get it one after the other, and each hand-over costs a switch between processes.
        With a `queue`, another byte, they wait for that, and only the first of them waits for `byte`. So a process that
        has just released `byte` gets it again, up to 128 times while its caches are warm; then it wakes the first of
        the queue, and queues up itself.
        """
        mutex = self._mutexes.get(byte) or self._mutex_of(byte)
        timeout = self.timeout_ms if timeout_ms is None else timeout_ms
        return _os.Hold(self, mutex, byte, timeout, -1 if queue is None else queue, what)

    def _mutex_of(self, byte: int) -> _os.ByteMutex:
        address = self._notes.note_address(byte) if self._notes is not None else 0
        return self._mutexes.setdefault(byte, _os.ByteMutex(self._notes, address))

    def busy(self, byte: int, what: str | None, timeout_ms: int) -> StoreBusy:
        """Return the error for a byte that was not free in time, with its holder unless that would be known at once."""
        what = what or f"{self.path}: byte {byte}, {name_of(byte)}"
        if timeout_ms == 0:
            return StoreBusy(f"{what}: held by another process or thread")
        return _busy(what, self._find_holder(byte), timeout_ms)

    def busy_life(self, what: str, byte: int, word: int, timeout_ms: int) -> StoreBusy:
        """Return the error for a lock whose owner is the process that holds `byte` of this file."""
        return _busy(what, holders.find_holder(self.path, byte, word), timeout_ms)

    def is_holder_stopped(self, byte: int) -> bool | None:
        """Return whether the process that holds `byte` is stopped; None if that cannot be known."""
        holder = self._find_holder(byte)
        return None if holder is None or holder.process is None else holder.process.is_stopped

    def _find_holder(self, byte: int) -> holders.Holder | None:
        word = self._notes.holder_of(byte % _GENERATION) if self._notes is not None else 0
        holder = holders.find_holder(self.path, byte, word)
        mutex = self._mutexes.get(byte)
        return holder if holder is None or mutex is None else holder._replace(thread=mutex.holding_thread)

    def busy_log(self, directory: str, byte: int, timeout_ms: int) -> StoreBusy:
        """Return the error for a lock of a partition that was not free in time."""
        return self.busy(byte, f"{directory}: {_LOCKS[byte % 4]}", timeout_ms)

    def try_hold(self, byte: int, *, shared: bool = False) -> bool:
        """Take `byte` for long. Return False if it is taken, also if by this process.

        A holder may change its lock from exclusive to shared and back. Bytes that are released before the store is
        closed belong into a `HeldBytes`, so that an interrupt cannot lose track of them.
        """
        return _os.take_byte(self, byte, shared)

    def holds_alone(self, byte: int) -> bool:
        """Return whether this process has taken `byte` exclusively, for long."""
        return self._ours.get(byte, False)

    def held(self, byte: int, length: int = 1) -> list[tuple[int, int]]:
        """Return which bytes of the range are held, shared or exclusively, as sorted, disjoint (start, length)."""
        if length == 1:
            found = [(byte, 1)] if byte in self._ours else []
        else:
            found = [(each, 1) for each in list(self._ours) if byte <= each < byte + length]
        if length != 1 or not found:
            found += held_by_others(self.fd, byte, length)
        return _merged(found)

    def try_hold_whole(self) -> bool:
        """Take the whole file for as long as it is open: for systems without byte locks."""
        return _os.lock_whole(self.fd)

    def release(self, byte: int) -> None:
        """Release a byte that `try_hold` took. Do nothing after `close`, or in a forked child: it is the parent's."""
        _os.drop_byte(self, byte)

    def close(self) -> None:
        _os.close_locks(self)

    def __del__(self) -> None:
        self.close()

    def _in_child(self) -> None:
        self.close()
        self._mutexes = {}


def _busy(what: str, holder: holders.Holder | None, timeout_ms: int) -> StoreBusy:
    holder = holder or holders.UNKNOWN
    return StoreBusy(f"{what}: held by {holder}; waited {timeout_ms / 1000:g} s", hint=holder.hint)


def held_by_others(fd: int, byte: int, length: int) -> list[tuple[int, int]]:
    """Return the ranges that other open files hold. The kernel reports one lock at a time, so query on both sides of
    it.
    """
    found: list[tuple[int, int]] = []
    ranges = [(byte, length)]
    while ranges:
        start, size = ranges.pop()
        lock = _os.find_lock(fd, start, size)
        if lock is not None:
            found.append(lock)
            first, count = lock
            if first > start:
                ranges.append((start, first - start))
            if first + count < start + size:
                ranges.append((first + count, start + size - first - count))
    return found


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges sorted, with neighbours and overlaps merged."""
    merged: list[tuple[int, int]] = []
    for start, length in sorted(ranges):
        if merged and start <= sum(merged[-1]):
            first = merged[-1][0]
            merged[-1] = first, max(sum(merged[-1]), start + length) - first
        else:
            merged.append((start, length))
    return merged
