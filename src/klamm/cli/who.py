"""`klamm who`: which process holds or waits for which lock of a store."""

from __future__ import annotations

import time

from klamm.cli.output import facts, is_terminal, moment, span_of
from klamm.cli.stores import PathArgument, StoreOption, opened
from klamm.cli.upkeep import one_of

__all__ = ["who"]


def who(path: PathArgument = None, store: StoreOption = None) -> None:
    """Show which processes hold or wait for which lock. Stopped ones are marked.

    Takes no lock itself. Processes of other users, and those outside of a container, are shown without their pid.
    """
    with opened(one_of(path, store), read_only=True) as events:
        rows = [
            {
                "lock": each.lock,
                "of": each.of,
                "state": each.state,
                "pid": each.pid,
                "stopped": each.is_stopped,
                "since": _since(each.since_ms),
                "command": each.command,
            }
            for each in events.who()
        ]
    facts(rows, empty="no process has the store open")


def _since(since_ms: int | None) -> str | None:
    """Return how long ago that was, for people; the time, for programs."""
    if since_ms is None:
        return None
    return span_of(max(0, time.time_ns() // 1_000_000 - since_ms)) if is_terminal() else moment(since_ms)
