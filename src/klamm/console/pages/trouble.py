"""Trouble: what needs attention, the evidence, and the command that helps."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from typing import Any

from klamm.api.summary import processes_of, removals_of
from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.pages.frame import Page, badge, cell, table, topic_address
from klamm.console.pages.rows import group_address, read_groups, read_topics
from klamm.console.pages.transactions import is_overdue, read_transactions
from klamm.console.sampler import NEVER, Stall
from klamm.html import Html, el, join

__all__ = ["TROUBLE", "find_trouble", "read_trouble"]

FREE_SHARE = 0.05
FREE_BYTES = 1 << 30
_MOST_OF_COMMAND = 80  # characters
_MOST_NAMED = 3  # partitions
STALL_MS = 60_000  # that a group may stay at one offset, with a member and records to read


def read_trouble(console: Console, visit: Visit) -> dict[str, Any]:
    """Return what is wrong: how bad it is, what it is, what shows it, and what to run; the worst first."""
    transactions = read_transactions(console, visit)["transactions"]
    rows = find_trouble(console, read_topics(console), read_groups(console), transactions)
    return {"trouble": sorted([*rows, *_letters(console)], key=lambda row: row["kind"] != "bad")}


def _row(kind: str, what: str, evidence: str, command: str, see: str | None = None) -> dict[str, Any]:
    return {"kind": kind, "what": what, "evidence": evidence, "command": command, "see": see}


def find_trouble(
    console: Console, topics: list[dict[str, Any]], groups: list[dict[str, Any]], transactions: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return what is wrong, dead letters aside, which take time to count."""
    store = console.store
    found = [
        _row(
            "bad", f"Topic {topic['topic']} is damaged", topic["problem"], text.command("klamm", "check", console.path)
        )
        for topic in topics
        if topic["problem"]
    ]
    now_ms = time.time_ns() // 1_000_000
    disk = shutil.disk_usage(store.path)
    if disk.free < min(FREE_BYTES, disk.total * FREE_SHARE):
        free = f"{text.size(disk.free)} of {text.size(disk.total)} are free"
        found.append(_row("bad", "The disk is nearly full", free, console.command("topic", "purge", "TOPIC")))
    found += [_stuck(console, row) for row in transactions if is_overdue(row)]
    for process in processes_of(store.who()):
        if process.is_stopped:
            roles = ", ".join(process.roles) or "has the store open"
            shown = (process.command or "")[:_MOST_OF_COMMAND]
            evidence = f"{roles}. Its command: {shown}{'…' if shown != process.command else ''}"
            found.append(_row("bad", f"Process {process.pid} is stopped", evidence, f"kill -CONT {process.pid}"))
    for group in groups:
        name = group["group"]
        if group["lag"] and group["catch_up_ms"] == NEVER:
            behind = f"{group['lag']:,} records, {text.duration(group['lag_ms'])} behind"
            why = "its lag does not fall" if group["state"] == "active" else "it has no members"
            line = console.command("group", "show", name)
            found.append(_row("warn", f"Group {name} does not catch up", f"{behind}; {why}", line, group_address(name)))
        stalls = console.sampler.stalls(name, now_ms, STALL_MS)
        for member in sorted({stall.member for stall in stalls}):
            found.append(_standing(console, name, [stall for stall in stalls if stall.member == member], now_ms))
    for removal in removals_of(store):
        what = (
            f"Recovery cut off {text.size(removal.size)} of {removal.of}" if removal.of else "Repair set a file aside"
        )
        line = text.command("klamm", "salvage", console.path)
        found.append(_row("warn", what, f"{text.moment(removal.time_ms)}: {removal.path}", line))
    return found


def _stuck(console: Console, row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a transaction that is open for longer than its timeout."""
    name = row["name"] or f"producer {row['producer_id']}"
    age = text.duration(row["age_ms"]) if row["age_ms"] is not None else "since before the last boot"
    evidence = f"open for {age}, timeout {text.duration(row['timeout_ms'])}; readers wait in front of it"
    return _row(
        "bad", f"The transaction of {name} is stuck", evidence, console.command("tx", "abort", row["producer_id"])
    )


def _letters(console: Console) -> list[dict[str, Any]]:
    rows = []
    for topic, errors in console.letters.find().items():
        if isinstance(errors, Counter) and errors:
            what = text.count(errors.total(), "dead letter")
            died_of = ", ".join(f"{name or 'unknown'} ({number:,})" for name, number in errors.most_common(3))
            line = console.command("dlq", "list", topic)
            rows.append(
                _row("warn", f"{what} in {topic}", f"handlers failed: {died_of}", line, f"/dead-letters/{topic}")
            )
    return rows


def _standing(console: Console, group: str, stalls: list[Stall], now_ms: int) -> dict[str, Any]:
    """Return the row of a member that hangs, or cannot handle a record: the one where it stands longest comes first."""
    first = min(stalls, key=lambda stall: (stall.since_ms, stall.partition))
    topic, _, number = first.partition.rpartition("/")
    others = sorted(stall.partition for stall in stalls if stall is not first)
    also = (
        f" ({', '.join(others[:_MOST_NAMED])}{' and more' if len(others) > _MOST_NAMED else ''} too)" if others else ""
    )
    evidence = (
        f"{first.member} reads {first.partition}{also} and has committed nothing for"
        f" {text.duration(now_ms - first.since_ms)}: it hangs, or cannot handle the record at {first.offset}"
    )
    line = console.command("tail", topic, "-p", number, "--from", f"@{first.offset}", "-c", 1)
    see = topic_address(topic, f"/{number}/{first.offset}")
    return _row("warn", f"Group {group} stands still at {first.partition}", evidence, line, see)


def render_trouble(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    rows = [
        el(
            "tr",
            cell(badge("problem" if row["kind"] == "bad" else "warning", row["kind"]), kind="fit"),
            cell(el("a", row["what"], href=row["see"]) if row["see"] else row["what"], kind="name"),
            cell(row["evidence"], kind="words"),
            cell(el("code", row["command"], class_="line")),
            data_key=f"trouble {row['what']}",
        )
        for row in data["trouble"]
    ]
    return join(
        [
            el("h1", "Trouble"),
            el(
                "div",
                table(
                    ("", "what", "evidence", "what helps"),
                    rows,
                    caption="Trouble",
                    empty="No trouble: no damage, stuck transaction, stopped process or dead letter; enough disk.",
                ),
                class_="top",
            ),
        ]
    )


TROUBLE = Page(
    "/trouble",
    title=lambda visit: "Trouble",
    read=read_trouble,
    render=render_trouble,
    command=lambda console, visit: text.command("klamm", "trouble", console.path, "--look", f"{STALL_MS // 1000}s"),
    is_live=True,
)
