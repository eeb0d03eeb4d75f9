"""Parts that aggregate, join and deduplicate share: streaming queries with state, out of topics and into one.

They run in a session of their own beside the caller's, with its settings but for these: times are UTC, what does not
fit a type is an error where it is not asked for, and state lies in RocksDB, on disk, so that it may be larger than
memory.

What a query hands to the sink has a column `topic`: its rows, and with them, in the same transaction, its dead letters.
Rows are counted on their way by name (`counted`), for Spark's own count is of what was read, which is twice for a query
that has dead letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from klamm.client.work.dead_letters import dead_letter_topic
from klamm.errors import InvalidSetting, TopicExists, UnknownTopic
from klamm.spark.functions import F
from klamm.spark.internals import own_session
from klamm.spark.pipelines.dead_letters import COLUMNS, letters
from klamm.spark.pipelines.query_runner import UNITS_MS, check_number, duration
from klamm.store import names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from klamm.spark.pipelines.query_runner import Source

__all__ = [
    "check",
    "check_table",
    "check_topics",
    "counted",
    "incoming",
    "iso",
    "json_number",
    "json_text",
    "json_time",
    "make_topics",
    "max_bytes",
    "milliseconds",
    "stream_session",
    "to_letters",
]

_OWN = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A micro-batch writes what it has changed, not a snapshot (bench/spark_state.py). Spark reads either.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def stream_session(spark: SparkSession) -> SparkSession:
    """Return another session, so that the caller's settings stay what they are."""
    own = own_session(spark)
    for name, value in _OWN.items():
        own.conf.set(name, value)
    return own


def check(max_offsets: int | None, every: str | None) -> None:
    """Check the options that all of them have."""
    if max_offsets is not None:
        check_number("max_offsets", max_offsets)
    if every is not None:
        duration(every, "every")


def milliseconds(text: str, what: str, *, least: int = 1) -> int:
    """Return how long "5 minutes" is. Raise InvalidSetting if that is not a time, or less than `least`."""
    number, unit = duration(text, what).split()
    found = int(number) * UNITS_MS[unit.removesuffix("s")]
    if found < least:
        raise InvalidSetting(f"{what}: {text!r} is too short", hint="expected a number and a unit: 5 minutes, or 5m")
    return found


# ---- topics


def check_topics(read: Source, **written: str) -> None:
    """Check that names are valid, that no topic is both read and written, that letters are apart from results, and that
    the store can be written to exactly once."""
    topics = list(read.topics)
    for name, topic in written.items():
        names.validate(topic)
        if topic in topics:
            raise InvalidSetting(f"{name}: {topic!r} is an input of the pipeline", hint="write to another topic")
    if len(set(written.values())) < len(written):
        raise InvalidSetting(f"to: {written['to']!r} is the dead-letter topic", hint="write to another topic")
    read.store.check_writes_once("results", "copy the topic into a store first, with klamm copy or a pipe")


def make_topics(
    read: Source, to: str, settings: Mapping[str, Any], boxes: Mapping[str, str], *, compacted: bool = False
) -> None:
    """Make what is not there: `to`, with as many partitions as the first topic that is read, and `boxes`, for the dead
    letters of topics. What is there stays as it is."""
    with read.store.opened() as core:
        policy = {"cleanup.policy": "compact"} if compacted else {}
        try:
            core.topic(to)
        except UnknownTopic:
            count = len(next(iter(read.ends.values())))
            with suppress(TopicExists):
                core.catalog.create_topic(to, count, {**settings, **policy}, core.lay_out)
        for topic, name in boxes.items():
            dead_letter_topic(core, topic, name)


def check_table(read: Source, to: str) -> None:
    """Check that a topic which is to be a table is compacted, or does not exist."""
    with read.store.opened() as core:
        try:
            if "compact" not in core.topic(to).topic.settings.cleanup_policy:
                raise InvalidSetting(
                    f"to: the topic {to} is not compacted, so it is not a table",
                    hint="set cleanup.policy=compact there, or use a new topic",
                )
        except UnknownTopic:
            pass


def max_bytes(read: Source, topic: str) -> int:
    """Return how large a record of the topic may be."""
    with read.store.opened() as core:
        return core.topic(topic).topic.settings.max_message_bytes


# ---- rows


def incoming(spark: SparkSession, read: Source, topic: str, max_offsets: int | None) -> DataFrame:
    """Return the records of a topic, from its beginning, with all columns that a dead letter needs."""
    options: dict[str, Any] = {} if max_offsets is None else {"maxOffsetsPerTrigger": max_offsets}
    return read.rows(spark, topic, columns=",".join(COLUMNS), **options)


def to_letters(df: DataFrame, to: str, reason: Column, name: str) -> DataFrame:
    """Return the rows that are wrong, as letters to the topic `to`: columns topic, key, value, headers, timestamp."""
    rows = letters(counted(df, name), reason)
    return rows.select(
        F.lit(to).alias("topic"), "key", "value", "headers", F.lit(None).cast("timestamp").alias("timestamp")
    )


def counted(df: DataFrame, name: str) -> DataFrame:
    """Return the same rows, and count them after each micro-batch."""
    return df.observe(name, F.count(F.lit(1)).alias("rows"))


# ---- JSON


def json_text(text: Column) -> Column:
    """Return text as a JSON string; bytes that are not UTF-8 become U+FFFD."""
    quoted = F.to_json(F.array(F.make_valid_utf8(text)))
    return F.when(text.isNull(), F.lit("null")).otherwise(F.substring(quoted, F.lit(2), F.length(quoted) - 2))


def json_number(number: Column) -> Column:
    """Return a decimal as a JSON number, without needless zeros."""
    text = number.cast("string")
    short = F.when(text.contains("."), F.regexp_replace(text, r"\.?0+$", "")).otherwise(text)
    return F.coalesce(short, F.lit("null"))


def json_time(time: Column) -> Column:
    """Return a time as a JSON string."""
    return F.coalesce(F.concat(F.lit('"'), iso(time), F.lit('"')), F.lit("null"))


def iso(time: Column) -> Column:
    """Return a time as text: 2026-01-31T12:00:00.000Z."""
    return F.date_format(time, "yyyy-MM-dd'T'HH:mm:ss.SSSX")
