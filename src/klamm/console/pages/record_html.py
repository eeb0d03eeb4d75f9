"""Records as HTML: values as folded JSON, as text, as hex."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from klamm.console import text
from klamm.console.json_fields import columns_of, flatten
from klamm.console.pages.frame import cell, table, topic_address
from klamm.html import Child, Html, el, join, visible

if TYPE_CHECKING:
    from klamm.batch import Record

__all__ = ["VIEWS", "hex_dump", "json_tree", "record_row", "records_table", "value_html"]

VIEWS = (("auto", "JSON or text"), ("json", "JSON"), ("columns", "fields"), ("text", "text"), ("hex", "hex"))
_MOST_COLUMNS = 12
_MOST_IN_COLUMN = 80  # characters
_PREVIEW = 300  # characters
_MOST_OF_KEY = 200  # bytes
_IN_LIST = 4096  # bytes of a value that a list holds; the record's own page has all
_HEX_LINE = 16
_DEEPEST = 40
_MOST_PARTS = 2_000  # of a JSON value that are folded; more are shown as text


def parse_json(data: bytes | None) -> Any:
    """Return what JSON says; ValueError if it is not an object or array, or is too deep."""
    if data is None or data[:1] not in (b"{", b"["):
        raise ValueError("not an object or array")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("too deep") from None


def json_tree(value: Any, name: Child = None, depth: int = 0, left: list[int] | None = None) -> Html:
    """Return a value of JSON whose objects and arrays can be folded. ValueError if it has too many parts."""
    left = [_MOST_PARTS] if left is None else left
    left[0] -= 1
    if left[0] < 0 or depth > _DEEPEST:
        raise ValueError("too many parts")
    label = None if name is None else [el("span", name, class_="k"), ": "]
    if isinstance(value, dict | list) and value:
        parts: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
        inside = [json_tree(part, str(key), depth + 1, left) for key, part in parts]
        what = "{…}" if isinstance(value, dict) else "[…]"
        summary = el(
            "summary", label, f"{what} {text.count(len(value), 'field' if isinstance(value, dict) else 'item')}"
        )
        return el("details", summary, el("div", inside, class_="in"), open=depth < 3)
    kind = "s" if isinstance(value, str) else "v"
    return el("div", label, el("span", json.dumps(value, ensure_ascii=False), class_=kind))


def hex_dump(data: bytes) -> str:
    """Return lines of position, 16 bytes, and what of them is ASCII."""
    lines = []
    for start in range(0, len(data), _HEX_LINE):
        part = data[start : start + _HEX_LINE]
        octets = part.hex(" ", 1)
        shown = "".join(chr(octet) if 32 <= octet < 127 else "." for octet in part)
        lines.append(f"{start:08x}  {octets:<{_HEX_LINE * 3}} {shown}")
    return "\n".join(lines)


def value_html(data: bytes | None, view: str, most: int | None = None) -> Html:
    """Return a whole value; with `most`, at most that many bytes of it."""
    if data is None:
        return el("p", "tombstone: the record has no value", class_="tombstone")
    part = data if most is None else data[:most]
    more = (
        el("p", f"… {text.count(len(data) - len(part), 'byte')} more", class_="quiet")
        if len(part) < len(data)
        else None
    )
    if view == "hex":
        return join([el("pre", hex_dump(part), class_="hex"), more])
    if view in ("auto", "json", "columns") and more is None:
        try:
            return el("div", json_tree(parse_json(data)), class_="json")
        except ValueError:
            pass
    if view in ("auto", "columns") and not _is_text(part):
        return join([el("pre", hex_dump(part), class_="hex"), more])
    return join([el("pre", text.utf8(part)), more])


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start >= len(data) - 3 and error.reason == "unexpected end of data"
    return b"\0" not in data


def _preview(data: bytes | None, view: str) -> Child:
    if data is None:
        return el("span", "tombstone", class_="tombstone")
    if view == "hex" or (view == "auto" and not _is_text(data[:_PREVIEW])):
        return data[: _PREVIEW // 3].hex(" ") + (" …" if len(data) > _PREVIEW // 3 else "")
    shown = text.utf8(data[: 4 * _PREVIEW])
    return shown[:_PREVIEW] + (" …" if len(shown) > _PREVIEW else "")


def _key_cell(record: Record) -> Html:
    if record.key is None:
        return cell("–", kind="quiet")
    key = record.key[:_MOST_OF_KEY]
    shown = text.utf8(key) if _is_text(key) else key.hex(" ")
    return cell(shown, kind="key-cell", title=visible(shown))


def record_address(record: Record) -> str:
    return topic_address(record.topic, f"/{record.partition}/{record.offset}")


def record_row(record: Record, view: str = "auto") -> Html:
    """Return a record as a row; its value unfolds."""
    headers = [
        el("div", f"{name}: ", text.utf8(value) if value is not None else "–", class_="headers")
        for name, value in record.headers
    ]
    value = el(
        "details", el("summary", _preview(record.value, view)), value_html(record.value, view, _IN_LIST), headers
    )
    return el(
        "tr",
        cell(text.moment(record.timestamp), kind="fit quiet"),
        cell(record.partition, kind="n"),
        cell(el("a", str(record.offset), href=record_address(record)), kind="n"),
        _key_cell(record),
        cell(value, kind="value"),
        data_key=f"record {record.partition}/{record.offset}",
    )


def _columns_table(records: Sequence[Record], caption: str) -> Html | None:
    """Return the fields of JSON values as columns; None if there are none."""
    rows = [flatten(record.value) for record in records]
    columns = columns_of(rows, _MOST_COLUMNS)
    if not columns:
        return None
    body = [
        el(
            "tr",
            cell(text.moment(record.timestamp), kind="fit quiet"),
            cell(record.partition, kind="n"),
            cell(el("a", str(record.offset), href=record_address(record)), kind="n"),
            _key_cell(record),
            [cell(_short(row.get(path)), kind="field") for path in columns]
            if row is not None
            else el("td", _preview(record.value, "auto"), colspan=len(columns), class_="value"),
            data_key=f"record {record.partition}/{record.offset}",
        )
        for record, row in zip(records, rows, strict=True)
    ]
    return table(("time", "partition", "offset", "key", *columns), body, caption=caption, numeric=" nn")


def _short(value: str | None) -> Child:
    if value is None:
        return el("span", "–", class_="quiet")
    return value if len(value) <= _MOST_IN_COLUMN else f"{value[:_MOST_IN_COLUMN]} …"


def records_table(records: Sequence[Record], view: str, caption: str, empty: str) -> Html:
    if view == "columns" and (shown := _columns_table(records, caption)) is not None:
        return el("div", shown, class_="records columns")
    rows = [record_row(record, view) for record in records]
    shown = table(("time", "partition", "offset", "key", "value"), rows, caption=caption, empty=empty, numeric=" nn  ")
    return el("div", shown, class_="records")
