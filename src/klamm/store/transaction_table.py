"""Read, write and check the rows of transactions in klamm.db. transaction_state.py has what they mean.

    transactions        producer_id, epoch, owner, state, name, next_epoch, last_epoch, previous_id, timeout_ms,
                        boot_id, started_boot_ms, started_ms, used_ms, partitions, groups, crc
    transaction_names   name, producer_id, crc              which producer id writes under a transactional id now
    pending_offsets     producer_id, group_number, topic_id, partition, offset, leader_epoch, metadata,
                        committed_ms, crc

`partitions` is JSON: {topic id: [numbers]}; `groups` is a JSON list of names. A process may have several rows for one
producer id, one for each epoch whose markers are not on disk yet. The server has one row for each, which stays when its
transaction is over, with the state "empty" or "complete_…".

Every function here is called inside a SQLite transaction; functions that write are called under the klamm.db lock.

Promises
  TXT1  A row whose checksum is wrong raises an error when it is requested by its key, and is logged and left out when
        all rows are read: its outcome is not guessed.
  TXT2  Offsets that are part of a transaction become the group's in the SQLite transaction that commits it, or never.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from klamm.errors import NotAStore
from klamm.store.database import REBUILD_BY_HAND
from klamm.store.groups import OffsetRow, put_offsets
from klamm.store.rows import crc
from klamm.store.transaction_state import ONGOING, OWNERS, PROCESS, SERVER, STATES, Row, Step
from klamm.types import PartitionKey, TopicId

if TYPE_CHECKING:
    from klamm.store.database import Execute

__all__ = [
    "NAMES",
    "PENDING",
    "TABLE",
    "check",
    "find",
    "find_server",
    "forget",
    "forget_name",
    "holder",
    "pending_ranges",
    "put",
    "put_name",
    "put_pending",
    "rows",
    "unused",
    "upgrade",
    "write",
]

_log = logging.getLogger("klamm")
_COLUMNS = (
    "producer_id, epoch, owner, state, name, next_epoch, last_epoch, previous_id, timeout_ms, boot_id, "
    "started_boot_ms, started_ms, used_ms, partitions, groups"
)
_FIND_NAMED = (
    f"SELECT n.producer_id, n.crc, {', '.join(f't.{column}' for column in _COLUMNS.split(', '))}, t.crc"
    " FROM transaction_names n LEFT JOIN transactions t ON t.producer_id = n.producer_id AND t.owner = ?"
    " WHERE n.name = ?"
)
_PUT = f"INSERT OR REPLACE INTO transactions ({_COLUMNS}, crc) VALUES ({', '.join('?' * 16)})"

TABLE = """
CREATE TABLE transactions (
    producer_id INTEGER NOT NULL, epoch INTEGER NOT NULL, owner TEXT NOT NULL, state TEXT NOT NULL, name TEXT,
    next_epoch INTEGER NOT NULL, last_epoch INTEGER NOT NULL, previous_id INTEGER NOT NULL, timeout_ms INTEGER NOT NULL,
    boot_id TEXT NOT NULL, started_boot_ms INTEGER NOT NULL, started_ms INTEGER NOT NULL, used_ms INTEGER NOT NULL,
    partitions TEXT NOT NULL, groups TEXT NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (producer_id, epoch)
) WITHOUT ROWID
"""
NAMES = """
CREATE TABLE transaction_names (
    name TEXT PRIMARY KEY, producer_id INTEGER NOT NULL UNIQUE, crc INTEGER NOT NULL
) WITHOUT ROWID
"""
PENDING = """
CREATE TABLE pending_offsets (
    producer_id INTEGER NOT NULL, group_number INTEGER NOT NULL, topic_id TEXT NOT NULL, partition INTEGER NOT NULL,
    offset INTEGER NOT NULL, leader_epoch INTEGER NOT NULL, metadata TEXT NOT NULL, committed_ms INTEGER NOT NULL,
    crc INTEGER NOT NULL, PRIMARY KEY (producer_id, group_number, topic_id, partition)
) WITHOUT ROWID;
CREATE INDEX pending_offsets_by_group ON pending_offsets (group_number);
CREATE INDEX pending_offsets_by_topic ON pending_offsets (topic_id)
"""


# ---- rows


def rows(execute: Execute, producer_id: int | None = None) -> list[Row]:
    """Return all rows, or the rows of one producer id, by producer id and epoch. Damaged rows are left out."""
    return _rows(execute, "") if producer_id is None else _rows(execute, " WHERE producer_id = ?", producer_id)


def unused(execute: Execute, before_ms: int) -> list[Row]:
    """Return the rows of the server whose clients have no transaction, and were not heard of since then."""
    return [row for row in _rows(execute, " WHERE owner = ? AND used_ms < ?", SERVER, before_ms) if row.is_over]


def _rows(execute: Execute, where: str, *values: object) -> list[Row]:
    found = []
    for columns in execute(f"SELECT {_COLUMNS}, crc FROM transactions{where}", values).fetchall():
        try:
            found.append(_parse(columns))
        except ValueError as error:
            _log.error("klamm.db: transactions: producer id %s, epoch %s: %s", columns[0], columns[1], error)
    return sorted(found, key=lambda row: row.key)


def find(execute: Execute, key: tuple[int, int]) -> Row | None:
    """Return one row. Raise NotAStore if it is damaged."""
    return _find(execute, "producer_id = ? AND epoch = ?", key)


def find_server(execute: Execute, producer_id: int) -> Row | None:
    """Return the row of a producer id of the server. Raise NotAStore if it is damaged."""
    return _find(execute, "producer_id = ? AND owner = ?", (producer_id, SERVER))


def find_named(execute: Execute, name: str) -> tuple[int | None, Row | None]:
    """Return the producer id that writes under a name, and its row if it is the server's. NotAStore: see `holder`."""
    found = execute(_FIND_NAMED, (SERVER, name)).fetchone()
    if found is None:
        return None, None
    producer_id, checksum, *columns = found
    _check_holder(name, producer_id, checksum)
    return producer_id, None if columns[0] is None else _parse_or_raise(tuple(columns))


