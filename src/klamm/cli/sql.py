"""`klamm sql`: DuckDB over topics. One query, a file of them, or a prompt.

orders           a topic: key, value, topic, partition, offset, timestamp, timestampType, headers
"my-topic"       one whose name is no word of SQL; two whose names differ by case alone are refused
latest.users     the latest record of each key that has a value: a compacted topic as a table
text(value)      bytes as text, NULL where they are no UTF-8;  text(value) ->> '$.id' looks into JSON
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.output import facts, is_terminal
from klamm.cli.stores import StoreOption, opened
from klamm.client.plain import plain_bytes
from klamm.errors import InvalidSetting, KlammError
from klamm.store.names import nearest

if TYPE_CHECKING:
    from klamm.api import Store

__all__ = ["asked", "connect", "names_of", "plain", "sql"]

_ROWS = 1000  # fetched at a time
_SHOWN = 200  # in one table on a terminal; a pipe gets all


def sql(
    query: Annotated[str | None, typer.Argument(metavar="[QUERY]", help="Without: a prompt, or stdin.")] = None,
    store: StoreOption = None,
) -> None:
    """Ask topics in SQL (DuckDB)."""
    with opened(store) as events:
        if query is None and sys.stdin.isatty():
            _prompt(connect(events), events)
            return
        wanted = sys.stdin.read() if query is None else query
        _answer(connect(events, wanted), wanted, events.topics())


def connect(store: Store, query: str | None = None) -> Any:
    """A connection to DuckDB in which topics are tables: all, or those that a query may name."""
    try:
        import duckdb
    except ImportError:
        raise KlammError("duckdb is not installed", hint="pip install 'klamm[sql]'") from None
    named = [name for name in store.topics() if query is None or name.lower() in query.lower()]
    alike = [name for name in named if sum(name.lower() == other.lower() for other in named) > 1]
    wanted = [name for name in alike if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", query or "", re.IGNORECASE)]
    if wanted:
        raise InvalidSetting(
            f"sql: {' and '.join(wanted)} differ by case alone, and SQL does not tell them apart",
            hint="ask in Python, which does: duckdb.sql on store.scan",
        )
    connection = duckdb.connect()
    connection.execute("create macro text(data) as try(decode(data))")
    connection.execute("create schema latest")
    for name in named:
        if name not in alike:
            _register(connection, store, name)
    return connection


def _register(connection: Any, store: Store, name: str) -> None:
    quoted = f'"{name}"'  # no name of a topic has a quote in it
    connection.register(name, store.scan(name))
    # The highest offset of a key counts, as in compaction; a key in two partitions (some were added) goes by time.
    connection.execute(
        f"create or replace view latest.{quoted} as select * from (select * from (select * from {quoted} "
        'where key is not null qualify row_number() over (partition by key, "partition" order by "offset" desc) = 1) '
        "qualify row_number() over (partition by key order by timestamp desc) = 1) where value is not null"
    )


@contextmanager
def asked(ask: Callable[[str], Any], query: str, topics: Sequence[str]) -> Iterator[Any]:
    """What DuckDB finds, by its `execute` or `sql`. What it has to say against the query is an error of ours."""
    import duckdb

    if not query.strip().strip(";"):
        raise InvalidSetting("sql: there is no query", hint="want one, or stdin with one: klamm sql 'select …'")
    try:
        yield ask(query)
    except duckdb.Error as error:
        raise _refused(str(error), topics) from None


def _refused(told: str, topics: Sequence[str]) -> KlammError:
    """What DuckDB said, in one line: it points at the place with a line of its own, and knows nothing of topics."""
    if "pytz" in told:
        return KlammError("sql: pytz is not installed, and DuckDB wants it for times", hint="pip install 'klamm[sql]'")
    said = " ".join(told.partition("LINE ")[0].split("Did you mean")[0].split())
    missing = re.search(r"Table with name (\S+) does not exist", said)
    if missing is not None:
        there = ", ".join(topics[:10]) or "none"
        return InvalidSetting(
            f"sql: there is no topic {missing[1]!r}", hint=nearest(missing[1], topics) or f"there are: {there}"
        )
    quotes = 'words of SQL, and names that are more than letters, go in double quotes: "offset", "my-topic"'
    return InvalidSetting(f"sql: {said}", hint=quotes if said.startswith(("Parser", "Binder")) else None)


def names_of(found: Any) -> list[str]:
    """Its columns; of the same name, the second and later ones get a number."""
    names: list[str] = []
    for column in found.description or ():
        name, number = column[0], 1
        while name in names:
            name, number = f"{column[0]}_{number}", number + 1
        names.append(name)
    return names


def _answer(connection: Any, query: str, topics: Sequence[str]) -> None:
    with asked(connection.execute, query, topics) as found:
        names = names_of(found)
        first = True
        while rows := found.fetchmany(_SHOWN + 1 if is_terminal() else _ROWS):
            told = [dict(zip(names, map(plain, row), strict=True)) for row in rows]
            first = False
            if not is_terminal():
                facts(told)
                continue
            facts(told[:_SHOWN], spoken=False)
            if len(told) > _SHOWN:
                typer.echo(f"… and more: only {_SHOWN} rows are shown on a terminal; a pipe gets all", err=True)
            return
        if first and is_terminal():
            facts([], empty="no rows")


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


def _prompt(connection: Any, store: Store) -> None:
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
                _answer(connection, asking, store.topics())
        except EOFError:
            typer.echo("", err=True)
            return
        except KeyboardInterrupt:
            typer.echo("", err=True)
            query = ""
        except KlammError as error:
            typer.echo(f"klamm: {error}", err=True)
