"""Ctrl-C at random moments, by real signals, in the loops that the README shows: nothing hangs, nothing is lost.

tests/crash/test_interrupts.py goes through the points at which CPython runs a handler; here the kernel chooses, native
code included. A process that survives each Ctrl-C, as a notebook does, goes on with its loop. What it was told was
appended is there once the dust has settled; another process can append, commit and open meanwhile.
"""

from __future__ import annotations

import mmap
import random
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import klamm
from klamm.disk import _os
from tests.crash.cases import memory_directory, seed_of
from tests.procs import PATIENCE, Child, children, until

pytestmark = pytest.mark.skipif(not _os.HAS_BYTE_LOCKS, reason="one process at a time")

Loop = Callable[[klamm.Store, "Board"], None]


class Board:
    """What the process says while it runs: how many interrupts it has survived, and records it was told are there."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 16)

    def _add(self, place: int) -> None:
        (value,) = struct.unpack_from("q", self._map, 8 * place)
        struct.pack_into("q", self._map, 8 * place, value + 1)

    def survived(self) -> None:
        self._add(0)

    def appended(self) -> None:
        self._add(1)

    @property
    def counts(self) -> tuple[int, int]:
        interrupts, records = struct.unpack("qq", self._map[:])
        return interrupts, records


def append(store: klamm.Store, board: Board) -> None:
    while True:
        store.append("orders", b"x" * 50, key=b"k")
        board.appended()


def produce(store: klamm.Store, board: Board) -> None:
    with store.producer() as producer:
        while True:
            producer.send("orders", b"x").result(10)
            board.appended()


def consume(store: klamm.Store, board: Board) -> None:
    with store.consumer("orders", group="billing", wait=0) as consumer:
        while batch := consumer.poll(max_records=1, timeout=0):
            consumer.commit(batch)
    append_one(store, board)


def transact(store: klamm.Store, board: Board) -> None:
    with store.consumer("orders", group="shipping", wait=0) as consumer, consumer.transaction() as tx:
        batch = consumer.poll(max_records=1, timeout=0)
        tx.send("orders", b"y", key=b"k")
        tx.commit_offsets(batch)
    board.appended()


def work(store: klamm.Store, board: Board) -> None:
    """Ctrl-C ends `run` quietly."""
    with store.consumer("orders", group="workers") as consumer:
        consumer.run(lambda record: None, workers=2)
    board.survived()
    append_one(store, board)


def append_one(store: klamm.Store, board: Board) -> None:
    store.append("orders", b"z")
    board.appended()


LOOPS: list[Loop] = [append, produce, consume, transact, work]


def survive(path: str, loop: Loop, board: Board) -> None:
    """Run the loop until this process is killed; each Ctrl-C ends it where it is, and it begins again."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    while True:
        try:
            board.survived()
            with klamm.open(path) as store:
                while True:
                    try:
                        loop(store, board)
                    except KeyboardInterrupt:
                        board.survived()
        except KeyboardInterrupt:  # while it opened or closed the store
            continue


def press(child: Child, board: Board, times: int, dice: random.Random) -> None:
    for _ in range(times):
        before = board.counts[0]
        time.sleep(dice.uniform(0, 0.01))
        child.signal(signal.SIGINT)
        # One that comes while an exception of the last is handled may be swallowed there, as Python does: press again.
        until(lambda before=before: again(child, board, before), "it has noticed Ctrl-C", 60)  # type: ignore[misc]


def again(child: Child, board: Board, before: int) -> bool:
    assert child.running, child.error
    if board.counts[0] > before:
        return True
    time.sleep(0.05)
    if board.counts[0] == before:
        child.signal(signal.SIGINT)
    return False


def run(loop: Loop, directory: Path, times: int) -> None:
    dice, board = random.Random(seed_of()), Board()
    path = str(directory / "store")
    with klamm.open(path) as store:
        store.topics.create("orders", settings={"segment.bytes": 1 << 16})
        store.append_many("orders", [b"first"] * 100)
    with children() as start:
        child = start(lambda: survive(path, loop, board))
        until(lambda: board.counts[0], "it has begun")
        press(child, board, times, dice)
        with klamm.open(path, busy_timeout=PATIENCE) as store:  # beside it: nothing that it holds stays held
            store.append("orders", b"from outside")
            store.topics.create("more")
        until(lambda: board.counts[1] > 0, "it appends")
        child.kill()
        records = board.counts[1]
    with klamm.open(path) as store:
        info = store.topics.describe("orders")
        assert sum(partition.end - partition.start for partition in info.partitions) >= 101 + records
        assert store.check().ok


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_process_that_survives_ctrl_c_goes_on_and_holds_up_nobody(loop: Loop, tmp_path: Path) -> None:
    with memory_directory(tmp_path) as memory:
        run(loop, memory, 15)


@pytest.mark.soak
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_process_that_survives_a_thousand_ctrl_cs_goes_on_and_holds_up_nobody(loop: Loop, tmp_path: Path) -> None:
    with memory_directory(tmp_path) as memory:
        run(loop, memory, 1000)
