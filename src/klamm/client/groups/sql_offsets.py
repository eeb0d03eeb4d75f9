"""Progress that lives in the user's own database: results and offsets in one transaction of theirs.

    offsets = klamm.SqlOffsets(connection, "billing")
    with store.consumer("orders", offsets=offsets) as orders:
        for batch in orders.batches():
            with connection.transaction():
                save(connection, batch)
                orders.commit(batch)

One row says where a name stands in one partition: the next offset, and the leader epoch of the record before it. It is
found by store id and topic id, so that neither another store nor a topic that was re-created is taken for the old one.

Promises
  O1  `commit` writes inside of the transaction that is open on the connection, and refuses if there is none: results
      and progress are there together or not at all.
  O2  It sets the row from the batch's begin to the batch's end, and nothing else: UPDATE … WHERE offset = begin. A row
      that stands elsewhere is a CommitGap. So no batch is skipped or repeated, and of two processes one goes on.
  O3  That holds for the first batch, too. Where there is no row, the consumer says where it starts; that becomes the
      row at once, or with the first commit if a transaction is open, whichever comes first.
  O4  After a power cut a row may be ahead of the log; its leader epoch tells. Then the next batch begins before what is
      stored, and sets the row from exactly the offset and epoch that were loaded: once, though the same offset comes
      to mean other records.

Nothing here ever commits or rolls back what the user began.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from klamm.errors import CommitGap, GroupError, InvalidSetting
from klamm.types import PartitionKey, Position, TopicId

if TYPE_CHECKING:
    from klamm.store.directory import Core

__all__ = ["SqlOffsets"]

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_IN_TRANSACTION = 2  # psycopg.pq.TransactionStatus.INTRANS
_IDLE = 0

_CREATE = """CREATE TABLE IF NOT EXISTS {table} (
    name TEXT NOT NULL, store_id TEXT NOT NULL, topic_id TEXT NOT NULL, topic TEXT NOT NULL,
    "partition" INTEGER NOT NULL, "offset" BIGINT NOT NULL, leader_epoch INTEGER NOT NULL,
    PRIMARY KEY (name, store_id, topic_id, "partition"))"""
_SELECT = 'SELECT topic_id, "partition", "offset", leader_epoch FROM {table} WHERE name = ? AND store_id = ?'
_ONE = ' AND topic_id = ? AND "partition" = ?'
_INSERT = "INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_UPDATE = (
    'UPDATE {table} SET "offset" = ?, leader_epoch = ?'
    ' WHERE name = ? AND store_id = ? AND topic_id = ? AND "partition" = ? AND "offset" = ?'
)
_AND_EPOCH = " AND leader_epoch = ?"


class SqlOffsets:
    """The progress of `name`, in a table of a SQLite or PostgreSQL database. For `store.consumer(…, offsets=…)`.

    `connection` is sqlite3's or psycopg's, and stays the user's. The table is made if it is not there; if a transaction
    is open at that moment, as a part of it.
    """

    def __init__(self, connection: Any, name: str, *, table: str = "klamm_offsets") -> None:
        if not isinstance(name, str):
            raise TypeError(f"name is a str, not {type(name).__name__}")
        if not name:
            raise InvalidSetting("name: is empty", hint="expected the name of a reader: 'billing'")
        parts = table.split(".")
        if len(parts) > 2 or not all(_NAME.fullmatch(part) for part in parts):
            raise InvalidSetting(f"table: {table!r} is invalid", hint="expected a name, or schema.name")
        self.name = name
        self.table = table
        self._database = _dialect(connection, ".".join(f'"{part}"' for part in parts))
        self._core: Core | None = None
        self._starts: dict[PartitionKey, Position] = {}
        self._loaded: dict[tuple[str, int], Position] = {}
        self._has_table = False
        self._make_table()

    def __repr__(self) -> str:
        return f"<SqlOffsets {self.name!r} in {self.table}>"

    def bind(self, core: Core) -> None:
        """Bind to the store that is read. The consumer calls this, once."""
        known = self._core
        if known is not None and not known.closed and known.catalog.store_id != core.catalog.store_id:
            raise GroupError(f"{self!r} goes with the store {known.path}", hint="make another for another store")
        self._core = core

    # ---- where to start

    def load(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Position]:
        """Return the offsets stored for these partitions, or where the consumer starts. It reads on from there."""
        wanted = list(partitions)
        found, starts = self._find(wanted)
        for tp in wanted:
            self._loaded.pop(tp, None)
        self._loaded.update(found)
        return starts | found

    def peek(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Position]:
        """Return the offsets stored for these partitions."""
        return self._find(partitions)[0]

    def _find(
        self, partitions: Iterable[tuple[str, int]]
    ) -> tuple[dict[tuple[str, int], Position], dict[tuple[str, int], Position]]:
        """Return the partitions that have a row, and where the others start."""
        self._make_table()
        with self._database.unless_in_one():
            rows = self._database.run(_SELECT, self._name_and_store()).fetchall()
        stored = {
            (TopicId(_text(topic_id)), number): Position(offset, epoch) for topic_id, number, offset, epoch in rows
        }
        found: dict[tuple[str, int], Position] = {}
        starts: dict[tuple[str, int], Position] = {}
        for topic, number in partitions:
            key = self._bound().topic(topic).topic.id, number
            if key in stored:
                found[topic, number] = stored[key]
            elif key in self._starts:
                starts[topic, number] = self._starts[key]
        return found, starts

    def begin(self, starts: Mapping[tuple[str, int], Position]) -> None:
        """Record where the consumer starts in partitions without a row: at once, unless a transaction is open."""
        core = self._bound()
        self._starts.update({(core.topic(topic).topic.id, number): at for (topic, number), at in starts.items()})
        if starts and not self._database.in_transaction():
            with self._database.unless_in_one():
                for tp, position in starts.items():
                    self._database.run(_INSERT, self._row(tp, position))

    # ---- progress

    def commit(self, entries: Iterable[tuple[str, int, int, int, int]]) -> None:
        """Set rows from begin to end: (topic, partition, begin, end, leader epoch). In the user's transaction."""
        if not self._database.in_transaction():
            raise GroupError(
                f"{self.name}: no transaction is open on the connection of its SqlOffsets; nothing was committed",
                hint=self._database.hint,
            )
        for topic, number, begin, end, leader_epoch in entries:
            self._set((topic, number), begin, Position(end, leader_epoch))

    def _set(self, tp: tuple[str, int], begin: int, end: Position) -> None:
        key = self._key(tp)
        loaded = self._loaded.get(tp)
        if loaded is not None and loaded.offset == begin:
            changed = self._database.run(_UPDATE + _AND_EPOCH, (*end, *key, *loaded))
        else:
            changed = self._database.run(_UPDATE, (*end, *key, begin))
        if changed.rowcount == 1:
            return
        expected = self._expected(key)
        if expected is None:
            start = self._starts.get(key[2:])
            if start is None:
                raise GroupError(f"{tp[0]}/{tp[1]}: no consumer of {self!r} has started to read it")
            if start.offset == begin and self._database.run(_INSERT, self._row(tp, end)).rowcount == 1:
                return
            expected = self._expected(key)
            if expected is None:
                expected = start.offset
        raise CommitGap(
            f"{tp[0]}/{tp[1]}: the batch begins at {begin}; {self.name!r} stands at {expected} in {self.table}",
            expected=expected,
            begin=begin,
            hint="let the transaction roll back, and read on: the consumer goes on from there",
        )

    def _expected(self, key: tuple[str, str, TopicId, int]) -> int | None:
        row = self._database.run(_SELECT + _ONE, key).fetchone()
        return None if row is None else int(row[2])

    # ---- rows

    def _bound(self) -> Core:
        if self._core is None:
            raise GroupError(f"{self!r} has no consumer yet", hint="say store.consumer(topic, offsets=…)")
        return self._core

    def _name_and_store(self) -> tuple[str, str]:
        return self.name, self._bound().catalog.store_id

    def _key(self, tp: tuple[str, int]) -> tuple[str, str, TopicId, int]:
        return *self._name_and_store(), self._bound().topic(tp[0]).topic.id, tp[1]

    def _row(self, tp: tuple[str, int], position: Position) -> tuple[Any, ...]:
        name, store_id, topic_id, number = self._key(tp)
        return name, store_id, topic_id, tp[0], number, *position

    def _make_table(self) -> None:
        """Create the table. One made in a transaction may be rolled back with it; then it is created again."""
        if not self._has_table:
            durable = not self._database.in_transaction()
            if not self._database.has_table():
                self._database.create()
            self._has_table = durable


