"""A world as events, and events as a world.

An event is a cell that changed. Its key is the cell, its value the generation and what happened:

    17,204    12 born
    17,204    14 died

The topic has one partition, so events lie in the order of their generations, and each generation is one transaction:
a reader sees all of it or nothing. It is compacted by cell: what stays is the world.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import klamm

__all__ = ["TOPIC", "create", "events", "generations", "now", "random_cells", "seed"]

TOPIC = "life"
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


def events(store: klamm.Store, topic: str = TOPIC) -> Iterator[np.ndarray]:
    """All events so far, in order: arrays with a row (generation, y, x, alive) for each."""
    for batch in store.scan(topic, columns=["key", "value"]).batches():
        x, y = _halves(batch.column("key"), ",")
        generation, what = _halves(batch.column("value"), " ")
        numbers = [pc.cast(each, pa.int32()) for each in (generation, y, x)]
        yield np.column_stack([*numbers, pc.equal(what, "born")])


def _halves(texts: pa.Array, mark: str) -> tuple[pa.Array, pa.Array]:
    parts = pc.split_pattern(pc.cast(texts, pa.string()), mark)
    return pc.list_element(parts, 0), pc.list_element(parts, 1)


def generations(store: klamm.Store, size: int, topic: str = TOPIC) -> Iterator[tuple[int, np.ndarray]]:
    """Replay: each generation with its cells[y, x]; of a topic that was not compacted yet.

    ValueError for an event that changes nothing: it would be there twice, or at a wrong place.
    """
    cells = np.zeros((size, size), bool)
    current = 0
    for batch in events(store, topic):
        for part in np.split(batch, np.flatnonzero(np.diff(batch[:, 0])) + 1):
            generation, (y, x, alive) = int(part[0, 0]), part[:, 1:].T
            before = cells.copy()
            if generation != current:
                yield current, before
                current = generation
            cells[y, x] = alive
            if np.count_nonzero(cells != before) != len(part):
                raise ValueError(f"generation {generation} has an event that changes nothing")
    yield current, cells


def now(store: klamm.Store, size: int, topic: str = TOPIC) -> tuple[np.ndarray, np.ndarray]:
    """The world as a table, compacted or not: cells[y, x], and the generation each cell changed in last (-1: none)."""
    cells = np.zeros((size, size), bool)
    changed = np.full((size, size), -1)
    for key, value in store.table(topic, wait=None).items():
        x, y = map(int, key.split(b","))
        generation, what = value.split()
        cells[y, x], changed[y, x] = what == b"born", int(generation)
    return cells, changed
