"""Pipelines on Spark: how far they are, their rates, and how long their micro-batches take.

`klamm pipeline list` and `show` say what there is to know, in a child process: the console does without Spark.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from klamm.charts import line_chart
from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.errors import RequestError
from klamm.console.mask import HIDDEN
from klamm.console.pages.frame import Page, badge, card, cell, note, table, topic_address
from klamm.html import Html, el, join

__all__ = ["PIPELINE", "PIPELINES"]

_KINDS = {"running": "good", "failed": "bad", "killed": "bad", "missing": "bad", "resetting": "warn"}


def read_pipelines(console: Console, visit: Visit) -> dict[str, Any]:
    rows = console.children.run("pipeline", "list", "--store", console.store.path, "-o", "json")
    return {"pipelines": [_masked(console, row) for row in rows]}


def _masked(console: Console, row: dict[str, Any]) -> dict[str, Any]:
    """Hide what a run ended with, if anything is hidden: it may quote a record."""
    return {**row, "error": HIDDEN} if console.mask and row["error"] else row


def render_pipelines(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    rows = [
        el(
            "tr",
            cell(el("a", row["name"], href=f"/pipelines/show?{urlencode({'name': row['name']})}"), kind="name"),
            cell(row["pipeline"]),
            cell(badge(row["state"], _KINDS.get(row["state"], "")), kind="fit"),
            cell(", ".join(row["topics"])),
            cell(row["target"] or "–", kind="mono"),
            cell(text.count(row["lag"]), kind="n"),
            cell(text.count(row["batches"]), kind="n"),
            cell(row["error"] or "–"),
            data_key=f"pipeline {row['name']}",
        )
        for row in data["pipelines"]
    ]
    return join(
        [
            el("h1", "Pipelines"),
            table(
                ("pipeline", "kind", "state", "reads", "writes", "lag, records", "micro-batches", "last error"),
                rows,
                caption="Pipelines",
                empty="No pipelines yet: klamm pipeline --help.",
                numeric="     nn ",
            ),
        ]
    )


PIPELINES = Page(
    "/pipelines",
    title=lambda visit: "Pipelines",
    read=read_pipelines,
    render=render_pipelines,
    command=lambda console, visit: console.command("pipeline", "list"),
)


def read_pipeline(console: Console, visit: Visit) -> dict[str, Any]:
    """Return one pipeline: progress by partition, its micro-batches, and how fast it reads."""
    name = visit.one("name")
    known = {row["name"] for row in read_pipelines(console, visit)["pipelines"]}
    if name not in known:
        raise RequestError(404, f"there is no pipeline {name!r}", "the page of all pipelines has their names")
    (row,) = console.children.run("pipeline", "show", name, "--store", console.store.path, "-o", "json")
    return _masked(console, row)


def render_pipeline(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    durations = data["durations"]
    mean = sum(batch["took_ms"] for batch in durations) / len(durations) if durations else None
    title = [el("a", "Pipelines", href="/pipelines", class_="crumb"), el("span", "/", class_="crumb"), data["name"]]
    partitions = table(
        ("topic", "partition", "position", "end", "lag, records"),
        [
            el(
                "tr",
                cell(el("a", row["topic"], href=topic_address(row["topic"])), kind="name"),
                cell(row["partition"], kind="n"),
                cell(text.count(row["position"]), kind="n"),
                cell(text.count(row["end"]), kind="n"),
                cell(text.count(row["lag"]), kind="n"),
                data_key=f"partition {row['topic']}/{row['partition']}",
            )
            for row in data["partitions"]
        ],
        caption="Partitions",
        empty="It has read nothing yet.",
        numeric=" nnnn",
    )
    points = [(batch["done_ms"], batch["took_ms"] / 1000) for batch in durations]
    return join(
        [
            el("h1", title),
            note(data["error"], kind="bad") if data["error"] else None,
            el(
                "dl",
                card("State", badge(data["state"], _KINDS.get(data["state"], "")), data["pipeline"]),
                card("Lag", text.count(data["lag"]), "records"),
                card("Micro-batches", text.count(data["batches"])),
                card("Takes", text.duration(mean), "a micro-batch, on average"),
                card("Reads", text.rate(data["records_per_s"]), "while it works, lately"),
                class_="cards",
            ),
            el("h2", "Seconds that micro-batches took"),
            line_chart(points, label="Seconds that micro-batches took", unit="s", names="took")
            if len(points) > 2
            else el("p", "A chart needs three micro-batches.", class_="empty"),
            el("h2", "Partitions"),
            partitions,
        ]
    )


PIPELINE = Page(
    "/pipelines/show",
    title=lambda visit: f"Pipeline {visit.one('name')}",
    read=read_pipeline,
    render=render_pipeline,
    command=lambda console, visit: console.command("pipeline", "show", visit.one("name")),
)
