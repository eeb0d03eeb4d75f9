"""The game of life as a streaming pipeline: from changes in a topic to the next generations' in the same topic.

    python examples/life/life.py events/ --size 512 --generations 200 --seed 7

The query reads the topic that it writes to. What it writes in one micro-batch is one transaction, and the next
micro-batch reads just that: micro-batch b reads the changes up to generation 8 b and writes those of the next eight.
Kill it whenever you like and start it again: Spark does the last micro-batch again, and the sink skips it if it is in
the log already.

The torus is cut into tiles. A tile is keyed state in Spark: its cells and eight more on each side (its halo), one bit
each. What a cell is in eight generations depends on cells up to eight away, so that a tile plays eight generations
without asking its neighbours. Events go to the tile that the cell is in and to those in whose halo it is; a tile to
which nothing comes has nothing to do.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import world
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import klamm
import klamm.spark
from klamm.spark.pipelines import checkpoint

cloudpickle.register_pickle_by_value(world)  # Spark's Python processes do not find what lies beside a script
TILES = 4  # in a row, and in a column
HALO = world.AT_ONCE  # cells around a tile: a change goes one cell in a generation
SETTINGS = {
    "spark.log.level": "OFF",  # the query is stopped in a micro-batch: Spark logs each task that it cancels
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def next_generations(events: DataFrame, size: int) -> DataFrame:
    """The events of the next generations, from those of the last ones.

    Rows between the steps are few and large: an array of events as bytes for each tile.
    """
    side = size // TILES
    return (
        events.mapInArrow(by_tile(size, side), "tile INT, events BINARY")
        .groupBy("tile")
        .applyInPandasWithState(
            tile_of(size, side), "events BINARY", "cells BINARY", "append", GroupStateTimeout.NoTimeout
        )
        .mapInArrow(as_records, "key BINARY, value BINARY")
    )


def by_tile(size: int, side: int) -> Callable[..., Iterator[pa.RecordBatch]]:
    """What Spark calls with the records of a task: a row for each tile that has events in it, or in its halo."""

    def split(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            events = world.decode(batch)
            _, y, x, _ = events.T
            found: list[tuple[int, bytes]] = []
            for tile in range(TILES * TILES):
                top, left = (side * part - HALO for part in divmod(tile, TILES))
                inside = ((y - top) % size < side + 2 * HALO) & ((x - left) % size < side + 2 * HALO)
                if inside.any():
                    found.append((tile, events[inside].tobytes()))
            tiles, parts = zip(*found, strict=True) if found else ((), ())
            yield pa.RecordBatch.from_arrays(
                [pa.array(tiles, pa.int32()), pa.array(parts, pa.binary())], ["tile", "events"]
            )

    return split


def as_records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What Spark calls with the events of tiles: a record for each event."""
    for batch in batches:
        for part in batch.column("events"):
            yield world.encode(array_of(part.as_buffer()))


def array_of(data: Any) -> np.ndarray:
    """Events as bytes, as an array with a row for each."""
    return np.frombuffer(data, np.int32).reshape(-1, 4)


