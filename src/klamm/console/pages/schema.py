"""The schema of a topic: the fields of its JSON values, inferred from records, with what has changed marked."""

from __future__ import annotations

from typing import Any

from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.json_fields import MOST_FIELDS, field_uses
from klamm.console.pages.frame import Page, badge, bar, cell, field, note, table, topic_address
from klamm.console.pages.topic import chosen_partitions, heading
from klamm.console.record_search import search
from klamm.html import Html, el, join
from klamm.where import Where

__all__ = ["SCHEMA"]

_COUNT = 1_000
_MOST = 10_000


def read_schema(console: Console, visit: Visit) -> dict[str, Any]:
    """Return the fields of the last records, or of those from a position on."""
    count = visit.number("n", _COUNT, least=1, most=_MOST)
    start = visit.one("from")
    found = search(
        console.store._acquired(),
        chosen_partitions(console, visit),
        count,
        start=Where(start, name="from") if start else None,
        show=console.mask or None,
    )
    uses, json_count = field_uses(found.records)
    return {
        "topic": visit.params["topic"],
        "records": len(found.records),
        "json": json_count,
        "tombstones": sum(record.value is None for record in found.records),
        "fields": [
            {
                "path": use.path,
                "types": use.types,
                "in": use.older.total() + use.newer.total(),
                "share": round(min(1.0, (use.older.total() + use.newer.total()) / max(1, json_count)), 4),
                "examples": use.examples,
                "drift": use.drift,
                "drift_at": use.drift_at,
            }
            for use in uses
        ],
    }


def render_schema(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    topic = data["topic"]
    rows = [
        el(
            "tr",
            cell(row["path"], kind="mono"),
            cell([[" ", badge(kind)] for kind in row["types"]]),
            cell(bar(row["share"], f"{row['path']}: share of the records"), f" {row['share']:.0%}", kind="fit"),
            cell(", ".join(row["examples"]) or "–", kind="mono"),
            cell(_drift(topic, row), kind="fit"),
            data_key=f"field {row['path']}",
        )
        for row in data["fields"]
    ]
    changed = sum(1 for row in data["fields"] if row["drift"])
    other = data["records"] - data["json"] - data["tombstones"]
    summary = f"{text.count(data['json'])} of {text.count(data['records'], 'record')} are JSON"
    if other:
        summary += f", {text.count(other)} are something else"
    return join(
        [
            _top(console, visit),
            el("div", el("span", summary), class_="bar"),
            note(f"{text.count(changed, 'field')} changed within these records.", kind="warn") if changed else None,
            table(
                ("field", "types", "in", "for example", "drift"),
                rows,
                caption=f"Fields of {topic}",
                empty="No JSON among these records.",
            ),
            note(f"Only the first {MOST_FIELDS} fields are shown.") if len(rows) >= MOST_FIELDS else None,
        ]
    )


def _top(console: Console, visit: Visit) -> Html:
    form = el(
        "form",
        field("From", "from", visit.one("from"), hint="the last ones"),
        field("Records", "n", visit.one("n"), hint=str(_COUNT)),
        el("span", el("button", "Infer", class_="primary"), class_="actions"),
        method="get",
        action=visit.path,
        class_="filter",
        data_filter=True,
    )
    return join([heading(console, visit, "Schema"), form])


def _drift(topic: str, row: dict[str, Any]) -> Html:
    if not row["drift"]:
        return el("span", "–", class_="quiet")
    at = row["drift_at"]
    where = [" from ", el("a", at, href=topic_address(topic, f"/{at}"))] if at else None
    return el("span", badge(row["drift"], "warn"), where)


def _words(console: Console, visit: Visit) -> str:
    start, count = visit.one("from"), visit.one("n")
    where = (*(("--from", start) if start else ()), *(("-n", count) if count else ()))
    return console.command("topic", "schema", visit.params["topic"], *where)


SCHEMA = Page(
    "/topics/{topic}/schema",
    title=lambda visit: f"Schema of {visit.params['topic']}",
    read=read_schema,
    render=render_schema,
    command=_words,
    on_error=_top,
)
