"""Tables and charts (SVG) of a page without scripts. Text is escaped here, in elements and in attributes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

__all__ = ["COLOURS", "WIDTH", "bars", "legend", "note", "number", "rect", "svg", "table", "text"]

COLOURS = ("#3b6ea8", "#d98032", "#4f9a6b", "#b5536b", "#7d68ad", "#8a7a55", "#4aa3b5", "#9aa23c")
WIDTH = 900
_BAR_HEIGHT = 20


def number(value: float) -> str:
    """Format a number for people."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def note(sentence: str) -> str:
    """Return a paragraph in small print."""
    return f'<p class="note">{escape(sentence)}</p>'


def table(head: Sequence[str], body: Iterable[Sequence[Any]], numbers: Iterable[int] = ()) -> str:
    """Return a table whose columns `numbers` are aligned to the right."""
    right = set(numbers)

    def row(tag: str, cells: Sequence[Any]) -> str:
        kinds = (' class="n"' if at in right else "" for at in range(len(cells)))
        return f"<tr>{''.join(f'<{tag}{k}>{_cell(cell)}</{tag}>' for k, cell in zip(kinds, cells, strict=True))}</tr>"

    return f'<div class="wide"><table>{row("th", head)}{"".join(row("td", each) for each in body)}</table></div>'


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return number(value) if isinstance(value, int | float) else escape(str(value))


def svg(height: int, title: str, parts: Iterable[str]) -> str:
    """Return a chart of `parts`, as wide as the page."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def rect(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.5):.2f}" height="{height:.2f}" fill="{colour}">'
        f"<title>{escape(title)}</title></rect>"
    )


def text(x: float, y: float, words: str, anchor: str = "start", most: int | None = None) -> str:
    """Return text at a point; of more than `most` characters, the first."""
    shown = words if most is None or len(words) <= most else words[: most - 1] + "…"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#59636e">{escape(shown)}</text>'


def legend(colours: Iterable[tuple[str, str]]) -> str:
    """Return what each colour stands for."""
    keys = (f'<span class="key"><i style="background:{c}"></i>{escape(name)}</span>' for name, c in colours)
    return f"<p>{''.join(keys)}</p>"


def bars(title: str, values: Sequence[tuple[str, float]], unit: str, left: int, colour: str) -> str:
    """Return a chart with a horizontal bar for each value, its name at the left of `left`."""
    most = max((value for _, value in values), default=0) or 1
    parts = []
    for at, (name, value) in enumerate(values):
        y, width = _BAR_HEIGHT * at, (WIDTH - left - 120) * value / most
        parts += [
            text(left - 10, y + 14, name, "end", most=36),
            rect(left, y + 3, width, _BAR_HEIGHT - 6, colour, f"{name}: {number(value)} {unit}"),
            text(left + 6 + width, y + 14, f"{number(value)} {unit}"),
        ]
    return svg(_BAR_HEIGHT * len(values), title, parts)
