"""Counts, sums, minima and maxima over windows of time, into a topic or a table.

    aggregate(spark, "events/", "orders", "orders.per.minute", window="1 minute", watermark="5 minutes",
              by="$.customer", aggregates={"orders": "count", "revenue": "sum($.total)"})

A result is a record, whose key names window and key, so that it is the only one of its kind:

    key      2026-01-31T12:00:00.000Z/anna
    value    {"window": {"start": "2026-01-31T12:00:00.000Z", "end": "2026-01-31T12:01:00.000Z"}, "key": "anna",
              "orders": 3, "revenue": 59.7}

Into a topic each window goes once, when the watermark (the latest time seen in earlier micro-batches, less `watermark`)
has passed its end. Into a table (`table=True`) it goes with every micro-batch that changes it: the topic is compacted,
and `store.table(to)` shows the latest of each.

Promises
  AGG1  Each record that is neither late nor a dead letter counts once in each of its windows, whichever process is
        killed.
  AGG2  What lacks a field that is asked for, or is not JSON or not a number there, counts in no window: it goes to the
        dead-letter topic, in the same transaction as the results.
  AGG3  Late records are counted exactly. Spark counts groups of late records, not records. So a micro-batch whose
        count is not 0 is read again, to count the records whose window ended at or before Spark's watermark, which is
        that of the previous micro-batch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from klamm.errors import InvalidSetting
from klamm.spark.checkpoint import query_of, watermark_ms
from klamm.spark.functions import F
from klamm.spark.pipelines.dead_letters import HEADERS
from klamm.spark.pipelines.fields import Field
from klamm.spark.pipelines.query_runner import behind, check_not_connect, drain, dropped, source
from klamm.spark.pipelines.report import Progress, Report
from klamm.spark.pipelines.streams import (
    check,
    check_table,
    check_topics,
    counted,
    incoming,
    iso,
    json_number,
    json_text,
    json_time,
    make_topics,
    milliseconds,
    stream_session,
    to_letters,
)
from klamm.spark.remote import read, write, write_stream
from klamm.times import from_ms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from klamm.spark.pipelines.query_runner import Source

__all__ = ["aggregate"]

_AGGREGATE = re.compile(r"\s*(?P<how>count|sum|min|max)\s*(?:\((?P<of>.*)\))?\s*")
_RESERVED = ("window", "key")


def aggregate(
    spark: SparkSession,
    store: str | os.PathLike[str],
    topic: str,
    to: str,
    *,
    window: str,
    slide: str | None = None,
    watermark: str,
    by: str = "key",
    aggregates: Sequence[str] | Mapping[str, str] = ("count",),
    time: str | None = None,
    table: bool = False,
    dead_letters: str | None = None,
    max_offsets: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Aggregate the records of a topic over windows of time, by key, into the topic `to`, which is created if absent.

    `window` and `slide` are times such as "1 minute"; without `slide` windows do not overlap. `watermark` is how far
    a record may lie behind the latest. `by` is "key", or a field of the JSON in the value: "$.user.id". `aggregates`
    are "count", "sum(…)", "min(…)" and "max(…)" of a field, or of "value" if that is a number; a mapping gives them
    names. `time` is the field that has the time of a record, as milliseconds since 1970 or as text with a zone, of the
    years 1 to 9999; without it, its timestamp counts. `table`: update results instead of waiting for windows to close.
    `dead_letters`: their topic; by default `topic` with `.dlq`. `max_offsets`: how many a micro-batch has at most.

    `Report.late` is the number of records that came too late for at least one of their windows; `missed` in its details
    is how many windows they missed.
    """
    plan = _WindowPlan.of(window, slide, watermark, by, aggregates, time)
    check(max_offsets, every)
    letters = dead_letters or f"{topic}.dlq"
    found = source(store, topic)
    check_topics(found, to=to, dead_letters=letters)
    if table:
        check_not_connect(spark, "aggregate with table=True")
        check_table(found, to)
    options = {**plan.options(), "to": to, "table": table, "dead_letters": letters}
    folder = found.take("aggregate", found.store.folder(f"aggregate-{topic}-{to}", checkpoint, "checkpoint"), options)
    with folder.alone():
        make_topics(found, to, {}, {topic: letters} if plan.may_fail else {}, compacted=table)
        own = stream_session(spark)
        late = _Late(own, found, topic, plan, folder.checkpoint)
        rows = _aggregated(incoming(own, found, topic, max_offsets), plan, to, letters)
        outcome = drain(
            _writer(rows, found, folder.checkpoint, table=table),
            every=every,
            progress=progress,
            total=behind(folder.checkpoint, found),
            after=late.look,
        )
    return Report(
        "aggregate",
        topic,
        to,
        outcome.counts["read"],
        outcome.counts["written"],
        outcome.seconds,
        outcome.batches,
        outcome.counts["letters"],
        late.records,
        {"missed": late.windows},
    )


