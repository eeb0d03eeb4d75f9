"""An archive without Spark, for tests to kill.

python here_driver.py <store> <topic> <folder> <offsets a micro-batch>
"""

from __future__ import annotations

import sys

from klamm.spark.pipelines import archive


def main(store: str, topic: str, folder: str, most: str) -> None:
    archive(None, store, topic, folder, max_offsets=int(most))


if __name__ == "__main__":
    main(*sys.argv[1:])
