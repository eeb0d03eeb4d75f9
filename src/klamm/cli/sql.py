"""`klamm sql`: DuckDB over topics. One query, a file of them, or a prompt.

orders           a topic: key, value, topic, partition, offset, timestamp, timestampType, headers
latest.users     the latest record of each key that has a value: a compacted topic as a table
text(value)      bytes as text, NULL where they are no UTF-8;  value ->> '$.id' needs text(value) before it
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.output import facts, is_terminal
from klamm.cli.records import json_bytes
from klamm.cli.stores import StoreOption, opened
from klamm.errors import InvalidSetting, KlammError

if TYPE_CHECKING:
    from klamm.api import Store

__all__ = ["connect", "sql"]

_ROWS = 1000  # fetched at a time
_SHOWN = 200  # in one table on a terminal; a pipe gets all


def sql(
    query: Annotated[str | None, typer.Argument(metavar="[QUERY]", help="Without: a prompt, or stdin.")] = None,
    store: StoreOption = None,
) -> None:
    """Ask topics in SQL (DuckDB)."""
    with opened(store) as events:
        connection = connect(events)
        if query is not None:
            _answer(connection, query)
        elif sys.stdin.isatty():
            _prompt(connection, events)
        else:
            _answer(connection, sys.stdin.read())


def connect(store: Store) -> Any:
    """A connection to DuckDB in which the store's topics are tables."""
    try:
        import duckdb
    except ImportError:
        raise KlammError("duckdb is not installed", hint="pip install 'klamm[sql]'") from None
    connection = duckdb.connect()
    connection.execute("create macro text(data) as try(decode(data))")
    connection.execute("create schema latest")
    for name in store.topics():
        quoted = '"' + name.replace('"', '""') + '"'
        connection.register(name, store.scan(name))
        connection.execute(
            f"create view latest.{quoted} as select * exclude (last) from (select *, row_number() over "
            f'(partition by key order by "partition", "offset" desc) as last from main.{quoted}) '
            "where last = 1 and key is not null and value is not null"
        )
    return connection


def _answer(connection: Any, query: str) -> None:
    import duckdb

    try:
        found = connection.execute(query)
        names = [column[0] for column in found.description or ()]
        first = True
        while rows := found.fetchmany(_SHOWN + 1 if is_terminal() else _ROWS):
            told = [dict(zip(names, map(_plain, row), strict=True)) for row in rows]
            if is_terminal():
                facts(told[:_SHOWN])
                if len(told) > _SHOWN:
                    typer.echo(f"… and more: only {_SHOWN} rows are shown on a terminal; a pipe gets all", err=True)
                return
            facts(told)
            first = False
        if first and is_terminal():
            facts([], empty="no rows")
    except duckdb.Error as error:
        raise InvalidSetting("sql: " + " ".join(str(error).split())) from None


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return json_bytes(bytes(value))
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value if isinstance(value, int | float | str | None) else str(value)


def _prompt(connection: Any, store: Store) -> None:
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # keys that edit and remember
    topics = ", ".join(store.topics()) or "none yet"
    typer.echo(f"Topics: {topics}. A query ends with a semicolon; Ctrl-D leaves.", err=True)
    query = ""
    while True:
        try:
            line = input("   … " if query else "sql> ")
        except EOFError:
            typer.echo("", err=True)
            return
        except KeyboardInterrupt:
            typer.echo("", err=True)
            query = ""
            continue
        query += line + "\n"
        if not query.strip():
            query = ""
        elif query.rstrip().endswith(";"):
            try:
                _answer(connection, query)
            except KlammError as error:
                typer.echo(f"klamm: {error.message}", err=True)
            query = ""
