"""`klamm dlq`: records that could not be handled: see why, send them back, remove what was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from klamm.cli.output import OutputOption, confirm, count_of, progress
from klamm.cli.records import text
from klamm.cli.stores import StoreOption, opened, some_topics
from klamm.client.plain import plain_bytes
from klamm.errors import InvalidSetting

if TYPE_CHECKING:
    from klamm.client.work.dead_letters import DeadLetter

__all__ = ["app"]

app = typer.Typer(name="dlq", help="Dead letters: list, redrive, purge.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="The dead-letter topic, such as orders.dlq.", autocompletion=some_topics),
]


@app.command("list")
def list_letters(
    topic: Name,
    store: StoreOption = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Maximum number of letters.", min=1)] = None,
    *,
    out: OutputOption,
) -> None:
    """List the dead letters that were not sent back, with the reasons."""
    with opened(store, looks=True) as events:
        rows = []
        for letter in events.dead_letters(topic, limit=limit):
            origin, record = letter.origin, letter.record
            came_from = None if origin is None else f"{origin.topic}/{origin.partition}/{origin.offset}"
            if out.is_table:
                row = {
                    "letter": f"{record.partition}/{record.offset}",
                    "origin": came_from,
                    "tries": letter.attempts,
                    "reason": f"{letter.error}: {letter.reason}" if letter.reason else letter.error or None,
                    "key": None if record.key is None else text(record.key),
                }
            else:
                row = {
                    "partition": record.partition,
                    "offset": record.offset,
                    "timestamp": record.timestamp,
                    "origin": came_from,
                    "attempts": letter.attempts,
                    "error": letter.error,
                    "reason": letter.reason,
                    "key": plain_bytes(record.key),
                    "value": plain_bytes(record.value),
                }
            rows.append(row)
    out.print_rows(rows, empty=f"no dead letters in {topic}")


@app.command()
def redrive(
    topic: Name,
    store: StoreOption = None,
    to: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Target topic. [default: the topic each came from]")
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Maximum number of letters.", min=1)] = None,
    error: Annotated[str | None, typer.Option(metavar="TYPE", help="Only letters with this error.")] = None,
    letter: Annotated[
        list[str] | None,
        typer.Option(metavar="PARTITION/OFFSET", help="Only this letter, as the list names it; may be repeated."),
    ] = None,
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
        raise InvalidSetting(f"dlq redrive: --letter: {letter!r} is invalid", hint="expected PARTITION/OFFSET: 0/17")
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
