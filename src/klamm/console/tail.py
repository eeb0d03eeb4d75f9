"""A topic as it grows: server-sent events whose id is a position, so that a browser that comes back misses nothing.

    id:    0@4711,1@815           where the next event begins, in each partition
    data:  {"rows": "<tr>…", "shown": 3, "new": 3, "per_s": 12.0}

At most MOST records are read at a time. If more came, the latest of each partition are shown, and `new` says how many
there were: the page says that it shows a sample.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool

from klamm.client.consume.range_reader import read_ranges
from klamm.console.pages.record_html import record_row
from klamm.console.pages.topic import chosen_partitions, filter_of, view_of
from klamm.errors import KlammError
from klamm.html import join
from klamm.where import Where, is_positions, range_in

if TYPE_CHECKING:
    from starlette.requests import Request

    from klamm.console.context import Console, Visit
    from klamm.types import TopicPartition

__all__ = ["Growth", "read_growth", "tail_events"]

MOST = 100
MOST_FILTERED = 2_000
TICK_S = 0.25
_KEEP_ALIVE_S = 15.0
_LATEST = Where("latest")


@dataclass(frozen=True)
class Growth:
    """The records that came since a position."""

    records: list[Any]
    """Oldest first; those that the filter takes, of those that were read."""
    read: int
    new: int
    """Offsets that came; more than `read`: it is a sample."""
    position: Where


def read_growth(console: Console, visit: Visit, since: Where | None, *, most: int | None = None) -> Growth:
    """Return the records that came since `since`: none yet, and the end as their position, if it is None."""
    partitions = chosen_partitions(console, visit)
    wanted = filter_of(visit)
    limit = most or (MOST if wanted.takes_all else MOST_FILTERED)
    ranges: dict[TopicPartition, range] = {
        name: range_in(log, since or _LATEST, _LATEST, clamp=True) for name, log in partitions.items()
    }
    position = Where({name.partition: offsets.stop for name, offsets in ranges.items()})
    new = sum(map(len, ranges.values()))
    grown = {name: offsets for name, offsets in ranges.items() if offsets}
    if new > limit:
        share = max(1, limit // len(grown))
        grown = {name: offsets[-share:] for name, offsets in grown.items()}
    records: list[Any] = []
    if grown:
        for batch in read_ranges(console.store._acquired(), grown):
            records += filter(wanted, map(console.mask, batch))
    records.sort(key=lambda record: record.timestamp)
    return Growth(records, sum(map(len, grown.values())), new, position)


def _since(last_id: str) -> Where | None:
    """Return the positions that the id of an event has; None if this console made no such id."""
    try:
        where = Where(last_id) if last_id else None
    except KlammError:
        return None
    return where if where is not None and is_positions(where) else None


async def tail_events(console: Console, visit: Visit, request: Request) -> AsyncIterator[str]:
    """Yield an event whenever records came, until the visitor leaves."""
    since = _since(request.headers.get("last-event-id", ""))
    view = view_of(visit)
    last_s, silent_s = time.monotonic(), 0.0
    while not (console.is_ending.is_set() or await request.is_disconnected()):
        try:
            growth = await run_in_threadpool(read_growth, console, visit, since)
        except (KlammError, OSError) as error:
            yield f"event: problem\ndata: {json.dumps(str(error))}\n\n"
            return
        is_first, since = since is None, growth.position
        now_s = time.monotonic()
        if is_first or growth.new:
            rows = join(record_row(record, view) for record in reversed(growth.records))
            per_s = growth.new / max(TICK_S, now_s - last_s)
            data = {"rows": rows, "shown": len(growth.records), "read": growth.read, "new": growth.new, "per_s": per_s}
            yield f"id: {growth.position}\nevent: records\ndata: {json.dumps(data)}\n\n"
            silent_s = 0.0
        elif silent_s >= _KEEP_ALIVE_S:
            yield ": still here\n\n"
            silent_s = 0.0
        last_s, silent_s = now_s, silent_s + TICK_S
        await console.pause(TICK_S)
