"""Produce a record: a new one, or one that is there, edited and sent again. Only with --allow-changes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from klamm.client.plain import plain_bytes
from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.errors import RequestError
from klamm.console.pages.frame import Page, field, note, select, topic_address
from klamm.console.pages.topic import heading, read_record
from klamm.errors import InvalidRecord
from klamm.html import Html, el, exact, join

if TYPE_CHECKING:
    from klamm.batch import Record

__all__ = ["PRODUCE", "VALUE_KINDS", "check_changes", "form_value", "produce", "value_area", "value_as_typed"]

VALUE_KINDS = (("text", "text"), ("hex", "hex"), ("none", "tombstone: no value"))
# What a form would not send back as it was (a carriage return, a NUL), or would show as something else.
_NOT_TYPED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def check_changes(console: Console) -> None:
    """Raise RequestError unless the console may change the store."""
    if not console.options.allow_changes:
        raise RequestError(
            403, "this console only reads", "start it with klamm console --allow-changes to change the store"
        )


def read_produce(console: Console, visit: Visit) -> dict[str, Any]:
    """Return the record that the form is filled with."""
    check_changes(console)
    topic = visit.params["topic"]
    partitions = len(console.store.topics.describe(topic).partitions)
    filled = {"topic": topic, "partitions": partitions, "key": "", "value": "", "kind": "text", "headers": ""}
    filled["partition"] = ""
    like = visit.one("like")
    if not like:
        return filled
    partition, _, offset = like.partition("/")
    place = Visit(visit.path, {"topic": topic, "partition": partition, "offset": offset})
    data = read_record(console, place)
    record = data["_record"]
    if data["is_masked"]:
        raise RequestError(
            403, f"{topic}/{like}: fields of it are masked, which a copy would lose", "send it with klamm send"
        )
    kind, value = value_as_typed(record.value)
    key, headers = text.utf8(record.key), "\n".join(f"{name}={text.utf8(data)}" for name, data in record.headers)
    return {
        **filled,
        "like": like,
        "key": key,
        "has_key": record.key is not None,
        "value": value,
        "kind": kind,
        "headers": headers,
        "note": "" if _is_typed(record, key, headers) else _UNLIKE,
    }


def value_as_typed(data: bytes | None) -> tuple[str, str]:
    """Return a value as the form has it, and how. The form sends back the same bytes."""
    if data is None:
        return "none", ""
    plain = plain_bytes(data)
    if isinstance(plain, str) and not _NOT_TYPED.search(plain):
        return "text", plain
    return "hex", data.hex(" ")


def value_area(label: str, value: str, rows: int) -> Html:
    """Return the field of a value."""
    area = el("textarea", exact(value), name="value", rows=rows, spellcheck="false")
    return el("label", el("span", label), area)


_UNLIKE = "Its key or headers cannot be typed as they are: the fields show what is sent in their place."


def _is_typed(record: Record, key: str, headers: str) -> bool:
    """Return whether the form sends back the key and headers of a record as they were."""
    try:
        is_same = _parse_headers(headers) == list(record.headers)
    except InvalidRecord:
        return False
    return is_same and (key.encode() or None) == record.key and not _NOT_TYPED.search(key + headers) and "\n" not in key


def render_produce(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    return join(
        [
            heading(console, visit, "Produce"),
            note(f"A copy of {data['like']}: it is appended as a new record.") if data.get("like") else None,
            note(data["note"], kind="warn") if data.get("note") else None,
            _form(visit, data),
        ]
    )


def _typed_again(console: Console, visit: Visit) -> Html:
    """Return the page with what was typed, for a record that could not be appended."""
    check_changes(console)
    topic = visit.params["topic"]
    data: dict[str, Any] = {"topic": topic, "partitions": len(console.store.topics.describe(topic).partitions)}
    data |= {name: visit.raw(name) for name in ("key", "value", "kind", "partition", "headers")}
    return join([heading(console, visit, "Produce"), _form(visit, data)])


def _form(visit: Visit, data: dict[str, Any]) -> Html:
    partitions = [("", "by the key"), *((str(number), str(number)) for number in range(min(1000, data["partitions"])))]
    headers = el("textarea", exact(data["headers"]), name="headers", rows=3, spellcheck="false")
    return el(
        "form",
        el("input", type="hidden", name="csrf", value=visit.csrf),
        el("div", field("Key", "key", data["key"], hint="none"), class_="pair"),
        value_area("Value", data["value"], 10),
        el(
            "div",
            select("Value is", "kind", data["kind"], VALUE_KINDS),
            select("Partition", "partition", data["partition"], partitions),
            class_="pair",
        ),
        el("label", el("span", "Headers, one name=value in a line"), headers),
        el("p", el("button", "Produce", class_="primary"), class_="actions"),
        method="post",
        action=topic_address(data["topic"], "/produce"),
        class_="stack",
    )


def produce(console: Console, form: Visit) -> str:
    """Append the record of a form; return the address of the record."""
    check_changes(console)
    topic = form.params["topic"]
    key = form.raw("key")
    number = form.number("partition", -1, most=2**31)
    headers = _parse_headers(form.raw("headers"))
    appended = console.store.append_many(
        topic,
        [(key.encode() or None, form_value(form), headers or None)],
        partition=None if number < 0 else number,
        serde="bytes",
    )
    partition, ranges = next(iter(appended.ranges.items()))
    return topic_address(topic, f"/{partition}/{ranges[0].start}")


def form_value(form: Visit) -> bytes | None:
    given = form.raw("value").replace("\r\n", "\n")
    kind = form.one("kind", "text")
    if kind == "none":
        return None
    if kind == "hex":
        try:
            return bytes.fromhex(given)
        except ValueError as error:
            raise InvalidRecord(f"value: is not hex: {error}", hint="expected pairs of hex digits") from None
    return given.encode()


def _parse_headers(lines: str) -> list[tuple[str, bytes]]:
    return [_header(line) for line in re.split("\r?\n", lines) if line.strip()]


def _header(line: str) -> tuple[str, bytes]:
    name, equals, value = line.partition("=")
    if not name.strip() or not equals:
        raise InvalidRecord(f"headers: {line!r} is invalid", hint="expected name=value")
    return name.strip(), value.strip().encode()


PRODUCE = Page(
    "/topics/{topic}/produce",
    title=lambda visit: f"Produce to {visit.params['topic']}",
    read=read_produce,
    render=render_produce,
    command=lambda console, visit: console.command("send", visit.params["topic"], "VALUE", "--key", "KEY"),
    is_same=False,
    on_error=_typed_again,
)
