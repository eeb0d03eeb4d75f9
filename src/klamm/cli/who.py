"""`klamm who`: which process holds or waits for which lock of a store."""

from __future__ import annotations

from klamm.cli.maintenance import one_of
from klamm.cli.output import OutputOption, identifier, since
from klamm.cli.stores import PathArgument, StoreOption, opened

__all__ = ["who"]


def who(path: PathArgument = None, store: StoreOption = None, *, out: OutputOption) -> None:
    """Show which processes hold or wait for which lock. Stopped ones are marked.

    Takes no lock itself. Processes of other users, and those outside of a container, are shown without their pid.
    """
    with opened(one_of(path, store), read_only=True) as events:
        rows = [
            {
                "lock": each.lock,
                "of": each.of,
                "state": each.state,
                "pid": identifier(each.pid),
                "stopped": each.is_stopped,
                "since": since(each.since_ms),
                "command": each.command,
            }
            for each in events.who()
        ]
    out.print_rows(rows, empty="no process has the store open")
