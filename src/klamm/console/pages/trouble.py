"""Trouble: what needs attention, the evidence, and the command that helps."""

from __future__ import annotations

import shutil
from typing import Any

from klamm.api.summary import processes_of, removals_of
from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.html import Html, el, join
from klamm.console.pages.dead_letters import dead_letter_topics
from klamm.console.pages.frame import Page, badge, cell, table
from klamm.console.pages.overview import group_row, read_topics
from klamm.console.pages.transactions import is_overdue, read_transactions
from klamm.console.sampler import NEVER

__all__ = ["TROUBLE", "read_trouble"]

FREE_SHARE = 0.05
FREE_BYTES = 1 << 30


def read_trouble(console: Console, visit: Visit) -> dict[str, Any]:
    """Return what is wrong: how bad it is, what it is, what shows it, and what to run."""
    store = console.store
    found: list[dict[str, Any]] = []

    def add(kind: str, what: str, evidence: str, command: str) -> None:
        found.append({"kind": kind, "what": what, "evidence": evidence, "command": command})

    for topic in read_topics(console):
        if topic["problem"]:
            check = text.command("klamm", "check", console.path)
            add("bad", f"Topic {topic['topic']} is damaged", topic["problem"], check)
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
            add("warn", f"Group {name} does not catch up", f"{behind}; {why}", console.command("group", "show", name))
    for topic_name in dead_letter_topics(console):
        waiting = sum(1 for _ in store.dead_letters(topic_name))
        if waiting:
            what = text.count(waiting, "dead letter")
            add("warn", f"{what} in {topic_name}", "handlers failed", console.command("dlq", "list", topic_name))
    for removal in removals_of(store):
        what = (
            f"Recovery cut off {text.size(removal.size)} of {removal.of}" if removal.of else "Repair set a file aside"
        )
        line = text.command("klamm", "salvage", console.path)
        add("warn", what, f"{text.moment(removal.time_ms)}: {removal.path}", line)
    return {"trouble": found}


def render_trouble(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    rows = [
        el(
            "tr",
            cell(badge("problem" if row["kind"] == "bad" else "look at it", row["kind"]), kind="fit"),
            cell(row["what"], kind="name"),
            cell(row["evidence"]),
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
