"""The first record of each id within a time, into another topic.

    deduplicate(spark, "events/", "orders", "orders.once", by="header:id", within="1 day")

A record is dropped, and counted, if a record with its id has passed whose time is at or after its own less `within`;
else it passes. In a micro-batch, records of an id take their turn by time, then partition and offset. What passes keeps
key, value, headers and timestamp, and records of one partition and key keep their order only as far as their times do.

State is one number for each id: when it passed last. It is forgotten when the watermark has passed that by `within`:
the watermark is the latest time seen in earlier micro-batches, less `watermark`. A record that comes below the
watermark is late: whether it is the first is unknown by then, so it is dropped, and counted apart.

Promises
  DED1  Each record passes once, or is dropped, or late, or a dead letter, and is counted as that, whichever process is
        killed.
  DED2  Of two records with an id that are less than `within` apart, at most one passes.
  DED3  A record without an id goes to the dead-letter topic, in the same transaction as those that pass.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

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
    make_topics,
    max_bytes,
    milliseconds,
    stream_session,
    to_letters,
)
from klamm.spark.remote import write_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["deduplicate"]

_PASSED = f"key binary, value binary, headers {HEADERS}, at long"


def deduplicate(
    spark: SparkSession,
    store: str | os.PathLike[str],
    topic: str,
    to: str,
    *,
    by: str = "key",
    within: str,
    watermark: str | None = None,
    dead_letters: str | None = None,
    max_offsets: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Copy a topic to the topic `to`, which is made if need be, but for records whose id was there within a time.

    `by` says what the id is: "key", "header:id", or a field of the JSON in the value, "$.id". `within` is a time such
    as "1 day", `watermark` how much later than the latest a record may be (as long as `within`, by default).
    `dead_letters`: instead of the topic with `.dlq` behind its name. `max_offsets`: how many a micro-batch has at
    most. The report's details say how many were `dropped`.
    """
    field = Field.of(by, "by", ("key", "header", "json"))
    reach = milliseconds(within, "within")
    delay = reach if watermark is None else milliseconds(watermark, "watermark", least=0)
    check(max_offsets, every)
    letters = dead_letters or f"{topic}.dlq"
    found = source(store, topic)
    check_topics(found, to=to, dead_letters=letters)
    options = {
        "to": to,
        "by": str(field),
        "within": f"{reach} milliseconds",
        "watermark": f"{delay} milliseconds",
        "dead_letters": letters,
    }
    folder = found.take(
        "deduplicate", found.store.folder(f"deduplicate-{topic}-{to}", checkpoint, "checkpoint"), options
    )
    with folder.alone():
        make_topics(found, to, {"max.message.bytes": max_bytes(found, topic)}, {topic: letters})
        own = stream_session(spark)
        records = incoming(own, found, topic, max_offsets)
        outcome = drain(
            write_stream(
                _deduplicated(records, field, f"{delay} milliseconds", reach, to, letters),
                found.store.path,
                **found.store.login,
                checkpointLocation=folder.checkpoint,
                keepTimestamps=True,
            ),
            every=every,
            progress=progress,
            total=behind(folder.checkpoint, found),
        )
    rows, passed, wrong = (outcome.counts[name] for name in ("read", "written", "letters"))
    late = outcome.late
    return Report(
        "deduplicate",
        topic,
        to,
        rows,
        passed,
        outcome.seconds,
        outcome.batches,
        wrong,
        late,
        {"dropped": rows - passed - wrong - late},
    )


def _deduplicated(records: DataFrame, field: Field, delay: str, reach: int, to: str, letters: str) -> DataFrame:
    from klamm.spark.pipelines.duplicate_filter import DuplicateFilter

    passed = (
        counted(records, "read")
        .select("*", F.unix_millis("timestamp").alias("at"), field.bytes().alias("id"))
        .where("id IS NOT NULL")
        .withWatermark("timestamp", delay)
        .select("id", "at", "partition", "offset", "key", "value", "headers", "timestamp")
        .groupBy("id")
        .transformWithState(DuplicateFilter(reach), _PASSED, "append", "eventTime")
    )
    rows = counted(passed, "written").select(
        F.lit(to).alias("topic"), "key", "value", "headers", F.timestamp_millis("at").alias("timestamp")
    )
    wrong = records.where(field.bytes().isNull())
    return rows.unionByName(to_letters(wrong, letters, F.lit(f"has no {field}"), "letters"))