def _find(execute: Execute, where: str, values: tuple[object, ...]) -> Row | None:
    columns = execute(f"SELECT {_COLUMNS}, crc FROM transactions WHERE {where}", values).fetchone()
    return None if columns is None else _parse_or_raise(columns)


def _parse_or_raise(columns: tuple[Any, ...]) -> Row:
    try:
        return _parse(columns)
    except ValueError as error:
        raise NotAStore(
            f"klamm.db: the transaction of producer id {columns[0]} is damaged: {error}", hint=REBUILD_BY_HAND
        ) from None


def _parse(columns: tuple[Any, ...]) -> Row:
    *values, checksum = columns
    if checksum != crc(*values):
        raise ValueError("the checksum is wrong")
    *plain, partitions, groups = values
    if plain[2] not in OWNERS or plain[3] not in STATES:
        raise ValueError(f"there is no owner {plain[2]!r} or state {plain[3]!r}")
    return Row._make(
        (*plain, _partitions(partitions), frozenset(json.loads(groups)) if groups != "[]" else frozenset())
    )


def _partitions(text: str) -> frozenset[PartitionKey]:
    numbers = json.loads(text)
    return frozenset((topic_id, number) for topic_id in numbers for number in numbers[topic_id])


def write(execute: Execute, before: Row | None, done: Step) -> None:
    """Write the new state of a row, and complete or drop the offsets that waited for its end."""
    if before is not None and (done.row is None or done.row.key != before.key):
        forget(execute, [before.key])
    for row in (done.retired, done.row):
        if row is None:
            continue
        if before is not None and before.groups and row.producer_id == before.producer_id and not row.is_ongoing:
            _complete_offsets(execute, row)
        if row is done.row or not row.is_over:
            put(execute, row)


def put(execute: Execute, row: Row) -> None:
    groups = json.dumps(sorted(row.groups)) if row.groups else "[]"
    values = (*row[:-2], _format(row.partitions), groups)
    execute(_PUT, (*values, crc(*values)))


def _format(partitions: Iterable[PartitionKey]) -> str:
    numbers: dict[TopicId, list[int]] = {}
    for topic_id, number in sorted(partitions):
        numbers.setdefault(topic_id, []).append(number)
    return json.dumps(numbers)


def forget(execute: Execute, keys: Iterable[tuple[int, int]]) -> None:
    for key in keys:
        execute("DELETE FROM transactions WHERE producer_id = ? AND epoch = ?", key)


# ---- names


def holder(execute: Execute, name: str) -> int | None:
    """Return the producer id that writes under a name. Raise NotAStore if the row is damaged."""
    row = execute("SELECT producer_id, crc FROM transaction_names WHERE name = ?", (name,)).fetchone()
    if row is None:
        return None
    _check_holder(name, *row)
    return int(row[0])


def _check_holder(name: str, producer_id: int, checksum: int) -> None:
    if checksum != crc(name, producer_id):
        raise NotAStore(f"klamm.db: the transactional id {name!r} is damaged", hint=REBUILD_BY_HAND)


def put_name(execute: Execute, name: str, producer_id: int) -> None:
    """Give the name to a producer id."""
    values = (name, producer_id)
    execute("INSERT OR REPLACE INTO transaction_names VALUES (?, ?, ?)", (*values, crc(*values)))


def forget_name(execute: Execute, name: str | None, producer_id: int) -> None:
    """Remove a name, if it is this producer id's."""
    execute("DELETE FROM transaction_names WHERE name = ? AND producer_id = ?", (name, producer_id))


# ---- offsets of groups that wait for a transaction of the server


