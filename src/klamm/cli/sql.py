"""`klamm sql`: DuckDB over topics. A query, several with semicolons between them, or a prompt.

What can be asked is told in arrow/database.py.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.api.hints import hint_of
from klamm.arrow.database import Database, names_of
from klamm.cli.output import Output, OutputOption, is_terminal, progress
from klamm.cli.stores import StoreOption, core_of, opened
from klamm.client.plain import plain_bytes
from klamm.errors import InvalidSetting, KlammError

if TYPE_CHECKING:
    from klamm.api import Store

__all__ = ["plain", "sql"]

_ROWS = 1000  # fetched at a time
_SHOWN = 200  # in one table on a terminal; a pipe gets all


def sql(
    query: Annotated[
        str | None, typer.Argument(metavar="[QUERY]", help="The query. [default: a prompt, or stdin]")
    ] = None,
    store: StoreOption = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Change nothing of the store, also not to tidy up.")
    ] = False,
    *,
    out: OutputOption,
) -> None:
    """Query topics with SQL (DuckDB)."""
    with opened(store, looks=True, read_only=read_only) as events:
        if query is None and sys.stdin.isatty():
            _prompt(Database(core_of(events), whole=True), events, out)
            return
        text = sys.stdin.read() if query is None else query
        if not text.strip():
            raise InvalidSetting("sql: there is no query", hint="expected one, here or on stdin: klamm sql 'select …'")
        _run_query(Database(core_of(events)), text, out)


def _run_query(database: Database, query: str, out: Output) -> None:
    """Return the rows of each query; of statements without rows, only the last is reported."""
    from duckdb import StatementType

    statements = database.ask(query, lambda connection: connection.extract_statements(query))
    for statement in statements:
        is_printed = statement is statements[-1] or statement.type == StatementType.SELECT
        with progress("reading") as on_progress:
            rows = database.ask(query, partial(_rows, database, statement, is_printed, out), on_progress)
        if is_printed and out.is_table:  # behind the bar
            shown = rows[:_SHOWN] if is_terminal() else rows
            out.print_rows(shown, empty="no rows", spoken=False)
            if len(rows) > len(shown):
                typer.echo(f"… and more: only {_SHOWN} rows are shown on a terminal; a pipe gets all", err=True)


def _rows(database: Database, statement: Any, is_printed: bool, out: Output, connection: Any) -> list[dict[str, Any]]:
    """Return the rows of a table, of which a terminal shows some; print them as JSON as they come."""
    found = connection.execute(statement)
    names = names_of(found)
    is_bounded = out.is_table and is_terminal()
    table: list[dict[str, Any]] = []
    while some := found.fetchmany(_SHOWN + 1 if is_bounded else _ROWS):
        rows = [dict(zip(names, map(plain, row), strict=True)) for row in some]
        if out.is_table:
            table += rows
        elif is_printed:
            out.print_rows(rows)
        if is_bounded or not is_printed:
            break
        database.go_on()
    return table


def plain(value: Any) -> Any:
    """Convert a value for JSON: bytes to text where they are UTF-8, times to ISO's format."""
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


def _prompt(database: Database, store: Store, out: Output) -> None:
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # keys that edit and remember
    topics = ", ".join(store.topics) or "none yet"
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
                _run_query(database, asking, out)
        except EOFError:
            typer.echo("", err=True)
            return
        except KeyboardInterrupt:
            typer.echo("", err=True)
            query = ""
        except KlammError as error:
            hint = hint_of(error)
            typer.echo(f"klamm: {error.message}" + (f" ({hint})" if hint else ""), err=True)
