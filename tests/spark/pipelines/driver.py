"""A Spark driver for tests to kill: one run of a pipeline, in a process of its own.

python driver.py archive <events> <topic> <folder> <offsets a micro-batch>
python driver.py restore <folder> <events> <topic> <batches>     kills itself, and Spark, after so many batches
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import klamm.spark
from klamm.spark.pipelines import archive
from tests.spark.settings import SETTINGS


def deadly(group: int, batches: int) -> Any:
    """What tasks of a restore run, until so many batches were appended."""

    def tp(*arguments: Any) -> Iterator[Any]:
        from klamm.arrow.restore_writer import RestoreWriter
        from klamm.spark.pipelines.restore_pipeline import _restore_partition

        give, left = RestoreWriter.give, [batches]

        def counted(self: Any) -> None:
            if self._builder.count:
                left[0] -= 1
                if left[0] < 0:
                    os.killpg(group, signal.SIGKILL)
                    os.kill(os.getpid(), signal.SIGKILL)
            give(self)

        RestoreWriter.give = counted  # type: ignore[method-assign]
        yield from _restore_partition(*arguments)

    return tp


def main(what: str, *arguments: str) -> None:
    spark = klamm.spark.session(master="local[2]", **SETTINGS)
    if what == "archive":
        events, topic, folder, most = arguments
        archive(spark, events, topic, folder, schema="n BIGINT", max_offsets=int(most))
    else:
        folder, events, topic, batches = arguments
        restoring = importlib.import_module("klamm.spark.pipelines.restore_pipeline")
        restoring._restore_partition = deadly(os.getpgrp(), int(batches))  # type: ignore[attr-defined]
        restoring.restore(spark, folder, events, topic)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
