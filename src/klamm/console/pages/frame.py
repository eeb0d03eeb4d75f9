"""The parts that all pages share: the frame around them, tables, the command line, the notes.

A page is a pair of functions: `read` returns plain values, which are its JSON twin at /api…, and `render` makes HTML of
them. A live page is rendered again every few seconds, and what changed is sent to the browser.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from klamm.console.board import LIFE_TOPIC
from klamm.console.context import Console, Visit
from klamm.console.text import moment
from klamm.errors import KlammError
from klamm.html import Child, Html, el, join

__all__ = [
    "Page",
    "badge",
    "bar",
    "card",
    "cell",
    "field",
    "frame",
    "name_filter",
    "note",
    "select",
    "static_text",
    "table",
    "topic_address",
]

_LONG = 10  # rows
_SAVED_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CONTROLS = re.compile(r'<(form|nav|button)\b.*?</\1>|<a\b[^>]* class="button"[^>]*>.*?</a>', re.DOTALL)
_HREF = re.compile(r'<a\b([^>]*?) href="[^"]*"')
STATIC = Path(__file__).parent.parent / "static"
_NAVIGATION = (
    ("Overview", "/"),
    ("Topics", "/topics"),
    ("Groups", "/groups"),
    ("Transactions", "/transactions"),
    ("Dead letters", "/dead-letters"),
    ("Connections", "/connections"),
    ("SQL", "/sql"),
    ("Pipelines", "/pipelines"),
    ("Trouble", "/trouble"),
)
_KEYS = (
    ("/", "to the filter"),
    ("j  k", "next, previous row"),
    ("Enter", "open the row"),
    ("t", "follow a topic, or pause"),
    ("p", "produce a record"),
    ("o  g", "overview, groups"),
    ("?", "this list"),
)


@dataclass(frozen=True)
class Page:
    """A view: what it reads, and how that is shown."""

    path: str
    title: Callable[[Visit], str]
    read: Callable[[Console, Visit], dict[str, Any]]
    render: Callable[[Console, Visit, dict[str, Any]], Html]
    command: Callable[[Console, Visit], str]
    """The command line that prints the same, or the closest to it."""
    is_same: bool = True
    """Whether it prints the same."""
    is_live: bool = False
    on_error: Callable[[Console, Visit], Html] | None = None
    """What is shown above an error: the form with what was typed, so that it can be corrected."""

    @property
    def api_path(self) -> str:
        return "/api/overview" if self.path == "/" else f"/api{self.path}"

    def twin(self, console: Console, visit: Visit) -> dict[str, Any]:
        """Return what the view shows, as values of JSON."""
        return {name: value for name, value in self.read(console, visit).items() if not name.startswith("_")}


def topic_address(topic: str, rest: str = "") -> str:
    return f"/topics/{quote(topic, safe='')}{rest}"


@cache
def static_text(name: str) -> str:
    """Return one of the console's own files."""
    return (STATIC / name).read_text()


# ---- parts of pages


def table(
    heads: Sequence[Child], rows: Iterable[Html], *, caption: str, empty: str = "nothing here yet", numeric: str = ""
) -> Html:
    """Return a table. `numeric` has an "n" for each column of numbers, in order, and any other letter elsewhere."""
    body = list(rows)
    if not body:
        return el("p", empty, class_="empty")
    kinds = [mark == "n" for mark in numeric.ljust(len(heads))]
    head = [el("th", text, scope="col", class_="n" if kind else None) for text, kind in zip(heads, kinds, strict=False)]
    return el(
        "div",
        el("table", el("caption", caption, class_="hidden"), el("thead", el("tr", head)), el("tbody", body)),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def cell(*children: Child, kind: str = "", title: str | None = None) -> Html:
    return el("td", *children, class_=kind or None, title=title)


def badge(text: str, kind: str = "") -> Html:
    return el("span", text, class_=f"badge {kind}".strip())


def card(label: str, value: Child, more: Child = None, kind: str = "") -> Html:
    return el(
        "div",
        el("dt", label),
        el("dd", el("span", value, class_="figure"), el("span", more, class_="more") if more is not None else None),
        class_=f"card {kind}".strip(),
    )


def bar(share: float, label: str, *, high: float = 1.0) -> Html:
    """Return a horizontal bar, `share` of it full; above `high` it warns."""
    shown = min(1.0, max(0.0, share))
    return el("meter", f"{shown:.0%}", min=0, max=1, value=f"{shown:.3f}", high=high, optimum=0, aria_label=label)


def note(*children: Child, kind: str = "") -> Html:
    return el("p", *children, class_=f"note {kind}".strip(), role="status" if not kind else "alert")


def field(label: str, name: str, value: str, *, hint: str = "", kind: str = "text", wide: bool = False) -> Html:
    return el(
        "label",
        el("span", label),
        el("input", name=name, value=value, placeholder=hint, type=kind, autocomplete="off", spellcheck="false"),
        class_="wide" if wide else None,
    )


def select(label: str, name: str, value: str, choices: Sequence[tuple[str, str]]) -> Html:
    options = [el("option", text, value=choice, selected=choice == value) for choice, text in choices]
    return el("label", el("span", label), el("select", options, name=name))


def name_filter(visit: Visit, what: str, count: int) -> Html | None:
    """Return a form that leaves those in a list whose name has a part; none, if the list is short anyway."""
    part = visit.one("q")
    if visit.is_saved:
        return el("p", f"Names that contain {part!r}", class_="quiet") if part else None
    if count < _LONG and not part:
        return None
    return el(
        "form",
        field("Name contains", "q", part, wide=True),
        el("span", el("button", "Filter", class_="primary"), el("a", "Clear", href=visit.path, class_="button")),
        el("span", f"{count:,} {what}{'' if count == 1 else 's'}", class_="quiet"),
        method="get",
        action=visit.path,
        class_="filter",
        data_filter=True,
        role="search",
        aria_label=f"Filter {what}s",
    )


# ---- the frame


def frame(console: Console, visit: Visit, page: Page, body: Html, *, title: str, api: str, live: str | None) -> str:
    """Return the whole document."""
    if visit.is_saved:
        body = _inert(body)
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=_SAVED_POLICY) if visit.is_saved else None,
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("link", rel="icon", href="data:,"),
        el("title", f"{title} · {console.path} · Klamm"),
        _style(visit),
        None
        if visit.is_saved
        else [
            el("script", src="/static/uplot.min.js", defer=True),
            el("script", src="/static/console.js", defer=True),
        ],
    )
    content = el(
        "body",
        el("a", "Skip to content", href="#content", class_="skip"),
        _header(console, visit),
        el("main", el("div", body, id="live", data_live=live), id="content", tabindex=-1),
        _footer(page, page.command(console, visit), visit, api),
        None if visit.is_saved else _help(),
    )
    return "<!doctype html>\n" + el("html", head, content, lang="en", data_theme=visit.theme or None)


