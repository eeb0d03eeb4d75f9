"""A Quality for people: as rows of a table, and as a page with plots.

The page is one file: a style, tables, and plots in SVG. Whatever came from the topic (its name, field names, keys) is
escaped, in text and in attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.spark.pipelines.quality_report import Quality

__all__ = ["page", "rows"]

_COLOURS = ("#3b6ea8", "#d98032", "#4f9a6b", "#b5536b", "#7d68ad", "#8a7a55", "#4aa3b5", "#9aa23c")
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
_WIDTH, _HEIGHT, _LEFT = 900, 180, 60
_WIDEST = 60
_MOST_STRIPS = 60
_MOST_KEYS = 10
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#1f2328;background:#fff;max-width:960px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em;margin-bottom:.1em;overflow-wrap:anywhere}h2{font-size:1.1em;margin:2em 0 .5em}
p{margin:.3em 0}.note{color:#59636e;font-size:.9em}
table{border-collapse:collapse;font-size:.9em}
th,td{text-align:left;padding:.25em .9em .25em 0;border-bottom:1px solid #e4e7eb;vertical-align:top}
td{overflow-wrap:anywhere}td:first-child{min-width:8em}
th{font-weight:600;color:#59636e}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.tiles{display:flex;flex-wrap:wrap;gap:.6em;margin:1em 0}
.tile{border:1px solid #d5dae0;border-radius:6px;padding:.5em .9em;min-width:7em}
.tile b{display:block;font-size:1.25em}.tile span{color:#59636e;font-size:.85em}
svg{max-width:100%;height:auto;font:11px system-ui,sans-serif}
.key{display:inline-block;margin-right:1.1em;font-size:.85em}
.key i{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.35em}
.bad{color:#b42318}.wide{overflow-x:auto}
"""


# ---- a table


def rows(quality: Quality) -> list[tuple[str, str]]:
    """Name and value, in the order of the page."""
    values, keys, found = quality.values, quality.keys, quality.json
    times = [each[name] for each in quality.partitions for name in ("first_timestamp", "last_timestamp") if each[name]]
    told = [
        ("topic", quality.topic),
        ("records", f"{quality.records:,} in {len(quality.partitions)} partitions"),
        ("from", min(times, default="-")),
        ("to", max(times, default="-")),
    ]
    for each in quality.partitions:
        span = "empty"
        if each["records"]:
            span = f"{each['records']:,} records, offsets {each['first_offset']} to {each['last_offset']}"
        told.append((f"partition {each['partition']}", span))
    told += [
        ("gaps", f"{quality.gaps['count']:,}, with {quality.gaps['missing']:,} offsets"),
        ("keys", f"{keys['distinct']:,}; {keys['repeated']:,} of them more than once; {keys['null']:,} null"),
        ("tombstones", f"{values['tombstones']:,}"),
        ("bytes of values", f"{values['total']:,}"),
    ]
    if values["max"] is not None:
        told.append(("value sizes", ", ".join(f"{name} {_number(values[name])}" for name in _SIZES)))
    shares = _percent(found["json_share"]), _percent(found["broken_share"])
    told.append(("JSON", "{} of values; {} begin like it and do not parse".format(*shares)))
    told.append(("fields", f"{quality.fields_in_all:,}"))
    for each in quality.fields:
        remarks = _remarks(each)
        if remarks:
            told.append((f"field {each['path']}", "; ".join(remarks)))
    return told


_SIZES = ("min", "p50", "p95", "p99", "max")


def _remarks(field: dict[str, Any]) -> list[str]:
    """What is odd about a field."""
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


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _percent(share: float) -> str:
    text = f"{100 * share:.1f}"
    if share and text == "0.0":
        return "under 0.1 %"
    return "over 99.9 %" if share < 1 and text == "100.0" else f"{text} %"


def _short(at: str | None) -> str:
    """A time without what says nothing: its zone is UTC all over the page."""
    text = (at or "").removesuffix("+00:00").removesuffix(":00").replace("T", " ")
    return text.removesuffix(" 00:00")


# ---- a page


def page(quality: Quality) -> str:
    """HTML."""
    name = escape(quality.topic)
    since = f"records since {_short(quality.since)}, " if quality.since else ""
    return "\n".join(
        [
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name}: quality</title><style>{_STYLE}</style></head><body>",
            f'<h1>{name}</h1><p class="note">{escape(quality.store)}; {since}times are UTC</p>',
            _tiles(quality),
            _section("Records over time", _over_time(quality)),
            _section("Partitions", _partitions(quality)),
            _section("Gaps in offsets", _gaps(quality)),
            _section("Keys", _keys(quality)),
            _section("Value sizes", _sizes(quality)),
            _section("JSON fields", _fields(quality)),
            "</body></html>\n",
        ]
    )


def _section(title: str, *parts: str) -> str:
    return f"<h2>{title}</h2>" + "".join(parts)


