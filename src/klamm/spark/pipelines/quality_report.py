"""A report on a topic: how much there is and when it came, what is missing, twice or empty, what values look like.

The topic is read twice: once for everything that tasks can count (quality_scan.py), whose partial sums are added up in
SQL, by Spark or by DuckDB (quality_sums.py), and once for its keys, with a sort that spills to disk. This process gets
some hundreds of rows, whatever the topic has: there are at most 744 buckets of time (hours if that is a month; else
days, weeks, …), and of fields, gaps and keys the first, largest and most frequent are listed, and all of them counted.

Offsets without a record are gaps: what compaction removed, what was aborted, and the markers of transactions.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from klamm.errors import InvalidSetting
from klamm.spark.pipelines.quality_scan import HOUR_MS
from klamm.spark.pipelines.quality_sums import Sums, SumsHere, SumsOfSpark
from klamm.spark.pipelines.query_runner import source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from klamm.spark.pipelines.report import Progress

__all__ = ["BUCKETS", "Quality", "hour_of", "quality"]

BUCKETS = {
    "hour": 1,
    "day": 24,
    "week": 7 * 24,
    "month": 30 * 24,
    "year": 365 * 24,
    "century": 36_525 * 24,
    "millennium": 365_250 * 24,
}
"""Hours in one; a month has 30 days here."""
_MOST_BUCKETS = 744
_MOST_FIELDS = 200
_MOST_LISTED = 20


@dataclass(frozen=True)
class Quality:
    """The quality of a topic. Everything in it is ready for JSON; times are ISO 8601, UTC."""

    topic: str
    store: str
    since: str | None
    """Only records at or after this time were read."""
    records: int
    bucket: str
    """How long each of `buckets` is: hour, day, week, month (30 days), year, …"""
    partitions: list[dict[str, Any]]
    """partition, records, first_offset, last_offset, first_timestamp, last_timestamp, gaps, missing."""
    buckets: list[dict[str, Any]]
    """at, records, partitions (records by partition); only those with records, in order."""
    gaps: dict[str, Any]
    """count, missing (offsets), largest: partition, start, end (one past the last)."""
    keys: dict[str, Any]
    """null, distinct, repeated (keys that occur more than once), most: key, records."""
    values: dict[str, Any]
    """tombstones, and bytes of the others: total, min, p50, p95, p99, max."""
    json: dict[str, Any]
    """values (that are not null), json, broken, other; json_share, broken_share: from 0 to 1."""
    fields: list[dict[str, Any]]
    """path, records, types, first_seen, last_seen, appeared, vanished, changes (at, before, after), by_bucket."""
    fields_in_all: int
    """How many there are; the most frequent are in `fields`."""
    seconds: float
    engine: str = "spark"
    """spark, or local: without Spark."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as one JSON object."""
        found = dict(vars(self))
        found["seconds"] = round(self.seconds, 3)
        return found

    def rows(self) -> list[tuple[str, str]]:
        """Return the report as a table of two columns."""
        from klamm.spark.pipelines.quality_page import rows

        return rows(self)

    def to_html(self) -> str:
        """Return the report as a page that needs nothing else: no scripts, no other files."""
        from klamm.spark.pipelines.quality_page import page

        return page(self)

    def __str__(self) -> str:
        return "\n".join(f"{name:22}  {value}" for name, value in self.rows())


