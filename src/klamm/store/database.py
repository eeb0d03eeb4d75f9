"""The file klamm.db: opening, writing, keeping it small, closing it at a fork. catalog.py has its content.

    klamm.db  klamm.db-wal  klamm.db-shm       SQLite, write-ahead log; application_id "KLAM", user_version the format

Promises
  DBS1  Every write and every checkpoint happens under the klamm.db lock; readers take no lock of ours. So nothing
        contends for SQLite's own locks: no busy loops, and no checkpoint beside a writer. (Closing the last connection
        makes SQLite checkpoint once more; it does that alone, by its own exclusive lock.)
  DBS2  A write is on disk when the block of `transaction` ends: synchronous=FULL. If the process is killed before that,
        none of it is there. A write that is not `durable` (progress of groups) survives the death of any process, and a
        power cut once a durable write has followed.
  DBS3  The write-ahead log is bounded. Every CHECKPOINT_PAGES a commit makes SQLite copy it back, and the log starts
        again in the same place. That does not wait for readers, so they may keep the log from starting again. A commit
        that finds it longer than WAL_LIMIT empties it, and waits a little for readers; each process checks after every
        16th of its commits.
  DBS4  The order of locks is klamm.db lock, then mutex. No code of a caller runs inside a transaction. Both are held by
        native types (LockFile.hold, Section): an exception or a signal handler, wherever it comes, releases both and
        rolls back.
  DBS5  No connection is open while the process forks. A child does not inherit SQLite's locks, but it does inherit
        SQLite's record of them: even a *new* connection in the child takes locks for held that are not (seen: neither
        the shared lock on klamm.db nor the one that keeps klamm.db-shm). When the parent ends, it then removes files
        that the child uses.
  DBS6  Nothing else in the process opens klamm.db: closing any descriptor of it drops SQLite's locks.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from klamm.disk import _os, files, fork
from klamm.errors import Closed, DiskFull, KlammError, NewerFormat, NotAStore, ReadOnly, StoreBusy, StoreError
from klamm.store._section import Section
from klamm.store.layout import LOST

if TYPE_CHECKING:
    from klamm.disk._os import Lockable

__all__ = [
    "APPLICATION_ID",
    "FORMAT_VERSION",
    "REBUILD",
    "REBUILD_BY_HAND",
    "Database",
    "DbLock",
    "Execute",
    "Unfinished",
]

APPLICATION_ID = int.from_bytes(b"KLAM", "big")
FORMAT_VERSION = 5
"""1 had no groups and no transactions; 2 none over the wire, and no batches of Spark; 3 neither fingerprints of batches
nor tombstones of topics; 4 two tables for transactions, and numbers of Spark's batches only."""
CHECKPOINT_PAGES = 4000  # 16 MiB
WAL_LIMIT = 32 * 1024 * 1024
_MEASURE_EVERY = 16  # writes of one process
BUSY_TIMEOUT_S = 30.0  # only recovery of the write-ahead log and the last close make other connections wait

_RESTORE = "restore a backup of the whole store elsewhere; or close the store in every process"
_NEW_ONE = f"makes a new one from the directories in topics/: no record is lost, but {LOST} are"
REBUILD = f"{_RESTORE} and run `klamm check --repair`, which sets klamm.db aside and {_NEW_ONE}"
"""What to do about a klamm.db that is damaged as a whole, or in its topics."""
REBUILD_BY_HAND = f"{_RESTORE}, move klamm.db and klamm.db-wal aside, and run `klamm check --repair`, which {_NEW_ONE}"
"""The same for other rows: repair does not give up a klamm.db for one of them."""

DbLock = Callable[[], AbstractContextManager[object]]
Execute = Callable[..., sqlite3.Cursor]

# Connections from before a fork are neither used nor closed: their destructors must never run.
_abandoned: list[sqlite3.Connection | sqlite3.Cursor] = []


class Unfinished(NotAStore):
    """The creation of the file was interrupted: `create` finishes it."""


