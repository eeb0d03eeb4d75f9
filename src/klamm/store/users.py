"""Users of a store's Kafka server: their SCRAM credentials, in klamm.db.

    scram_credentials    user, mechanism, salt, iterations, stored_key, server_key, changed_ms, crc

The table is made with the first user, and with it the compatible feature USERS: a Klamm that does not know it can use
the store. (It has no authentication, either.) Embedded processes are not users: who may open the directory is for the
modes of its files to say. With it, meta gets `decoy_secret`, from which the server derives what it shows to clients
that name users who do not exist (kafka/security/decoys.py).

Promises
  USR1  Neither a password nor a salted password is stored; see scram.py for what is.
  USR2  All changes of one call are one durable write, and the next login sees them, in every process.
  USR3  A row whose checksum is wrong is an error: no client can log in by it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from klamm.errors import InvalidSetting, NotAStore
from klamm.store.database import REBUILD_BY_HAND
from klamm.store.features import USERS
from klamm.store.later_table import LaterTable
from klamm.store.rows import crc
from klamm.store.scram import DEFAULT_ITERATIONS, MECHANISMS, Credential, derive

if TYPE_CHECKING:
    from klamm.store.catalog import Catalog
    from klamm.store.database import Database, Execute

__all__ = ["MAX_NAME_BYTES", "User", "Users", "check", "validate_password", "validate_user"]

MAX_NAME_BYTES = 255
_MAX_PASSWORD_BYTES = 1024

_TABLE = LaterTable(
    "scram_credentials",
    """
    user TEXT NOT NULL, mechanism TEXT NOT NULL, salt BLOB NOT NULL, iterations INTEGER NOT NULL,
    stored_key BLOB NOT NULL, server_key BLOB NOT NULL, changed_ms INTEGER NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (user, mechanism)
    """,
    USERS,
)
_DECOY_SECRET = "decoy_secret"  # in meta
_COLUMNS = "user, mechanism, salt, iterations, stored_key, server_key, changed_ms"


class User(NamedTuple):
    """A user, without the credentials themselves."""

    name: str
    mechanisms: tuple[tuple[str, int], ...]
    """Name and iterations of each."""
    changed_ms: int


def validate_user(name: str) -> str:
    """Return the name, or raise InvalidSetting if it is invalid."""
    if not name or len(name.encode()) > MAX_NAME_BYTES or not name.isprintable():
        raise InvalidSetting(
            f"user: {name[:50]!r} is invalid", hint=f"expected 1 to {MAX_NAME_BYTES} bytes of printable characters"
        )
    return name


def validate_password(password: str) -> str:
    """Return the password, or raise InvalidSetting, which does not show it, if it is invalid."""
    if not password or len(password.encode()) > _MAX_PASSWORD_BYTES or "\0" in password:
        raise InvalidSetting("password: invalid", hint=f"expected 1 to {_MAX_PASSWORD_BYTES} bytes, none of them zero")
    return password


class Users:
    """The users of one store. Thread-safe."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._database: Database = catalog.database

    # ---- reading

    def find(self, name: str) -> dict[str, Credential]:
        """Return the credentials of a user, by mechanism; none if there is no such user."""
        with self._database.reading() as execute:
            if not _TABLE.exists(execute):
                return {}
            query = f"SELECT {_COLUMNS}, crc FROM scram_credentials WHERE user = ?"
            rows = execute(query, (name,)).fetchall()
        return {row[1]: _credential(row) for row in rows}

    def all(self) -> list[User]:
        """Return all users, by name."""
        with self._database.reading() as execute:
            if not _TABLE.exists(execute):
                return []
            rows = execute(f"SELECT {_COLUMNS}, crc FROM scram_credentials ORDER BY user, mechanism").fetchall()
        users: dict[str, User] = {}
        for row in rows:
            credential = _credential(row)
            user = users.get(row[0], User(row[0], (), 0))
            mechanisms = (*user.mechanisms, (credential.mechanism, credential.iterations))
            users[row[0]] = User(row[0], mechanisms, max(user.changed_ms, row[6]))
        return list(users.values())

    def credentials(self) -> list[tuple[str, Credential]]:
        """Return all credentials, each with its user; damaged ones are left out."""
        with self._database.reading() as execute:
            if not _TABLE.exists(execute):
                return []
            rows = execute(f"SELECT {_COLUMNS}, crc FROM scram_credentials ORDER BY user, mechanism").fetchall()
        return [(row[0], _credential(row)) for row in rows if crc(*row[:-1]) == row[-1]]

    def decoy_secret(self) -> bytes:
        """Return the secret from which salts of users who do not exist are derived; empty if there has never been a
        user.
        """
        with self._database.reading() as execute:
            return bytes.fromhex(str(self._catalog.meta(execute, _DECOY_SECRET, 0) or ""))

    # ---- writing

    def add(self, name: str, password: str, mechanisms: Iterable[str] = MECHANISMS) -> None:
        """Create a user. Raise InvalidSetting if the name is taken."""
        credentials = self._derive(name, password, mechanisms)
        with self._database.db_lock(), self._database.transaction() as execute:
            self._make_table(execute)
            if execute("SELECT 1 FROM scram_credentials WHERE user = ?", (name,)).fetchone():
                raise InvalidSetting(
                    f"user: there is a user {name!r} already", hint="klamm user passwd changes the password"
                )
            _put(execute, [(name, credential) for credential in credentials])

    def set_password(self, name: str, password: str) -> None:
        """Change the password of a user, for all of its mechanisms. Raise InvalidSetting if there is no such user."""
        mechanisms: list[str] = []
        credentials: list[Credential] = []
        while True:
            with self._database.db_lock(), self._database.transaction() as execute:
                found = _mechanisms(execute, name)
                if found == mechanisms:  # else the user has changed: one that was removed does not come back
                    _put(execute, [(name, credential) for credential in credentials])
                    return
            mechanisms = found
            credentials = self._derive(name, password, mechanisms)

    def remove(self, name: str) -> None:
        """Remove a user. Raise InvalidSetting if there is no such user."""
        with self._database.db_lock(), self._database.transaction() as execute:
            _mechanisms(execute, name)
            execute("DELETE FROM scram_credentials WHERE user = ?", (name,))

    def alter(self, removals: Sequence[tuple[str, str]], additions: Sequence[tuple[str, Credential]]) -> None:
        """Remove credentials (user and mechanism), and add or replace others."""
        with self._database.db_lock(), self._database.transaction() as execute:
            self._make_table(execute)
            for user, mechanism in removals:
                execute("DELETE FROM scram_credentials WHERE user = ? AND mechanism = ?", (user, mechanism))
            _put(execute, additions)

    @staticmethod
    def _derive(name: str, password: str, mechanisms: Iterable[str]) -> list[Credential]:
        """Derive the credentials. It is slow, so it comes before the klamm.db lock is taken."""
        validate_user(name)
        validate_password(password)
        return [derive(mechanism, password, iterations=DEFAULT_ITERATIONS) for mechanism in mechanisms]

    def _make_table(self, execute: Execute) -> None:
        if not self._catalog.meta(execute, _DECOY_SECRET, 0):
            self._catalog.set_meta(execute, _DECOY_SECRET, os.urandom(32).hex())
        _TABLE.make(self._catalog, execute)