def _table(head: Sequence[str], body: Iterable[Sequence[Any]], numbers: Iterable[int] = ()) -> str:
    right = set(numbers)

    def line(tag: str, cells: Sequence[Any]) -> str:
        kinds = [' class="n"' if at in right else "" for at in range(len(cells))]
        made = (f"<{tag}{kind}>{_cell(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(made)}</tr>"

    lines = [line("th", head), *(line("td", each) for each in body)]
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, int | float):
        return _number(value)
    return escape(str(value))


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _tiles(quality: Quality) -> str:
    found = quality.json
    tiles = [
        (_number(quality.records), "records", False),
        (_number(quality.gaps["missing"]), "offsets without a record", False),
        (_number(quality.keys["repeated"]), "keys more than once", False),
        (_number(quality.keys["null"]), "null keys", False),
        (_number(quality.values["tombstones"]), "tombstones", False),
        (_percent(found["json_share"]), "of values are JSON", False),
        (_percent(found["broken_share"]), "are broken JSON", found["broken"] > 0),
    ]
    made = "".join(
        f'<div class="tile"><b class="{"bad" if bad else "good"}">{escape(value)}</b><span>{escape(name)}</span></div>'
        for value, name, bad in tiles
    )
    return f'<div class="tiles">{made}</div>'


def _svg(height: int, title: str, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def _rect(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.5):.2f}" height="{height:.2f}" fill="{colour}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#59636e">{escape(text)}</text>'


def _key(colours: Iterable[tuple[str, str]]) -> str:
    made = "".join(f'<span class="key"><i style="background:{c}"></i>{escape(name)}</span>' for name, c in colours)
    return f"<p>{made}</p>"


