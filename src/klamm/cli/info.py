"""`klamm info`: a store at a glance. Takes no lock, so that it works while processes are stuck, and changes nothing.

Rates: api/summary.py.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import typer

from klamm.api.summary import RATES, processes_of, rates_of, removals_of
from klamm.cli.group import group_row
from klamm.cli.maintenance import one_of
from klamm.cli.output import Output, OutputOption, identifier, moment, since, size, styled
from klamm.cli.stores import PathArgument, StoreOption, check_directory, opened
from klamm.cli.topic import topic_row
from klamm.cli.tx import transaction_row
from klamm.errors import CorruptBatch

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.types import LockInfo

__all__ = ["info"]

_OF_TOPIC = ("partitions", "offsets", "size")  # settings: klamm topic list has them


def info(path: PathArgument = None, store: StoreOption = None, *, out: OutputOption) -> None:
    """Show a store at a glance. Topics, groups, transactions, processes, recovery; takes no lock, changes nothing."""
    from klamm.store.upgrade import formats_of

    check_directory(
        one_of(path, store), "info", "klamm topic list and klamm group list show those of a server or cluster"
    )
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
    row: dict[str, Any] = {"topic": name, **dict.fromkeys((*_OF_TOPIC, *RATES, "problem"))}
    try:
        topic = store.topics.describe(name)
        described = topic_row(topic)
        row |= {column: described[column] for column in _OF_TOPIC}
        row |= rates_of(store, topic)
    except CorruptBatch as error:
        row["problem"] = error.message
    return row


def _processes(locks: list[LockInfo]) -> list[dict[str, Any]]:
    """Return a row for each process that has the store open: what it is there, and what it waits for."""
    return [
        {
            "pid": identifier(process.pid),
            "command": process.command,
            "since": since(process.since_ms),
            "stopped": process.is_stopped,
            "as": list(process.roles),
            "waits": list(process.waits),
        }
        for process in processes_of(locks)
    ]


def _recovery(store: Store) -> list[dict[str, Any]]:
    """Return what recovery and repair have taken out of the store, and where it lies."""
    return [
        {
            "what": "cut off" if removal.of else "set aside",
            "of": removal.of,
            "size": None if removal.size is None else size(removal.size),
            "time": moment(removal.time_ms),
            "path": removal.path,
        }
        for removal in removals_of(store)
    ]