def check(database: Database) -> list[str]:
    """Return what is wrong with the rows."""
    with database.reading() as execute:
        if not _TABLE.exists(execute):
            return []
        rows = execute(f"SELECT {_COLUMNS}, crc FROM scram_credentials").fetchall()
    return [
        f"scram_credentials: the row of {row[0]!r}: the checksum is wrong" for row in rows if crc(*row[:-1]) != row[-1]
    ]


def _mechanisms(execute: Execute, name: str) -> list[str]:
    """Return the mechanisms of a user. Raise InvalidSetting if there is no such user."""
    query = "SELECT mechanism FROM scram_credentials WHERE user = ? ORDER BY mechanism"
    found = [row[0] for row in execute(query, (name,)).fetchall()] if _TABLE.exists(execute) else []
    if not found:
        raise InvalidSetting(f"user: there is no user {name!r}", hint="klamm user list shows all")
    return found


def _credential(row: Sequence[object]) -> Credential:
    *values, checksum = row
    if checksum != crc(*values):
        raise NotAStore(f"klamm.db: the credential of {values[0]!r} is damaged", hint=REBUILD_BY_HAND)
    return Credential(*values[1:6])  # type: ignore[arg-type]


def _put(execute: Execute, credentials: Iterable[tuple[str, Credential]]) -> None:
    now_ms = time.time_ns() // 1_000_000
    for user, credential in credentials:
        values = (user, *credential, now_ms)
        statement = f"INSERT OR REPLACE INTO scram_credentials ({_COLUMNS}, crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        execute(statement, (*values, crc(*values)))
