"""`klamm check`, `salvage`, `compact`, `backup`: looking after a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.codes import DAMAGED
from klamm.cli.output import OutputOption, confirm, count_of, moment, progress, size, size_of, write
from klamm.cli.records import RecordOutputOption
from klamm.cli.stores import PathArgument, StoreOption, check_directory, found_path, opened, some_topics
from klamm.errors import InvalidSetting

__all__ = ["backup", "check", "compact", "one_of", "salvage"]


def one_of(path: str | None, store: str | None) -> str | None:
    """Return the store that is named: PATH wins over $KLAMM_STORE (in `store`); beside --store it is one too many."""
    if path is not None and store not in (None, os.environ.get("KLAMM_STORE")):
        raise InvalidSetting("PATH and --store each name a store", hint="give one of them")
    return path or store


def check(
    path: PathArgument = None,
    store: StoreOption = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what can be repaired without losing a record.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before repairing.")] = False,
    *,
    out: OutputOption,
) -> None:
    """Verify a store and report damage. Exit code 3: damage was found."""
    import klamm
    from klamm.store.layout import LOST

    where = found_path(one_of(path, store))
    if repair:
        confirm(
            f"{where} would be repaired: torn tails and damaged batches moved aside, heads and indexes rebuilt; "
            f"a klamm.db that is missing or damaged as a whole made again, without {LOST}",
            yes=yes,
        )
    with progress("checking", "bytes") as on_progress:
        report = klamm.check(where, repair=repair, progress=on_progress)
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
    if not out.is_table:
        out.print_rows(rows)
    for row in rows if out.is_table else ():
        out.print_object({name: value for name, value in row.items() if value is not None})
        typer.echo("")
    out.print_object(
        {
            "topics": report.topics,
            "partitions": report.partitions,
            "segments": report.segments,
            "batches": report.batches,
            "records": report.records,
            "size": size(report.size),
            "cut_off": len(report.cuts),
            "ok": report.ok,
        }
    )
    if not report.ok:
        what = count_of(sum(each.repaired is None for each in report.breaches), "broken promise")
        hint = (
            "a backup may have what is gone" if repair else f"keep a copy, by cp -r; then klamm check --repair {where}"
        )
        typer.echo(f"klamm: {where}: {what} ({hint})", err=True)
        raise typer.Exit(DAMAGED)


def salvage(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="The topic. [default: all]", autocompletion=some_topics)
    ] = None,
    store: StoreOption = None,
    files: Annotated[bool, typer.Option("--files", help="Only list the files.")] = False,
    *,
    out: RecordOutputOption,
) -> None:
    """Print records that were cut off a log. By recovery or repair; `klamm import` reads it."""
    from klamm.store.salvage import records_in

    check_directory(store, "salvage", "on the host of klamm serve, name its directory")
    with opened(store, looks=True) as events:
        found = [cut for each in ([topic] if topic else events) for cut in events[each].cuts()]
        if files:
            rows = [{**cut._asdict(), "cut": moment(cut.cut_ms)} for cut in found]
            out.print_rows(rows, empty="nothing was cut off")
            return
        encode = out.encoder(with_topics=topic is None)
        for cut in found:
            for record in records_in(cut):
                write(encode(record))


def compact(
    path: PathArgument = None,
    store: StoreOption = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "-t",
            "--topic",
            metavar="TOPIC",
            help="Only this topic. [default: all compacted topics]",
            autocompletion=some_topics,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compact even below min.cleanable.dirty.ratio; rolls active segments.")
    ] = False,
    *,
    out: OutputOption,
) -> None:
    """Keep the latest record of each key in compacted topics. Those where it is worth it, unless told."""
    with opened(one_of(path, store)) as events, progress("compacting", "bytes") as on_progress:
        compacted = events if topic is None else events[topic]
        done = compacted.compact(force=force, progress=lambda _t, _n, done, total: on_progress(done, total))
    out.report(
        f"{count_of(done.partitions, 'partition')}: {count_of(done.records_removed, 'record')} removed, "
        f"{size_of(done.bytes_before - done.bytes_after)} saved, {count_of(done.records_left, 'record')} left, "
        f"{done.seconds:.1f} s",
        done._asdict(),
    )


def backup(
    destination: Annotated[Path, typer.Argument(metavar="DESTINATION", help="New or empty directory.")],
    store: StoreOption = None,
    *,
    out: OutputOption,
) -> None:
    """Copy a store as of one moment, while it is in use."""
    with opened(store) as events, progress("copying", "bytes") as on_progress:
        done = events.backup(destination, progress=on_progress)
    copied = {"topics": done.topics, "partitions": done.partitions, "size": size(done.size)}
    out.print_object({"destination": str(destination), **copied})
