"""The overview: topics, groups, disk, processes, and what recovery did."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from klamm.api.summary import processes_of, removals_of
from klamm.charts import line_chart
from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.pages.connections import count_connections
from klamm.console.pages.frame import Page, badge, bar, card, cell, name_filter, note, table, topic_address
from klamm.console.pages.rows import group_address, read_groups, read_topics
from klamm.console.pages.transactions import read_transactions
from klamm.console.pages.trouble import find_trouble
from klamm.console.sampler import NEVER
from klamm.html import Html, el, join

__all__ = ["OVERVIEW", "TOPICS", "forecast", "groups_table"]


_MOST_ROWS = 20  # topics, and groups; their own pages have all
_NO_TOPICS = "No topics yet: klamm topic create NAME, or a producer that sends."
_NO_GROUPS = "No groups yet: a consumer with group=… makes one."


# ---- what is read


def read_overview(console: Console, visit: Visit) -> dict[str, Any]:
    """Return the store at a glance."""
    store = console.store
    topics, groups = read_topics(console), read_groups(console)
    transactions = read_transactions(console, visit)["transactions"]
    trouble = find_trouble(console, topics, groups, transactions)
    disk = shutil.disk_usage(store.path)
    return {
        "store": store.path,
        "id": store.store_id,
        "size": sum(row["size"] or 0 for row in topics),
        "disk": {"free": disk.free, "total": disk.total},
        "in_per_s": console.sampler.in_per_s(),
        "out_per_s": console.sampler.out_per_s(),
        "topics": topics,
        "groups": groups,
        "transactions": len(transactions),
        "trouble": Counter(row["kind"] for row in trouble),
        "connections": count_connections(console),
        "processes": [
            {
                "pid": process.pid,
                "command": process.command,
                "since_ms": process.since_ms,
                "stopped": process.is_stopped,
                "as": process.roles,
                "waits": process.waits,
                "is_console": process.pid == os.getpid(),
            }
            for process in processes_of(store.who())
        ],
        "recovery": [
            {"of": removal.of, "size": removal.size, "time_ms": removal.time_ms, "path": removal.path}
            for removal in removals_of(store)
        ],
        "history": console.sampler.totals(),
    }


# ---- how it is shown


def forecast(row: dict[str, Any]) -> Html:
    """Say when a group will have caught up."""
    if not row["lag"]:
        return badge("caught up", "good")
    if row["catch_up_ms"] == 0:
        return badge("keeps up", "good")
    if row["catch_up_ms"] == NEVER:
        return badge("never, at this rate", "bad") if row["state"] == "active" else badge("never: no members", "warn")
    if row["catch_up_ms"] is None:
        return el("span", "measuring…", class_="quiet")
    return el("span", f"in about {text.duration(row['catch_up_ms'])}")


def lag_cells(row: dict[str, Any]) -> list[Html]:
    behind = "–" if row["lag_ms"] is None else text.duration(row["lag_ms"])
    kind = "n" if row["lag"] else "n quiet"
    return [cell(text.count(row["lag"]), kind=kind), cell(behind, kind=kind)]


def groups_table(rows: list[dict[str, Any]], empty: str = _NO_GROUPS) -> Html:
    return table(
        ("group", "state", "members", "lag, records", "lag, time", "reads", "will have caught up"),
        [
            el(
                "tr",
                cell(el("a", row["group"], href=group_address(row["group"])), kind="name"),
                cell(badge(row["state"], "good" if row["state"] == "active" else ""), kind="fit"),
                cell(row["members"], kind="n"),
                *lag_cells(row),
                cell(text.rate(row["out_per_s"]), kind="n"),
                cell(forecast(row)),
                data_key=f"group {row['group']}",
            )
            for row in rows
        ],
        caption="Consumer groups",
        empty=empty,
        numeric="  nnnn ",
    )


def topics_table(rows: list[dict[str, Any]], empty: str = _NO_TOPICS) -> Html:
    most = max((row["size"] or 0 for row in rows), default=0) or 1
    return table(
        ("topic", "partitions", "records", "in now", "last minute", "last hour", "size", ""),
        [
            el(
                "tr",
                cell(
                    el("a", row["topic"], href=topic_address(row["topic"])),
                    [" ", badge("damaged", "bad")] if row["problem"] else None,
                    kind="name",
                    title=row["problem"],
                ),
                cell(text.count(row["partitions"]), kind="n"),
                cell(text.count(row["records"]), kind="n"),
                cell(text.rate(row["in_per_s"]), kind="n" if row["in_per_s"] else "n quiet"),
                cell(text.rate(row["per_s_1m"]), kind="n" if row["per_s_1m"] else "n quiet"),
                cell(text.rate(row["per_s_1h"]), kind="n" if row["per_s_1h"] else "n quiet"),
                cell(text.size(row["size"]), kind="n"),
                cell(bar((row["size"] or 0) / most, f"{row['topic']}: share of the largest topic"), kind="fit"),
                data_key=f"topic {row['topic']}",
            )
            for row in rows
        ],
        caption="Topics",
        empty=empty,
        numeric=" nnnnnn ",
    )


def _processes_table(rows: list[dict[str, Any]]) -> Html:
    now_ms = time.time_ns() // 1_000_000
    return table(
        ("pid", "process", "is there as", "waits for", "for"),
        [
            el(
                "tr",
                cell("–" if row["pid"] is None else str(row["pid"]), kind="n"),
                cell(
                    el("span", row["command"] or "not visible from here", class_="mono clip", title=row["command"]),
                    [" ", badge("stopped", "bad")] if row["stopped"] else None,
                    [" ", badge("this console")] if row["is_console"] else None,
                ),
                cell(", ".join(row["as"]) or el("span", "reader or writer", class_="quiet")),
                cell(badge(", ".join(row["waits"]), "warn") if row["waits"] else el("span", "–", class_="quiet")),
                cell("–" if row["since_ms"] is None else text.duration(max(0, now_ms - row["since_ms"])), kind="n"),
                data_key=f"process {row['pid']}",
            )
            for row in rows
        ],
        caption="Processes that have the store open",
        empty="No process that can be seen from here.",
        numeric="n   n",
    )


def _recovery_table(rows: list[dict[str, Any]]) -> Html:
    return table(
        ("what", "of", "size", "when", "file"),
        [
            el(
                "tr",
                cell("cut off" if row["of"] else "set aside", kind="fit"),
                cell(row["of"] or "–", kind="mono"),
                cell(text.size(row["size"]), kind="n"),
                cell(text.moment(row["time_ms"]), kind="fit mono"),
                cell(row["path"], kind="mono"),
                data_key=f"removal {row['path']}",
            )
            for row in rows
        ],
        caption="What recovery and repair took out",
        empty="Recovery had nothing to cut off, and repair nothing to set aside.",
        numeric="  n  ",
    )


def render_overview(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    used = 1 - data["disk"]["free"] / max(1, data["disk"]["total"])
    behind = [row for row in data["groups"] if row["catch_up_ms"] != 0]
    oldest = max((row["lag_ms"] or 0 for row in behind), default=0)
    cards = el(
        "dl",
        card("In", text.rate(data["in_per_s"]), f"{text.count(len(data['topics']), 'topic')}"),
        card("Out", text.rate(data["out_per_s"]), f"{text.count(len(data['groups']), 'group')}"),
        card(
            "Behind",
            text.duration(oldest) if behind else "no group",
            f"{text.count(len(behind), 'group')} of {len(data['groups'])}" if behind else "all keep up",
            "warn" if behind else "",
        ),
        card("Records", text.count(sum(row["records"] or 0 for row in data["topics"])), text.size(data["size"])),
        card("Disk free", text.size(data["disk"]["free"]), [bar(used, "Disk in use", high=0.9), f" {used:.0%} used"]),
        card("Open transactions", data["transactions"]),
        card(
            "Connections",
            "–" if data["connections"] is None else el("a", text.count(data["connections"]), href="/connections"),
            "no server that shows them" if data["connections"] is None else "of Kafka clients",
        ),
        class_="cards",
    )
    history = data["history"]
    times = [(point["time_ms"], point["in_per_s"]) for point in history]
    outs = [point["out_per_s"] for point in history]
    damaged = [row for row in data["topics"] if row["problem"]]
    return join(
        [
            el("h1", "Overview"),
            [note(row["topic"], ": ", row["problem"], kind="bad") for row in damaged],
            _trouble_note(data["trouble"]),
            cards,
            el("h2", "Records per second, ", el("i", "in", class_="key"), " and ", el("i", "out", class_="key second")),
            line_chart(times, label="Records per second, in and out", unit="/s", second=outs)
            if len(times) > 2
            else el("p", "Measuring: the first points come in some seconds.", class_="empty"),
            el("h2", "Topics"),
            topics_table(
                _most(data["topics"], lambda row: (row["in_per_s"] or 0, row["per_s_1h"] or 0, row["size"] or 0))
            ),
            _all_of(data["topics"], "the busiest", "topics"),
            el("h2", "Groups"),
            groups_table(_most(data["groups"], lambda row: (row["catch_up_ms"] != 0, row["lag_ms"] or 0))),
            _all_of(data["groups"], "those most behind", "groups"),
            el("h2", "Who has the store open"),
            _processes_table(data["processes"]),
            el("h2", "Recovery"),
            _recovery_table(data["recovery"]),
        ]
    )


def _most(rows: list[dict[str, Any]], measure: Callable[[dict[str, Any]], tuple[float, ...]]) -> list[dict[str, Any]]:
    """Return the rows that the overview has room for, in the order they came."""
    chosen = sorted(range(len(rows)), key=lambda at: measure(rows[at]), reverse=True)[:_MOST_ROWS]
    return [rows[at] for at in sorted(chosen)]


def _all_of(rows: list[dict[str, Any]], which: str, what: str) -> Html | None:
    left = len(rows) - _MOST_ROWS
    return (
        el("p", f"{_MOST_ROWS} {which}. ", el("a", f"All {len(rows):,} {what}", href=f"/{what}"), class_="quiet below")
        if left > 0
        else None
    )


def _trouble_note(counts: dict[str, int]) -> Html | None:
    """Say how much the trouble page has to say, dead letters aside."""
    bad, warnings = counts.get("bad", 0), counts.get("warn", 0)
    if not bad + warnings:
        return None
    words = [text.count(number, what) for number, what in ((bad, "problem"), (warnings, "warning")) if number]
    link = el("a", "evidence, and what helps", href="/trouble")
    return note(" and ".join(words), ": ", link, kind="bad" if bad else "warn")


def render_topics(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    rows = data["topics"]
    empty = "No topic has such a name." if visit.one("q") else _NO_TOPICS
    return join([el("h1", "Topics"), name_filter(visit, "topic", len(rows)), topics_table(rows, empty)])


OVERVIEW = Page(
    "/",
    title=lambda visit: "Overview",
    read=read_overview,
    render=render_overview,
    command=lambda console, visit: text.command("klamm", "info", console.path),
    is_live=True,
)
TOPICS = Page(
    "/topics",
    title=lambda visit: "Topics",
    read=lambda console, visit: {"topics": read_topics(console, visit.one("q"))},
    render=render_topics,
    command=lambda console, visit: console.command("topic", "list"),
    is_live=True,
)
