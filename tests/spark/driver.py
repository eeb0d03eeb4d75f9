"""A Spark driver for tests to kill: a streaming query from a topic to another, in a process of its own.

python driver.py <events> <from> <to> <checkpoint> <offsets a trigger>      ends when all of <from> is in <to>;
                                                                            0: no limit, and it does not end
"""

from __future__ import annotations

import sys

import klamm.spark
from tests.spark.settings import SETTINGS


def main(events: str, source: str, sink: str, checkpoint: str, most: str) -> None:
    spark = klamm.spark.session(events, master="local[2]", **SETTINGS)
    options = {} if most == "0" else {"maxOffsetsPerTrigger": most}
    rows = klamm.spark.read_stream(spark, subscribe=source, startingOffsets="earliest", columns="key,value", **options)
    query = klamm.spark.write_stream(rows, topic=sink, checkpointLocation=checkpoint)
    if options:
        query = query.trigger(availableNow=True)
    query.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
