"""A Spark driver for tests to kill: it compacts a topic, in a process of its own.

python compact_driver.py <events> <topic>
"""

from __future__ import annotations

import sys

import klamm.spark
from klamm.spark.pipelines import compact_pipeline
from tests.spark.settings import SETTINGS


def main(events: str, topic: str) -> None:
    spark = klamm.spark.session(events, master="local[2]", **SETTINGS)
    compact_pipeline._AT_ONCE = 3  # so that it takes a while
    compact_pipeline.compact(spark, events, topic, force=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
