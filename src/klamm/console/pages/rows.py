"""Topics and groups as plain values: what the overview, the lists and the trouble page say of each."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from klamm.api.summary import rates_of
from klamm.console.context import Console
from klamm.console.sampler import group_point, keeps_up
from klamm.errors import KlammError, UnknownGroup

if TYPE_CHECKING:
    from klamm.types import GroupInfo

__all__ = ["group_address", "group_row", "read_groups", "read_topics"]


def read_topics(console: Console, part: str = "") -> list[dict[str, Any]]:
    """Return a row for each topic whose name has that part. Of a damaged one it is what is known, and the problem."""
    return [_topic_row(console, name) for name in console.store.topics if part in name]


def _topic_row(console: Console, name: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "topic": name,
        **dict.fromkeys(("partitions", "records", "size", "per_s_1m", "per_s_1h")),
        "in_per_s": console.sampler.in_per_s(name),
        "problem": None,
    }
    try:
        topic = console.store.topics.describe(name)
        row |= {"partitions": len(topic.partitions), "records": topic.count, "size": topic.size}
        row |= rates_of(console.store, topic)
    except KlammError as error:
        row["problem"] = error.message
    return row


def group_row(console: Console, group: GroupInfo) -> dict[str, Any]:
    """Return a group: its lag in records and milliseconds, its rate, and when it will have caught up.

    `catch_up_ms` is 0 if it keeps up, "never" if its lag does not fall, and None as long as that is not known.
    """
    point = group_point(group, time.time_ns() // 1_000_000)
    catch_up: float | str | None = 0 if keeps_up(point) else console.sampler.catch_up_ms(group.name)
    return {
        "group": group.name,
        "state": group.state,
        "door": group.door,
        "members": len(group.members),
        "topics": sorted({offset.topic for offset in group.offsets}),
        "lag": point.lag,
        "lag_ms": point.lag_ms,
        "out_per_s": console.sampler.out_per_s(group.name),
        "catch_up_ms": round(catch_up) if isinstance(catch_up, float) else catch_up,
    }


def read_groups(console: Console, part: str = "") -> list[dict[str, Any]]:
    """Return a row for each group whose name has that part."""
    rows = []
    for name in console.store.groups:
        if part in name:
            with suppress(UnknownGroup):  # deleted by now
                rows.append(group_row(console, console.store.groups.describe(name)))
    return rows


def group_address(group: str, path: str = "/groups/show") -> str:
    return f"{path}?{urlencode({'group': group})}"
