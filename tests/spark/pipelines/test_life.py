"""The game of life as a pipeline: every generation in the topic is the one that NumPy has, whoever is killed."""

from __future__ import annotations

import importlib
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import klamm
from tests.crash.cases import seed_of
from tests.spark.classes import ENVIRONMENT
from tests.spark.processes import together

pytest.importorskip("pyspark")
pytest.importorskip("rocksdict")

from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException

LIFE = Path(__file__).parents[3] / "examples" / "life"
WORLD = 7
AT_ONCE = 8  # generations in a block
PATIENCE_S = 300


@pytest.fixture(scope="module")
def life() -> SimpleNamespace:
    """The modules of the example."""
    sys.path.insert(0, str(LIFE))
    try:
        names = ("life", "reference", "watch", "world")
        return SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(LIFE))


@contextmanager
def pipeline(path: str, size: int, generations: int, *, quick: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """The example, as one runs it."""
    command = [sys.executable, LIFE / "life.py", path, "--size", size, "--generations", generations, "--seed", WORLD]
    environment = {**os.environ, **(ENVIRONMENT if quick else {})}
    said = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with together(list(map(str, command)), env=environment, **said) as process:
        yield process


def kill_after(store: klamm.Store, size: int, generations: int, begin: int, dice: random.Random, **how: Any) -> None:
    """Run it up to a block, and kill it anywhere in the next two: reading, computing, writing, noting.

    Not later, though: one block may take as long as all that follow, when the machine has something else to do.
    """
    with pipeline(store.path, size, generations, **how) as process:
        reached: list[float] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(reached) < 2:
            with pytest.raises(subprocess.TimeoutExpired):  # it goes on
                process.wait(0.02)
            if latest(store) >= begin + len(reached):
                reached.append(time.monotonic())
            assert time.monotonic() < deadline
        moment = time.monotonic() + dice.random() * 2 * (reached[1] - reached[0])
        while (left := moment - time.monotonic()) > 0 and latest(store) < begin + 3:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(min(left, 0.02))


def latest(store: klamm.Store) -> int:
    """The block that the topic has come to, as all readers see it."""
    if "life" not in store.topics:
        return -1
    with store.consumer("life", start=klamm.last(2), wait=0) as consumer:  # the last offset is the transaction's marker
        return max((-(-int(record.value.split()[0]) // AT_ONCE) for record in consumer), default=-1)


def finish(store: klamm.Store, size: int, generations: int, **how: Any) -> None:
    with pipeline(store.path, size, generations, **how) as process:
        _, said = process.communicate(timeout=PATIENCE_S * 3)
        assert process.returncode == 0, said.decode()


def compare(store: klamm.Store, life: Any, size: int, generations: int) -> np.ndarray:
    """Compare every generation, cell by cell, and return the last one.

    The query is stopped from the driver, in its next micro-batch: on a busy machine that one may be done, too.
    """
    expected = life.world.random_cells(size, WORLD)
    count = 0
    for number, (generation, cells) in enumerate(life.world.generations(store, size)):
        assert generation == number
        if number:
            expected = life.reference.step(expected)
        assert np.array_equal(cells, expected), f"generation {generation}"
        count += 1
    assert count in (generations + 1, generations + 1 + AT_ONCE)
    assert klamm.check(store.path).ok
    return expected


def test_the_reference_knows_a_glider(life: Any) -> None:
    cells = np.zeros((8, 8), bool)
    cells[[0, 1, 2, 2, 2], [1, 2, 0, 1, 2]] = True
    later = cells
    for _ in range(4 * 8):  # it goes one cell down and right in four generations, and around the torus in 32
        later = life.reference.step(later)
    assert np.array_equal(later, cells)
    assert not np.array_equal(life.reference.step(cells), cells)


@pytest.mark.timeout(400)
def test_a_world_that_stands_still_ends_the_run_and_a_stray_event_fails_the_next(
    spark: Any, store: klamm.Store, life: Any
) -> None:
    cloudpickle.register_pickle_by_value(life.life)
    cells = np.zeros((64, 64), bool)
    cells[31:33, 31:33] = True
    life.world.create(store)
    life.world.seed(store, cells)
    with pytest.raises(klamm.InvalidSetting, match="66 cells cannot be cut into 4 tiles with a halo of 8"):
        life.life.run(spark, store.path, 66, 40, WORLD)
    with pytest.raises(klamm.InvalidSetting, match=r"generations: 41 is invalid .*multiple of 8"):
        life.life.run(spark, store.path, 64, 41, WORLD)
    assert [each["numInputRows"] for each in life.life.run(spark, store.path, 64, 40, WORLD)] == [4]
    store.append("life", b"9 born", key=b"0,0")
    with pytest.raises(StreamingQueryException, match=r"events of other generations than 1 to 8: \[9\]"):
        life.life.run(spark, store.path, 64, 40, WORLD)
    assert [cells.sum() for _, cells in life.world.generations(store, 64)] == [4, 5]


def test_a_tile_plays_as_many_generations_as_its_halo_has_cells(life: Any) -> None:
    """Tiles at all edges of the torus, each on its own; beyond the halo, cells are not known."""
    size, halo = 64, life.life.HALO
    side = size // life.life.TILES
    cells = life.world.random_cells(size, WORLD)
    expected = cells
    for _ in range(halo):
        expected = life.reference.step(expected)
    wide = np.pad(cells, halo, mode="wrap").astype(np.uint8)
    for top, left in itertools.product(range(0, size, side), repeat=2):
        tile = wide[top : top + side + 2 * halo, left : left + side + 2 * halo]
        for _ in range(halo):
            tile = life.life.play(tile)
        assert np.array_equal(tile, expected[top : top + side, left : left + side])


def test_a_window_and_a_replay_play_a_block_in_the_order_of_its_generations(store: klamm.Store, life: Any) -> None:
    """Tasks write their tiles one after the other: in a block, generations of different cells are mixed."""
    life.world.create(store)
    cells = np.zeros((64, 64), bool)
    cells[[10, 11, 12], 20] = True
    life.world.seed(store, cells)
    history = [cells]
    for _ in range(2 * life.world.AT_ONCE):
        history.append(life.reference.step(history[-1]))
    for begin in (0, life.world.AT_ONCE):
        with store.transaction() as block:
            for y, x in np.ndindex(64, 64):
                for number in range(begin + 1, begin + life.world.AT_ONCE + 1):
                    if history[number][y, x] != history[number - 1][y, x]:
                        what = b"%d %s" % (number, b"born" if history[number][y, x] else b"died")
                        block.send("life", what, key=b"%d,%d" % (x, y))
        assert life.world.reached(store) == begin + life.world.AT_ONCE
    replayed = list(life.world.generations(store, 64))
    assert [number for number, _ in replayed] == list(range(len(history)))
    assert all(np.array_equal(cells, expected) for (_, cells), expected in zip(replayed, history, strict=True))
    *_, (generation, living) = life.watch.region(store, 0, 0, 64, 64, wait=0)
    assert (generation, living) == (16, {(int(x), int(y)) for y, x in np.argwhere(history[-1])})


@pytest.mark.timeout(400)
def test_each_generation_equals_numpy_s_though_the_driver_is_killed(store: klamm.Store, life: Any) -> None:
    size, generations = 64, 8 * AT_ONCE
    dice = random.Random(seed_of())
    kill_after(store, size, generations, 2, dice)
    finish(store, size, generations)
    expected = compare(store, life, size, generations)

    # A consumer that follows a cell sees its changes, all of them and in order.
    history = [cells for _, cells in life.world.generations(store, size)]
    flips = sum(a != b for a, b in zip([np.zeros_like(expected), *history], history, strict=False))
    y, x = map(int, np.unravel_index(np.argmax(flips), flips.shape))
    own = [bool(cells[y, x]) for cells in history]
    changes = [
        f"{number} {'born' if alive else 'died'}"
        for number, (alive, before) in enumerate(zip(own, [False, *own], strict=False))
        if alive != before
    ]
    assert len(changes) > 3
    assert list(life.watch.cell(store, x, y, wait=0)) == changes

    # Compacted, the topic is the world as a table; a window of it is what it was.
    assert store["life"].compact(force=True).records_removed > 0
    cells, _ = life.world.now(store, size)
    assert np.array_equal(cells, expected)
    *_, (generation, living) = life.watch.region(store, 8, 16, 20, 10, wait=0)
    assert generation <= life.world.reached(store)
    assert living == {(8 + x, 16 + y) for y, x in np.argwhere(expected[16:26, 8:28])}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_200_generations_of_a_torus_of_512_equal_numpy_s_though_the_driver_is_killed_twice(
    store: klamm.Store, life: Any
) -> None:
    size, generations = 512, 200
    dice = random.Random(seed_of())
    begin = time.monotonic()
    for first in sorted(dice.sample(range(1, generations // AT_ONCE - 5), 2)):
        kill_after(store, size, generations, first, dice, quick=False)
    finish(store, size, generations, quick=False)
    print(f"{generations} generations in {time.monotonic() - begin:.0f} s")
    compare(store, life, size, generations)