def quality(
    spark: SparkSession | None,
    store: str | os.PathLike[str],
    topic: str,
    *,
    since: str | int | datetime | None = None,
    progress: Progress | None = None,
) -> Quality:
    """Look through a topic, at its committed records as of now.

    `spark` None: without Spark, by DuckDB in this process, which suits a small topic (`small`).

    `since` is a time, as ISO 8601 (UTC, if it does not say), as milliseconds since 1970, or as a datetime: records at
    or after that. `progress` is called with offsets done and offsets in all, each of which is read twice.

    UnknownTopic, NotAStore and InvalidSetting are raised before a job starts.
    """
    begin = time.monotonic()
    since_ms = _milliseconds(since)
    found = source(store, topic)
    total = 2 * sum(found.ends[topic])

    def report(done: int) -> None:
        if progress is not None:
            progress(done, total)

    report(0)
    made: Sums = (
        SumsHere(found.store, topic, since_ms) if spark is None else SumsOfSpark(spark, found.store, topic, since_ms)
    )
    with closing(made) as sums:
        step = _step(sums)
        report(total // 2)
        hours = _rows_by_bucket(sums, BUCKETS[step])
        gaps, by_partition = _gaps(sums)
        fields, fields_in_all = _fields(sums, BUCKETS[step])
        sizes = _sizes(sums)
        keys = {"null": sum(row["null_keys"] for row in hours), **_keys(sums)}
        report(total)
    buckets = _buckets(hours, BUCKETS[step])
    return Quality(
        topic=topic,
        store=found.store.path,
        since=None if since_ms is None else _iso(since_ms),
        records=sum(row["records"] for row in hours),
        bucket=step,
        partitions=_partitions(hours, by_partition, len(found.ends[topic])),
        buckets=[{"at": _hour(each["at"]), "records": each["records"], "partitions": each["by"]} for each in buckets],
        gaps=gaps,
        keys=keys,
        values={"tombstones": sum(row["tombstones"] for row in hours), **sizes},
        json=_json_shares(hours),
        fields=_over_time(fields, [each["at"] for each in buckets if each["json"]]),
        fields_in_all=fields_in_all,
        seconds=time.monotonic() - begin,
        engine=made.engine,
    )


def _milliseconds(since: str | int | datetime | None) -> int | None:
    if since is None:
        return None
    try:
        if isinstance(since, str):
            since = datetime.fromisoformat(since)
        if isinstance(since, datetime):
            since = int((since if since.tzinfo else since.replace(tzinfo=UTC)).timestamp() * 1000)
        if isinstance(since, bool) or not isinstance(since, int) or since < 0:
            raise ValueError
        _iso(since)
    except (ValueError, OverflowError):
        raise InvalidSetting(
            f"since: {since!r} is not a time", hint="expected ISO 8601, as 2026-01-31T12:00, or milliseconds since 1970"
        ) from None
    return since


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds" if ms % 1000 else "seconds")


def _time(ms: int | None) -> str | None:
    try:
        return None if ms is None else _iso(ms)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"  # beyond the year 9999


# ---- from sums to the report


def _step(sums: Sums) -> str:
    """Return the shortest bucket of which there are not too many."""
    (row,) = sums.query("SELECT min(hour) AS oldest, max(hour) AS latest FROM {sums} WHERE kind = 'rows'")
    span = 0 if row["oldest"] is None else row["latest"] - row["oldest"]
    return next((name for name, hours in BUCKETS.items() if span // hours < _MOST_BUCKETS), "millennium")


def _bucket(hours: int) -> str:
    """Return the first hour of a bucket of so many, in SQL."""
    return f"CAST(floor(hour / {hours}) AS BIGINT) * {hours}"


def _hour(at: int | None) -> str | None:
    return _time(None if at is None else at * HOUR_MS)


def hour_of(at: str) -> int:
    """Return the hour since 1970 of what `_hour` made."""
    if at.endswith(" ms"):
        return int(at.removesuffix(" ms")) // HOUR_MS
    return int(datetime.fromisoformat(at).timestamp()) // 3600


def _rows_by_bucket(sums: Sums, hours: int) -> list[dict[str, Any]]:
    """Return rows by partition and bucket; `bucket` is None for records without a timestamp."""
    least, most = ("first", "oldest"), ("last", "latest")
    added = ("records", "null_keys", "tombstones", "bytes", "json", "broken")
    wanted = [f"min({name}) AS {name}" for name in least] + [f"max({name}) AS {name}" for name in most]
    wanted += [f"sum({name}) AS {name}" for name in added]
    return sums.query(
        f"SELECT partition, {_bucket(hours)} AS bucket, {', '.join(wanted)} FROM {{sums}} WHERE kind = 'rows' "
        f"GROUP BY partition, {_bucket(hours)}"
    )


def _partitions(rows: list[Any], gaps: dict[int, tuple[int, int]], count: int) -> list[dict[str, Any]]:
    found = []
    for number in range(count):
        mine = [row for row in rows if row["partition"] == number]
        oldest = [row["oldest"] for row in mine if row["oldest"] is not None]
        latest = [row["latest"] for row in mine if row["latest"] is not None]
        found.append(
            {
                "partition": number,
                "records": sum(row["records"] for row in mine),
                "first_offset": min((row["first"] for row in mine), default=None),
                "last_offset": max((row["last"] for row in mine), default=None),
                "first_timestamp": _time(min(oldest, default=None)),
                "last_timestamp": _time(max(latest, default=None)),
                "gaps": gaps.get(number, (0, 0))[0],
                "missing": gaps.get(number, (0, 0))[1],
            }
        )
    return found


def _buckets(rows: list[Any], hours: int) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["partition"]):
        if row["bucket"] is not None:
            mine = found.setdefault(row["bucket"], {"at": row["bucket"], "records": 0, "by": {}, "json": 0})
            mine["records"] += row["records"]
            mine["json"] += row["json"]
            mine["by"][str(row["partition"])] = row["records"]
    return [found[at] for at in sorted(found)]


_GAPS = """
    (SELECT * FROM (
        SELECT partition, lag(last) OVER (PARTITION BY partition ORDER BY first) AS gap_start, first AS gap_end
        FROM {sums} WHERE kind = 'run') AS runs
    WHERE gap_start < gap_end) AS gaps
"""


def _gaps(sums: Sums) -> tuple[dict[str, Any], dict[int, tuple[int, int]]]:
    """Return the gaps in all, and by partition: how many, and how many offsets are missing."""
    counted = sums.query(
        f"SELECT partition, count(*) AS gaps, sum(gap_end - gap_start) AS missing FROM {_GAPS} GROUP BY partition"
    )
    largest = sums.query(
        f"SELECT partition, gap_start, gap_end FROM {_GAPS} "
        f"ORDER BY gap_end - gap_start DESC, partition, gap_start LIMIT {_MOST_LISTED}"
    )
    found = {row["partition"]: (row["gaps"], row["missing"]) for row in counted}
    return {
        "count": sum(gaps for gaps, _ in found.values()),
        "missing": sum(missing for _, missing in found.values()),
        "largest": [
            {"partition": row["partition"], "start": row["gap_start"], "end": row["gap_end"]} for row in largest
        ],
    }, found


_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def _sizes(sums: Sums) -> dict[str, Any]:
    """Return sizes. Percentiles are interpolated between the two values next to them."""
    (row,) = sums.query(
        "SELECT sum(records) AS records, sum(bytes * records) AS total, min(bytes) AS least, max(bytes) AS most "
        "FROM {sums} WHERE kind = 'size'"
    )
    if not row["records"]:
        return {"total": 0, "min": None, "p50": None, "p95": None, "p99": None, "max": None}
    ranks = {name: share * (row["records"] - 1) for name, share in _SHARES.items()}
    wanted = {(name, whole): whole(rank) for name, rank in ranks.items() for whole in (math.floor, math.ceil)}
    picked = [f"min(CASE WHEN running_count > {rank} THEN bytes END) AS v{n}" for n, rank in enumerate(wanted.values())]
    (values,) = sums.query(
        f"SELECT {', '.join(picked)} FROM (SELECT bytes, sum(records) OVER (ORDER BY bytes) AS running_count FROM "
        "(SELECT bytes, sum(records) AS records FROM {sums} WHERE kind = 'size' GROUP BY bytes) AS sizes) AS counted"
    )
    found = dict(zip(wanted, (values[f"v{n}"] for n in range(len(wanted))), strict=True))
    shares = {}
    for name, rank in ranks.items():
        below, above = found[name, math.floor], found[name, math.ceil]
        shares[name] = float(below + (above - below) * (rank - math.floor(rank)))
    return {"total": row["total"], "min": row["least"], **shares, "max": row["most"]}


def _keys(sums: Sums) -> dict[str, Any]:
    distinct, repeated, most = sums.keys(_MOST_LISTED)
    return {
        "distinct": distinct,
        "repeated": repeated,
        "most": [{"key": _shown(key), "records": records} for key, records in most],
    }


def _shown(key: bytes) -> str:
    """Return a value as text, if that can be printed; else as hex."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    shown = text if text.isprintable() and (text or not key) else "0x" + key.hex()
    return shown if len(shown) <= 100 else shown[:100] + "…"


def _json_shares(rows: list[Any]) -> dict[str, Any]:
    values = sum(row["records"] - row["tombstones"] for row in rows)
    good, broken = sum(row["json"] for row in rows), sum(row["broken"] for row in rows)
    return {
        "values": values,
        "json": good,
        "broken": broken,
        "other": values - good - broken,
        "json_share": good / values if values else 0.0,
        "broken_share": broken / values if values else 0.0,
    }


def _fields(sums: Sums, hours: int) -> tuple[list[dict[str, Any]], int]:
    """Return path, type, bucket, records of the most frequent fields, and how many fields there are."""
    top = (
        "SELECT path, sum(records) AS in_all FROM {sums} WHERE kind = 'field' GROUP BY path "
        f"ORDER BY in_all DESC, path LIMIT {_MOST_FIELDS}"
    )
    (row,) = sums.query("SELECT count(DISTINCT path) AS paths FROM {sums} WHERE kind = 'field'")
    found = sums.query(
        f"SELECT path, type, {_bucket(hours)} AS bucket, sum(records) AS records FROM {{sums}} WHERE kind = 'field' "
        f"AND path IN (SELECT path FROM ({top}) AS top) GROUP BY path, type, {_bucket(hours)}"
    )
    return found, row["paths"]


def _over_time(rows: list[Any], with_json: list[int]) -> list[dict[str, Any]]:
    """Return when fields came, went and changed; in order of how many records have them."""
    paths: dict[str, dict[int | None, dict[str, int]]] = {}
    for row in rows:
        paths.setdefault(row["path"], {}).setdefault(row["bucket"], {})[row["type"]] = row["records"]
    found = []
    for path, buckets in paths.items():
        types: dict[str, int] = {}
        for each in buckets.values():
            for name, records in each.items():
                types[name] = types.get(name, 0) + records
        seen = sorted(at for at in buckets if at is not None)
        found.append(
            {
                "path": path,
                "records": sum(types.values()),
                "types": dict(sorted(types.items(), key=lambda pair: (-pair[1], pair[0]))),
                "first_seen": _hour(seen[0]) if seen else None,
                "last_seen": _hour(seen[-1]) if seen else None,
                "appeared": bool(seen) and seen[0] > with_json[0],
                "vanished": bool(seen) and seen[-1] < with_json[-1],
                "changes": _changes(seen, buckets),
                "by_bucket": [{"at": _hour(at), "types": dict(sorted(buckets[at].items()))} for at in seen],
            }
        )
    return sorted(found, key=lambda each: (-each["records"], each["path"]))


def _changes(seen: list[int], buckets: dict[int | None, dict[str, int]]) -> list[dict[str, Any]]:
    """Return where the types differ from where the field was seen last. A null says nothing about the type."""
    found = []
    before: list[str] = []
    for at in seen:
        after = sorted(set(buckets[at]) - {"null"})
        if after and before and after != before:
            found.append({"at": _hour(at), "before": before, "after": after})
        before = after or before
    return found
