"""Charts as SVG, which need no script: of the console's pages, and of reports that are one file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from klamm.html import Html, el, join

__all__ = ["COLOURS", "WIDTH", "bars", "columns", "legend", "line_chart", "number", "rect", "rule", "svg", "text"]

COLOURS = ("#3b6ea8", "#d98032", "#4f9a6b", "#b5536b", "#7d68ad", "#8a7a55", "#4aa3b5", "#9aa23c")
WIDTH = 900
"""Of a chart of a report."""
_INK = "#59636e"
_BAR_HEIGHT = 20
_LINE_SIZE = 640, 96
_NARROWEST = 0.5  # a bar that is seen


def number(value: float) -> str:
    """Format a number for people."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


# ---- parts


def svg(parts: Iterable[Html | None], width: int, height: int, label: str, *, is_stretched: bool = False) -> Html:
    """Return a chart of `parts`. If it is stretched, it fills the box that it is in, whatever its proportions."""
    size: dict[str, str | int] = {"width": width, "height": height}
    if is_stretched:
        size = {"preserveAspectRatio": "none"}
    return el("svg", list(parts), viewBox=f"0 0 {width} {height}", role="img", aria_label=label, **size)


def rect(
    x: float, y: float, width: float, height: float, *, colour: str | None = None, title: str | None = None
) -> Html:
    return el(
        "rect",
        None if title is None else el("title", title),
        x=f"{x:.2f}",
        y=f"{y:.2f}",
        width=f"{max(width, _NARROWEST):.2f}",
        height=f"{height:.2f}",
        fill=colour,
    )


def text(x: float, y: float, words: str, anchor: str = "start", most: int | None = None) -> Html:
    """Return text at a point; of more than `most` characters, the first."""
    shown = words if most is None or len(words) <= most else words[: most - 1] + "…"
    return el("text", shown, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, fill=_INK)


def rule(x: float, y: float, until: float, colour: str) -> Html:
    """Return a horizontal line."""
    return el("line", x1=x, y1=y, x2=until, y2=y, stroke=colour)


# ---- charts


def bars(title: str, values: Sequence[tuple[str, float]], unit: str, left: int, colour: str) -> Html:
    """Return a chart with a horizontal bar for each value, its name at the left of `left`."""
    most = max((value for _, value in values), default=0) or 1
    parts = []
    for at, (name, value) in enumerate(values):
        y, width = _BAR_HEIGHT * at, (WIDTH - left - 120) * value / most
        parts += [
            text(left - 10, y + 14, name, "end", most=36),
            rect(left, y + 3, width, _BAR_HEIGHT - 6, colour=colour, title=f"{name}: {number(value)} {unit}"),
            text(left + 6 + width, y + 14, f"{number(value)} {unit}"),
        ]
    return svg(parts, WIDTH, _BAR_HEIGHT * len(values), title)


def legend(colours: Iterable[tuple[str, str]]) -> Html:
    """Return what each colour stands for, for a page that allows styles in its elements."""
    keys = (el("span", el("i", style=f"background:{colour}"), name, class_="key") for name, colour in colours)
    return el("p", list(keys))


def columns(counts: Sequence[int], width: int, height: int, label: str) -> Html:
    """Return a chart with a column for each count, one beside the other; its page has the colours."""
    most, step = max(counts, default=0) or 1, width / max(1, len(counts))
    parts = [
        rect(at * step, height - count / most * height, step - 0.6, count / most * height)
        for at, count in enumerate(counts)
        if count
    ]
    return svg(parts, width, height, label, is_stretched=True)


def line_chart(
    points: Sequence[tuple[int, float | None]],
    *,
    label: str,
    unit: str,
    second: Sequence[float | None] = (),
    names: str = "in,out",
    marks: Sequence[tuple[int, str]] = (),
) -> Html:
    """Return a line over time, which a page with script draws again with axes. None is a gap.

    `marks` are moments with what happened then, drawn across the chart.
    """
    width, height = _LINE_SIZE
    first = [value for _, value in points]
    most = max((value for value in [*first, *second] if value is not None), default=0) or 1
    begin, span = (points[0][0], max(1, points[-1][0] - points[0][0])) if points else (0, 1)

    def lines(values: Sequence[float | None], kind: str) -> Html:
        runs: list[list[str]] = [[]]
        for (time_ms, _), value in zip(points, values, strict=False):
            if value is None:
                runs.append([])
            else:
                x, y = (time_ms - begin) / span * width, height - 2 - value / most * (height - 6)
                runs[-1].append(f"{x:.1f},{y:.1f}")
        return join(el("polyline", points=" ".join(run), class_=kind) for run in runs if len(run) > 1)

    inside = [mark for mark in marks if begin <= mark[0] <= begin + span]
    drawn = svg(
        [
            *(_mark((time_ms - begin) / span * width, height, what) for time_ms, what in inside),
            lines(first, "line"),
            lines(second, "line second") if second else None,
        ],
        width,
        height,
        label,
        is_stretched=True,
    )
    series: list[list[float | None]] = [[time_ms / 1000 for time_ms, _ in points], first]
    if second:
        series.append(list(second))
    given = {"data_chart": json.dumps(series), "data_unit": unit, "data_names": names}
    if inside:
        given["data_marks"] = json.dumps([[time_ms / 1000, what] for time_ms, what in inside])
    return el("div", drawn, class_="chart", **given)


def _mark(x: float, height: int, what: str) -> Html:
    return el("line", el("title", what), x1=f"{x:.1f}", x2=f"{x:.1f}", y1=0, y2=height, class_="mark-line")