@dataclass(frozen=True)
class _Aggregate:
    name: str
    how: str
    of: Field | None

    @staticmethod
    def parse(name: str, text: str) -> _Aggregate:
        found = _AGGREGATE.fullmatch(text)
        if found is None:
            raise InvalidSetting(
                f"aggregates: {text!r} is invalid", hint="expected count, sum($.field), min($.field) or max($.field)"
            )
        how, of = found["how"], found["of"]
        if (how == "count") != (of is None):
            what = "counts records, not a field" if how == "count" else "does not say of what"
            raise InvalidSetting(
                f"aggregates: {text!r} {what}", hint=f"expected {'count' if of else how + '($.field)'}"
            )
        if not name or name in _RESERVED:
            raise InvalidSetting(f"aggregates: {name!r} cannot be a name", hint="window and key are in the result")
        return _Aggregate(name, how, None if of is None else Field.of(of, "aggregates", ("json", "value")))

    def __str__(self) -> str:
        return self.how if self.of is None else f"{self.how}({self.of})"


@dataclass(frozen=True)
class _WindowPlan:
    """The options of the windows, checked."""

    window: str
    slide: str
    watermark: str
    by: Field
    aggregates: tuple[_Aggregate, ...]
    time: Field | None

    @staticmethod
    def of(
        window: str,
        slide: str | None,
        watermark: str,
        by: str,
        aggregates: Sequence[str] | Mapping[str, str],
        time: str | None,
    ) -> _WindowPlan:
        width = milliseconds(window, "window")
        step = width if slide is None else milliseconds(slide, "slide")
        if step > width:
            raise InvalidSetting(
                f"slide: {slide} is longer than the window of {window}", hint="records in between would count nowhere"
            )
        if isinstance(aggregates, str):
            aggregates = (aggregates,)
        if not isinstance(aggregates, Mapping):
            aggregates = {re.sub(r"\s", "", each): each for each in aggregates}
        if not aggregates:
            raise InvalidSetting("aggregates: empty", hint='expected at least one: "count"')
        return _WindowPlan(
            f"{width} milliseconds",
            f"{step} milliseconds",
            f"{milliseconds(watermark, 'watermark', least=0)} milliseconds",
            Field.of(by, "by", ("key", "json")),
            tuple(_Aggregate.parse(name, text) for name, text in aggregates.items()),
            None if time is None else Field.of(time, "time", ("json",)),
        )

    def options(self) -> dict[str, Any]:
        """Return the options that may not change between two runs."""
        return {
            "window": self.window,
            "slide": self.slide,
            "watermark": self.watermark,
            "by": str(self.by),
            "aggregates": {each.name: str(each) for each in self.aggregates},
            "time": "timestamp" if self.time is None else str(self.time),
        }

    @property
    def numbers(self) -> dict[Field, str]:
        """The fields that are aggregated, and their columns."""
        fields = dict.fromkeys(each.of for each in self.aggregates if each.of is not None)
        return {field: f"_number{index}" for index, field in enumerate(fields)}

    @property
    def may_fail(self) -> bool:
        """Whether there can be dead letters."""
        return self.by.kind == "json" or self.time is not None or bool(self.numbers)

    def prepared(self, df: DataFrame) -> DataFrame:
        """Return rows with the columns _time, _by and those of numbers, and _wrong: what is wrong, or null."""
        df = df.withColumns(
            {
                "_time": F.col("timestamp") if self.time is None else self.time.time(),
                "_by": self.by.bytes(),
                **{column: field.number() for field, column in self.numbers.items()},
            }
        )
        wrong: list[Column] = []
        if self.time is not None:
            wrong.append(F.when(F.col("_time").isNull(), F.lit(f"has no time {self.time}")))
        if self.by.kind == "json":
            wrong.append(F.when(F.col("_by").isNull(), F.lit(f"has no {self.by}")))
        for field, column in self.numbers.items():
            wrong.append(F.when(F.col(column).isNull(), F.lit(f"has no number {field}")))
        return df.withColumn("_wrong", F.coalesce(*wrong) if wrong else F.lit(None).cast("string"))


