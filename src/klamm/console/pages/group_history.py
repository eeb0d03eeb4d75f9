"""The history of a group: its lag over time, with gaps where it was not recorded, and its rebalances."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from klamm.charts import line_chart
from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.history import with_gaps
from klamm.console.pages.frame import cell, table
from klamm.console.rebalances import Rebalance
from klamm.console.sampler import TREND_S, GroupPoint
from klamm.html import Html, el, join

__all__ = ["SPANS", "group_history", "history_html", "last_rate", "rebalances_table"]

_MINUTE_MS = 60_000
SPANS = {
    name: minutes * _MINUTE_MS for name, minutes in (("5m", 5), ("30m", 30), ("6h", 360), ("1d", 1440), ("7d", 10_080))
}
_MOST_POINTS = 1_500


def group_history(console: Console, group: str, span_ms: int) -> tuple[list[GroupPoint], list[Rebalance]]:
    """Return what was recorded before this console started, then what it has seen; some of the points, if many."""
    since_ms = time.time_ns() // 1_000_000 - span_ms
    seen = [point for point in console.sampler.group_history(group) if point.time_ms >= since_ms]
    own = [rebalance for rebalance in console.sampler.rebalances(group) if rebalance.time_ms >= since_ms]
    first_ms = seen[0].time_ms if seen else 2**63
    recorded, rebalances = console.history.read(group, span_ms)
    points = [*(point for point in recorded if point.time_ms < first_ms), *seen]
    earlier = [rebalance for rebalance in rebalances if rebalance.time_ms < first_ms]
    step = len(points) // _MOST_POINTS + 1
    shown = [point._replace(every_ms=point.every_ms * step) for point in points[::-step]]
    return shown[::-1], [*earlier, *own]


def last_rate(points: Sequence[GroupPoint]) -> tuple[float, int] | None:
    """Return how fast the group read when it last did, in records per second over a minute or less, and when it was."""
    last = next((n for n in range(len(points) - 1, 0, -1) if _passed(points[n]) > _passed(points[n - 1])), None)
    if last is None:
        return None
    first = last - 1
    while first and points[last].time_ms - points[first - 1].time_ms <= TREND_S * 1000:
        if _passed(points[first - 1]) > _passed(points[first]):  # it was moved, or a topic made again
            break
        first -= 1
    took_ms = points[last].time_ms - points[first].time_ms
    return (_passed(points[last]) - _passed(points[first])) * 1000 / max(1, took_ms), points[last].time_ms


def _passed(point: GroupPoint) -> int:
    return point.end - point.lag


def history_html(visit: Visit, data: dict[str, Any]) -> Html:
    """Return charts of the lag in records and in seconds, with rebalances marked, and links to other spans."""
    points = [
        GroupPoint(row["time_ms"], 0, row["lag"], row["lag_ms"], every_ms=row["every_ms"]) for row in data["history"]
    ]
    links = [
        el("a", name, href=visit.address(span=name), aria_current="page" if length == data["span_ms"] else None)
        for name, length in SPANS.items()
    ]
    span = next((name for name, length in SPANS.items() if length == data["span_ms"]), "")
    title = el("h2", "Lag of the last ", span if visit.is_saved else el("span", links, class_="spans"))
    if len(points) < 3:
        why = "Measuring: the history begins when the console does, or klamm serve or a console with --record did."
        return join([title, el("p", why, class_="empty")])
    lags = with_gaps(points)
    marks = [(row["time_ms"], f"rebalance: {row['cause']}") for row in data["rebalances"]]
    records = [(time_ms, count) for time_ms, count, _ in lags]
    seconds = [(time_ms, behind_s) for time_ms, _, behind_s in lags]
    key = [", with rebalances ", el("i", "marked", class_="key rebalance")] if marks else None
    figures = [
        el("figcaption", "in records", key),
        line_chart(records, label="Lag in records over time", unit="", names="lag", marks=marks),
    ]
    times = [
        el("figcaption", "in time: how old the oldest unread record is"),
        line_chart(seconds, label="Lag in seconds over time", unit="s", names="lag", marks=marks),
    ]
    return join([title, el("div", el("figure", figures), el("figure", times), class_="figures")])


def rebalances_table(rows: list[dict[str, Any]]) -> Html:
    """Return a timeline of rebalances, the latest first."""
    return table(
        ("when", "cause", "members", "paused for", "came in the meantime"),
        [
            el(
                "tr",
                cell(text.moment(row["time_ms"]), kind="fit mono"),
                cell(row["cause"]),
                cell(row["members"], kind="n"),
                cell(text.duration(row["pause_ms"]) if row["pause_ms"] else "not seen", kind="n"),
                cell(text.count(row["came"], "record"), kind="n" if row["came"] else "n quiet"),
                data_key=f"rebalance {row['time_ms']}",
            )
            for row in reversed(rows)
        ],
        caption="Rebalances",
        empty="No rebalance was seen in this time.",
        numeric="  nnn",
    )
