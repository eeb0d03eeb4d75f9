"""HTML, element by element. Whatever is not Html already is escaped: a record's value is hostile input.

    el("a", "this & that", href="/topics", class_="name")    <a href="/topics" class="name">this &amp; that</a>

Attributes: `class_` is class, `data_key` is data-key; None and False leave it out, True has no value. Children: text,
numbers, Html, lists of them; None is nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import TypeAlias

__all__ = ["Child", "Html", "el", "join", "visible"]


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"

_EMPTY = frozenset({"input", "br", "link", "meta", "hr", "img"})
# Control characters, and those that reorder text or take no space: they would show something else than what is there.
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)


def el(tag: str, /, *children: Child, **attributes: str | float | bool | None) -> Html:
    """Return an element."""
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    return Html(f"<{tag}{given}>") if tag in _EMPTY else Html(f"<{tag}{given}>{join(children)}</{tag}>")


def join(children: Iterable[Child]) -> Html:
    """Return the children, one behind the other."""
    return Html("".join(map(_text, children)))


def visible(text: str) -> str:
    """Return text with control and direction characters spelled out, but for tabs and newlines."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return escape(visible(child))
    if isinstance(child, int | float):
        return f"{child:,}" if isinstance(child, int) else escape(str(child))
    return join(child)
