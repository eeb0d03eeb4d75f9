"""Two topics, joined by key within a time.

    join(spark, "events/", "orders", "payments", "paid", within="1 hour", by=("$.id", "$.order"))

Every pair of records with the same key, one of each topic, whose times are not further apart than `within`, becomes a
record with that key and the later of the two times:

    {"key": "4711", "left": {"id": 4711, "total": 9.9}, "right": {"order": 4711},
     "left_timestamp": "2026-01-31T12:00:00.000Z", "right_timestamp": "2026-01-31T12:00:07.120Z"}

Values that are JSON stand there as they are; others as text. With how="left", a record of the left topic that has found
no partner is in the result, too, with null on the right, as soon as the watermark says that none can come any more.

The watermark is the latest time seen in earlier micro-batches, of the topic that is behind the other, less `watermark`.
What is so old that no record above the watermark can meet it is forgotten: so the state is bounded. A record that comes
below the watermark is late: it is dropped, and counted exactly. A topic that falls silent holds the watermark, and so
the state grows with the other.

Promises
  JOI1  Each pair is there once, whichever process is killed; a left record without partner, with how="left", too.
  JOI2  A record without the key goes to the dead-letter topic of its topic, in the same transaction as the results.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from klamm.errors import InvalidSetting
from klamm.spark.functions import F
from klamm.spark.pipelines.dead_letters import HEADERS
from klamm.spark.pipelines.fields import Field
from klamm.spark.pipelines.query_runner import behind, drain, source
from klamm.spark.pipelines.report import Progress, Report
from klamm.spark.pipelines.streams import (
    check,
    check_topics,
    counted,
    incoming,
    json_text,
    json_time,
    make_topics,
    max_bytes,
    milliseconds,
    stream_session,
    to_letters,
)
from klamm.spark.remote import write_stream

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["join"]

_HOW = ("inner", "left")
_ROOM = 4096  # bytes that a result may have above its two values


def join(
    spark: SparkSession,
    store: str | os.PathLike[str],
    left: str,
    right: str,
    to: str,
    *,
    within: str,
    watermark: str | None = None,
    by: str | tuple[str, str] = "key",
    how: str = "inner",
    max_offsets: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Join two topics into the topic `to`, which is made if need be.

    `within` is how far apart two records may be that meet, `watermark` how much later than the latest one may be (as
    long as `within`, by default). `by` is "key", "header:id", or a field of the JSON in the value, "$.id": the
    same for both, or two of them. `how` is "inner" or "left". `max_offsets`: how many of each topic a micro-batch has
    at most. `Report.late` is the number of records that were below the watermark.
    """
    reach = milliseconds(within, "within", least=0)
    delay = reach if watermark is None else milliseconds(watermark, "watermark", least=0)
    sides = (by, by) if isinstance(by, str) else tuple(by)
    if len(sides) != 2:
        raise InvalidSetting(f"by: {by!r} is not one or two", hint='expected "key", or ("$.id", "$.order")')
    fields = [Field.of(each, "by", ("key", "header", "json")) for each in sides]
    if how not in _HOW:
        raise InvalidSetting(f"how: {how!r} is not a join type", hint=f"expected {' or '.join(_HOW)}")
    check(max_offsets, every)
    if left == right:
        raise InvalidSetting(f"right: {right!r} is the left topic, too", hint="join two topics")
    found = source(store, left, right)
    boxes = {name: f"{name}.dlq" for name in (left, right)}
    check_topics(found, to=to, left_letters=boxes[left], right_letters=boxes[right])
    options = {
        "left": left,
        "to": to,
        "within": f"{reach} milliseconds",
        "watermark": f"{delay} milliseconds",
        "by": [str(each) for each in fields],
        "how": how,
    }
    folder = found.take("join", found.store.folder(f"join-{left}-{right}-{to}", checkpoint, "checkpoint"), options)
    largest = sum(max_bytes(found, name) for name in boxes) + _ROOM
    with folder.alone():
        make_topics(found, to, {"max.message.bytes": largest}, boxes)
        own = stream_session(spark)
        records = [incoming(own, found, name, max_offsets) for name in (left, right)]
        rows = _joined(records[0], records[1], fields, f"{delay} milliseconds", reach, how, to)
        for each, field, name in zip(records, fields, (left, right), strict=True):
            wrong = each.where(field.bytes().isNull())
            rows = rows.unionByName(to_letters(wrong, boxes[name], _reason(field), f"letters {name}"))
        outcome = drain(
            write_stream(
                rows, found.store.path, **found.store.login, checkpointLocation=folder.checkpoint, keepTimestamps=True
            ),
            every=every,
            progress=progress,
            total=behind(folder.checkpoint, found),
        )
    letters = {name: outcome.counts[f"letters {name}"] for name in boxes}
    counts = {"left_read": outcome.counts["left"], "right_read": outcome.counts["right"]}
    return Report(
        "join",
        f"{left}, {right}",
        to,
        sum(counts.values()),
        outcome.counts["written"],
        outcome.seconds,
        outcome.batches,
        sum(letters.values()),
        outcome.late,
        counts,
    )


def _reason(field: Field) -> Column:
    return F.lit(f"has no {field}")


def _side(records: DataFrame, name: str, field: Field, delay: str) -> DataFrame:
    return (
        counted(records, name)
        .select(
            field.bytes().alias(f"{name}_id"),
            F.col("value").alias(name),
            F.col("timestamp").alias(f"{name}_timestamp"),
        )
        .where(F.col(f"{name}_id").isNotNull())
        .withWatermark(f"{name}_timestamp", delay)
    )


def _joined(
    left: DataFrame, right: DataFrame, fields: list[Field], delay: str, reach: int, how: str, to: str
) -> DataFrame:
    reached = F.expr(f"INTERVAL {reach} MILLISECONDS")
    first, second = F.col("left_timestamp"), F.col("right_timestamp")
    pairs = _side(left, "left", fields[0], delay).join(
        _side(right, "right", fields[1], delay),
        (F.col("left_id") == F.col("right_id")) & (second >= first - reached) & (second <= first + reached),
        how,
    )
    text: list[Column] = [F.lit('{"key":'), json_text(F.col("left_id").cast("string"))]
    for name in ("left", "right"):
        text += [F.lit(f',"{name}":'), _as_json(F.col(name))]
    for name in ("left_timestamp", "right_timestamp"):
        text += [F.lit(f',"{name}":'), json_time(F.col(name))]
    return counted(pairs, "written").select(
        F.lit(to).alias("topic"),
        F.col("left_id").alias("key"),
        F.concat(*text, F.lit("}")).cast("binary").alias("value"),
        F.lit(None).cast(HEADERS).alias("headers"),
        F.greatest(first, second).alias("timestamp"),
    )


def _as_json(value: Column) -> Column:
    """Return a value in JSON: as it is, if it is JSON; else as text."""
    text = value.cast("string")
    # Spark's parser is content when the text begins with JSON. Between these, it has to be one value and no more.
    around = (F.concat(F.lit(begin), text, F.lit(end)) for begin, end in (("[", "]"), ('{"a":', "}")))
    fits = F.is_valid_utf8(text)
    for each in around:
        fits &= F.try_parse_json(each).isNotNull()
    return F.when(fits, text).otherwise(json_text(text))
