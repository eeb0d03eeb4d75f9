"""The overview: topics, groups, disk, processes, and what recovery did."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING, Any

from klamm.api.summary import processes_of, rates_of, removals_of
from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.html import Html, el, join
from klamm.console.pages.connections import count_connections
from klamm.console.pages.frame import Page, badge, bar, card, cell, chart, note, table, topic_address
from klamm.console.sampler import NEVER, group_point, keeps_up
from klamm.errors import KlammError

if TYPE_CHECKING:
    from klamm.types import GroupInfo

__all__ = ["OVERVIEW", "TOPICS", "forecast", "group_address", "group_row", "groups_table", "lag_cells", "read_topics"]


# ---- what is read


def read_overview(console: Console, visit: Visit) -> dict[str, Any]:
    """Return the store at a glance."""
    store = console.store
    topics = read_topics(console)
    disk = shutil.disk_usage(store.path)
    return {
        "store": store.path,
        "id": store.store_id,
        "size": sum(row["size"] or 0 for row in topics),
        "disk": {"free": disk.free, "total": disk.total},
        "in_per_s": console.sampler.in_per_s(),
        "out_per_s": console.sampler.out_per_s(),
        "topics": topics,
        "groups": [group_row(console, store.groups.describe(name)) for name in store.groups],
        "transactions": len(list(store.transactions)),
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


def read_topics(console: Console) -> list[dict[str, Any]]:
    """Return a row for each topic; where it is damaged, what is known of it, and the problem."""
    return [_topic_row(console, name) for name in console.store.topics]


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


# ---- how it is shown


def group_address(group: str, path: str = "/groups/show") -> str:
    from urllib.parse import urlencode

    return f"{path}?{urlencode({'group': group})}"


def forecast(row: dict[str, Any]) -> Html:
    """Say when a group will have caught up."""
    if not row["lag"]:
        return badge("caught up", "good")
    if row["catch_up_ms"] == 0:
        return badge("keeps up", "good")
    if row["catch_up_ms"] == NEVER:
        return badge("never, at this rate", "bad" if row["members"] else "warn")
    if row["catch_up_ms"] is None:
        return el("span", "measuring…", class_="quiet")
    return el("span", f"in about {text.duration(row['catch_up_ms'])}")


def lag_cells(row: dict[str, Any]) -> list[Html]:
    behind = "–" if row["lag_ms"] is None else text.duration(row["lag_ms"])
    kind = "n" if row["lag"] else "n quiet"
    return [cell(text.count(row["lag"]), kind=kind), cell(behind, kind=kind)]


def groups_table(rows: list[dict[str, Any]]) -> Html:
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
        empty="No groups yet: a consumer with group=… makes one.",
        numeric="  nnnn ",
    )


def topics_table(rows: list[dict[str, Any]]) -> Html:
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
        empty="No topics yet: klamm topic create NAME, or a producer that sends.",
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
            cards,
            el("h2", "Records per second, ", el("i", "in", class_="key"), " and ", el("i", "out", class_="key second")),
            chart(times, label="Records per second, in and out", unit="/s", second=outs)
            if len(times) > 2
            else el("p", "Measuring: the first points come in some seconds.", class_="empty"),
            el("h2", "Topics"),
            topics_table(data["topics"]),
            el("h2", "Groups"),
            groups_table(data["groups"]),
            el("h2", "Who has the store open"),
            _processes_table(data["processes"]),
            el("h2", "Recovery"),
            _recovery_table(data["recovery"]),
        ]
    )


def render_topics(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    return join([el("h1", "Topics"), topics_table(data["topics"])])


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
    read=lambda console, visit: {"topics": read_topics(console)},
    render=render_topics,
    command=lambda console, visit: console.command("topic", "list"),
    is_live=True,
)
