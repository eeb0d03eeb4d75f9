"""The output of commands: tables and colours for people, JSON lines, whole and plain, for programs.

A terminal gets tables and a pipe gets JSON, unless -o (--format) says which: every command that prints results has that
option, and prints through an Output. Results go to stdout. Progress bars, plans and questions go to stderr, so that
they never mix with results. What comes out of records is data, never an instruction to the terminal: control characters
are shown, not sent. NO_COLOR is respected.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import typer

from klamm.errors import InvalidSetting, KlammError
from klamm.times import format_time

__all__ = [
    "Cell",
    "OnProgress",
    "Output",
    "OutputOption",
    "confirm",
    "count_of",
    "harmless",
    "identifier",
    "is_terminal",
    "json_line",
    "moment",
    "progress",
    "since",
    "size",
    "size_of",
    "span_of",
    "styled",
    "write",
]

OnProgress = Callable[[int, int | None], None]
"""How much is done, and how much there is; None: unknown."""

_TIMEOUT_S = 1.0  # what takes no longer needs no bar
_READABLE = 16  # characters of a column that may be broken
_GAP = 2  # between two columns
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def is_terminal() -> bool:
    """Return whether a person reads what we print."""
    return sys.stdout.isatty()


def harmless(text: str) -> str:
    """Escape control characters, but for tabs and newlines: a record may hold anything."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def styled(text: str, **style: Any) -> str:
    """Return text in a colour, if the output is a terminal that shows colours."""
    return typer.style(text, **style) if is_terminal() and not os.environ.get("NO_COLOR") else text


def write(data: bytes) -> None:
    """Write bytes to stdout, as they are."""
    sys.stdout.buffer.write(data)


class Cell(NamedTuple):
    """A value, for programs, and the text that people read instead."""

    value: Any
    text: str


class Output:
    """Prints results as tables, or as a line of JSON each."""

    FORMATS = ("json", "table")

    def __init__(self, choice: str = "") -> None:
        """Choose the format. `choice` is what -o said; empty: a table on a terminal, else JSON."""
        if choice and choice not in self.FORMATS:
            raise typer.BadParameter(f"{choice!r} is invalid; expected {' or '.join(self.FORMATS)}")
        self.is_table = choice == "table" if choice else is_terminal()

    def print_rows(self, rows: Sequence[Mapping[str, Any]], *, empty: str = "nothing", spoken: bool = True) -> None:
        """Print several things of a kind. `spoken`: their names are ours, and written as words."""
        if not self.is_table:
            for row in rows:
                typer.echo(json_line(_plain(row)))
        elif rows:
            _print_table(rows, spoken)
        else:
            typer.echo(empty, err=True)

    def print_object(self, about: Mapping[str, Any]) -> None:
        """Print one thing: a line for each of its names, or one line of JSON."""
        if self.is_table:
            _print_list(about)
        else:
            typer.echo(json_line(_plain(about)))

    def report(self, sentence: str, about: Mapping[str, Any]) -> None:
        """Say what was done: a sentence on stderr for people, an object for programs."""
        if self.is_table:
            typer.echo(sentence, err=True)
        else:
            self.print_object(about)


OutputOption = Annotated[
    Output,
    typer.Option(
        "-o",
        "--format",
        metavar="json|table",
        parser=Output,
        default_factory=str,
        show_default=False,
        autocompletion=lambda: Output.FORMATS,
        help="Print lines of JSON, or a table. [default: a table on a terminal, else JSON]",
    ),
]


def json_line(row: Any) -> str:
    """Return a line of JSON; on a terminal without the control characters that JSON lets through."""
    line = json.dumps(row, ensure_ascii=False, default=str)
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", line) if is_terminal() else line


