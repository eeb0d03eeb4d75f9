"""The game of life as a streaming pipeline: from a generation's changes in a topic to the next one's in the same topic.

    python examples/life/life.py events/ --size 512 --generations 200 --seed 7

The query reads the topic that it writes to. What it writes in one micro-batch is one transaction, and the next
micro-batch reads just that: micro-batch g reads generation g and writes generation g + 1. Kill it whenever you like and
start it again: Spark does the last micro-batch again, and the sink skips it if it is in the log already.

The torus is cut into tiles. A tile is keyed state in Spark: its cells and those around it, one bit each. Events go to
the tile that the cell is in and to those that it borders on; a tile to which nothing comes has nothing to do.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import world
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import klamm
import klamm.spark
from klamm.spark.pipelines import checkpoint

TILES = 4  # in a row, and in a column
ENOUGH = "there are as many generations as were asked for"
SETTINGS = {
    "spark.log.level": "OFF",  # the query ends by an error, when there is enough
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def next_generation(events: DataFrame, size: int, until: int) -> DataFrame:
    """The events of generation g + 1, from those of generation g."""
    side = size // TILES
    corners = [
        f"pmod(y + {dy}, {size}) DIV {side} * {TILES} + pmod(x + {dx}, {size}) DIV {side}"
        for dy in (-1, 1)
        for dx in (-1, 1)
    ]
    return (
        events.selectExpr("split(CAST(key AS STRING), ',') AS cell", "split(CAST(value AS STRING), ' ') AS what")
        .selectExpr("INT(cell[0]) AS x", "INT(cell[1]) AS y", "INT(what[0]) AS generation", "what[1] = 'born' AS alive")
        .selectExpr("*", f"explode(array_distinct(array({', '.join(corners)}))) AS tile")
        .groupBy("tile")
        .applyInPandasWithState(
            tile_of(size, side, until),
            "x INT, y INT, generation INT, alive BOOLEAN",
            "cells BINARY",
            "append",
            GroupStateTimeout.NoTimeout,
        )
        .selectExpr("concat(x, ',', y) AS key", "concat(generation, if(alive, ' born', ' died')) AS value")
    )


def tile_of(size: int, side: int, until: int) -> Callable[..., Iterator[pd.DataFrame]]:
    """What Spark calls with a tile's number, its events of one generation, and its state."""
    wide = side + 2  # with a border of cells of other tiles

    def tile(key: tuple[int], parts: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        top, left = (side * part - 1 for part in divmod(key[0], TILES))
        generation = int(TaskContext.get().getLocalProperty("streaming.sql.batchId"))
        if generation >= until:
            raise RuntimeError(ENOUGH)
        events = pd.concat(parts)
        if (events.generation != generation).any():
            raise ValueError(f"events of other generations than {generation}: {sorted(set(events.generation))}")
        cells = np.zeros(wide * wide, np.uint8)
        if state.exists:
            cells = np.unpackbits(np.frombuffer(state.get[0], np.uint8), count=wide * wide)
        cells = cells.reshape(wide, wide)
        at = (events.y.to_numpy() - top) % size, (events.x.to_numpy() - left) % size
        if (cells[at] == events.alive).any():
            raise ValueError(f"an event of generation {generation} changes nothing: was the topic compacted too early?")
        cells[at] = events.alive
        state.update((np.packbits(cells).tobytes(),))

        before = cells[1:-1, 1:-1]
        neighbours = sum(cells[y : y + side, x : x + side] for y in range(3) for x in range(3) if (y, x) != (1, 1))
        after = (neighbours == 3) | (before & (neighbours == 2))
        y, x = np.nonzero(after != before)
        yield pd.DataFrame(
            {"x": x + left + 1, "y": y + top + 1, "generation": generation + 1, "alive": after[y, x] == 1}
        )

    return tile


def run(spark: SparkSession, path: str, size: int, generations: int, seed: int, topic: str = world.TOPIC) -> list[dict]:
    """Until the generation is in the log, or nothing changes any more; what Spark says of each micro-batch."""
    if size % TILES or size < 2 * TILES:
        raise klamm.InvalidSetting(
            f"size: {size} cells cannot be cut into {TILES} tiles", hint=f"try {2 * TILES} or 512"
        )
    with klamm.open(path) as store:
        world.create(store, topic)
        location = checkpoint(path, topic, pipeline="life", options={"size": size, "seed": seed, "tiles": TILES})
        world.seed(store, world.random_cells(size, seed), topic)
    events = klamm.spark.read_stream(spark, path, subscribe=topic, startingOffsets="earliest", columns="key,value")
    changes = next_generation(events, size, generations)
    query = klamm.spark.write_stream(changes, path, topic=topic, checkpointLocation=location).start()
    try:
        query.processAllAvailable()  # which never ends, as long as each micro-batch makes the next one's input
    except StreamingQueryException as error:
        if ENOUGH not in str(error):
            raise
    finally:
        query.stop()
    return [json.loads(each.json) for each in query.recentProgress if each.numInputRows]


def main() -> None:
    parser = argparse.ArgumentParser(description="The game of life on a torus, by Spark, from a topic to itself.")
    parser.add_argument("path", help="the store's directory")
    parser.add_argument("--size", type=int, default=512, help=f"cells in a row; a multiple of {TILES}")
    parser.add_argument("--generations", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7, help="which world")
    parser.add_argument("--topic", default=world.TOPIC)
    options = parser.parse_args()
    spark = klamm.spark.session(options.path, **SETTINGS)
    begin = time.monotonic()
    done = run(spark, options.path, options.size, options.generations, options.seed, options.topic)
    count = sum(each["numInputRows"] for each in done)
    print(f"{len(done)} generations from {count:,} events in {time.monotonic() - begin:.1f} s")
    spark.stop()


if __name__ == "__main__":
    main()