def put_pending(execute: Execute, producer_id: int, group_number: int, offsets: Iterable[OffsetRow]) -> None:
    now_ms = time.time_ns() // 1_000_000
    for row in offsets:
        values = (producer_id, group_number, *row._replace(committed_ms=row.committed_ms or now_ms))
        execute("INSERT OR REPLACE INTO pending_offsets VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, crc(*values)))


def pending_ranges(execute: Execute, producer_id: int) -> list[tuple[str, TopicId, int, int, int]]:
    """Return what its pending offsets would change: group, topic id, partition, old and new offset."""
    query = """SELECT g.name, p.topic_id, p.partition, coalesce(o.offset, 0), p.offset FROM pending_offsets p
        JOIN groups g ON g.number = p.group_number LEFT JOIN offsets o
        ON o.group_number = p.group_number AND o.topic_id = p.topic_id AND o.partition = p.partition
        WHERE p.producer_id = ?"""
    return execute(query, (producer_id,)).fetchall()


def _complete_offsets(execute: Execute, row: Row) -> None:
    """Store the pending offsets for their groups if the transaction is committed, and delete them."""
    if row.is_committed:
        by_group: dict[int, list[OffsetRow]] = {}
        for values in execute("SELECT * FROM pending_offsets WHERE producer_id = ?", (row.producer_id,)).fetchall():
            if values[-1] != crc(*values[:-1]):
                raise NotAStore(f"klamm.db: an offset that {row.name!r} commits is damaged", hint=REBUILD_BY_HAND)
            if _is_there(execute, values[1], values[2]):
                by_group.setdefault(values[1], []).append(OffsetRow(*values[2:8]))
        for number, offsets in by_group.items():
            put_offsets(execute, number, offsets)
    execute("DELETE FROM pending_offsets WHERE producer_id = ?", (row.producer_id,))


def _is_there(execute: Execute, group_number: int, topic_id: TopicId) -> bool:
    """Return whether both the group and the topic still exist."""
    query = (
        "SELECT 1 WHERE EXISTS (SELECT 1 FROM groups WHERE number = ?) AND EXISTS (SELECT 1 FROM topics WHERE id = ?)"
    )
    return execute(query, (group_number, topic_id)).fetchone() is not None


# ---- the whole


def check(execute: Execute) -> list[str]:
    """Return what is wrong with the rows."""
    problems = []
    producer_ids = set()
    for columns in execute(f"SELECT {_COLUMNS}, crc FROM transactions").fetchall():
        try:
            row = _parse(columns)
        except ValueError as error:
            problems.append(f"transactions: the row of producer id {columns[0]}, epoch {columns[1]}: {error}")
            continue
        producer_ids.add(row.producer_id)
        if row.is_over and (row.name is None or holder(execute, row.name) != row.producer_id):
            problems.append(f"transactions: producer id {row.producer_id} does not hold {row.name!r}")
    for name, producer_id, checksum in execute("SELECT name, producer_id, crc FROM transaction_names").fetchall():
        if checksum != crc(name, producer_id):
            problems.append(f"transaction_names: the row of {name!r}: the checksum is wrong")
    for pending in execute("SELECT * FROM pending_offsets").fetchall():
        where = f"pending_offsets: producer id {pending[0]}, topic {pending[2]}, partition {pending[3]}"
        if pending[-1] != crc(*pending[:-1]):
            problems.append(f"{where}: the checksum is wrong")
        elif pending[0] not in producer_ids and not problems:
            problems.append(f"{where} belongs to no transaction")
    return problems


def upgrade(execute: Execute, version: int) -> None:
    """Make the table of this format from those of formats 2 (`transactions`) and 3 (`wire_producers`)."""
    found: list[Row] = []
    if version >= 2:
        for *columns, checksum in execute("SELECT * FROM transactions").fetchall():
            _check(columns, checksum)
            producer_id, epoch, state, name, timeout_ms, boot_id, started_boot_ms, partitions = columns
            next_epoch = epoch if state == ONGOING else epoch + 1
            row = Row(producer_id, epoch, PROCESS, state, name, next_epoch, timeout_ms=timeout_ms, boot_id=boot_id)
            found.append(row._replace(started_boot_ms=started_boot_ms, partitions=_partitions(partitions)))
        execute("DROP TABLE transactions")
    if version >= 3:
        for *columns, checksum in execute("SELECT * FROM wire_producers").fetchall():
            _check(columns, checksum)
            producer_id, name, next_epoch, last_epoch, previous_id, state, epoch, *times, partitions, groups = columns
            key = producer_id, next_epoch if epoch < 0 else epoch
            state_of = (SERVER, state, name, next_epoch, last_epoch, previous_id)
            found.append(Row._make((*key, *state_of, *times, _partitions(partitions), frozenset(json.loads(groups)))))
        execute("DROP TABLE wire_producers")
    execute(TABLE)
    for row in found:
        put(execute, row)


def _check(columns: list[Any], checksum: int) -> None:
    if checksum != crc(*columns):
        raise NotAStore(f"klamm.db: the transaction of producer id {columns[0]} is damaged", hint=REBUILD_BY_HAND)
