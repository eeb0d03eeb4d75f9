"""The peers: what Klamm is measured beside, each used the way its own documentation says is quick.

LMDB        no sync; a record is (8 bytes of key, value). Keys grow, and LMDB is told so (append=True): its best case
SQLite      WAL, synchronous=NORMAL; (id integer primary key, key, value)
DuckDB      a table, filled from and read as Arrow
JSON lines  the kafka-lite way: one file, O_APPEND, one os.write of {"id", "key", "value"} a record; readers parse it
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
from collections.abc import Iterator
from typing import Any

import lmdb

LMDB_VERSION = ".".join(map(str, lmdb.version()))
SQLITE_VERSION = sqlite3.sqlite_version
TRANSACTION = 1000  # records

Records = list[tuple[bytes, bytes]]


def records(count: int, size: int = 100) -> Records:
    """(8 B key, `size` B value); every value an object of its own, as they are in a program."""
    return [(struct.pack(">Q", n), struct.pack(">Q", n) + b"v" * (size - 8)) for n in range(count)]


# ---- LMDB


def open_lmdb(path: str, *, writemap: bool = False, **options: Any) -> lmdb.Environment:
    os.makedirs(path, exist_ok=True)
    return lmdb.open(path, map_size=16 << 30, sync=False, metasync=False, writemap=writemap, **options)


def lmdb_put(env: lmdb.Environment, rows: Records) -> None:
    """1000 a transaction, one call a record."""
    for start in range(0, len(rows), TRANSACTION):
        with env.begin(write=True) as txn:
            put = txn.put
            for key, value in rows[start : start + TRANSACTION]:
                put(key, value, append=True)


def lmdb_putmulti(env: lmdb.Environment, rows: Records) -> None:
    """1000 a transaction, one call a transaction."""
    for start in range(0, len(rows), TRANSACTION):
        with env.begin(write=True) as txn:
            txn.cursor().putmulti(rows[start : start + TRANSACTION], append=True)


def lmdb_singles(env: lmdb.Environment, rows: Records) -> None:
    """One record a transaction."""
    for key, value in rows:
        with env.begin(write=True) as txn:
            txn.put(key, value, append=True)


# ---- SQLite


def open_sqlite(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = normal")
    connection.execute("create table if not exists log (id integer primary key, key blob, value blob)")
    return connection


INSERT = "insert into log (key, value) values (?, ?)"


def sqlite_bulk(connection: sqlite3.Connection, rows: Records) -> None:
    for start in range(0, len(rows), TRANSACTION):
        connection.execute("begin")
        connection.executemany(INSERT, rows[start : start + TRANSACTION])
        connection.execute("commit")


def sqlite_singles(connection: sqlite3.Connection, rows: Records) -> None:
    execute = connection.execute
    for row in rows:
        execute(INSERT, row)


# ---- JSON lines


def json_open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def json_singles(fd: int, rows: list[tuple[str, str]]) -> None:
    """Strings, not bytes: JSON has no bytes."""
    dumps, write = json.dumps, os.write
    for number, (key, value) in enumerate(rows):
        write(fd, (dumps({"id": number, "key": key, "value": value}) + "\n").encode())


def json_rows(rows: Records) -> list[tuple[str, str]]:
    return [(key.hex()[-8:], value[8:].decode().ljust(len(value), "v")) for key, value in rows]


def json_read(path: str) -> Iterator[dict[str, Any]]:
    loads = json.loads
    with open(path, "rb") as file:
        for line in file:
            yield loads(line)
