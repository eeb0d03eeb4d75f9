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

__all__ = ["Child", "Html", "el", "exact", "join", "visible"]


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"

_EMPTY = frozenset({"input", "br", "link", "meta", "hr", "img"})
_DROPS_NEWLINE = frozenset({"textarea", "pre"})  # a browser drops a newline that such an element begins with
# Control characters, those that reorder text or take no space, which would show something else than what is there, and
# halves of surrogate pairs, which JSON can have and UTF-8 cannot.
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb]"
)


def el(tag: str, /, *children: Child, **attributes: str | float | bool | None) -> Html:
    """Return an element."""
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    if tag in _EMPTY:
        return Html(f"<{tag}{given}>")
    inner = join(children)
    newline = "\n" if tag in _DROPS_NEWLINE and inner.startswith("\n") else ""
    return Html(f"<{tag}{given}>{newline}{inner}</{tag}>")


def join(children: Iterable[Child]) -> Html:
    """Return the children, one behind the other."""
    return Html("".join(map(_text, children)))


def exact(text: str) -> Html:
    """Return text as it is, nothing spelled out: for fields of forms, which send it back."""
    return Html(escape(text))


def visible(text: str) -> str:
    """Return text with control and direction characters spelled out, but for tabs and newlines."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(_encodable(str(value)))}"'


def _encodable(text: str) -> str:
    """Return text that UTF-8 can encode: halves of surrogate pairs are spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


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
