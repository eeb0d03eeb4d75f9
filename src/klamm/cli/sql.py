"""`klamm sql`: DuckDB over topics. A query, several with semicolons between them, or a prompt.

orders           a topic: key, value, topic, partition, offset, timestamp, timestampType, headers
"my-topic"       one whose name is no word of SQL; two whose names differ by case alone are refused
latest.users     the latest record of each key that has a value: a compacted topic as a table
text(value)      bytes as text, NULL where they are no UTF-8;  text(value) ->> '$.id' looks into JSON
"""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.database import Database
from klamm.cli.hints import hint_of
from klamm.cli.output import facts, is_terminal, progress
from klamm.cli.stores import StoreOption, opened
from klamm.client.plain import plain_bytes
from klamm.errors import KlammError

if TYPE_CHECKING:
    from klamm.api import Store

__all__ = ["names_of", "plain", "sql"]

_ROWS = 1000  # fetched at a time
_SHOWN = 200  # in one table on a terminal; a pipe gets all


def sql(
    query: Annotated[str | None, typer.Argument(metavar="[QUERY]", help="Without: a prompt, or stdin.")] = None,
    store: StoreOption = None,
) -> None:
    """Ask topics in SQL (DuckDB)."""
    with opened(store, looks=True) as events:
        if query is None and sys.stdin.isatty():
            _prompt(Database(events, whole=True), events)
            return
        _answer(Database(events), sys.stdin.read() if query is None else query)


def names_of(found: Any) -> list[str]:
    """Its columns; of the same name, the second and later ones get a number."""
    names: list[str] = []
    for column in found.description or ():
        name, number = column[0], 1
        while name in names:
            name, number = f"{column[0]}_{number}", number + 1
        names.append(name)
    return names


def _answer(database: Database, query: str) -> None:
    """The rows of each query; of what is no query, only the last is told how it went."""
    from duckdb import StatementType

    statements = database.ask(query, lambda connection: connection.extract_statements(query))
    for statement in statements:
        told = statement is statements[-1] or statement.type == StatementType.SELECT
        with progress("reading") as tick:
            rows = database.ask(query, partial(_rows, database, statement, told), tick)
        if told and is_terminal():  # behind the bar
            facts(rows[:_SHOWN], empty="no rows", spoken=False)
            if len(rows) > _SHOWN:
                typer.echo(f"… and more: only {_SHOWN} rows are shown on a terminal; a pipe gets all", err=True)


def _rows(database: Database, statement: Any, told: bool, connection: Any) -> list[dict[str, Any]]:
    """Those that a terminal shows; into a pipe all are printed."""
    found = connection.execute(statement)
    names = names_of(found)
    while some := found.fetchmany(_SHOWN + 1 if is_terminal() else _ROWS):
        rows = [dict(zip(names, map(plain, row), strict=True)) for row in some]
        if is_terminal() or not told:
            return rows
        facts(rows)
        database.go_on()
    return []


def plain(value: Any) -> Any:
    """As JSON has it: bytes as text where they are UTF-8, times as ISO writes them."""
    if isinstance(value, bytes | bytearray | memoryview):
        return plain_bytes(bytes(value))
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(plain(name)): plain(each) for name, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value if isinstance(value, int | float | str | None) else str(value)


def _prompt(database: Database, store: Store) -> None:
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # keys that edit and remember
    topics = ", ".join(store.topics()) or "none yet"
    typer.echo(f"Topics: {topics}. A query ends with a semicolon; Ctrl-D leaves.", err=True)
    query = ""
    while True:
        try:
            query += input("   … " if query else "sql> ") + "\n"
            if not query.strip():
                query = ""
            elif query.strip().rstrip(";").lower() in ("quit", "exit"):
                return
            elif query.rstrip().endswith(";"):
                asking, query = query, ""
                _answer(database, asking)
        except EOFError:
            typer.echo("", err=True)
            return
        except KeyboardInterrupt:
            typer.echo("", err=True)
            query = ""
        except KlammError as error:
            hint = hint_of(error)
            typer.echo(f"klamm: {error.message}" + (f" ({hint})" if hint else ""), err=True)
