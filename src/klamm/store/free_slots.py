"""Slots of `heads` that partitions of deleted topics have left, in klamm.db: the next partitions get them.

    free_slots    slot

A slot is put here when its topic's tombstone goes (deletion.py): then it is marked DELETED, and no process opens it any
more. A log of the deleted partition that a process still has notices the new generation (log/slot.h).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from klamm.store.database import Execute

__all__ = ["SCHEMA", "SPARE", "count_from", "forget_all", "forget_from", "give", "lowest", "take"]

SCHEMA = "CREATE TABLE free_slots (slot INTEGER PRIMARY KEY)"
SPARE = 64  # so many more are looked at than are wanted: a stopped process may hold a lock of one


def lowest(execute: Execute, count: int) -> tuple[int, ...]:
    """Return some, the lowest first: so that `heads` can be cut at its end."""
    rows = execute("SELECT slot FROM free_slots ORDER BY slot LIMIT ?", (count + SPARE,)).fetchall()
    return tuple(slot for (slot,) in rows)


def take(execute: Execute, slots: Iterable[int]) -> None:
    for slot in slots:
        execute("DELETE FROM free_slots WHERE slot = ?", (slot,))


def give(execute: Execute, slots: Iterable[int]) -> None:
    for slot in slots:
        execute("INSERT OR IGNORE INTO free_slots VALUES (?)", (slot,))


def count_from(execute: Execute, slot: int) -> int:
    """Return how many there are, from a slot on."""
    return int(execute("SELECT count(*) FROM free_slots WHERE slot >= ?", (slot,)).fetchone()[0])


def forget_from(execute: Execute, slot: int) -> None:
    """Forget those from a slot on: they are cut off (slots.py)."""
    execute("DELETE FROM free_slots WHERE slot >= ?", (slot,))


def forget_all(execute: Execute) -> None:
    """Forget which slots are free: an older klamm.db does not know it."""
    execute("DELETE FROM free_slots")