# ---- the two databases


class _Database(Protocol):
    hint: str

    def in_transaction(self) -> bool: ...
    def unless_in_one(self) -> AbstractContextManager[None]:
        """Return a context: a transaction of ours, or a part of the one that is open."""

    def run(self, statement: str, values: Sequence[Any] = ()) -> Any: ...
    def has_table(self) -> bool: ...
    def create(self) -> None: ...


class _Sqlite:
    hint = "begin one first, with connection.execute('BEGIN'); `with connection:` alone opens none"

    def __init__(self, connection: Any, table: str) -> None:
        self._connection = connection
        self._table = table

    def in_transaction(self) -> bool:
        return bool(self._connection.in_transaction)

    @contextmanager
    def unless_in_one(self) -> Iterator[None]:
        if self.in_transaction():
            yield
            return
        self.run("BEGIN")
        try:
            yield
            self.run("COMMIT")
        finally:
            if self.in_transaction():
                self.run("ROLLBACK")

    def run(self, statement: str, values: Sequence[Any] = ()) -> Any:
        cursor = self._connection.cursor()
        cursor.row_factory = None  # whatever the connection's is
        return cursor.execute(statement.format(table=self._table), values)

    def has_table(self) -> bool:
        try:
            self.run("SELECT 1 FROM {table} LIMIT 0")
        except Exception as error:
            if "no such table" in str(error):
                return False
            raise
        return True

    def create(self) -> None:
        self.run(_CREATE)