class _Axis:
    """Where on the page a bucket is."""

    def __init__(self, quality: Quality, left: float) -> None:
        from klamm.spark.pipelines.quality_report import BUCKETS, hour_of

        self._left = left
        self._step = BUCKETS[quality.bucket]
        self._hour_of = hour_of
        hours = [hour_of(each["at"]) for each in quality.buckets]
        self._first = hours[0]
        self.ends = _short(quality.buckets[0]["at"]), _short(quality.buckets[-1]["at"])
        self.width = (_WIDTH - left) / ((hours[-1] - hours[0]) // self._step + 1)

    def x(self, at: str) -> float:
        return self._left + self.width * ((self._hour_of(at) - self._first) // self._step)

    def follows(self, before: str, after: str) -> bool:
        return self._hour_of(after) - self._hour_of(before) == self._step

    @property
    def bar(self) -> float:
        return max(self.width * 0.9, self.width - 1)


def _over_time(quality: Quality) -> str:
    if not quality.buckets:
        return _note("There are no records with a timestamp.")
    axis = _Axis(quality, _LEFT)
    most = max(each["records"] for each in quality.buckets)
    several = 1 < len(quality.partitions) <= len(_COLOURS)
    base = _HEIGHT - 22
    parts = [
        f'<line x1="{_LEFT}" y1="{base}" x2="{_WIDTH}" y2="{base}" stroke="#c3c7cc"/>',
        f'<line x1="{_LEFT}" y1="10" x2="{_WIDTH}" y2="10" stroke="#eceff2"/>',
        _text(_LEFT - 6, 14, _number(most), "end"),
        _text(_LEFT - 6, base, "0", "end"),
        _text(_LEFT, _HEIGHT - 6, axis.ends[0]),
    ]
    if len(quality.buckets) > 1:
        parts.append(_text(_WIDTH, _HEIGHT - 6, axis.ends[1], "end"))
    for each in quality.buckets:
        y: float = base
        shares = each["partitions"] if several else {"": each["records"]}
        for number, records in shares.items():
            height = (base - 10) * records / most
            y -= height
            colour = _COLOURS[int(number) if several else 0]
            title = f"{_short(each['at'])}: {records:,} records" + (f" of partition {number}" if several else "")
            parts.append(_rect(axis.x(each["at"]), y, min(axis.bar, _WIDEST), height, colour, title))
    key = _key((f"partition {n}", _COLOURS[n]) for n in range(len(quality.partitions))) if several else ""
    article = "an" if quality.bucket == "hour" else "a"
    return _svg(_HEIGHT, "records over time", parts) + key + _note(f"Each bar is of {article} {quality.bucket}.")


def _partitions(quality: Quality) -> str:
    head = ("partition", "records", "first offset", "last offset", "from", "to", "gaps", "missing")
    body = [
        (
            str(each["partition"]),
            each["records"],
            each["first_offset"],
            each["last_offset"],
            _short(each["first_timestamp"]) or None,
            _short(each["last_timestamp"]) or None,
            each["gaps"],
            each["missing"],
        )
        for each in quality.partitions
    ]
    return _table(head, body, (1, 2, 3, 6, 7))


def _gaps(quality: Quality) -> str:
    gaps = quality.gaps
    if not gaps["count"]:
        return _note("None: every offset from the first to the last has its record.")
    body = [
        (str(each["partition"]), each["start"], each["end"] - 1, each["end"] - each["start"])
        for each in gaps["largest"]
    ]
    said = f"{gaps['count']:,} gaps with {gaps['missing']:,} offsets: compacted, aborted, or markers of transactions."
    more = " The largest:" if gaps["count"] > len(body) else ""
    return _note(said + more) + _table(("partition", "from", "to", "offsets"), body, (1, 2, 3))


def _keys(quality: Quality) -> str:
    keys = quality.keys
    said = (
        f"{keys['distinct']:,} keys, {keys['repeated']:,} of them in several records; {keys['null']:,} records without."
    )
    if not keys["most"]:
        return _note(said)
    most = keys["most"][0]["records"]
    parts = []
    listed = keys["most"][:_MOST_KEYS]
    for number, each in enumerate(listed):
        y = 20 * number
        width = (_WIDTH - 330) * each["records"] / most
        shown = each["key"] if len(each["key"]) <= 36 else each["key"][:35] + "…"
        parts += [
            _text(240, y + 14, shown, "end"),
            _rect(250, y + 3, width, 14, _COLOURS[0], f"{each['key']}: {each['records']:,} records"),
            _text(256 + width, y + 14, _number(each["records"])),
        ]
    return _note(said) + _svg(20 * len(listed), "the most frequent keys", parts)


def _sizes(quality: Quality) -> str:
    values = quality.values
    if values["max"] is None:
        return _note("There are no values.")
    most = values["max"] or 1
    parts = []
    for number, name in enumerate(_SIZES):
        y, width = 20 * number, (_WIDTH - 180) * values[name] / most
        parts += [
            _text(50, y + 14, name, "end"),
            _rect(_LEFT, y + 3, width, 14, _COLOURS[2], f"{name}: {_number(values[name])} bytes"),
            _text(_LEFT + 6 + width, y + 14, f"{_number(values[name])} bytes"),
        ]
    said = f"{values['total']:,} bytes in all; {values['tombstones']:,} tombstones."
    return _note(said) + _svg(20 * len(_SIZES), "value sizes", parts)


def _fields(quality: Quality) -> str:
    found = quality.json
    said = (
        f"Of {found['values']:,} values, {found['json']:,} are JSON, {found['broken']:,} begin like it and do not "
        f"parse, {found['other']:,} are something else."
    )
    if not quality.fields:
        return _note(said)
    if quality.fields_in_all > len(quality.fields):
        said += f" There are {quality.fields_in_all:,} fields; these are the most frequent."
    body = [
        (
            each["path"],
            each["records"],
            ", ".join(f"{name} {records:,}" for name, records in each["types"].items()),
            "; ".join(_remarks(each)),
        )
        for each in quality.fields
    ]
    return _note(said) + _strips(quality) + _table(("field", "records", "types", "remarks"), body, (1,))


def _stretches(field: dict[str, Any], axis: _Axis) -> list[tuple[str, str, list[str]]]:
    """First and last of buckets that follow on, in which it has the same types."""
    found: list[tuple[str, str, list[str]]] = []
    for each in field["by_bucket"]:
        types = [name for name in each["types"] if name != "null"] or ["null"]
        if found and found[-1][2] == types and axis.follows(found[-1][1], each["at"]):
            found[-1] = found[-1][0], each["at"], types
        else:
            found.append((each["at"], each["at"], types))
    return found


def _strips(quality: Quality) -> str:
    """A line for each field: when it was there, in the colour of its type."""
    if not quality.buckets:
        return ""
    left = 200
    axis = _Axis(quality, left)
    parts = []
    fields = quality.fields[:_MOST_STRIPS]
    for number, field in enumerate(fields):
        y = 18 * number
        shown = field["path"] if len(field["path"]) <= 30 else field["path"][:29] + "…"
        parts.append(_text(left - 8, y + 13, shown, "end"))
        for first, last, types in _stretches(field, axis):
            colour = _TYPES[types[0]] if len(types) == 1 else _SEVERAL
            when = _short(first) if first == last else f"{_short(first)} to {_short(last)}"
            width = axis.x(last) - axis.x(first) + axis.bar
            parts.append(_rect(axis.x(first), y + 3, width, 12, colour, f"{field['path']}, {when}: {', '.join(types)}"))
    height = 18 * len(fields) + 20
    parts.append(_text(left, height - 5, axis.ends[0]))
    if len(quality.buckets) > 1:
        parts.append(_text(_WIDTH, height - 5, axis.ends[1], "end"))
    used = {name for field in fields for name in field["types"]}
    colours = [(name, colour) for name, colour in _TYPES.items() if name in used]
    if any(len(set(each["types"]) - {"null"}) > 1 for field in fields for each in field["by_bucket"]):
        colours.append(("several types", _SEVERAL))
    return _svg(height, "fields over time", parts) + _key(colours)
