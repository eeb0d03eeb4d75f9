"""`klamm dlq`: records that could not be handled: see why, send them back, remove what was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from klamm.cli.output import Output, OutputOption, confirm, count_of, progress
from klamm.cli.records import text
from klamm.cli.stores import StoreOption, opened, some_topics
from klamm.client.plain import plain_bytes
from klamm.errors import InvalidSetting

if TYPE_CHECKING:
    from klamm.client.work.dead_letters import DeadLetter

__all__ = ["app"]

app = typer.Typer(name="dlq", help="Dead letters: list, redrive, purge.", no_args_is_help=True)

_TOPIC = "The dead-letter topic, such as orders.dlq."
Name = Annotated[str, typer.Argument(metavar="TOPIC", help=_TOPIC, autocompletion=some_topics)]
ErrorOption = Annotated[str | None, typer.Option(metavar="TYPE", help="Only letters with this error.")]
LetterOption = Annotated[
    list[str] | None,
    typer.Option(metavar="PARTITION/OFFSET", help="Only this letter, as the list names it; may be repeated."),
]


@app.command("list")
def list_letters(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]",
            help=f"{_TOPIC} [default: how many letters wait in each]",
            autocompletion=some_topics,
        ),
    ] = None,
    store: StoreOption = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Maximum number of letters.", min=1)] = None,
    error: ErrorOption = None,
    letter: LetterOption = None,
    *,
    out: OutputOption,
) -> None:
    """List the dead letters that were not sent back, with the reasons."""
    if topic is None:
        if limit is not None or error is not None or letter is not None:
            raise InvalidSetting("dlq list: --limit, --error and --letter need a TOPIC")
        _list_topics(store, out)
        return
    fitting = _choice(error, letter)
    with opened(store, looks=True) as events:
        rows = []
        for found in islice(filter(fitting, events.dead_letters(topic)), limit):
            origin, record = found.origin, found.record
            came_from = None if origin is None else f"{origin.topic}/{origin.partition}/{origin.offset}"
            if out.is_table:
                row = {
                    "letter": f"{record.partition}/{record.offset}",
                    "origin": came_from,
                    "tries": found.attempts,
                    "reason": f"{found.error}: {found.reason}" if found.reason else found.error or None,
                    "key": None if record.key is None else text(record.key),
                }
            else:
                row = {
                    "partition": record.partition,
                    "offset": record.offset,
                    "timestamp": record.timestamp,
                    "origin": came_from,
                    "attempts": found.attempts,
                    "error": found.error,
                    "reason": found.reason,
                    "key": plain_bytes(record.key),
                    "value": plain_bytes(record.value),
                }
            rows.append(row)
    out.print_rows(rows, empty=f"no dead letters in {topic}")


def _list_topics(store: str | None, out: Output) -> None:
    """Print the dead-letter topics, and how many letters of each error wait there."""
    from klamm.cli.views import console_of, read_view
    from klamm.console.pages.dead_letters import DEAD_LETTERS

    with opened(store, looks=True) as events:
        rows = read_view(console_of(events, store), DEAD_LETTERS)["topics"]
    out.print_rows(rows, empty="no dead-letter topics: handlers that fail make them, as TOPIC.dlq")


@app.command()
def redrive(
    topic: Name,
    store: StoreOption = None,
    to: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Target topic. [default: the topic each came from]")
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Maximum number of letters.", min=1)] = None,
    error: ErrorOption = None,
    letter: LetterOption = None,
    value: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Value to send in place of the letter's; with one --letter.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="N", help="Letters a second. [default: as fast as possible]")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print where letters would go, without sending them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    *,
    out: OutputOption,
) -> None:
    """Send dead letters back, each once."""
    if value is not None and len(letter or ()) != 1:
        raise InvalidSetting("dlq redrive: --value needs one --letter", hint="klamm dlq list names the letters")
    with opened(store, looks=dry_run) as events:
        fitting = _choice(error, letter)
        waiting = list(islice(map(_target(to), filter(fitting, events.dead_letters(topic))), limit))
        if not waiting:
            typer.echo(f"no dead letters in {topic}" + (f" died of {error}" if error else ""), err=True)
            if not (dry_run or out.is_table):
                out.print_object({"topic": topic, "redriven": 0})
            return
        edit = None if value is None else lambda letter: value.encode()
        if dry_run:
            events.redrive(topic, to, limit=limit, where=fitting, dry_run=True)
            out.print_rows([{"topic": name, "letters": number} for name, number in sorted(Counter(waiting).items())])
            return
        where = f"to {to}" if to else "to where they came from"
        confirm(f"{count_of(len(waiting), 'dead letter')} of {topic} would go back {where}", yes=yes)
        with progress("redriving", "letters") as on_progress:
            done = events.redrive(
                topic, to, limit=limit, where=fitting, edit=edit, per_second=rate, progress=on_progress
            )
    out.print_object({"topic": topic, "redriven": done})


def _choice(error: str | None, letters: list[str] | None) -> Callable[[DeadLetter], bool]:
    """Return whether a letter has that error and is one of these; None: any."""
    chosen = None if letters is None else set(map(_position, letters))
    return lambda letter: (
        error in (None, letter.error) and (chosen is None or (letter.record.partition, letter.record.offset) in chosen)
    )


def _position(letter: str) -> tuple[int, int]:
    parts = letter.split("/")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidSetting(f"--letter: {letter!r} is invalid", hint="expected PARTITION/OFFSET: 0/17")
    return int(parts[0]), int(parts[1])


def _target(to: str | None) -> Callable[[DeadLetter], str]:
    return lambda letter: to or (letter.origin.topic if letter.origin is not None else "")


@app.command()
def purge(
    topic: Name,
    store: StoreOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    *,
    out: OutputOption,
) -> None:
    """Remove the letters that were sent back, up to the first that was not."""
    with opened(store) as events:
        events.dead_letters(topic)  # or it is refused, before anybody is asked
        confirm(f"what was sent back of {topic} would be removed, up to the first letter that was not", yes=yes)
        purged = events.purge_dead_letters(topic)
    out.print_object({"topic": topic, "purged": purged})