def _inert(body: Html) -> Html:
    """Return what can be read of a page: without forms, menus, buttons and links, which lead nowhere from a file.

    The body is this console's own markup, in which whatever comes from records is escaped.
    """
    shown = _CONTROLS.sub("", body)
    return Html(_HREF.sub(r"<a\1", shown))


def _style(visit: Visit) -> list[Html]:
    names = ("uplot.min.css", "console.css")
    if visit.is_saved:
        return [el("style", Html("\n".join(static_text(name) for name in names)))]
    return [el("link", rel="stylesheet", href=f"/static/{name}") for name in names]


def _header(console: Console, visit: Visit) -> Html:
    where = el("span", console.path, class_="path", title=console.store.path)
    brand = el("span", el("span", "K", class_="mark", aria_hidden="true"), el("b", "Klamm"), class_="brand")
    if visit.is_saved:
        when = moment(time.time_ns() // 1_000_000)
        return el("header", brand, where, el("span", f"saved {when} by klamm {version('klamm')}", class_="path"))
    links = [
        el("a", name, href=address, aria_current="page" if _is_at(visit.path, address) else None)
        for name, address in (*_NAVIGATION, *([("Life", "/life")] if _has_life(console) else []))
    ]
    other = {"dark": "light", "light": "dark"}.get(visit.theme, "dark")
    tools = el(
        "span",
        badge("changes allowed", "warn") if console.options.allow_changes else badge("read only"),
        el("a", "?", href="#help", class_="tool", id="help-link", aria_label="Keyboard help", title="Keyboard (?)"),
        el(
            "a",
            "◐",
            href=f"/theme/{other}?back={quote(visit.address(), safe='')}",
            class_="tool",
            id="theme-link",
            aria_label=f"Change to the {other} theme",
            title=f"{other.capitalize()} theme",
        ),
        class_="tools",
    )
    home = el("a", brand, href="/", class_="home", aria_label="Klamm: overview")
    return el("header", home, where, el("nav", links, aria_label="Views"), tools)


def _has_life(console: Console) -> bool:
    try:
        return LIFE_TOPIC in console.store.topics
    except (KlammError, OSError):  # the page says why; its frame is needed for that
        return False


def _is_at(path: str, address: str) -> bool:
    return path == address or (address != "/" and path.startswith(f"{address}/"))


def _footer(page: Page, line: str, visit: Visit, api: str) -> Html:
    label = "The same in a terminal" if page.is_same else "In a terminal"
    if visit.is_saved:
        return el("footer", el("span", label), el("code", line, class_="line"))
    return el(
        "footer",
        el("span", label, id="line-label"),
        el("code", line, class_="line", id="line", aria_labelledby="line-label", tabindex=0),
        el("button", "Copy", type="button", id="copy", hidden=True),
        el("a", "JSON", href=api),
        el("a", "Save as one file", href=_saved(visit), download=True),
    )


def _saved(visit: Visit) -> str:
    address = visit.address()
    return f"{address}{'&' if '?' in address else '?'}save=1"


def _help() -> Html:
    rows = [join([el("dt", el("kbd", keys)), el("dd", what)]) for keys, what in _KEYS]
    close = el("form", el("button", "Close"), method="dialog")
    return el(
        "section",
        el("dialog", el("h2", "Keyboard", id="help-title"), el("dl", rows), close, aria_labelledby="help-title"),
        id="help",
    )
