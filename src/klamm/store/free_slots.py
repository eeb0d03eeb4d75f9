"""Free slots of `heads`, in klamm.db: those of deleted partitions, which the next partitions get.

    free_slots    slot

A slot is added when its topic's tombstone is deleted (deletion.py): then it is marked DELETED, and no process opens it
any more. A process that still has the deleted partition open notices the new generation of the slot (log/slot.h).

Slots that were lost, neither in use nor in this table, are added by a process that opens the store alone (slots.py):
those that were deleted before there was this table (format 4), and those of which a klamm.db that was restored or made
again knows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from klamm.store.database import Execute

__all__ = ["SCHEMA", "SPARE", "count_from", "find_unused", "forget_all", "forget_from", "give", "lowest", "take"]

SCHEMA = "CREATE TABLE free_slots (slot INTEGER PRIMARY KEY)"
SPARE = 64  # this many more are read than are wanted: a stopped process may hold a lock of one


def lowest(execute: Execute, count: int) -> tuple[int, ...]:
    """Return some free slots, the lowest first, so that `heads` can be cut at its end."""
    rows = execute("SELECT slot FROM free_slots ORDER BY slot LIMIT ?", (count + SPARE,)).fetchall()
    return tuple(slot for (slot,) in rows)


def take(execute: Execute, slots: Iterable[int]) -> None:
    for slot in slots:
        execute("DELETE FROM free_slots WHERE slot = ?", (slot,))


def give(execute: Execute, slots: Iterable[int]) -> None:
    for slot in slots:
        execute("INSERT OR IGNORE INTO free_slots VALUES (?)", (slot,))


def count_from(execute: Execute, slot: int) -> int:
    """Return the number of free slots from this one on."""
    return int(execute("SELECT count(*) FROM free_slots WHERE slot >= ?", (slot,)).fetchone()[0])


def find_unused(execute: Execute, next_slot: int) -> list[int]:
    """Return the slots below `next_slot` that are neither in use nor free: usually none, which two counts tell."""
    counts = execute("SELECT (SELECT count(*) FROM partitions) + (SELECT count(*) FROM free_slots)").fetchone()
    if counts[0] == next_slot - 1:
        return []
    rows = execute("SELECT slot FROM partitions UNION ALL SELECT slot FROM free_slots").fetchall()
    known = {slot for (slot,) in rows}
    return [slot for slot in range(1, next_slot) if slot not in known]


def forget_from(execute: Execute, slot: int) -> None:
    """Delete the free slots from this one on: they are cut off (slots.py)."""
    execute("DELETE FROM free_slots WHERE slot >= ?", (slot,))


def forget_all(execute: Execute) -> None:
    """Delete all of them: a klamm.db from a backup does not know which slots are free now."""
    execute("DELETE FROM free_slots")
