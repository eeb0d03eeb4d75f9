"""Consumer groups: members, assignment, lag and its history; a reset, with what it would mean first."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any

from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.errors import RequestError
from klamm.console.pages.frame import Page, badge, card, cell, field, name_filter, note, table, topic_address
from klamm.console.pages.group_history import SPANS, group_history, history_html, last_rate, rebalances_table
from klamm.console.pages.overview import forecast, groups_table
from klamm.console.pages.produce import check_changes
from klamm.console.pages.rows import group_address, group_row, read_groups
from klamm.html import Html, el, join
from klamm.where import Where

if TYPE_CHECKING:
    from klamm.types import OffsetMove

__all__ = ["GROUP", "GROUPS", "RESET", "reset"]


def _name(visit: Visit) -> str:
    name = visit.one("group")
    if not name:
        raise RequestError(400, "group: missing", "name it in the address: ?group=NAME")
    return name


def _span(visit: Visit) -> str:
    return visit.one("span") if visit.one("span") in SPANS else "30m"


# ---- all groups


def render_groups(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    rows = data["groups"]
    shown = groups_table(rows, "No group has such a name.") if visit.one("q") else groups_table(rows)
    return join([el("h1", "Groups"), name_filter(visit, "group", len(rows)), shown])


GROUPS = Page(
    "/groups",
    title=lambda visit: "Groups",
    read=lambda console, visit: {"groups": read_groups(console, visit.one("q"))},
    render=render_groups,
    command=lambda console, visit: console.command("group", "list"),
    is_live=True,
)


# ---- one group


def read_group(console: Console, visit: Visit) -> dict[str, Any]:
    group = console.store.groups.describe(_name(visit))
    span_ms = SPANS[_span(visit)]
    points, rebalances = group_history(console, group.name, span_ms)
    return {
        **group_row(console, group),
        "created_ms": group.created_ms,
        "members": [
            {
                "member": member.name or member.id,
                "id": member.id,
                "client_id": member.client_id,
                "host": member.host,
                "joined_ms": member.joined_ms,
                "partitions": [f"{topic}/{number}" for topic, number in member.assignment],
            }
            for member in group.members
        ],
        "offsets": [
            {
                "topic": offset.topic,
                "partition": offset.partition,
                "committed": None if offset.committed is None else offset.committed.offset,
                "end": offset.end,
                "lag": offset.lag,
                "lag_ms": offset.lag_ms,
            }
            for offset in group.offsets
        ],
        "span_ms": span_ms,
        "history": [
            {"time_ms": point.time_ms, "lag": point.lag, "lag_ms": point.lag_ms, "every_ms": point.every_ms}
            for point in points
        ],
        "rebalances": [rebalance._asdict() for rebalance in rebalances],
    }


def render_group(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    members, offsets = data["members"], data["offsets"]
    row = {**data, "members": len(members)}
    owners = {place: member["member"] for member in members for place in member["partitions"]}
    cards = el(
        "dl",
        card("State", badge(data["state"], "good" if data["state"] == "active" else ""), f"door: {data['door']}"),
        card("Members", len(members)),
        card("Lag", text.count(data["lag"]), "records", "warn" if data["catch_up_ms"] != 0 else ""),
        card("Lag, time", text.duration(data["lag_ms"]), "oldest unread record"),
        card("Reads", text.rate(data["out_per_s"])),
        _caught_up(row),
        class_="cards",
    )
    by_partition = table(
        ("topic", "partition", "committed", "end", "lag, records", "lag, time", "member"),
        [
            el(
                "tr",
                cell(el("a", each["topic"], href=topic_address(each["topic"])), kind="name"),
                cell(each["partition"], kind="n"),
                cell(text.count(each["committed"]), kind="n"),
                cell(each["end"], kind="n"),
                cell(each["lag"], kind="n" if each["lag"] else "n quiet"),
                cell(text.duration(each["lag_ms"]), kind="n" if each["lag"] else "n quiet"),
                cell(owners.get(f"{each['topic']}/{each['partition']}", "–"), kind="mono"),
                data_key=f"offset {each['topic']}/{each['partition']}",
            )
            for each in offsets
        ],
        caption="Partitions of the group",
        empty="It has committed nothing yet.",
        numeric=" nnnnn ",
    )
    is_at_server = data["door"] == "kafka"
    by_member = table(
        ("member", *(("client id", "host") if is_at_server else ("joined",)), "partitions"),
        [
            el(
                "tr",
                cell(each["member"], kind="mono"),
                *(
                    (cell(each["client_id"] or "–", kind="mono"), cell(each["host"] or "–", kind="fit mono"))
                    if is_at_server
                    else (cell(text.moment(each["joined_ms"]), kind="fit mono"),)
                ),
                cell(", ".join(each["partitions"]) or "none", kind="mono"),
                data_key=f"member {each['id']}",
            )
            for each in members
        ],
        caption="Members",
        empty="No members: no consumer reads with this group now."
        if data["state"] == "empty"
        else "Its members have yet to be assigned partitions.",
    )
    title = [el("a", "Groups", href="/groups", class_="crumb"), el("span", "/", class_="crumb"), data["group"]]
    move = el("a", "Reset: see what it would do", href=group_address(data["group"], "/groups/reset"), class_="button")
    return join(
        [
            el("h1", title),
            cards,
            history_html(visit, data),
            el("h2", "Partitions"),
            by_partition,
            el("h2", "Members"),
            by_member,
            el("h2", "Rebalances"),
            rebalances_table(data["rebalances"]),
            None if visit.is_saved else el("p", move, class_="after"),
        ]
    )


def _caught_up(row: dict[str, Any]) -> Html:
    """Return the card of when the group will have caught up."""
    if isinstance(row["catch_up_ms"], int) and row["catch_up_ms"]:
        at = text.moment(time.time_ns() // 1_000_000 + row["catch_up_ms"])
        return card(
            "Caught up in about", text.duration(row["catch_up_ms"]), f"at {at[11:16]} UTC, as its lag falls now"
        )
    return card("Caught up", forecast(row))


GROUP = Page(
    "/groups/show",
    title=lambda visit: f"Group {visit.one('group')}",
    read=read_group,
    render=render_group,
    command=lambda console, visit: console.command("group", "show", visit.one("group"), "--history", _span(visit)),
    is_live=True,
)


# ---- a reset, and what it would mean


def _plan(console: Console, visit: Visit) -> list[OffsetMove]:
    topic = visit.one("topic")
    to = Where(visit.one("to"), name="to")
    return console.store.groups.plan_reset(_name(visit), topic or None, to=to)


def _fingerprint(plan: list[OffsetMove]) -> str:
    return hashlib.sha256(repr([tuple(move) for move in plan]).encode()).hexdigest()


def read_reset(console: Console, visit: Visit) -> dict[str, Any]:
    """Return the plan of a reset: what would be read again or skipped, and how long that takes at the present rate."""
    group = console.store.groups.describe(_name(visit))
    rate, rate_ms = console.sampler.out_per_s(group.name), None
    if not rate:  # a group that can be moved has no members: what counts is how fast it read when it had some
        points, _ = group_history(console, group.name, SPANS["1d"])
        rate, rate_ms = last_rate(points) or (None, None)
    data: dict[str, Any] = {"group": group.name, "to": visit.one("to"), "topic": visit.one("topic"), "out_per_s": rate}
    data["rate_of_ms"] = rate_ms
    data |= {
        "state": group.state,
        "members": len(group.members),
        "topics": sorted({offset.topic for offset in group.offsets}),
        "plan": None,
    }
    if not visit.one("to"):
        return data
    plan = _plan(console, visit)
    rows = [_move(console, move) for move in plan]
    again = sum(row["again"] for row in rows)
    return {
        **data,
        "plan": rows,
        "fingerprint": _fingerprint(plan),
        "again": again,
        "again_bytes": sum(row["again_bytes"] for row in rows),
        "skipped": sum(row["skipped"] for row in rows),
        "again_ms": round(again * 1000 / rate) if rate else None,
    }


def _move(console: Console, move: OffsetMove) -> dict[str, Any]:
    info = console.store.topics.describe(move.topic).partitions[move.partition]
    before = info.start if move.before is None else max(info.start, move.before)
    again, skipped = max(0, before - move.after), max(0, move.after - before)
    return {
        "topic": move.topic,
        "partition": move.partition,
        "before": move.before,
        "after": move.after,
        "again": again,
        "again_bytes": round(again * info.size / info.count) if info.count else 0,
        "skipped": skipped,
    }


def render_reset(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    parts: list[Html | None] = [_reset_form(console, visit)]
    if data["plan"] is not None:
        parts += [_what_if(data), _plan_table(data["plan"]), _apply(console, visit, data)]
    return join(parts)


def _reset_form(console: Console, visit: Visit) -> Html:
    """Return the title and the form of a reset. UnknownGroup if there is no such group."""
    name = console.store.groups.describe(_name(visit)).name
    form = el(
        "form",
        el("input", type="hidden", name="group", value=name),
        field("To", "to", visit.one("to"), hint="earliest, latest, 4711, 2h, a time", wide=True),
        field("Topic", "topic", visit.one("topic"), hint="all it has", wide=True),
        el("span", el("button", "Show the plan", class_="primary"), class_="actions"),
        method="get",
        action="/groups/reset",
        class_="filter",
        data_filter=True,
    )
    title = [
        el("a", "Groups", href="/groups", class_="crumb"),
        el("span", "/", class_="crumb"),
        el("a", name, href=group_address(name), class_="crumb"),
        el("span", "/", class_="crumb"),
        "Reset",
    ]
    return join([el("h1", title), form])


def _what_if(data: dict[str, Any]) -> Html:
    took, rate = text.duration(data["again_ms"]), text.rate(data["out_per_s"])
    if data["again_ms"] is None:
        when = "it was not seen to read"
    elif data["rate_of_ms"] is None:
        when = f"at {rate}, as it reads now"
    else:
        when = f"at {rate}, as it read until {text.moment(data['rate_of_ms'])[:16].replace('T', ' ')}"
    return el(
        "dl",
        card("Read again", text.count(data["again"]), "records"),
        card("About", text.size(data["again_bytes"]), "of segments"),
        card("Takes about", took, when),
        card("Skipped", text.count(data["skipped"]), "records it has not read", "warn" if data["skipped"] else ""),
        class_="cards",
    )


def _plan_table(rows: list[dict[str, Any]]) -> Html:
    return table(
        ("topic", "partition", "before", "after", "read again", "skipped"),
        [
            el(
                "tr",
                cell(row["topic"], kind="name"),
                cell(row["partition"], kind="n"),
                cell(text.count(row["before"]), kind="n"),
                cell(row["after"], kind="n"),
                cell(row["again"], kind="n" if row["again"] else "n quiet"),
                cell(row["skipped"], kind="n" if row["skipped"] else "n quiet"),
                data_key=f"move {row['topic']}/{row['partition']}",
            )
            for row in rows
        ],
        caption="What the reset would do",
        empty="There is nothing that could be moved so.",
        numeric=" nnnnn",
    )


def _apply(console: Console, visit: Visit, data: dict[str, Any]) -> Html | None:
    if visit.is_saved:
        return None
    if not console.options.allow_changes:
        return note("This console only reads: the command below does it, or klamm console --allow-changes.")
    if data["state"] != "empty":
        return note("The group has members: it can be moved when they have left.", kind="warn")
    if not any(row["before"] != row["after"] for row in data["plan"]):
        return note("Nothing to do: it is there.")
    hidden = ("group", "to", "topic", "fingerprint")
    return el(
        "form",
        el("input", type="hidden", name="csrf", value=visit.csrf),
        [el("input", type="hidden", name=name, value=data[name]) for name in hidden],
        el("p", el("button", f"Move {data['group']}", class_="danger", id="apply"), class_="actions after"),
        method="post",
        action="/groups/reset",
    )


def reset(console: Console, form: Visit) -> str:
    """Carry out the plan that the visitor has seen. Refuse if it is another one by now."""
    check_changes(console)
    name = _name(form)
    plan = _plan(console, form)
    if _fingerprint(plan) != form.one("fingerprint"):
        raise RequestError(
            409, f"group {name!r}: the plan is another one by now", "look at it again, then move the group"
        )
    console.store.groups.apply(plan)
    return group_address(name)


def _reset_words(console: Console, visit: Visit) -> str:
    """Return the command that shows the plan and asks; without one, where the group is."""
    if not visit.one("to"):
        return console.command("group", "show", visit.one("group"))
    topic = ("--topic", visit.one("topic")) if visit.one("topic") else ()
    return console.command("group", "reset", visit.one("group"), "--to", visit.one("to"), *topic)


RESET = Page(
    "/groups/reset",
    title=lambda visit: f"Reset {visit.one('group')}",
    read=read_reset,
    render=render_reset,
    command=_reset_words,
    on_error=_reset_form,
)
