"""Changes of the server's rows of transactions since the last read: those that are new, altered or gone, and no others.

As in topic_changes.py, SQLite returns all rows as one text, here with their keys and checksums, in one step without the
GIL. So a write of another process to klamm.db costs a comparison of bytes, however many transactional ids there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from klamm.store import transaction_table as table
from klamm.store.topic_changes import different_rows
from klamm.store.transaction_state import SERVER, Row
from klamm.types import TopicId

if TYPE_CHECKING:
    from klamm.store.database import Database, Execute

__all__ = ["PendingKey", "ServerRow", "ServerRowReader"]

PendingKey = tuple[str, TopicId, int]
"""Group name, topic id, partition."""

_FEW = 64  # of which each is read by itself, or a part of all that is as small
_PART = 4
_ROWS = """SELECT group_concat(
    t.producer_id || char(31) || t.used_ms || char(31) || t.crc || char(31) || coalesce(n.crc, ''), char(30)
) FROM transactions t LEFT JOIN transaction_names n ON n.producer_id = t.producer_id WHERE t.owner = ?"""
_PENDING_ROWS = """SELECT group_concat(
    p.producer_id || char(31) || p.group_number || char(31) || p.topic_id || char(31) || p.partition, char(30)
) FROM pending_offsets p JOIN groups g ON g.number = p.group_number"""
_HOLDERS = "SELECT producer_id FROM transaction_names"
_PENDING = """SELECT p.producer_id, g.name, p.topic_id, p.partition FROM pending_offsets p
    JOIN groups g ON g.number = p.group_number"""


class ServerRow(NamedTuple):
    """The state of a producer id of the server in klamm.db."""

    row: Row | None
    """None: it has none, or a damaged one."""
    holds_name: bool
    pending: frozenset[PendingKey]


class ServerRowReader:
    """The server's rows of one store; for one thread at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows = ""  # the texts
        self._pending = ""

    def read(self, also: Iterable[int] = ()) -> dict[int, ServerRow]:
        """Return what changed since the last call, by producer id; everything on the first call. `also`: read these,
        changed or not.
        """
        with self._database.reading() as execute:
            rows = execute(_ROWS, (SERVER,)).fetchone()[0] or ""
            pending = execute(_PENDING_ROWS).fetchone()[0] or ""
            producer_ids = {*also, *_changed(self._rows, rows), *_changed(self._pending, pending)}
            if len(producer_ids) <= max(_FEW, rows.count("\x1e") // _PART):
                found = {producer_id: _read(execute, producer_id) for producer_id in producer_ids}
            else:
                found = _read_all(execute, producer_ids)
        self._rows, self._pending = rows, pending
        return found


def _changed(old: str, new: str) -> set[int]:
    """Return the producer ids of the rows in which the texts differ."""
    before, after = different_rows(old, new)
    return {int(row.partition("\x1f")[0]) for row in before | after}


def _read(execute: Execute, producer_id: int) -> ServerRow:
    row = next((row for row in table.rows(execute, producer_id) if row.owner == SERVER), None)
    holds_name = execute(f"{_HOLDERS} WHERE producer_id = ?", (producer_id,)).fetchone() is not None
    pending = execute(f"{_PENDING} WHERE p.producer_id = ?", (producer_id,)).fetchall()
    return ServerRow(row, holds_name, frozenset((name, topic_id, number) for _, name, topic_id, number in pending))


def _read_all(execute: Execute, producer_ids: Iterable[int]) -> dict[int, ServerRow]:
    rows = {row.producer_id: row for row in table.rows(execute) if row.owner == SERVER}
    holders = {producer_id for (producer_id,) in execute(_HOLDERS).fetchall()}
    pending: dict[int, set[PendingKey]] = {}
    for producer_id, name, topic_id, number in execute(_PENDING).fetchall():
        pending.setdefault(producer_id, set()).add((name, topic_id, number))
    return {
        producer_id: ServerRow(rows.get(producer_id), producer_id in holders, frozenset(pending.get(producer_id, ())))
        for producer_id in producer_ids
    }
