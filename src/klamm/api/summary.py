"""A summary of a store in plain values, for `klamm info` and the console.

Rates count offsets whose records have a timestamp of the last minute or hour. Markers of transactions count; records
with an older timestamp do not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from klamm.api.store import Store
    from klamm.types import LockInfo, TopicInfo

__all__ = ["RATES", "Process", "Removal", "processes_of", "rates_of", "removals_of"]

_RATES_S = {"per_s_1h": 3600, "per_s_1m": 60}  # the longest first
RATES = tuple(reversed(_RATES_S))


def rates_of(store: Store, topic: TopicInfo) -> dict[str, float]:
    """Return the offsets per second of the last minute and the last hour."""
    now_ms = time.time_ns() // 1_000_000
    counts = dict.fromkeys(_RATES_S, 0)
    handle = store[topic.name]
    for partition in topic.partitions:
        for name, seconds in _RATES_S.items():
            first = handle.offset_at(partition.number, now_ms - seconds * 1000)
            if first is None:
                break  # then no later record has one, either
            counts[name] += max(0, partition.end - first)
    return {name: round(counts[name] / _RATES_S[name], 3) for name in RATES}


@dataclass(slots=True)
class Process:
    """A process that has the store open."""

    pid: int | None
    command: str | None
    is_stopped: bool | None
    since_ms: int | None = None
    roles: list[str] = field(default_factory=list)
    """What it is there: the Kafka server, a member of a group, …"""
    waits: list[str] = field(default_factory=list)
    """The locks it waits for."""


def processes_of(locks: Iterable[LockInfo]) -> list[Process]:
    """Return the processes behind what `store.who()` returned."""
    processes: dict[int | None, Process] = {}
    for lock in locks:
        process = processes.setdefault(lock.pid, Process(lock.pid, lock.command, lock.is_stopped))
        what = lock.lock if lock.of is None else f"{lock.lock} {lock.of}"
        if lock.state == "waits":
            process.waits.append(what)
        elif lock.lock == "open":
            process.since_ms = lock.since_ms
        elif lock.lock != "partition of group" and what not in process.roles:  # its member is there
            process.roles.append(what)
    return list(processes.values())


class Removal(NamedTuple):
    """A file with bytes that recovery or repair removed from the store."""

    of: str | None
    """The partition that it was cut off; None: it was set aside whole."""
    size: int | None
    time_ms: int
    path: str
    """Relative to the store."""


def removals_of(store: Store) -> list[Removal]:
    """Return the files of what recovery and repair have removed from the store."""
    from klamm.store.salvage import set_aside

    removals = [
        Removal(f"{cut.topic}/{cut.partition}", cut.size, cut.cut_ms, os.path.relpath(cut.path, store.path))
        for name in store.topics
        for cut in store[name].cuts()
    ]
    for path in set_aside(store.path):
        time_ms = os.stat(path).st_mtime_ns // 1_000_000
        removals.append(Removal(None, None, time_ms, os.path.relpath(path, store.path)))
    return removals
