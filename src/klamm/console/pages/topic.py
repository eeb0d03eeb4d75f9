"""A topic: its records by offset, time, key or what they hold; its partitions, segments and settings."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from klamm.client.plain import as_plain
from klamm.client.record_filter import Filter
from klamm.client.subscription import open_partitions
from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.errors import RequestError
from klamm.console.pages.frame import Page, badge, card, cell, field, note, select, table, topic_address
from klamm.console.pages.record_html import VIEWS, records_table, value_html
from klamm.console.pages.timeline import STRETCHES, read_timeline, timeline_html
from klamm.console.record_search import SearchResult, search
from klamm.console.volume import count_volume
from klamm.errors import InvalidSetting, UnknownTopic
from klamm.html import Html, el, join
from klamm.log import segment
from klamm.types import TopicPartition
from klamm.where import Where

if TYPE_CHECKING:
    from klamm.batch import Record
    from klamm.log.partition import Partition

__all__ = ["ABOUT", "RECORD", "TOPIC", "chosen_partitions", "filter_of", "heading", "view_of"]

_MOST = 500
_COUNT = 50
_FORMATS = {"jsonl": "JSONL", "csv": "CSV", "parquet": "Parquet"}
_FILTERS = ("key", "contains", "header", "where")


# ---- what was asked for


def filter_of(visit: Visit) -> Filter:
    """Return the filter that the form describes: as the options of `klamm tail`, but text for its expression."""
    headers = []
    if pair := visit.one("header"):
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidSetting(f"{pair!r} is invalid", setting="header", hint="expected name=value")
        headers.append((name.strip(), value.strip().encode()))
    where = visit.one("where")
    return Filter(
        key=visit.one("key") or None,
        contains=visit.one("contains") or None,
        headers=headers,
        where=[where] if where else (),
    )


def chosen_partitions(console: Console, visit: Visit) -> dict[TopicPartition, Partition]:
    """Return the partitions that are read: one, or all of the topic."""
    topic = visit.params["topic"]
    core = console.store._acquired()
    count = len(core.catalog.topic(topic).partitions)
    number = visit.number("partition", -1, most=2**31)
    if number >= count:
        raise UnknownTopic(f"{topic}: there is no partition {number}", hint=f"it has 0 to {count - 1}")
    numbers = range(count) if number < 0 else [number]
    return open_partitions(core, [TopicPartition(topic, each) for each in numbers])


def view_of(visit: Visit) -> str:
    view = visit.one("view", "auto")
    return view if view in dict(VIEWS) else "auto"


def _start(visit: Visit) -> Where | None:
    text = visit.one("from")
    return Where(text, name="from") if text else None


def _words(visit: Visit) -> list[object]:
    """Return the options of `klamm tail` that say what the form says.

    From a position on, it prints everything, partition by partition: only of one partition are the first the first.
    """
    words: list[object] = ["tail", visit.params["topic"]]
    if start := visit.one("from"):
        words += ["--from", start, *(("-c", visit.one("n") or _COUNT) if visit.one("partition") else ())]
    else:
        words += ["-n", visit.one("n") or _COUNT]
    for name in ("partition", *_FILTERS):
        if value := visit.one(name):
            words += ["--grep", re.escape(value)] if name == "contains" else [f"--{name}", value]
    return words


# ---- the records


def _find(console: Console, visit: Visit) -> SearchResult:
    count = visit.number("n", _COUNT, least=1, most=_MOST)
    wanted = filter_of(visit)
    resume = visit.one("at")
    return search(
        console.store._acquired(),
        chosen_partitions(console, visit),
        count,
        start=_start(visit),
        resume=Where(resume, name="at") if resume else None,
        keep=None if wanted.takes_all else wanted,
        show=console.mask or None,
    )


def read_topic(console: Console, visit: Visit) -> dict[str, Any]:
    """Return a page of records, how much was scanned for them, and the position that continues it."""
    found = _find(console, visit)
    rest = str(found.rest) if found.rest is not None else None
    return {
        "topic": visit.params["topic"],
        "records": [as_plain(record) for record in found.records],
        "scanned": found.scanned,
        "total": found.total,
        "timeline": None
        if visit.one("at")
        else read_timeline(count_volume(chosen_partitions(console, visit), STRETCHES)),
        "next": None if rest is None else visit.address(f"/api{visit.path.removeprefix('/api')}", at=rest),
        "_found": found,
    }


def heading(console: Console, visit: Visit, current: str) -> Html:
    """Return the title of a topic's pages, and the links between them."""
    topic = visit.params["topic"]
    info = console.store.topics.describe(topic)
    links = [("Records", ""), ("Schema", "/schema"), ("Heat map", "/heat"), ("Partitions and settings", "/about")]
    if console.options.allow_changes:
        links += [("Produce", "/produce"), ("Purge", "/purge")]
    tabs = [
        el(
            "a",
            label,
            href=topic_address(topic, rest),
            aria_current="page" if label == current else None,
            id="produce-link" if rest == "/produce" else None,
        )
        for label, rest in links
    ]
    facts = (
        f"{text.count(info.count, 'record')} · {text.size(info.size)} · {text.count(len(info.partitions), 'partition')}"
    )
    title = el(
        "h1",
        el("a", "Topics", href="/topics", class_="crumb"),
        el("span", "/", class_="crumb"),
        topic,
        el("small", facts),
    )
    return join([title, el("nav", tabs, class_="sub", aria_label=f"Pages of {topic}")])


