"""`klamm copy`: topics from one store into another, each a directory, a server or a Kafka cluster."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from klamm.cli.output import OutputOption, count_of, progress, size_of

__all__ = ["copy"]

_STORE_HELP = "A directory, or kafka://host:port,…?option=value for a server or cluster; options are librdkafka's."


def copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=_STORE_HELP)],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Likewise; a directory is created if absent.")],
    output: OutputOption,
    topics: Annotated[
        list[str] | None, typer.Option("-t", "--topics", metavar="A,B,…", help="Only these topics; may be repeated.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHERE", help="Where to begin: earliest, @4711, 15m (ago), 2026-11-15T10:00."),
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with new records, until Ctrl-C.")] = False,
    groups: Annotated[bool, typer.Option(help="Move consumer groups along, those without members.")] = True,
) -> None:
    """Copy topics between directories, servers and Kafka clusters. Run again, it goes on where it was.

    Aborted transactions are left out. Keys, values, headers, timestamps and partitions are kept; offsets, too, if the
    target is a directory.
    """
    from klamm.transfer.copier import copy as copy_topics

    with _until_signal() as is_over, progress("copying") as on_progress:
        report = copy_topics(
            source,
            target,
            topics=[name for names in topics for name in names.split(",")] if topics else None,
            since=since,
            follow=follow,
            groups=groups,
            progress=on_progress,
            is_over=is_over,
        )
    busy = f"; groups with members were left alone: {', '.join(report.busy_groups)}" if report.busy_groups else ""
    output.report(
        f"{count_of(report.offsets, 'offset')} of {count_of(len(report.positions), 'partition')} "
        f"({size_of(report.bytes)}) to {target.partition('?')[0]}{busy}",
        {
            "offsets": report.offsets,
            "bytes": report.bytes,
            "positions": [
                {"topic": partition.topic, "partition": partition.partition, "offset": offset}
                for partition, offset in sorted(report.positions.items())
            ],
            "groups": report.groups,
            "busy_groups": report.busy_groups,
        },
    )


@contextmanager
def _until_signal() -> Iterator[Callable[[], bool]]:
    """End the copy behind a commit at the first Ctrl-C or SIGTERM; at a second one at once."""
    over = threading.Event()

    def end(number: int, frame: object) -> None:
        if over.is_set():
            raise KeyboardInterrupt
        over.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield over.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
