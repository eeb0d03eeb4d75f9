"""Dead letters of a pipeline: the records that it cannot use, as rows for the sink.

A dead letter has the key, the value and the headers of the record, and in addition the headers of
client/work/dead_letters.py: the record's topic, partition and offset, and the reason. So `klamm dlq` and
`store.redrive` work on them, too. The sink gets the results of a micro-batch and its dead letters in one DataFrame, and
writes them in one transaction: each dead letter is there once, as each result is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.client.work.dead_letters import ATTEMPTS, PREFIX
from klamm.spark.functions import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["COLUMNS", "HEADERS", "letters"]

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
"""What `letters` needs of a record."""
HEADERS = "array<struct<key:string,value:binary>>"


def letters(df: DataFrame, reason: Column) -> DataFrame:
    """Return the records of `df`, which has COLUMNS, as dead letters. `reason` is a sentence."""
    attempts = F.filter("headers", lambda each: each["key"] == ATTEMPTS)
    before = F.try_element_at(attempts, F.lit(-1))["value"].cast("string").try_cast("long")
    description = {
        "topic": F.col("topic"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "timestamp": F.unix_millis("timestamp"),
        "attempts": F.coalesce(before, F.lit(0)) + 1,
        "error": F.lit("klamm.errors.InvalidRecord"),
        "reason": reason,
    }
    own = F.filter(
        F.coalesce("headers", F.lit([]).cast(HEADERS)),
        lambda each: ~each["key"].startswith(PREFIX) & (each["key"] != ATTEMPTS),
    )
    added = F.array(
        *(
            F.struct(F.lit(PREFIX + name).alias("key"), value.cast("string").cast("binary").alias("value"))
            for name, value in description.items()
        )
    )
    return df.select("key", "value", F.concat(own, added).cast(HEADERS).alias("headers"))