def tile_of(size: int, side: int) -> Callable[..., Iterator[pd.DataFrame]]:
    """What Spark calls with a tile's number, its events of one micro-batch, and its state."""
    wide = side + 2 * HALO

    def tile(key: tuple[int], parts: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        top, left = (side * part - HALO for part in divmod(key[0], TILES))
        now = int(TaskContext.get().getLocalProperty("streaming.sql.batchId")) * HALO
        cells = np.zeros(wide * wide, np.uint8)
        if state.exists:
            cells = np.unpackbits(np.frombuffer(state.get[0], np.uint8), count=wide * wide)
        cells = cells.reshape(wide, wide)
        events = np.concatenate([array_of(data) for part in parts for data in part.events])
        replay(cells, events, now, top, left, size)
        state.update((np.packbits(cells).tobytes(),))

        changes = []
        for step in range(1, HALO + 1):
            before, cells = cells[1:-1, 1:-1], play(cells)
            own = slice(HALO - step, HALO - step + side)
            y, x = np.nonzero(before[own, own] != cells[own, own])
            alive = cells[own, own][y, x]
            changes.append(np.column_stack([np.full_like(y, now + step), y + top + HALO, x + left + HALO, alive]))
        found = np.concatenate(changes).astype(np.int32)
        if len(found):
            yield pd.DataFrame({"events": [found.tobytes()]})

    return tile


def replay(cells: np.ndarray, events: np.ndarray, now: int, top: int, left: int, size: int) -> None:
    """Bring a tile's cells to generation `now` by what happened since; ValueError if that cannot be."""
    events = events[np.argsort(events[:, 0], kind="stable")]
    generation, y, x, alive = events.T
    first = max(0, now - HALO + 1)
    if generation[0] < first or generation[-1] > now:
        raise ValueError(f"events of other generations than {first} to {now}: {sorted(set(generation.tolist()))}")
    y, x = (y - top) % size, (x - left) % size
    for part in np.split(np.arange(len(events)), np.flatnonzero(np.diff(generation)) + 1):
        if (cells[y[part], x[part]] == alive[part]).any():
            raise ValueError(
                f"an event of generation {generation[part[0]]} changes nothing: was the topic compacted too early?"
            )
        cells[y[part], x[part]] = alive[part]


def play(cells: np.ndarray) -> np.ndarray:
    """The next generation of all cells but the outermost, whose neighbours are not known."""
    rows = cells[:-2] + cells[1:-1] + cells[2:]
    living = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]  # the cell itself counts
    return ((living == 3) | ((living == 4) & (cells[1:-1, 1:-1] == 1))).view(np.uint8)


class StopAfter(StreamingQueryListener):
    """Stops a query, from the driver, when it has done so many micro-batches since its first run."""

    def __init__(self, spark: SparkSession, name: str, count: int) -> None:
        self._spark, self._name, self._count = spark, name, count

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802  # Spark's names
        if event.progress.name == self._name and event.progress.batchId + 1 >= self._count:
            query = self._spark.streams.get(str(event.progress.id))
            if query is not None:
                query.stop()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass


def run(spark: SparkSession, path: str, size: int, generations: int, seed: int, topic: str = world.TOPIC) -> list[dict]:
    """Until the generation is in the log, or nothing changes any more; what Spark says of each micro-batch."""
    if size % TILES or size < 2 * HALO * TILES:
        raise klamm.InvalidSetting(
            f"size: {size} cells cannot be cut into {TILES} tiles with a halo of {HALO}",
            hint=f"try {2 * HALO * TILES} or 512",
        )
    if generations % HALO:
        raise klamm.InvalidSetting(
            f"generations: {generations} is invalid",
            hint=f"expected a multiple of {HALO}: so many are in a transaction",
        )
    with klamm.open(path) as store:
        world.create(store, topic)
        location = checkpoint(
            path, topic, pipeline="life", options={"size": size, "seed": seed, "tiles": TILES, "halo": HALO}
        )
        world.seed(store, world.random_cells(size, seed), topic)
        if world.reached(store, topic) >= generations:
            return []
    events = klamm.spark.read_stream(spark, path, subscribe=topic, startingOffsets="earliest", columns="key,value")
    changes = next_generations(events, size)
    name = f"life {topic}"
    stop = StopAfter(spark, name, generations // HALO)
    spark.streams.addListener(stop)
    query = klamm.spark.write_stream(changes, path, topic=topic, checkpointLocation=location).queryName(name).start()
    try:
        query.processAllAvailable()  # until it is stopped: as long as something changes, there is more
    finally:
        query.stop()
        spark.streams.removeListener(stop)
    return [json.loads(each.json) for each in query.recentProgress if each.numInputRows]


def main() -> None:
    parser = argparse.ArgumentParser(description="The game of life on a torus, by Spark, from a topic to itself.")
    parser.add_argument("path", help="the store's directory")
    parser.add_argument("--size", type=int, default=512, help=f"cells in a row; a multiple of {TILES}")
    parser.add_argument("--generations", type=int, default=200, help=f"a multiple of {HALO}")
    parser.add_argument("--seed", type=int, default=7, help="which world")
    parser.add_argument("--topic", default=world.TOPIC)
    options = parser.parse_args()
    spark = klamm.spark.session(options.path, **SETTINGS)
    begin = time.monotonic()
    done = run(spark, options.path, options.size, options.generations, options.seed, options.topic)
    count = sum(each["numInputRows"] for each in done)
    print(f"{len(done) * HALO} generations from {count:,} events in {time.monotonic() - begin:.1f} s")
    spark.stop()


if __name__ == "__main__":
    main()
