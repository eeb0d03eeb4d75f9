"""A Spark driver for tests to kill: it compacts a topic, in a process of its own.

python compacting.py <events> <topic>
"""

from __future__ import annotations

import sys

import klamm.spark
from klamm.spark.pipelines import compacting
from tests.spark.settings import SETTINGS


def main(events: str, topic: str) -> None:
    spark = klamm.spark.session(events, master="local[2]", **SETTINGS)
    compacting._AT_ONCE = 3  # so that it takes a while
    compacting.compact(spark, events, topic, force=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
