"""A world as events, and events as a world.

An event is a cell that changed. Its key is the cell, its value the generation and what happened:

    17,204    12 born
    17,204    14 died

Generation 0 is one transaction, and so are the next eight generations, and the eight after those: a block, of which a
reader sees all or nothing. The topic has one partition, so blocks are in order, and so are the events of each cell; in
a block, the events of different cells are not. It is compacted by cell: what stays is the world.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import klamm

__all__ = ["AT_ONCE", "TOPIC", "block", "blocks", "create", "decode", "encode", "events", "generations", "now"]
__all__ += ["random_cells", "reached", "seed"]

TOPIC = "life"
AT_ONCE = 8  # generations in a block
ALIVE = 0.3  # of the cells of generation 0


def random_cells(size: int, number: int) -> np.ndarray:
    """A generation 0, as cells[y, x]; always the same for a number."""
    return np.random.default_rng(number).random((size, size)) < ALIVE


def create(store: klamm.Store, topic: str = TOPIC) -> None:
    """The topic, if it is not there yet."""
    store.topics.create(topic, settings={"cleanup.policy": "compact"}, exist_ok=True)


def seed(store: klamm.Store, cells: np.ndarray, topic: str = TOPIC) -> None:
    """Generation 0, in one transaction; nothing if the topic has one."""
    with store.consumer(topic, wait=0) as consumer:
        if consumer.poll(1):
            return
    with store.transaction(f"seed of {topic}") as transaction:
        for y, x in np.argwhere(cells):
            transaction.send(topic, b"0 born", key=b"%d,%d" % (x, y))


def block(generation: Any) -> Any:
    """The number of the block that a generation is in, or of an array of them; generation 0 is block 0."""
    return -(-generation // AT_ONCE)


def reached(store: klamm.Store, topic: str = TOPIC) -> int:
    """The last generation that the topic has, of a world that changes; -1: none."""
    with store.consumer(topic, start=klamm.last(2), wait=0) as consumer:  # the last offset is the transaction's marker
        return max((block(int(record.value.split()[0])) * AT_ONCE for record in consumer), default=-1)


def events(store: klamm.Store, topic: str = TOPIC) -> Iterator[np.ndarray]:
    """All events so far, in order: arrays with a row (generation, y, x, alive) for each."""
    for batch in store.scan(topic, columns=["key", "value"]).batches():
        yield decode(batch)


def decode(batch: pa.RecordBatch) -> np.ndarray:
    """Records as an array with a row (generation, y, x, alive) for each."""
    x, y = _halves(batch.column("key"), ",")
    generation, what = _halves(batch.column("value"), " ")
    numbers = [pc.cast(each, pa.int32()) for each in (generation, y, x)]
    return np.column_stack([*numbers, pc.equal(what, "born")]).astype(np.int32)


def encode(events: np.ndarray) -> pa.RecordBatch:
    """And back."""
    generation, y, x = (pc.cast(pa.array(each), pa.string()) for each in events[:, :3].T)
    what = pc.if_else(pa.array(events[:, 3] == 1), "born", "died")
    key, value = pc.binary_join_element_wise(x, y, ","), pc.binary_join_element_wise(generation, what, " ")
    return pa.RecordBatch.from_arrays([pc.cast(each, pa.binary()) for each in (key, value)], ["key", "value"])


def _halves(texts: pa.Array, mark: str) -> tuple[pa.Array, pa.Array]:
    parts = pc.split_pattern(pc.cast(texts, pa.string()), mark, max_splits=1)
    return pc.list_element(parts, 0), pc.list_element(parts, 1)


def blocks(store: klamm.Store, topic: str = TOPIC) -> Iterator[np.ndarray]:
    """The same block by block, each in the order of its generations."""
    rest = np.empty((0, 4), np.int32)
    for batch in events(store, topic):
        rest = np.concatenate([rest, batch])
        *whole, rest = np.split(rest, np.flatnonzero(np.diff(block(rest[:, 0]))) + 1)
        yield from (part[np.argsort(part[:, 0], kind="stable")] for part in whole)
    yield rest[np.argsort(rest[:, 0], kind="stable")]


def generations(store: klamm.Store, size: int, topic: str = TOPIC) -> Iterator[tuple[int, np.ndarray]]:
    """Replay: each generation with its cells[y, x]; of a topic that was not compacted yet.

    ValueError for an event that changes nothing: it would be there twice, or at a wrong place.
    """
    cells = np.zeros((size, size), bool)
    for changes in blocks(store, topic):
        for part in np.split(changes, np.flatnonzero(np.diff(changes[:, 0])) + 1):
            generation, (y, x, alive) = int(part[0, 0]), part[:, 1:].T
            before, cells = cells, cells.copy()
            cells[y, x] = alive
            if np.count_nonzero(cells != before) != len(part):
                raise ValueError(f"generation {generation} has an event that changes nothing")
            yield generation, cells


def now(store: klamm.Store, size: int, topic: str = TOPIC) -> tuple[np.ndarray, np.ndarray]:
    """The world as a table, compacted or not: cells[y, x], and the generation each cell changed in last (-1: none)."""
    cells = np.zeros((size, size), bool)
    changed = np.full((size, size), -1)
    for key, value in store.table(topic, wait=None).items():
        x, y = map(int, key.split(b","))
        generation, what = value.split()
        cells[y, x], changed[y, x] = what == b"born", int(generation)
    return cells, changed