def _aggregated(records: DataFrame, plan: _WindowPlan, to: str, letters: str) -> DataFrame:
    """Return the rows for the sink: results, and dead letters."""
    how = {"sum": F.sum, "min": F.min, "max": F.max}
    numbers = plan.numbers
    asked = [
        (F.count(F.lit(1)) if each.of is None else how[each.how](numbers[each.of])).alias(f"_result{index}")
        for index, each in enumerate(plan.aggregates)
    ]
    results = (
        plan.prepared(counted(records, "read"))
        .where("_wrong IS NULL")
        .withWatermark("_time", plan.watermark)
        .groupBy(F.window("_time", plan.window, plan.slide).alias("_window"), "_by")
        .agg(*asked)
    )
    start, end = F.col("_window.start"), F.col("_window.end")
    text = [F.lit('{"window":{"start":'), json_time(start), F.lit(',"end":'), json_time(end), F.lit('},"key":')]
    text.append(json_text(F.col("_by").cast("string")))
    for index, each in enumerate(plan.aggregates):
        text += [F.lit(f",{json.dumps(each.name)}:"), json_number(F.col(f"_result{index}"))]
    name = iso(start).cast("binary")
    rows = counted(results, "written").select(
        F.lit(to).alias("topic"),
        F.when(F.col("_by").isNull(), name)
        .otherwise(F.concat(name, F.lit("/").cast("binary"), F.col("_by")))
        .alias("key"),
        F.concat(*text, F.lit("}")).cast("binary").alias("value"),
        F.lit(None).cast(HEADERS).alias("headers"),
    )
    if not plan.may_fail:
        return rows
    wrong = plan.prepared(records).where("_wrong IS NOT NULL")
    return rows.unionByName(to_letters(wrong, letters, F.col("_wrong"), "letters").drop("timestamp"))


def _writer(rows: DataFrame, found: Source, checkpoint: str, *, table: bool) -> DataStreamWriter:
    if not table:
        return write_stream(rows, found.store.path, **found.store.login, checkpointLocation=checkpoint).outputMode(
            "append"
        )

    # Spark has no mode "update" for a sink in Python, so each micro-batch is written by a job that is done once.
    def save(batch: DataFrame, number: int) -> None:
        name = f"pipeline {query_of(checkpoint)}"
        once = {"txnAppId": name, "txnVersion": number, "checkpointLocation": checkpoint}
        write(batch, found.store.path, **found.store.login, **once)

    return rows.writeStream.foreachBatch(save).option("checkpointLocation", checkpoint).outputMode("update")


@dataclass
class _Late:
    """Counts the late records of each micro-batch (AGG3)."""

    spark: SparkSession
    found: Source
    topic: str
    plan: _WindowPlan
    checkpoint: str
    last: tuple[int, str] | None = None
    """The number of a micro-batch, and its watermark."""
    records: int = 0
    windows: int = 0

    def look(self, progress: dict[str, Any]) -> None:
        number = progress["batchId"]
        if self.last is not None and self.last[0] == number - 1:
            before = self.last[1]
        else:  # the first of this run, or Spark has forgotten some
            before = from_ms(watermark_ms(self.checkpoint, number - 1)).isoformat()
        self.last = number, progress["eventTime"].get("watermark", before)
        if not dropped(progress):
            return
        begin, end = (_offsets(progress["sources"][0][name]) for name in ("startOffset", "endOffset"))
        records = read(
            self.spark,
            self.found.store.path,
            **self.found.store.login,
            assign={self.topic: sorted(int(each) for each in end[self.topic])},
            startingOffsets=json.dumps(_complete(begin, end)),
            endingOffsets=json.dumps(end),
            failOnDataLoss=False,
        )
        windows = (
            self.plan.prepared(records)
            .where("_wrong IS NULL")
            .select("partition", "offset", F.window("_time", self.plan.window, self.plan.slide).alias("_window"))
            .where(F.col("_window.end") <= F.lit(before).cast("timestamp"))
        )
        found = windows.agg(F.count(F.lit(1)), F.count_distinct("partition", "offset")).head()
        assert found is not None
        self.windows += found[0]
        self.records += found[1]


def _offsets(reported: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reported) if isinstance(reported, str) else reported or {}
    return found


def _complete(begin: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the partitions of `end` began; a new one began at its earliest offset."""
    return {
        topic: {number: begin.get(topic, {}).get(number, -2) for number in numbers}
        for topic, numbers in end.items()
        if not topic.startswith("@")
    }