def render_topic(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    found: SearchResult = data["_found"]
    is_forward = bool(visit.one("from"))
    is_filtered = any(visit.one(name) for name in _FILTERS)
    records = found.records if is_forward else list(reversed(found.records))
    more = "Next" if is_forward else "Older"
    rest = None if found.rest is None else visit.address(at=str(found.rest))
    shown = el("span", text.count(len(records), "record"), id="shown")
    scanned = (
        [" · scanned ", el("b", text.count(found.scanned), id="scanned"), f" of {text.count(found.total)}"]
        if is_filtered
        else f" of {text.count(found.total)}, {'oldest' if is_forward else 'newest'} first"
    )
    links = [
        el("span", f"{label}: pip install 'klamm[arrow]'", class_="quiet")
        if form == "parquet" and find_spec("pyarrow") is None
        else el("a", label, href=_export(visit, form))
        for form, label in _FORMATS.items()
    ]
    exports = el(
        "span", "Export ", [[" · " if number else "", link] for number, link in enumerate(links)], class_="grow"
    )
    tail = _tail_button(visit) if not visit.one("at") and not visit.is_saved else None
    summary = el(
        "div",
        tail,
        el("span", shown, scanned),
        el("button", "Stop", type="button", id="stop", hidden=True),
        None if visit.is_saved else exports,
        class_="bar",
    )
    ask = is_filtered and found.rest is not None and len(found.records) < visit.number("n", _COUNT, most=_MOST)
    onward = (
        el(
            "p",
            el(
                "a",
                "Continue the search" if ask else f"{more} records",
                href=rest,
                class_="button",
                id="more",
                data_search=bool(ask),
            ),
        )
        if rest is not None
        else None
    )
    empty = "No record that the filter takes." if is_filtered else "No records here yet."
    body = records_table(records, view_of(visit), f"Records of {visit.params['topic']}", empty)
    above = timeline_html(visit, data["timeline"]) if data["timeline"] is not None else None
    return join([heading(console, visit, "Records"), above, _form(console, visit), summary, body, onward])


def _export(visit: Visit, form: str) -> str:
    return visit.address(f"{visit.path}/export", at=None, view=None, format=form, n=None)


def _form(console: Console, visit: Visit) -> Html:
    count = len(console.store.topics.describe(visit.params["topic"]).partitions)
    partitions = [("", "all"), *((str(number), str(number)) for number in range(min(count, 1000)))]
    return el(
        "form",
        field("From", "from", visit.one("from"), hint="4711 or 15m"),
        select("Partition", "partition", visit.one("partition"), partitions),
        field("Key", "key", visit.one("key"), hint="the whole key"),
        field("Value contains", "contains", visit.one("contains"), hint="text"),
        field("Header", "header", visit.one("header"), hint="name=value"),
        field("JSON path", "where", visit.one("where"), hint="$.id = 42"),
        select("Show as", "view", view_of(visit), VIEWS),
        field("Records", "n", visit.one("n"), hint=str(_COUNT)),
        el(
            "span",
            el("button", "Search", class_="primary"),
            el("a", "Clear", href=visit.path, class_="button"),
            class_="actions",
        ),
        method="get",
        action=visit.path,
        class_="filter",
        data_filter=True,
        role="search",
        aria_label="Filter records",
    )


def _tail_button(visit: Visit) -> Html:
    """Return the button that follows the topic; it needs script, so script shows it."""
    kept = {name: value for name in ("partition", "view", *_FILTERS) if (value := visit.one(name))}
    address = f"/events{visit.path}/tail" + (f"?{urlencode(kept)}" if kept else "")
    return join(
        [
            el("button", "Follow", type="button", id="tail", data_tail=address, aria_pressed="false", hidden=True),
            el("span", id="tail-state", role="status"),
        ]
    )


TOPIC = Page(
    "/topics/{topic}",
    title=lambda visit: visit.params["topic"],
    read=read_topic,
    render=render_topic,
    command=lambda console, visit: console.command(*_words(visit)),
    on_error=lambda console, visit: join([heading(console, visit, "Records"), _form(console, visit)]),
)


# ---- one record


def _record(console: Console, visit: Visit) -> tuple[Record, bool]:
    """Return the record as it may be shown, and whether something of it is hidden."""
    topic = visit.params["topic"]
    place = {name: visit.params[name] for name in ("partition", "offset")}
    if not all(value.isascii() and value.isdigit() and len(value) < 19 for value in place.values()):
        raise RequestError(404, f"{topic}: {place['partition']}/{place['offset']} is not a partition and an offset")
    core = console.store._acquired()
    name = TopicPartition(topic, int(place["partition"]))
    partitions = open_partitions(core, [name])
    start = Where({name.partition: int(place["offset"])})
    found = search(core, partitions, 1, start=start)
    if not found.records or found.records[0].offset != int(place["offset"]):
        hint = "it may have expired, have been compacted away, or be of an open or aborted transaction"
        raise RequestError(404, f"{topic}/{name.partition}: there is no record at offset {place['offset']}", hint)
    record = console.mask(found.records[0])
    return record, record is not found.records[0]


def read_record(console: Console, visit: Visit) -> dict[str, Any]:
    record, is_masked = _record(console, visit)
    return {**as_plain(record), "is_masked": is_masked, "_record": record}


def render_record(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    record: Record = data["_record"]
    here = topic_address(record.topic)
    views = [
        el("a", label, href=visit.address(view=name), aria_current="page" if name == view_of(visit) else None)
        for name, label in VIEWS
    ]
    facts = [
        ("time", text.moment(record.timestamp)),
        ("key", el("span", "–" if record.key is None else text.utf8(record.key), class_="mono")),
        ("size", "tombstone" if record.value is None else text.count(len(record.value), "byte")),
        *(
            (name, el("span", "–" if value is None else text.utf8(value), class_="mono"))
            for name, value in record.headers
        ),
    ]
    around = urlencode({"from": record.offset, "partition": record.partition})
    near = [el("a", "Records from here", href=f"{here}?{around}", class_="button")]
    if record.key and isinstance(as_plain(record)["key"], str) and record.key.strip() == record.key:
        same = urlencode({"key": text.utf8(record.key)})
        near.append(el("a", "Records of this key", href=f"{here}?{same}", class_="button"))
    if console.options.allow_changes and not data["is_masked"]:
        again = f"{here}/produce?" + urlencode({"like": f"{record.partition}/{record.offset}"})
        near.append(el("a", "Edit and send again", href=again, class_="button", id="produce-link"))
    title = [
        el("a", "Topics", href="/topics", class_="crumb"),
        el("span", "/", class_="crumb"),
        el("a", record.topic, href=here, class_="crumb"),
        el("span", "/", class_="crumb"),
        f"{record.partition} @ {record.offset}",
    ]
    return join(
        [
            el("h1", title),
            note("Fields of it are masked.") if data["is_masked"] else None,
            el("dl", [join([el("dt", name), el("dd", value)]) for name, value in facts], class_="facts"),
            el("nav", views, class_="sub", aria_label="How the value is shown"),
            value_html(record.value, view_of(visit)),
            el("p", near, class_="actions"),
        ]
    )


RECORD = Page(
    "/topics/{topic}/{partition}/{offset}",
    title=lambda visit: f"{visit.params['topic']} {visit.params['partition']}@{visit.params['offset']}",
    read=read_record,
    render=render_record,
    command=lambda console, visit: console.command(
        "tail", visit.params["topic"], "-p", visit.params["partition"], "--from", f"@{visit.params['offset']}", "-c", 1
    ),
)


# ---- partitions, segments, settings


def read_about(console: Console, visit: Visit) -> dict[str, Any]:
    name = visit.params["topic"]
    info = console.store.topics.describe(name)
    core = console.store._acquired()
    logs = open_partitions(core, [TopicPartition(name, partition.number) for partition in info.partitions])
    return {
        "topic": name,
        "id": info.id,
        "created_ms": info.created_ms,
        "set": dict(info.settings),
        "settings": console.store[name].settings(),
        "partitions": [
            {
                "partition": partition.number,
                "start": partition.start,
                "end": partition.end,
                "leader_epoch": partition.leader_epoch,
                "size": partition.size,
                "segments": _segments(logs[TopicPartition(name, partition.number)]),
            }
            for partition in info.partitions
        ],
    }


def _segments(log: Partition) -> list[dict[str, Any]]:
    rows = []
    for base_offset in log.segments():
        path = segment.path_of(log.directory, base_offset)
        try:
            size, time_ms = os.stat(path).st_size, os.stat(path).st_mtime_ns // 1_000_000
        except FileNotFoundError:  # it is made at the first append, and may be gone by now
            size, time_ms = 0, None
        rows.append({"base_offset": base_offset, "size": size, "written_ms": time_ms})
    return rows


def render_about(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    partitions = data["partitions"]
    segments = [(row, part) for row in partitions for part in row["segments"]]
    cards = el(
        "dl",
        card("Created", text.moment(data["created_ms"])[:10], text.moment(data["created_ms"])[11:19]),
        card("Partitions", len(partitions)),
        card("Segments", len(segments), text.size(sum(part["size"] for _, part in segments))),
        card("Id", el("span", data["id"][:8], title=data["id"]), data["id"][8:]),
        class_="cards",
    )
    most = max((row["end"] - row["start"] for row in partitions), default=0) or 1
    by_partition = table(
        ("partition", "first offset", "next offset", "records", "size", "leader epoch", "segments", ""),
        [
            el(
                "tr",
                cell(
                    el("a", str(row["partition"]), href=f"{topic_address(data['topic'])}?partition={row['partition']}"),
                    kind="n",
                ),
                cell(row["start"], kind="n"),
                cell(row["end"], kind="n"),
                cell(row["end"] - row["start"], kind="n"),
                cell(text.size(row["size"]), kind="n"),
                cell(row["leader_epoch"], kind="n"),
                cell(len(row["segments"]), kind="n"),
                cell(
                    el(
                        "meter",
                        min=0,
                        max=most,
                        value=row["end"] - row["start"],
                        aria_label=f"partition {row['partition']}: share of the largest",
                    ),
                    kind="fit",
                ),
                data_key=f"partition {row['partition']}",
            )
            for row in partitions
        ],
        caption="Partitions",
        numeric="nnnnnnn ",
    )
    by_segment = table(
        ("partition", "segment", "size", "last written"),
        [
            el(
                "tr",
                cell(row["partition"], kind="n"),
                cell(f"{part['base_offset']:020}.log", kind="mono"),
                cell(text.size(part["size"]), kind="n"),
                cell(text.moment(part["written_ms"]), kind="mono fit"),
                data_key=f"segment {row['partition']}/{part['base_offset']}",
            )
            for row, part in segments[:1000]
        ],
        caption="Segments",
        numeric="n n ",
    )
    settings = table(
        ("setting", "value", ""),
        [
            el(
                "tr",
                cell(name, kind="mono"),
                cell(value, el("span", _said(name, value), class_="quiet"), kind="mono"),
                cell(badge("set", "good") if name in data["set"] else el("span", "default", class_="quiet")),
                data_key=f"setting {name}",
            )
            for name, value in data["settings"].items()
        ],
        caption="Settings",
    )
    left_out = len(segments) - 1000
    return join(
        [
            heading(console, visit, "Partitions and settings"),
            cards,
            el("h2", "Partitions"),
            by_partition,
            el("h2", "Settings"),
            settings,
            el("h2", "Segments"),
            by_segment,
            note(f"{left_out:,} more segments are left out.") if left_out > 0 else None,
        ]
    )


def _said(name: str, value: str) -> str:
    """Say what a setting means, if it is a time or a size."""
    if not value.isdigit() or len(value) > 15:
        return ""
    if name.endswith(".ms"):
        return f" = {text.duration(int(value))}" if int(value) >= 1000 else ""
    is_size = name.endswith(".bytes") and int(value) >= 1024
    return f" = {text.size(int(value))}" if is_size else ""


ABOUT = Page(
    "/topics/{topic}/about",
    title=lambda visit: f"{visit.params['topic']}: partitions and settings",
    read=read_about,
    render=render_about,
    command=lambda console, visit: console.command("topic", "show", visit.params["topic"], "--all"),
)
