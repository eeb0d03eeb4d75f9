"""Produce a record: a new one, or one that is there, edited and sent again. Only with --allow-changes."""

from __future__ import annotations

from typing import Any

from klamm.client.plain import plain_bytes
from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.errors import RequestError
from klamm.console.html import Html, el, join
from klamm.console.pages.frame import Page, field, note, select, topic_address
from klamm.console.pages.topic import heading, read_record
from klamm.errors import InvalidRecord

__all__ = ["PRODUCE", "VALUE_KINDS", "check_changes", "form_value", "produce", "value_as_typed"]

VALUE_KINDS = (("text", "text"), ("hex", "hex"), ("none", "tombstone: no value"))


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
    return {
        **filled,
        "like": like,
        "key": text.utf8(record.key),
        "has_key": record.key is not None,
        "value": value,
        "kind": kind,
        "headers": "\n".join(f"{name}={text.utf8(data)}" for name, data in record.headers),
        "note": _unlike(record),
    }


def value_as_typed(data: bytes | None) -> tuple[str, str]:
    """Return a value as the form has it, and how."""
    if data is None:
        return "none", ""
    plain = plain_bytes(data)
    # A form turns every end of a line into \\r\\n, and its end is turned back into \\n: others are hex.
    if isinstance(plain, str) and "\r" not in plain and "\0" not in plain:
        return "text", plain
    return "hex", data.hex(" ")


def _unlike(record: Any) -> str:
    """Say what of the record the form cannot hold."""
    parts = [record.key, *(value for _, value in record.headers)]
    if any(part is not None and not isinstance(plain_bytes(part), str) for part in parts):
        return "Its key or headers are not all text: bytes that are not are shown as \\xNN, and sent as that text."
    return ""


def render_produce(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    partitions = [("", "by the key"), *((str(number), str(number)) for number in range(min(1000, data["partitions"])))]
    form = el(
        "form",
        el("input", type="hidden", name="csrf", value=visit.csrf),
        el("div", field("Key", "key", data["key"], hint="none"), class_="pair"),
        el("label", el("span", "Value"), el("textarea", data["value"], name="value", rows=10, spellcheck="false")),
        el(
            "div",
            select("Value is", "kind", data["kind"], VALUE_KINDS),
            select("Partition", "partition", "", partitions),
            class_="pair",
        ),
        el(
            "label",
            el("span", "Headers, one name=value in a line"),
            el("textarea", data["headers"], name="headers", rows=3, spellcheck="false"),
        ),
        el("p", el("button", "Produce", class_="primary"), class_="actions"),
        method="post",
        action=topic_address(data["topic"], "/produce"),
        class_="stack",
    )
    return join(
        [
            heading(console, visit, "Produce"),
            note(f"A copy of {data['like']}: it is appended as a new record.") if data.get("like") else None,
            note(data["note"], kind="warn") if data.get("note") else None,
            form,
        ]
    )


def produce(console: Console, form: Visit) -> str:
    """Append the record of a form; return the address of the record."""
    check_changes(console)
    topic = form.params["topic"]
    key = form.one("key")
    number = form.number("partition", -1, most=2**31)
    headers = [_header(line) for line in form.one("headers").splitlines() if line.strip()]
    appended = console.store.append_many(
        topic,
        [(key.encode() or None, form_value(form), headers or None)],
        partition=None if number < 0 else number,
        serde="bytes",
    )
    partition, ranges = next(iter(appended.ranges.items()))
    return topic_address(topic, f"/{partition}/{ranges[0].start}")


def form_value(form: Visit) -> bytes | None:
    given = form.query.get("value", [""])[-1].replace("\r\n", "\n")
    kind = form.one("kind", "text")
    if kind == "none":
        return None
    if kind == "hex":
        try:
            return bytes.fromhex(given)
        except ValueError as error:
            raise InvalidRecord(f"value: is not hex: {error}", hint="expected pairs of hex digits") from None
    return given.encode()


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
)
