"""Records that a pipeline cannot use, as rows for the sink: the letters of client/work/dead_letters.py.

A row has the key, value and headers of the record that it was, and beside them the headers that say where that was and
what is wrong with it. So `klamm dlq` and `store.redrive` know them. Rows of a query and its letters go to the sink
together: one transaction, so that each letter is there once, too.
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
    """Return the records of `df`, which has COLUMNS, as letters: key, value and headers. `reason` is a sentence."""
    attempts = F.filter("headers", lambda each: each["key"] == ATTEMPTS)
    before = F.try_element_at(attempts, F.lit(-1))["value"].cast("string").try_cast("long")
    told = {
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
            for name, value in told.items()
        )
    )
    return df.select("key", "value", F.concat(own, added).cast(HEADERS).alias("headers"))
