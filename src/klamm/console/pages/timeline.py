"""The timeline above a topic's records: how many there are of each stretch of time, and a jump to one."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlencode

from klamm.charts import columns
from klamm.console import text
from klamm.console.context import Visit
from klamm.console.volume import Volume
from klamm.html import Html, el

__all__ = ["STRETCHES", "read_timeline", "timeline_html"]

STRETCHES = 90
_SIZE = 720, 56
_LINKS = 6
_KEPT = ("partition", "key", "contains", "header", "where", "view", "n")


def read_timeline(volume: Volume) -> dict[str, Any]:
    """Return it as plain values: stretch i is from edges_ms[i] to edges_ms[i + 1]."""
    return {"edges_ms": volume.edges_ms, "records": volume.totals, "partitions_left_out": volume.left_out}


def timeline_html(visit: Visit, data: dict[str, Any]) -> Html | None:
    """Return bars as SVG, and links to moments. With script, uPlot draws them, and dragging over them goes there."""
    edges, counts = data["edges_ms"], data["records"]
    if len(counts) < 2:
        return None
    label = f"Records over time, {text.moment(edges[0])} to {text.moment(edges[-1])}"
    drawn = columns(counts, *_SIZE, label)
    kept = {name: value for name in _KEPT if (value := visit.one(name))}
    base = f"{visit.path}?{urlencode(kept)}{'&' if kept else ''}from="
    chart = el(
        "div",
        drawn,
        class_="chart timeline",
        id="timeline",
        data_chart=json.dumps([[edge / 1000 for edge in edges[:-1]], counts]),
        data_names="records",
        data_jump=None if visit.is_saved else base,
        data_step=(edges[-1] - edges[0]) / len(counts) / 1000,
    )
    at = [edges[len(counts) * number // _LINKS] for number in range(_LINKS)]
    links = [el("a", _label(edge, edges), href=base + quote(text.moment(edge))) for edge in at if text.is_moment(edge)]
    left_out = data["partitions_left_out"]
    more = el("span", f"{left_out:,} partitions left out", class_="quiet") if left_out else None
    return el(
        "section",
        chart,
        None if visit.is_saved else el("nav", links, more, class_="moments", aria_label="Jump to a time"),
        aria_label="Timeline",
    )


def _label(edge_ms: int, edges: list[int]) -> str:
    """Format a time, as short as the span allows."""
    shown = text.moment(edge_ms)
    span_ms = edges[-1] - edges[0]
    if span_ms > 3 * 86_400_000:
        return shown[:10]
    return shown[5:16].replace("T", " ") if span_ms > 10 * 60_000 else shown[11:19]