def _plain(value: Any) -> Any:
    """Return a value as programs read it."""
    if isinstance(value, Cell):
        return value.value
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _print_table(rows: Sequence[Mapping[str, Any]], spoken: bool) -> None:
    from rich.console import Console

    heads = [name.replace("_", " ") if spoken else name for name in rows[0]]
    cells = [[_text(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    # Plain text: "[red]" in a record is data, not markup. A pipe has no width: `less -S` scrolls.
    console = Console(
        markup=False,
        emoji=False,
        highlight=False,
        force_terminal=is_terminal(),
        width=None if is_terminal() else sum(widths) + _GAP * (len(widths) + 1),
    )
    unbroken = _unbroken(widths, console.width)
    if unbroken is not None:
        console.print(_table(rows, heads, cells, unbroken))
        return
    for row in rows:  # a table of slivers cannot be read
        _print_list(row)
        typer.echo("")


def _unbroken(widths: Sequence[int], space: int) -> set[int] | None:
    """Return which columns are not broken: the narrow ones, if enough is left for the others; None: not enough."""
    left = space - sum(min(width, _READABLE) + _GAP for width in widths)
    chosen = {number for number, width in enumerate(widths) if width <= _READABLE}
    for number in sorted(set(range(len(widths))) - chosen, key=lambda number: widths[number]):
        if left >= widths[number] - _READABLE:
            left -= widths[number] - _READABLE
            chosen.add(number)
    return chosen if left >= 0 else None


def _table(rows: Sequence[Mapping[str, Any]], heads: list[str], cells: list[list[str]], unbroken: set[int]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        box=SIMPLE_HEAD,
        show_edge=is_terminal(),
        pad_edge=False,
        padding=(0, _GAP - 1, 0, 0),
        header_style="bold cyan",
    )
    for number, (name, head) in enumerate(zip(rows[0], heads, strict=True)):
        is_number = all(isinstance(row[name], int | float | None) for row in rows)
        table.add_column(head, justify="right" if is_number else "left", overflow="fold", no_wrap=number in unbroken)
    for row in cells:
        table.add_row(*row)
    return table


def _print_list(about: Mapping[str, Any]) -> None:
    width = max(map(len, about), default=0)
    for name, value in about.items():
        typer.echo(f"{styled(name.replace('_', ' ').ljust(width), fg='cyan')}  {_text(value)}")


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, Cell):
        return harmless(value.text)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_text(part)}" for name, part in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "–"
    return f"{value:,}" if isinstance(value, int) else harmless(str(value))


# ---- numbers and times


def count_of(number: int, what: str) -> str:
    """Format a count: 1 record, 2 records."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def size_of(number: float) -> str:
    """Format a number of bytes, for people."""
    for unit in _UNITS:
        if number < 1024 or unit == _UNITS[-1]:
            break
        number /= 1024
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def identifier(number: int | None) -> Cell | None:
    """Return a number that counts nothing, such as a pid: it has no separators."""
    return None if number is None else Cell(number, str(number))


def size(number: int) -> Cell:
    """Return a number of bytes."""
    return Cell(number, size_of(number))


def span_of(milliseconds: int) -> str:
    """Format a duration, for people."""
    for unit, length in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
        if milliseconds >= length:
            number = milliseconds / length
            return count_of(int(number), unit) if number.is_integer() else f"{number:.1f} {unit}s"
    return f"{milliseconds} ms"


def moment(time_ms: int) -> str:
    """Format a record's time, in UTC."""
    try:
        return format_time(time_ms)
    except OverflowError:
        return str(time_ms)


def since(time_ms: int | None) -> Cell | None:
    """Return a time in the past: people read how long ago it was."""
    if time_ms is None:
        return None
    return Cell(moment(time_ms), span_of(max(0, time.time_ns() // 1_000_000 - time_ms)))


# ---- stderr


def confirm(will: str, *, yes: bool) -> None:
    """Print what would be done and ask whether to do it. `--yes` answers; without a terminal it is required."""
    if yes:
        return
    typer.echo(will, err=True)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidSetting("nothing was done", hint="--yes does it without asking")
    try:
        if typer.confirm("Do it?", err=True):
            return
    except typer.Abort:  # Ctrl-C, or the end of what is typed
        typer.echo("", err=True)
    raise KlammError("nothing was done")


@contextmanager
def progress(what: str, unit: str = "records", *, printing: bool = False) -> Iterator[OnProgress]:
    """Show a bar with rate and time left for anything that takes longer than a second; on a terminal only.

    `printing`: results are printed at the same time; on one terminal the bar would garble them.
    """
    if not sys.stderr.isatty() or (printing and is_terminal()):
        yield lambda done, total: None
        return
    begin = time.monotonic()
    bar: Any = None
    task: Any = None

    def on_progress(done: int, total: int | None) -> None:
        nonlocal bar, task
        if bar is not None:
            bar.update(task, completed=done, total=total)
        elif time.monotonic() - begin >= _TIMEOUT_S:
            bar = _bar(unit, begin)
            task = bar.add_task(what, completed=done, total=total)
            bar.start()

    try:
        yield on_progress
    finally:
        if bar is not None:
            bar.stop()


def _bar(unit: str, begin: float) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
    from rich.text import Text

    def rate(task: Any) -> float:
        return float(task.completed / max(1e-3, time.monotonic() - begin))

    class ProgressText(ProgressColumn):
        def __init__(self, text_of: Callable[[Any], str], style: str = "") -> None:
            super().__init__()
            self._text_of, self._style = text_of, style

        def render(self, task: Any) -> Text:
            return Text(self._text_of(task), style=self._style)

    def share(task: Any) -> str:
        return "" if task.total is None else f"{task.percentage:>3.0f} %"

    def speed(task: Any) -> str:
        return f"{size_of(rate(task))}/s" if unit == "bytes" else f"{rate(task):,.0f} {unit}/s"

    def left(task: Any) -> str:
        if task.total is None or not task.completed:
            return ""
        seconds = round(max(0, task.total - task.completed) / rate(task))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        ProgressText(share),
        ProgressText(speed, "cyan"),
        ProgressText(left),
        console=Console(stderr=True),
        transient=True,
    )
