"""Trouble: what needs attention, the evidence, and the command that helps."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from typing import Any

from klamm.api.summary import processes_of, removals_of
from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.html import Html, el, join
from klamm.console.pages.frame import Page, badge, cell, table, topic_address
from klamm.console.pages.overview import group_address, group_row, read_topics
from klamm.console.pages.transactions import is_overdue, read_transactions
from klamm.console.sampler import NEVER, Stall

__all__ = ["TROUBLE", "read_trouble"]

FREE_SHARE = 0.05
FREE_BYTES = 1 << 30
STALL_MS = 60_000  # that a group may stay at one offset, with a member and records to read


def read_trouble(console: Console, visit: Visit) -> dict[str, Any]:
    """Return what is wrong: how bad it is, what it is, what shows it, and what to run."""
    store = console.store
    found: list[dict[str, Any]] = []

    def add(kind: str, what: str, evidence: str, command: str, see: str | None = None) -> None:
        found.append({"kind": kind, "what": what, "evidence": evidence, "command": command, "see": see})

    for topic in read_topics(console):
        if topic["problem"]:
            check = text.command("klamm", "check", console.path)
            add("bad", f"Topic {topic['topic']} is damaged", topic["problem"], check)
    now_ms = time.time_ns() // 1_000_000
    disk = shutil.disk_usage(store.path)
    if disk.free < min(FREE_BYTES, disk.total * FREE_SHARE):
        free = f"{text.size(disk.free)} of {text.size(disk.total)} are free"
        add("bad", "The disk is nearly full", free, console.command("topic", "purge", "TOPIC"))
    for row in read_transactions(console, visit)["transactions"]:
        if is_overdue(row):
            name = row["name"] or f"producer {row['producer_id']}"
            age = text.duration(row["age_ms"]) if row["age_ms"] is not None else "since before the last boot"
            evidence = f"open for {age}, timeout {text.duration(row['timeout_ms'])}; readers wait in front of it"
            add(
                "bad",
                f"The transaction of {name} is stuck",
                evidence,
                console.command("tx", "abort", row["producer_id"]),
            )
    for process in processes_of(store.who()):
        if process.is_stopped:
            roles = ", ".join(process.roles) or "has the store open"
            add("bad", f"Process {process.pid} is stopped", f"{process.command}: {roles}", f"kill -CONT {process.pid}")
    for name in store.groups:
        group = group_row(console, store.groups.describe(name))
        if group["lag"] and group["catch_up_ms"] == NEVER:
            behind = f"{group['lag']:,} records, {text.duration(group['lag_ms'])} behind"
            why = "its lag does not fall" if group["members"] else "it has no members"
            line = console.command("group", "show", name)
            add("warn", f"Group {name} does not catch up", f"{behind}; {why}", line, group_address(name))
        for stall in console.sampler.stalls(name, now_ms, STALL_MS):
            add(*_standing(console, name, stall, now_ms))
    for topic_name, errors in console.letters.find().items():
        if isinstance(errors, Counter) and errors:
            what = text.count(errors.total(), "dead letter")
            died_of = ", ".join(f"{name or 'unknown'} ({number:,})" for name, number in errors.most_common(3))
            evidence, see = f"handlers failed: {died_of}", f"/dead-letters/{topic_name}"
            add("warn", f"{what} in {topic_name}", evidence, console.command("dlq", "list", topic_name), see)
    for removal in removals_of(store):
        what = (
            f"Recovery cut off {text.size(removal.size)} of {removal.of}" if removal.of else "Repair set a file aside"
        )
        line = text.command("klamm", "salvage", console.path)
        add("warn", what, f"{text.moment(removal.time_ms)}: {removal.path}", line)
    return {"trouble": found}


def _standing(console: Console, group: str, stall: Stall, now_ms: int) -> tuple[str, str, str, str, str]:
    """Return the row of a member that hangs, or cannot handle a record."""
    topic, _, number = stall.partition.rpartition("/")
    evidence = (
        f"{stall.member} reads {stall.partition} and has committed nothing for"
        f" {text.duration(now_ms - stall.since_ms)}: it hangs, or cannot handle the record at {stall.offset}"
    )
    line = console.command("tail", topic, "-p", number, "--from", f"@{stall.offset}", "-c", 1)
    return (
        "warn",
        f"Group {group} stands still at {stall.partition}",
        evidence,
        line,
        topic_address(topic, f"/{number}/{stall.offset}"),
    )


def render_trouble(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    rows = [
        el(
            "tr",
            cell(badge("problem" if row["kind"] == "bad" else "look at it", row["kind"]), kind="fit"),
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
            table(
                ("", "what", "what shows it", "what helps"),
                rows,
                caption="Trouble",
                empty="No trouble: no damage seen, no stuck transaction, stopped process or dead letter; enough disk.",
            ),
        ]
    )


TROUBLE = Page(
    "/trouble",
    title=lambda visit: "Trouble",
    read=read_trouble,
    render=render_trouble,
    command=lambda console, visit: text.command("klamm", "info", console.path),
    is_live=True,
)
