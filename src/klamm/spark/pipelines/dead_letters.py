"""Records that a pipeline cannot use, as rows for the sink: the letters of client/work/dead_letters.py.

A row has the key, value and headers of the record that it was, and beside them the headers that say where that was and
what is wrong with it. So `klamm dlq` and `store.redrive` know them. Rows of a query and its letters go to the sink
together: one transaction, so that each letter is there once, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.client.work.dead_letters import ATTEMPTS, PREFIX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["COLUMNS", "HEADERS", "letters"]

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
"""What `letters` needs of a record."""
HEADERS = "array<struct<key:string,value:binary>>"


def letters(df: DataFrame, error: Column | str, reason: Column | str) -> DataFrame:
    """The records of `df`, which has COLUMNS, as letters: columns key, value, headers.

    `error` is the kind of what is wrong, `reason` a sentence; text, or a column of text.
    """
    from pyspark.sql import functions as F  # noqa: N812  # everybody's name for it

    attempts = F.filter("headers", lambda each: each["key"] == ATTEMPTS)
    before = F.try_element_at(attempts, F.lit(-1))["value"].cast("string").try_cast("long")
    told = {
        "topic": F.col("topic"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "timestamp": F.unix_millis("timestamp"),
        "attempts": F.coalesce(before, F.lit(0)) + 1,
        "error": F.lit(error) if isinstance(error, str) else error,
        "reason": F.lit(reason) if isinstance(reason, str) else reason,
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