class Database:
    """One connection a process, behind a mutex, opened at the first use and again after a fork."""

    def __init__(self, path: str, db_lock: DbLock, *, read_only: bool = False) -> None:
        self.path = path
        self.db_lock = db_lock
        self.read_only = read_only
        self._mutex = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None  # of that connection, for `put`
        self._closed = False
        self._wrote = False
        # The first counts a durable write, in its transaction; the second gets the count when the write is on disk.
        self.count_write: Callable[[Execute], int | None] = lambda execute: None
        self.on_count: Callable[[int], None] = lambda count: None
        self._durable = True  # durability of the connection's next transaction
        self._wal_limit = WAL_LIMIT
        self._unmeasured = 0  # writes since the length of the log was checked
        self._generation = 0  # own writes and re-opened connections; `PRAGMA data_version` counts those of others
        self._connections = 0  # opened so far: `PRAGMA data_version` starts again with each connection
        self._frozen: tuple[object, ...] | None = None  # what an immutable or copied file looked like
        self._name = os.fsencode(path)
        self._inode = _os.inode_of(self._name)
        # Before there is a connection that a fork could surprise; after cores, whose mutex is taken before this one.
        fork.register(self, Database._in_child, Database._before_fork, order=1)
        with self._mutex, _explained(self.path):
            self._connect()

    @staticmethod
    def create(path: str, db_lock: DbLock, statements: Sequence[tuple[str, Sequence[object]]]) -> None:
        """Create the file in one transaction. Finish one whose creator was killed; leave a complete one as it is."""
        with db_lock(), fork.guard, _explained(path):
            _make_file(path)
            connection = _open_connection(path, "rwc")
            try:
                if _identity(connection) == (0, 0, 0):
                    connection.execute("PRAGMA journal_mode=WAL")
                    connection.execute("PRAGMA synchronous=FULL")
                    connection.execute("BEGIN IMMEDIATE")
                    for statement, parameters in statements:
                        connection.execute(statement, parameters)
                    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
                    connection.execute(f"PRAGMA user_version={FORMAT_VERSION}")
                    connection.execute("COMMIT")
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                _check_identity(path, connection)
            finally:
                connection.close()
            files.sync_directory(os.path.dirname(os.path.abspath(path)))

    def read(self, query: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Return all rows of one query, from one consistent snapshot."""
        with self._mutex, _explained(self.path):
            return self._connect().execute(query, parameters).fetchall()

    def reading(self) -> AbstractContextManager[Execute]:
        """Return a context for several queries on one consistent snapshot."""
        return Section(self, writes=False)

    def transaction(self, *, durable: bool = True) -> Section:
        """Return a context for one transaction; the caller holds the write lock.

        It is on disk when the block ends, and undone if the block raises. If not `durable`, a power cut may undo it,
        together with everything written after it; the death of a process does not.
        """
        self.check_writable()
        self._check_not_replaced()
        return Section(self, writes=True, durable=durable)

    def put(self, update: str, insert: str, rows: Sequence[Sequence[object]], *, durable: bool = True) -> bool:
        """Take the klamm.db lock and write rows, all or none: a fast path for the most frequent writes.

        Insert each row that `update` does not find. Return False if that changes nothing, either.
        """
        if self.read_only:
            self.check_writable()
        if len(rows) != 1:
            return self._put_many(update, insert, rows, durable)
        if _os.inode_of(self._name) != self._inode:
            self._check_not_replaced()
        (row,) = rows
        with self.db_lock(), self._mutex:  # a statement alone is a transaction of its own
            try:
                cursor = self._cursor
                if cursor is None:
                    cursor = self._cursor = self._connect().cursor()
                if durable is not self._durable:
                    self._set_durable(self._connect(), durable)
                self._generation += 1  # before the write: an interrupt may come right after it
                self._wrote = True
                cursor.execute(update, row)
                if not cursor.rowcount and not cursor.execute(insert, row).rowcount:
                    return False
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise self._translated(error)  # noqa: B904  # it has its cause
            self._unmeasured += 1
            if self._unmeasured >= _MEASURE_EVERY:
                self._measure_wal(self._connect())
            return True

    def _put_many(self, update: str, insert: str, rows: Sequence[Sequence[object]], durable: bool) -> bool:
        try:
            with self.db_lock(), self.transaction(durable=durable) as execute:
                for row in rows:
                    if not execute(update, row).rowcount and not execute(insert, row).rowcount:
                        raise _NothingChanged
        except _NothingChanged:
            return False
        return True

    def _set_durable(self, connection: sqlite3.Connection, durable: bool) -> None:
        """Set the durability of a transaction before it begins: inside of one SQLite would ignore it."""
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        self._durable = durable

    def version(self) -> tuple[int, int]:
        """Return a value that changes whenever any process has written."""
        with self._mutex, _explained(self.path):
            connection = self._connect()
            return self._generation, int(connection.execute("PRAGMA data_version").fetchone()[0])

    def others_version(self) -> tuple[int, int]:
        """Return a value that changes whenever another process has written, or may have."""
        with self._mutex, _explained(self.path):
            connection = self._connect()
            return self._connections, int(connection.execute("PRAGMA data_version").fetchone()[0])

    def check_writable(self) -> None:
        if self.read_only:
            raise ReadOnly(f"{self.path}: the store was opened for reading only")

    def _check_not_replaced(self) -> None:
        """Raise if the file was replaced: writes to an unlinked file are lost with the last process that has it."""
        if _os.inode_of(self._name) != self._inode:
            raise NotAStore(
                f"{self.path}: was removed or replaced while the store is open",
                hint="close the store in every process, put the file back, and open it again",
            )

    def check(self) -> list[str]:
        """Return the problems that SQLite finds in the file; an empty list if there are none."""
        try:
            rows = self.read("PRAGMA integrity_check(100)")
        except KlammError as error:
            return [error.message]
        return [row[0] for row in rows if row[0] != "ok"]

    def backup(self, destination: str) -> None:
        """Write a consistent copy; the caller holds the klamm.db lock, and syncs the directory of `destination`."""
        with self._mutex, _explained(self.path):
            _make_file(destination)
            copy = _open_connection(destination, "rwc")
            try:
                copy.execute("PRAGMA synchronous=FULL")
                self._connect().backup(copy)
            finally:
                copy.close()

    def close(self) -> None:
        """Empty the write-ahead log if this process has filled it, and close."""
        if self._wrote and not self._closed:
            with self.db_lock(), self._mutex:
                if self._connection is not None:
                    self._empty_wal(self._connection)
        with self._mutex:
            self._closed = True
            self._disconnect()

    def abandon(self) -> None:
        """Drop a connection that a forked child inherited despite DBS5, without touching it again."""
        connection, self._connection = self._connection, None
        if self._cursor is not None:
            _abandoned.append(self._cursor)
            self._cursor = None
        if connection is not None:
            _abandoned.append(connection)

    # Forks: see DBS5.

    def _before_fork(self, take: Callable[[Lockable], None]) -> None:
        take(self._mutex)
        self._disconnect()

    def _in_child(self) -> None:
        self.abandon()
        self._wrote = False
        self._mutex = threading.Lock()

    # Opening; under the mutex.

    def _translated(self, error: BaseException) -> BaseException:
        return _translated(self.path, error)

    def _connect(self) -> sqlite3.Connection:
        if self._closed:
            raise Closed(f"{self.path}: the store is closed", hint="open it again")
        if self._frozen is not None and self._frozen != self._looks():
            self._disconnect()
        if self._connection is None:
            connection = self._open_read_only() if self.read_only else _open_connection(self.path, "rw")
            try:
                _check_identity(self.path, connection)
                if not self.read_only and connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                    raise NotAStore(f"{self.path}: another program switched it out of WAL mode")
                connection.execute("PRAGMA synchronous=FULL")
                if not self.read_only:  # it happens in a COMMIT, so under the klamm.db lock
                    connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
                self._durable = True
                if self._connections and not self.read_only:  # opened again, after a fork
                    self._check_not_replaced()
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._generation += 1
            self._connections += 1
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection, self._frozen = self._connection, None, None
        self._cursor = None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _open_read_only(self) -> sqlite3.Connection:
        """Open the database for reading only.

        SQLite needs klamm.db-shm even then. If it is missing and cannot be created (no right to write, a full disk), no
        process writes either.
        """
        looks = self._looks()
        connection = _open_connection(self.path, "ro")
        try:
            _identity(connection)
            return connection
        except sqlite3.OperationalError as error:
            connection.close()
            full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMSIZE
            may_write = os.access(os.path.dirname(os.path.abspath(self.path)), os.W_OK) and not full
            if may_write or looks[-1] is not None:
                raise
        except BaseException:
            connection.close()
            raise
        self._frozen = self._looks()
        if looks[1] is None or looks[1] == 0:
            return _open_connection(self.path, "ro&immutable=1")
        # The log was not emptied, and "immutable" would ignore it: read a copy, beside which -shm can be created.
        with tempfile.TemporaryDirectory(prefix="klamm-") as directory:
            copy = os.path.join(directory, "klamm.db")
            for suffix in ("", "-wal"):
                shutil.copyfile(self.path + suffix, copy + suffix)
            connection = _open_connection(copy, "rw")
            try:
                _identity(connection)
            except BaseException:
                connection.close()
                raise
            return connection  # its files are open: their names may go

    def _looks(self) -> tuple[object, ...]:
        """Return the file's time, the size of its WAL, and whether a process has it open."""
        found: list[object] = []
        for suffix in ("", "-wal", "-shm"):
            try:
                status = os.stat(self.path + suffix)
            except OSError:
                found.append(None)
            else:
                found.append({"": status.st_mtime_ns, "-wal": status.st_size, "-shm": True}[suffix])
        return tuple(found)

    # The write-ahead log; under the klamm.db lock and the mutex.

    def _bound_wal(self, connection: sqlite3.Connection) -> None:
        self._unmeasured += 1
        if self._unmeasured >= _MEASURE_EVERY:
            self._measure_wal(connection)

    def _measure_wal(self, connection: sqlite3.Connection) -> None:
        self._unmeasured = 0
        try:
            size = os.stat(self.path + "-wal").st_size
        except OSError:
            return
        if size > self._wal_limit:
            # A reader may have prevented it: then not again before the log has doubled.
            self._wal_limit = WAL_LIMIT if self._empty_wal(connection) else 2 * size

    def _empty_wal(self, connection: sqlite3.Connection) -> bool:
        """Try a checkpoint. Return whether it emptied the WAL; if not, the next one tries again."""
        with suppress(sqlite3.Error):
            connection.execute("PRAGMA busy_timeout=100")
            busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            connection.execute(f"PRAGMA busy_timeout={int(BUSY_TIMEOUT_S * 1000)}")
            return not busy
        return False


class _NothingChanged(Exception):
    """Rolls a transaction back."""


def _make_file(path: str) -> None:
    """Make an empty file for SQLite to fill. It has our permissions, and SQLite gives the same to -wal and -shm."""
    if not os.path.exists(path):
        os.close(_os.open_file(path, os.O_RDWR | os.O_CREAT))


def _open_connection(path: str, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(os.path.abspath(os.fsencode(path)))}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("PRAGMA trusted_schema=OFF")
    except BaseException:
        connection.close()
        raise
    return connection


def _identity(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Return application id, format version and number of tables: all 0 in a file whose creation was interrupted."""
    values = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    return values[0], values[1], connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _check_identity(path: str, connection: sqlite3.Connection) -> None:
    application, version, tables = _identity(connection)
    if application == 0 and version == 0 and tables == 0:
        raise Unfinished(
            f"{path}: empty: creation of the store was interrupted",
            hint="open the store with create=True to finish it",
        )
    if application != APPLICATION_ID:
        raise NotAStore(
            f"{path}: is a SQLite database of another program (application id {application:#x})", hint=REBUILD
        )
    if version > FORMAT_VERSION:
        raise NewerFormat(
            f"{path}: has format {version}, this Klamm knows formats up to {FORMAT_VERSION}",
            hint="open it with a newer Klamm",
        )
    if version < 1:
        raise NotAStore(f"{path}: has no format version: it is damaged", hint=REBUILD)


def _translated(path: str, error: BaseException) -> BaseException:
    """Return an error of SQLite as one of ours. Any other error, and a mistake of ours, is returned as it is."""
    if isinstance(error, (sqlite3.ProgrammingError, sqlite3.InterfaceError)):
        return error
    if isinstance(error, (sqlite3.Error, UnicodeDecodeError)):  # the latter: a message that quotes damaged bytes
        explained = _explain(path, error)
        explained.__cause__ = error
        return explained
    return error


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise _translated(path, error)  # noqa: B904  # it has its cause


def _explain(path: str, error: sqlite3.Error | UnicodeDecodeError) -> KlammError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    where = f"{path}: {error}"
    match code & 0xFF:
        case sqlite3.SQLITE_FULL:
            return DiskFull(where, hint="free some space and try again")
        case sqlite3.SQLITE_IOERR if code == sqlite3.SQLITE_IOERR_SHMSIZE:
            return DiskFull(where, hint="free some space and try again")
        case sqlite3.SQLITE_IOERR:
            return StoreError(where, hint="the disk refused; nothing was changed")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusy(where, hint="another program may have klamm.db open")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return ReadOnly(where)
        case sqlite3.SQLITE_CANTOPEN if os.path.isfile(path):
            return StoreError(where, hint="check the permissions of the file and its directory")
        case sqlite3.SQLITE_CANTOPEN:
            return NotAStore(f"{path}: there is no such file")
        case sqlite3.SQLITE_NOTADB:
            return NotAStore(where, hint=f"something else has that name, or it is damaged: {REBUILD}")
    return NotAStore(f"{path}: is damaged: {error}", hint=REBUILD)
