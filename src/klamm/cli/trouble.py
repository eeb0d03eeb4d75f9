"""`klamm trouble`: what needs attention in a store, what shows it, and the command that helps: the console's page.

Whether a group catches up, and whether a member stands still, is seen by looking at the store for some time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from klamm.cli.maintenance import one_of
from klamm.cli.output import OutputOption, progress
from klamm.cli.records import parse_seconds
from klamm.cli.stores import PathArgument, StoreOption, check_directory, opened

if TYPE_CHECKING:
    from klamm.cli.output import OnProgress
    from klamm.console.context import Console

__all__ = ["trouble"]


def trouble(
    path: PathArgument = None,
    store: StoreOption = None,
    look: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Look at groups so long: 10s shows those that do not catch up, 60s members that stand still. "
            "[default: groups are not looked at]",
        ),
    ] = None,
    *,
    out: OutputOption,
) -> None:
    """Show what needs attention, and the command that helps. Changes nothing."""
    check_directory(one_of(path, store), "trouble")
    look_s = None if look is None else parse_seconds(look, "--look")
    from klamm.cli.views import console_of, read_view
    from klamm.console.pages.trouble import TROUBLE

    with opened(one_of(path, store), read_only=True) as events:
        console = console_of(events, one_of(path, store))
        if look_s is not None:
            with progress("looking at groups", "looks") as on_progress:
                _look(console, look_s, on_progress)
        rows = read_view(console, TROUBLE)["trouble"]
    without = "" if look_s is not None else "; groups were not looked at (--look 60s does)"
    out.print_rows(rows, empty=f"no trouble{without}")


def _look(console: Console, seconds: float, on_progress: OnProgress) -> None:
    """Look at the groups again and again: the first time now, the last time when the time is over."""
    from klamm.console.sampler import INTERVAL_S, look

    count, deadline = 1, time.monotonic() + seconds
    total = int(seconds // INTERVAL_S) + 2
    console.sampler.add(look(console.store))
    while (left_s := deadline - time.monotonic()) > 0:
        time.sleep(min(INTERVAL_S, left_s))
        console.sampler.add(look(console.store))
        on_progress(count := count + 1, max(count, total))
