"""`klamm info`: a store at a glance. Takes no lock, so that it works while processes are stuck, and changes nothing.

Rates count offsets whose records have a timestamp of the last minute and hour: markers of transactions are in them, and
records that bear an older time are not.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING, Any

import typer

from klamm.cli.group import group_row
from klamm.cli.output import Output, OutputOption, identifier, moment, since, size, styled
from klamm.cli.stores import PathArgument, StoreOption, opened
from klamm.cli.topic import topic_row
from klamm.cli.tx import transaction_row
from klamm.cli.upkeep import one_of
from klamm.errors import CorruptBatch

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.types import LockInfo, TopicInfo

__all__ = ["info"]

_OF_TOPIC = ("partitions", "offsets", "size")  # settings: klamm topic list has them
_RATES_S = {"per_s_1h": 3600, "per_s_1m": 60}  # the longest first


def info(path: PathArgument = None, store: StoreOption = None, *, out: OutputOption) -> None:
    """Show a store at a glance. Topics, groups, transactions, processes, recovery; takes no lock, changes nothing."""
    from klamm.store.upgrade import formats_of

    with opened(one_of(path, store), read_only=True) as events:
        topics = [_topic(events, name) for name in events.topics]
        formats = formats_of(events.path)
        about = {
            "store": events.path,
            "id": events.store_id,
            "format": f"klamm.db {formats.database}, heads {formats.heads}",
            "size": size(sum(row["size"].value for row in topics if row["size"] is not None)),
            "free": size(shutil.disk_usage(events.path).free),
        }
        sections = {
            "topics": _without_empty(topics, "problem"),
            "groups": [group_row(events.groups.describe(name)) for name in events.groups],
            "transactions": [transaction_row(transaction) for transaction in events.transactions],
            "processes": _processes(events.who()),
            "recovery": _recovery(events),
        }
    if out.is_table:
        _print_sections(out, about, sections)
    else:
        out.print_object({**about, **sections})


def _print_sections(out: Output, about: dict[str, Any], sections: dict[str, list[dict[str, Any]]]) -> None:
    out.print_object(about)
    for name, rows in sections.items():
        if rows:
            typer.echo(f"\n{styled(name, bold=True)}")
            out.print_rows(rows)


def _without_empty(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the rows without that column, if no row has anything there."""
    if any(row[name] is not None for row in rows):
        return rows
    return [{key: value for key, value in row.items() if key != name} for row in rows]


def _topic(store: Store, name: str) -> dict[str, Any]:
    """Return a topic as a row; where it is damaged, what is known of it, and the problem."""
    row: dict[str, Any] = {"topic": name, **dict.fromkeys((*_OF_TOPIC, *reversed(_RATES_S), "problem"))}
    try:
        topic = store.topics.describe(name)
        described = topic_row(topic)
        row |= {column: described[column] for column in _OF_TOPIC}
        row |= _rates(store, topic)
    except CorruptBatch as error:
        row["problem"] = error.message
    return row


def _rates(store: Store, topic: TopicInfo) -> dict[str, float]:
    """Return the offsets per second of the last minute and the last hour."""
    now_ms = time.time_ns() // 1_000_000
    counts = dict.fromkeys(_RATES_S, 0)
    handle = store[topic.name]
    for partition in topic.partitions:
        for name, seconds in _RATES_S.items():
            first = handle.offset_at(partition.number, now_ms - seconds * 1000)
            if first is None:
                break  # then there is nothing later, either
            counts[name] += max(0, partition.end - first)
    return {name: round(counts[name] / _RATES_S[name], 3) for name in reversed(_RATES_S)}


def _processes(locks: list[LockInfo]) -> list[dict[str, Any]]:
    """Return a row for each process that has the store open: what it is there, and what it waits for."""
    rows: dict[int | None, dict[str, Any]] = {}
    for lock in locks:
        row = rows.setdefault(
            lock.pid,
            {
                "pid": identifier(lock.pid),
                "command": lock.command,
                "since": None,
                "stopped": lock.is_stopped,
                "as": [],
                "waits": [],
            },
        )
        what = lock.lock if lock.of is None else f"{lock.lock} {lock.of}"
        if lock.state == "waits":
            row["waits"].append(what)
        elif lock.lock == "open":
            row["since"] = since(lock.since_ms)
        elif lock.lock != "partition of group" and what not in row["as"]:  # its member is there
            row["as"].append(what)
    return list(rows.values())


def _recovery(store: Store) -> list[dict[str, Any]]:
    """Return what recovery and repair have taken out of the store, and where it lies."""
    from klamm.store.salvage import set_aside

    cuts = [cut for name in store.topics for cut in store[name].cuts()]
    rows: list[dict[str, Any]] = [
        {
            "what": "cut off",
            "of": f"{cut.topic}/{cut.partition}",
            "size": size(cut.size),
            "time": moment(cut.cut_ms),
            "path": os.path.relpath(cut.path, store.path),
        }
        for cut in cuts
    ]
    for path in set_aside(store.path):
        time_ms = os.stat(path).st_mtime_ns // 1_000_000
        name = os.path.relpath(path, store.path)
        rows.append({"what": "set aside", "of": None, "size": None, "time": moment(time_ms), "path": name})
    return rows
