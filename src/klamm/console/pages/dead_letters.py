"""Dead letters: records that could not be handled, why, and putting them back: all, some, one with another value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from klamm.client.plain import plain_bytes
from klamm.client.work.dead_letters import target_of
from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.errors import RequestError
from klamm.console.mask import HIDDEN
from klamm.console.pages.frame import Page, bar, card, cell, field, note, select, table, topic_address
from klamm.console.pages.produce import VALUE_KINDS, check_changes, form_value, value_area, value_as_typed
from klamm.console.pages.record_html import value_html
from klamm.console.pages.topic import chosen_partitions, view_of
from klamm.errors import KlammError
from klamm.html import Html, el, join
from klamm.where import Where, offset_in

if TYPE_CHECKING:
    from klamm.client.work.dead_letters import DeadLetter

__all__ = ["DEAD_LETTERS", "LETTER", "LETTERS", "redrive", "redrive_one"]

_MOST = 200
_MOST_RATE = 1_000_000


# ---- the topics


def read_dead_letters(console: Console, visit: Visit) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for name, errors in console.letters.find().items():
        if isinstance(errors, KlammError):
            rows.append({"topic": name, "letters": None, "errors": {}, "problem": errors.message})
        else:
            counts = dict(errors.most_common())
            rows.append({"topic": name, "letters": errors.total(), "errors": counts, "problem": None})
    return {"topics": rows}


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name or 'unknown'} ({number:,})" for name, number in counts.items())


def render_dead_letters(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    rows = [
        el(
            "tr",
            cell(el("a", row["topic"], href=f"/dead-letters/{row['topic']}"), kind="name"),
            cell(text.count(row["letters"]), kind="n" if row["letters"] else "n quiet"),
            cell(row["problem"] or _counted(row["errors"]) or "–"),
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
    command=lambda console, visit: console.command("dlq", "list"),
    is_live=True,
)


# ---- one topic


def _row(console: Console, letter: DeadLetter) -> dict[str, Any]:
    """Return a letter as it may be shown."""
    record, origin = console.mask(letter.record), letter.origin
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "origin": None if origin is None else f"{origin.topic}/{origin.partition}/{origin.offset}",
        "attempts": letter.attempts,
        "error": letter.error,
        "reason": letter.reason if record is letter.record else HIDDEN,
        "key": plain_bytes(record.key),
        "value": plain_bytes(record.value),
    }


def read_letters(console: Console, visit: Visit) -> dict[str, Any]:
    """Return the letters that wait, the redrive that runs, and what one would do if that was asked for."""
    topic, error = visit.params["topic"], visit.one("error")
    letters = (letter for letter in console.store.dead_letters(topic) if error in ("", letter.error))
    shown = [_row(console, letter) for letter in islice(letters, _MOST)]
    counts = console.letters.count(topic)
    waiting = counts[error] if error else counts.total()
    running = console.redrives.of(topic)
    return {
        "topic": topic,
        "error": error,
        "errors": dict(counts.most_common()),
        "waiting": max(waiting, len(shown)) if len(shown) == _MOST else len(shown),
        "letters": shown,
        "redrive": None if running is None else running.describe(),
        "plan": _plan(console, visit) if visit.one("plan") else None,
    }


def _choice(
    console: Console, visit: Visit
) -> tuple[str | None, int | None, float | None, Callable[[DeadLetter], bool]]:
    """Return what the form says: to which topic, how many, how many a second, and which."""
    error = visit.one("error")
    ends = _ends(console, visit)

    def is_chosen(letter: DeadLetter) -> bool:
        return error in ("", letter.error) and letter.record.offset < ends.get(letter.record.partition, 0)

    limit = visit.number("limit", 0, most=10**9) or None
    rate = visit.number("rate", 0, most=_MOST_RATE) or None
    return visit.one("to") or None, limit, rate, is_chosen


def _ends(console: Console, visit: Visit) -> dict[int, int]:
    """Return where the letters end that the visitor has seen, by partition; without `until`, all there are."""
    topic, until = visit.params["topic"], visit.one("until")
    if not until:
        return {partition.number: partition.end for partition in console.store.topics.describe(topic).partitions}
    seen = Where(until, name="until")
    partitions = chosen_partitions(console, Visit(visit.path, {"topic": topic}))
    return {name.partition: offset_in(seen, log, end=log.ends().end, default=0) for name, log in partitions.items()}


def _plan(console: Console, visit: Visit) -> dict[str, Any]:
    """Return what a redrive would do: how many letters go to which topic, how long that takes, and what is in its way.

    `until` is where the letters end that were looked at: the redrive that is confirmed takes none that came since.
    """
    topic = visit.params["topic"]
    to, limit, rate, is_chosen = _choice(console, visit)
    until = _ends(console, visit)
    core = console.store._acquired()
    targets: Counter[str] = Counter()
    problem = None
    try:
        for letter in islice(filter(is_chosen, console.store.dead_letters(topic)), limit):
            targets[target_of(core, letter, to)[0]] += 1
    except KlammError as error:
        problem = str(error)
    count = targets.total()
    return {
        "to": to,
        "limit": limit,
        "per_second": rate,
        "letters": count,
        "targets": dict(targets.most_common()),
        "takes_ms": round(count * 1000 / rate) if rate else None,
        "problem": problem,
        "until": str(Where(until)),
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
                    href=f"/dead-letters/{topic}/{row['partition']}/{row['offset']}",
                ),
                kind="fit mono",
            ),
            cell(text.moment(row["timestamp"]), kind="fit mono"),
            cell(row["origin"] or "–", kind="short", title=row["origin"]),
            cell(row["attempts"], kind="n"),
            cell(el("div", el("b", row["error"] or "unknown"), f" {row['reason']}", class_="clamp"), kind="words"),
            cell(row["key"] if isinstance(row["key"], str) else "–", kind="short"),
            data_key=f"letter {row['partition']}/{row['offset']}",
        )
        for row in data["letters"]
    ]
    left = data["waiting"] - len(data["letters"])
    waiting = el("small", f"{text.count(data['waiting'], 'letter')} to be put back")
    parts: list[Html | None] = [_letters_title(visit, waiting)]
    running = data["redrive"]
    if running is not None:
        parts.append(_running(console, visit, data))
    if (data["waiting"] or data["error"]) and not visit.is_saved and (running is None or running["is_over"]):
        parts.append(_form(visit, data))
    if data["plan"] is not None:
        parts.append(_plan_html(console, visit, data))
    return join(
        [
            *parts,
            table(
                ("letter", "died", "came from", "tries", "error", "key"),
                rows,
                caption=f"Dead letters of {topic}",
                empty="No dead letters that were not put back.",
                numeric="   n  ",
            ),
            note(f"The first {len(data['letters']):,}; {left:,} more are waiting.") if left else None,
        ]
    )


def _letters_title(visit: Visit, more: Html | None = None) -> Html:
    crumbs = [el("a", "Dead letters", href="/dead-letters", class_="crumb"), el("span", "/", class_="crumb")]
    return el("h1", crumbs, visit.params["topic"], more)


def _form(visit: Visit, data: dict[str, Any]) -> Html:
    errors = [("", "any"), *((name, f"{name} ({number:,})") for name, number in data["errors"].items() if name)]
    if data["error"] and data["error"] not in data["errors"]:
        errors.append((data["error"], data["error"]))
    return el(
        "form",
        select("Died of", "error", data["error"], errors),
        field("At most", "limit", visit.one("limit"), hint="all"),
        field("To topic", "to", visit.one("to"), hint="where each came from", wide=True),
        field("Letters a second", "rate", visit.one("rate"), hint="as fast as possible"),
        el(
            "span",
            el("button", "Dry run", class_="primary", name="plan", value="1", id="plan"),
            el("button", "Show"),
            class_="actions",
        ),
        method="get",
        action=visit.path,
        class_="filter",
        data_filter=True,
    )


def _form_again(console: Console, visit: Visit) -> Html:
    errors = console.letters.count(visit.params["topic"])
    return join([_letters_title(visit), _form(visit, {"error": visit.one("error"), "errors": errors})])


def _plan_html(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    plan = data["plan"]
    targets = _counted(plan["targets"])
    at = f"{text.count(plan['per_second'])} a second" if plan["per_second"] else "as fast as possible"
    took = "at once" if plan["takes_ms"] is None else text.duration(plan["takes_ms"])
    cards = el(
        "dl",
        card("Would be put back", text.count(plan["letters"]), "letters, each once"),
        card("To", targets or "–", "with the keys and times they had"),
        card("Takes about", took, at),
        class_="cards",
    )
    return join(
        [
            cards,
            note(plan["problem"], kind="bad") if plan["problem"] else None,
            _apply(console, visit, data) if plan["letters"] and not plan["problem"] else None,
        ]
    )


def _apply(console: Console, visit: Visit, data: dict[str, Any]) -> Html | None:
    if visit.is_saved:
        return None
    if not console.options.allow_changes:
        return note("This console only reads: the command below does it, or klamm console --allow-changes.")
    given = {name: visit.one(name) for name in ("error", "limit", "to", "rate")} | {"until": data["plan"]["until"]}
    label = f"Put back {text.count(data['plan']['letters'], 'letter')}"
    return el(
        "form",
        el("input", type="hidden", name="csrf", value=visit.csrf),
        [el("input", type="hidden", name=name, value=value) for name, value in given.items() if value],
        el("p", el("button", label, class_="primary", id="redrive"), class_="actions"),
        method="post",
        action=f"/dead-letters/{data['topic']}",
    )


def _running(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    """Return how far the redrive is that a visitor has started."""
    running = data["redrive"]
    done = f"{running['done']:,} of {text.count(running['total'], 'letter')}"
    if running["is_over"]:
        if running["error"]:
            return note(f"The last redrive put back {done}, then: {running['error']}", kind="bad")
        return note(f"The last redrive {'was stopped after' if running['is_stopped'] else 'has put back'} {done}.")
    at = f", {running['per_second']:,} a second" if running["per_second"] else ""
    share = bar(running["done"] / max(1, running["total"]), "Letters that were put back")
    stop = el(
        "form",
        el("input", type="hidden", name="csrf", value=visit.csrf),
        el("input", type="hidden", name="stop", value="1"),
        el("button", "Stop", id="stop-redrive"),
        method="post",
        action=f"/dead-letters/{data['topic']}",
    )
    can_stop = console.options.allow_changes and not visit.is_saved
    return el("div", el("span", f"Putting back: {done}{at}"), share, stop if can_stop else None, class_="bar running")


def redrive(console: Console, form: Visit) -> str:
    """Put letters back, each once: those that the visitor has seen. Or stop the redrive that runs."""
    check_changes(console)
    topic = form.params["topic"]
    if form.one("stop"):
        running = console.redrives.of(topic)
        if running is not None:
            running.stop.set()
            running.is_over.wait(2)
        return f"/dead-letters/{topic}"
    to, limit, rate, is_chosen = _choice(console, form)
    total = sum(1 for _ in islice(filter(is_chosen, console.store.dead_letters(topic)), limit))
    console.redrives.start(topic, to, total, per_second=rate, limit=limit, where=is_chosen)
    return f"/dead-letters/{topic}"


def _words(console: Console, visit: Visit) -> str:
    words: list[object] = ["dlq", "redrive" if visit.one("plan") else "list", visit.params["topic"]]
    if visit.one("plan"):
        words.append("--dry-run")
    for name in ("error", "limit", "to", "rate") if visit.one("plan") else ("error",):
        words += [f"--{name}", visit.one(name)] if visit.one(name) else []
    return console.command(*words)


LETTERS = Page(
    "/dead-letters/{topic}",
    title=lambda visit: visit.params["topic"],
    read=read_letters,
    render=render_letters,
    command=_words,
    is_live=True,
    on_error=_form_again,
)


# ---- one letter


def _letter(console: Console, visit: Visit) -> DeadLetter:
    topic = visit.params["topic"]
    place = (visit.params["partition"], visit.params["offset"])
    for letter in console.store.dead_letters(topic):
        if (str(letter.record.partition), str(letter.record.offset)) == place:
            return letter
    raise RequestError(404, f"{topic}: there is no letter {'/'.join(place)}", "it may have been put back")


def read_letter(console: Console, visit: Visit) -> dict[str, Any]:
    letter = _letter(console, visit)
    record = console.mask(letter.record)
    headers = {name: plain_bytes(value) for name, value in record.headers}
    is_masked = record is not letter.record
    return {
        "topic": visit.params["topic"],
        **_row(console, letter),
        "headers": headers,
        "is_masked": is_masked,
        "_record": record,
    }


def render_letter(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    topic, record = data["topic"], data["_record"]
    name = f"{data['partition']}/{data['offset']}"
    title = [
        el("a", "Dead letters", href="/dead-letters", class_="crumb"),
        el("span", "/", class_="crumb"),
        el("a", topic, href=f"/dead-letters/{topic}", class_="crumb"),
        el("span", "/", class_="crumb"),
        name,
    ]
    origin = data["origin"]
    came_from = el("a", origin, href=topic_address(*_origin(origin))) if origin else "it does not say"
    facts = [
        ("died of", [el("b", data["error"] or "unknown"), f" {data['reason']}"]),
        ("came from", came_from),
        ("tries", text.count(data["attempts"])),
        ("died", text.moment(data["timestamp"])),
        ("key", el("span", "–" if record.key is None else text.utf8(record.key), class_="mono")),
        *((header, el("span", text.utf8(value), class_="mono")) for header, value in record.headers),
    ]
    return join(
        [
            el("h1", title),
            note("Fields of it are masked: it can be put back as it is.") if data["is_masked"] else None,
            el("dl", [join([el("dt", label), el("dd", value)]) for label, value in facts], class_="facts"),
            value_html(record.value, view_of(visit)),
            _edit_form(console, visit, data),
        ]
    )


def _origin(origin: str) -> tuple[str, str]:
    topic, partition, offset = origin.rsplit("/", 2)
    return topic, f"/{partition}/{offset}"


def _edit_form(console: Console, visit: Visit, data: dict[str, Any]) -> Html | None:
    if visit.is_saved:
        return None
    if not console.options.allow_changes:
        return note("This console only reads: klamm dlq redrive, or klamm console --allow-changes, puts it back.")
    kind, typed = value_as_typed(data["_record"].value)
    if "value" in visit.query:  # it could not be put back
        kind, typed = visit.one("kind", "text"), visit.raw("value")
    value = [
        value_area("Value that goes back", typed, 8),
        el("div", select("Value is", "kind", kind, VALUE_KINDS), _to_field(visit), class_="pair"),
    ]
    return el(
        "form",
        el("h2", "Put it back", None if data["is_masked"] else ", edited or as it is"),
        el("input", type="hidden", name="csrf", value=visit.csrf),
        el("div", _to_field(visit), class_="pair") if data["is_masked"] else value,
        el("p", el("button", "Put it back", class_="primary", id="redrive"), class_="actions"),
        method="post",
        action=visit.path,
        class_="stack",
    )


def _to_field(visit: Visit) -> Html:
    return field("To topic", "to", visit.one("to"), hint="where it came from")


def redrive_one(console: Console, form: Visit) -> str:
    """Put one letter back, with the value of the form if that has one."""
    check_changes(console)
    topic = form.params["topic"]
    letter = _letter(console, form)
    place = (letter.record.partition, letter.record.offset)
    edit = None
    if "value" in form.query:
        if console.mask(letter.record) is not letter.record:
            raise RequestError(403, f"{topic}: fields of the letter are masked, which an edited one would lose")
        value = form_value(form)
        edit = lambda _: value  # noqa: E731
    done = console.store.redrive(
        topic,
        form.one("to") or None,
        where=lambda other: (other.record.partition, other.record.offset) == place,
        edit=edit,
    )
    if not done:
        raise RequestError(409, f"{topic}: the letter {place[0]}/{place[1]} was put back while this page was open")
    return f"/dead-letters/{topic}"


LETTER = Page(
    "/dead-letters/{topic}/{partition}/{offset}",
    title=lambda visit: f"{visit.params['topic']} {visit.params['partition']}/{visit.params['offset']}",
    read=read_letter,
    render=render_letter,
    command=lambda console, visit: console.command(
        *("dlq", "list", visit.params["topic"]),
        *("--letter", f"{visit.params['partition']}/{visit.params['offset']}"),
    ),
    on_error=lambda console, visit: render_letter(console, visit, read_letter(console, visit)),
)
