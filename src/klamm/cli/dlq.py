"""`klamm dlq`: records that could not be handled: see why, and send them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from klamm.cli.output import confirm, count_of, fact, facts, is_terminal, progress
from klamm.cli.records import text
from klamm.cli.stores import StoreOption, opened, some_topics
from klamm.client.plain import plain_bytes
from klamm.errors import InvalidSetting
from klamm.store.names import nearest

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.client.dead_letters import DeadLetter

__all__ = ["app"]

app = typer.Typer(name="dlq", help="Dead letters: list, redrive.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="The dead-letter topic, such as orders.dlq.", autocompletion=some_topics),
]


def _letters(store: Store, topic: str) -> list[DeadLetter]:
    letters = store.dead_letters(topic)
    if letters and all(letter.origin is None and letter.error == "" for letter in letters):
        others = [name for name in store.topics() if name != topic and name.endswith(".dlq")]
        hint = nearest(f"{topic}.dlq", others) or "klamm topic list shows which there are"
        raise InvalidSetting(f"{topic}: is no dead-letter topic: no record there says what it died of", hint=hint)
    return letters


@app.command("list")
def list_letters(topic: Name, store: StoreOption = None) -> None:
    """What lies there and was not sent back, with the reasons."""
    with opened(store, looks=True) as events:
        rows = []
        for letter in _letters(events, topic):
            origin, record = letter.origin, letter.record
            came_from = None if origin is None else f"{origin.topic}/{origin.partition}/{origin.offset}"
            if is_terminal():
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
        facts(rows, empty=f"no dead letters in {topic}")


@app.command()
def redrive(
    topic: Name,
    store: StoreOption = None,
    to: Annotated[str | None, typer.Option(metavar="TOPIC", help="Where to. [default: where each came from]")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="At most so many.", min=1)] = None,
    error: Annotated[str | None, typer.Option(metavar="TYPE", help="Only those that died of this error.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Send dead letters back, each once."""
    with opened(store) as events:
        waiting = [each for each in _letters(events, topic) if error in (None, each.error)]
        if not waiting:
            typer.echo(f"no dead letters in {topic}" + (f" died of {error}" if error else ""), err=True)
            return
        many = len(waiting) if limit is None else min(limit, len(waiting))
        where = f"to {to}" if to else "to where they came from"
        confirm(f"{count_of(many, 'dead letter')} of {topic} would go back {where}", yes=yes)
        with progress("redriving", "letters") as tick:
            fitting = (lambda letter: letter.error == error) if error is not None else None
            done = events.redrive(topic, to, limit=limit, where=fitting, progress=tick)
        fact({"topic": topic, "redriven": done})
