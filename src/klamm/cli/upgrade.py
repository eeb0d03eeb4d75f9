"""`klamm upgrade`: a store of an older format."""

from __future__ import annotations

from typing import Annotated

import typer

from klamm.cli.maintenance import one_of
from klamm.cli.output import OutputOption, progress
from klamm.cli.stores import PathArgument, StoreOption, check_directory, found_path, opened

__all__ = ["upgrade"]


def upgrade(
    path: PathArgument = None,
    store: StoreOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only report; exit code 1 if the store is not up to date.")
    ] = False,
    *,
    out: OutputOption,
) -> None:
    """Upgrade a store to the format of this version. Every process has to close it first; older ones refuse it then."""
    from klamm.store.upgrade import TODAY, formats_of

    check_directory(one_of(path, store), "upgrade", "a server upgrades its own store when it starts")
    where = found_path(one_of(path, store))
    before = formats_of(where, read_only=False)
    if not check:
        with opened(where) as events, progress("upgrading", "partitions") as on_progress:
            _, topics = events._acquired().all_topics()
            done, total = 0, sum(topic.count for topic in topics)
            on_progress(done, total)
            for topic in topics:
                for number in range(topic.count):
                    topic.partition(number)  # which recovers it
                    on_progress(done := done + 1, total)
    after = formats_of(where, read_only=False)
    out.print_object(
        {
            "store": where,
            "klamm.db": _describe(before.database, after.database, TODAY.database),
            "heads": _describe(before.heads, after.heads, TODAY.heads),
            "up to date": after == TODAY,
        }
    )
    if after != TODAY:
        raise typer.Exit(1)


def _describe(before: int, after: int, today: int) -> str:
    if before != after:
        return f"format {after}, was {before}"
    return f"format {after}" if after == today else f"format {after}; this Klamm writes {today}"
