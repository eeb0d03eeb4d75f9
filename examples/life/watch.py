"""Follow cells of the world while it lives. Any consumer can; this one prints.

python examples/life/watch.py events/ --cell 17,204             every change of one cell, from the first on
python examples/life/watch.py events/ --region 0,0,96,40        a window: left, top, width, height
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import world

import klamm

__all__ = ["cell", "region"]


def cell(store: klamm.Store, x: int, y: int, topic: str = world.TOPIC, wait: float | None = None) -> Iterator[str]:
    """What happened to a cell, in order, and what happens to it until nothing came for `wait`."""
    mine = b"%d,%d" % (x, y)
    with store.consumer(topic, form="tuples", wait=wait) as consumer:
        for key, value in consumer:
            if key == mine:
                yield value.decode()


def region(
    store: klamm.Store,
    left: int,
    top: int,
    width: int,
    height: int,
    topic: str = world.TOPIC,
    wait: float | None = None,
) -> Iterator[tuple[int, set[tuple[int, int]]]]:
    """The generation and the living cells of a window: as it is, then each generation that changes something there."""
    table = store.table(topic, wait=None)
    here = table.offsets()  # before the table is read: what comes in between is then seen twice, not missed
    living: set[tuple[int, int]] = set()
    latest = 0

    def is_changed(key: bytes, what: bytes) -> bool:
        x, y = map(int, key.split(b","))
        if not (left <= x < left + width and top <= y < top + height) or ((x, y) in living) == (what == b"born"):
            return False
        (living.add if what == b"born" else living.remove)((x, y))
        return True

    for key, value in table.items():
        generation, what = value.split()
        latest = max(latest, int(generation))
        is_changed(key, what)
    changed = True
    with store.consumer(topic, form="tuples", start={0: here[0].offset}, wait=wait) as consumer:
        for events in _blocks(consumer, wait):
            for generation, key, what in events:
                if generation > latest:
                    if changed:
                        yield latest, living
                    latest, changed = generation, False
                changed |= is_changed(key, what)
            if not events and changed:
                yield latest, living
                changed = False


def _blocks(consumer: Any, wait: float | None) -> Iterator[list[tuple[int, bytes, bytes]]]:
    """Blocks, each in the order of its generations, as (generation, cell, what); [] when everything visible is read."""
    block: list[tuple[int, bytes, bytes]] = []
    is_idle = False
    while True:
        batch = consumer.poll(10_000, timeout=None if is_idle else 0)
        for key, value in batch:
            number, what = value.split()
            if block and world.block(int(number)) != world.block(block[0][0]):
                yield sorted(block, key=itemgetter(0))
                block = []
            block.append((int(number), key, what))
        if not batch:  # and a block becomes visible as a whole
            if is_idle and wait is not None:
                return
            if block:
                yield sorted(block, key=itemgetter(0))
                block = []
            yield []
        is_idle = not batch


def main() -> None:
    parser = argparse.ArgumentParser(description="Follow cells of the world while it lives.")
    parser.add_argument("path", help="the store's directory")
    parser.add_argument("--topic", default=world.TOPIC)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--cell", help="x,y")
    which.add_argument("--region", help="left,top,width,height")
    options = parser.parse_args()
    with klamm.open(options.path, create=False) as store:
        if options.cell:
            for change in cell(store, *map(int, options.cell.split(",")), topic=options.topic):
                print(change, flush=True)
            return
        left, top, width, height = map(int, options.region.split(","))
        for generation, living in region(store, left, top, width, height, topic=options.topic):
            rows = [
                "".join(" #"[(x, y) in living] for x in range(left, left + width)) for y in range(top, top + height)
            ]
            print("\033[H\033[2J" + "\n".join([*rows, f"generation {generation}"]), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
