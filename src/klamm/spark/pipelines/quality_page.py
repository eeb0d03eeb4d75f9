"""A Quality for people: as rows of a table, and as a page with charts (quality_page.html).

The page is one file. Whatever came from the topic (its name, field names, keys) is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from klamm.charts import COLOURS, WIDTH, bars, legend, number, rect, rule, svg, text
from klamm.html import Html, el, join

if TYPE_CHECKING:
    from klamm.spark.pipelines.quality_report import Quality

__all__ = ["page", "rows"]

_TYPES = {
    "string": "#3b6ea8",
    "integer": "#4f9a6b",
    "number": "#9aa23c",
    "boolean": "#7d68ad",
    "object": "#8a7a55",
    "array": "#4aa3b5",
    "null": "#c3c7cc",
}
_SEVERAL = "#c0392b"
_HEIGHT, _LEFT = 180, 60
_WIDEST = 60
_MOST_STRIPS = 60
_MOST_KEYS = 10


# ---- a table


def rows(quality: Quality) -> list[tuple[str, str]]:
    """Return name and value, in the order of the page."""
    values, keys, found = quality.values, quality.keys, quality.json
    times = [each[name] for each in quality.partitions for name in ("first_timestamp", "last_timestamp") if each[name]]
    found_rows = [
        ("topic", quality.topic),
        ("records", f"{quality.records:,} in {len(quality.partitions)} partitions"),
        ("from", min(times, default="-")),
        ("to", max(times, default="-")),
    ]
    for each in quality.partitions:
        span = "empty"
        if each["records"]:
            span = f"{each['records']:,} records, offsets {each['first_offset']} to {each['last_offset']}"
        found_rows.append((f"partition {each['partition']}", span))
    found_rows += [
        ("gaps", f"{quality.gaps['count']:,}, with {quality.gaps['missing']:,} offsets"),
        ("keys", f"{keys['distinct']:,}; {keys['repeated']:,} of them more than once; {keys['null']:,} null"),
        ("tombstones", f"{values['tombstones']:,}"),
        ("bytes of values", f"{values['total']:,}"),
    ]
    if values["max"] is not None:
        found_rows.append(("value sizes", ", ".join(f"{name} {number(values[name])}" for name in _SIZES)))
    shares = _percent(found["json_share"]), _percent(found["broken_share"])
    found_rows.append(("JSON", "{} of values; {} begin like it and do not parse".format(*shares)))
    found_rows.append(("fields", f"{quality.fields_in_all:,}"))
    for each in quality.fields:
        remarks = _remarks(each)
        if remarks:
            found_rows.append((f"field {each['path']}", "; ".join(remarks)))
    return found_rows


_SIZES = ("min", "p50", "p95", "p99", "max")


def _remarks(field: dict[str, Any]) -> list[str]:
    """Return what is odd about a field."""
    found = []
    if field["appeared"]:
        found.append(f"appeared {_short(field['first_seen'])}")
    if field["vanished"]:
        found.append(f"vanished after {_short(field['last_seen'])}")
    for change in field["changes"]:
        found.append(
            f"changed {_short(change['at'])} from {' or '.join(change['before'])} to {' or '.join(change['after'])}"
        )
    if not field["changes"] and len(set(field["types"]) - {"null"}) > 1:
        found.append("has several types: " + ", ".join(name for name in field["types"] if name != "null"))
    return found


def _percent(share: float) -> str:
    text = f"{100 * share:.1f}"
    if share and text == "0.0":
        return "under 0.1 %"
    return "over 99.9 %" if share < 1 and text == "100.0" else f"{text} %"


def _short(at: str | None) -> str:
    """Return a time without its zone, which is UTC all over the page."""
    text = (at or "").removesuffix("+00:00").removesuffix(":00").replace("T", " ")
    return text.removesuffix(" 00:00")


# ---- a page


def page(quality: Quality) -> str:
    """Return the page."""
    values, keys, found = quality.values, quality.keys, quality.json
    template = Template((files(__package__) / "quality_page.html").read_text(encoding="utf-8"))
    return template.substitute(
        topic=join([quality.topic]),
        store=join([quality.store]),
        since=f"records since {_short(quality.since)}, " if quality.since else "",
        records=number(quality.records),
        missing=number(quality.gaps["missing"]),
        repeated=number(keys["repeated"]),
        null_keys=number(keys["null"]),
        tombstones=number(values["tombstones"]),
        json=_percent(found["json_share"]),
        broken=_percent(found["broken_share"]),
        broken_class="bad" if found["broken"] else "good",
        over_time=_over_time(quality),
        partitions=_partitions(quality),
        gaps=_gaps(quality),
        keys=_keys(quality),
        sizes=_sizes(quality),
        fields=_fields(quality),
    )


def _note(sentence: str) -> Html:
    """Return a paragraph in small print."""
    return el("p", sentence, class_="note")


def _table(heads: Sequence[str], body: Iterable[Sequence[Any]], numbers: Iterable[int] = ()) -> Html:
    """Return a table whose columns `numbers` are aligned to the right."""
    right = set(numbers)

    def row(tag: str, cells: Sequence[Any]) -> Html:
        return el("tr", [el(tag, _shown(cell), class_="n" if at in right else None) for at, cell in enumerate(cells)])

    return el("div", el("table", row("th", heads), [row("td", cells) for cells in body]), class_="wide")


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return number(value) if isinstance(value, int | float) else str(value)


class _Axis:
    """An axis: maps a bucket to its position on the page."""

    def __init__(self, quality: Quality, left: float) -> None:
        from klamm.spark.pipelines.quality_report import BUCKETS, hour_of

        self._left = left
        self._step = BUCKETS[quality.bucket]
        self._hour_of = hour_of
        hours = [hour_of(each["at"]) for each in quality.buckets]
        self._first = hours[0]
        self.ends = _short(quality.buckets[0]["at"]), _short(quality.buckets[-1]["at"])
        self.width = (WIDTH - left) / ((hours[-1] - hours[0]) // self._step + 1)

    def x(self, at: str) -> float:
        return self._left + self.width * ((self._hour_of(at) - self._first) // self._step)

    def follows(self, before: str, after: str) -> bool:
        return self._hour_of(after) - self._hour_of(before) == self._step

    @property
    def bar(self) -> float:
        return max(self.width * 0.9, self.width - 1)


def _over_time(quality: Quality) -> Html:
    if not quality.buckets:
        return _note("There are no records with a timestamp.")
    axis = _Axis(quality, _LEFT)
    most = max(each["records"] for each in quality.buckets)
    several = 1 < len(quality.partitions) <= len(COLOURS)
    base = _HEIGHT - 22
    parts = [
        rule(_LEFT, base, WIDTH, "#c3c7cc"),
        rule(_LEFT, 10, WIDTH, "#eceff2"),
        text(_LEFT - 6, 14, number(most), "end"),
        text(_LEFT - 6, base, "0", "end"),
        text(_LEFT, _HEIGHT - 6, axis.ends[0]),
    ]
    if len(quality.buckets) > 1:
        parts.append(text(WIDTH, _HEIGHT - 6, axis.ends[1], "end"))
    for each in quality.buckets:
        y: float = base
        shares = each["partitions"] if several else {"": each["records"]}
        for partition, records in shares.items():
            height = (base - 10) * records / most
            y -= height
            colour = COLOURS[int(partition) if several else 0]
            title = f"{_short(each['at'])}: {records:,} records" + (f" of partition {partition}" if several else "")
            parts.append(rect(axis.x(each["at"]), y, min(axis.bar, _WIDEST), height, colour=colour, title=title))
    key = legend((f"partition {n}", COLOURS[n]) for n in range(len(quality.partitions))) if several else None
    article = "an" if quality.bucket == "hour" else "a"
    drawn = svg(parts, WIDTH, _HEIGHT, "records over time")
    return join([drawn, key, _note(f"Each bar is of {article} {quality.bucket}.")])


def _partitions(quality: Quality) -> Html:
    head = ("partition", "records", "first offset", "last offset", "from", "to", "gaps", "missing")
    body = [
        (
            str(each["partition"]),
            *(each[name] for name in ("records", "first_offset", "last_offset")),
            *(_short(each[name]) or None for name in ("first_timestamp", "last_timestamp")),
            *(each[name] for name in ("gaps", "missing")),
        )
        for each in quality.partitions
    ]
    return _table(head, body, (1, 2, 3, 6, 7))


def _gaps(quality: Quality) -> Html:
    gaps = quality.gaps
    if not gaps["count"]:
        return _note("None: every offset from the first to the last has its record.")
    body = [
        (str(each["partition"]), each["start"], each["end"] - 1, each["end"] - each["start"])
        for each in gaps["largest"]
    ]
    intro = f"{gaps['count']:,} gaps with {gaps['missing']:,} offsets: compacted, aborted, or markers of transactions."
    more = " The largest:" if gaps["count"] > len(body) else ""
    return join([_note(intro + more), _table(("partition", "from", "to", "offsets"), body, (1, 2, 3))])


def _keys(quality: Quality) -> Html:
    keys = quality.keys
    intro = _note(
        f"{keys['distinct']:,} keys, {keys['repeated']:,} of them in several records; {keys['null']:,} records without."
    )
    most = [(each["key"], each["records"]) for each in keys["most"][:_MOST_KEYS]]
    return join([intro, bars("the most frequent keys", most, "records", 250, COLOURS[0]) if most else None])


def _sizes(quality: Quality) -> Html:
    values = quality.values
    if values["max"] is None:
        return _note("There are no values.")
    intro = _note(f"{values['total']:,} bytes in all; {values['tombstones']:,} tombstones.")
    sizes = [(name, values[name]) for name in _SIZES]
    return join([intro, bars("value sizes", sizes, "bytes", _LEFT, COLOURS[2])])


def _fields(quality: Quality) -> Html:
    found = quality.json
    intro = (
        f"Of {found['values']:,} values, {found['json']:,} are JSON, {found['broken']:,} begin like it and do not "
        f"parse, {found['other']:,} are something else."
    )
    if not quality.fields:
        return _note(intro)
    if quality.fields_in_all > len(quality.fields):
        intro += f" There are {quality.fields_in_all:,} fields; these are the most frequent."
    body = [
        (
            each["path"],
            each["records"],
            ", ".join(f"{name} {records:,}" for name, records in each["types"].items()),
            "; ".join(_remarks(each)),
        )
        for each in quality.fields
    ]
    return join([_note(intro), _strips(quality), _table(("field", "records", "types", "remarks"), body, (1,))])


def _stretches(field: dict[str, Any], axis: _Axis) -> list[tuple[str, str, list[str]]]:
    """Return first and last of buckets that follow on, in which the field has the same types."""
    found: list[tuple[str, str, list[str]]] = []
    for each in field["by_bucket"]:
        types = [name for name in each["types"] if name != "null"] or ["null"]
        if found and found[-1][2] == types and axis.follows(found[-1][1], each["at"]):
            found[-1] = found[-1][0], each["at"], types
        else:
            found.append((each["at"], each["at"], types))
    return found


def _strips(quality: Quality) -> Html | None:
    """Return a line for each field: when it was there, in the colour of its type."""
    if not quality.buckets:
        return None
    left = 200
    axis = _Axis(quality, left)
    parts = []
    fields = quality.fields[:_MOST_STRIPS]
    for at, field in enumerate(fields):
        y = 18 * at
        parts.append(text(left - 8, y + 13, field["path"], "end", most=30))
        for first, last, types in _stretches(field, axis):
            colour = _TYPES[types[0]] if len(types) == 1 else _SEVERAL
            when = _short(first) if first == last else f"{_short(first)} to {_short(last)}"
            width = axis.x(last) - axis.x(first) + axis.bar
            title = f"{field['path']}, {when}: {', '.join(types)}"
            parts.append(rect(axis.x(first), y + 3, width, 12, colour=colour, title=title))
    height = 18 * len(fields) + 20
    parts.append(text(left, height - 5, axis.ends[0]))
    if len(quality.buckets) > 1:
        parts.append(text(WIDTH, height - 5, axis.ends[1], "end"))
    used = {name for field in fields for name in field["types"]}
    colours = [(name, colour) for name, colour in _TYPES.items() if name in used]
    if any(len(set(each["types"]) - {"null"}) > 1 for field in fields for each in field["by_bucket"]):
        colours.append(("several types", _SEVERAL))
    return join([svg(parts, WIDTH, height, "fields over time"), legend(colours)])