class _Postgres:
    hint = "put the work and the commit into one `with connection.transaction():`"

    def __init__(self, connection: Any, table: str) -> None:
        from psycopg import rows

        self._connection = connection
        self._table = table
        self._tuples = rows.tuple_row

    def in_transaction(self) -> bool:
        return int(self._connection.info.transaction_status) == _IN_TRANSACTION

    @contextmanager
    def unless_in_one(self) -> Iterator[None]:
        if int(self._connection.info.transaction_status) != _IDLE:
            yield
            return
        with self._connection.transaction():
            yield

    def run(self, statement: str, values: Sequence[Any] = ()) -> Any:
        cursor = self._connection.cursor(row_factory=self._tuples)
        return cursor.execute(statement.format(table=self._table).replace("?", "%s"), values)

    def has_table(self) -> bool:
        with self.unless_in_one():
            return self.run("SELECT to_regclass(?)", (self._table,)).fetchone()[0] is not None

    def create(self) -> None:
        try:
            with self._connection.transaction():
                self.run(_CREATE)
        except Exception:  # two at once: IF NOT EXISTS does not see a table that is being made
            if not self.has_table():
                raise


def _dialect(connection: Any, table: str) -> _Database:
    rooms = {each.__module__.partition(".")[0] for each in type(connection).__mro__}
    if "sqlite3" in rooms and hasattr(connection, "in_transaction"):
        return _Sqlite(connection, table)
    if "psycopg" in rooms and hasattr(connection, "info") and not hasattr(connection, "__aenter__"):
        return _Postgres(connection, table)
    raise TypeError(
        f"connection is a {type(connection).__module__}.{type(connection).__qualname__};"
        " expected a connection of sqlite3, or of psycopg (version 3, not asynchronous)"
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)  # text_factory may be bytes
