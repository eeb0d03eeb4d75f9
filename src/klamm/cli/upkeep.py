"""`klamm check`, `compact`, `backup`: looking after a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.output import confirm, count_of, fact, facts, is_terminal, progress, size_of
from klamm.cli.stores import PathArgument, StoreOption, opened, path_of

__all__ = ["backup", "check", "compact"]

_DAMAGED = 3


def check(
    path: PathArgument = None,
    repair: Annotated[bool, typer.Option("--repair", help="Put right what can be, without losing a record.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before repairing.")] = False,
) -> None:
    """Walk every promise of a store, and say which is broken. Exit code 3: damage was found."""
    import klamm

    where = path_of(path)
    with opened(path, read_only=True):
        pass  # it is a store; an unreadable one is said so here
    if repair:
        confirm(
            f"{where} is repaired: torn tails and damaged batches are moved aside, heads and indexes rebuilt", yes=yes
        )
    report = klamm.check(where, repair=repair)
    rows = [
        {
            "promise": each.promise,
            "path": each.path,
            "position": each.position,
            "what": each.message,
            "repaired": each.repaired,
        }
        for each in report.breaches
    ]
    facts(rows, empty="nothing is wrong")
    about = {
        "topics": report.topics,
        "partitions": report.partitions,
        "segments": report.segments,
        "batches": report.batches,
        "records": report.records,
        "size": size_of(report.size) if is_terminal() else report.size,
        "ok": report.ok,
    }
    fact(about)
    if not report.ok:
        raise typer.Exit(_DAMAGED)


def compact(
    path: PathArgument = None,
    topic: Annotated[
        str | None,
        typer.Option("-t", "--topic", metavar="TOPIC", help="Only this one. [default: all compacted ones]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Worth it or not; closes active segments.")] = False,
) -> None:
    """Keep the latest record of each key in compacted topics, as far as it is worth it."""
    with opened(path) as events, progress("compacting", "bytes") as tick:
        done = events.compact(topic, force=force, progress=lambda _t, _n, done, total: tick(done, total))
    if is_terminal():
        saved = size_of(done.bytes_before - done.bytes_after)
        typer.echo(
            f"{count_of(done.partitions, 'partition')}: {count_of(done.records_removed, 'record')} removed, "
            f"{saved} saved, "
            f"{count_of(done.records_left, 'record')} left, {done.seconds:.1f} s"
        )
    else:
        fact(done._asdict())


def backup(
    destination: Annotated[Path, typer.Argument(metavar="DESTINATION", help="A directory that is new or empty.")],
    store: StoreOption = None,
) -> None:
    """Copy a store as it is at one moment, while others use it."""
    with opened(store) as events:
        done = events.backup(destination)
    size = size_of(done.size) if is_terminal() else done.size
    fact({"destination": str(destination), "topics": done.topics, "partitions": done.partitions, "size": size})
