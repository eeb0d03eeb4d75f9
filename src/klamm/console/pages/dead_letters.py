"""Dead letters: records that could not be handled, why, and putting them back."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

from klamm.client.plain import plain_bytes
from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.html import Html, el, join
from klamm.console.pages.frame import Page, cell, field, note, table, topic_address
from klamm.console.pages.produce import check_changes

__all__ = ["DEAD_LETTERS", "LETTERS", "dead_letter_topics", "redrive"]

_SUFFIX = ".dlq"
_MOST = 200


def dead_letter_topics(console: Console) -> list[str]:
    """Return the topics that are named as handlers name theirs."""
    return [name for name in console.store.topics if name.endswith(_SUFFIX)]


# ---- the topics


def read_dead_letters(console: Console, visit: Visit) -> dict[str, Any]:
    rows = []
    for name in dead_letter_topics(console):
        errors = Counter(letter.error for letter in console.store.dead_letters(name))
        rows.append({"topic": name, "letters": errors.total(), "errors": dict(errors.most_common())})
    return {"topics": rows}


def render_dead_letters(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    rows = [
        el(
            "tr",
            cell(el("a", row["topic"], href=f"/dead-letters/{row['topic']}"), kind="name"),
            cell(row["letters"], kind="n" if row["letters"] else "n quiet"),
            cell(", ".join(f"{name or 'unknown'} ({number:,})" for name, number in row["errors"].items()) or "–"),
            data_key=f"topic {row['topic']}",
        )
        for row in data["topics"]
    ]
    return join(
        [
            el("h1", "Dead letters"),
            table(
                ("topic", "waiting", "died of"),
                rows,
                caption="Dead-letter topics",
                empty="No dead-letter topics: handlers that fail make them, as TOPIC.dlq.",
                numeric=" n ",
            ),
        ]
    )


DEAD_LETTERS = Page(
    "/dead-letters",
    title=lambda visit: "Dead letters",
    read=read_dead_letters,
    render=render_dead_letters,
    command=lambda console, visit: console.command("dlq", "list", "TOPIC"),
    is_live=True,
)


# ---- one topic


def read_letters(console: Console, visit: Visit) -> dict[str, Any]:
    topic, error = visit.params["topic"], visit.one("error")
    letters = (letter for letter in console.store.dead_letters(topic) if error in ("", letter.error))
    shown = list(islice(letters, _MOST))
    return {
        "topic": topic,
        "error": error,
        "waiting": len(shown) + sum(1 for _ in letters),
        "letters": [
            {
                "partition": letter.record.partition,
                "offset": letter.record.offset,
                "timestamp": letter.record.timestamp,
                "origin": None
                if letter.origin is None
                else f"{letter.origin.topic}/{letter.origin.partition}/{letter.origin.offset}",
                "attempts": letter.attempts,
                "error": letter.error,
                "reason": letter.reason,
                "key": plain_bytes(letter.record.key),
                "value": plain_bytes(letter.record.value),
            }
            for letter in shown
        ],
    }


def render_letters(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    topic = data["topic"]
    rows = [
        el(
            "tr",
            cell(
                el(
                    "a",
                    f"{row['partition']}/{row['offset']}",
                    href=topic_address(topic, f"/{row['partition']}/{row['offset']}"),
                ),
                kind="fit mono",
            ),
            cell(text.moment(row["timestamp"]), kind="fit mono"),
            cell(row["origin"] or "–", kind="mono"),
            cell(row["attempts"], kind="n"),
            cell(el("b", row["error"] or "unknown"), f" {row['reason']}"),
            cell(row["key"] if isinstance(row["key"], str) else "–", kind="mono"),
            data_key=f"letter {row['partition']}/{row['offset']}",
        )
        for row in data["letters"]
    ]
    title = [el("a", "Dead letters", href="/dead-letters", class_="crumb"), el("span", "/", class_="crumb"), topic]
    left = data["waiting"] - len(data["letters"])
    return join(
        [
            el("h1", title, el("small", f"{text.count(data['waiting'], 'letter')} to be put back")),
            _filter(visit, data),
            table(
                ("letter", "died", "came from", "tries", "of", "key"),
                rows,
                caption=f"Dead letters of {topic}",
                empty="No dead letters that were not put back.",
                numeric="   n  ",
            ),
            note(f"The first {len(data['letters']):,}; {left:,} more are waiting.") if left else None,
            _redrive_form(console, visit, data),
        ]
    )


def _filter(visit: Visit, data: dict[str, Any]) -> Html:
    return el(
        "form",
        field("Error", "error", data["error"], hint="ValueError", wide=True),
        el("span", el("button", "Show", class_="primary"), class_="actions"),
        method="get",
        action=visit.path,
        class_="filter",
        data_filter=True,
    )


def _redrive_form(console: Console, visit: Visit, data: dict[str, Any]) -> Html | None:
    if not data["waiting"] or visit.is_saved:
        return None
    if not console.options.allow_changes:
        return note("This console only reads: klamm dlq redrive, or klamm console --allow-changes, puts them back.")
    died = f" that died of {data['error']}" if data["error"] else ""
    return el(
        "form",
        el("input", type="hidden", name="csrf", value=visit.csrf),
        el("input", type="hidden", name="error", value=data["error"]),
        field("At most", "limit", "", hint="all"),
        field("To topic", "to", "", hint="where each came from"),
        el(
            "span",
            el("button", f"Put back {text.count(data['waiting'], 'letter')}{died}", class_="primary", id="redrive"),
            class_="actions",
        ),
        method="post",
        action=f"/dead-letters/{data['topic']}",
        class_="filter after",
    )


def redrive(console: Console, form: Visit) -> str:
    """Put letters back, each once."""
    check_changes(console)
    topic, error = form.params["topic"], form.one("error")
    limit = form.number("limit", 0, most=10**9) or None
    wanted = (lambda letter: letter.error == error) if error else None
    console.store.redrive(topic, form.one("to") or None, limit=limit, where=wanted)
    return f"/dead-letters/{topic}"


LETTERS = Page(
    "/dead-letters/{topic}",
    title=lambda visit: visit.params["topic"],
    read=read_letters,
    render=render_letters,
    command=lambda console, visit: console.command("dlq", "list", visit.params["topic"]),
)
