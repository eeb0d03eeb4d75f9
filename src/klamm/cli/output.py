"""How commands speak: to a person at a terminal in tables and colours; into a pipe in JSON lines, whole and plain.

Results go to stdout. Progress bars, plans and questions go to stderr, so that they never mix with results.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer

__all__ = ["Tick", "confirm", "count_of", "fact", "facts", "is_terminal", "moment", "progress", "size_of"]

Tick = Callable[[int, int | None], None]
"""How much is done, and how much there is; None: nobody knows."""

_PATIENCE_S = 1.0  # what takes no longer needs no bar
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def is_terminal() -> bool:
    """Whether a person reads what we print."""
    return sys.stdout.isatty()


def facts(rows: Sequence[Mapping[str, Any]], *, title: str | None = None, empty: str = "nothing") -> None:
    """Several things of a kind: a table, or a JSON line each."""
    if not is_terminal():
        for row in rows:
            _line(row)
        return
    if not rows:
        typer.echo(empty, err=True)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    for name in rows[0]:
        is_number = all(isinstance(row[name], int | float | None) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    Console().print(table)


def fact(about: Mapping[str, Any]) -> None:
    """One thing: a line for each of its names, or one JSON line."""
    if not is_terminal():
        _line(about)
        return
    width = max(map(len, about), default=0)
    for name, value in about.items():
        typer.echo(f"{typer.style(name.replace('_', ' ').ljust(width), fg='cyan')}  {_text(value)}")


def _line(row: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(row, ensure_ascii=False, default=str))


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_text(each)}" for name, each in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "–"
    return f"{value:,}" if isinstance(value, int) else str(value)


def count_of(number: int, what: str) -> str:
    """1 record, 2 records."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def size_of(number: float) -> str:
    """Bytes, for people."""
    for unit in _UNITS:
        if number < 1024 or unit == _UNITS[-1]:
            break
        number /= 1024
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def moment(time_ms: int) -> str:
    """A record's time, in UTC."""
    from datetime import UTC, datetime, timedelta

    try:
        then = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return then.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def confirm(will: str, *, yes: bool) -> None:
    """Say what would be done, and do it if somebody says yes; `--yes` says it, and without a terminal has to."""
    if yes:
        return
    typer.echo(will, err=True)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        from klamm.errors import InvalidSetting

        raise InvalidSetting("nothing was done", hint="say --yes to have it done without being asked")
    typer.confirm("Do it?", abort=True, err=True)


@contextmanager
def progress(what: str, unit: str = "records") -> Iterator[Tick]:
    """A bar with rate and time left, on anything that takes longer than a second; on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    begin = time.monotonic()
    bar: Any = None
    task: Any = None

    def tick(done: int, total: int | None) -> None:
        nonlocal bar, task
        if bar is None:
            if time.monotonic() - begin < _PATIENCE_S:
                return
            bar, task = _bar(what, unit)
        bar.update(task, completed=done, total=total)

    try:
        yield tick
    finally:
        if bar is not None:
            bar.stop()


def _bar(what: str, unit: str) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            speed = task.finished_speed or task.speed or 0
            told = f"{size_of(speed)}/s" if unit == "bytes" else f"{speed:,.0f} {unit}/s"
            return Text(told, style="cyan")

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        Rate(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.start()
    return bar, bar.add_task(what, total=None)
