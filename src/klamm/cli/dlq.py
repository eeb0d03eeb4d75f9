"""`klamm dlq`: records that could not be handled: see why, send them back, remove what was."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from klamm.cli.output import OutputOption, confirm, count_of, progress
from klamm.cli.records import text
from klamm.cli.stores import StoreOption, opened, some_topics
from klamm.client.plain import plain_bytes

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
    """What lies there and was not sent back, with the reasons."""
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
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    *,
    out: OutputOption,
) -> None:
    """Send dead letters back, each once."""
    with opened(store) as events:
        waiting = (letter for letter in events.dead_letters(topic) if error in (None, letter.error))
        many = sum(1 for _ in islice(waiting, limit))
        if not many:
            typer.echo(f"no dead letters in {topic}" + (f" died of {error}" if error else ""), err=True)
            return
        where = f"to {to}" if to else "to where they came from"
        confirm(f"{count_of(many, 'dead letter')} of {topic} would go back {where}", yes=yes)
        with progress("redriving", "letters") as on_progress:
            fitting = (lambda letter: letter.error == error) if error is not None else None
            done = events.redrive(topic, to, limit=limit, where=fitting, progress=on_progress)
    out.print_object({"topic": topic, "redriven": done})


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
        confirm(f"what was sent back of {topic} would be removed, up to the first letter that was not", yes=yes)
        purged = events.purge_dead_letters(topic)
    out.print_object({"topic": topic, "purged": purged})
