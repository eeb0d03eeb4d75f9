"""Heat maps of a topic's records: by partition and time, and by key and partition."""

from __future__ import annotations

from collections import Counter
from typing import Any

from klamm.batch import Record
from klamm.client.plain import plain_bytes
from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.pages.frame import Page, cell, note, table, topic_address
from klamm.console.pages.topic import chosen_partitions, heading
from klamm.console.record_search import search
from klamm.console.volume import count_volume
from klamm.html import Child, Html, el, join

__all__ = ["HEAT_MAP"]

_STRETCHES = 24
_SAMPLE = 10_000
_KEYS = 25
_SHADES = 8


def read_heat_map(console: Console, visit: Visit) -> dict[str, Any]:
    """Return counts by partition and stretch of time, and of the most frequent keys of the last records."""
    partitions = chosen_partitions(console, visit)
    volume = count_volume(partitions, _STRETCHES)
    found = search(
        console.store._acquired(), partitions, _SAMPLE, show=lambda record: _without_value(console.mask(record))
    )
    keys: Counter[bytes | None] = Counter(record.key for record in found.records)
    places: Counter[tuple[bytes | None, int]] = Counter((record.key, record.partition) for record in found.records)
    return {
        "topic": visit.params["topic"],
        "edges_ms": volume.edges_ms,
        "partitions": [{"partition": number, "records": counts} for number, counts in volume.counts.items()],
        "partitions_left_out": volume.left_out,
        "sample": len(found.records),
        "distinct_keys": len(keys),
        "keys": [
            {
                "key": plain_bytes(key),
                "records": count,
                "by_partition": {number: places[key, number] for number in volume.counts if places[key, number]},
            }
            for key, count in keys.most_common(_KEYS)
        ],
    }


def _without_value(record: Record) -> Record:
    """Return what is counted of a record: thousands are held at a time, and values may be large."""
    return Record(record.topic, record.partition, record.offset, record.timestamp, record.key, None)


def _shade(count: int, most: int) -> str:
    """Return the class of a cell: h0 for nothing, up to h8 for the most."""
    return f"n heat h{0 if not count else max(1, round(count / most * _SHADES))}"


def render_heat_map(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    return join(
        [
            heading(console, visit, "Heat map"),
            el("h2", "Partitions over time"),
            el("div", _by_time(data), class_="heatmap"),
            note(f"{data['partitions_left_out']:,} more partitions are left out.")
            if data["partitions_left_out"]
            else None,
            el("h2", f"Keys of the last {text.count(data['sample'], 'record')}, by partition"),
            el("p", f"{text.count(data['distinct_keys'], 'key')}; the most frequent ones are shown.", class_="quiet"),
            _by_key(data),
        ]
    )


def _by_time(data: dict[str, Any]) -> Html:
    edges, rows = data["edges_ms"], data["partitions"]
    most = max((count for row in rows for count in row["records"]), default=0) or 1
    heads = ["partition", *_heads(edges)]
    body = [
        el(
            "tr",
            cell(el("a", str(row["partition"]), href=_partition(data, row["partition"])), kind="n"),
            [
                cell(text.count(count) if count else "", kind=_shade(count, most), title=text.moment(edges[at]))
                for at, count in enumerate(row["records"])
            ],
            data_key=f"partition {row['partition']}",
        )
        for row in rows
        if row["records"]
    ]
    return table(heads, body, caption="Records by partition and time", empty="No records.", numeric="n" * len(heads))


def _heads(edges: list[int]) -> list[Child]:
    """Return the time at which each column begins: as much of it as tells one from the other."""
    moments = [text.moment(edge) for edge in edges[:-1]]
    if len(edges) < 2 or not all(map(text.is_moment, edges)):
        return list(moments)
    if edges[1] - edges[0] < 60_000:
        first, last = (16, 19) if edges[1] - edges[0] >= 1000 else (19, 23)
        return [[moment[11:first], el("br"), moment[first:last]] for moment in moments]
    if edges[-1] - edges[0] <= 86_400_000:
        return [moment[11:16] for moment in moments]
    return [[moment[:10], el("br"), moment[11:16]] for moment in moments]


def _by_key(data: dict[str, Any]) -> Html:
    numbers = [row["partition"] for row in data["partitions"]]
    most = max((row["records"] for row in data["keys"]), default=0) or 1
    body = [
        el(
            "tr",
            cell(_key(row["key"]), kind="mono" if row["key"] is not None else "quiet"),
            cell(row["records"], kind="n"),
            cell(f"{row['records'] / max(1, data['sample']):.1%}", kind="n"),
            [
                cell(text.count(count) if count else "", kind=_shade(count, most))
                for count in (row["by_partition"].get(number, 0) for number in numbers)
            ],
            data_key=f"key {number}",
        )
        for number, row in enumerate(data["keys"])
    ]
    heads = ["key", "records", "share", *(f"p {number}" for number in numbers)]
    return table(heads, body, caption="Keys by partition", empty="No records.", numeric=" " + "n" * len(heads))


def _key(key: Any) -> str:
    if key is None:
        return "no key"
    return key[:60] if isinstance(key, str) else f"base64 {key['base64'][:40]}"


def _partition(data: dict[str, Any], number: int) -> str:
    return f"{topic_address(data['topic'])}?partition={number}"


HEAT_MAP = Page(
    "/topics/{topic}/heat",
    title=lambda visit: f"Heat map of {visit.params['topic']}",
    read=read_heat_map,
    render=render_heat_map,
    command=lambda console, visit: console.command("topic", "heat", visit.params["topic"]),
)
