"""Purge a topic: delete its records before a position, after a look at what would go. Only with --allow-changes."""

from __future__ import annotations

from typing import Any

from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.errors import RequestError
from klamm.console.pages.frame import Page, card, cell, field, note, select, table, topic_address
from klamm.console.pages.produce import check_changes
from klamm.console.pages.topic import chosen_partitions, heading
from klamm.html import Html, el, join
from klamm.where import Where, fixed, is_named, is_positions, offset_in

__all__ = ["PURGE", "purge"]


def _plan(console: Console, visit: Visit) -> dict[int, tuple[int, int]]:
    """Return the offsets that would be deleted, by partition: from, and up to but not including."""
    end = fixed(Where(visit.one("before"), name="before"), console.store._acquired().heads.wall_ms())
    plan = {}
    for name, log in chosen_partitions(console, visit).items():
        ends = log.ends()
        until = min(offset_in(end, log, end=ends.end, default=ends.start), ends.end)
        if until > ends.start:
            plan[name.partition] = (ends.start, until)
    return plan


def read_purge(console: Console, visit: Visit) -> dict[str, Any]:
    """Return what would be deleted, partition by partition."""
    topic, before = visit.params["topic"], visit.one("before")
    info = console.store.topics.describe(topic)
    data: dict[str, Any] = {"topic": topic, "before": before, "partition": visit.one("partition"), "plan": None}
    data["partitions"] = len(info.partitions)
    if not before:
        return data
    plan = _plan(console, visit)
    groups = [console.store.groups.describe(name) for name in console.store.groups]
    rows: list[dict[str, Any]] = []
    for number, (start, end) in plan.items():
        partition = info.partitions[number]
        unread = [
            group.name
            for group in groups
            for offset in group.offsets
            if (offset.topic, offset.partition) == (topic, number)
            and (start if offset.committed is None else offset.committed.offset) < end
        ]
        size = round((end - start) * partition.size / partition.count) if partition.count else 0
        row = {"partition": number, "start": start, "end": end, "records": end - start, "size": size}
        rows.append({**row, "left": partition.end - end, "not_read_by": sorted(unread)})
    return {
        **data,
        "plan": rows,
        "until": str(Where({number: end for number, (_, end) in plan.items()})),
        "records": sum(row["records"] for row in rows),
        "size": sum(row["size"] for row in rows),
        "left": sum(partition.count for partition in info.partitions) - sum(row["records"] for row in rows),
        "not_read_by": sorted({name for row in rows for name in row["not_read_by"]}),
    }


def render_purge(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    parts: list[Html | None] = [heading(console, visit, "Purge"), _form(console, visit)]
    if data["plan"] is not None:
        parts += [_preview(data), _table(data), _apply(console, visit, data)]
    else:
        parts.append(el("p", "Records before a position are deleted, for good; offsets go on.", class_="quiet"))
    return join(parts)


def _form(console: Console, visit: Visit) -> Html:
    count = len(console.store.topics.describe(visit.params["topic"]).partitions)
    partitions = [("", "all"), *((str(number), str(number)) for number in range(min(1000, count)))]
    return el(
        "form",
        field("Before", "before", visit.one("before"), hint="latest, 3d, 4711, a time", wide=True),
        select("Partition", "partition", visit.one("partition"), partitions),
        el("span", el("button", "Show what would go", class_="primary"), class_="actions"),
        method="get",
        action=topic_address(visit.params["topic"], "/purge"),
        class_="filter",
        data_filter=True,
    )


def _preview(data: dict[str, Any]) -> Html:
    waiting = data["not_read_by"]
    return el(
        "dl",
        card("Deleted", text.count(data["records"]), "records, for good", "warn" if data["records"] else ""),
        card("About", text.size(data["size"]), "of segments"),
        card("Left", text.count(data["left"]), "records"),
        card(
            "Not read yet by", text.count(len(waiting), "group"), ", ".join(waiting) or "none", "bad" if waiting else ""
        ),
        class_="cards",
    )


def _table(data: dict[str, Any]) -> Html:
    return table(
        ("partition", "from offset", "to offset", "records", "size", "left", "not read yet by"),
        [
            el(
                "tr",
                cell(row["partition"], kind="n"),
                cell(row["start"], kind="n"),
                cell(row["end"] - 1, kind="n"),
                cell(row["records"], kind="n"),
                cell(text.size(row["size"]), kind="n"),
                cell(row["left"], kind="n"),
                cell(", ".join(row["not_read_by"]) or "–"),
                data_key=f"purge {row['partition']}",
            )
            for row in data["plan"]
        ],
        caption="What would be deleted",
        empty="Nothing is before that.",
        numeric="nnnnnn ",
    )


def _apply(console: Console, visit: Visit, data: dict[str, Any]) -> Html | None:
    if visit.is_saved or not data["plan"]:
        return None
    if not console.options.allow_changes:
        return note("This console only reads: the command below does it, or klamm console --allow-changes.")
    return el(
        "form",
        el("input", type="hidden", name="csrf", value=visit.csrf),
        el("input", type="hidden", name="until", value=data["until"]),
        el(
            "p",
            el("button", f"Delete {text.count(data['records'], 'record')}", class_="danger", id="apply"),
            class_="actions after",
        ),
        method="post",
        action=topic_address(data["topic"], "/purge"),
    )


def purge(console: Console, form: Visit) -> str:
    """Delete what the visitor has seen, and nothing that came since: the form has the offsets."""
    check_changes(console)
    topic = form.params["topic"]
    until = Where(form.one("until"), name="until")
    if not is_positions(until):
        raise RequestError(400, f"until: {form.one('until')!r} is invalid", "look at what would be deleted first")
    ends = {
        name.partition: offset_in(until, log, end=log.ends().end, default=0)
        for name, log in chosen_partitions(console, Visit(form.path, {"topic": topic})).items()
        if is_named(until, topic, name.partition)
    }
    console.store[topic].delete_records(ends)
    return topic_address(topic)


def _words(console: Console, visit: Visit) -> str:
    """Return the command that shows the plan and asks; without one, what the topic has."""
    before, number = visit.one("before"), visit.one("partition")
    if not before:
        return console.command("topic", "show", visit.params["topic"])
    return console.command(
        "topic",
        "purge",
        visit.params["topic"],
        *("--before", before),
        *(("--partition", number) if number else ()),
    )


PURGE = Page(
    "/topics/{topic}/purge",
    title=lambda visit: f"Purge {visit.params['topic']}",
    read=read_purge,
    render=render_purge,
    command=_words,
    on_error=lambda console, visit: join([heading(console, visit, "Purge"), _form(console, visit)]),
)
